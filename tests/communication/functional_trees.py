"""Trees of every kind, drawn as plain data, built on the ranks, and compared with what arrives."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

import corral

Pair = collections.namedtuple("Pair", "left right")
DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128", ">i4", "float8_e5m2"),
]
_JAX = ("bool", "uint8", "int8", "int16", "int32", "float16", "bfloat16", "float32", "complex64")


@dataclasses.dataclass
class Record:
    x: Any
    y: Any


def leaves(rows=None):
    shapes = st.lists(st.integers(0, 4), max_size=3)
    if rows is not None:
        shapes = shapes.map(lambda shape: [rows, *shape])
    return st.tuples(
        st.just("leaf"), shapes, st.sampled_from(DTYPES), st.sampled_from(["numpy", "torch", "jax", "strided"])
    )


def values():
    plain = [st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=4), st.binary(max_size=4)]
    return st.tuples(st.just("value"), st.one_of(*plain, st.complex_numbers(allow_nan=False), st.just((1, "a"))))


def trees():
    keys = st.one_of(st.text("abc", min_size=1, max_size=2), st.integers(0, 3))

    def containers(inner):
        return st.one_of(
            st.tuples(st.just("dict"), st.dictionaries(keys, inner, max_size=3)),
            st.tuples(st.just("list"), st.lists(inner, max_size=3)),
            st.tuples(st.just("tuple"), st.lists(inner, max_size=3)),
            st.tuples(st.sampled_from(["pair", "record"]), st.lists(inner, min_size=2, max_size=2)),
            st.integers(0, 3).flatmap(
                lambda rows: st.tuples(
                    st.just("td"),
                    st.just(rows),
                    st.dictionaries(st.sampled_from("pqr"), leaves(rows), min_size=1, max_size=3),
                )
            ),
        )

    return st.recursive(st.one_of(leaves(), values()), containers, max_leaves=6)


def _numpy_dtype(name):
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name)) if name in ("bfloat16", "float8_e5m2") else np.dtype(name)


def numbers(shape, dtype, seed):
    """Return the values of a leaf, the same wherever they are made."""
    found = np.random.default_rng(seed).integers(0, 20, shape)
    return (found % 2 == 0 if dtype == "bool" else found).astype(_numpy_dtype(dtype))


def library_of(dtype, library):
    """Return the library that a leaf is really made of: not all have every dtype."""
    if library == "jax" and dtype in _JAX:
        return "jax"
    return "torch" if library == "torch" and dtype != ">i4" else "numpy"


def build(spec, seed=0):
    """Make the tree of a spec."""
    kind = spec[0]
    if kind == "leaf":
        _, shape, dtype, library = spec
        array = numbers(shape, dtype, seed + len(shape))
        found = library_of(dtype, library)
        if found == "jax":
            import jax

            return jax.numpy.asarray(array)
        if found == "torch":
            from corral.arrays.libraries import convert

            return convert(array, "torch")
        return np.asfortranarray(np.repeat(array, 2, axis=-1)[..., ::2]) if library == "strided" and shape else array
    if kind == "value":
        return spec[1]
    if kind == "dict":
        return {key: build(child, seed + i) for i, (key, child) in enumerate(spec[1].items())}
    if kind == "td":
        return corral.TensorDict(
            {key: build(child, seed + i) for i, (key, child) in enumerate(spec[2].items())}, batch_size=[spec[1]]
        )
    children = [build(child, seed + i) for i, child in enumerate(spec[1])]
    return {"list": list, "tuple": tuple, "pair": Pair._make, "record": lambda x: Record(*x)}[kind](children)


def check(tree, spec, seed=0, like=None):
    """Assert that a tree is the one of a spec, with arrays of the right library."""
    from corral.arrays import libraries

    kind = spec[0]
    if kind == "leaf":
        _, shape, dtype, library = spec
        assert libraries.library_of(tree) == (like or library_of(dtype, library))
        array = libraries.to_numpy(tree)
        wanted = numbers(shape, dtype, seed + len(shape))
        assert array.shape == wanted.shape
        assert array.dtype == wanted.dtype or like is not None
        assert np.array_equal(array, wanted)
    elif kind == "value":
        assert type(tree) is type(spec[1])
        assert tree == spec[1]
    elif kind in ("dict", "td"):
        children = spec[-1]
        assert type(tree) is (dict if kind == "dict" else corral.TensorDict)
        if kind == "td":
            assert tuple(tree.batch_size) == (spec[1],)
        assert list(tree.keys()) == list(children)
        for i, (key, child) in enumerate(children.items()):
            check(tree[key], child, seed + i, like)
    else:
        assert type(tree) is {"list": list, "tuple": tuple, "pair": Pair, "record": Record}[kind]
        parts = [tree.x, tree.y] if kind == "record" else tree
        assert len(parts) == len(spec[1])
        for i, (part, child) in enumerate(zip(parts, spec[1], strict=True)):
            check(part, child, seed + i, like)
