"""The operations of a process group of torch's, in terms of those of :mod:`corral.distributed`.

Their names, arguments and options are those that torch's functions, and torch's C++, call a group by.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import corral.distributed as corral_dist
from corral.distributed.groups import ProcessGroup
from corral.distributed.work import Work
from corral.integrations import torch_fast
from corral.integrations.torch_sparse import all_reduce_sparse
from corral.integrations.torch_work import JoinedWork, PendingWork, finished

__all__ = ["Operations"]

_SUM = dist.ReduceOp.SUM
_UNSET = c10d.AllreduceOptions().timeout


_send, _recv = inspect.unwrap(dist.send).__code__, inspect.unwrap(dist.recv).__code__


def _is_called_by(function: CodeType) -> bool:
    """Whether a method that started an operation is called for one of torch's functions, which waits for it at once.

    Torch does not say so in the call, as it does of collectives. What nobody waits for needs a thread that carries it
    on, and waking that takes longer than a small message.
    """
    starts = sys._getframe(2)  # torch's isend or irecv
    return starts.f_back is not None and starts.f_back.f_code is function


def _limit(timeout: timedelta | None) -> float | None:
    """Return the seconds that a call's options allow; ``None`` where they do not say, which torch writes as -1 ms."""
    seconds = -1.0 if timeout is None else timeout.total_seconds()
    return seconds if seconds > 0 else None


class Operations:
    """What a process group can do. The subclass gives `corral`, the group that does it."""

    corral: ProcessGroup
    _coalesced: list[Any] | None = None

    def _runs_here(self, options: Any) -> bool:
        """Whether a call is to be done when it returns, within the group's timeout."""
        return not (options is None or options.asyncOp or options.timeout != _UNSET or self.corral.closed)

    def _do(
        self, function: Callable[..., Any], outputs: list[Any], options: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        """Carry out an operation in this thread, or start it, as the options say."""
        limit = None if options is None else _limit(options.timeout)
        arguments = tuple(map(torch_fast.unwatched, arguments))
        if options is None or options.asyncOp or limit is not None:
            return self._started(function(*arguments, group=self.corral, async_op=True, **keywords), outputs, limit)
        function(*arguments, group=self.corral, **keywords)
        return finished(outputs)

    def _started(self, work: Work | None, outputs: list[Any], limit: float | None = None) -> PendingWork:
        assert work is not None  # as it is for those who are not in a group
        pending = PendingWork(work, outputs, limit)
        if self._coalesced is not None:
            self._coalesced.append(pending)
        return pending

    # Point to point.

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Any:
        """Start to send a tensor."""
        if _is_called_by(_send) and torch_fast.send(self.corral, tensors, dst, tag):
            return finished(tensors)
        (tensor,) = tensors
        return self._started(corral_dist.isend(tensor, group=self.corral, tag=tag, group_dst=dst), [])

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Any:
        """Start to receive a tensor."""
        if _is_called_by(_recv) and torch_fast.recv(self.corral, tensors, src, tag):
            return finished(tensors)
        (tensor,) = tensors
        memory = torch_fast.unwatched(tensor)
        return self._started(corral_dist.irecv(memory, group=self.corral, tag=tag, group_src=src), [tensor])

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        """Start to receive a tensor from whoever sends one first."""
        (tensor,) = tensors
        memory = torch_fast.unwatched(tensor)
        return self._started(corral_dist.irecv(memory, group=self.corral, tag=tag), [tensor])

    # Reductions.

    def allreduce(self, tensors: Any, opts: Any = None, op: Any = _SUM, timeout: Any = None) -> Any:
        """Combine all ranks' tensors, in place."""
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if not isinstance(opts, c10d.AllreduceOptions):
            opts = _options(c10d.AllreduceOptions, timeout, reduceOp=op if opts is None else opts)
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        if self._runs_here(opts) and torch_fast.all_reduce(self.corral.backend, tensors, opts.reduceOp):
            return finished(tensors)
        (tensor,) = tensors
        if tensor.layout is torch.sparse_coo:
            all_reduce_sparse(tensor, opts.reduceOp, self.corral)
            return finished(tensors)
        return self._do(corral_dist.all_reduce, tensors, opts, tensor, opts.reduceOp)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """Combine all ranks' tensors, several at a time."""
        op = _SUM if opts is None else opts.reduceOp
        return self._do(corral_dist.all_reduce_coalesced, tensors, opts, tensors, op)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = _SUM, timeout: Any = None, *, root: int = 0) -> Any:
        """Combine all ranks' tensors into the root's."""
        if isinstance(tensors, torch.Tensor):
            tensors, root = [tensors], root if opts is None else opts
            opts = None
        if not isinstance(opts, c10d.ReduceOptions):
            opts = _options(c10d.ReduceOptions, timeout, reduceOp=op, rootRank=root)
        (tensor,) = tensors
        return self._do(corral_dist.reduce, tensors, opts, tensor, None, opts.reduceOp, group_dst=opts.rootRank)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, op: Any = _SUM) -> Any:
        """Combine what all ranks have for each, and give it to that one."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if not isinstance(opts, c10d.ReduceScatterOptions):
            opts = _options(c10d.ReduceScatterOptions, timeout, reduceOp=op if opts is None else opts)
        (output,), (parts,) = outputs, inputs
        return self._do(corral_dist.reduce_scatter, outputs, opts, output, parts, opts.reduceOp)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Combine all ranks' tensors, and give each rank an equal part."""
        op = _SUM if opts is None else opts.reduceOp
        if self._runs_here(opts) and torch_fast.reduce_scatter_single(self.corral.backend, output, input, op):
            return finished([output])
        return self._do(corral_dist.reduce_scatter_tensor, [output], opts, output, input, op)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Do `reduce_scatter_single` for several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return JoinedWork([self.reduce_scatter_single(output, input, opts) for output, input in pairs], outputs)

    # From one rank to all, and back.

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: int = 0) -> Any:
        """Write the root's tensor into everyone's."""
        if isinstance(tensors, torch.Tensor):
            tensors, root = [tensors], root if opts is None else opts
            opts = None
        if opts is None:
            opts = _options(c10d.BroadcastOptions, timeout, rootRank=root)
        if self._runs_here(opts) and torch_fast.broadcast(self.corral.backend, tensors, opts.rootRank):
            return finished(tensors)
        (tensor,) = tensors
        return self._do(corral_dist.broadcast, tensors, opts, tensor, group_src=opts.rootRank)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int = 0) -> Any:
        """Bring every rank's tensor to the root."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs, root = [outputs], [inputs], root if opts is None else opts
            opts = None
        if opts is None:
            opts = _options(c10d.GatherOptions, timeout, rootRank=root)
        (tensor,) = inputs
        into = outputs[0] if outputs and outputs[0] else None
        return self._do(corral_dist.gather, outputs, opts, tensor, into, group_dst=opts.rootRank)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int = 0) -> Any:
        """Send a different tensor to each rank."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs, root = [outputs], [inputs], root if opts is None else opts
            opts = None
        if opts is None:
            opts = _options(c10d.ScatterOptions, timeout, rootRank=root)
        (tensor,) = outputs
        parts = inputs[0] if inputs and inputs[0] else None
        return self._do(corral_dist.scatter, outputs, opts, tensor, parts, group_src=opts.rootRank)

    # From all to all.

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Bring every rank's tensor to every rank."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if not isinstance(opts, c10d.AllgatherOptions):
            opts = _options(c10d.AllgatherOptions, timeout or opts)
        (into,), (tensor,) = outputs, inputs
        if self._runs_here(opts) and torch_fast.all_gather(self.corral.backend, into, tensor):
            return finished(outputs)
        return self._do(corral_dist.all_gather, outputs, opts, into, tensor)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Bring every rank's tensor to every rank, into one."""
        if self._runs_here(opts) and torch_fast.all_gather_single(self.corral.backend, output, input):
            return finished([output])
        return self._do(corral_dist.all_gather_into_tensor, [output], opts, output, input)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Bring several tensors of every rank to every rank."""
        return self._do(corral_dist.all_gather_coalesced, outputs, opts, outputs, inputs)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Do `all_gather_single` for several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return JoinedWork([self.all_gather_single(output, input, opts) for output, input in pairs], outputs)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Send a different tensor from each rank to each other."""
        if not isinstance(opts, c10d.AllToAllOptions):
            opts = _options(c10d.AllToAllOptions, timeout or opts)
        return self._do(corral_dist.all_to_all, outputs, opts, outputs, inputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        """Send some rows of a tensor to each rank, and receive rows from each."""
        if not isinstance(opts, c10d.AllToAllOptions):
            opts = _options(c10d.AllToAllOptions, timeout or opts)
        sizes = output_split_sizes or None, input_split_sizes or None
        return self._do(corral_dist.all_to_all_single, [output], opts, output, input, *sizes)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Wait until every rank has come."""
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        if opts is None:
            opts = _options(c10d.BarrierOptions, timeout)
        return self._do(corral_dist.barrier, [], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until every rank has come, or tell which have not.

        ``torch.distributed.monitored_barrier`` takes groups of gloo alone; this is the method that it calls there.
        """
        limit = None if timeout is None else max(timeout.total_seconds(), 1e-3)
        try:
            corral_dist.monitored_barrier(self.corral, limit, wait_all_ranks)
        except corral_dist.DistTimeoutError as error:
            raise corral_dist.DistTimeoutError(
                f"Rank {self.corral.rank()} timed out in monitoredBarrier: {error}"
            ) from None

    # Names of torch before 2.13, by which its C++ of then calls.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _options(kind: Callable[[], Any], timeout: timedelta | None, **values: Any) -> Any:
    """Return the options that a call gives as arguments."""
    options = kind()
    if timeout is not None:
        options.timeout = timeout
    for name, value in values.items():
        setattr(options, name, value)
    return options
