"""Names of dimensions and devices travel with TensorDicts of every class, as tensordict's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tensordict
import torch

import corral
from corral import LazyStackedTensorDict, TensorDict
from corral.wire import codec
from corral.wire.errors import CodecError
from corral.wire.layout import Layout
from tests.distributed.ranks import run
from tests.tensordict.tensorclasses import Inner


def make(kind: Any = TensorDict, names: Any = ("time", "env"), device: Any = "cpu") -> Any:
    inner = kind({"x": torch.zeros(2, 3, 4)}, batch_size=[2, 3, 4], names=[*(names or (None, None)), "depth"])
    return kind(
        {"a": torch.arange(6.0).reshape(2, 3), "n": inner, "s": "text"},
        batch_size=[2, 3],
        names=names,
        device=device,
    )


def facts(td: Any) -> tuple[Any, ...]:
    nested = td.get("n", None)
    return td.names, td.device, None if nested is None else (nested.names, nested.device)


NAMED = (["time", "env"], torch.device("cpu"), (["time", "env", "depth"], torch.device("cpu")))
UNBOUND = (["time", "env"], None, (["time", "env", "depth"], None))
PLAIN = ([None, None], None, ([None, None, "depth"], None))
FORMS = [(("time", "env"), "cpu", NAMED), (("time", "env"), None, UNBOUND), (None, None, PLAIN)]


def lazy(kind: Any = TensorDict) -> Any:
    package = tensordict if kind is tensordict.TensorDict else corral
    td = package.lazy_stack([make(kind), make(kind)], 1)
    td.names = ["time", "stack", "env"]
    return td


LAZY = (["time", "stack", "env"], torch.device("cpu"), (["time", "stack", "env", "depth"], torch.device("cpu")))


def move(rank: int, size: int, kind: Any) -> None:
    other = 1 - rank
    for names, device, expected in FORMS:
        td = make(kind, names, device)
        for found in corral.all_gather(td):
            assert facts(found) == expected
        assert facts(corral.broadcast({"td": td} if rank == 0 else None, 0)["td"]) == expected
        assert facts(corral.scatter([td, td] if rank == 0 else None, 0)) == expected
        for found in corral.gather(td, 1) or ():
            assert facts(found) == expected
        assert facts(corral.all_to_all([td, td])[other]) == expected
        assert facts(corral.all_gather(td.exclude("s"), cat=True)) == expected
        if rank == 0:
            corral.send(td, 1)
        else:
            assert facts(corral.recv(0)) == expected
        stack = corral.gather_and_stack(None if rank == 0 else td, 0)
        if rank == 0:
            assert stack.names == [None, *expected[0]]
            assert stack.device == expected[1]
            assert stack["n"].names == [None, *expected[2][0]]
    for found in corral.all_gather(lazy(kind)):
        assert type(found) is type(lazy(kind))
        assert facts(found) == LAZY


def test_functions_keep_names_and_devices() -> None:
    run(move, 2, TensorDict)


def test_functions_keep_those_of_tensordict() -> None:
    run(move, 2, tensordict.TensorDict)


def by_methods(rank: int, size: int) -> None:
    for td, expected in [
        *((make(TensorDict, names, device), found) for names, device, found in FORMS),
        (lazy(), LAZY),
    ]:
        assert facts(td.broadcast(src=0)) == expected
        assert facts(td.broadcast(src=0, device="cpu"))[0] == expected[0]
        assert [facts(each) for each in td.all_gather()] == [expected] * size
        assert facts(td.scatter(0, [td, td] if rank == 0 else None)) == expected
        if rank == 0:
            td.init_remote(1)
        else:
            assert facts(TensorDict.from_remote_init(0)) == expected
        td.init_remote(use_broadcast=True) if rank == 0 else None
        if rank == 1:
            assert facts(TensorDict.from_remote_init(0, use_broadcast=True)) == expected
    into = make().expand(1, 2, 3).clone()
    into.names = ["rank", "time", "env"]
    td = make(names=("other", "names"))
    result = into.gather_and_stack(0) if rank == 0 else td.gather_and_stack(0)
    assert result is None if rank else result.names == ["rank", "time", "env"]
    named = Inner(q=np.zeros((2, 3)), batch_size=[2, 3], names=["time", "env"], device="cpu")
    for found in named.all_gather():
        assert type(found) is Inner
        assert (found.names, str(found.device)) == (["time", "env"], "cpu")


def test_methods_keep_names_and_devices() -> None:
    run(by_methods, 2)


def differing(rank: int, size: int) -> None:
    td = make(names=("time", "env") if rank == 1 else ("time", "other"))
    stack = corral.gather_and_stack(None if rank == 0 else td, 0)
    if rank == 0:
        assert stack.names == [None, None, None]
    new = TensorDict(batch_size=[2])
    result = corral.gather_and_stack(new if rank == 0 else TensorDict(n=make(), batch_size=[]), 0)
    if rank == 0:
        assert result["n"].names == [None, "time", "env"]


def test_a_stack_has_the_names_that_all_senders_have() -> None:
    run(differing, 3)


@pytest.mark.parametrize("td", [make(), lazy(), make(names=None, device=None)])
def test_objects_keep_names(td: Any) -> None:
    assert facts(codec.loads(codec.dumps(td))) == facts(td)


def test_layouts_say_names_only_where_there_are_some() -> None:
    plain = Layout.of(make(names=None, device=None).exclude("n"))[0]
    assert len(Layout.of(make().exclude("n"))[0].to_bytes()) > len(plain.to_bytes())
    assert plain.root.dim_names is None
    assert plain.root.device is None


def test_names_that_cannot_be_are_refused() -> None:
    layout = Layout.of(TensorDict(a=np.zeros(2), batch_size=[2], names=["x"], device="cpu"))[0]
    for change in ({"dim_names": ["x", "y"]}, {"dim_names": []}, {"device": "cuda:0"}, {"dim_names": [1.5]}):
        with pytest.raises(CodecError):
            Layout.from_bytes(Layout(msgspec.structs.replace(layout.root, **change)).to_bytes())
    with pytest.raises(TypeError, match="names of dimensions"):
        Layout.of(TensorDict(a=np.zeros(2), batch_size=[2], names=[b"x"]))


def test_lazy_stacks_keep_names_where_they_become_others(tmp_path: Path) -> None:
    mine, theirs = lazy(), lazy(tensordict.TensorDict)
    for change in (
        lambda td: td.to_tensordict(),
        lambda td: td.contiguous(),
        lambda td: td.densify(),
        lambda td: td.apply(lambda x: x + 1),
        lambda td: td.clone(),
        lambda td: td.empty(recurse=True),
        lambda td: td.consolidate(),
    ):
        assert facts(change(mine)) == facts(change(theirs))
    assert isinstance(mine, LazyStackedTensorDict)
    mine.memmap(tmp_path)
    assert facts(TensorDict.load_memmap(tmp_path)) == LAZY
