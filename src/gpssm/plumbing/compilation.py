"""Compiling, on all cores and once; and how much of the time goes into it."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.monitoring

from gpssm.plumbing.threads import all_cores

T = TypeVar("T")

# A fit compiles for seconds and runs for seconds. Half of LLVM's optimisation takes a quarter of the compilation away;
# the loops, which XLA has vectorised already, run as fast.
OPTIONS = {"xla_backend_optimization_level": 1}


def jit(function: Callable[..., T], *, static_argnames: tuple[str, ...] = ()) -> Callable[..., T]:
    """`jax.jit` for programs that take long to compile: compiled on all cores, then run where the caller is.

    Static arguments are passed by name. Inside another compiled function it is that function's own code.

    >>> double = jit(lambda x: 2 * x)
    >>> float(double(1.5))
    3.0
    """
    jitted = jax.jit(function, static_argnames=static_argnames, compiler_options=OPTIONS)
    known: set[Any] = set()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        static = tuple((name, kwargs[name]) for name in static_argnames if name in kwargs)
        leaves, tree = jax.tree.flatten((args, {name: a for name, a in kwargs.items() if name not in static_argnames}))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return function(*args, **kwargs)
        kinds = tuple((getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
        signature = (static, tree, kinds, jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        if signature not in known:
            with all_cores():
                jitted.lower(*args, **kwargs).compile()
            known.add(signature)
        return jitted(*args, **kwargs)

    return call


def bucket(size: int) -> int:
    """The next of few sizes: two between a power of two and the next up to 8, four of them from there on.

    What is filled up to it needs no program of its own.

    >>> [bucket(n) for n in (3, 5, 9, 11, 33, 1000)]
    [3, 6, 10, 12, 40, 1024]
    """
    octave = (size - 1).bit_length()
    step = max(1, 2 ** (octave - (2 if octave <= 3 else 3)))
    return -(-size // step) * step


_totals = {"seconds": 0.0, "count": 0}


def _listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event.startswith("/jax/core/compile/"):
        _totals["seconds"] += duration_secs
        if event.endswith("backend_compile_duration"):
            _totals["count"] += 1


jax.monitoring.register_event_duration_secs_listener(_listen)


class CompileClock:
    """Seconds spent and programs compiled (or fetched from the cache) since it was made."""

    def __init__(self) -> None:
        self._start = dict(_totals)

    @property
    def seconds(self) -> float:
        """Seconds of tracing, lowering and compiling in this process."""
        return _totals["seconds"] - self._start["seconds"]

    @property
    def count(self) -> int:
        """Number of programs."""
        return int(_totals["count"] - self._start["count"])
