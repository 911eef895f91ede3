"""Double precision where it is needed, without touching the rest of the process.

JAX computes in single precision unless a process-wide flag is set. Importing `gpssm` sets no
flag: every public entry point runs inside a scope of its own.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
T = TypeVar("T")


def double_precision(function: Callable[P, T]) -> Callable[P, T]:
    """Run `function` with 64-bit types available, and restore the caller's setting."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapper
