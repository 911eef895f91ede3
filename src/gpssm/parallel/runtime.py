"""What a command sets up before JAX starts. The library itself, when imported, changes nothing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpssm.plumbing.cache import QUIET, of_environment

cores: tuple[int, ...] = ()
"""What this process could use before it was pinned, for processes that it starts."""


def prepare() -> None:
    """Pin this process to one core and keep compiled programs between runs."""
    _pin()
    os.environ.setdefault(*QUIET)
    of_environment(default="1")


@contextmanager
def quiet() -> Iterator[None]:
    """For the start of a process: what it imports first may start JAX before it can `prepare`."""
    before = os.environ.get(QUIET[0])
    os.environ.setdefault(*QUIET)
    try:
        yield
    finally:
        if before is None:
            del os.environ[QUIET[0]]


def _pin() -> None:
    """XLA's thread pool on shared cores can be a hundred times slower than one core alone."""
    if hasattr(os, "sched_setaffinity"):
        global cores
        available = sorted(os.sched_getaffinity(0))
        cores = cores or tuple(available)
        os.sched_setaffinity(0, {available[os.getpid() % len(available)]})
