"""One line of CSV or JSON, or one message of Redis, as one sample.

    t,u,y                      a table; its first row may hold names
    {"u": 0.3, "y": 1.2}       JSON; a list spreads over several channels: {"y": [1.2, null]}
    [1.2, 0.7]                 JSON, where there are no inputs: the outputs
    XADD sensors * u 0.3 y 1.2 Redis; a field may hold a JSON list, too

NaN, null and an empty cell are missing. What a column, key or field of times holds is kept as it is. A record that
cannot be used is a `BadRecord`, and the next may be good:
whatever a line holds, it ends nothing but itself.
"""

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from gpssm.datasets.tables import Table, check_used_once, csv_reader, find_all, number_in, separator_of, without_rows
from gpssm.datasets.time_column import NO_TIME, looks_like_time
from gpssm.errors import InvalidInput
from gpssm.plumbing.validation import shown

LONGEST = 1 << 20
"""Bytes of a line; of one that is longer, no more than a byte beyond need be kept."""
_SAMPLED = 10_000  # characters of the first line, in which the separator is looked for


class BadRecord(InvalidInput):
    """A record to be skipped, and why."""


class Names(NamedTuple):
    """Columns, keys or fields that are looked at; in a table also by number, from 0."""

    outputs: Sequence[str]
    inputs: Sequence[str] = ()
    time: str | None = None
    """Of the time; None for one that is called so, `NO_TIME` for none at all."""


class Sample(NamedTuple):
    """Numbers as they were sent, NaN where one is missing, and the time in the words of the sender."""

    outputs: list[float]
    inputs: list[float]
    time: str | int | float | None = None


class Lines:
    """Reads lines of CSV or of JSON; the first line that is not empty shows which."""

    def __init__(self, names: Names, check_width: Callable[[int, int], None] = lambda outputs, inputs: None) -> None:
        """`check_width` is asked about the numbers of outputs and inputs of a table before its first row."""
        self._names = names
        self._check_width = check_width
        self._parse: Callable[[str], Sample] | None = None

    def read(self, line: bytes) -> Sample | None:
        """The sample in a line; None in one that is blank, a comment before a table, or its row of names."""
        if len(line) > LONGEST:
            raise BadRecord(f"longer than {LONGEST} bytes; expected one sample.")
        text = _decode(line)
        if self._parse is None:
            text = text.removeprefix("\ufeff")
        if not text.strip(" \r"):
            return None
        if self._parse is not None:
            return self._parse(text)
        if text.lstrip().startswith(("{", "[")):
            self._parse = lambda text: from_json(text, self._names)
            return self._parse(text)
        return None if text.startswith("#") else self._start_table(text)

    def _start_table(self, first: str) -> Sample | None:
        try:
            separator = separator_of([first[:_SAMPLED].rstrip("\r")])
        except csv.Error as error:  # a carriage return within it, as where lines end with nothing else
            raise _no_row(first) from error
        table = without_rows("standard input", _cells(first, separator), separator)
        names, decimal_comma = table.names, table.decimal_comma
        outputs = find_all("outputs", self._names.outputs, table)
        inputs = find_all("inputs", self._names.inputs, table)
        time = self._time_column(table, {*outputs, *inputs})
        check_used_once(table, outputs=outputs, inputs=inputs, time=time)
        self._check_width(len(outputs), len(inputs))

        def parse(text: str) -> Sample:
            row = _cells(text, separator)
            if len(row) != len(names):
                raise BadRecord(f"{len(row)} cell(s), the first row has {len(names)}.")
            y, u = ([_cell(names[j], row[j], decimal_comma) for j in used] for used in (outputs, inputs))
            return Sample(y, u, next((row[j] for j in time if row[j]), None))

        self._parse = parse
        return None if table.header else parse(first)

    def _time_column(self, table: Table, used: set[int]) -> list[int]:
        if self._names.time is None:
            found = (j for j, name in enumerate(table.names) if j not in used and looks_like_time(name))
            return list(islice(found, 1))
        return [] if self._names.time == NO_TIME else find_all("time", self._names.time, table)


def from_json(text: str, names: Names) -> Sample:
    """A sample from an object, or from the bare list of its outputs."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON: {shown(text)}.") from error
    if isinstance(record, list) and not names.inputs:
        return Sample(_channels({"outputs": record}, ["outputs"]), [])
    if not isinstance(record, dict):
        raise BadRecord(f"expected an object with the key(s) {', '.join(map(repr, (*names.outputs, *names.inputs)))}.")
    return Sample(_channels(record, names.outputs), _channels(record, names.inputs), _time(record, names))


def from_fields(fields: Mapping[bytes, bytes], names: Names) -> Sample:
    """A sample from the fields of a Redis message."""
    texts = {_decode(name): _decode(value).strip() for name, value in fields.items()}
    record = {name: _field(name, texts[name]) for name in (*names.outputs, *names.inputs) if name in texts}
    return Sample(_channels(record, names.outputs), _channels(record, names.inputs), _time(texts, names))


def _time(record: Mapping[str, object], names: Names) -> str | int | float | None:
    """What the sender says of the time; nothing if it is not a word or a number."""
    found = names.time
    if found is None:
        used = {*names.outputs, *names.inputs}
        found = next((name for name in record if name not in used and looks_like_time(name)), "")
    value = None if found == NO_TIME else record.get(found)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _decode(data: bytes) -> str:
    """As text, whatever it is: where it is not UTF-8, numbers can still be read."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _cells(line: str, separator: str) -> list[str]:
    try:
        # Strict, or a quotation mark that is never closed would pass.
        (row,) = csv_reader([line.rstrip("\r")], separator, strict=True)
    except (csv.Error, ValueError) as error:
        raise _no_row(line) from error
    return [cell.strip() for cell in row]


def _no_row(line: str) -> BadRecord:
    return BadRecord(f"not a row of a table: {shown(line)}.")


def _cell(name: str, cell: str, decimal_comma: bool) -> float:
    # Beside a decimal point a comma would separate thousands, or be a mistake: it is not guessed.
    value = number_in(cell, decimal_comma and "." not in cell)
    if value is None:
        raise BadRecord(f"{shown(name)} is {shown(cell)}; expected a number.")
    return _finite(name, value)


def _field(name: str, text: str) -> object:
    if not text.startswith("["):
        return _cell(name, text, decimal_comma=False)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{shown(name)} is not a JSON list: {shown(text)}.") from error


def _channels(record: Mapping[str, object], names: Sequence[str]) -> list[float]:
    values: list[float] = []
    for name in names:
        if name not in record:
            raise BadRecord(f"no {shown(name)} in it.")
        value = record[name]
        if value == []:
            raise BadRecord(f"{shown(name)} is an empty list; expected at least one number.")
        values.extend(_value(name, item) for item in (value if isinstance(value, list) else [value]))
    return values


def _value(name: str, value: object) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadRecord(f"{shown(name)} is {shown(value)}; expected a number, or null if it is missing.")
    try:
        return _finite(name, float(value))
    except OverflowError as error:
        raise BadRecord(f"{shown(name)} is too large a number.") from error


def _finite(name: str, value: float) -> float:
    if math.isinf(value):
        raise BadRecord(f"{shown(name)} is infinite; expected a finite number, or none if it is missing.")
    return value
