"""The column that says when the samples were taken: which it is, and from its text to nanoseconds or numbers.

Dates are read year first (2024-03-01T12:00:00.5+01:00, also with a space or with slashes, or as 20240301T120000), day
first with dots (1.3.2024 12:00), and with slashes (13/1/2024) where a number above 12 says which is the day. Numbers
have the unit that is in the name of their column: `time [s]`, `t (ms)`, `time_min`.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from gpssm.datasets.tables import Table, find_all, listing, numbers_in
from gpssm.errors import InvalidInput
from gpssm.plumbing.times import UNITS
from gpssm.plumbing.validation import shown

NDArray = np.ndarray

NO_TIME = "none"
"""Instead of a column: samples are counted, whatever the file says."""
_NAMES = ("time", "timestamp", "datetime", "date", "zeit", "zeitstempel", "datum", "fecha", "tiempo")
_DATES = ("date", "datum", "fecha")  # where 20240301 is not a number
_SHORT = "t"  # may be a temperature as well: not worth a word if it is no time
_SPELLINGS = {"µs": "us", "μs": "us", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "minute": "min"}
_SPELLINGS |= {"minutes": "min", "hr": "h", "hour": "h", "hours": "h", "day": "d", "days": "d"}
_LARGEST = 1e100  # number that is taken for a time
_LONGEST = 60  # characters of a name in which a unit is looked for: that of a longer one would take its time
_FEW = 0.1  # rows of a column found by itself that may be out of order, or have the time of another

_CLOCK = r"(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9})\d*)?)?(?: ?([AaPp])\.?[Mm]\.?)?"
_ZONE = r" ?([Zz]|[+-]\d\d(?::?\d\d)?)?"
_DATE = re.compile(
    r"(?:(\d{4})([-/.])(\d{1,2})\2(\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\6(\d{4}))" + rf"(?:(?:[T ] *){_CLOCK}{_ZONE})?"
)
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)(?:[T ](\d\d)(\d\d)(?:(\d\d)(?:[.,](\d{1,9})\d*)?)?)?" + _ZONE)
_TIME_OF_DAY = re.compile(_CLOCK)
_YEARS = range(1678, 2262)  # what nanoseconds in 64 bits can hold


class Clock(NamedTuple):
    """What a column says, row by row."""

    values: NDArray
    """Nanoseconds since 1970 in the zone of the clock (int64), or numbers (float64)."""
    name: str
    dated: bool
    unit: str = ""
    zone: str = ""
    note: str = ""
    """What was changed on the way, if anything was."""

    @property
    def named(self) -> str:
        """For errors and notes."""
        return f"column {self.name!r}"


class _Ambiguous(InvalidInput):
    pass


def looks_like_time(name: str) -> bool:
    """Whether a column of this name says when samples were taken, if it is not for anything else.

    >>> [name for name in ("Time [s]", "date", "run time", "t") if looks_like_time(name)]
    ['Time [s]', 'date']
    """
    return _base(name) in _NAMES


def read_clock(table: Table, columns: Sequence[int]) -> Clock:
    """The times in a column, or in two that hold the date and the time of day; refuses cells that are no times."""
    rows = [" ".join(row[j].strip() for j in columns).strip() for row in table.rows]
    name = " ".join(table.names[j] for j in columns) if table.header else "time"
    numbers = numbers_in(rows, table)
    compact = _base(name) in _DATES and all(map(_COMPACT.fullmatch, rows))
    good = [value is not None and abs(value) < _LARGEST for value in numbers]
    if compact or not good[0]:
        return _dates(rows, name, table)
    if not all(good):
        i = good.index(False)
        what = f"{shown(rows[i])} is not a finite number" if rows[i] else "the time is missing"
        raise InvalidInput(
            f"time: {table.file!r} line {table.lines[i]}, column {name!r}: {what}; expected one, as in the first row."
        )
    return Clock(np.array(numbers, float), name, dated=False, unit=_unit(name))


def find_clock(table: Table, time: Any, used: set[int], groups: Sequence[list[int]]) -> tuple[list[int], list[str]]:
    """Indices of the columns of the time, none if there is none, and what is to be said about them.

    Args:
        table: of the (first) file.
        time: what the user says, None if nothing.
        used: columns that are for something else.
        groups: rows of every recording.
    """
    if time is not None:
        off = isinstance(time, (str, list)) and time in (NO_TIME, [NO_TIME])
        return ([], []) if off else (find_all("time", time, table), [])
    found: list[tuple[list[int], Clock]] = []
    notes = []
    for columns in _candidates(table, used):
        named = all(looks_like_time(table.names[j]) for j in columns)
        try:
            clock = read_clock(table, columns)
            why = _not_a_clock(clock, groups)
        except _Ambiguous as error:
            if named:
                raise
            why = str(error)
        except InvalidInput as error:
            why = str(error).removeprefix("time: ")
        if not why:
            found.append((columns, clock))
        elif named:
            name = table.names[columns[0]]
            why = f"{why.rstrip('.')} (--time {NO_TIME} hides this)."
            notes.append(f"column {name!r} looks like times but is not used: {why}")
    if not found:
        return [], notes
    chosen, clock = next(((columns, clock) for columns, clock in found if clock.dated), found[0])
    others = [other.name for columns, other in found if columns != chosen]
    if others:
        return chosen, [f"{clock.named} is taken as the time, {listing(others)} would be possible, too (--time)."]
    return chosen, []


def _candidates(table: Table, used: set[int]) -> list[list[int]]:
    """Columns that may be times by their name, or by the first of their cells."""
    free = [j for j in range(len(table.names)) if j not in used]
    first = {j: table.rows[0][j].strip() for j in free}
    clocks = [j for j in free if looks_like_time(table.names[j]) and _TIME_OF_DAY.fullmatch(first[j])]
    dates = [j for j in free if (match := _DATE.fullmatch(first[j])) and not match[9]]
    if len(clocks) == len(dates) == 1:
        return [[*dates, *clocks]]
    return [
        [j]
        for j in free
        if looks_like_time(table.names[j])
        or (table.header and _base(table.names[j]) == _SHORT)
        or ((match := _DATE.fullmatch(first[j])) and match[1])
        or ((match := _COMPACT.fullmatch(first[j])) and match[4])
    ]


def _not_a_clock(clock: Clock, groups: Sequence[list[int]]) -> str:
    """Why a column that nobody has called the time is not taken for it; nothing if it is."""
    for rows in groups:
        values = clock.values[rows]
        steps = np.diff(np.sort(values) if clock.dated else values)
        wrong = np.sum(steps <= 0)
        if wrong > max(1, _FEW * len(rows)) or 0 < wrong == len(steps):
            return "many rows have the same date" if clock.dated else "its numbers do not increase from row to row"
    return ""


def _dates(cells: list[str], name: str, table: Table) -> Clock:
    parts = []
    for i, cell in enumerate(cells):
        found = _parts(cell)
        if found is None:
            where = f"{table.file!r} line {table.lines[i]}, column {name!r}"
            what = f"{shown(cell)} is not a time" if cell else "the time is missing"
            raise InvalidInput(f"time: {where}: {what}; expected a date such as 2024-03-01 12:00:00, or a number.")
        parts.append(found)
    day_first = _day_first(parts, cells, name, table)
    values = np.empty(len(cells), np.int64)
    for i, part in enumerate(parts):
        try:
            values[i] = _nanoseconds(part, day_first)
        except ValueError as error:
            where = f"{table.file!r} line {table.lines[i]}, column {name!r}"
            raise InvalidInput(f"time: {where}: {shown(cells[i])} is no date ({error}).") from error
    zones = [part.zone for part in parts]
    if len({zone is None for zone in zones}) > 1:
        i = next(i for i, zone in enumerate(zones) if (zone is None) != (zones[0] is None))
        where = f"{table.file!r} line {table.lines[i]}, column {name!r}"
        raise InvalidInput(
            f"time: {where}: {shown(cells[i])}, but other rows are {'without' if zones[i] else 'with'} an offset from "
            "UTC; expected it in all rows or in none."
        )
    offsets = np.array([_minutes(zone or "Z") for zone in zones])
    if len(set(offsets.tolist())) == 1:
        return Clock(values, name, True, zone=_written(zones[0]))
    note = f"column {name!r} has several offsets from UTC, as with daylight saving: its times are turned to UTC."
    return Clock(values - offsets * UNITS["min"], name, True, zone="Z", note=note)


class _Parts(NamedTuple):
    """Of a date: three numbers in the order of the text, and the time of day in nanoseconds."""

    date: tuple[int, int, int]
    separator: str
    """Between them, if the year is last."""
    time: tuple[int, int, int]
    nanoseconds: int
    zone: str | None


def _parts(cell: str) -> _Parts | None:
    if match := _DATE.fullmatch(cell):
        y, _, m, d, first, separator, second, last, hour, minute, sec, fraction, half, zone = match.groups()
        date = (int(y), int(m), int(d)) if y else (int(first), int(second), int(last))
        hours = int(hour or 0)
        if half:
            hours = hours % 12 + (12 if half in "Pp" else 0) if 1 <= hours <= 12 else 24  # 24 is refused as an hour
    elif match := _COMPACT.fullmatch(cell):
        y, m, d, hour, minute, sec, fraction, zone = match.groups()
        date, separator, hours = (int(y), int(m), int(d)), None, int(hour or 0)
    else:
        return None
    nanoseconds = int((fraction or "0").ljust(9, "0"))
    return _Parts(date, separator or "", (hours, int(minute or 0), int(sec or 0)), nanoseconds, zone)


def _day_first(parts: list[_Parts], cells: list[str], name: str, table: Table) -> bool:
    """Of dates with the year at their end; one number above 12 decides for all."""
    ends = [i for i, part in enumerate(parts) if part.separator]
    first = any(parts[i].date[0] > 12 for i in ends)
    second = any(parts[i].date[1] > 12 for i in ends)
    if not ends or first != second:
        return first
    if not first and all(parts[i].separator == "." for i in ends):  # nobody writes the month first with dots
        return True
    why = "some dates have the day first, others the month" if first else "the day or the month may be first"
    raise _Ambiguous(
        f"time: {table.file!r} line {table.lines[ends[0]]}, column {name!r}: {shown(cells[ends[0]])}: {why}; "
        f"write dates with the year first, as 2024-03-01, or do without times (--time {NO_TIME})."
    )


def _nanoseconds(parts: _Parts, day_first: bool) -> int:
    year, month, day = parts.date
    if parts.separator:
        year, month, day = (day, month, year) if day_first else (day, year, month)
    if year not in _YEARS:
        raise ValueError(f"expected a year from {_YEARS[0]} to {_YEARS[-1]}")
    since = datetime(year, month, day, *parts.time, tzinfo=UTC) - _EPOCH
    return (since.days * 86_400 + since.seconds) * UNITS["s"] + parts.nanoseconds


def _minutes(zone: str) -> int:
    """Of an offset from UTC."""
    digits = zone[1:].replace(":", "").ljust(4, "0")
    return 0 if zone in "Zz" else int(f"{zone[0]}1") * (60 * int(digits[:2]) + int(digits[2:]))


def _written(zone: str | None) -> str:
    """An offset as in +01:00, or Z, or nothing."""
    if zone is None or zone in "Zz":
        return "Z" if zone else ""
    digits = zone[1:].replace(":", "").ljust(4, "0")
    return f"{zone[0]}{digits[:2]}:{digits[2:]}"


def _base(name: str) -> str:
    """A name in lower case, without its unit and without what separates words."""
    return re.sub(r"[\W_]", "", _split(name)[0]).lower()


def _unit(name: str) -> str:
    return _split(name)[1]


def _split(name: str) -> tuple[str, str]:
    """A name and the unit in it: in brackets whatever it is, without them one of time."""
    if len(name) > _LONGEST:
        return name, ""
    if match := re.fullmatch(r"(.*?)\s*[\[(]\s*([^\])]*?)\s*[\])]", name.strip()):
        unit = match[2]
        return match[1], _SPELLINGS.get(unit.lower(), unit.lower() if unit.lower() in UNITS else unit)
    if match := re.fullmatch(r"(.+?)(?:_|\s*[/,]\s*|\s+)(\w+)", name.strip()):
        unit = _SPELLINGS.get(match[2].lower(), match[2].lower())
        if unit in UNITS:
            return match[1], unit
    return name, ""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
