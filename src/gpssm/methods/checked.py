"""A fit that is checked: on the end of the recordings, which is held back first and learned from afterwards."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from gpssm.errors import InvalidInput
from gpssm.methods import registry
from gpssm.plumbing.interruption import Interruption
from gpssm.plumbing.validation import Recording
from gpssm.posteriors.calibration import Calibration, Origin, rolling_errors
from gpssm.posteriors.check import LINES, MEAN, Check, Score
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.history import Progress
from gpssm.posteriors.states import States
from gpssm.training.linear_search import AUTO
from gpssm.training.progress import Watch

NDArray = np.ndarray
F = TypeVar("F", bound=Fitted)

_LEAST_HELD, _LEAST_LEARNED, _LEAST_NUMBERS = 5, 20, 10
_QUICK = ("ARX", "ARX(4)", "LastValue", MEAN)
_LARGEST = 0.5
# Of the time that there is, what the first fit may take; and what the second takes, relative to the first.
_FIRST_SHARE, _AGAIN = 0.45, 1.1


class Recordings(NamedTuple):
    """Checked recordings: outputs (T_i, dy) and inputs (T_i, dc), in the user's units."""

    outputs: list[NDArray]
    inputs: list[NDArray]

    def split(self, holdout: float) -> "tuple[Recordings, Recordings]":
        """Without the last part of every recording, and that part."""
        cuts = [len(y) - int(holdout * len(y)) for y in self.outputs]
        early = Recordings(*([a[:n] for a, n in zip(part, cuts, strict=True)] for part in self))
        return early, Recordings(*([a[n:] for a, n in zip(part, cuts, strict=True)] for part in self))


class Stage(NamedTuple):
    """Which of the two fits it is."""

    interruption: Interruption
    again: float = 0.0
    """How much of its time the fit after this one will take, at a guess."""
    first: Fitted | None = None
    """The model that was checked, if this is the second: what was chosen for it is not chosen once more."""


def checked(
    fit: Callable[[Recordings, Stage], F],
    data: Recordings,
    holdout: float,
    seed: int,
    interruption: Interruption,
    watch: Watch | None = None,
) -> F:
    """Learn from all but the end of the recordings, check the forecast of that, and learn from everything.

    Args:
        fit: learns from recordings; called twice.
        data: what to learn from.
        holdout: share of every recording that is held back at first, 0 for none; then nothing is checked.
        seed: of the forecasts.
        interruption: of both fits. If it comes before the second has ended, the first is what there is.
        watch: is told of the check.

    Returns:
        The model that has learned from everything, with `check` and `calibration` of the first.
    """
    if isinstance(holdout, bool) or not isinstance(holdout, (int, float)) or not 0 <= holdout <= _LARGEST:
        raise InvalidInput(f"holdout: expected a share between 0 and {_LARGEST}, got {holdout!r}.")
    if holdout == 0:
        return fit(data, Stage(interruption))
    reason = why_not(data.outputs, holdout)
    if reason:
        raise InvalidInput(f"holdout: {reason}. holdout=0 learns without a check.")
    early, held = data.split(holdout)
    interruption.share = _FIRST_SHARE
    first = fit(early, Stage(interruption, again=_AGAIN))
    interruption.share, seconds = 1.0, interruption.seconds
    if interruption.signalled:
        return first
    found = check(first, early, held, seed, watch)
    limit = interruption.max_seconds
    enough = limit is None or limit - interruption.seconds > _AGAIN * seconds
    final = fit(data, Stage(interruption, first=first)) if enough and not interruption.requested else first
    if final is first or interruption.requested:
        share = f"the first {100 * (1 - holdout):.3g}% of the recording(s)"
        first.history.messages.append(f"stopped before learning from everything: this model knows {share}")
        moved = _at_the_end(first, data, len(held.outputs[-1]), seed)
        return _with(moved, found, calibration(first, first, early, held, seed))
    return _with(final, found, calibration(first, final, early, held, seed))


def _at_the_end(first: F, data: Recordings, held: int, seed: int) -> F:
    """A model that has learned from a part, with its state at the end of everything: forecasts start there."""
    end = first.end.times
    moved = first.learned_from(*data, seed=seed)
    moved = moved.named(first.output_names, first.input_names, None if end is None else end.later(held))
    return cast(F, replace(cast(Any, moved), num_samples=first.num_samples))


def _with(fitted: F, check: Check, calibration: Calibration | None) -> F:
    return cast(F, replace(cast(Any, fitted), check=check, calibration=calibration))


def why_not(outputs: list[NDArray], holdout: float) -> str:
    """Why so much of recordings (T_i, dy) cannot be held back; nothing if it can."""
    early, held = Recordings(outputs, outputs).split(holdout)
    learned, kept = (sum(map(len, part.outputs)) for part in (early, held))
    seen = [np.isfinite(np.concatenate(part.outputs)).sum(axis=0) for part in (early, held)]
    enough = (seen[0] >= _LEAST_NUMBERS) & (seen[1] > 0)
    if learned >= _LEAST_LEARNED and kept >= _LEAST_HELD and enough.all():
        return ""
    return (
        f"{holdout:g} of the recordings leaves {learned} sample(s) to learn from and {kept} to check with, numbers of "
        f"{enough.sum()} of {len(enough)} output(s) in both; expected {_LEAST_LEARNED} and {_LEAST_HELD} or more, of "
        "every output"
    )


def check(fitted: Fitted, early: Recordings, held: Recordings, seed: int, watch: Watch | None = None) -> Check:
    """Free runs over what was held back, by a model and by simpler ones that have learned from the same samples."""
    scores = [Score.of(fitted.method, _free_runs(fitted, early, held, seed))]
    # What takes no time is not made to wait for a model that is compiled first.
    lines = [name for name in LINES if name != "LinearGaussian" or fitted.method not in _QUICK]
    names = [name for name in (*lines, MEAN) if name != fitted.method]
    for number, name in enumerate(names):
        if watch is not None:
            watch(Progress(number + 1, len(names), f"checking beside {name}", math.nan, {}, 0.0, ()))
        method = registry.build(name, **registry.applicable(name, state_dim=AUTO))
        try:
            simple = method.learn(*early, False).learned_from(*early)
        except InvalidInput:  # too few samples for it: then it is none of those to be set beside
            continue
        scores.append(Score.of(name, _free_runs(simple, early, held, seed)))
    rows = np.concatenate(held.outputs)
    numbers = int(np.isfinite(rows).sum())
    return Check(len(rows), tuple(scores), fitted.output_names, numbers if numbers < rows.size else None)


def calibration(first: Fitted, fitted: Fitted, early: Recordings, held: Recordings, seed: int) -> Calibration | None:
    """By the errors that the first model makes on the longest part that was held back, for the bands of another.

    None where the first has diverged.
    """
    i = max(range(len(held.outputs)), key=lambda i: len(held.outputs[i]))
    made, promised = (Origin(model, _state(model, early, i, seed)) for model in (first, fitted))
    errors = rolling_errors(held.outputs[i], held.inputs[i], None, seed, made, promised)
    return Calibration.of(errors) if errors else None


def _free_runs(fitted: Fitted, early: Recordings, held: Recordings, seed: int) -> list[tuple[NDArray, NDArray]]:
    """Sample paths (p, h, dy) of the part of every recording that was held back, and the truth (h, dy)."""
    runs = []
    for i, (y, c) in enumerate(zip(*held, strict=True)):
        if len(y):
            state = _state(fitted, early, i, seed)
            runs.append((fitted.ahead(c, state=state, seed=seed, calibrated=False).samples, y))
    return runs


def _state(fitted: Fitted, early: Recordings, i: int, seed: int) -> States:
    """Where the part of recording `i` begins that was held back."""
    return fitted.filtered(Recording(early.outputs[i], early.inputs[i], None), seed=seed)
