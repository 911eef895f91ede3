"""What a command sets up before JAX starts. The library itself, when imported, changes nothing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpssm.plumbing import threads
from gpssm.plumbing.cache import QUIET, of_environment


def prepare() -> None:
    """Pin this process to one core and keep compiled programs between runs."""
    threads.pin()
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
