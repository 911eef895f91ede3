"""Recordings in CSV files, as loggers and spreadsheets write them.

Found out by itself: the separator (tab, semicolon or comma), a decimal comma (not in files separated by
commas), the encoding (UTF-8, UTF-16 with a byte-order mark, Latin-1), and whether the first row holds the
names of the columns: it does if any cell of it is text. Lines before it that start with `#` are skipped, and so
are blank lines. A row of empty cells is kept: it is a sample of which everything is missing.
"""

import codecs
import csv
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from gpssm.datasets.series import Series, SeriesList
from gpssm.errors import InvalidInput
from gpssm.plumbing.atomic import write_atomically
from gpssm.plumbing.validation import shown

NDArray = np.ndarray
PathType = str | os.PathLike[str]
Paths = list[str] | list[Path] | list[PathType] | tuple[PathType, ...]
Column = str | int
Columns = Column | Sequence[Column]

# Cells that mean "missing", in any case. A dash is not among them: in many tables it means zero.
MISSING = ("", "nan", "na", "n/a", "null", "none")

_SEPARATORS = "\t;,"  # in the order they are tried: a decimal comma must not pass for a separator
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


@overload
def from_csv(path: PathType, outputs: Columns, inputs: Columns = (), *, id: None = None) -> Series: ...


@overload
def from_csv(path: PathType, outputs: Columns, inputs: Columns = (), *, id: Column) -> SeriesList: ...


@overload
def from_csv(path: Paths, outputs: Columns, inputs: Columns = (), *, id: Column | None = None) -> SeriesList: ...


def from_csv(
    path: PathType | Paths, outputs: Columns, inputs: Columns = (), *, id: Column | None = None
) -> Series | SeriesList:
    """Read a recording, or several, from CSV. Other columns than those named may hold anything.

    Args:
        path: a file; or a list of files with the same columns, each its own recording.
        outputs: a column, by name or by index from 0, or a list of them. Empty cells and `MISSING` become NaN.
        inputs: likewise, for the control inputs; none by default.
        id: a column whose value tells several recordings in one file apart. Their rows may be interleaved.

    Returns:
        A `Series` with outputs (T, dy) and inputs (T, dc) or None; a `SeriesList` of several recordings.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     to_csv(f"{directory}/log.csv", {"valve": np.array([0.1, 0.2]), "level": np.array([1.5, np.nan])})
    ...     data = from_csv(f"{directory}/log.csv", outputs="level", inputs=["valve"])
    >>> data.outputs.tolist(), data.inputs.tolist(), data.output_names
    ([[1.5], [nan]], [[0.1], [0.2]], ('level',))
    """
    many = isinstance(path, (list, tuple))
    paths = path if isinstance(path, (list, tuple)) else [path]
    if not paths or not all(isinstance(item, (str, os.PathLike)) for item in paths):
        raise InvalidInput(f"path: expected a file or a list of files, got {path!r}.")
    tables = [_read(item) for item in paths]
    first = tables[0]
    for table in tables:
        if table.names != first.names:
            raise InvalidInput(
                f"path: {table.file!r} has the columns {_listing(table.names)}, but {first.file!r} has "
                f"{_listing(first.names)}; expected the same in every file."
            )
        if not table.rows:
            raise InvalidInput(f"path: {table.file!r} has column names and no rows; expected at least one.")
    output_columns = find_all("outputs", outputs, first)
    if not output_columns:
        raise InvalidInput("outputs: no column; expected at least one.")
    input_columns = find_all("inputs", inputs, first)
    id_column = None if id is None else _find("id", id, first)
    check_used_once(first, output_columns, input_columns, [] if id_column is None else [id_column])

    ids: list[str] = []
    ys: list[NDArray] = []
    cs: list[NDArray] = []
    for table in tables:
        y, c = _numbers(table, output_columns), _numbers(table, input_columns)
        for key, rows in _recordings(table, id_column).items():
            ids.append(key if not many else f"{table.file}:{key}" if id_column is not None else table.file)
            ys.append(y[rows])
            cs.append(c[rows])
    output_names = tuple(first.names[j] for j in output_columns)
    input_names = tuple(first.names[j] for j in input_columns)
    if many or id_column is not None:
        return SeriesList(ys, cs if input_columns else None, tuple(ids), output_names, input_names)
    return Series(ys[0], cs[0] if input_columns else None, None, output_names, input_names)


def columns(path: PathType) -> list[str]:
    """The names of a file's columns; "0", "1", ... if it has none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     to_csv(f"{directory}/log.csv", {"valve": np.zeros(3), "level": np.ones(3)})
    ...     columns(f"{directory}/log.csv")
    ['valve', 'level']
    """
    return _read(path).names


def to_csv(path: PathType, columns: Mapping[str, NDArray]) -> None:
    r"""Write vectors (T,) as the columns of a file: a row of names, then full precision, NaN as an empty cell.

    The file is whole or absent, whatever happens meanwhile.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     to_csv(f"{directory}/log.csv", {"t": np.arange(2), "level": np.array([1.5, np.nan])})
    ...     Path(f"{directory}/log.csv").read_text()
    't,level\n0,1.5\n1,\n'
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path: the directory {str(target.parent)!r} does not exist; create it first.")
    shapes = {name: np.shape(column) for name, column in columns.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise InvalidInput(f"columns: shapes {shapes}; expected vectors of one length.")
    write_atomically(target, csv_text(columns).encode())


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


def _read(path: PathType) -> Table:
    file = str(path)
    # Not splitlines: it would also cut at characters that may stand within a cell.
    lines = [line if line.strip(" \r\n") else "\n" for line in io.StringIO(_text(path), newline="")]
    start = next((i for i, line in enumerate(lines) if line != "\n" and not line.startswith("#")), len(lines))
    sample = list(islice((line for line in lines[start:] if line != "\n"), 10))
    if not sample:
        raise InvalidInput(f"path: {file!r} is empty; expected rows of numbers.")
    rows: list[list[str]] = []
    numbers: list[int] = []
    try:
        separator = separator_of(sample)
        # Strict, or a quotation mark that is never closed would swallow the rest of the file.
        reader = csv.reader(lines[start:], delimiter=separator, skipinitialspace=True, strict=True)
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
    empty = without_rows(file, rows[0], separator)
    first = 1 if empty.header else 0
    return empty._replace(rows=rows[first:], lines=numbers[first:])


def separator_of(sample: list[str]) -> str:
    """The separator that cuts every line of `sample` into the same number of cells, or else one in the first line."""
    for separator in _SEPARATORS:
        try:
            widths = {len(row) for row in csv.reader(sample, delimiter=separator, skipinitialspace=True)}
        except csv.Error:  # no separator at all, or the reader of all lines will say what is wrong
            continue
        if len(widths) == 1 and widths != {1}:
            return separator
    return next((separator for separator in _SEPARATORS if separator in sample[0]), ",")


def find_all(argument: str, wanted: Any, table: Table) -> list[int]:
    """Indices of the columns that `wanted`, a name, an index or several of them, selects; `argument` is for errors."""
    single = isinstance(wanted, (str, int, np.integer))
    if not single and not isinstance(wanted, (Sequence, np.ndarray)):
        raise InvalidInput(f"{argument}: expected a column or a list of columns, got {wanted!r}.")
    return [_find(argument, item, table) for item in ([wanted] if single else wanted)]


def _find(argument: str, wanted: Any, table: Table) -> int:
    """Index of a column by its name or index; a number in a text is an index unless a column has it for its name."""
    if isinstance(wanted, bool) or not isinstance(wanted, (str, int, np.integer)):
        raise InvalidInput(f"{argument}: expected the name of a column or its index, got {wanted!r}.")
    if isinstance(wanted, str):
        name = wanted.strip()
        found = [j for j, other in enumerate(table.names) if other == name]
        if len(found) > 1:
            several = f"{len(found)} columns {name!r}, {_listing(found)}"
            raise InvalidInput(f"{argument}: {table.file!r} has {several}; give the index instead.")
        if found:
            return found[0]
        index = int(name) if name.isdecimal() and len(name) <= _DIGITS else -1
    else:
        index = int(wanted)
    if not 0 <= index < len(table.names):
        raise InvalidInput(f"{argument}: no column {shown(wanted)} in {table.file!r}; it has {_listing(table.names)}.")
    # Asked for by index, a column with a number for its name is the first sample of a file without names.
    value = number_in(table.header[index], table.decimal_comma) if table.header else None
    if value is not None and not math.isnan(value):
        raise InvalidInput(
            f"{argument}: the first row of {table.file!r} has text and so would be names, but column {index} of it is "
            f"{table.header[index]}; add a row of names, or ask for {table.header[index]!r} if that is one."
        )
    return index


def check_used_once(table: Table, outputs: list[int], inputs: list[int], ids: list[int]) -> None:
    """Refuse a column, by its index, that is used twice."""
    seen: dict[int, str] = {}
    for argument, used in (("outputs", outputs), ("inputs", inputs), ("id", ids)):
        for j in used:
            if j in seen:
                raise InvalidInput(
                    f"{argument}: column {table.names[j]!r} is already in {seen[j]}; expected every column once."
                )
            seen[j] = argument


def _recordings(table: Table, id_column: int | None) -> dict[str, list[int]]:
    """Rows of every recording, in order of first appearance."""
    if id_column is None:
        return {"": list(range(len(table.rows)))}
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(table.rows):
        groups.setdefault(row[id_column].strip(), []).append(i)
    if "" in groups:
        line, name = table.lines[groups[""][0]], table.names[id_column]
        raise InvalidInput(f"id: {table.file!r} line {line}, column {name!r} is empty; expected the id of a recording.")
    return groups


def _numbers(table: Table, used: list[int]) -> NDArray:
    result = np.empty((len(table.rows), len(used)))
    for k, j in enumerate(used):
        cells = [row[j].strip() for row in table.rows]
        # Beside decimal points a comma would separate thousands, or be a mistake: it is not guessed.
        comma = table.decimal_comma and not any("." in cell for cell in cells)
        values = [number_in(cell, comma) for cell in cells]
        for i, value in enumerate(values):
            if value is None or math.isinf(value):
                place = f"{table.file!r} line {table.lines[i]}, column {table.names[j]!r}"
                wrong = "is not a number" if value is None else "is infinite"
                raise InvalidInput(
                    f"path: {place}: {cells[i][:60]!r} {wrong}; "
                    "expected a finite number, or an empty cell if it is missing."
                )
        result[:, k] = values
    return result


def without_rows(file: str, first: list[str], separator: str) -> Table:
    """A table whose `first` row holds names if any cell of it is text, and is not counted among its rows otherwise."""
    decimal_comma = separator != ","
    header = [cell.strip() for cell in first]
    if all(number_in(cell, decimal_comma) is not None for cell in header):
        return Table(file, [str(j) for j in range(len(header))], [], [], [], decimal_comma)
    return Table(file, [cell or str(j) for j, cell in enumerate(header)], header, [], [], decimal_comma)


def csv_text(columns: Mapping[str, NDArray]) -> str:
    """What `to_csv` writes: a row of names, then full precision, NaN as an empty cell."""
    cells = [[None if value != value else value for value in np.asarray(c).tolist()] for c in columns.values()]
    body = io.StringIO()
    writer = csv.writer(body, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*cells, strict=True))
    return body.getvalue()


def number_in(cell: str, decimal_comma: bool) -> float | None:
    """The number in a stripped cell, NaN if it is missing, None if it is text."""
    if decimal_comma:
        cell = cell.replace(",", ".", 1)
    try:
        return None if "_" in cell else float(cell)  # Python reads 20_1 as 201
    except ValueError:
        return math.nan if cell.lower() in MISSING else None


def _listing(names: Sequence[object]) -> str:
    return ", ".join(map(shown, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
