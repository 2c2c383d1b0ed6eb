"""Strided arrays give their values in every operation, whatever the strides at the two ends."""

from __future__ import annotations

import inspect

import pytest
from calls import ORDERS, Call, my_groups
from operations import OPERATIONS
from ranks import LAYOUTS, run

import corral
import corral.distributed as dist


def test_the_table_has_every_operation():
    covered = {name for operation in OPERATIONS for name in operation.functions}
    still = {"shrink_group", "destroy_process_group", "split_group", "new_subgroups", "from_torch"}  # they move nothing
    moving = set()
    for name in dist.__all__:
        function = getattr(dist, name)
        if inspect.isfunction(function) and not name.startswith("get_") and name not in still:
            moving |= {name} if "group" in inspect.signature(function).parameters else set()
    moving |= {f"corral.{name}" for name in corral.functional.__all__}
    assert covered == moving | {"P2POp", "batch_isend_irecv"}


def _every_pair(rank, size, shape, numbers, library, orders):
    for group, ranks in my_groups(orders):
        for number in numbers:
            root = number % len(ranks)
            for operation in OPERATIONS:
                for asynchronous in (False, True)[: 1 + operation.asynchronous]:
                    kind = "numpy" if library == "numpy" or dist.get_rank() % 2 else "torch"
                    operation.run(Call(group, ranks, root, shape, "f8", number, asynchronous, kind))


def test_every_pair_of_layouts():
    run(_every_pair, 5, (4, 5), range(len(LAYOUTS) ** 2), "numpy", ORDERS, timeout=120)


@pytest.mark.also("sockets")
@pytest.mark.parametrize("direct", ["1", "0"])
def test_large_arrays(direct):
    how = {"CORRAL_SHM_DIRECT": direct}
    run(_every_pair, 5, (60, 50, 5), [7], "numpy", [[4, 1], [3, 0, 2]], timeout=120, environment=how)


def test_tensors_of_transposed_and_strided_numpy_arrays():
    pytest.importorskip("torch")
    run(_every_pair, 5, (4, 5), range(0, 25, 6), "torch", ORDERS[:3], timeout=120, environment={"OMP_NUM_THREADS": "1"})
