"""Methods that each do a little, beside tensordict's: the same results, errors and memory; NumPy's as torch's."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import corral
from corral.arrays import library_of
from corral.tensordict.base import Base
from tests.tensordict.trees import plain

Pair = namedtuple("Pair", "x y")


class Side:
    """Makes the same TensorDicts of one library."""

    def __init__(self, kind: Any, leaf: Callable[[Any], Any]) -> None:
        self.kind = kind
        self.leaf = leaf

    def leaves(self, *shape: int, dtype: str = "float32", start: int = 0) -> Any:
        count = int(np.prod(shape, dtype=int))
        return self.leaf(np.arange(start, start + count).astype(dtype).reshape(shape))

    def td(self, source: Any = None, size: Any = (3,), **kwargs: Any) -> Any:
        return self.kind(source or self.source(), batch_size=list(size), **kwargs)

    def source(self) -> dict[str, Any]:
        return {
            "a": self.leaves(3, 2),
            "n": self.kind({"x": self.leaves(3, start=10), "m": {"q": self.leaves(3, 2, 2, start=20)}}, batch_size=[3]),
        }

    def mixed(self) -> Any:
        return self.td({**self.source(), "s": "text", "i": self.leaves(3, dtype="int64")})


SIDES = (
    Side(tensordict.TensorDict, lambda x: torch.from_numpy(x.copy())),
    Side(corral.TensorDict, lambda x: torch.from_numpy(x.copy())),
    Side(corral.TensorDict, lambda x: x.copy()),
)


def kinds(name: str) -> Callable[[type], bool]:
    """Return an `is_leaf` that holds for classes of a name."""
    return lambda kind: kind.__name__ == name


def of(td: Any) -> Any:
    """Return a TensorDict's kind, values, lock and names."""
    return type(td).__name__, td.is_locked, list(td.names), td


def applied_out(s: Side) -> Any:
    out = s.td().apply(lambda x: x * 0)
    return s.td().apply(lambda x: x + 1, out=out) is out, out


def keyed(s: Side) -> Any:
    lists = s.mixed().tolist(as_linked_list=True)
    td = s.td()
    rows = td.tolist(as_linked_list=True)
    rows[1] = {"a": s.leaves(2, start=70), "n": td[0]["n"]}
    return lists, td


def packed(s: Side, td: Any, dim: int = -1) -> Any:
    columns, layout = td.pack(dim)
    shapes = [tuple(shape) for shape in layout.shapes]
    return columns, list(layout.keys), shapes, layout.dim, list(layout.offsets), layout.numel, layout.unpack(columns)


def state(s: Side, td: Any, **kwargs: Any) -> Any:
    def flat(found: Any) -> Any:
        facts = {key: (tuple(f["batch_size"]), str(f["device"])) for key, f in found._metadata.items()}
        return {k: flat(v) if isinstance(v, dict) else v for k, v in found.items()}, facts, type(found).__name__

    return flat(td.state_dict(**kwargs))


def consolidated(s: Side) -> Any:
    td = s.td().consolidate()
    before = td.is_consolidated()
    other = td.clone()
    return s.td().is_consolidated(), before, other.is_consolidated()


def storage_pointers(s: Side) -> Any:
    td = s.td()
    return (td.data_ptr(storage=True) == td[1:].data_ptr(storage=True)).all()


CASES: dict[str, Callable[[Side], Any]] = {
    "keys is_leaf": lambda s: list(s.mixed().keys(True, True, is_leaf=kinds("TensorDict"))),
    "keys is_leaf of none": lambda s: list(s.mixed().keys(True, True, is_leaf=lambda kind: False)),
    "keys is_leaf without leaves_only": lambda s: sorted(map(str, s.td().keys(True, is_leaf=lambda kind: False))),
    "values is_leaf": lambda s: list(s.td().values(True, True, is_leaf=kinds("TensorDict"))),
    "items is_leaf": lambda s: list(s.td().items(False, True, is_leaf=kinds("TensorDict"), sort=True)),
    "flatten_keys is_leaf": lambda s: s.td().flatten_keys(is_leaf=kinds("TensorDict")),
    "flatten_keys is_leaf of all": lambda s: s.td().flatten_keys("/", is_leaf=lambda kind: True),
    "flatten_keys is_leaf of none": lambda s: s.td().flatten_keys(is_leaf=lambda kind: False),
    "apply names": lambda s: of(s.td().apply(lambda x: x, names=["u"])),
    "apply out": applied_out,
    "apply out of nothing": lambda s: s.td().apply(lambda x: x + 1, out=s.kind({}, [3])),
    "apply out locked": lambda s: s.td().apply(lambda x: x + 1, out=s.td().lock_()),
    "apply propagate_lock": lambda s: of(s.td().lock_().apply(lambda x: x, propagate_lock=True)),
    "apply locked": lambda s: of(s.td().lock_().apply(lambda x: x)),
    "apply no device": lambda s: s.td(device="cpu").apply(lambda x: x, device=None).device is None,
    "named_apply": lambda s: s.td().named_apply(lambda key, x: x if key == "q" else None, filter_empty=True),
    "named_apply nested keys": lambda s: s.td().named_apply(lambda k, x: x + len(k), nested_keys=True),
    "update keywords": lambda s: s.td().update(a=s.leaves(3, start=50)),
    "update both": lambda s: s.td().update({"a": s.leaves(3), "b": s.leaves(3)}, a=s.leaves(3, start=9)),
    "update nothing": lambda s: s.td().update(),
    "update is_leaf": lambda s: s.td().update({"n": s.td({"k": s.leaves(3)})}, is_leaf=kinds("TensorDict")),
    "update other batch size": lambda s: s.td().update(s.td(size=[3])[:2]),
    "update_batch_size": lambda s: s.td().update(s.td()[:2].clone(), update_batch_size=True),
    "update_batch_size of fewer keys": lambda s: s.td().update(s.td()[:2].exclude("n"), update_batch_size=True),
    "update_batch_size prefix": lambda s: s.td({"a": s.leaves(3)}, []).update(s.td(), update_batch_size=True),
    "update_ nothing": lambda s: s.td().update_(),
    "update_ keywords": lambda s: s.td().update_(a=s.leaves(3, 2, start=50)),
    "update_ repeated": lambda s: s.td().update_({"a": s.leaves(2, start=50)}),
    "update_ number": lambda s: s.td().update_({"a": 7}),
    "update_ too many dimensions": lambda s: s.td().update_({"a": s.leaves(1, 3, 2)}),
    "update_ keys": lambda s: s.td().update_(s.td().apply(lambda x: x + 1), keys_to_update=["a"]),
    "update_ nested keys": lambda s: s.td().update_(s.td().apply(lambda x: x + 1), keys_to_update=[("n", "x")]),
    "update_ missing": lambda s: s.td().update_({"zz": s.leaves(3)}),
    "set_ other batch": lambda s: s.td(size=()).set_("n", s.kind({"x": s.leaves(3)}, [])),
    "set_ repeated along the batch": lambda s: s.td(size=()).set_("n", s.kind({"x": s.leaves(1)}, [])),
    "set_ empty batch": lambda s: s.kind({"n": s.kind({"x": s.leaves(0, 2)}, [0])}, []).set_(
        "n", s.kind({"x": s.leaves(2)}, [])
    ),
    "set_ does not fit": lambda s: s.td(size=()).set_("n", s.kind({"x": s.leaves(2)}, [])),
    "set in place adds": lambda s: s.td().set("n", s.td({"x": s.leaves(3), "new": s.leaves(3)}), inplace=True),
    "set positional": lambda s: s.td().set("a", s.leaves(3, 2, start=60), True),
    "select as_tensordict": lambda s: s.td().select("a", as_tensordict=True),
    "empty names": lambda s: of(s.td(names=["x"]).empty(names=["y"])),
    "empty no names": lambda s: of(s.td(names=["x"]).empty(names=None)),
    "auto_batch_size_": lambda s: s.td(size=()).auto_batch_size_(1, keep_compliant_size=True),
    "contiguous in place": lambda s: s.td({"a": s.leaves(2, 3).T}).contiguous(inplace=True).is_contiguous(),
    "contiguous in place, locked": lambda s: s.td({"a": s.leaves(2, 3).T}).lock_().contiguous(inplace=True),
    "contiguous canonical": lambda s: s.td({"a": s.leaves(2, 3).T}).contiguous(canonical=True),
    "is_contiguous": lambda s: (s.td().is_contiguous(), s.td({"a": s.leaves(2, 3).T}).is_contiguous()),
    "to_dict numpy": lambda s: s.mixed().to_dict(convert_tensors="numpy"),
    "to_dict tolist_first": lambda s: s.mixed().to_dict(tolist_first=True, convert_tensors=True),
    "tolist": lambda s: s.td().tolist(convert_tensors=True),
    "tolist nodes": lambda s: s.td().tolist(convert_nodes=False),
    "tolist wrong": lambda s: s.td().tolist(convert_nodes=False, convert_tensors=True),
    "tolist linked": keyed,
    "cpu": lambda s: str(s.td().cpu(non_blocking=True).device),
    "clone wrong": lambda s: s.td().clone(foo=1),
    "devices": lambda s: [(td.is_cpu, td.is_cuda, td.is_meta) for td in (s.td(), s.td().to("cpu"))],
    "non_tensor_items": lambda s: [key for key, _ in s.mixed().non_tensor_items(True)],
    "is_non_tensor": lambda s: [s.mixed().is_non_tensor(key) for key in ("s", "n", ("n", "x"))],
    "is_non_tensor missing": lambda s: s.mixed().is_non_tensor("zz"),
    "filter_non_tensor_data": lambda s: of(s.mixed().filter_non_tensor_data()),
    "pack": lambda s: packed(s, s.td()),
    "pack first": lambda s: packed(s, s.td(), 0),
    "pack wrong dim": lambda s: packed(s, s.td(), 2),
    "pack mixed": lambda s: s.mixed().exclude("s").pack(),
    "pack objects": lambda s: s.mixed().exclude("i").pack(),
    "pack layout": lambda s: s.td().apply(lambda x: x * 2).pack(layout=s.td().pack()[1])[0],
    "pack other layout": lambda s: s.td().exclude("a").pack(layout=s.td().pack()[1]),
    "unpack rows": lambda s: (lambda columns, layout: layout.unpack(columns[:2]))(*s.td().pack()),
    "data_ptr": lambda s: (lambda td: (td.data_ptr() == td[:1].data_ptr()).all())(s.td()),
    "data_ptr of a view": lambda s: (lambda td: (td.data_ptr() == td[1:].data_ptr()).any())(s.td()),
    "data_ptr storage": storage_pointers,
    "data_ptr kind": lambda s: (lambda d: (tuple(d.batch_size), str(d.device), sorted(d.keys())))(s.mixed().data_ptr()),
    "as_tensor": lambda s: of(s.td().lock_().as_tensor()),
    "densify": lambda s: (lambda td: td.densify() is td)(s.td()),
    "densify nested": lambda s: s.kind({"l": s.kind.lazy_stack([s.td(), s.td()])}, [2]).densify(),
    "to_padded_tensor": lambda s: s.td().to_padded_tensor(),
    "to_padded_tensor mask": lambda s: s.td().to_padded_tensor(mask_key="mask"),
    "to_lazystack": lambda s: (lambda td: (td.stack_dim, td.is_locked, td))(s.td(size=[3]).lock_().to_lazystack()),
    "to_lazystack wrong": lambda s: s.td().to_lazystack(1),
    "from_list": lambda s: s.kind.from_list([{"a": s.leaves(3)}, {"a": s.leaves(3)}]),
    "from_list automatic": lambda s: s.kind.from_list([{"a": s.leaves(3)}] * 2, auto_batch_size=True),
    "from_list dims": lambda s: s.kind.from_list([{"a": s.leaves(3, 4)}] * 2, batch_dims=2),
    "from_list ragged": lambda s: type(s.kind.from_list([{"a": s.leaves(3)}, {"a": s.leaves(4)}])).__name__,
    "from_list ragged dense": lambda s: s.kind.from_list([{"a": s.leaves(3)}, {"a": s.leaves(4)}], lazy=False),
    "from_list lazy": lambda s: type(s.kind.from_list([{"a": s.leaves(3)}], lazy=True)).__name__,
    "from_list names": lambda s: of(s.kind.from_list([{"a": s.leaves(3)}] * 2, batch_size=[2, 3], names=["x", "y"])),
    "from_list wrong": lambda s: s.kind.from_list([{"a": s.leaves(3)}] * 2, batch_size=[3, 3]),
    "from_list empty": lambda s: s.kind.from_list([]),
    "from_list TensorDicts": lambda s: s.kind.from_list([s.td(), s.td()]),
    "from_dict_instance": lambda s: s.td().from_dict_instance({"a": s.leaves(3), "n": {"x": s.leaves(3)}}),
    "from_dict_instance automatic": lambda s: s.td().from_dict_instance({"a": s.leaves(3)}, auto_batch_size=True),
    "from_pytree": lambda s: s.kind.from_pytree({"a": [s.leaves(2), s.leaves(2)], "t": (1, {"z": s.leaves(3)})}),
    "from_pytree batch": lambda s: s.kind.from_pytree([s.leaves(2, 3)], auto_batch_size=True, batch_dims=1),
    "from_pytree wrong": lambda s: s.kind.from_pytree({"a": None}),
    "from_pytree leaf": lambda s: s.kind.from_pytree(s.leaves(2)),
    "to_pytree": lambda s: s.kind.from_pytree(
        {1: [s.leaves(2), (2, {})], "p": Pair(s.leaves(1), s.leaves(2))}
    ).to_pytree(),
    "to_pytree named": lambda s: type(s.kind.from_pytree([Pair(s.leaves(1), 1)]).to_pytree()[0]).__name__,
    "to_pytree dict": lambda s: type(s.kind.from_pytree(OrderedDict(a=s.leaves(1))).to_pytree()).__name__,
    "to_pytree of another": lambda s: (lambda td: td.to_pytree() is td)(s.td()),
    "from_schema wrong": lambda s: s.kind.from_schema({}, storage="nothing"),
    "state_dict": lambda s: state(s, s.td()),
    "state_dict prefix": lambda s: state(s, s.td(), prefix="p."),
    "state_dict nested": lambda s: state(s, s.td(), flatten=False),
    "state_dict destination": lambda s: (lambda d: s.td().state_dict(destination=d) is d)(OrderedDict()),
    "state_dict ambiguous": lambda s: s.kind({"a.b": s.leaves(1), "a": {"b": s.leaves(1)}}, []).state_dict(),
    "load_state_dict": lambda s: s.td().zero_().load_state_dict(s.td().state_dict()),
    "load_state_dict nested": lambda s: s.td().zero_().load_state_dict(s.td().state_dict(flatten=False)),
    "load_state_dict dict": lambda s: s.td().zero_().load_state_dict(s.td().to_dict()),
    "load_state_dict strictly": lambda s: s.td().load_state_dict(s.td().exclude("a").state_dict()),
    "load_state_dict loosely": lambda s: s.td().zero_().load_state_dict(s.td().exclude("a").state_dict(), strict=False),
    "load_state_dict batch": lambda s: s.td().load_state_dict(s.td(size=()).state_dict()),
    "load_state_dict assign": lambda s: (lambda x: s.td().load_state_dict(x.state_dict(), assign=True))(s.td()),
    "consolidated": consolidated,
}


def form(value: Any) -> Any:
    """Return a result so that it can be compared; devices and sentinels of the libraries are left out."""
    if isinstance(value, (tensordict.TensorDictBase, Base)) and not getattr(value, "_holds_objects", False):
        return tuple(value.batch_size), {str(k): form(v) for k, v in sorted(value.items(), key=str) if "<NON" not in k}
    if isinstance(value, dict):
        return type(value).__name__, {str(key): form(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [form(entry) for entry in value]
    if library_of(value) != "other":
        return plain(value)
    return type(value).__name__ if hasattr(value, "batch_size") else value


def outcome(function: Callable[[Side], Any], side: Side) -> tuple[Any, Exception | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return form(function(side)), None
        except Exception as error:
            return None, error


@pytest.mark.parametrize("name", CASES)
def test_same(name: str) -> None:
    (theirs, their_error), *ours = (outcome(CASES[name], side) for side in SIDES)
    for mine, error in ours:
        assert (error is None) == (their_error is None), f"{error!r} and {their_error!r}"
        assert repr(mine) == repr(theirs)


def test_written_through_a_lazy_stack() -> None:
    for side in SIDES:
        td = side.td()
        td.to_lazystack()[1].set_("a", side.leaves(2, start=90))
        assert td["a"][1].tolist() == [90, 91]


@pytest.mark.parametrize("storage", [None, "memmap", "h5", "shared"])
@pytest.mark.parametrize("dtypes", [("uint8", "float32"), (torch.uint8, torch.float32)])
def test_from_schema(tmp_path: Path, storage: Any, dtypes: Any) -> None:
    options = {"memmap": {"prefix": tmp_path / "m"}, "h5": {"filename": tmp_path / "f"}}.get(storage, {})
    schema = {"a": ([2], dtypes[0]), ("b", "c"): ([], dtypes[1])}
    made = corral.TensorDict.from_schema(schema, batch_size=[3], storage=storage, **options)
    torchs = {"a": ([2], torch.uint8), ("b", "c"): ([], torch.float32)}
    theirs = tensordict.TensorDict.from_schema(torchs, batch_size=[3])
    assert form(made) == form(theirs)
    assert {library_of(made["a"])} == {"numpy" if isinstance(dtypes[0], str) else "torch"}
    assert made.is_memmap() == (storage == "memmap")
    assert isinstance(made, corral.PersistentTensorDict) == (storage == "h5")
    if storage == "shared":
        assert made.is_shared()
    if storage == "h5":
        made.close()


def test_pinned_memory_is_torchs() -> None:
    with pytest.raises(NotImplementedError, match=r"\.torch\(\)"):
        SIDES[2].td().pin_memory()
    if not torch.accelerator.is_available():
        with pytest.raises(RuntimeError):
            SIDES[1].td().pin_memory()


def test_consolidated_until_an_entry_changes() -> None:
    td = corral.TensorDict(a=np.arange(3), b={"c": np.ones(2)}).consolidate()
    td["a"][0] = 5
    assert td.is_consolidated()
    td["b", "c"] = np.zeros(2)
    assert not td.is_consolidated()
