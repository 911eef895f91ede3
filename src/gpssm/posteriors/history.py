"""The course of a fit: what is reported while it runs, and what is kept."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Unbounded


class Progress(NamedTuple):
    """What is reported after every chunk of steps, to `fit(..., progress=function)`; `elbo` and `terms` in nats.

    While initial models are searched for there is none yet: no `snapshot`, no `terms`, and `elbo` is NaN.
    """

    step: int
    """Taken so far in this phase,"""
    max_steps: int
    """of at most so many."""
    phase: str
    """What is done now, in words."""
    elbo: float
    terms: dict[str, float]
    seconds: float
    """Since the phase started."""
    messages: tuple[str, ...]
    """What a watcher should know, so far."""
    snapshot: Callable[[], Any] | None = None
    """The model as it is now; for a watcher of `fit`, as a posterior."""
    seconds_left: float | None = None
    """Until the end of the fit, all starts and phases, if no phase ends early; None as long as nothing is known."""


@saved
@dataclass
class History:
    """One entry per chunk of steps. `elbo` and `terms` are in nats, for outputs in the user's units."""

    step: list[int] = field(default_factory=list)
    """Steps taken at the end of every chunk."""
    elbo: list[Unbounded[float]] = field(default_factory=list)
    terms: dict[str, list[Unbounded[float]]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    """Since the start, at the end of every chunk."""
    messages: list[str] = field(default_factory=list)
    """What a user should know of the fit."""
    converged: bool = False
    """Whether nothing was gained any more in the end."""
    interrupted: bool = False
    """Whether Ctrl-C has ended it."""
    best: Unbounded[float] = -math.inf
    """The largest `elbo` of the last phase, that of the model returned."""
    compile_seconds: float = 0.0
    """Of the whole fit, that went into compilation."""
    planned: bool = False
    """Whether the number of steps was chosen to be enough; then reaching it says nothing."""

    def followed_by(self, later: "History") -> "History":
        """The course of a fit in two phases, of which `later` is the second.

        >>> History([10, 20], [-3.0, -2.0], seconds=[1.0, 2.0]).followed_by(History([10], [-1.0], seconds=[1.0])).step
        [10, 20, 30]
        """
        if not self.step:
            return later
        return History(
            step=self.step + [self.step[-1] + step for step in later.step],
            elbo=self.elbo + later.elbo,
            terms={name: self.terms.get(name, []) + series for name, series in later.terms.items()},
            seconds=self.seconds + [self.seconds[-1] + seconds for seconds in later.seconds],
            messages=self.messages + later.messages,
            converged=later.converged,
            interrupted=later.interrupted,
            best=later.best,
        )
