"""Functions, arithmetic and reductions: the same calls on corral's TensorDict and on tensordict's, and with NumPy.

Values are compared up to rounding: libraries differ in the last digits of sines and sums.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensordict
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corral import TensorDict
from corral.arrays import library_of, to_numpy
from corral.arrays.functions import FUNCTIONS, PREDICATES
from tests.tensordict.comparing import aliases, batches, build, outcome, specs

FLOATS = ("float64", "float32")
NUMBERS = ("float64", "float32", "int64", "int16", "uint8")


def small(x: Any) -> Any:
    """Return values between -2 and 2, all kinds of them; of integers, those from 0 to 4."""
    x = np.asarray(x)
    return x if x.dtype.kind == "b" else np.sin(x * 1.7) * 2 if x.dtype.kind == "f" else x % 5


def forms(spec: Any, batch: Any, change: Callable[[Any], Any] = small) -> tuple[Any, Any, Any]:
    """Return tensordict's, corral's with torch leaves, corral's with NumPy leaves, of the same values."""

    def array(x: Any) -> Any:
        return np.array(change(x), x.dtype)

    def tensor(x: Any) -> Any:
        return torch.from_numpy(array(x))

    return (
        build(spec, batch, tensordict.TensorDict, tensor),
        build(spec, batch, TensorDict, tensor),
        build(spec, batch, TensorDict, array),
    )


def is_td(value: Any) -> bool:
    return isinstance(value, TensorDict) or tensordict.is_tensor_collection(value)


def assert_close(mine: Any, theirs: Any, where: str = "result", dtypes: bool = True) -> None:
    if is_td(theirs):
        assert isinstance(mine, TensorDict), f"{where}: {mine!r} is no TensorDict"
        assert set(mine.keys()) == set(theirs.keys()), f"{where}: keys"
        assert tuple(mine.batch_size) == tuple(theirs.batch_size), f"{where}: batch size"
        assert mine.is_locked == theirs.is_locked, f"{where}: is_locked"
        for key in mine.keys():  # noqa: SIM118
            assert_close(mine.get(key), theirs.get(key), f"{where}[{key!r}]", dtypes)
    elif isinstance(theirs, tuple):
        assert len(mine) == len(theirs), where
        for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            assert_close(one, other, f"{where}[{i}]", dtypes)
    elif library_of(theirs) != "other":
        one, other = to_numpy(mine), to_numpy(theirs)
        assert one.shape == other.shape, f"{where}: shapes {one.shape} and {other.shape}"
        if dtypes:
            assert one.dtype == other.dtype, f"{where}: dtypes {one.dtype} and {other.dtype}"
        tolerance = 1e-3 if "float16" in (one.dtype, other.dtype) else 2e-5
        np.testing.assert_allclose(
            one.astype("complex128"), other.astype("complex128"), tolerance, tolerance, err_msg=where
        )
    else:
        assert mine == theirs, f"{where}: {mine!r} and {theirs!r}"


def compare(function: Callable[[Any], Any], tds: tuple[Any, Any, Any], numpy: bool = True) -> None:
    """Assert that a function does the same to all forms: results, errors, what became of the argument, whose memory.

    With NumPy's leaves, more may work than with torch's; what does not work with those is not compared.
    """
    (theirs, error), (mine, my_error), (numpys, numpy_error) = (outcome(function, td) for td in tds)
    assert (error is None) == (my_error is None), f"corral: {my_error!r}; tensordict: {error!r}"
    if error is not None:
        return
    assert_close(mine, theirs)
    assert_close(tds[1], tds[0], "argument")
    assert aliases(mine, tds[1]) == aliases(theirs, tds[0]), "memory is shared in one of the two only"
    if numpy:
        assert numpy_error is None, f"with NumPy: {numpy_error!r}"
        assert_close(numpys, theirs, dtypes=False)
        assert_close(tds[2], tds[0], "argument", dtypes=False)


def locked(td: Any, lock: bool) -> Any:
    return td.lock_() if lock else td


@pytest.mark.parametrize("name", [*FUNCTIONS, *PREDICATES, *(f"{name}_" for name in FUNCTIONS)])
@settings(max_examples=12, deadline=None)
@given(specs(dtypes=FLOATS), specs(dtypes=NUMBERS), batches(max_dims=2), st.booleans())
def test_function(name: str, spec: Any, numbers: Any, batch: Any, lock: bool) -> None:
    compare(lambda td: getattr(locked(td, lock), name)(), forms(spec, batch))
    if not name.endswith("_"):  # what fails in place has changed some of the leaves
        compare(lambda td: getattr(td, name)(), forms(numbers, batch))


def test_special_values() -> None:
    values = np.array([-np.inf, -3.0, -2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.5, 171.0, 1e300, np.inf, np.nan])
    for name in (*FUNCTIONS, *PREDICATES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of values that are not defined
            found = getattr(TensorDict(a=values), name)()["a"]
        expected = getattr(torch, name)(torch.from_numpy(values)).numpy()
        np.testing.assert_allclose(found, expected, 1e-12, 1e-12, err_msg=name)


def test_floats_do_not_fit_integers() -> None:
    td = TensorDict(a=np.arange(3), b=torch.arange(3))
    for call in (lambda: td.exp_(), lambda: td.add_(0.5), lambda: td.select("b").sqrt_(), lambda: td.div_(2)):
        with pytest.raises(RuntimeError, match="can't be cast"):
            call()
    assert td["a"].tolist() == td["b"].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match=r"the entry \('n', 'x'\)"):
        TensorDict(n={"x": np.arange(1, 3)}).log_()


BINARY = ("add", "sub", "rsub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max")
BINARY_ = ("add_", "sub_", "mul_", "div_", "maximum_", "minimum_", "clamp_min_", "clamp_max_")


def operand(kind: str, td: Any, size: Any) -> Any:
    """Return an operand of one kind; arrays are torch's for all."""
    if kind == "number":
        return 3
    if kind == "0-d":
        return torch.tensor(3.0)
    if kind == "batch":
        return torch.arange(1.0, 1.0 + int(np.prod(size, dtype=int))).reshape(size)
    other = td.clone().apply(lambda x: x * 2 + 1, filter_empty=False)
    if kind == "row" and td.ndim and td.shape[0]:
        return other[:1]
    if kind == "more":
        return other.expand(2, *td.shape)
    return other


def writes(td: Any) -> bool:
    """Whether there are leaves, and all have elements."""
    sizes = [leaf.numel() for leaf in td.values(True, True)]
    return bool(sizes) and all(sizes)


@pytest.mark.parametrize("name", [*BINARY, *BINARY_])
@settings(max_examples=30, deadline=None)
@given(
    specs(dtypes=FLOATS),
    batches(max_dims=2),
    st.sampled_from(["number", "0-d", "batch", "td", "row", "more"]),
    st.booleans(),
    st.integers(0, 2),
)
def test_binary(name: str, spec: Any, batch: Any, kind: str, lock: bool, alpha: int) -> None:
    size = batch[1:] if alpha else batch
    options = {"alpha": alpha} if alpha and name.strip("_") in ("add", "sub", "rsub") else {}
    tds = forms(spec, batch)
    if kind == "more" and name.endswith("_") and not writes(tds[0]):
        return  # nothing can be written to a repeated batch, of which functions make different things
    compare(lambda td: getattr(locked(td, lock), name)(operand(kind, td, size), **options), tds)


@settings(max_examples=60, deadline=None)
@given(specs(dtypes=("int64", "uint8", "bool")), batches(max_dims=2), st.sampled_from(["0-d", "batch", "td"]))
def test_integers(spec: Any, batch: Any, kind: str) -> None:
    def whole(td: Any) -> Any:
        if kind == "td":
            return td
        return torch.tensor(3) if kind == "0-d" else torch.ones(batch, dtype=torch.int64)

    tds = forms(spec, batch)
    if not all(tds[0].keys(True, True)):
        return
    for name in ("bitwise_and", "logical_and", "mod"):
        if len(list(tds[0].keys(True, True))) or name == "add":  # else tensordict returns None
            compare(lambda td, name=name: getattr(td, name)(whole(td)), tds)


def test_remainder_of_nothing() -> None:
    compare(lambda td: td.mod(0), forms({"a": ("leaf", (), "int64")}, (2,)), numpy=False)
    with pytest.raises(ArithmeticError):
        TensorDict(a=np.arange(3)).mod(0)


@settings(max_examples=40, deadline=None)
@given(
    specs(dtypes=FLOATS), specs(dtypes=FLOATS), batches(max_dims=1), st.sampled_from(["add", "sub", "mul", "maximum"])
)
def test_default(one: Any, two: Any, batch: Any, name: str) -> None:
    seconds = forms(two, batch)
    pairs = [tensordict.TensorDict, TensorDict]

    def function(td: Any) -> Any:
        other = seconds[pairs.index(type(td))] if td is not tds[2] else seconds[2]
        return getattr(td, name)(other, default=default)

    firsts, others = set(seconds[0].keys(True, True)), None
    tds = forms(one, batch)
    others = set(tds[0].keys(True, True))
    if not firsts or not others or not firsts & others or conflicts(firsts | others):
        return
    for default in ("intersection", torch.tensor(3.0)):
        if batch == () or default == "intersection":
            compare(function, tds)


def conflicts(keys: Any) -> bool:
    """Whether one key leads through another."""
    paths = [key if isinstance(key, tuple) else (key,) for key in keys]
    return any(a != b and a[: len(b)] == b for a in paths for b in paths)


def test_number_as_default() -> None:
    for make in (np.asarray, torch.tensor):
        one, two = TensorDict(a=make([1.0])), TensorDict(b=make([5.0]))
        assert one.sub(two, default=3).tolist(convert_tensors=True) == {"a": [-2.0], "b": [-2.0]}
        with pytest.raises(KeyError, match="differ"):
            one.sub(two)


TERNARY: dict[str, Callable[..., Any]] = {
    "lerp": lambda td, a, b: td.lerp(a, 0.25),
    "lerp 0-d": lambda td, a, b: td.lerp(a, torch.tensor(0.75, dtype=torch.float64)),
    "lerp by each": lambda td, a, b: td.lerp(a, b),
    "lerp_": lambda td, a, b: td.lerp_(a, 0.25),
    "addcmul": lambda td, a, b: td.addcmul(a, b),
    "addcmul value": lambda td, a, b: td.addcmul(a, b, value=0.5),
    "addcmul_": lambda td, a, b: td.addcmul_(a, b, value=2),
    "addcdiv": lambda td, a, b: td.addcdiv(a, b, value=0.5),
    "addcdiv_": lambda td, a, b: td.addcdiv_(a, b),
    "clamp": lambda td, a, b: td.clamp(a - 2, a + 0.5),
    "clamp numbers": lambda td, a, b: td.clamp(-0.5, 1),
    "clamp min": lambda td, a, b: td.clamp(min=0.25),
    "clamp max": lambda td, a, b: td.clamp(max=0.25),
    "clamp nothing": lambda td, a, b: td.clamp(),
    "clamp mixed": lambda td, a, b: td.clamp(a, td),
    "clamp out": lambda td, a, b: td.clamp(-0.5, 1, out=td.clone()),
}


@pytest.mark.parametrize("function", TERNARY.values(), ids=TERNARY.keys())
@settings(max_examples=25, deadline=None)
@given(specs(dtypes=("float64",), min_size=1), batches(max_dims=2), st.sampled_from(["batch", "td"]), st.booleans())
def test_ternary(function: Any, spec: Any, batch: Any, kind: str, lock: bool) -> None:
    kind = kind if batch else "td"  # some functions of tensordict take no array without dimensions

    def call(td: Any) -> Any:
        one = operand(kind, td, batch)
        one = one.double() if kind == "batch" else one
        return function(locked(td, lock), one, one * 0.5 + 1)

    compare(call, forms(spec, batch))


OPERATORS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
    "reflected -": lambda a, b: 3 - a,
    "reflected /": lambda a, b: 3 / a,
    "==": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "|": lambda a, b: (a > 0) | (b > 1),
    "&": lambda a, b: (a > 0) & (a > 1),
    "+=": lambda a, b: a.__iadd__(b),
    "~": lambda a, b: ~(a > 0),
}


@pytest.mark.parametrize("function", OPERATORS.values(), ids=OPERATORS.keys())
@settings(max_examples=25, deadline=None)
@given(
    specs(dtypes=("float64",), min_size=1),
    batches(max_dims=2),
    st.sampled_from(["number", "batch", "td", "row", "more"]),
    st.booleans(),
)
def test_operators(function: Any, spec: Any, batch: Any, kind: str, lock: bool) -> None:
    tds = forms(spec, batch)
    if kind == "more" and function is OPERATORS["+="] and not writes(tds[0]):
        return

    def call(td: Any) -> Any:
        other = operand(kind, td, batch)
        return function(locked(td, lock), other.double() if kind == "batch" else other)

    compare(call, tds)


def calling(name: str) -> Callable[..., Any]:
    return lambda td, *args, **kwargs: getattr(td, name)(*args, **kwargs)


def test_functions_of_torch() -> None:
    tds = forms({"a": ("leaf", (2,), "float64"), "b": ("nested", (), {"c": ("leaf", (), "float64")})}, (3,))
    for name in (*FUNCTIONS, *PREDICATES):
        compare(lambda td, name=name: getattr(torch, name)(td), tds)
    for name in BINARY:
        compare(lambda td, name=name: getattr(torch, name)(td, td * 2), tds)
    for name in ("mean", "sum", "std", "var"):
        compare(lambda td, name=name: getattr(torch, name)(td, 0), tds)
    compare(lambda td: torch.clamp(td, 0, 1), tds)
    compare(lambda td: torch.addcmul(td, td, td, value=2), tds)
    compare(lambda td: torch.exp_(td), tds)
    compare(lambda td: torch.add(torch.ones(3), td), tds)
    compare(lambda td: torch.ones(3, dtype=torch.float64) + td, tds)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    **{name: calling(name) for name in ("sum", "nansum", "prod", "mean", "nanmean", "std", "var")},
    **{name: calling(name) for name in ("amin", "amax", "min", "max")},
    "var of all": lambda td, *a, **k: td.var(*a, correction=0, **k),
    "sum as float64": lambda td, *a, **k: td.sum(*a, dtype=torch.float64, **k),
    "median": lambda td, *a, **k: td.quantile(0.5, *a, **k),
    "lower quartile": lambda td, *a, **k: td.quantile(0.25, *a, interpolation="lower", **k),
    "quantiles": lambda td, *a, **k: td.quantile(torch.tensor([0.25, 0.6], dtype=torch.float64), *a, **k),
    "min without indices": lambda td, *a, **k: td.min(*a, return_indices=False, **k),
}
ARGUMENTS: dict[str, Callable[..., Any]] = {
    "all": lambda f, td, d: f(td),
    "None": lambda f, td, d: f(td, None),
    "dim": lambda f, td, d: f(td, d),
    "dim kept": lambda f, td, d: f(td, d, True),
    "two": lambda f, td, d: f(td, (0, 1)),
    "two kept": lambda f, td, d: f(td, (0, 1), keepdim=True),
    "none of them": lambda f, td, d: f(td, ()),
    "kept": lambda f, td, d: f(td, keepdim=True),
    "feature": lambda f, td, d: f(td, "feature"),
    "together": lambda f, td, d: f(td, reduce=True),
    "together by dim": lambda f, td, d: f(td, abs(d), reduce=True),
    "together by feature": lambda f, td, d: f(td, "feature", reduce=True),
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS.keys())
@pytest.mark.parametrize("function", REDUCTIONS.values(), ids=REDUCTIONS.keys())
@settings(max_examples=12, deadline=None)
@given(
    specs(dtypes=("float64",)),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    st.integers(-3, 2),
    st.booleans(),
)
def test_reduction(function: Any, arguments: Any, spec: Any, batch: Any, dim: int, lock: bool) -> None:
    if not all_nonempty(spec):
        return
    tds = forms(spec, batch)
    if arguments is ARGUMENTS["none of them"] and not list(tds[0].keys(True, True)):
        return  # tensordict asks for a dimension where it reduces a leaf
    compare(lambda td: arguments(function, locked(td, lock), dim), tds)


def all_nonempty(spec: Any) -> bool:
    """Whether leaves have elements: of none, there is no smallest one."""
    return all(
        all_nonempty(rest) and 0 not in shape if kind == "nested" else 0 not in shape
        for kind, shape, rest in spec.values()
    )


MORE: dict[str, Callable[..., Any]] = {
    "cummin": lambda td, d: td.cummin(d),
    "cummax": lambda td, d: td.cummax(d),
    "cummax values": lambda td, d: td.cummax(d, return_indices=False),
    "cummin together": lambda td, d: td.cummin(abs(d), reduce=True),
    "logsumexp": lambda td, d: td.logsumexp(d),
    "logsumexp kept": lambda td, d: td.logsumexp(d, True),
    "logsumexp all": lambda td, d: td.logsumexp() if td.ndim else None,
    "softmax": lambda td, d: td.softmax(d),
    "softmax float32": lambda td, d: td.softmax(d, torch.float32),
    "norm": lambda td, d: td.norm(),
    "norm float32": lambda td, d: td.norm(dtype=torch.float64),
    "norm renamed": lambda td, d: td.norm(key_transform=lambda key: f"{key}_norm"),
    "sum renamed": lambda td, d: td.sum(key_transform=lambda key: f"{key}_sum"),
    "all": lambda td, d: (td > 0).all(),
    "any": lambda td, d: (td > 0).any(),
    "all dim": lambda td, d: (td > 0).all(d),
    "any dim": lambda td, d: (td > 0).any(d),
    "all numbers": lambda td, d: td.all(d),
}


@pytest.mark.parametrize("function", MORE.values(), ids=MORE.keys())
@settings(max_examples=25, deadline=None)
@given(specs(dtypes=("float64",)), batches(max_dims=2), st.integers(-3, 2), st.booleans())
def test_more_reductions(function: Any, spec: Any, batch: Any, dim: int, lock: bool) -> None:
    if function is MORE["cummin together"] and 0 in batch:
        return  # torch takes any dimension of an array without elements
    compare(lambda td: function(locked(td, lock), dim), forms(spec, batch))


def test_extremes_of_ties_and_nan() -> None:
    values = np.array([[3.0, 1.0, 3.0, np.nan, 5.0, np.nan], [2.0, 2.0, 1.0, 1.0, 3.0, 0.0]])
    for name in ("cummin", "cummax"):
        found = getattr(TensorDict(a=values, batch_size=[2, 6]), name)(1)
        expected = getattr(torch, name)(torch.from_numpy(values), 1)
        np.testing.assert_array_equal(found.values["a"], expected.values)
        np.testing.assert_array_equal(found.indices["a"], expected.indices)


def test_leaves_of_several_libraries_are_reduced_together() -> None:
    td = TensorDict(a=np.arange(3.0), b=torch.ones(2))
    assert td.sum(reduce=True).item() == 5
    with pytest.raises(ValueError, match="has none"):
        TensorDict().sum(reduce=True)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    values = np.array([[0.25, -0.5, 0.75], [0.9, 0.1, -0.3]], "float32")
    numpys = TensorDict(a=values, b={"c": values * 2}, batch_size=[2])
    mask = np.array([True, False])
    calls: list[Callable[[Any], Any]] = [
        *(lambda td, name=name: getattr(td, name)() for name in (*FUNCTIONS, *PREDICATES)),
        *(lambda td, name=name: getattr(td, name)(td + 1) for name in BINARY),
        *(lambda td, name=name: getattr(td, name)(0) for name in ("sum", "nansum", "prod", "mean", "nanmean", "std")),
        *(lambda td, name=name: getattr(td, name)() for name in ("var", "amin", "amax", "min", "max", "norm")),
        *(lambda td, name=name: getattr(td, name)(0) for name in ("min", "max", "cummin", "cummax", "softmax")),
        lambda td: td.logsumexp(),
        lambda td: td.quantile(0.3, 0),
        lambda td: td.sum(reduce=True),
        lambda td: td.lerp(td + 1, 0.75),
        lambda td: td.addcmul(td, td, value=2),
        lambda td: td.clamp(0, 0.5),
        lambda td: td.add_(1),
        lambda td: td.abs_().sqrt_(),
        lambda td: td.lock_().lerp_(td * 2, 0.25),
        lambda td: td.masked_fill_(mask, 5),
        lambda td: td.where(mask, td * 2),
        lambda td: td.where(mask, 3),
        lambda td: td.fill_(("b", "c"), 3),
        lambda td: td.zero_(),
        lambda td: td.half(),
    ]
    for call in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of values that are not defined
            found, expected = call(numpys.clone().convert("jax")), call(numpys.clone())
        assert all(isinstance(leaf, jax.Array) for leaf in parts_of(found))
        for one, other in zip(parts_of(found), parts_of(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), 1e-5, 1e-5)


def parts_of(result: Any) -> list[Any]:
    """Return the arrays of a result."""
    if isinstance(result, TensorDict):
        return list(result.values(True, True))
    return [part for each in result for part in parts_of(each)] if isinstance(result, tuple) else [result]
