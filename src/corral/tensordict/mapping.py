"""Apply a function to parts of the batch in several processes."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from corral.tensordict import assembling
from corral.tensordict.shaping import Shaping

__all__ = ["MapProcesses"]


class MapProcesses(Shaping):
    """Process batches in parallel.

    The function must be one that a new process can import: defined in a module, not within a function. Processes
    are started anew (``spawn``) unless `mp_start_method` says otherwise, so the program that starts them must guard
    what it does by ``if __name__ == "__main__"``.
    """

    __slots__ = ()

    def map(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        out: Any = None,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: Any = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,
        pbar: bool = False,
        mp_start_method: str | None = None,
    ) -> Any:
        """Apply a function to parts of the batch in worker processes; return its results, joined in order.

        Parameters
        ----------
        fn : callable
            Takes a part of the batch, returns a TensorDict, or ``None`` for nothing.
        dim : int
            The batch dimension along which parts are made, and results joined.
        num_workers : int, optional
            The number of processes; by default, of processors.
        out : TensorDict, optional
            Write the results into this one.
        chunksize : int, optional
            The number of rows of each part; with 0, parts are single rows without the dimension, and results are
            stacked.
        num_chunks : int, optional
            Instead, the number of parts; by default, one for each process.
        pool : multiprocessing.Pool, optional
            Take these processes.
        generator : optional
            A generator of torch's or NumPy's that the processes' random numbers are seeded from.
        max_tasks_per_child : int, optional
            Replace a process after as many parts.
        worker_threads : int
            Number of threads that torch uses in each process.
        index_with_generator : bool
            Make each part when its turn comes, not all before.
        pbar : bool
            Show the progress, if `tqdm` is installed.
        mp_start_method : {"spawn", "forkserver", "fork"}, optional
            How processes are started.

        Examples
        --------
        >>> import operator
        >>> from multiprocessing.pool import ThreadPool
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(4), batch_size=[4])
        >>> with ThreadPool(2) as pool:
        ...     td.map(operator.neg, chunksize=3, pool=pool)["a"]
        array([ 0, -1, -2, -3])
        """
        own = pool is None
        if own:
            pool = _start(num_workers, generator, max_tasks_per_child, worker_threads, mp_start_method)
        try:
            results = self._parts_mapped(
                pool, fn, dim, chunksize, num_chunks, index_with_generator, False, pbar, generator
            )
            return _assemble(results, self._dim(dim), chunksize == 0, out)
        finally:
            if own:
                pool.terminate()
                pool.join()

    def map_iter(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        shuffle: bool = False,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: Any = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = True,
        pbar: bool = False,
        mp_start_method: str | None = None,
    ) -> Iterator[Any]:
        """Yield what a function returns for parts of the batch, in order, while worker processes go on.

        Parameters
        ----------
        shuffle : bool
            Make the parts of rows in a random order, and yield results as they come.
        fn, dim, num_workers, chunksize, num_chunks, pool, generator, max_tasks_per_child
            As in `map`.
        worker_threads, index_with_generator, pbar, mp_start_method
            As in `map`.
        """
        own = pool is None
        if own:
            pool = _start(num_workers, generator, max_tasks_per_child, worker_threads, mp_start_method)
        try:
            yield from self._parts_mapped(
                pool, fn, dim, chunksize, num_chunks, index_with_generator, shuffle, pbar, generator
            )
        finally:
            if own:
                pool.terminate()
                pool.join()

    def _parts_mapped(
        self,
        pool: Any,
        fn: Callable[[Any], Any],
        dim: int,
        chunksize: int | None,
        num_chunks: int | None,
        lazily: bool,
        shuffle: bool,
        pbar: bool,
        generator: Any,
    ) -> Iterable[Any]:
        if shuffle and not lazily:
            raise RuntimeError(
                "Shuffling is not permitted unless use_generator is set to ``True`` for efficiency purposes."
            )
        if chunksize is not None and num_chunks is not None:
            raise ValueError("Either chunksize or num_chunks must be provided, but not both.")
        axis = self._dim(dim)
        indices = _indices(self._batch_size[axis], chunksize, pool._processes if num_chunks is None else num_chunks)
        count = len(indices)
        order = np.random.default_rng(_seed(generator)).permutation(self._batch_size[axis]) if shuffle else None
        prefix = (slice(None),) * axis

        def parts() -> Iterator[Any]:
            for index in indices:
                yield self._take((*prefix, index)) if order is None else self[(*prefix, order[index])]

        tasks: Any = parts() if lazily else list(parts())
        results: Iterable[Any] = pool.imap_unordered(fn, tasks, 1) if shuffle else pool.imap(fn, tasks, 1)
        if pbar and importlib.util.find_spec("tqdm") is not None:
            results = importlib.import_module("tqdm").tqdm(results, total=count)
        return results


def _indices(length: int, chunksize: int | None, num_chunks: int) -> list[Any]:
    if chunksize == 0:
        return list(range(length))
    step = chunksize or max(1, -(-length // max(1, min(length, num_chunks))))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _assemble(results: Iterable[Any], dim: int, single: bool, out: Any) -> Any:
    found = []
    start = 0
    prefix = (slice(None),) * dim
    for result in results:
        if result is None:
            continue
        if out is None:
            found.append(result)
            continue
        end = start + (1 if single else result.batch_size[dim])
        out[(*prefix, start if single else slice(start, end))].update_(result)
        start = end
    if not found:
        return out
    return assembling.stack(found, dim) if single else assembling.cat(found, dim)


def _seed(generator: Any) -> int:
    if generator is None:
        return int.from_bytes(os.urandom(4), "little")
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(2**32))
    torch = sys.modules["torch"]
    return int(torch.randint(2**32, (), generator=generator))


def _start(num_workers: int | None, generator: Any, tasks: int | None, threads: int, method: str | None) -> Any:
    context: Any = multiprocessing.get_context(method or "spawn")
    count = num_workers or os.cpu_count() or 1
    numbers = context.SimpleQueue()
    for number in range(count):
        numbers.put(number)
    return context.Pool(count, _prepare, (_seed(generator), numbers, threads, "torch" in sys.modules), tasks)


def _prepare(seed: int, numbers: Any, threads: int, with_torch: bool) -> None:
    """Give each worker random numbers of its own, and as many threads as it shall have."""
    number = numbers.get()
    numbers.put(number + 1_000_003)  # for the one that replaces this worker some time
    seed = (seed + number) % 2**32
    np.random.seed(seed)
    if with_torch:
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(threads)
