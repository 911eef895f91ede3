"""Compiling, on all cores and once; and how much of the time goes into it."""

import functools
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.monitoring

from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.threads import all_cores

T = TypeVar("T")

AHEAD = "gpssm compiles ahead"
"""What a thread that does is called."""

# A fit compiles for seconds and runs for seconds. Half of LLVM's optimisation takes a quarter of the compilation away;
# the loops, which XLA has vectorised already, run as fast.
OPTIONS = {"xla_backend_optimization_level": 1}


class Jitted(Generic[T]):
    """What `jit` returns: a function that is compiled for every kind of arguments once."""

    def __init__(self, function: Callable[..., T], static_argnames: tuple[str, ...]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._static = function, static_argnames
        self._jitted = jax.jit(function, static_argnames=static_argnames, compiler_options=OPTIONS)
        self._known: set[Any] = set()
        self._compiling = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        signature = self._signature(args, kwargs)
        if signature is None:  # inside another compiled function it is that function's own code
            return self._function(*args, **kwargs)
        if signature not in self._known:
            self._compile(signature, args, kwargs)
        return self._jitted(*args, **kwargs)

    def ahead(self, *args: Any, **kwargs: Any) -> None:
        """Compile it for such arguments in a thread, while something else runs; whoever needs it first waits."""
        compile = double_precision(lambda: self._compile(self._signature(args, kwargs), args, kwargs))
        threading.Thread(target=compile, name=AHEAD, daemon=True).start()

    def _compile(self, signature: Any, args: Any, kwargs: Any) -> None:
        with self._compiling, all_cores():
            if signature not in self._known:
                self._jitted.lower(*args, **kwargs).compile()
                self._known.add(signature)

    def _signature(self, args: Any, kwargs: Any) -> Any:
        """What of the arguments a program depends on; None while another one is being traced."""
        static = tuple((name, kwargs[name]) for name in self._static if name in kwargs)
        others = {name: value for name, value in kwargs.items() if name not in self._static}
        leaves, tree = jax.tree.flatten((args, others))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return None
        kinds = tuple((getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
        return static, tree, kinds, jax.config.jax_enable_x64  # type: ignore[attr-defined]


def jit(function: Callable[..., T], *, static_argnames: tuple[str, ...] = ()) -> Jitted[T]:
    """`jax.jit` for programs that take long to compile: compiled on all cores, then run where the caller is.

    Static arguments are passed by name.

    >>> double = jit(lambda x: 2 * x)
    >>> float(double(1.5))
    3.0
    """
    return Jitted(function, static_argnames)


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
