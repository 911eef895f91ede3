"""Rows and the times they were taken at -> samples at regular intervals: sorted, gaps filled, or resampled.

Everything that is changed on the way is said in a note; what cannot be made regular is refused with the ways out.
"""

import re
from typing import NamedTuple

import numpy as np

from gpssm.datasets.time_column import NO_TIME, Clock
from gpssm.errors import InvalidInput
from gpssm.plumbing.times import UNITS, Times, duration
from gpssm.plumbing.validation import shown

NDArray = np.ndarray

_NEAR = 0.25  # of a step: how far a row may be from its place
_SAID = 0.01  # of a step: how far all rows may be without a word
_FULL = 0.5  # part of the samples that must not be gaps
_FULL_RESAMPLED = 0.01  # of those that the user has asked for
_ROUNDING = 1e-9  # of a step: what is not a difference
_EPSILON = 2.0**-50  # of a number: likewise


class Rows(NamedTuple):
    """Of one recording: outputs (T, dy), inputs (T, dc), and the line of the file that each comes from."""

    outputs: NDArray
    inputs: NDArray
    lines: list[int]
    file: str


class Regular(NamedTuple):
    """A recording sampled at regular intervals."""

    outputs: NDArray
    inputs: NDArray
    times: Times | None
    notes: list[str]


class Resampling(NamedTuple):
    """A step, in the unit of the clock, and what stands for the values within one."""

    step: float
    last: bool


def regular(clock: Clock, rows: Rows, resample: str | None) -> Regular:
    """The samples of a recording in the order of their times, one for every step.

    Rows that are missing become NaN outputs; their inputs are those before. A single row has no step, and no times.
    """
    notes: list[str] = []
    wanted = None if resample is None else _resampling(resample, clock)
    clock, rows = _sorted(clock, rows, notes)
    with np.errstate(all="ignore"):  # numbers near the largest, which are not regular
        return _placed(clock, rows, wanted, notes)


def _placed(clock: Clock, rows: Rows, wanted: Resampling | None, notes: list[str]) -> Regular:
    if wanted is not None:
        return _resampled(clock, rows, wanted, notes)
    clock, rows = _without_doubles(clock, rows, notes)
    if len(rows.outputs) == 1:
        return Regular(rows.outputs, rows.inputs, None, notes)
    grid = _grid(clock, rows)
    if grid.deviation > _SAID * grid.times.step:
        away, step = _amount(grid.deviation, clock), grid.times.step_text
        notes.append(f"{clock.named}: rows are up to {away} away from a regular step of {step}: taken as regular.")
    return _filled(rows.outputs, rows.inputs, grid.places, grid.times, notes)


def _sorted(clock: Clock, rows: Rows, notes: list[str]) -> tuple[Clock, Rows]:
    """In the order of the times; rows of one time in that of the file."""
    back = np.flatnonzero(np.diff(clock.values) < 0)
    if not back.size:
        return clock, rows
    notes.append(f"{clock.named} goes back at line {rows.lines[back[0] + 1]}: rows are sorted by it.")
    return _take(clock, rows, np.argsort(clock.values, kind="stable"))


def _take(clock: Clock, rows: Rows, chosen: NDArray) -> tuple[Clock, Rows]:
    lines = [rows.lines[i] for i in chosen]
    return clock._replace(values=clock.values[chosen]), Rows(
        rows.outputs[chosen], rows.inputs[chosen], lines, rows.file
    )


def _without_doubles(clock: Clock, rows: Rows, notes: list[str]) -> tuple[Clock, Rows]:
    """Rows that are there twice are kept once; two at the same time that differ are refused."""
    double = np.concatenate([[False], np.diff(clock.values) == 0])
    for i in np.flatnonzero(double):
        mine, other = (np.concatenate([rows.outputs[j], rows.inputs[j]]) for j in (i, i - 1))
        if not np.array_equal(mine, other, equal_nan=True):
            when = Times(clock.values[i].item(), 0, clock.dated, clock.unit, clock.zone).text(1)[0]
            hint = " A clock that is set back needs offsets from UTC." if clock.dated and not clock.zone else ""
            steps = np.diff(clock.values)
            step = float(np.median(steps[steps > 0])) if steps.any() else 1.0
            raise InvalidInput(
                f"time: {rows.file!r} lines {rows.lines[i - 1]} and {rows.lines[i]} have different numbers for the "
                f"same time {when} in {clock.named}; remove one, tell recordings apart (--id), or take the mean or the "
                f"last value within a step ({_ways_out(clock, step)}).{hint}"
            )
    if not double.any():
        return clock, rows
    first = rows.lines[int(np.argmax(double))]
    notes.append(f"{clock.named}: {int(double.sum())} row(s) are there twice (the first is line {first}): kept once.")
    return _take(clock, rows, np.flatnonzero(~double))


class _Grid(NamedTuple):
    times: Times
    places: NDArray
    """The index of the sample that every row is."""
    deviation: float
    """How far a row is from its place, at most."""


def _grid(clock: Clock, rows: Rows) -> _Grid:
    """Regular times of which every row has its own; refused if there are none, or too few of them have a row."""
    since = (clock.values - clock.values[0]).astype(float)
    steps = np.diff(since)
    tried = [_places(since, step) for step in (float(np.median(steps)), float(steps.min()), float(np.mean(steps)))]
    fits = [fit for fit in tried if fit is not None]
    if not fits:
        raise _irregular(clock, rows, steps)
    index = min(fits, key=lambda fit: (len(fit.places) < _FULL * (fit.places[-1] + 1), fit.away)).places
    if len(index) < _FULL * (index[-1] + 1):
        raise _with_gaps(clock, rows, steps)

    times, deviation = _roundest(clock, since, index)
    return _Grid(times, index.astype(int), deviation)


def _roundest(clock: Clock, since: NDArray, index: NDArray) -> tuple[Times, float]:
    """The roundest step, then the roundest start, that are about as near to all rows as any; and how near.

    A clock that is some milliseconds late has a step of a second nevertheless, and whole seconds are written as such.
    """
    # Dates are whole numbers; of others the largest says what rounding may have done.
    rounding = _EPSILON * float(since[-1] if clock.dated else np.max(np.abs(clock.values)))
    origin = clock.values[0].item()

    def deviation(step: float, start: float) -> float:
        return float(np.max(np.abs(since - start - step * index)))

    def start_of(step: float) -> float:
        return float(np.mean(since - step * index))

    def about(best: float, step: float) -> float:
        return max(best, min(2 * best, _NEAR * step)) + rounding

    best, start = _line(index, since)
    allowed = about(deviation(best, start), best)
    steps = [step for step in _rounder(best, best, clock.dated) if step > 0]
    step = next((step for step in steps if deviation(step, start_of(step)) <= allowed), steps[-1])
    allowed = about(deviation(step, start_of(step)), step)
    begins = _rounder(origin + (round(start_of(step)) if clock.dated else start_of(step)), step, clock.dated)
    begin = next((begin for begin in begins if deviation(step, begin - origin) <= allowed), begins[-1])
    times = Times(begin, step, clock.dated, clock.unit, clock.zone, clock.name)
    return times, deviation(step, begin - origin)


class _Fit(NamedTuple):
    places: NDArray
    """The index (a float) of the sample that every row is."""
    away: float
    """How far the farthest is from its place, in steps."""


def _places(since: NDArray, step: float) -> _Fit | None:
    """The places of rows at about this step; None if one has none of its own."""
    if step <= 0:
        return None
    index = np.concatenate([[0], np.cumsum(np.rint(np.diff(since) / step))])
    for _ in range(2):  # the first step is rough; one that fits all rows tells gaps better
        if not np.all(np.diff(index) >= 1):
            return None
        step, start = _line(index, since)
        places = (since - start) / step
        index = np.rint(places) - np.rint(places[0])
    away = float(np.max(np.abs(places - np.rint(places))))
    return _Fit(index, away) if away <= _NEAR and np.all(np.diff(index) >= 1) else None


def _line(index: NDArray, since: NDArray) -> tuple[float, float]:
    """Step and start of the line through the times, by least squares."""
    centred = index - index.mean()
    step = float(centred @ (since - since.mean()) / (centred @ centred))
    return step, float(since.mean() - step * index.mean())


def _rounder(value: int | float, scale: float, dated: bool) -> list[int | float]:
    """A number rounded to days, hours, ... nanoseconds; or to a digit of it or of `scale` after the other."""
    if dated:
        sizes = (UNITS["d"], UNITS["h"], UNITS["min"], *(10**power for power in range(9, -1, -1)))
        return [(round(value) + size // 2) // size * size for size in sizes]
    first = int(np.floor(np.log10(max(abs(value), scale))))
    return [*(round(float(value), digits - first) + 0.0 for digits in range(16)), float(value)]  # -0.0 + 0.0 is 0.0


def _irregular(clock: Clock, rows: Rows, steps: NDArray) -> InvalidInput:
    step, apart = float(np.median(steps)), np.abs(steps - np.median(steps))
    worst = int(np.argmax(apart))
    if np.mean(apart <= _NEAR * step) >= 1 - _FEW_GAPS and np.all(steps >= (1 - _NEAR) * step):
        return _with_gaps(clock, rows, steps)
    return InvalidInput(
        f"time: {rows.file!r}, {clock.named}: steps are from {_amount(steps.min(), clock)} to "
        f"{_amount(steps.max(), clock)} long (that to line {rows.lines[worst + 1]}), {_amount(step, clock)} in the "
        f"middle; expected regular samples: take the mean or the last value within a step ({_ways_out(clock, step)}), "
        f"or count samples (--time {NO_TIME})."
    )


_FEW_GAPS = 0.1  # of all steps: then it is gaps that are irregular, and nothing else


def _with_gaps(clock: Clock, rows: Rows, steps: NDArray) -> InvalidInput:
    step, longest = float(np.median(steps)), int(np.argmax(steps))
    return InvalidInput(
        f"time: {rows.file!r}, {clock.named}: a gap of {_amount(steps[longest], clock)} before line "
        f"{rows.lines[longest + 1]}, where the step is {_amount(step, clock)}; cut it into several recordings (a "
        f"column that numbers them, --id), or have missing samples there ({_ways_out(clock, step)}), "
        f"or count samples (--time {NO_TIME})."
    )


def _ways_out(clock: Clock, step: float) -> str:
    """The options that resample, with a step that suits."""
    length = _amount(step, clock).replace(" ", "") if clock.dated or clock.unit in UNITS else f"{step:.3g}"
    return f"--resample {length} or {length}:last"


def _amount(value: float, clock: Clock) -> str:
    return duration(float(f"{value:.3g}")) if clock.dated else f"{value:.3g} {clock.unit}".rstrip()


def _resampling(text: str, clock: Clock) -> Resampling:
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*([a-zµ]*)\s*(?::\s*(mean|last))?\s*", str(text))
    if match is None or not float(match[1]) > 0 or (match[2] and match[2] not in UNITS):
        raise InvalidInput(
            f"resample: got {shown(text)}; expected a step such as 2s, 500ms, 5min, 1h or 1d, and :last to take the "
            "last value within it instead of the mean."
        )
    number, unit = float(match[1]), match[2]
    if clock.dated and not unit:
        raise InvalidInput(f"resample: {shown(text)} has no unit, {clock.named} holds dates; expected 2s, for example.")
    if unit and not clock.dated and clock.unit not in UNITS:
        raise InvalidInput(
            f"resample: {shown(text)} has a unit, {clock.named} has none that is known; expected a number alone, or a "
            "name with the unit: 'time [s]'."
        )
    step = number if not unit else number * UNITS[unit] / (1 if clock.dated else UNITS[clock.unit])
    if clock.dated and (step < 1 or step != round(step)):
        raise InvalidInput(f"resample: {shown(text)} is not a whole number of nanoseconds; expected one.")
    return Resampling(step, match[3] == "last")


def _resampled(clock: Clock, rows: Rows, wanted: Resampling, notes: list[str]) -> Regular:
    """Steps begin at midnight of the first day, or at zero; the first is that with the first row in it."""
    if clock.dated:
        step: int | float = round(wanted.step)
        day = clock.values[0].item() // UNITS["d"] * UNITS["d"]
        bins = (clock.values - day) // step
        start: int | float = day + bins[0].item() * step
    else:
        step = wanted.step
        bins = np.floor(clock.values / step + _ROUNDING)
        start = bins[0].item() * step
    index, row_bins = np.unique(bins - bins[0], return_inverse=True)
    samples = index[-1] + 1
    times = Times(start, step, clock.dated, clock.unit, clock.zone, clock.name)
    if not len(index) >= _FULL_RESAMPLED * samples:  # infinitely many are too many, too
        raise InvalidInput(
            f"resample: of {samples:.0f} steps of {times.step_text} only {len(index)} have a row in {rows.file!r}; "
            "expected a longer step, or several recordings (a column that numbers them, --id)."
        )
    kind = "last" if wanted.last else "mean"
    notes.append(f"{len(rows.outputs)} rows resampled to a step of {times.step_text}, the {kind} of the values in it.")
    within = _last if wanted.last else _mean
    outputs, inputs = (within(values, row_bins, len(index)) for values in (rows.outputs, rows.inputs))
    return _filled(outputs, inputs, index.astype(int), times, notes)


def _mean(values: NDArray, bins: NDArray, count: int) -> NDArray:
    """Of the numbers in every bin; NaN if there is none."""
    result = np.full((count, values.shape[1]), np.nan)
    for k, column in enumerate(values.T):
        seen = ~np.isnan(column)
        numbers = np.bincount(bins[seen], minlength=count)
        sums = np.bincount(bins[seen], column[seen], minlength=count)
        np.divide(sums, numbers, out=result[:, k], where=numbers > 0)
    return result


def _last(values: NDArray, bins: NDArray, count: int) -> NDArray:
    """The last number in every bin; NaN if there is none."""
    result = np.full((count, values.shape[1]), np.nan)
    for k, column in enumerate(values.T):
        seen = ~np.isnan(column)
        result[bins[seen], k] = column[seen]  # of several for one place the last is kept
    return result


def _filled(outputs: NDArray, inputs: NDArray, index: NDArray, times: Times, notes: list[str]) -> Regular:
    """Samples at `index` and gaps between them."""
    samples = int(index[-1]) + 1
    missing = samples - len(index)
    if not missing:
        return Regular(outputs, inputs, times, notes)
    y = np.full((samples, outputs.shape[1]), np.nan)
    y[index] = outputs
    before = np.searchsorted(index, np.arange(samples), side="right") - 1
    first = times.later(int(np.setdiff1d(np.arange(samples), index, assume_unique=True)[0]))
    filled = ["outputs are missing"] * bool(outputs.shape[1]) + ["inputs stay what they were"] * bool(inputs.shape[1])
    notes.append(
        f"{missing} of {samples} samples at a step of {times.step_text} have no row, the first at {first.text(1)[0]}: "
        f"there {' and '.join(filled)}."
    )
    return Regular(y, inputs[before], times, notes)
