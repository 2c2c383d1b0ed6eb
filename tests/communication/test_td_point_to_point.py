"""`TensorDict.send`, `recv`, `isend`, `irecv`, `init_remote` and `from_remote_init`, beside tensordict's over gloo."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from fleet import Fleet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from td_trees import addresses, ours, plain, specs, theirs

import corral
import corral.distributed as dist
from corral import TensorDict


@pytest.fixture(scope="module", params=[2, 3, 4])
def fleet(request):
    ranks = Fleet(request.param, gloo=True)
    yield ranks
    ranks.close()


quick = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _pass_on(td, into, rank, size, sending, receiving, tag):
    """Send from each rank to the next, one after the other; return what the methods returned."""
    results = []
    for sender in range(size):
        receiver = (sender + 1) % size
        if rank == sender:
            early = {"return_early": True} if sending == "early" else {}
            result = getattr(td, "send" if sending == "send" else "isend")(receiver, init_tag=tag, **early)
            if early:
                for work in result:
                    work.wait()
                result = None
            results.append(result)
        elif rank == receiver:
            early = {"return_premature": True} if receiving == "early" else {}
            result = getattr(into, "recv" if receiving == "recv" else "irecv")(sender, init_tag=tag, **early)
            if early:
                for work in result:
                    work.wait()
                result = None
            results.append(result)
    return results


def _one_way(rank, size, spec, sending, receiving, library, tag):
    reference = theirs(spec, 100 + rank)
    expected = _pass_on(theirs(spec, rank), reference, rank, size, sending, receiving, tag)
    mine, into = ours(spec, rank, library), ours(spec, 100 + rank, library)
    before, held = plain(mine), addresses(into)
    into.lock_()
    assert _pass_on(mine, into, rank, size, sending, receiving, tag) == expected
    assert plain(into) == plain(reference)
    assert addresses(into) == held
    assert plain(mine) == before


@given(
    specs(),
    st.sampled_from(["send", "isend", "early"]),
    st.sampled_from(["recv", "irecv", "early"]),
    st.sampled_from(["numpy", "torch", "mixed"]),
    st.sampled_from([0, 5]),
)
@quick
def test_as_tensordict(fleet, spec, sending, receiving, library, tag):
    fleet(_one_way, spec, sending, receiving, library, tag)


def _consolidated(rank, size):
    spec = [(("a",), (3,), "float32", False), (("n", "b"), (), "int64", False)]
    found = []
    for make in (theirs, ours):
        if rank == 0:
            make(spec, 0).init_remote(dst=1)
            found.append((make(spec, 1).send(1, consolidated=True), make(spec, 2).isend(1, consolidated=True)))
        elif rank == 1:
            td = type(make(spec, 0)).from_remote_init(src=0)
            first = plain(td)
            results = [td.recv(0, consolidated=True), plain(td), td.irecv(0, consolidated=True), plain(td)]
            found.append((tuple(td.batch_size), first, results))
    assert rank > 1 or found[0] == found[1]


def test_structure_first_then_values(fleet):
    fleet(_consolidated)


def _options(rank, size):
    spec = [(("a",), (3,), "float32", False)]
    td = ours(spec, rank)
    if rank == 0:
        td.send(1, pseudo_rand=True)
        assert td.isend(1, init_tag=7) == 7
    elif rank == 1:
        assert td.irecv(0, pseudo_rand=True) is None
        assert td.recv(0, init_tag=7) == 7
        assert plain(td) == plain(ours(spec, 0))
    everyone = dist.new_group(list(range(size))[::-1], sort_ranks=False)  # group rank 0 is the last
    if rank == size - 1:
        td = ours(spec, 50)
        td.send(0, group=everyone)
        td.send(group=everyone, group_dst=size - 1)
        td.init_remote(group=everyone, group_dst=size - 1)
        td.init_remote(0, everyone)
    elif rank == 0:
        for call in (
            lambda: td.recv(size - 1, group=everyone),
            lambda: td.recv(group=everyone, group_src=0),
        ):
            td["a"][:] = 0
            call()
            assert plain(td) == plain(ours(spec, 50))
        assert plain(TensorDict.from_remote_init(size - 1, everyone)) == plain(td)
        assert plain(TensorDict.from_remote_init(group=everyone, group_src=0)) == plain(td)
    dist.destroy_process_group(everyone)


def test_options_and_other_groups(fleet):
    fleet(_options)


def _outside(rank, size):
    pair = dist.new_group([1, 0], sort_ranks=False)
    td = TensorDict(a=np.full(2, rank))
    if rank > 1:
        with pytest.warns(UserWarning, match="does not belong") as warned:
            td.send(0, group=pair)
        assert warned[0].filename == __file__
        with pytest.warns(UserWarning, match="does not belong"):
            assert td.isend(0, group=pair, return_early=True) == []
        with pytest.warns(UserWarning, match="does not belong"):
            assert td.irecv(0, group=pair) is None
    elif rank == 0:
        td.recv(group=pair, group_src=0)
        assert td["a"].tolist() == [1, 1]
    else:
        td.send(0, group=pair)
    if rank < 2:
        dist.destroy_process_group(pair)


def test_outside_of_the_group(fleet):
    fleet(_outside)


def _both_ways(rank, size):
    """Everyone starts to receive before anyone sends, from both neighbors, several times with one tag."""
    others = [(rank + 1) % size, (rank - 1) % size]
    rounds = 5
    into = {other: [TensorDict(a=np.zeros(3), b={"c": np.zeros(2, "i4")}) for _ in range(rounds)] for other in others}
    works = [work for other in into for td in into[other] for work in td.irecv(other, return_premature=True)]
    assert len(works) == rounds * len(into)
    for other in into:
        for turn in range(rounds):
            td = TensorDict(b={"c": np.full(2, turn, "i4")}, a=np.full(3, 10.0 * rank + turn))
            works += td.isend(other, return_early=True)
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
        assert work.exception() is None
    for other in into:
        for turn, td in enumerate(into[other]):
            assert td["a"].tolist() == [10.0 * other + turn] * 3
            assert td["b", "c"].tolist() == [turn] * 2


def test_both_ways_at_once(fleet):
    fleet(_both_ways)


def _to_itself(rank, size):
    td = TensorDict(a=np.zeros(3))
    works = td.irecv(rank, return_premature=True) + TensorDict(a=np.ones(3)).isend(rank, return_early=True)
    for work in works:
        work.wait()
    assert td["a"].tolist() == [1.0] * 3
    assert works[0].result()[0] is td["a"]


def test_to_itself(fleet):
    fleet(_to_itself)


def _arguments(rank, size):
    td = TensorDict(a=np.zeros(3))
    for call in (td.send, td.recv, td.isend, td.irecv, td.init_remote):
        if call.__name__ != "init_remote":
            with pytest.raises(ValueError, match="tag must be an integer"):
                call((rank + 1) % size, init_tag=-1)
        name = "dst" if "dst" in inspect.signature(call).parameters else "src"
        with pytest.raises(ValueError, match=f"Must specify {name} or group_{name}"):
            call()
        with pytest.raises(ValueError, match=f"Can't specify both group_{name} and {name}"):
            call(0, **{f"group_{name}": 0})
        with pytest.raises(ValueError, match=f"Global rank 99, given as {name}"):
            call(99)
    for call in (td.send, td.recv):
        with pytest.raises(ValueError, match=r"is this rank itself"):
            call(rank)


def test_arguments(fleet):
    fleet(_arguments)


def _misfits(rank, size):
    a, b = np.ones(2), np.ones((2, 3))
    cases = [
        (TensorDict(a=a), TensorDict(b=a), r"'a' is .*float64 .* on rank 0, but rank 1 has no such key"),
        (TensorDict(a=a), TensorDict(a=a, b=a), r"'b' is .* on rank 1, but rank 0 has no such key"),
        (
            TensorDict(n={"a": a}),
            TensorDict(n={"a": a.astype("i8")}),
            r"\('n', 'a'\) is .*int64.* rank 1, but .*float64",
        ),
        (TensorDict(a=b), TensorDict(a=b.T.copy()), r"'a' has shape \(3, 2\) on rank 1, but \(2, 3\) on rank 0"),
        (TensorDict(), TensorDict(a=a), r"'a' is .* on rank 1, but rank 0 has no such key"),
        (TensorDict(a=a), TensorDict(), r"'a' is .* on rank 0, but rank 1 has no such key"),
        (
            TensorDict(a=np.ones(100_000)),
            TensorDict(a=np.ones(100_001)),
            r"'a' has shape \(100001,\) on rank 1, but \(100000,\)",
        ),
        (
            TensorDict({f"key {i}": a for i in range(400)}),
            TensorDict({f"key {i}": a if i != 390 else np.ones(3) for i in range(400)}),
            r"'key 390' has shape \(3,\) on rank 1, but \(2,\) on rank 0",
        ),
    ]
    for sent, into, message in cases:
        for name in ("recv", "irecv"):
            if rank == 0:
                sent.send(1)
                TensorDict(a=a).send(1)
            elif rank == 1:
                into = into.clone()
                before = plain(into)
                with pytest.raises(dist.MismatchError, match=rf"^TensorDict.{name}: {message}.* nothing was written"):
                    getattr(into, name)(0)
                assert plain(into) == before
                TensorDict(a=np.zeros(2)).recv(0)  # the next one is not affected


def test_misfits(fleet):
    fleet(_misfits)


def _other_messages(rank, size):
    if rank == 0:
        dist.send(np.ones(3), 1)
        dist.send(np.ones(2048, "u1"), 1)
        corral.send({"a": 1}, 1)
        TensorDict(a=np.ones(3)).send(1)
        corral.send({"a": 1}, 1, tag=9)
        corral.send({"a": 1}, 1)
    elif rank == 1:
        td = TensorDict(a=np.zeros(3))
        for _ in range(3):
            with pytest.raises(dist.MismatchError, match=r"is not one that TensorDict\.send or"):
                td.recv(0)
        td.recv(0)
        assert td["a"].tolist() == [1.0] * 3
        with pytest.raises(dist.MismatchError, match="received a dict, where a TensorDict was expected"):
            TensorDict.from_remote_init(0)
        assert corral.recv(0, tag=9) == {"a": 1}


def test_other_messages(fleet):
    fleet(_other_messages)


def _unusable(rank, size):
    import torch

    fixed = np.zeros(2)
    fixed.flags.writeable = False
    shared = np.zeros((2, 3))
    for td, message in (
        (TensorDict(a=fixed), "'a' cannot be received into: it is read-only"),
        (TensorDict(a=torch.zeros(1).expand(2)), "'a' cannot be received into: some of its elements share memory"),
        (TensorDict(a=shared, n={"b": shared[1]}), r"'a' and \('n', 'b'\) share memory"),
    ):
        with pytest.raises(ValueError, match=message):
            td.recv((rank + 1) % size)
        with pytest.raises(ValueError, match=message):
            td.irecv((rank + 1) % size)
    masked = TensorDict(a=np.ma.array([1, 2], mask=[True, False]))
    objects = TensorDict(a=np.zeros(2, object))
    for td, message in ((masked, "'a' has masked elements"), (objects, "'a' has dtype object")):
        if rank == 0:
            for send in (td.send, td.isend):
                with pytest.raises(TypeError, match=message):
                    send(1)
        elif rank == 1:
            for name in ("recv", "irecv"):
                with pytest.raises(dist.MismatchError, match=rf"{name}: rank 0 could not send .*{message}"):
                    getattr(TensorDict(a=np.zeros(2, "i8")), name)(0)


def test_leaves_that_cannot_be_used(fleet):
    fleet(_unusable)


def _libraries(rank, size):
    import jax.numpy as jnp
    import torch

    parameter = torch.nn.Parameter(torch.full((2, 3), float(rank)))
    big_endian = np.full((2, 3), rank, ">f4")
    column = np.zeros((2, 3, 2), "f4")
    column[..., 0] = rank
    kinds = (parameter, big_endian, column[..., 0], jnp.full((2, 3), float(rank)))
    for sent in kinds:
        for received in kinds:
            if rank == 0:
                TensorDict(a=sent).send(1)
            elif rank == 1:
                td = TensorDict(a=received + 0 if received is kinds[3] else received)
                td.recv(0)
                if received is kinds[3]:  # arrays of JAX never change: a new one is in its place
                    assert type(td["a"]) is type(received)
                else:
                    assert td["a"] is received
                assert np.asarray(td["a"].detach() if received is parameter else td["a"]).tolist() == [[0.0] * 3] * 2
                with torch.no_grad():
                    parameter.fill_(1)
                big_endian[:] = column[..., 0] = 1
    assert column[..., 1].tolist() == [[0.0] * 3] * 2


def test_libraries_and_strides(fleet):
    fleet(_libraries)
