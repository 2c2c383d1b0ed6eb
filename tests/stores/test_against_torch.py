"""Random programs, step by step on torch's stores and on ours: the same answers."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corral.distributed as dist

from .conftest import KINDS, make

c10d = pytest.importorskip("torch.distributed")

KEYS = st.sampled_from(["a", "b", "c", "", "ä", "a/b"])
VALUES = st.one_of(st.binary(max_size=20), st.sampled_from(["", "text", "ß", "0"]))
NUMBERS = st.integers(-(1 << 40), 1 << 40)
TEXTS = st.sampled_from(["", "x", "y", "ß"])

# Counters have names of their own: torch's server dies of an `add` to what is no number. What waits comes as a check
# and, if that says yes, the wait.
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("append"), KEYS, VALUES),
    st.tuples(st.just("add"), st.sampled_from(["n", "m"]), NUMBERS),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("get"), st.just("n")),
    st.tuples(st.just("check"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("wait"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("compare_set"), KEYS, TEXTS, TEXTS),
    st.tuples(st.just("delete_key"), KEYS),
    st.tuples(st.just("num_keys")),
    st.tuples(st.just("list_keys")),
    st.tuples(st.just("multi_get"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("multi_set"), st.just(["a", "b"]), st.tuples(TEXTS, TEXTS).map(list)),
    st.tuples(st.just("queue_push"), st.sampled_from(["q", "r"]), TEXTS),
    st.tuples(st.just("queue_pop"), st.sampled_from(["q", "r"]), st.just(False)),
    st.tuples(st.just("queue_len"), st.sampled_from(["q", "r"])),
)
NEEDS = {"get", "wait", "multi_get"}


def _do(store, step, extra_keys):
    name, *arguments = step
    if name in NEEDS:
        keys = arguments if name == "get" else arguments[0]
        if not store.check(keys):
            return "missing"
    try:
        answer = getattr(store, name)(*arguments)
    except RuntimeError as error:
        return type(error).__name__
    if name == "num_keys":
        return answer - extra_keys
    return sorted(answer) if name == "list_keys" else answer


def _run(ours, theirs, steps, extra=0):
    for step in steps:
        expected, got = _do(theirs, step, 0), _do(ours, step, extra)
        assert (type(got), got) == (type(expected), expected), step


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=30))
def test_programs_on_hash_store(kind, steps):
    with tempfile.TemporaryDirectory() as folder:
        ours = make(kind, Path(folder))
        _run(ours, c10d.HashStore(), steps, extra=1 if kind == "file" else 0)
        del ours


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEPS, max_size=30))
def test_programs_on_tcp_store(steps):
    seconds = timedelta(seconds=20)
    theirs = c10d.TCPStore("127.0.0.1", 0, 1, True, seconds)
    ours = dist.TCPStore("127.0.0.1", 0, 1, True, seconds)
    _run(ours, theirs, steps)
    _run(dist.PrefixStore("p", ours), c10d.PrefixStore("p", theirs), steps)
    assert sorted(ours.list_keys()) == sorted(theirs.list_keys())


def test_errors_have_torchs_names():
    ours, theirs = dist.HashStore(), c10d.HashStore()
    for store, errors in ((ours, dist), (theirs, c10d)):
        store.set_timeout(timedelta(milliseconds=20))
        for call in (
            lambda store=store: store.get("k"),
            lambda store=store: store.wait(["k"]),
            lambda store=store: store.wait(["k"], timedelta(milliseconds=20)),
            lambda store=store: store.queue_pop("k"),
            lambda store=store: store.barrier("k", 2),
        ):
            with pytest.raises(errors.DistStoreError):
                call()
        with pytest.raises(errors.QueueEmptyError) as caught:
            store.queue_pop("k", block=False)
        assert isinstance(caught.value, errors.DistStoreError)


def test_every_method_of_torchs_is_there():
    for name in ("Store", "FileStore", "HashStore", "TCPStore", "PrefixStore"):
        theirs = {key for key in dir(getattr(c10d, name)) if not key.startswith("_")}
        assert theirs <= set(dir(getattr(dist, name))), name


def test_timeouts_go_through_a_prefix_as_in_torch():
    for module in (dist, c10d):
        whole = module.HashStore()
        assert whole.timeout == timedelta(minutes=5)
        module.PrefixStore("p", whole).set_timeout(timedelta(seconds=7))
        assert whole.timeout == timedelta(seconds=7)


def test_nested_prefixes_as_in_torch():
    for module in (dist, c10d):
        whole = module.HashStore()
        part = module.PrefixStore("x", whole)
        inner = module.PrefixStore("y", part)
        inner.set("k", "v")
        assert (whole.list_keys(), part.list_keys(), inner.list_keys()) == (["x/y/k"], ["y/k"], ["k"])
        assert isinstance(inner.underlying_store, module.PrefixStore)
        assert isinstance(inner._underlying_non_prefix_store, module.HashStore)


def test_files_are_removed_as_by_torch(tmp_path):
    for module in (dist, c10d):
        path = tmp_path / module.__name__
        store = module.FileStore(str(path), 1)
        store.set("a", "1")
        assert path.exists()
        del store
        assert not path.exists()
        first, second = module.FileStore(str(path), 2), module.FileStore(str(path), 2)
        first.set("a", "1")
        del first
        assert path.exists()
        del second
        assert not path.exists()
        store = module.FileStore(str(path))
        store.set("a", "1")
        del store
        assert module.FileStore(str(path)).get("a") == b"1"
