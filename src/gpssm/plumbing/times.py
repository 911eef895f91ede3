"""When the samples of a recording were taken: the first time and a step, dates or numbers.

Everything else in the package counts samples; times are what the user brought, kept to label what is given back.
"""

from typing import Any, NamedTuple

import numpy as np

from gpssm.plumbing.catalogue import saved

NDArray = np.ndarray

_DIGITS = 14  # of a time that is a number: 0.1 * 3 is 0.3, and seconds since 1970 have four digits after the point
SAME_STEP = 0.01
"""Steps that differ by less of themselves are one: clocks are not perfect."""
UNITS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
"""Of durations, in nanoseconds; every unit a multiple of the one before."""


@saved
class Times(NamedTuple):
    """Times of samples that are taken at regular intervals.

    Dates are nanoseconds since 1970, in the zone that the user's clock was set to.

    >>> Times(start=0.5, step=0.1, unit="s").values(4).tolist()
    [0.5, 0.6, 0.7, 0.8]
    >>> from_dates = Times.of_dates(np.array(["2024-03-01T12:00", "2024-03-01T12:05"], "datetime64[ns]"))
    >>> from_dates.later(2).text(2)
    ['2024-03-01T12:10:00', '2024-03-01T12:15:00']
    """

    start: int | float
    """Of the first sample."""
    step: int | float
    """From each sample to the next."""
    dated: bool = False
    unit: str = ""
    """Of times that are numbers, if it is known: "s", for example."""
    zone: str = ""
    """Of dates: what they are written with after the time of day, "+01:00" or "Z" for example; often nothing."""
    name: str = "time"
    """Of the column that they came from."""

    @classmethod
    def of_dates(cls, dates: NDArray, zone: str = "", name: str = "time") -> "Times":
        """From two dates or more (datetime64), of which the first two say the step."""
        start, second = (int(date) for date in np.asarray(dates[:2], "datetime64[ns]").astype(np.int64))
        return cls(start, second - start, True, "", zone, name)

    def values(self, length: int) -> Any:
        """The times of so many samples (length,): `datetime64[ns]`, or floats."""
        if self.dated:
            return (int(self.start) + int(self.step) * np.arange(length)).astype("datetime64[ns]")
        found = self.start + self.step * np.arange(length)
        # To a digit of the largest that is left alone by rounding errors: 0.1 + 0.2 is not 0.30000000000000004.
        largest = float(np.max(np.abs(found), initial=0.0)) or 1.0
        return np.round(found, max(0, _DIGITS - 1 - int(np.floor(np.log10(largest)))))

    def text(self, length: int) -> list[str]:
        """The same in words: ISO dates, without the parts that are zero in all of them; or numbers."""
        if not self.dated:
            return [np.format_float_positional(value, trim="-") for value in self.values(length)]
        parts = _PARTS[1:] if self.zone else _PARTS  # an offset stands behind a time of day
        unit = next(u for u, n in parts if int(self.start) % n == 0 and int(self.step) % n == 0)
        dates: list[str] = np.datetime_as_string(self.values(length), unit=unit).tolist()
        return [f"{date}{self.zone}" for date in dates]

    def later(self, rows: int) -> "Times":
        """The times from so many samples later on."""
        return self._replace(start=self.start + rows * self.step)

    @property
    def step_text(self) -> str:
        """The step in words: "5 min", or a number and its unit if it is known."""
        return duration(self.step) if self.dated else f"{self.step:.6g} {self.unit}".rstrip()

    def same_step(self, other: "Times") -> bool:
        """Whether two recordings are sampled alike, as far as their units say.

        >>> Times(0.0, 2000.0, unit="ms").same_step(Times(0, 2_000_000_000, dated=True))
        True
        """
        mine, theirs = self._nanoseconds, other._nanoseconds
        if (mine is None) != (theirs is None) and self.dated != other.dated:
            return True  # numbers without a unit, and dates: nobody knows
        steps = (self.step, other.step) if mine is None or theirs is None else (self.step * mine, other.step * theirs)
        return abs(steps[0] - steps[1]) <= SAME_STEP * max(steps)

    def steps_until(self, other: "Times") -> float | None:
        """How many steps after the first of these samples the first of `other` was taken; None if clocks differ.

        >>> Times(0.0, 2.0, unit="s").steps_until(Times(8.0, 2.0, unit="s"))
        4.0
        """
        if self.dated != other.dated or self.unit != other.unit or bool(self.zone) != bool(other.zone):
            return None
        return (other.start - _offset(other.zone) - self.start + _offset(self.zone)) / self.step

    @property
    def _nanoseconds(self) -> int | None:
        """In the unit of the step."""
        return 1 if self.dated else UNITS.get(self.unit)


def duration(nanoseconds: float) -> str:
    """In the largest unit in which it is a whole number, or else has digits before the point.

    >>> duration(300e9), duration(90e9), duration(1.25e9)
    ('5 min', '90 s', '1.25 s')
    """
    whole = [unit for unit, size in UNITS.items() if nanoseconds % size == 0]
    large = [unit for unit, size in UNITS.items() if nanoseconds >= size]
    unit = whole[-1] if whole and nanoseconds / UNITS[whole[-1]] < _MANY else (large or ["ns"])[-1]
    return f"{nanoseconds / UNITS[unit]:.4g} {unit}"


def _offset(zone: str) -> int:
    """Of a clock from UTC, in nanoseconds: of "+01:00", for example."""
    if zone in ("", "Z"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    return (-1 if zone[0] == "-" else 1) * (hours * UNITS["h"] + minutes * UNITS["min"])


_MANY = 1000  # of a unit are better said in a larger one
_PARTS: tuple[tuple[Any, int], ...] = (("D", UNITS["d"]), *((unit, UNITS[unit]) for unit in ("s", "ms", "us", "ns")))
