"""Compiling, on all cores and once; and how much of the time goes into it."""

import functools
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import jax
import jax.monitoring

from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.threads import all_cores

logger = logging.getLogger(__name__)

T = TypeVar("T")

AHEAD = "gpssm compiles ahead"
"""What a thread that does is called."""

# A fit compiles for seconds and runs for seconds. Half of LLVM's optimisation takes a quarter of the compilation away;
# the loops, which XLA has vectorised already, run as fast.
HOT = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": True}
# XLA's older way to write kernels down compiles in 0.4 of the time. Exponentials take it six times as long, all else
# about as long: right for everything but the programs that a fit or a stream spends its time in.
QUICK = HOT | {"xla_cpu_use_fusion_emitters": False}


_counting = threading.Lock()
_tracing, _collects = 0, False


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: tracing makes a million objects; looking through them is a quarter of its time."""
    global _tracing, _collects
    with _counting:  # threads compile at once; the first one stops the collector, the last one starts it again
        if _tracing == 0:
            _collects = gc.isenabled()
        _tracing += 1
        gc.disable()
    try:
        yield
    finally:
        with _counting:
            _tracing -= 1
            if _tracing == 0 and _collects:
                gc.enable()


class Jitted(Generic[T]):
    """What `jit` returns: a function that is compiled for every kind of arguments once."""

    def __init__(self, function: Callable[..., T], static_argnames: tuple[str, ...], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._static = function, static_argnames
        self._jitted = jax.jit(function, static_argnames=static_argnames, compiler_options=options)
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
        """Compile it for such arguments in a thread, while something else runs; whoever needs it first waits.

        So does a process that ends meanwhile: torn from the compiler, the thread would abort it.
        """
        compile = double_precision(lambda: self._compile(self._signature(args, kwargs), args, kwargs))
        threading.Thread(target=compile, name=AHEAD).start()

    def _compile(self, signature: Any, args: Any, kwargs: Any) -> None:
        with self._compiling, all_cores():
            if signature not in self._known:
                started, clock = time.perf_counter(), CompileClock()
                with _uncollected():
                    lowered = self._jitted.lower(*args, **kwargs)
                lowered.compile()
                self._known.add(signature)
                how = "taken from the cache" if clock.hits else "compiled"
                name = getattr(self._function, "__qualname__", repr(self._function))
                logger.debug("%s %s in %.2f s", name, how, time.perf_counter() - started)

    def _signature(self, args: Any, kwargs: Any) -> Any:
        """What of the arguments a program depends on; None while another one is being traced."""
        static = tuple((name, kwargs[name]) for name in self._static if name in kwargs)
        others = {name: value for name, value in kwargs.items() if name not in self._static}
        leaves, tree = jax.tree.flatten((args, others))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return None
        kinds = tuple((getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
        return static, tree, kinds, jax.config.jax_enable_x64  # type: ignore[attr-defined]


def jit(function: Callable[..., T], *, static_argnames: tuple[str, ...] = (), hot: bool = False) -> Jitted[T]:
    """`jax.jit` for programs that take long to compile: compiled on all cores, then run where the caller is.

    Static arguments are passed by name. What is `hot` runs for longer than it compiles.

    >>> double = jit(lambda x: 2 * x)
    >>> float(double(1.5))
    3.0
    """
    return Jitted(function, static_argnames, HOT if hot else QUICK)


def bucket(size: int) -> int:
    """The next of few sizes: a power of two, or 1.25 or 1.5 times one (1.5 only, below 8).

    What is filled up to it needs no program of its own.

    >>> [bucket(n) for n in (3, 5, 9, 11, 13, 33, 1000)]
    [3, 6, 10, 12, 16, 40, 1024]
    """
    power = 2 ** (size.bit_length() - 1)
    factors = (4, 5, 6, 8) if power >= 8 else (4, 6, 8)
    return next(power * f // 4 for f in factors if power * f // 4 >= size)


_totals = {"seconds": 0.0, "count": 0, "hits": 0}


def _listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event.startswith("/jax/core/compile/"):
        _totals["seconds"] += duration_secs
        if event.endswith("backend_compile_duration"):
            _totals["count"] += 1


def _listen_to_hits(event: str, **kwargs: str | int) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _totals["hits"] += 1


jax.monitoring.register_event_duration_secs_listener(_listen)
jax.monitoring.register_event_listener(_listen_to_hits)


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

    @property
    def hits(self) -> int:
        """How many of them were in the cache of compiled programs."""
        return int(_totals["hits"] - self._start["hits"])

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s for {self.count} programs, {self.hits} of them from the cache"
