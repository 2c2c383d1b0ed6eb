"""Random programs of collectives, run on torch's gloo and on corral in the same processes: every value must agree."""

from __future__ import annotations

import os
import tempfile
import warnings
from datetime import timedelta

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist

STEPS = 1100
SEED = 20_260_101
# What gloo gets in place of dtypes that it does not move: others of the same width, in the same memory.
STAND_INS = {
    "bool": "uint8",
    "float8_e5m2": "uint8",
    "int16": "float16",
    "uint16": "float16",
    "bfloat16": "float16",
    "uint32": "int32",
    "uint64": "int64",
    "complex64": "two float32",  # in a gather, alone among the collectives
}
MOVED = [*STAND_INS, *("uint8", "int8", "int32", "int64", "float16", "float32", "float64")]
REDUCED = {
    "float32": ["SUM", "AVG", "PRODUCT", "MIN", "MAX"],
    "float64": ["SUM", "AVG", "PRODUCT", "MIN", "MAX"],
    "float16": ["SUM", "PRODUCT", "MIN", "MAX"],
    "bfloat16": ["SUM", "PRODUCT", "MIN", "MAX"],
    "int32": ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"],
    "int64": ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"],
    "uint8": ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"],
    "bool": ["MIN", "MAX", "BAND", "BOR"],
}
SHAPES = [(), (1,), (7,), (4, 3), (2, 1, 5), (0, 3), (400, 30)]
LAYOUTS = ["rows", "columns", "gaps", "column"]
ROOTED = {"broadcast": "src", "scatter": "src", "gather": "dst", "reduce": "dst"}
COLLECTIVES = [
    *ROOTED,
    *("all_gather", "all_gather_single", "all_to_all", "all_to_all_single", "all_gather_coalesced"),
    *("all_reduce", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_single"),
]


class Program:
    """One call: what all ranks know of it, drawn from a seed that they share."""

    def __init__(self, step, orders):
        rng = np.random.default_rng([SEED, step])
        self.step = step
        self.name = COLLECTIVES[step % len(COLLECTIVES)]
        self.group = int(rng.integers(len(orders)))
        self.ranks = orders[self.group]
        self.size = len(self.ranks)
        reduces = "reduce" in self.name
        self.dtype = str(rng.choice(list(REDUCED) if reduces else MOVED))
        self.op = str(rng.choice(REDUCED[self.dtype])) if reduces else "SUM"
        self.shape = SHAPES[rng.integers(len(SHAPES))]
        self.second = SHAPES[rng.integers(len(SHAPES))]
        self.root = int(rng.integers(self.size))
        self.by_group_rank = bool(rng.random() < 0.5)
        self.asynchronous = bool(rng.random() < 0.4)
        self.of_torch = bool(rng.random() < 0.5)
        self.splits = rng.integers(0, 4, (self.size, self.size)).tolist()
        self.layouts = rng.integers(len(LAYOUTS), size=(self.size, 16)).tolist()

    def __repr__(self):
        return f"step {self.step}: {vars(self)}"

    def values(self, torch, shape, *place):
        """Small whole numbers, whose sums and products are exact in every dtype, in any order."""
        rng = np.random.default_rng([SEED, self.step, *place])
        low, high = (
            (0, 2) if self.dtype == "bool" or self.op == "PRODUCT" else (0, 40) if "u" in self.dtype else (-20, 20)
        )
        scale = self.size if self.op == "AVG" else 1
        numbers = torch.from_numpy(np.asarray(rng.integers(low, high, shape) * scale))
        if self.dtype == "complex64":
            numbers = torch.complex(numbers.float(), numbers.float() + 1)
        return numbers.to(getattr(torch, self.dtype))

    def keywords(self):
        if self.name not in ROOTED:
            return {}
        name = ROOTED[self.name]
        return {f"group_{name}": self.root} if self.by_group_rank else {name: self.ranks[self.root]}

    def arguments(self, torch, me, lay):
        """The positional arguments, and those of them that are compared afterwards."""
        n, shape = self.size, self.shape
        rows = (n * shape[0], *shape[1:]) if shape else (n,)

        def given(*place, shape=shape):
            return lay(self.values(torch, shape, *place))

        def empty(shape=shape):
            return lay(torch.zeros(shape, dtype=getattr(torch, self.dtype)))

        if self.name in ("broadcast", "reduce", "all_reduce"):
            tensor = given(me)
            return [tensor], [tensor] if self.name != "reduce" or me == self.root else []
        if self.name == "all_reduce_coalesced":
            tensors = [given(me), given(me, 1, shape=self.second)]
            return [tensors], tensors
        if self.name == "scatter":
            tensor = empty()
            return [tensor, [given(i) for i in range(n)] if me == self.root else None], [tensor]
        if self.name == "gather":
            out = [empty() for _ in range(n)] if me == self.root else None
            return [given(me), out], out or []
        if self.name == "all_gather":
            out = [empty() for _ in range(n)]
            return [out, given(me)], out
        if self.name == "all_gather_single":
            out = empty(rows)
            return [out, given(me)], [out]
        if self.name == "all_gather_coalesced":
            lists = [[empty(), empty(self.second)] for _ in range(n)]
            return [lists, [given(me), given(me, 1, shape=self.second)]], [out for each in lists for out in each]
        if self.name == "all_to_all":
            out = [empty() for _ in range(n)]
            return [out, [given(me, i) for i in range(n)]], out
        if self.name == "reduce_scatter":
            out = empty()
            return [out, [given(me, i) for i in range(n)]], [out]
        if self.name == "reduce_scatter_single":
            out = empty()
            return [out, given(me, shape=rows)], [out]
        assert self.name == "all_to_all_single"
        sent, received = self.splits[me], [split[me] for split in self.splits]
        rest = shape[1:]
        out = empty((sum(received), *rest))
        return [out, given(me, shape=(sum(sent), *rest)), received, sent], [out]


def plain(torch, value, dtype):
    """Tensors, in lists or alone, as ones of a dtype that gloo moves."""
    if isinstance(value, list):
        return [plain(torch, each, dtype) for each in value]
    if not isinstance(value, torch.Tensor) or dtype not in STAND_INS:
        return value
    if dtype == "complex64":
        return torch.view_as_real(value)
    return value.view(getattr(torch, STAND_INS[dtype]))


def in_layout(torch, tensor, layout):
    if layout == "columns":
        order = tuple(reversed(range(tensor.ndim)))
        return tensor.permute(order).contiguous().permute(order)
    if layout == "gaps":
        memory = torch.zeros([2 * n + 3 for n in tensor.shape], dtype=tensor.dtype)
        view = memory[tuple(slice(1, 1 + 2 * n, 2) for n in tensor.shape)]
    elif layout == "column":
        view = torch.zeros((*tensor.shape, 3), dtype=tensor.dtype)[..., 1]
    else:
        return tensor.clone()
    return view.copy_(tensor)


def both_arguments(torch, program, me):
    """Return a program's arguments, and those that it fills: for corral in any layout, and as gloo takes them."""
    layouts = iter(program.layouts[me])
    ours, ours_filled = program.arguments(torch, me, lambda t: in_layout(torch, t, LAYOUTS[next(layouts)]))
    theirs, theirs_filled = program.arguments(torch, me, lambda t: t.clone())
    if "reduce" not in program.name and (program.dtype != "complex64" or program.name == "gather"):
        theirs = plain(torch, theirs, program.dtype)
    if program.name in ("reduce_scatter_single", "all_gather_single") and not program.shape:
        theirs = [tensor.reshape(-1) for tensor in theirs]  # gloo refuses, or crashes on, those without dimensions
    return (ours, ours_filled), (theirs, theirs_filled)


def check_bits(torch, program, actual, expected):
    """Compare what both have filled, bit by bit."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.itemsize]
    bits = [tensor.contiguous().view(whole) for tensor in (actual, expected)]
    assert torch.equal(*bits), f"{program}\n{actual}\n{expected}"


def _programs(rank, size, meeting):
    import torch
    import torch.distributed as c10d

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # torch's, about names that it will drop
    c10d.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=20)
    )
    orders = [list(range(size)), list(range(size))[::-1], [size - 1, 0]]
    groups = [(dist.new_group(ranks, sort_ranks=False), c10d.new_group(ranks, sort_ranks=False)) for ranks in orders]
    compared = 0
    for step in range(STEPS):
        program = Program(step, orders)
        if rank not in program.ranks:
            continue
        me = program.ranks.index(rank)
        (ours, ours_filled), (theirs, theirs_filled) = both_arguments(torch, program, me)
        our_group, their_group = groups[program.group]
        keywords = program.keywords()
        op = {"op": getattr(c10d.ReduceOp, program.op)} if "reduce" in program.name else {}
        our_op = {"op": getattr(dist.ReduceOp, program.op)} if op and not program.of_torch else op
        work = getattr(dist, program.name)(*ours, group=our_group, async_op=program.asynchronous, **keywords, **our_op)
        getattr(c10d, program.name)(*theirs, group=their_group, **keywords, **op)
        if program.asynchronous:
            assert work.wait()
            assert program.name == "reduce" or [id(t) for t in work.result()] == [id(t) for t in ours_filled]
        else:
            assert work is None
        assert len(ours_filled) == len(theirs_filled)
        for actual, expected in zip(ours_filled, theirs_filled, strict=True):
            check_bits(torch, program, actual, expected)
            compared += 1
    c10d.destroy_process_group()
    return compared


@pytest.mark.parametrize("size", [2, 3])
def test_random_programs(size):
    pytest.importorskip("torch")
    with tempfile.TemporaryDirectory() as folder:
        compared = run(_programs, size, os.path.join(folder, "gloo"), timeout=120)
    assert min(compared) > STEPS // 2
