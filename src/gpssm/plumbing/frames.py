"""Tables with names and times, read without importing the library that made them.

A pandas DataFrame or Series can only be handed in by somebody who has imported pandas, and so for polars; other tables
speak the `__dataframe__` interchange protocol, whose buffers are read here. All become numbers (rows, columns), NaN
where one is missing, the names of the columns, and the times of the rows if the table has an index.
"""

import ctypes
import sys
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from gpssm.errors import InvalidInput
from gpssm.plumbing.times import Times

NDArray = np.ndarray

_JITTER = 0.02
"""Of a step: times that were rounded when they were written are regular."""
_COUNT_ONLY = "frame.reset_index(drop=True) forgets the times"


class Table(NamedTuple):
    """Numbers (rows, columns), with names and times where they are known."""

    values: NDArray
    names: tuple[str, ...] = ()
    times: Times | None = None
    """Of the index, also of one that only counts rows from 0. The step of a single row is 0 if it is not known."""


def is_frame(value: Any) -> bool:
    """Whether it is a table, or a column of one, of pandas, polars or anything with `__dataframe__`, or a `Table`."""
    return (
        isinstance(value, Table)
        or _is_of("pandas", value)
        or _is_of("polars", value)
        or hasattr(type(value), "__dataframe__")
    )


def read_frame(argument: str, frame: Any) -> Table:
    """The numbers, names and times of a table; `argument` is what errors call it.

    Names that only count columns, as pandas gives them to an array, are none.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"flow": [1.0, None], "open": [True, False]}, index=pd.date_range("2024", periods=2))
    >>> table = read_frame("outputs", frame)
    >>> table.names, table.values.tolist(), table.times.text(2)
    (('flow', 'open'), [[1.0, 1.0], [nan, 0.0]], ['2024-01-01', '2024-01-02'])
    """
    if isinstance(frame, Table):
        return frame
    if _is_of("pandas", frame):
        return _read_pandas(argument, frame)
    if _is_of("polars", frame):
        columns = [frame] if isinstance(frame, sys.modules["polars"].Series) else frame.get_columns()
        read = [_polars_column(argument, column) for column in columns]
        return _table(argument, [column.name for column in columns], read, len(frame))
    source = frame.__dataframe__()
    names = list(source.column_names())
    read = [_column(argument, name, source.get_column_by_name(name)) for name in names]
    return _table(argument, names, read, source.num_rows())


def to_pandas(columns: dict[str, NDArray], rows: int, times: Times | None, count: str) -> Any:
    """A pandas DataFrame of columns (rows,), by time; without times its index counts from 1 and is called `count`."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "to_dataframe needs pandas; run pip install 'gpssm[pandas]'.", name="pandas"
        ) from None
    if times is None:
        index = pandas.RangeIndex(1, rows + 1, name=count)
    elif times.dated:
        step = pandas.Timedelta(int(times.step), "ns")
        index = pandas.date_range(times.values(1)[0], periods=rows, freq=step, name=times.name, unit="ns")
        index = index.tz_localize("UTC" if times.zone == "Z" else times.zone) if times.zone else index
    else:
        index = pandas.Index(times.values(rows), name=times.name)
    return pandas.DataFrame(columns, index=index)


def _is_of(library: str, value: Any) -> bool:
    module = sys.modules.get(library)
    kinds = (getattr(module, "DataFrame", ()), getattr(module, "Series", ()))
    return module is not None and isinstance(value, kinds)


def _table(argument: str, names: list[Any], columns: list[NDArray], rows: int, times: Times | None = None) -> Table:
    labels = [str(name) for name in names]
    twice = next((name for i, name in enumerate(labels) if name in labels[:i]), None)
    if twice is not None:
        raise InvalidInput(f"{argument}: two columns are called {twice!r}; expected different names. Rename one.")
    unnamed = names == list(range(len(names))) or labels == [""]
    return Table(np.column_stack(columns) if columns else np.zeros((rows, 0)), () if unnamed else tuple(labels), times)


def _no_numbers(argument: str, name: Any, kind: Any) -> InvalidInput:
    return InvalidInput(
        f"{argument}: column {str(name)!r} holds {kind}; expected numbers. Drop it, or turn it into numbers first."
    )


def _read_pandas(argument: str, frame: Any) -> Table:
    pandas = sys.modules["pandas"]
    if isinstance(frame, pandas.Series):
        # Not `to_frame`: that calls a column without a name 0, as a table of numbered columns does.
        names, columns = [0 if frame.name is None else frame.name], [frame]
    else:
        names, columns = frame.columns.tolist(), [frame.iloc[:, i] for i in range(frame.shape[1])]
    read = []
    for name, column in zip(names, columns, strict=True):
        if isinstance(column.dtype, pandas.CategoricalDtype) or column.dtype.kind not in "biuf":
            raise _no_numbers(argument, name, column.dtype)
        read.append(column.to_numpy(dtype=float, na_value=np.nan))
    return _table(argument, names, read, len(frame), _index_times(argument, frame.index, pandas))


def _polars_column(argument: str, column: Any) -> NDArray:
    if not column.dtype.is_numeric() and str(column.dtype) != "Boolean":
        raise _no_numbers(argument, column.name, column.dtype)
    return column.cast(float).to_numpy()


# The interchange protocol: https://data-apis.org/dataframe-protocol/latest/API.html

_NUMBERS = {0: "i", 1: "u", 2: "f", 20: "u"}
"""The kinds of NumPy for those of columns; truth values are bits or bytes."""


def _column(argument: str, name: str, column: Any) -> NDArray:
    if int(column.dtype[0]) not in _NUMBERS:
        raise _no_numbers(argument, name, f"no numbers (kind {int(column.dtype[0])})")
    return np.concatenate([np.zeros(0), *map(_chunk, column.get_chunks())])


def _chunk(chunk: Any) -> NDArray:
    """One piece of a column, NaN where it says that a value is missing."""
    buffers, (how, mark) = chunk.get_buffers(), chunk.describe_null
    raw = _buffer(buffers["data"], chunk.offset, chunk.size())
    values = raw.astype(float)
    if how == 2:  # a value that stands for none
        values[raw == mark] = np.nan
    if how in (3, 4) and buffers["validity"] is not None:  # bits or bytes, which are `mark` where a value is missing
        values[_buffer(buffers["validity"], chunk.offset, chunk.size()).astype(bool) == bool(mark)] = np.nan
    return values


def _buffer(described: Any, offset: int, size: int) -> NDArray:
    """A copy of numbers in memory that somebody else owns."""
    buffer, (kind, bits, *_) = described
    if size == 0:
        return np.zeros(0)
    memory = np.frombuffer((ctypes.c_ubyte * buffer.bufsize).from_address(buffer.ptr), np.uint8)
    if bits == 1:
        return np.unpackbits(memory, count=offset + size, bitorder="little")[offset:]
    used = memory[offset * bits // 8 : (offset + size) * bits // 8]
    return used.view(f"{_NUMBERS[int(kind)]}{bits // 8}").copy()


def _index_times(argument: str, index: Any, pandas: Any) -> Times | None:
    name = "time" if index.name is None else str(index.name)
    step = None if getattr(index, "freq", None) is None else index.freq
    if isinstance(index, pandas.PeriodIndex):
        index = index.to_timestamp()
    if isinstance(index, pandas.DatetimeIndex):
        zone = ""
        if index.tz is not None:
            index, zone = _on_one_clock(index)
        values = index.as_unit("ns").asi8
        single = _nanoseconds(step, pandas) if len(index) == 1 else 0
        return _regular(argument, values, index, Times(0, single, True, "", zone, name))
    if isinstance(index, pandas.TimedeltaIndex):
        seconds = _nanoseconds(step, pandas) / 1e9 if len(index) == 1 else 0
        return _regular(argument, index.total_seconds().to_numpy(), index, Times(0, seconds, False, "s", "", name))
    if index.nlevels == 1 and index.dtype.kind in "iuf":
        counts = index.dtype.kind != "f"
        values = index.to_numpy(dtype=np.int64 if counts else float)
        return _regular(argument, values, index, Times(0, 1 if counts else 0, False, "", "", name))
    raise InvalidInput(
        f"{argument}: the index holds {'several levels' if index.nlevels > 1 else index.dtype}; expected times or "
        f"numbers, one for each row. pandas.to_datetime makes times of text; {_COUNT_ONLY}."
    )


def _nanoseconds(freq: Any, pandas: Any) -> int:
    """The step of a single row, from what pandas remembers of the rows around it; 0 of months, and of nothing."""
    try:
        return 0 if freq is None else int(pandas.Timedelta(freq).as_unit("ns").value)
    except ValueError:
        return 0


def _on_one_clock(index: Any) -> tuple[Any, str]:
    """Times as the user's clock showed them with its offset, if that was always the same; of UTC otherwise."""
    utc, local = index.tz_convert("UTC").tz_localize(None), index.tz_localize(None)
    offsets = set(local - utc)
    if len(offsets) == 1:
        minutes, rest = divmod(offsets.pop(), timedelta(minutes=1))
        if not rest:
            sign, size = "-" if minutes < 0 else "+", abs(int(minutes))
            return local, f"{sign}{size // 60:02}:{size % 60:02}" if minutes else "Z"
    return utc, "Z"


def _regular(argument: str, values: NDArray, index: Any, kind: Times) -> Times | None:
    """The times of an index, of which `kind` says what they are; refused unless they are regular."""
    if len(values) == 0:
        return None
    if index.hasnans:
        raise InvalidInput(f"{argument}: the index has no time in row {int(np.argmax(index.isna()))}; expected one.")
    start = values[0].item()
    if len(values) == 1:
        return kind._replace(start=start)
    steps = np.diff(values)
    if (steps <= 0).any():
        row = int(np.argmax(steps <= 0))
        order = index.is_unique
        problem = f"is not sorted: {index[row + 1]} comes after {index[row]}"
        problem = problem if order else f"has {index[index.duplicated()][0]} twice"
        use = "frame.sort_index()" if order else "frame[~frame.index.duplicated()]"
        raise InvalidInput(f"{argument}: the index {problem}; expected times in their order. Use {use}.")
    first_step = steps[0].item()
    step = first_step if (steps == first_step).all() else (values[-1] - values[0]).item() / len(steps)
    astray = np.abs((values - start) - step * np.arange(len(values))) > _JITTER * step
    if astray.any():
        usual = float(np.median(steps))
        row = int(np.argmax(np.abs(steps - usual)))
        use = "frame.asfreq(...) or frame.resample(...).mean()" if kind.dated or kind.unit else "frame.reindex(...)"
        raise InvalidInput(
            f"{argument}: the index is not regular: {index[row + 1]} follows {index[row]}; expected equal steps. "
            f"Use {use}; {_COUNT_ONLY}."
        )
    return kind._replace(start=start, step=round(step) if kind.dated else step)
