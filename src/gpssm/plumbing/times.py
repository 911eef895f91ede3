"""When the samples of a recording were taken: the first time and a step, dates or numbers.

Everything else in the package counts samples; times are what the user brought, kept to label what is given back.
"""

from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from gpssm.plumbing.catalogue import saved

NDArray = np.ndarray

_DIGITS = 12  # of a time that is a number: 0.1 * 3 is 0.3
_SAME_STEP = 1e-3  # a step that was estimated from rounded times
_SAME_TIME = 0.1  # of a step


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
        # To the twelfth digit of the largest: 0.1 + 0.2 is not 0.30000000000000004.
        largest = float(np.max(np.abs(found), initial=0.0)) or 1.0
        return np.round(found, max(0, _DIGITS - 1 - int(np.floor(np.log10(largest)))))

    def text(self, length: int) -> list[str]:
        """The same in words: ISO dates, without the parts of a second that are zero in all of them; or numbers."""
        if not self.dated:
            return [f"{value:.{_DIGITS}g}" for value in self.values(length)]
        unit = next(u for u, n in _PARTS if int(self.start) % n == 0 and int(self.step) % n == 0)
        dates: list[str] = np.datetime_as_string(self.values(length), unit=unit).tolist()
        return [f"{date}{self.zone}" for date in dates]

    def later(self, rows: int) -> "Times":
        """The times from so many samples later on."""
        return self._replace(start=self.start + rows * self.step)

    @property
    def counts(self) -> bool:
        """Whether they are numbers of samples, whole ones; 0.0, 1.0, ... may be seconds."""
        whole = isinstance(self.start, int) and isinstance(self.step, int)
        return whole and self.step == 1 and not self.dated and not self.unit

    @property
    def plain(self) -> bool:
        """Whether they count samples from 0, as the rows of any table can be counted: that says nothing of when."""
        return self.counts and self.start == 0

    def same_clock(self, other: "Times") -> bool:
        """Whether both are dates, or numbers of one unit, at the same step; that of a single sample may be any (0)."""
        kinds = self.dated == other.dated and bool(self.zone) == bool(other.zone)
        steps = 0 in (self.step, other.step) or abs(self.step - other.step) <= _SAME_STEP * self.step
        return kinds and steps and (self.unit == other.unit or not (self.unit and other.unit))

    def rows_until(self, other: "Times") -> int | None:
        """How many samples after the first of these the first of the others is; None if they are on no common grid.

        >>> Times(0.5, 0.1).rows_until(Times(0.8, 0.1)), Times(0.5, 0.1).rows_until(Times(0.85, 0.1))
        (3, None)
        """
        if not self.same_clock(other):
            return None
        steps = (other._utc() - self._utc()) / (self.step or other.step or 1)
        return round(steps) if abs(steps - round(steps)) <= _SAME_TIME else None

    def _utc(self) -> int | float:
        """The first, whatever the zone."""
        ahead = datetime.fromisoformat(f"1970-01-01T00:00:00{self.zone}").utcoffset() if self.zone else None
        return self.start - (int(ahead.total_seconds()) * 1_000_000_000 if ahead else 0)

    def described(self) -> str:
        """Start and step, for an error."""
        step = f"{self.step / 1e9:.{_DIGITS}g} s" if self.dated else f"{self.step:.{_DIGITS}g}"
        return f"from {self.text(1)[0]} on" + (f" in steps of {step}" if self.step else "")


_PARTS: tuple[tuple[Any, int], ...] = (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1))
