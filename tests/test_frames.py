"""Tables in and out: what pandas itself says of names, rows and times is the oracle."""

import subprocess
import sys
import warnings
from datetime import UTC
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpssm
from gpssm import evaluation
from gpssm.errors import InvalidInput
from gpssm.plumbing.frames import is_frame, read_frame
from gpssm.plumbing.times import Times

ROWS, AHEAD = 80, 12
RNG = np.random.default_rng(0)


def recording(index: Any = None, rows: int = ROWS + AHEAD) -> pd.DataFrame:
    """Two inputs that act very differently, and two outputs."""
    rng = np.random.default_rng(1)
    heat, fan = rng.normal(size=(2, rows))
    temp = np.zeros(rows)
    for t in range(1, rows):
        temp[t] = 0.8 * temp[t - 1] + heat[t] - 0.1 * fan[t]
    noise = 0.01 * rng.normal(size=(2, rows))
    return pd.DataFrame(
        {"temp": temp + noise[0], "power": heat + noise[1], "heat": heat, "fan": fan},
        index=pd.date_range("2024-03-01 12:00", periods=rows, freq="5min", name="when") if index is None else index,
    )


OUTPUTS, INPUTS = ["temp", "power"], ["heat", "fan"]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return recording()


@pytest.fixture(scope="module")
def fitted(frame: pd.DataFrame) -> gpssm.Fitted:
    past = frame.iloc[:ROWS]
    return gpssm.ARX(order=1).fit(past[OUTPUTS], past[INPUTS])


# --- reading --------------------------------------------------------------------------------------


def test_numbers_of_all_kinds_are_those_that_pandas_shows() -> None:
    table = pd.DataFrame(
        {
            "float": [1.5, np.nan, 3.0],
            "whole": pd.array([1, None, 3], "Int64"),
            "small": np.array([1, 2, 3], np.uint8),
            "nullable": pd.array([0.5, None, 1.0], "Float32"),
            "switch": pd.array([True, None, False], "boolean"),
            "bool": [True, False, True],
        }
    )
    found = read_frame("outputs", table)
    assert found.names == tuple(table.columns)
    expected = [[1.5, 1, 1, 0.5, 1, 1], [np.nan, np.nan, 2, np.nan, np.nan, 0], [3, 3, 3, 1, 0, 1]]
    np.testing.assert_array_equal(found.values, expected)


@pytest.mark.parametrize(
    "column",
    [
        ["a", "b"],
        [object(), 1],
        pd.Categorical([1, 2]),
        pd.to_datetime(["2024", "2025"]),
        [1 + 2j, 0],
    ],
)
def test_columns_that_are_no_numbers_are_named(column: Any) -> None:
    table = pd.DataFrame({"x": [1.0, 2.0], "label": column})
    with pytest.raises(InvalidInput, match=r"^outputs: column 'label' holds .* expected numbers"):
        gpssm.LastValue().fit(table)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two columns are called 'a'"):
        gpssm.LastValue().fit(pd.DataFrame([[1.0, 2.0], [2.0, 3.0]], columns=["a", "a"]))


def test_polars_gives_the_same_as_pandas() -> None:
    table = pl.DataFrame({"a": [1, None, 3], "b": [1.5, 2.5, None], "c": [True, None, False]})
    found = read_frame("outputs", table)
    assert found.names == ("a", "b", "c") and found.times is None
    np.testing.assert_array_equal(found.values, [[1, 1.5, 1], [np.nan, 2.5, np.nan], [3, np.nan, 0]])
    np.testing.assert_array_equal(read_frame("outputs", table["a"]).values[:, 0], [1, np.nan, 3])
    assert read_frame("outputs", table["a"]).names == ("a",)
    assert read_frame("outputs", pl.Series([1.0, 2.0])).names == ()
    with pytest.raises(InvalidInput, match="column 't' holds String"):
        read_frame("outputs", pl.DataFrame({"t": ["x", "y"]}))


class Interchanged:
    """A table that offers nothing but the protocol."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def __dataframe__(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas would like us to use another protocol
            return self.frame.__dataframe__()


@given(
    values=st.lists(st.tuples(st.none() | st.integers(-9, 9), st.floats(-1e9, 1e9), st.booleans()), min_size=1),
)
def test_the_interchange_protocol_gives_what_pandas_has(values: list[Any]) -> None:
    columns = list(zip(*values, strict=True))
    table = pd.DataFrame(
        {"a": pd.array(columns[0], "Int64"), "b": columns[1], "c": columns[2], "d": np.float32(columns[1])}
    )
    assert is_frame(Interchanged(table))
    found, expected = read_frame("outputs", Interchanged(table)), read_frame("outputs", table)
    assert found.names == expected.names and found.times is None
    np.testing.assert_array_equal(found.values, expected.values)


class Bits:
    """A column of 16-bit numbers in two pieces, with a mask of bits, a sentinel, or bits as values: as Arrow has it."""

    dtype = (0, 16, "s", "=")

    def __init__(self, values: np.ndarray, describe_null: Any, mask: np.ndarray | None, offset: int) -> None:
        self.values, self.mask, self.describe_null, self.offset = values, mask, describe_null, offset

    def size(self) -> int:
        return len(self.values) - self.offset

    def get_chunks(self) -> list["Bits"]:
        return [self, self]

    def get_buffers(self) -> dict[str, Any]:
        bits = None if self.mask is None else (Memory(np.packbits(self.mask, bitorder="little")), (20, 1, "b", "="))
        return {"data": (Memory(self.values), self.dtype), "validity": bits, "offsets": None}

    # The table around it.
    def __dataframe__(self) -> "Bits":
        return self

    def column_names(self) -> list[str]:
        return ["a"]

    def num_rows(self) -> int:
        return 2 * self.size()

    def get_column_by_name(self, name: str) -> "Bits":
        return self


class Memory:
    def __init__(self, array: np.ndarray) -> None:
        self.array, self.ptr, self.bufsize = array, array.ctypes.data, array.nbytes


def test_masks_of_bits_and_values_that_stand_for_none() -> None:
    values = np.arange(-5, 15, dtype=np.int16)
    valid = RNG.random(20) < 0.5
    for offset in (0, 3):
        expected = np.where(valid, values, np.nan)[offset:]
        masked = read_frame("outputs", Bits(values, (3, 0), valid, offset)).values[:, 0]
        np.testing.assert_array_equal(masked, np.tile(expected, 2))
        sentinel = read_frame("outputs", Bits(values, (2, 7), None, offset)).values[:, 0]
        np.testing.assert_array_equal(sentinel, np.tile(np.where(values == 7, np.nan, values)[offset:], 2))


def test_pandas_is_not_imported_by_a_fit() -> None:
    code = (
        "import sys, gpssm; p = gpssm.LastValue().fit([1.0, 2.0, 4.0]); p.forecast(2); "
        "assert 'pandas' not in sys.modules and 'polars' not in sys.modules; sys.modules['pandas'] = None\n"
        "try: p.forecast(2).to_dataframe()\nexcept ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "to_dataframe needs pandas; run pip install 'gpssm[pandas]'."


# --- the index ------------------------------------------------------------------------------------

INDEXES = {
    "dates": pd.date_range("2024-02-28", periods=5, freq="12h"),
    "seconds": pd.DatetimeIndex(pd.date_range("2024-01-01", periods=5, freq="1s").to_numpy("datetime64[s]")),
    "UTC": pd.date_range("2024-01-01", periods=5, freq="h", tz="UTC"),
    "fixed": pd.date_range("2024-01-01", periods=5, freq="h", tz="Asia/Kolkata"),
    "west": pd.date_range("2024-01-01", periods=5, freq="h", tz="America/St_Johns"),
    "summer time begins": pd.date_range("2024-03-30 22:00", periods=5, freq="h", tz="Europe/Berlin"),
    "days": pd.period_range("2024-01-01", periods=5, freq="D").to_timestamp(),
    "numbers": pd.Index([0.1 * k for k in range(3, 8)], name="seconds"),
    "counts": pd.RangeIndex(100, 105),
    "every tenth": pd.RangeIndex(0, 50, 10),
}


@pytest.mark.parametrize("which", INDEXES)
def test_an_index_comes_back_as_pandas_has_it(which: str) -> None:
    """Through a fit, its filter and a forecast; a zone whose clock was changed comes back as UTC."""
    index = INDEXES[which]
    longer = index.append(index[-1:] + (index[-1] - index[-2])) if which != "summer time begins" else None
    series = pd.Series([1.0, 2.0, 4.0, 3.0, 2.0], index=index, name="level")
    model = gpssm.LastValue().fit(series)
    states, ahead = model.filter(series).to_dataframe(), model.forecast(2, num_paths=5).to_dataframe()
    same = (states.index == index) if isinstance(index, pd.DatetimeIndex) else np.isclose(states.index, index)
    assert same.all() and states.index.name == (index.name or "time")
    assert list(ahead.columns) == ["level_mean", "level_sd", "level_q05", "level_q50", "level_q95"]
    if isinstance(index, pd.DatetimeIndex):
        assert list(ahead.index) == [index[-1] + k * (index[-1] - index[-2]) for k in (1, 2)]
        zones = {len({t.utcoffset() for t in index}), 1}
        if index.tz is not None:
            expected = index[0].utcoffset() if len(zones) == 1 else pd.Timestamp(0, tz=UTC).utcoffset()
            assert ahead.index[0].utcoffset() == expected
    else:
        assert longer is not None
        np.testing.assert_allclose(ahead.index[0], longer[-1])


def test_periods_and_durations() -> None:
    periods = pd.Series([1.0, 2.0, 4.0], index=pd.period_range("2024-01-01 10:00", periods=3, freq="h"))
    found = read_frame("outputs", periods)
    assert found.times is not None and found.times.text(2) == ["2024-01-01T10:00:00", "2024-01-01T11:00:00"]
    durations = pd.Series([1.0, 2.0, 4.0], index=pd.timedelta_range("1s", periods=3, freq="250ms"))
    assert read_frame("outputs", durations).times == Times(1.0, 0.25, unit="s")


def test_an_index_that_only_counts_says_nothing() -> None:
    model = gpssm.LastValue().fit(pd.DataFrame({"a": [1.0, 2.0, 4.0]}))
    assert model.recording.times is None and model.output_names == ("a",)
    ahead = model.forecast(2, num_paths=5).to_dataframe()
    assert ahead.index.tolist() == [1, 2] and ahead.index.name == "step"
    assert model.filter([1.0, 2.0]).to_dataframe().index.name == "sample"
    seconds = gpssm.LastValue().fit(pd.Series([1.0, 2.0, 4.0], index=[0.0, 1.0, 2.0]))
    assert seconds.forecast(2, num_paths=5).to_dataframe().index.tolist() == [3.0, 4.0]


def test_times_that_were_rounded_are_regular() -> None:
    exact = pd.date_range("2024-01-01", periods=3000, freq=pd.Timedelta(1e9 / 30, "ns"))
    table = pd.Series(RNG.normal(size=3000), index=exact.round("ms"))
    found = read_frame("outputs", table).times
    assert found is not None
    np.testing.assert_allclose(found.values(3000).astype(float), exact.as_unit("ns").asi8, rtol=0, atol=2e6)


DATES = pd.date_range("2024-01-01", periods=6, freq="D")
BAD = {
    "not sorted": (DATES[[0, 2, 1, 3, 4, 5]], "sort_index"),
    "backwards": (DATES[::-1], "sort_index"),
    "twice": (DATES[[0, 1, 1, 2, 3, 4]], "duplicated"),
    "a gap": (DATES[[0, 1, 2, 4, 5]], "asfreq"),
    "months": (pd.date_range("2024-01-01", periods=6, freq="MS"), "reset_index"),
    "rows that were dropped": (pd.Index([0, 1, 4, 5]), "reindex"),
    "a missing time": (DATES[:3].append(pd.DatetimeIndex([pd.NaT])), "no time in row 3"),
    "text": (pd.Index(["a", "b", "c"]), "to_datetime"),
    "levels": (pd.MultiIndex.from_product([["a", "b"], [0, 1]]), "several levels"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_index_that_is_no_grid_is_refused_with_the_way_out(case: str) -> None:
    index, way_out = BAD[case]
    with pytest.raises(InvalidInput, match=f"^outputs: the index .*{way_out}"):
        gpssm.LastValue().fit(pd.Series(RNG.normal(size=len(index)), index=index))


# --- names and rows -------------------------------------------------------------------------------


def test_a_fit_keeps_names_and_times(frame: pd.DataFrame, fitted: gpssm.Fitted) -> None:
    assert fitted.output_names == tuple(OUTPUTS) and fitted.input_names == tuple(INPUTS)
    arrays = gpssm.ARX(order=1).fit(frame[OUTPUTS].to_numpy()[:ROWS], frame[INPUTS].to_numpy()[:ROWS])
    assert arrays.output_names == ("y1", "y2") and arrays.end.times is None
    np.testing.assert_array_equal(arrays.transition(np.ones((1, 4)))[0], fitted.transition(np.ones((1, 4)))[0])
    assert fitted.end.times is not None and fitted.end.times.text(1) == ["2024-03-01T18:35:00"]


def test_columns_are_found_by_name(frame: pd.DataFrame, fitted: gpssm.Fitted) -> None:
    past, future = frame.iloc[:ROWS], frame.iloc[ROWS:]
    swapped = fitted.filter(past[OUTPUTS[::-1]], past[INPUTS[::-1]])
    np.testing.assert_array_equal(swapped.mean, fitted.filter(past[OUTPUTS], past[INPUTS]).mean)
    ahead = fitted.forecast(AHEAD, future[INPUTS[::-1]])
    np.testing.assert_array_equal(ahead.samples, fitted.forecast(AHEAD, future[INPUTS].to_numpy()).samples)
    pd.testing.assert_index_equal(ahead.to_dataframe().index, future.index.as_unit("ns"))
    assert (abs(ahead.to_dataframe()["temp_mean"] - future["temp"]) < 0.3).all()
    again = evaluation.blocks(fitted, future[OUTPUTS[::-1]], future[INPUTS[::-1]], length=5, num_paths=20)
    np.testing.assert_array_equal(
        again, evaluation.blocks(fitted, future[OUTPUTS], future[INPUTS], length=5, num_paths=20)
    )


def test_polars_columns_are_found_by_name(frame: pd.DataFrame, fitted: gpssm.Fitted) -> None:
    past = pl.DataFrame({name: frame[name].to_numpy()[:ROWS] for name in frame})
    found = fitted.filter(past[OUTPUTS], past[INPUTS[::-1]])
    expected = fitted.filter(frame[OUTPUTS].iloc[:ROWS], frame[INPUTS].iloc[:ROWS])
    np.testing.assert_array_equal(found.mean, expected.mean)
    assert gpssm.LastValue().fit(past["temp"]).output_names == ("temp",)


def test_other_columns_are_refused(frame: pd.DataFrame, fitted: gpssm.Fitted) -> None:
    future = frame.iloc[ROWS:]
    for wrong in (future[["heat"]], future[["heat", "temp"]], future[["heat", "fan", "temp"]]):
        with pytest.raises(InvalidInput, match=f"^inputs: .*{', '.join(wrong)}.*heat, fan"):
            fitted.forecast(AHEAD, wrong)
    with pytest.raises(InvalidInput, match=r"^outputs: .*temp, heat; expected .*temp, power"):
        fitted.filter(frame[["temp", "heat"]], frame[INPUTS])
    one = gpssm.LastValue().fit(frame["temp"])
    with pytest.raises(InvalidInput, match=r"^outputs: .*power; .*temp"):
        one.filter(frame["power"])
    np.testing.assert_array_equal(
        one.filter(frame["temp"].rename(None)).mean, one.filter(frame["temp"].to_numpy()).mean
    )


def test_a_model_of_arrays_takes_any_names(frame: pd.DataFrame) -> None:
    model = gpssm.LastValue().fit(frame[OUTPUTS].to_numpy())
    states = model.filter(frame[OUTPUTS])
    assert states.times is not None and states.times.name == "when"


def test_rows_of_inputs_are_those_at_the_times_of_the_outputs(frame: pd.DataFrame) -> None:
    middle = frame.iloc[10:60]
    known = gpssm.ARX(order=1).fit(middle[OUTPUTS], middle[INPUTS])
    found = gpssm.ARX(order=1).fit(middle[OUTPUTS], frame[INPUTS])
    np.testing.assert_array_equal(found.recording.inputs, known.recording.inputs)
    np.testing.assert_array_equal(
        found.filter(middle[OUTPUTS], frame[INPUTS]).mean, known.filter(middle[OUTPUTS], middle[INPUTS]).mean
    )
    numbered = frame.reset_index(drop=True)
    found = gpssm.ARX(order=1).fit(numbered[OUTPUTS].iloc[10:60], numbered[INPUTS])
    np.testing.assert_array_equal(found.recording.inputs, known.recording.inputs)
    # From the whole frame a forecast takes the rows after the end.
    a, b = (found.forecast(5, numbered[INPUTS].iloc[first:]).samples for first in (0, 60))
    np.testing.assert_array_equal(a, b)


def test_inputs_of_other_times_are_refused(frame: pd.DataFrame) -> None:
    past = frame.iloc[:ROWS]
    for inputs, named in (
        (past[INPUTS].iloc[1:], "2024-03-01T12:00:00"),
        (past[INPUTS].iloc[:-1], "2024-03-01T18:35:00"),
        (past[INPUTS].shift(freq="1min"), "2024-03-01T12:00:00"),
        (past[INPUTS].tz_localize("UTC"), "2024-03-01T12:00:00"),
        (past[INPUTS].reset_index(drop=True), "2024-03-01T12:00:00"),
        (past[INPUTS].resample("10min").mean(), "2024-03-01T12:00:00"),
    ):
        with pytest.raises(InvalidInput, match=f"^inputs: there is no row for {named}"):
            gpssm.ARX(order=1).fit(past[OUTPUTS], inputs)


def test_a_forecast_starts_one_step_after_the_end(frame: pd.DataFrame, fitted: gpssm.Fitted) -> None:
    future = frame.iloc[ROWS:]
    expected = fitted.forecast(AHEAD, future[INPUTS]).samples
    np.testing.assert_array_equal(fitted.forecast(AHEAD, frame[INPUTS]).samples, expected)
    np.testing.assert_array_equal(fitted.forecast(AHEAD, future[INPUTS].reset_index(drop=True)).samples, expected)
    for wrong in (frame.iloc[ROWS + 1 :], frame.iloc[: ROWS - 3], future.shift(freq="2min"), future.tz_localize("UTC")):
        with pytest.raises(InvalidInput, match=r"^inputs: there is no row for 2024-03-01T18:40:00, the next time"):
            fitted.forecast(3, wrong[INPUTS])
    with pytest.raises(InvalidInput, match=r"^inputs: there is no row for 2024-03-01T19:40:00"):
        fitted.forecast(AHEAD + 1, future[INPUTS])
    state = fitted.filter(frame[OUTPUTS].iloc[:20], frame[INPUTS])
    assert (
        state.times is not None
        and fitted.forecast(1, frame[INPUTS], state=state).to_dataframe().index == frame.index[20]
    )
    # The next row alone has no step of its own.
    assert fitted.forecast(1, future[INPUTS].iloc[[0]].copy()).times is not None
    one_row = pd.DataFrame(future[INPUTS].to_numpy()[:1], columns=INPUTS, index=pd.DatetimeIndex(future.index[:1]))
    np.testing.assert_array_equal(fitted.forecast(1, one_row).samples, fitted.forecast(1, future[INPUTS]).samples)


def test_filtering_goes_on_from_a_state(frame: pd.DataFrame, fitted: gpssm.Fitted) -> None:
    state = fitted.filter(frame[OUTPUTS].iloc[:20], frame[INPUTS])
    rest = fitted.filter(frame[OUTPUTS].iloc[20:50], frame[INPUTS], state=state)
    whole = fitted.filter(frame[OUTPUTS].iloc[:50], frame[INPUTS])
    np.testing.assert_allclose(rest.mean, whole.mean[20:], rtol=1e-9, atol=1e-12)
    assert list(rest.to_dataframe().index) == list(frame.index[20:50])
    assert list(fitted.smooth(frame[OUTPUTS], frame[INPUTS]).to_dataframe().index) == list(frame.index)
    with pytest.raises(InvalidInput, match=r"^outputs: .*from 2024-03-01T13:45:00 on.*expected 2024-03-01T13:40:00"):
        fitted.filter(frame[OUTPUTS].iloc[21:50], frame[INPUTS], state=state)


def test_the_step_must_be_that_of_the_training_data(frame: pd.DataFrame, fitted: gpssm.Fitted) -> None:
    slower = frame.resample("10min").mean()
    with pytest.raises(InvalidInput, match=r"^outputs: .*steps of 10 min.*steps of 5 min"):
        fitted.filter(slower[OUTPUTS], slower[INPUTS])


def test_the_same_instants_on_another_clock(frame: pd.DataFrame) -> None:
    local = frame.tz_localize("Europe/Berlin")
    model = gpssm.ARX(order=1).fit(local[OUTPUTS].iloc[:ROWS], local.tz_convert("UTC")[INPUTS])
    expected = model.forecast(AHEAD, local[INPUTS].iloc[ROWS:]).samples
    np.testing.assert_array_equal(model.forecast(AHEAD, local.tz_convert("Asia/Tokyo")[INPUTS]).samples, expected)


def test_lists_of_frames_are_recordings(frame: pd.DataFrame) -> None:
    a, b = frame.iloc[:40], frame.iloc[45:85]
    model = gpssm.ARX(order=1).fit([a[OUTPUTS], b[OUTPUTS[::-1]]], [frame[INPUTS], frame[INPUTS[::-1]]])
    expected = gpssm.ARX(order=1).fit(
        [a[OUTPUTS].to_numpy(), b[OUTPUTS].to_numpy()], [a[INPUTS].to_numpy(), b[INPUTS].to_numpy()]
    )
    np.testing.assert_array_equal(
        model.forecast(1, frame[INPUTS]).samples, expected.forecast(1, frame[INPUTS].iloc[85:]).samples
    )
    assert (
        model.output_names == tuple(OUTPUTS)
        and model.forecast(1, frame[INPUTS]).to_dataframe().index == frame.index[85]
    )
    with pytest.raises(InvalidInput, match=r"^outputs: one recording has the columns temp, power, another temp, heat"):
        gpssm.ARX(order=1).fit([a[OUTPUTS], b[["temp", "heat"]]])
    with pytest.raises(InvalidInput, match=r"^outputs: .*expected the same kind and step"):
        gpssm.ARX(order=1).fit([a["temp"], frame["temp"].resample("10min").mean()])
    with pytest.raises(InvalidInput, match=r"^inputs\[1\]: there is no row for 2024-03-01T15:45:00"):
        gpssm.ARX(order=1).fit([a[OUTPUTS], b[OUTPUTS]], [a[INPUTS], a[INPUTS]])


def test_what_comes_out_is_what_numpy_computes(frame: pd.DataFrame, fitted: gpssm.Fitted) -> None:
    ahead = fitted.forecast(AHEAD, frame[INPUTS])
    table = ahead.to_dataframe(quantiles=(0.025, 0.9))
    assert list(table) == [f"{name}_{kind}" for name in OUTPUTS for kind in ("mean", "sd", "q02.5", "q90")]
    np.testing.assert_allclose(table["power_q02.5"], np.quantile(ahead.samples[:, :, 1], 0.025, axis=0))
    np.testing.assert_allclose(table["temp_sd"], ahead.samples[:, :, 0].std(axis=0, ddof=1))
    states = fitted.filter(frame[OUTPUTS], frame[INPUTS])
    np.testing.assert_array_equal(states.to_dataframe()["x2_mean"], states.mean[:, 1])


def test_times_survive_a_file(frame: pd.DataFrame, fitted: gpssm.Fitted, tmp_path: Any) -> None:
    fitted.save(tmp_path / "model.gpssm")
    loaded = gpssm.load(tmp_path / "model.gpssm")
    pd.testing.assert_frame_equal(
        loaded.forecast(3, frame[INPUTS]).to_dataframe(), fitted.forecast(3, frame[INPUTS]).to_dataframe()
    )


def test_a_stream_and_its_posterior_take_frames(frame: pd.DataFrame) -> None:
    stream = gpssm.OEnVI(1, 4, input_lags=2, num_members=10, trial=0).start()
    for _, row in frame.iloc[:15].iterrows():
        stream.learn_one(row[["temp"]], row[INPUTS])
    inputs = frame[INPUTS].iloc[15:20]
    ahead = stream.forecast(5, inputs, num_paths=5)
    np.testing.assert_array_equal(ahead.samples, stream.forecast(5, inputs.to_numpy(), num_paths=5).samples)
    states = stream.posterior().filter(frame["temp"], frame[INPUTS])
    assert list(states.to_dataframe().index) == list(frame.index)


def test_a_checked_fit_and_a_calibration_know_names_and_times(frame: pd.DataFrame) -> None:
    past, future = frame.iloc[:ROWS], frame.iloc[ROWS:]
    model = gpssm.ARX(order=1).fit(past[OUTPUTS], past[INPUTS], holdout=0.2)
    assert model.end.times is not None and model.end.times.text(1) == ["2024-03-01T18:35:00"]
    a, b = (model.calibrate(future[OUTPUTS[::step]], frame[INPUTS[::step]]).calibration for step in (1, -1))
    assert a is not None and b is not None
    np.testing.assert_array_equal(a.factors, b.factors)
    with pytest.raises(InvalidInput, match=r"^outputs: .*expected 2024-03-01T18:40:00 first"):
        model.calibrate(frame[OUTPUTS].iloc[3:], frame[INPUTS])
