"""The course of a fit: what a watcher is told, and what is kept."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Progress(NamedTuple):
    """What a watcher of a fit is told after every chunk of steps."""

    step: int
    max_steps: int
    phase: str
    elbo: float
    terms: dict[str, float]
    seconds: float
    messages: tuple[str, ...]


@dataclass
class History:
    """One entry per chunk of steps. `elbo` and `terms` are in nats, for outputs in the user's units."""

    step: list[int] = field(default_factory=list)
    elbo: list[float] = field(default_factory=list)
    terms: dict[str, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    converged: bool = False
    compile_seconds: float = 0.0
