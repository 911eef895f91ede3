"""What comes from outside may be anything at all: it is used, or refused in one sentence."""

import csv
import io
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from gpssm.datasets import Series, from_csv, to_csv
from gpssm.datasets.series import SeriesList
from gpssm.datasets.tables import separator_of
from gpssm.errors import InvalidInput
from gpssm.plumbing import validation
from gpssm.training import windows

NDArray = np.ndarray
anything = settings(deadline=None, max_examples=200, derandomize=True)

numbers = st.floats(allow_infinity=False)
cells = st.one_of(
    numbers.map(repr),
    st.sampled_from(["", "NaN", "n/a", "NULL", "inf", "-", "1,5", "1_0", '"', '""', "#", " 7 ", "1e400", "0x10"]),
    st.text(max_size=5),
)
columns = st.one_of(st.integers(-2, 5), st.sampled_from(["a", "0", "1", " b ", "", "9" * 5000]), st.text(max_size=3))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csv") / "recording.csv"


def used_or_refused(path: Path, outputs: Any, inputs: Any = (), id: Any = None) -> Series | SeriesList | None:
    """What `from_csv` makes of a file: numbers of shapes that agree, or an error of one line."""
    try:
        found: Series | SeriesList = from_csv(path, outputs, inputs, id=id)
    except InvalidInput as error:
        assert str(error).endswith(".") and "\n" not in str(error)
        return None
    several = found if isinstance(found, SeriesList) else found._replace(outputs=[found.outputs])
    given = found.inputs if isinstance(found, SeriesList) else None if found.inputs is None else [found.inputs]
    for y in several.outputs:
        assert y.dtype == float and y.ndim == 2 and len(y) > 0 and not np.isinf(y).any()
        assert y.shape[1] == len(found.output_names)
    for y, c in zip(several.outputs, given or (), strict=bool(given)):
        assert c.dtype == float and c.shape == (len(y), len(found.input_names)) and not np.isinf(c).any()
    return found


# Recordings -----------------------------------------------------------------------------------


@anything
@given(data=st.binary(max_size=100), outputs=columns)
def test_bytes_as_a_recording(file: Path, data: bytes, outputs: Any) -> None:
    file.write_bytes(data)
    used_or_refused(file, outputs)


@anything
@given(text=st.text(max_size=100), outputs=st.lists(columns, max_size=3), inputs=columns, id=st.none() | columns)
def test_text_as_a_recording(file: Path, text: str, outputs: Any, inputs: Any, id: Any) -> None:
    file.write_text(text, errors="replace")
    used_or_refused(file, outputs, inputs, id)


@anything
@given(lines=st.lists(st.text(), min_size=1), odd=st.sampled_from(["", "a\rb", '"a', '"a"b']))
def test_any_lines_have_a_separator(lines: list[str], odd: str) -> None:
    assert separator_of([odd + lines[0], *lines[1:]]) in "\t;, "


@anything
@given(
    rows=st.lists(st.lists(cells, min_size=2, max_size=2), min_size=1, max_size=5),
    header=st.booleans(),
    separator=st.sampled_from(",;\t"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    quoted=st.booleans(),
)
def test_a_table_of_odd_cells(
    file: Path, rows: list[list[str]], header: bool, separator: str, encoding: str, end: str, quoted: bool
) -> None:
    lines = ([["a", "b"]] if header else []) + rows
    body = io.StringIO()
    if quoted:
        csv.writer(body, delimiter=separator, lineterminator=end).writerows(lines)
    else:
        body.write(end.join(separator.join(row) for row in lines))
    file.write_bytes(body.getvalue().encode(encoding, "replace"))
    used_or_refused(file, "a" if header else 0, "b" if header else 1)


@anything
@given(outputs=columns | st.lists(columns, max_size=2) | st.none() | st.floats(), inputs=columns)
def test_any_column_of_a_table(file: Path, outputs: Any, inputs: Any) -> None:
    file.write_text("a,b,b,\n1,2,3,4\n5,6,7,8\n")
    used_or_refused(file, outputs, inputs)


@anything
@given(y=hnp.arrays(float, st.tuples(st.integers(1, 6), st.just(2)), elements=numbers))
def test_what_is_written_is_read(file: Path, y: NDArray) -> None:
    to_csv(file, {"a": y[:, 0], "b": y[:, 1]})
    np.testing.assert_array_equal(from_csv(file, ["a", "b"]).outputs, y)


@anything
@given(
    y=hnp.arrays(float, (4, 2), elements=numbers),
    row=st.integers(0, 3),
    column=st.integers(0, 1),
    cell=cells.filter(lambda cell: not set(cell) & set('",\r\n')),
)
def test_a_damaged_cell_leaves_the_others_alone(file: Path, y: NDArray, row: int, column: int, cell: str) -> None:
    """Either all others are read as they were, or nothing is."""
    to_csv(file, {"a": y[:, 0], "b": y[:, 1]})
    lines = [line.split(",") for line in file.read_text().splitlines()]
    lines[row + 1][column] = cell
    file.write_text("\n".join(map(",".join, lines)) + "\n", newline="")
    found = used_or_refused(file, ["a", "b"])
    if found is not None:
        others = np.ones(y.shape, bool)
        others[row, column] = False
        assert isinstance(found, Series)
        np.testing.assert_array_equal(found.outputs[others], y[others])


# Windows --------------------------------------------------------------------------------------


@anything
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    widths=st.tuples(st.integers(1, 2), st.integers(0, 2)),
    length=st.integers(1, 25),
    data=st.data(),
)
def test_windows_hold_every_sample_once(
    lengths: list[int], widths: tuple[int, int], length: int, data: st.DataObject
) -> None:
    ys = [data.draw(hnp.arrays(float, (t, widths[0]), elements=numbers)) for t in lengths]
    cs = [data.draw(hnp.arrays(float, (t, widths[1]), elements=st.floats(-1, 1))) for t in lengths]
    cut = windows.cut(ys, cs, length)
    count = sum(-(-t // length) for t in lengths)
    assert cut.outputs.shape == (count, length, widths[0]) and cut.inputs.shape == (count, length, widths[1])
    assert np.sum(~np.isnan(cut.outputs)) == sum(np.sum(~np.isnan(y)) for y in ys)
    for i, (y, c) in enumerate(zip(ys, cs, strict=True)):
        rows = np.flatnonzero(cut.sequence == i)
        active = cut.active[rows].astype(bool)
        np.testing.assert_array_equal(cut.outputs[rows][active], y)
        np.testing.assert_array_equal(cut.inputs[rows][active], c)
        assert np.isnan(cut.outputs[rows][~active]).all() and not cut.inputs[rows][~active].any()
        assert list(cut.position[rows]) == list(range(0, len(y), length))
        assert list(cut.left[rows]) == [-1, *rows[:-1]]


# Arguments ------------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.complex_numbers(), st.dates(), st.just(10**400), st.just(object()),
)  # fmt: skip
values = st.one_of(
    st.recursive(scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner))),
    st.recursive(st.floats(-5, 5), lambda inner: st.lists(inner, max_size=4)),
    hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
    st.lists(hnp.arrays(float, hnp.array_shapes(max_dims=2, max_side=3)), max_size=3),
    hnp.arrays(float, (3, 2)).map(lambda a: np.ma.masked_invalid(a)),
    st.sampled_from([np.ma.array(["a", "b"]), [[[[1], [2, 3]]]], [np.zeros((30, 30)), "a"]]),
)  # fmt: skip


def is_table(array: Any) -> bool:
    return array.dtype == float and array.ndim == 2 and not np.isinf(array).any()


@settings(anything, max_examples=400)
@given(value=values, columns=st.none() | st.integers(0, 3))
def test_anything_as_a_matrix(value: Any, columns: int | None) -> None:
    try:
        array = validation.matrix("outputs", value, columns)
    except InvalidInput as error:
        assert str(error).startswith("outputs: ") and str(error).endswith(".") and "\n" not in str(error)
        return
    assert is_table(array) and columns in (None, array.shape[1])


@pytest.mark.filterwarnings("ignore::gpssm.errors.DataWarning")  # most of it does look wrong
@settings(anything, max_examples=400)
@given(outputs=values, inputs=st.none() | values)
def test_anything_as_training_data(outputs: Any, inputs: Any) -> None:
    try:
        ys, cs, *_ = validation.training_data(outputs, inputs)
    except InvalidInput as error:
        assert str(error).startswith(("outputs", "inputs")) and str(error).endswith(".")
        return
    assert len(ys) == len(cs) > 0
    for y, c in zip(ys, cs, strict=True):
        assert is_table(y) and is_table(c) and len(y) == len(c) >= 2 and not np.isnan(c).any()
    rows = np.concatenate(ys)
    assert rows.shape[1] > 0 and (np.nanmax(rows, axis=0) > np.nanmin(rows, axis=0)).all()


@anything
@given(outputs=values, inputs=st.none() | values, dy=st.integers(1, 2), dc=st.integers(0, 2))
def test_anything_as_a_recording_of_a_model(outputs: Any, inputs: Any, dy: int, dc: int) -> None:
    try:
        y, c, _ = validation.series(outputs, inputs, validation.Known(dy, dc))
    except InvalidInput as error:
        assert str(error).startswith(("outputs: ", "inputs: "))
        return
    assert is_table(y) and y.shape[1] == dy and c.shape == (len(y), dc) and np.isfinite(c).all()


@anything
@given(value=values, size=st.integers(1, 3))
def test_anything_as_variances(value: Any, size: int) -> None:
    try:
        array = validation.variances("noise", value, size)
    except InvalidInput as error:
        assert str(error).startswith("noise: ")
        return
    assert array.shape == (size,) and (array > 0).all() and np.isfinite(array).all()


@anything
@given(value=values, least=st.integers(0, 3))
def test_anything_as_a_whole_number(value: Any, least: int) -> None:
    try:
        number = validation.positive_int("count", value, least)
    except InvalidInput as error:
        assert str(error).startswith("count: ")
        return
    assert type(number) is int and number >= least and number == value


def test_a_number_too_long_to_print_is_refused(file: Path) -> None:
    """Python itself cannot, with an error of its own."""
    huge = -(10**5000)
    with pytest.raises(InvalidInput, match="thousands of digits"):
        validation.positive_int("count", huge)
    with pytest.raises(InvalidInput, match="thousands of digits"):
        validation.matrix("outputs", huge)
    file.write_text("a\n1\n")
    with pytest.raises(InvalidInput, match="thousands of digits"):
        from_csv(file, huge)
