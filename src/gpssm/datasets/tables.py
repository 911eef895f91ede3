"""The cells of a CSV file, as loggers and spreadsheets write them.

Found out by itself: the separator (tab, semicolon, comma, or runs of spaces where there is none of these), a decimal
comma (not in files separated by commas), the encoding (UTF-8, UTF-16 with a byte-order mark, Latin-1), and whether the
first row holds the names of the columns: it does if any cell of it is text. Lines before it that start with `#` are
skipped, and so are blank lines. A row of empty cells is kept: it is a sample of which everything is missing.
"""

import codecs
import csv
import io
import logging
import math
import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpssm.errors import InvalidInput
from gpssm.plumbing.validation import shown

logger = logging.getLogger(__name__)

NDArray = np.ndarray
PathType = str | os.PathLike[str]

MISSING = frozenset(("", "-", "--", "?", "nan", "na", "n/a", "#n/a", "#na", "<na>", "null", "none"))
"""Cells that mean "missing", in any case."""

SPACES = " "
"""The separator that stands for one or several of them."""
_SEPARATORS = "\t;,"  # in the order they are tried: a decimal comma must not pass for a separator
_WORDS = {"tab": "\t", "\\t": "\t", "space": SPACES}  # what cannot be typed, or seen
_SHOWN = 20  # column names listed in an error
_DIGITS = 9  # of the index of a column; Python refuses to read thousands of them


class Table(NamedTuple):
    """The cells of a file, all rows of one width."""

    file: str
    names: list[str]
    header: list[str]  # cells of the first row, if it holds the names
    rows: list[list[str]]
    lines: list[int]  # where each row is in the file, from 1
    decimal_comma: bool
    na: frozenset[str] = frozenset()  # words that mean "missing" beside MISSING, in lower case


def _text(path: PathType) -> str:
    source = Path(path)
    if source.is_dir():
        raise IsADirectoryError(f"path: {str(source)!r} is a directory; expected a CSV file.")
    if not source.exists():
        raise FileNotFoundError(f"path: there is no file {str(source)!r}.")
    data = source.read_bytes()
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if re.search(r"[\x00-\x08]", text):
        raise InvalidInput(f"path: {str(source)!r} is not a text file; expected CSV.")
    return text


def read_table(path: PathType, delimiter: str | None = None, na: Sequence[str] = ()) -> Table:
    """The cells of a file; `delimiter` and `na` as those of `from_csv`."""
    file, chosen, words = str(path), _chosen(delimiter), _na_words(na)
    # Not splitlines: it would also cut at characters that may stand within a cell.
    lines = [line if line.strip(" \r\n") else "\n" for line in io.StringIO(_text(path), newline="")]
    start = next((i for i, line in enumerate(lines) if line != "\n" and not line.startswith("#")), len(lines))
    sample = list(islice((line for line in lines[start:] if line != "\n"), 10))
    if not sample:
        raise InvalidInput(f"path: {file!r} is empty; expected rows of numbers.")
    rows: list[list[str]] = []
    numbers: list[int] = []
    try:
        separator = chosen or separator_of(sample)
        # Strict, or a quotation mark that is never closed would swallow the rest of the file.
        reader = csv_reader(lines[start:], separator, strict=True)
        for row in reader:
            if row:
                rows.append(row)
                numbers.append(start + reader.line_num)
    except csv.Error as error:
        line = (numbers[-1] if numbers else start) + 1
        raise InvalidInput(f"path: {file!r} line {line} cannot be read as CSV ({error}); check its quotes.") from error
    width = len(rows[0])
    for row, number in zip(rows, numbers, strict=True):
        if len(row) != width:
            raise InvalidInput(
                f"path: {file!r} line {number} has {len(row)} cell(s), line {numbers[0]} has {width}; "
                "expected the same number in every row."
            )
    empty = without_rows(file, rows[0], separator, words)
    first = 1 if empty.header else 0
    names = f"names {listing(empty.names)}" if first else "no names of columns"
    logger.info("%s: %d rows of %d cells, separator %r, %s", file, len(rows) - first, width, separator, names)
    return empty._replace(rows=rows[first:], lines=numbers[first:])


def separator_of(sample: list[str]) -> str:
    """The separator that cuts every line of `sample` into the same number of cells, or else one in the first line.

    Spaces are one only where there is no other, and where several lines, or numbers, say that it is not within a name.
    """
    for separator in _SEPARATORS:
        if _width(sample, separator) > 1:
            return separator
    if not any(separator in line for line in sample for separator in _SEPARATORS) and _width(sample, SPACES) > 1:
        words = sample[0].split()
        if len(sample) > 1 or all(number_in(word, decimal_comma=False) is not None for word in words):
            return SPACES
    return next((separator for separator in _SEPARATORS if separator in sample[0]), ",")


def csv_reader(lines: Iterable[str], separator: str, strict: bool = False) -> Any:
    """The rows of lines, also where any number of spaces separates."""
    if separator == SPACES:
        # Not left to `skipinitialspace`, which newer versions of Python refuse beside this separator.
        lines = (re.sub(r"[ \t]+", " ", line.strip(" \t\r\n")) for line in lines)
        return csv.reader(lines, delimiter=separator, strict=strict)
    return csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=strict)


def _width(sample: list[str], separator: str) -> int:
    """The number of cells in every line; 0 if they differ."""
    try:
        widths = {len(row) for row in csv_reader(sample, separator)}
    except csv.Error:  # no separator at all, or the reader of all lines will say what is wrong
        return 0
    return widths.pop() if len(widths) == 1 else 0


def _chosen(delimiter: str | None) -> str | None:
    """The separator that a user wants."""
    if delimiter is None:
        return None
    found = _WORDS.get(delimiter, delimiter) if isinstance(delimiter, str) else ""
    if len(found) != 1 or found in '"\r\n\0':
        raise InvalidInput(f"delimiter: expected one character, or tab or space, got {shown(delimiter)}.")
    return found


def _na_words(na: Sequence[str]) -> frozenset[str]:
    words = [na] if isinstance(na, str) else na
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise InvalidInput(f"na: expected words that mean a missing value, as texts, got {shown(na)}.")
    return frozenset(word.strip().lower() for word in words)


def find_all(argument: str, wanted: Any, table: Table) -> list[int]:
    """Indices of the columns that `wanted`, a name, an index or several of them, selects; `argument` is for errors."""
    single = isinstance(wanted, (str, int, np.integer))
    if not single and not isinstance(wanted, (Sequence, np.ndarray)):
        raise InvalidInput(f"{argument}: expected a column or a list of columns, got {wanted!r}.")
    return [find(argument, item, table) for item in ([wanted] if single else wanted)]


def find(argument: str, wanted: Any, table: Table) -> int:
    """Index of a column by its name or index; a number in a text is an index unless a column has it for its name."""
    if isinstance(wanted, bool) or not isinstance(wanted, (str, int, np.integer)):
        raise InvalidInput(f"{argument}: expected the name of a column or its index, got {wanted!r}.")
    if isinstance(wanted, str):
        name = wanted.strip()
        found = [j for j, other in enumerate(table.names) if other == name]
        if len(found) > 1:
            several = f"{len(found)} columns {name!r}, {listing(found)}"
            raise InvalidInput(f"{argument}: {table.file!r} has {several}; give the index instead.")
        if found:
            return found[0]
        index = int(name) if name.isdecimal() and len(name) <= _DIGITS else -1
    else:
        index = int(wanted)
    if not 0 <= index < len(table.names):
        raise InvalidInput(f"{argument}: no column {shown(wanted)} in {table.file!r}; it has {listing(table.names)}.")
    # Asked for by index, a column with a number for its name is the first sample of a file without names.
    value = number_in(table.header[index], table.decimal_comma, table.na) if table.header else None
    if value is not None and not math.isnan(value):
        raise InvalidInput(
            f"{argument}: the first row of {table.file!r} has text and so would be names, but column {index} of it is "
            f"{table.header[index]}; add a row of names, or ask for {table.header[index]!r} if that is one."
        )
    return index


def check_used_once(table: Table, **used: Sequence[int]) -> None:
    """Refuse a column that is used twice: indices by the argument that they were given as."""
    seen: dict[int, str] = {}
    for argument, columns in used.items():
        for j in columns:
            if j in seen:
                raise InvalidInput(
                    f"{argument}: column {table.names[j]!r} is already in {seen[j]}; expected every column once."
                )
            seen[j] = argument


def numbers(table: Table, used: Sequence[int]) -> NDArray:
    """The numbers (T, n) in columns, by their indices; NaN where one is missing."""
    result = np.empty((len(table.rows), len(used)))
    for k, j in enumerate(used):
        cells = [row[j].strip() for row in table.rows]
        values = numbers_in(cells, table)
        for i, value in enumerate(values):
            if value is None or math.isinf(value):
                wrong = "is not a number" if value is None else "is infinite"
                raise InvalidInput(
                    f"path: {place(table, i, j)}: {cells[i][:60]!r} {wrong}; "
                    "expected a finite number, or an empty cell if it is missing."
                )
        result[:, k] = values
    return result


def numbers_in(cells: list[str], table: Table) -> list[float | None]:
    """What `number_in` finds in the cells of one column."""
    # Beside decimal points a comma would separate thousands, or be a mistake: it is not guessed.
    comma = table.decimal_comma and not any("." in cell for cell in cells)
    return [number_in(cell, comma, table.na) for cell in cells]


def place(table: Table, row: int, column: int) -> str:
    """Where a cell is, for errors."""
    return f"{table.file!r} line {table.lines[row]}, column {table.names[column]!r}"


def without_rows(file: str, first: list[str], separator: str, na: frozenset[str] = frozenset()) -> Table:
    """A table whose `first` row holds names if any cell of it is text, and is not counted among its rows otherwise."""
    decimal_comma = separator != ","
    header = [cell.strip() for cell in first]
    if all(number_in(cell, decimal_comma, na) is not None for cell in header):
        return Table(file, [str(j) for j in range(len(header))], [], [], [], decimal_comma, na)
    return Table(file, [cell or str(j) for j, cell in enumerate(header)], header, [], [], decimal_comma, na)


def number_in(cell: str, decimal_comma: bool, na: frozenset[str] = frozenset()) -> float | None:
    """The number in a stripped cell, NaN if it is missing, None if it is text; words in `na` mean missing, too."""
    if na and cell.lower() in na:  # before it is read: -999 may be one of them
        return math.nan
    if decimal_comma:
        cell = cell.replace(",", ".", 1)
    try:
        return None if "_" in cell else float(cell)  # Python reads 20_1 as 201
    except ValueError:
        return math.nan if cell.lower() in MISSING else None


def listing(names: Sequence[object]) -> str:
    """Names for an error, not all of very many."""
    return ", ".join(map(shown, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
