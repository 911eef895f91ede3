"""Recordings in CSV files, from text to arrays and back."""

import csv
import io
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import overload

import numpy as np

from gpssm.datasets.series import Series, SeriesList
from gpssm.datasets.tables import PathType, Table, check_used_once, find, find_all, listing, numbers, place, read_table
from gpssm.datasets.time_column import find_clock, read_clock
from gpssm.datasets.time_grid import Regular, Rows, regular
from gpssm.errors import DataWarning, InvalidInput
from gpssm.plumbing.atomic import write_atomically
from gpssm.plumbing.times import Times

logger = logging.getLogger(__name__)

NDArray = np.ndarray
Paths = list[str] | list[Path] | list[PathType] | tuple[PathType, ...]
Column = str | int
Columns = Column | Sequence[Column]
_SAID = 10  # recordings of which it is said what was changed


@overload
def from_csv(
    path: PathType,
    outputs: Columns,
    inputs: Columns = (),
    *,
    id: None = None,
    time: Columns | None = None,
    resample: str | None = None,
    na: Sequence[str] = (),
    delimiter: str | None = None,
) -> Series: ...


@overload
def from_csv(
    path: PathType,
    outputs: Columns,
    inputs: Columns = (),
    *,
    id: Column,
    time: Columns | None = None,
    resample: str | None = None,
    na: Sequence[str] = (),
    delimiter: str | None = None,
) -> SeriesList: ...


@overload
def from_csv(
    path: Paths,
    outputs: Columns,
    inputs: Columns = (),
    *,
    id: Column | None = None,
    time: Columns | None = None,
    resample: str | None = None,
    na: Sequence[str] = (),
    delimiter: str | None = None,
) -> SeriesList: ...


def from_csv(
    path: PathType | Paths,
    outputs: Columns,
    inputs: Columns = (),
    *,
    id: Column | None = None,
    time: Columns | None = None,
    resample: str | None = None,
    na: Sequence[str] = (),
    delimiter: str | None = None,
) -> Series | SeriesList:
    """Read a recording, or several, from CSV. Other columns than those named may hold anything.

    Samples are taken at regular intervals. If there is a column of times, rows are sorted by it, rows that are missing
    are filled in (NaN outputs, inputs as they were), and times that are not regular are refused; whatever is changed is
    said by a `DataWarning`.

    Args:
        path: a file; or a list of files with the same columns, each its own recording.
        outputs: a column, by name or by index from 0, or a list of them; none of a file that holds inputs alone, future
            ones for example. Empty cells, `-`, `?`, `NA`, `null`, `#N/A` and the like become NaN.
        inputs: likewise, for the control inputs; none by default.
        id: a column whose value tells several recordings in one file apart. Their rows may be interleaved.
        time: the column that says when samples were taken: dates, or numbers, whose unit may be in the name of the
            column, as in `time [s]`; two columns if the time of day has its own. By default the column that looks like
            it, if there is one; `"none"` counts samples, whatever the file says.
        resample: a step, of which the mean of the numbers in it becomes one sample: `"2s"`, `"5min"`; `"2s:last"` takes
            the last of them. Units are ns, us, ms, s, min, h and d; times that are numbers without a unit need none.
        na: further words that mean a missing value, as they are written in the file: `["-999"]`.
        delimiter: between cells; one character, or `"tab"` or `"space"` (any number of them). Found by itself.

    Returns:
        A `Series` with outputs (T, dy), inputs (T, dc) or None, and times if they are known; a `SeriesList` of several
        recordings.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     to_csv(f"{directory}/log.csv", {"valve": np.array([0.1, 0.2]), "level": np.array([1.5, np.nan])})
    ...     data = from_csv(f"{directory}/log.csv", outputs="level", inputs=["valve"])
    >>> data.outputs.tolist(), data.inputs.tolist(), data.output_names
    ([[1.5], [nan]], [[0.1], [0.2]], ('level',))

    Rows out of order, one of them missing:

    >>> import warnings
    >>> with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     rows = {"time [s]": np.array([0.0, 0.3, 0.1, 0.4]), "level": np.array([5.0, 8.0, 6.0, 9.0])}
    ...     to_csv(f"{directory}/log.csv", rows)
    ...     data = from_csv(f"{directory}/log.csv", outputs="level")
    >>> data.outputs[:, 0].tolist(), data.times.values(5).tolist(), data.times.unit
    ([5.0, 6.0, nan, 8.0, 9.0], [0.0, 0.1, 0.2, 0.3, 0.4], 's')
    """
    many = isinstance(path, (list, tuple))
    paths = path if isinstance(path, (list, tuple)) else [path]
    if not paths or not all(isinstance(item, (str, os.PathLike)) for item in paths):
        raise InvalidInput(f"path: expected a file or a list of files, got {path!r}.")
    tables = [read_table(item, delimiter, na) for item in paths]
    first = tables[0]
    for table in tables:
        if table.names != first.names:
            raise InvalidInput(
                f"path: {table.file!r} has the columns {listing(table.names)}, but {first.file!r} has "
                f"{listing(first.names)}; expected the same in every file."
            )
        if not table.rows:
            raise InvalidInput(f"path: {table.file!r} has column names and no rows; expected at least one.")
    output_columns, input_columns = find_all("outputs", outputs, first), find_all("inputs", inputs, first)
    if not output_columns and not input_columns:
        raise InvalidInput("outputs: no column; expected at least one.")
    id_columns = [] if id is None else [find("id", id, first)]
    used = {*output_columns, *input_columns, *id_columns}
    groups = [_recordings(table, id_columns) for table in tables]
    time_columns, notes = find_clock(first, time, used, list(groups[0].values()))
    logger.info("%s: times are in %s", first.file, listing([first.names[j] for j in time_columns]) or "no column")
    check_used_once(first, outputs=output_columns, inputs=input_columns, id=id_columns, time=time_columns)
    if resample is not None and not time_columns:
        raise InvalidInput(f"resample: got {resample!r}, but no column of times was found; expected its name as time.")

    said = {first.file: notes}
    ids: list[str] = []
    found: list[Regular] = []
    for table, recordings in zip(tables, groups, strict=True):
        y, c = numbers(table, output_columns), numbers(table, input_columns)
        clock = read_clock(table, time_columns) if time_columns else None
        said[table.file] = [*said.get(table.file, []), *([clock.note] if clock and clock.note else [])]
        for key, rows in recordings.items():
            ids.append(key if not many else f"{table.file}:{key}" if id_columns else table.file)
            if clock is None:
                found.append(Regular(y[rows], c[rows], None, []))
            else:
                samples = Rows(y[rows], c[rows], [table.lines[i] for i in rows], table.file)
                found.append(regular(clock._replace(values=clock.values[rows]), samples, resample))
                where = table.file if not id_columns else f"{table.file}: {key}"
                said[where] = [*said.get(where, []), *found[-1].notes]
    _say(said)
    _check_steps(ids, [recording.times for recording in found])
    output_names = tuple(first.names[j] for j in output_columns)
    input_names = tuple(first.names[j] for j in input_columns)
    cs = [recording.inputs for recording in found] if input_columns else None
    if many or id_columns:
        ys, times = [recording.outputs for recording in found], tuple(recording.times for recording in found)
        return SeriesList(ys, cs, tuple(ids), output_names, input_names, times if any(times) else ())
    return Series(found[0].outputs, None if cs is None else cs[0], None, output_names, input_names, found[0].times)


def _say(said: dict[str, list[str]]) -> None:
    """Notes by the recording that they are about, not of very many."""
    about = {where: notes for where, notes in said.items() if notes}
    lines = [f"{where}: {note}" for where, notes in islice(about.items(), _SAID) for note in notes]
    if len(about) > _SAID:
        lines.append(f"{len(about) - _SAID} more recordings were changed in such ways.")
    for line in lines:
        warnings.warn(line, DataWarning, stacklevel=3)


def _check_steps(ids: list[str], times: list[Times | None]) -> None:
    known = [(key, t) for key, t in zip(ids, times, strict=True) if t is not None]
    for key, t in known[1:]:
        if not t.same_step(known[0][1]):
            raise InvalidInput(
                f"time: {key!r} has a step of {t.step_text}, {known[0][0]!r} one of {known[0][1].step_text}; expected "
                "one step in all recordings: resample them, or fit them on their own."
            )


def columns(path: PathType) -> list[str]:
    """The names of the columns of the csv file at `path`; "0", "1", ... if it has none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     to_csv(f"{directory}/log.csv", {"valve": np.zeros(3), "level": np.ones(3)})
    ...     columns(f"{directory}/log.csv")
    ['valve', 'level']
    """
    return read_table(path).names


def to_csv(path: PathType, columns: Mapping[str, NDArray]) -> None:
    r"""Write vectors (T,) as the columns of a file: a row of names, then full precision, NaN as an empty cell.

    The file is whole or absent, whatever happens meanwhile.

    Args:
        path: of the file; one that is there is replaced.
        columns: the vectors (T,) by the names of their columns, in any unit.

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


def _recordings(table: Table, id_columns: list[int]) -> dict[str, list[int]]:
    """Rows of every recording, in order of first appearance."""
    if not id_columns:
        return {"": list(range(len(table.rows)))}
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(table.rows):
        groups.setdefault(row[id_columns[0]].strip(), []).append(i)
    if "" in groups:
        where = place(table, groups[""][0], id_columns[0])
        raise InvalidInput(f"id: {where} is empty; expected the id of a recording.")
    return groups


def csv_text(columns: Mapping[str, NDArray]) -> str:
    """What `to_csv` writes: a row of names, then full precision, NaN as an empty cell."""
    cells = [[None if value != value else value for value in np.asarray(c).tolist()] for c in columns.values()]
    body = io.StringIO()
    writer = csv.writer(body, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*cells, strict=True))
    return body.getvalue()
