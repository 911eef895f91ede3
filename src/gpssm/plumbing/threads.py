"""One core to compute on, all of them to compile on.

XLA hands the operations of a program to a pool of threads, one for every core that the process may use when JAX starts.
The programs here are loops over time, thousands of small operations after one another: handed from thread to thread
they take several times as long as on one core, and with jaxlib 0.10 some of them never end. So JAX is started with one
thread, unless somebody else has started it already, and whoever computes stays on the core of that thread meanwhile.
The same holds for the threads of the BLAS that comes with SciPy, whose factorisations XLA calls. Compilation has
threads of its own, and gets all cores.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

cores: tuple[int, ...] = ()
"""What this process could use before it was pinned, for compilation and for processes that it starts."""
_RUNNER = "tf_XLAEigen"  # what Linux calls the thread that XLA runs programs on
_SIZE = "PJRT_NPROC"  # how many threads XLA starts, where the cores do not say


def pin() -> None:
    """Stay on one core from now on; nothing where the system does not let a process choose."""
    if hasattr(os, "sched_setaffinity"):
        global cores
        available = sorted(os.sched_getaffinity(0))
        if len(available) > 1:
            cores = tuple(available)
        os.sched_setaffinity(0, {available[os.getpid() % len(available)]})


@contextmanager
def one_core() -> Iterator[None]:
    """The calling thread stays on one core; afterwards it may go where it could before."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else {0}
    if len(before) == 1:  # pinned already, by a command, the user, or a call around this one
        _start()
        yield
        return
    try:
        pin()
        with _start().one_thread():
            yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def all_cores() -> Iterator[None]:
    """For compilation: threads that are started meanwhile may use all cores that the process has."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def named(name: str) -> list[int]:
    """Threads of this process that the system calls so."""
    found = []
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # others end while we look
            if (task / "comm").read_text().strip() == name:
                found.append(int(task.name))
    return found


class _Blas:
    """How many threads the BLAS of SciPy uses, if it is one that can be asked."""

    def __init__(self, get: Callable[[], int] = lambda: 1, set: Callable[[int], Any] = lambda number: None) -> None:
        self.get, self.set = get, set
        self._counting, self._inside, self._number = threading.Lock(), 0, 1

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """One from now on; as many as before when the last of several callers at once has ended."""
        with self._counting:
            if self._inside == 0:
                self._number = self.get()
                self.set(1)
            self._inside += 1
        try:
            yield
        finally:
            with self._counting:
                self._inside -= 1
                if self._inside == 0:
                    self.set(self._number)


@cache
def _start() -> _Blas:
    """Start JAX with one thread to run on, if nobody has started it yet; find the BLAS that it calls."""
    before, pinned, blas = os.environ.get(_SIZE), os.sched_getaffinity(0) if cores else None, _Blas()
    os.environ[_SIZE] = "1"
    if cores:  # threads that compile are started, too, and a BLAS counts the cores when it is loaded: all of them
        os.sched_setaffinity(0, cores)
    try:
        import jax  # not before a command has told it, by environment variables, where compiled programs are kept
        import scipy

        jax.devices("cpu")
        for file in Path(scipy.__file__).parents[1].glob("scipy.libs/libscipy_openblas*"):
            library = ctypes.CDLL(str(file))
            blas = _Blas(library.scipy_openblas_get_num_threads, library.scipy_openblas_set_num_threads)
    finally:
        if before is None:
            del os.environ[_SIZE]
        else:
            os.environ[_SIZE] = before
        if pinned is not None:
            os.sched_setaffinity(0, pinned)
    if pinned is not None:
        for thread in named(_RUNNER):
            os.sched_setaffinity(thread, pinned)
    return blas
