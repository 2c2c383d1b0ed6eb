"""Signals that come while the engine is at work."""

from __future__ import annotations

import signal

import pytest

from corral.backends.messages.interrupts import Shield


class _Limit(Exception):
    pass


def _raise(*_):
    raise _Limit


@pytest.fixture
def log():
    """What handlers have noted; the former handlers are back at the end."""
    numbers = signal.SIGUSR1, signal.SIGALRM
    former = [signal.getsignal(number) for number in numbers]
    yield []
    for number, handler in zip(numbers, former, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM, signal.SIGUSR1])
def test_a_handler_runs_once_the_work_is_done(log, number):
    former = signal.signal(number, _raise)
    woken = []
    try:
        shield = Shield(lambda: woken.append(number))
        shield.__enter__()
        signal.raise_signal(number)
        assert shield.caught
        log.append("whole")
        with pytest.raises(_Limit):
            shield.__exit__()
        assert signal.getsignal(number) is _raise
    finally:
        signal.signal(number, former)
    assert log == ["whole"]
    assert woken == [number]


def test_every_handler_runs_though_one_raises(log):
    signal.signal(signal.SIGUSR1, _raise)
    signal.signal(signal.SIGALRM, lambda *_: log.append("alarm"))
    shield = Shield(lambda: None)
    shield.__enter__()
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGALRM)
    assert log == []
    with pytest.raises(_Limit):
        shield.__exit__()
    assert log == ["alarm"]


def test_a_handler_may_replace_itself(log):
    def second(*_):
        log.append("second")

    def first(*_):
        log.append("first")
        signal.signal(signal.SIGUSR1, second)

    signal.signal(signal.SIGUSR1, first)
    with Shield(lambda: None) as shield:
        signal.raise_signal(signal.SIGUSR1)
        shield.deliver()
        assert not shield.caught
        signal.raise_signal(signal.SIGUSR1)
        assert log == ["first"]
    assert log == ["first", "second"]
    assert signal.getsignal(signal.SIGUSR1) is second
