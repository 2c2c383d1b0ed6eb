"""Operations on arrays that the caller has: point to point, collectives, reductions, barriers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from calls import Call
from rows import Started, checks, pending, row

import corral.distributed as dist

# Point to point: the root exchanges with each other rank.


@row("send", "recv", needs="pairs")
def _send(c: Call) -> Started:
    sent, got = {}, {}
    for i in c.others if c.is_root else [c.root]:
        sent[i], got[i] = c.given(i), c.blank(i)
    for i in sent if not c.is_root else ():
        dist.send(sent[i].array, group=c.group, tag=3, **c.at("dst", i))
    for i in got:
        assert dist.recv(got[i].array, group=c.group, tag=3, **c.at("src", i)) == c.ranks[i]
    for i in sent if c.is_root else ():
        dist.send(sent[i].array, group=c.group, tag=3, **c.at("dst", i))
    return [], _exchanged(c, sent, got)


def _exchanged(c: Call, sent: dict[int, Any], got: dict[int, Any]) -> Callable[[], None]:
    pairs = [(got[i], c.values(i, c.me)) for i in got]
    return checks(pairs + [(sent[i], c.values(c.me, i)) for i in sent])


@row("isend", "irecv", needs="pairs")
def _isend(c: Call) -> Started:
    peers = c.others if c.is_root else [c.root]
    sent, got = {i: c.given(i) for i in peers}, {i: c.blank(i) for i in peers}
    works = []
    for i in peers:
        pair = [
            lambda i=i: dist.isend(sent[i].array, group=c.group, tag=c.number, **c.at("dst", i)),
            lambda i=i: dist.irecv(got[i].array, group=c.group, tag=c.number, **c.at("src", i)),
        ]
        works += [start() for start in (pair if (c.number + c.me) % 2 else pair[::-1])]
    return works, _exchanged(c, sent, got)


@row("batch_isend_irecv", "P2POp", needs="pairs")
def _batch(c: Call) -> Started:
    peers = c.others if c.is_root else [c.root]
    sent, got = {i: c.given(i) for i in peers}, {i: c.blank(i) for i in peers}
    operations = [dist.P2POp(dist.irecv, got[i].array, group=c.group, **c.at("peer", i)) for i in peers]
    operations += [dist.P2POp(dist.isend, sent[i].array, group=c.group, **c.at("peer", i)) for i in peers]
    return dist.batch_isend_irecv(operations[:: -1 if c.number % 2 else 1]), _exchanged(c, sent, got)


# Arrays.


@row("broadcast", needs="root", asynchronous=True)
def _broadcast(c: Call) -> Started:
    held = c.given() if c.is_root else c.blank()
    work = dist.broadcast(held.array, group=c.group, async_op=c.asynchronous, **c.at("src"))
    return pending(work), checks([(held, c.values(c.root))])


@row("gather", needs="members", asynchronous=True)
def _gather(c: Call) -> Started:
    mine = c.given()
    rows = [c.blank(i) for i in range(c.size)] if c.is_root else []
    out = [row.array for row in rows] or None
    work = dist.gather(mine.array, out, group=c.group, async_op=c.asynchronous, **c.at("dst"))
    return pending(work), checks([(mine, c.values(c.me)), *((row, c.values(i)) for i, row in enumerate(rows))])


@row("scatter", needs="root", asynchronous=True)
def _scatter(c: Call) -> Started:
    target = c.blank()
    parts = [c.given(i) for i in range(c.size)] if c.is_root else []
    given = [part.array for part in parts] or None
    work = dist.scatter(target.array, given, group=c.group, async_op=c.asynchronous, **c.at("src"))
    pairs = [(target, c.values(c.root, c.me)), *((part, c.values(c.me, i)) for i, part in enumerate(parts))]
    return pending(work), checks(pairs)


@row("all_gather", needs="all", asynchronous=True)
def _all_gather(c: Call) -> Started:
    mine, rows = c.given(), [c.blank(i) for i in range(c.size)]
    work = dist.all_gather([row.array for row in rows], mine.array, c.group, c.asynchronous)
    return pending(work), checks([(mine, c.values(c.me)), *((row, c.values(i)) for i, row in enumerate(rows))])


@row("all_gather_into_tensor", "all_gather_single", needs="all", asynchronous=True)
def _all_gather_into_tensor(c: Call) -> Started:
    mine = c.given()
    whole = c.blank(shape=(c.size, *c.shape) if c.number % 2 or not c.shape else _joined(c))
    function = dist.all_gather_single if c.number % 3 == 0 else dist.all_gather_into_tensor
    work = function(whole.array, mine.array, c.group, c.asynchronous)
    everyone = np.stack([c.values(i) for i in range(c.size)])
    return pending(work), checks([(mine, c.values(c.me)), (whole, everyone)])


def _joined(c: Call) -> tuple[int, ...]:
    return (c.size * c.shape[0], *c.shape[1:])


@row("all_to_all", needs="all", asynchronous=True)
def _all_to_all(c: Call) -> Started:
    sent, got = [c.given(i) for i in range(c.size)], [c.blank(i) for i in range(c.size)]
    work = dist.all_to_all([a.array for a in got], [a.array for a in sent], c.group, c.asynchronous)
    pairs = [(got[i], c.values(i, c.me)) for i in range(c.size)]
    return pending(work), checks(pairs + [(sent[i], c.values(c.me, i)) for i in range(c.size)])


@row("all_to_all_single", needs="all", asynchronous=True)
def _all_to_all_single(c: Call) -> Started:
    def part(i: int, j: int) -> np.ndarray:  # no two ranks exchange as many rows
        return c.values(i, j, ((i + 2 * j) % 4, 3, *c.shape[:1]))

    sent, expected = (
        np.concatenate(parts)
        for parts in ([part(c.me, j) for j in range(c.size)], [part(i, c.me) for i in range(c.size)])
    )
    mine, got = c.held(sent, c.number), c.blank(shape=expected.shape)
    sizes = [len(part(i, c.me)) for i in range(c.size)], [len(part(c.me, j)) for j in range(c.size)]
    work = dist.all_to_all_single(got.array, mine.array, *sizes, group=c.group, async_op=c.asynchronous)
    return pending(work), checks([(got, expected), (mine, sent)])


@row("all_gather_coalesced", needs="all", asynchronous=True)
def _all_gather_coalesced(c: Call) -> Started:
    shapes = [c.shape, (2, *c.shape)]
    mine = [c.given(part, shape=shape) for part, shape in enumerate(shapes)]
    rows = [[c.blank(i + part, shape) for part, shape in enumerate(shapes)] for i in range(c.size)]
    out = [[each.array for each in row] for row in rows]
    work = dist.all_gather_coalesced(out, [each.array for each in mine], c.group, c.asynchronous)
    pairs = [(rows[i][p], c.values(i, p, shape)) for i in range(c.size) for p, shape in enumerate(shapes)]
    return pending(work), checks(pairs + [(mine[p], c.values(c.me, p, shape)) for p, shape in enumerate(shapes)])


# Reductions.


@row("all_reduce", needs="all", reduces=True, asynchronous=True)
def _all_reduce(c: Call) -> Started:
    mine = c.given()
    work = dist.all_reduce(mine.array, c.reduce_op, c.group, c.asynchronous)
    return pending(work), lambda: mine.check(c.total())


@row("reduce", needs="members", reduces=True, asynchronous=True)
def _reduce(c: Call) -> Started:
    mine = c.given()
    work = dist.reduce(mine.array, op=c.reduce_op, group=c.group, async_op=c.asynchronous, **c.at("dst"))
    return pending(work), lambda: mine.check(c.total() if c.is_root else c.values(c.me))


@row("reduce_scatter", needs="all", reduces=True, asynchronous=True)
def _reduce_scatter(c: Call) -> Started:
    parts, mine = [c.given(i) for i in range(c.size)], c.blank()
    work = dist.reduce_scatter(mine.array, [part.array for part in parts], c.reduce_op, c.group, c.asynchronous)

    def check() -> None:
        mine.check(c.total(c.me))
        for i, part in enumerate(parts):
            part.check(c.values(c.me, i))

    return pending(work), check


@row("reduce_scatter_tensor", "reduce_scatter_single", needs="all", reduces=True, asynchronous=True)
def _reduce_scatter_tensor(c: Call) -> Started:
    sent = np.stack([c.values(c.me, i) for i in range(c.size)])
    if c.number % 2 and c.shape:
        sent = sent.reshape(_joined(c))
    whole, mine = c.held(sent, c.number), c.blank()
    function = dist.reduce_scatter_single if c.number % 3 == 0 else dist.reduce_scatter_tensor
    work = function(mine.array, whole.array, c.reduce_op, c.group, c.asynchronous)

    def check() -> None:
        mine.check(c.total(c.me))
        whole.check(sent)

    return pending(work), check


@row("all_reduce_coalesced", needs="all", reduces=True, asynchronous=True)
def _all_reduce_coalesced(c: Call) -> Started:
    shapes = [c.shape, (2, *c.shape)]
    mine = [c.given(part, shape=shape) for part, shape in enumerate(shapes)]
    work = dist.all_reduce_coalesced([each.array for each in mine], c.reduce_op, c.group, c.asynchronous)

    def check() -> None:
        for part, shape in enumerate(shapes):
            mine[part].check(c.total(part, shape))

    return pending(work), check


# Nothing but presence.


@row("barrier", needs="all", arrays=False, asynchronous=True)
def _barrier(c: Call) -> Started:
    return pending(dist.barrier(c.group, c.asynchronous)), lambda: None


@row("monitored_barrier", needs="all", arrays=False)
def _monitored_barrier(c: Call) -> Started:
    dist.monitored_barrier(c.group)
    return [], lambda: None
