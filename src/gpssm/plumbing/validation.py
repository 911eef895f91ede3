"""Checks of what a user hands in. Each failure is one sentence: argument, what it was, what is expected."""

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpssm.errors import InvalidInput

NDArray = np.ndarray
# A variance, or one for every channel.
VariancesLike = float | NDArray | list[float] | tuple[float, ...]

_SHOWN = 60  # characters of a bad value that are repeated in its error
# Not `repr`: it follows a list as deep as that goes, and spells out what is then cut off.
_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxlist, _brief.maxdict = 4, 20, 20
_brief.maxstring = _brief.maxlong = _brief.maxother = 4 * _SHOWN

# A channel whose spread is below this share of its size is constant to rounding.
CONSTANT = 1e-12


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
        raise InvalidInput(f"{name}: expected {columns} column(s), got shape {array.shape}.")
    if np.isinf(array).any():
        row, column = np.argwhere(np.isinf(array))[0]
        raise InvalidInput(f"{name}: infinite value at row {row}, column {column}; use NaN for a missing sample.")
    return array


def is_sequence_list(value: Any) -> bool:
    """True for a list of recordings: arrays (T_i, channels), or vectors that cannot be the rows of one matrix.

    Many short vectors of one length are rows collected in a loop; a few long ones, or vectors of
    different lengths, are recordings.
    """
    if not isinstance(value, (list, tuple)) or not value:
        return False
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


def training_data(outputs: Any, inputs: Any) -> tuple[list[NDArray], list[NDArray]]:
    """Checked lists of output (T_i, dy) and input (T_i, dc) sequences, of one recording or a list of them."""
    many = is_sequence_list(outputs)
    ys = _sequences("outputs", outputs if many else [outputs], many)
    if inputs is None:
        cs = [np.zeros((len(y), 0)) for y in ys]
    else:
        if many != is_sequence_list(inputs):
            raise InvalidInput("inputs: expected a list of as many sequences as outputs has, or an array for an array.")
        cs = _sequences("inputs", inputs if many else [inputs], many)
    if len(cs) != len(ys):
        raise InvalidInput(f"inputs: got {len(cs)} sequences, outputs has {len(ys)}; expected one for each.")
    for i, (y, c) in enumerate(zip(ys, cs, strict=True)):
        suffix = f"[{i}]" if many else ""
        if len(y) < 2:
            raise InvalidInput(f"outputs{suffix}: {len(y)} sample(s); expected at least 2.")
        _check_inputs(f"inputs{suffix}", c, len(y))
    rows = np.concatenate(ys)
    for channel in range(rows.shape[1]):
        seen = rows[~np.isnan(rows[:, channel]), channel]
        if seen.size == 0:
            raise InvalidInput(f"outputs: channel {channel} is NaN throughout; expected at least two values. Drop it.")
        if np.ptp(seen) <= CONSTANT * np.max(np.abs(seen)):
            raise InvalidInput(
                f"outputs: channel {channel} is constant ({seen[0]:g}); expected a signal that varies. Drop it."
            )
    return ys, [c[: len(y)] for y, c in zip(ys, cs, strict=True)]


def series(outputs: Any, inputs: Any, output_dim: int, input_dim: int) -> tuple[NDArray, NDArray]:
    """Checked outputs (T, output_dim) and inputs (T, input_dim) for a model that has already been fitted."""
    y = matrix("outputs", outputs, output_dim)
    if len(y) < 1:
        raise InvalidInput("outputs: 0 samples; expected at least 1.")
    return y, model_inputs(inputs, len(y), input_dim)


def model_inputs(inputs: Any, length: int, input_dim: int) -> NDArray:
    """Checked control inputs (length, input_dim); None stands for those of a model without inputs."""
    if inputs is None:
        if input_dim:
            raise InvalidInput(
                f"inputs: missing; the model was fitted with {input_dim} input(s), expected ({length}, {input_dim})."
            )
        return np.zeros((length, 0))
    if input_dim == 0:
        raise InvalidInput("inputs: the model was fitted without inputs; expected None.")
    c = matrix("inputs", inputs, input_dim)
    _check_inputs("inputs", c, length)
    return c[:length]


def arguments(x: Any, columns: int) -> NDArray:
    """`x` as rows `[state, input]` (n, columns) at which to evaluate f."""
    x = matrix("x", x, columns)
    if np.isnan(x).any():
        raise InvalidInput("x: contains NaN; expected states and inputs at which to evaluate f.")
    return x


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


def _sequences(name: str, items: Sequence[Any], many: bool) -> list[NDArray]:
    arrays = [matrix(f"{name}[{i}]" if many else name, item) for i, item in enumerate(items)]
    widths = {a.shape[1] for a in arrays}
    if len(widths) > 1:
        raise InvalidInput(f"{name}: sequences have {sorted(widths)} channels; expected the same number in all.")
    if name == "outputs" and 0 in widths:
        raise InvalidInput("outputs: 0 channels; expected at least one.")
    return arrays


def _check_inputs(name: str, c: NDArray, length: int) -> None:
    if len(c) < length:
        raise InvalidInput(f"{name}: {len(c)} rows, but {length} are needed; expected one row per sample.")
    if np.isnan(c).any():
        row, column = np.argwhere(np.isnan(c))[0]
        raise InvalidInput(
            f"{name}: NaN at row {row}, column {column}; control inputs must be known. Fill the gap first."
        )


def shown(value: Any) -> str:
    """A value for an error: in one line, and not longer than it helps."""
    try:
        text = " ".join(line.strip() for line in _brief.repr(value).splitlines())
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
