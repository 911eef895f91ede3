"""Checks of what a user hands in. Each failure is one sentence: argument, what it was, what is expected."""

import reprlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpssm.errors import InvalidInput
from gpssm.plumbing import guards
from gpssm.plumbing.frames import Table, is_frame, read_frame
from gpssm.plumbing.guards import CONSTANT
from gpssm.plumbing.times import Times

NDArray = np.ndarray
# A variance, or one for every channel.
VariancesLike = float | NDArray | list[float] | tuple[float, ...]

_SHOWN = 60  # characters of a bad value that are repeated in its error
# Not `repr`: it follows a list as deep as that goes, and spells out what is then cut off.
_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxlist, _brief.maxdict = 4, 20, 20
_brief.maxstring = _brief.maxlong = _brief.maxother = 4 * _SHOWN


def real(name: str, value: Any, expected: str, hint: str = "") -> NDArray:
    """`value` as an array of floats of its shape, NaN where it is masked; an error says what was `expected`."""
    try:
        if np.ma.isMaskedArray(value):
            return np.ma.filled(value.astype(float), np.nan)
        array = np.asarray(value)
        if array.dtype.kind in "cmM":  # NumPy would forget half of a complex number, and take a date for a number
            raise TypeError(f"expected real numbers, got {array.dtype}")
        return array.astype(float)
    except (TypeError, ValueError, OverflowError) as error:  # the last of a whole number that no float can hold
        raise InvalidInput(f"{name}: expected {expected}, got {type(value).__name__} {shown(value)}{hint}.") from error


def matrix(name: str, value: Any, columns: int | None = None) -> NDArray:
    """`value` as a float array (rows, columns), NaN where one is missing; a vector becomes one column."""
    hint = "; several recordings go in as a list of arrays" if isinstance(value, list) else ""
    array = real(name, value, "numbers", hint)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InvalidInput(f"{name}: expected an array (time, channels), got shape {array.shape}.")
    if columns is not None and array.shape[1] != columns:
        turned = f"; pass {name}.T" if array.shape[0] == columns else ""
        raise InvalidInput(f"{name}: expected {columns} column(s), got shape {array.shape}{turned}.")
    if np.isinf(array).any():
        row, column = np.argwhere(np.isinf(array))[0]
        raise InvalidInput(f"{name}: infinite value at row {row}, column {column}; use NaN for a missing sample.")
    return array


def is_sequence_list(value: Any) -> bool:
    """True for a list of recordings: tables, arrays (T_i, channels), or vectors that cannot be rows of one matrix.

    Many short vectors of one length are rows collected in a loop; a few long ones, or vectors of
    different lengths, are recordings.
    """
    if not isinstance(value, (list, tuple)) or not value or is_frame(value):
        return False
    if any(map(is_frame, value)):
        return True
    if not all(isinstance(item, np.ndarray) for item in value):
        return all(isinstance(item, (list, tuple)) and item and _is_vector(item[0]) for item in value)
    if any(item.ndim != 1 for item in value):
        return all(item.ndim > 0 for item in value)
    lengths = {len(item) for item in value}
    return len(lengths) > 1 or len(value) < min(lengths)


def _is_vector(value: Any) -> bool:
    try:
        return np.ndim(value) == 1
    except ValueError:  # lists of different lengths
        return False


class TrainingData(NamedTuple):
    """Recordings to learn from: outputs (T_i, dy), inputs (T_i, dc), their names, and when the last ended."""

    outputs: list[NDArray]
    inputs: list[NDArray]
    output_names: tuple[str, ...]
    input_names: tuple[str, ...]
    end: Times | None
    """Of the last sample of the last recording, if it is known."""

    def labels(self, rows: int) -> tuple[tuple[str, ...], tuple[str, ...], Times | None]:
        """Names, and when the last recording ended if only so many of its samples are learned from."""
        end = None if self.end is None else self.end.later(rows - len(self.outputs[-1]))
        return self.output_names, self.input_names, end


def training_data(outputs: Any, inputs: Any) -> TrainingData:
    """Checked recordings, of one or a list of them; arrays, or tables with names and times (`plumbing.frames`).

    Rows of inputs are those at the times of the outputs, if both have times. Warns of what looks wrong.
    """
    if hasattr(outputs, "tables"):  # a recording, or several, with everything that belongs to it
        if inputs is not None:
            raise InvalidInput("inputs: given beside a recording that has its own; expected outputs alone, or both.")
        outputs, inputs = outputs.tables()
    many = is_sequence_list(outputs)
    y_tables = _sequences("outputs", outputs if many else [outputs], many)
    if inputs is None:
        c_tables = [Table(np.zeros((len(y.values), 0))) for y in y_tables]
    else:
        if many != is_sequence_list(inputs):
            raise InvalidInput("inputs: expected a list of as many sequences as outputs has, or an array for an array.")
        c_tables = _sequences("inputs", inputs if many else [inputs], many)
    if len(c_tables) != len(y_tables):
        raise InvalidInput(
            f"inputs: got {len(c_tables)} sequences, outputs has {len(y_tables)}; expected one for each."
        )
    ys, cs = [y.values for y in y_tables], []
    for i, (y, c) in enumerate(zip(y_tables, c_tables, strict=True)):
        suffix = f"[{i}]" if many else ""
        if len(y.values) < 2:
            raise InvalidInput(f"outputs{suffix}: {len(y.values)} sample(s); expected at least 2.")
        cs.append(_rows_at(f"inputs{suffix}", c, y.times, len(y.values), f"outputs{suffix}"))
    rows, labels = np.concatenate(ys), y_tables[0].names
    for channel in range(rows.shape[1]):
        shown_as = repr(labels[channel]) if labels else str(channel)
        seen = rows[~np.isnan(rows[:, channel]), channel]
        if seen.size == 0:
            raise InvalidInput(f"outputs: channel {shown_as} is NaN throughout; expected at least two values. Drop it.")
        if np.ptp(seen) <= CONSTANT * np.max(np.abs(seen)):
            raise InvalidInput(
                f"outputs: channel {shown_as} is constant ({seen[0]:g}); expected a signal that varies. Drop it."
            )
    end, output_names = _end(y_tables), labels or numbered("outputs", rows.shape[1])
    input_names = c_tables[0].names or numbered("inputs", cs[0].shape[1])
    wrong = guards.outliers("outputs", output_names, ys) + guards.outliers("inputs", input_names, cs)
    guards.report(wrong + guards.still_inputs(input_names, cs))
    return TrainingData(ys, cs, output_names, input_names, end)


class Known(NamedTuple):
    """What a fitted model knows of the recordings that it was learned from."""

    output_dim: int
    input_dim: int
    output_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()
    times: Times | None = None


class Recording(NamedTuple):
    """Outputs (T, dy) and inputs (T, dc), and when they were taken, if it is known."""

    outputs: NDArray
    inputs: NDArray
    times: Times | None


def series(outputs: Any, inputs: Any, known: Known, expected: Times | None = None) -> Recording:
    """A checked recording for a model that has already been fitted; `expected` are its times, if they are known.

    Columns of tables are those of the model, in its order.
    """
    if hasattr(outputs, "tables") and inputs is None:  # a recording with everything that belongs to it
        outputs, inputs = outputs.tables()
    y = _of_model("outputs", outputs, known.output_dim, known.output_names)
    if len(y.values) < 1:
        raise InvalidInput("outputs: 0 samples; expected at least 1.")
    times = y.times
    if times is not None and times.plain and not (known.times is not None and known.times.counts):
        times = None
    if times is not None and known.times is not None and not known.times.same_clock(times):
        raise InvalidInput(
            f"outputs: the index goes {times.described()}, that of the training data {known.times.described()}; "
            "expected the same kind and step. Use frame.resample(...).mean()."
        )
    if times is not None and times.step == 0:
        times = None if known.times is None else times._replace(step=known.times.step)
    if times is not None and expected is not None and expected.rows_until(times) != 0:
        raise InvalidInput(
            f"outputs: the index goes {times.described()}; expected {expected.text(1)[0]} first, "
            "the sample after the last that the state has seen."
        )
    if y.times is None or not is_frame(inputs):
        c = model_inputs(inputs, len(y.values), known, expected)
    else:
        given = _of_model("inputs", inputs, known.input_dim, known.input_names)
        c = _rows_at("inputs", given, y.times, len(y.values), "outputs")
    return Recording(y.values, c, expected if times is None else times)


def model_inputs(inputs: Any, length: int, known: Known, expected: Times | None = None) -> NDArray:
    """Checked control inputs (length, input_dim); None stands for those of a model without inputs.

    Of a table with times the rows from the first `expected` time on, if that is known.
    """
    if inputs is None:
        if known.input_dim:
            raise InvalidInput(
                f"inputs: missing; the model was fitted with {known.input_dim} input(s), "
                f"expected ({length}, {known.input_dim})."
            )
        return np.zeros((length, 0))
    c = _of_model("inputs", inputs, known.input_dim, known.input_names)
    if c.times is not None and expected is not None and c.times.plain and not expected.counts:
        expected = None
    return _rows_at("inputs", c, expected, length)


def _of_model(name: str, value: Any, columns: int, names: tuple[str, ...]) -> Table:
    """A recording with the columns that a model has, in its order."""
    if name == "inputs" and columns == 0:
        raise InvalidInput("inputs: the model was fitted without inputs; expected None.")
    table = _table(name, value)
    if table.names and len(set(names)) == columns:
        if set(table.names) == set(names):
            table = _in_order(table, names)
        elif names != numbered(name, columns):  # a model that was fitted to arrays does not know any
            raise InvalidInput(
                f"{name}: the columns are {', '.join(table.names)}; expected those of the model: {', '.join(names)}."
            )
    return table._replace(values=matrix(name, table.values, columns))


def numbered(argument: str, count: int) -> tuple[str, ...]:
    """Names for columns that have none: y1, y2, ... of outputs, u1, u2, ... of inputs."""
    return tuple(f"{'y' if argument == 'outputs' else 'u'}{i + 1}" for i in range(count))


def _table(name: str, value: Any) -> Table:
    table = read_frame(name, value) if is_frame(value) else Table(value)
    return table._replace(values=matrix(name, table.values))


def _in_order(table: Table, names: tuple[str, ...]) -> Table:
    return table._replace(values=table.values[:, [table.names.index(name) for name in names]], names=names)


def _rows_at(name: str, table: Table, times: Times | None, length: int, of: str = "") -> NDArray:
    """As many rows of inputs, those at the given times if both know any; `of` is whose times these are."""
    c, first = table.values, 0
    if table.times is not None and times is not None:
        offset = table.times.rows_until(times)
        needed = f"there is no row for {times.text(1)[0]}, {f'the first of {of}' if of else 'the next time'}"
        if offset is None or offset < 0 or offset >= len(c):
            raise InvalidInput(f"{name}: {needed}; the index goes {table.times.described()}, {len(c)} row(s).")
        first = offset
        if len(c) < first + length:
            missing = times.later(len(c) - first).text(1)[0]
            raise InvalidInput(f"{name}: there is no row for {missing}; expected {length} from {times.text(1)[0]} on.")
    c = c[first:]
    _check_inputs(name, c, length, table.names)
    return c[:length]


def _end(tables: list[Table]) -> Times | None:
    """When the last recording ended; all that know their times must have the same step."""
    known = [table.times for table in tables if table.times is not None]
    for i, times in enumerate(known):
        if not known[0].same_clock(times):
            raise InvalidInput(
                f"outputs: the index of the first recording goes {known[0].described()}, that of number {i} "
                f"{times.described()}; expected the same kind and step in all."
            )
    last = tables[-1].times
    return None if last is None or last.plain else last.later(len(tables[-1].values) - 1)


def arguments(x: Any, columns: int) -> NDArray:
    """`x` as rows `[state, input]` (n, columns) at which to evaluate f."""
    x = matrix("x", x, columns)
    if np.isnan(x).any():
        raise InvalidInput("x: contains NaN; expected states and inputs at which to evaluate f.")
    return x


def sample_row(name: str, value: Any, width: int | None) -> NDArray:
    """A sample as finite numbers or NaN (width,)."""
    if value is None and width is not None and name == "y":
        return np.full(width, np.nan)
    try:
        row = np.atleast_1d(np.asarray(value, dtype=float))
    except (TypeError, ValueError, OverflowError) as error:  # the last of a whole number with hundreds of digits
        raise InvalidInput(f"{name}: expected numbers, got {shown(value)}.") from error
    if row.ndim != 1 or (width is not None and len(row) != width) or (name == "y" and len(row) == 0):
        expected = "a vector" if width is None else f"{width} number(s)"
        raise InvalidInput(f"{name}: expected {expected}, got shape {row.shape}.")
    if np.isinf(row).any():
        raise InvalidInput(f"{name}: infinite value; use NaN for a missing one.")
    return row


def positive_int(name: str, value: Any, least: int = 1) -> int:
    """`value` as an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InvalidInput(f"{name}: expected a whole number of at least {least}, got {shown(value)}.")
    return int(value)


def variances(name: str, value: Any, size: int) -> NDArray:
    """`value` as `size` positive variances; a scalar is repeated."""
    expected = f"a variance or {size} of them"
    array = real(name, value, expected)
    if array.shape not in ((), (size,)):
        raise InvalidInput(f"{name}: expected {expected}, got shape {array.shape}.")
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise InvalidInput(f"{name}: expected positive, finite variance(s), got {shown(value)}.")
    return np.broadcast_to(array, (size,)).copy()


def _sequences(name: str, items: Sequence[Any], many: bool) -> list[Table]:
    """Recordings with the same columns, in the order of the first that has names."""
    tables = [_table(f"{name}[{i}]" if many else name, item) for i, item in enumerate(items)]
    widths = {table.values.shape[1] for table in tables}
    if len(widths) > 1:
        raise InvalidInput(f"{name}: sequences have {sorted(widths)} channels; expected the same number in all.")
    width, rows = widths.pop(), sum(len(table.values) for table in tables)
    if name == "outputs" and width == 0:
        raise InvalidInput("outputs: 0 channels; expected at least one.")
    if width > rows > 0:  # nothing can be learned of so many channels; it would take long to find out
        raise InvalidInput(
            f"{name}: {width} channels of {rows} sample(s), expected (time, channels) with more samples; pass {name}.T."
        )
    names = next((table.names for table in tables if table.names), ())
    other = next((table.names for table in tables if table.names and set(table.names) != set(names)), ())
    if other:
        raise InvalidInput(
            f"{name}: one recording has the columns {', '.join(names)}, another {', '.join(other)}; expected the same."
        )
    return [_in_order(table, names) if table.names else table._replace(names=names) for table in tables]


def _check_inputs(name: str, c: NDArray, length: int, names: tuple[str, ...] = ()) -> None:
    if len(c) < length:
        raise InvalidInput(f"{name}: {len(c)} rows, but {length} are needed; expected one row per sample.")
    if np.isnan(c).any():
        row, column = np.argwhere(np.isnan(c))[0]
        where = f"row {row}, column {repr(names[column]) if names else column}"
        raise InvalidInput(
            f"{name}: NaN at {where}; control inputs must be known. "
            "Fill the gap first, for example with the value before it."
        )


def shown(value: Any) -> str:
    """A value for an error: in one line, and not longer than it helps."""
    try:
        text = " ".join(line.strip() for line in _brief.repr(value).splitlines())
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
