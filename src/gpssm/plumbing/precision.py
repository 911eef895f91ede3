"""Double precision where it is needed, without touching the rest of the process.

JAX computes in single precision unless a process-wide flag is set. Importing `gpssm` sets no
flag: every public entry point runs inside a scope of its own.

Every one of them also refuses to run in a process that was forked after JAX had started its threads:
they are missing in the child, and the first computation there would wait for them for ever.
"""

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

from gpssm.errors import Forked

P = ParamSpec("P")
T = TypeVar("T")


def double_precision(function: Callable[P, T]) -> Callable[P, T]:
    """Run `function` with 64-bit types available, and restore the caller's setting."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        _process.enter()
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapper


class _Process:
    """Whether JAX was used before this process was forked from the one that used it."""

    used = False
    forked = False

    def enter(self) -> None:
        if self.forked:
            raise Forked(
                "this process was forked from one that had used gpssm, and computations would hang in it; "
                "start processes with multiprocessing.get_context('spawn')."
            )
        self.used = True

    def after_fork(self) -> None:
        self.forked = self.used


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.after_fork)
