"""Data that can be used but look wrong: one sentence each, which names the column and says what to do.

Pure functions of arrays and names, each of which looks at the data once; `report` warns of what they have found.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpssm.errors import DataWarning
from gpssm.plumbing.messages import warn

NDArray = np.ndarray

CONSTANT = 1e-12
"""A channel whose spread is below this share of its size is constant to rounding."""

_GAP = 50.0
_OUTLIERS = 0.01
_FEWEST = 10  # values that show what is ordinary
_WIDTHS = 3.0
_SPREAD = 3.0


def report(sentences: Sequence[str]) -> None:
    """Warn of each, at the line of the user."""
    for sentence in sentences:
        warn(sentence, DataWarning)


class Range(NamedTuple):
    """Where the columns of training data were, (columns,) each."""

    low: NDArray
    high: NDArray
    moved: NDArray
    """Whether a column had more than one value."""

    @classmethod
    def of(cls, shift: NDArray, scale: NDArray, seen: NDArray) -> "Range":
        """From means and standard deviations (columns,) of all samples, and the last (rows, columns) of them.

        Three deviations to each side of the mean at least, for what was before the last samples.
        """
        rows = np.vstack([seen, shift])
        low, high = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
        # The deviation of a column that is constant is put down as 1: `models.scaling.moments`.
        moved = (scale != 1.0) | ~_constant(low, high)
        reach = np.where(moved, _SPREAD * scale, 0.0)
        return cls(np.minimum(low, shift - reach), np.maximum(high, shift + reach), moved)


def still_inputs(names: Sequence[str], recordings: Sequence[NDArray]) -> list[str]:
    """Of inputs (rows, columns) to learn from: those that never move."""
    rows = np.concatenate(recordings)
    still = _constant(rows.min(axis=0), rows.max(axis=0))
    return [
        f"inputs: {name!r} never moves in the training data ({value:g}): its effect cannot be learned; drop it."
        for name, value, constant in zip(names, rows[0], still, strict=True)
        if constant
    ]


def outliers(argument: str, names: Sequence[str], recordings: Sequence[NDArray]) -> list[str]:
    """Of recordings (rows, columns) to learn from: columns with values that no other comes near.

    Those are 300 times as far from the median of their column as the next one, which is about a thousand standard
    deviations, and at most one in a hundred of all. Next to values that are all the same it is an impulse: ordinary.
    """
    found = []
    for i, name in enumerate(names):
        columns = [recording[:, i] for recording in recordings]
        seen = np.concatenate(columns)
        seen = seen[~np.isnan(seen)]
        if len(seen) < _FEWEST:
            continue
        with np.errstate(over="ignore"):
            median = np.median(seen)
            away = np.sort(np.abs(seen - median))[-1 - max(1, int(_OUTLIERS * len(seen))) :]
            apart = (away[1:] > _GAP * away[:-1]) & (away[:-1] > CONSTANT * np.abs(median))
            if not apart.any():
                continue
            least, count = away[1:][apart.argmax()], len(away) - 1 - int(apart.argmax())
            far = [np.abs(column - median) >= least for column in columns]
        which = next(n for n, rows in enumerate(far) if rows.any())
        row = int(far[which].argmax())
        place = f"row {row}" if len(recordings) == 1 else f"row {row} of recording {which}"
        more = f", and {count - 1} more are as far," if count > 1 else ""
        fault = "set it to NaN" if argument == "outputs" else "replace it by what it was"
        found.append(
            f"{argument}: {name!r} is {columns[which][row]:g} at {place}{more} where all others are within "
            f"{away[:-1][apart.argmax()]:.3g} of {median:.3g}; if that is a fault, {fault}."
        )
    return found


def too_few(observed: int, state_dim: int, arguments: int, num_inducing: int) -> list[str]:
    """Of fewer numbers observed than f has to learn: a plane in its arguments and, for a GP, the inducing values.

    That is `state_dim * (arguments + 1 + num_inducing)`, the noises and the emission not counted.
    """
    learned = state_dim * (arguments + 1 + num_inducing)
    if observed >= learned:
        return []
    smaller = "state_dim or num_inducing" if num_inducing else "state_dim"
    return [
        f"outputs: {observed} number(s) were observed, fewer than the {learned} that f has to learn; "
        f"record more, or choose a smaller {smaller}."
    ]


def elsewhere(argument: str, names: Sequence[str], values: NDArray, trained: Range) -> list[str]:
    """Of values (rows, columns) for a fitted model: columns far from the range that it was trained on.

    That is three times its width away, some twenty standard deviations; or anywhere else, if it never moved.
    """
    found = []
    low, high, moved = trained
    margin = np.where(moved, _WIDTHS * (high - low), CONSTANT * np.maximum(np.abs(low), np.abs(high)))
    far = (values < low - margin) | (values > high + margin)
    for i in map(int, np.flatnonzero(far.any(axis=0))):
        row = int(far[:, i].argmax())
        now = f"{argument}: {names[i]!r} is {values[row, i]:g} at row {row}"
        found.append(
            f"{now}, far outside the training data ({low[i]:.4g} to {high[i]:.4g}); check its unit."
            if moved[i]
            else f"{now}, but never moved in the training data ({low[i]:g}): its effect is not known; "
            "hold it there, or fit again with data in which it moves."
        )
    return found


def _constant(low: NDArray, high: NDArray) -> NDArray:
    return high - low <= CONSTANT * np.maximum(np.abs(low), np.abs(high))
