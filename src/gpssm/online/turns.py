"""Threads that share a stream take turns."""

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from gpssm.plumbing.precision import double_precision


class Shared(Protocol):
    """What threads may share."""

    _lock: threading.RLock


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Shared)


def exclusive(call: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that nobody else runs at the same time on the same object, in double precision."""

    @functools.wraps(call)
    def wrapper(shared: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with shared._lock:
            return call(shared, *args, **kwargs)

    return double_precision(wrapper)
