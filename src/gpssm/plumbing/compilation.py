"""How much of the time goes into compilation."""

import jax.monitoring

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
