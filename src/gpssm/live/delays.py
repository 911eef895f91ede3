"""How long samples wait for their estimates, in constant memory."""

import math
from collections import Counter

_FINE = 50.0  # classes for a factor of e: the median is right to one percent


class Delays:
    """Seconds from a sample to its estimate. The first waits for what is compiled, and is told apart.

    >>> delays = Delays()
    >>> for seconds in (2.5, 0.0003, 0.0005, 0.004):
    ...     delays.add(seconds)
    >>> str(delays)
    'From a sample to its estimate: 0.50 ms in the median, 4.0 ms at most; 2.5 s for the first.'
    """

    def __init__(self) -> None:
        self.first: float | None = None
        self.largest = 0.0
        self._classes: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """One more."""
        if self.first is None:
            self.first = seconds
            return
        self.largest = max(self.largest, seconds)
        self._classes[round(_FINE * math.log(max(seconds, 1e-9)))] += 1

    @property
    def median(self) -> float:
        """Of all but the first; 0 if there is no other."""
        left = self._classes.total() // 2
        for place, count in sorted(self._classes.items()):
            left -= count
            if left < 0:
                return math.exp(place / _FINE)
        return 0.0

    def __str__(self) -> str:
        if self.first is None:
            return ""
        if not self._classes:
            return f"From the first sample to its estimate: {self.first:.1f} s."
        median, largest = (
            f"{1e3 * seconds:.{1 if seconds > 1e-3 else 2}f} ms" for seconds in (self.median, self.largest)
        )
        first = f"{self.first:.1f} s for the first"
        return f"From a sample to its estimate: {median} in the median, {largest} at most; {first}."
