"""Double precision on one core where it is needed, without touching the rest of the process.

JAX computes in single precision unless a process-wide flag is set. Importing `gpssm` sets no
flag: every public entry point runs inside a scope of its own, on one core (`gpssm.plumbing.threads`).

Every one of them also refuses to run in a process that was forked after JAX had started its threads:
they are missing in the child, and the first computation there would wait for them for ever.
"""

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

from gpssm.errors import Forked
from gpssm.plumbing.threads import one_core

P = ParamSpec("P")
T = TypeVar("T")

# Whether JAX was used in this process, and in the one that it was forked from before that.
_used = _forked = False


def double_precision(function: Callable[P, T]) -> Callable[P, T]:
    """`function` with 64-bit types available while it runs, and the caller's setting restored afterwards."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        global _used
        if _forked:
            raise Forked(
                "this process was forked from one that had used gpssm, and computations would hang in it; "
                "start processes with multiprocessing.get_context('spawn')."
            )
        _used = True
        with one_core(), jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapper


def _after_fork() -> None:
    global _forked
    _forked = _used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
