"""Work and Future, on requests whose end the test decides."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from corral.distributed import DistTimeoutError, PeerLostError, Work


class ManualRequest:
    """Ends when told to."""

    def __init__(self):
        self.ended = threading.Event()
        self.error = None
        self.waits = []

    def end(self, error=None):
        self.error = error
        self.ended.set()

    def wait(self, timeout=None):
        self.waits.append(timeout)
        if not self.ended.wait(timeout):
            raise DistTimeoutError("timed out")
        if self.error is not None:
            raise self.error

    def is_completed(self):
        return self.ended.is_set()

    def exception(self):
        return self.error

    def source(self):
        return 3


@pytest.fixture
def request_():
    return ManualRequest()


def test_life(request_):
    finished = []
    work = Work(request_, ["array"], lambda: finished.append(1))
    assert not work.is_completed()
    assert work.exception() is None
    assert "under way" in repr(work)
    with pytest.raises(RuntimeError, match="has not completed"):
        work.result()
    with pytest.raises(DistTimeoutError):
        work.wait(0.01)
    with pytest.raises(DistTimeoutError):
        work.wait(timedelta(milliseconds=10))
    assert request_.waits == [0.01, 0.01]
    assert finished == []
    request_.end()
    assert work.is_completed()
    assert finished == [1]
    assert work.wait()
    assert work.wait(timedelta(0))
    assert request_.waits[2:] == [None, None]
    assert work.result() == ["array"]
    assert work.source_rank() == work._source_rank() == 3
    assert finished == [1]
    assert work.is_success()
    assert "completed" in repr(work)


def test_failure(request_):
    finished = []
    work = Work(request_, ["array"], lambda: finished.append(1))
    request_.end(PeerLostError("rank 1 is gone", (1,)))
    assert work.is_completed()
    assert not work.is_success()
    for call in (work.wait, work.result, work.get_future().wait, work.get_future().value):
        with pytest.raises(PeerLostError, match="rank 1 is gone"):
            call()
    assert work.exception().ranks == (1,)
    assert finished == []
    assert "rank 1 is gone" in repr(work)


def test_failure_to_move_staged_values(request_):
    def finish():
        raise ValueError("the array went away")

    work = Work(request_, [], finish)
    request_.end()
    for _ in range(2):
        with pytest.raises(ValueError, match="went away"):
            work.wait()
    assert isinstance(work.exception(), ValueError)


def test_staged_values_are_there_when_any_thread_returns(request_):
    entered, leave, seen = threading.Event(), threading.Event(), []

    def finish():
        entered.set()
        assert leave.wait(10)
        seen.append("moved")

    work = Work(request_, [], finish)
    request_.end()
    first = threading.Thread(target=work.wait)
    first.start()
    assert entered.wait(10)
    second = threading.Thread(target=lambda: (work.wait(), seen.append("returned")))
    second.start()
    leave.set()
    first.join(10)
    second.join(10)
    assert seen == ["moved", "returned"]


def test_future(request_):
    work = Work(request_, ["array"])
    future = work.get_future()
    assert work.get_future() is future
    assert not future.done()
    with pytest.raises(RuntimeError, match="not done"):
        future.value()
    called = threading.Event()
    following = future.then(lambda f: f.value()[0].upper())
    last = following.then(lambda f: f.value() + "!")
    failing = future.then(lambda f: 1 / 0)
    future.add_done_callback(lambda f: called.set())
    assert not following.done()
    request_.end()
    assert called.wait(10)
    assert last.wait() == "ARRAY!"
    assert future.wait() == future.result() == ["array"]
    with pytest.raises(ZeroDivisionError):
        failing.wait()
    at_once = []
    future.add_done_callback(at_once.append)
    assert at_once == [future]


def test_callbacks_of_many_operations():
    requests = [ManualRequest() for _ in range(50)]
    works = [Work(r, [i]) for i, r in enumerate(requests)]
    order, all_done = [], threading.Event()

    def note(future):
        order.append(future.value()[0])
        if len(order) == len(works):
            all_done.set()

    for work in works:
        work.get_future().add_done_callback(note)
    for r in reversed(requests):
        r.end()
    assert all_done.wait(10)
    assert sorted(order) == list(range(50))


def test_callback_of_an_operation_that_never_ends(request_):
    work = Work(request_, [], timeout=0.02)
    told = threading.Event()
    work.get_future().add_done_callback(lambda f: told.set())
    assert told.wait(10)
    assert isinstance(work.get_future().exception(), DistTimeoutError)


def test_a_failing_callback_is_logged_and_harms_no_other(request_, caplog):
    future = Work(request_, []).get_future()
    told = threading.Event()
    future.add_done_callback(lambda f: 1 / 0)
    future.add_done_callback(lambda f: told.set())
    request_.end()
    assert told.wait(10)
    assert "a callback of a future failed" in caplog.text


def test_asyncio():
    requests = [ManualRequest() for _ in range(3)]
    requests[0].end()
    works = [Work(r, [i]) for i, r in enumerate(requests)]
    ticks = []

    async def tick():
        for i in range(3):
            ticks.append(i)
            await asyncio.sleep(0)
        requests[1].end()
        requests[2].end(PeerLostError("gone"))

    async def main():
        ticking = asyncio.create_task(tick())
        assert await works[0] == [0]
        assert await works[1] == [1]
        with pytest.raises(PeerLostError):
            await works[2]
        await ticking

    asyncio.run(main())
    assert ticks == [0, 1, 2]


def test_asyncio_timeout(request_):
    async def main():
        with pytest.raises(DistTimeoutError):
            await Work(request_, [], timeout=0.02)

    asyncio.run(main())
