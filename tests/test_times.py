"""When samples were taken: what a column of times becomes, beside pandas; and what the commands make of it."""

import io
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpssm
from gpssm.datasets import Series, SeriesList, from_csv
from gpssm.datasets.time_column import looks_like_time
from gpssm.errors import DataWarning, InvalidInput
from gpssm.live.records import Lines, Names, Sample, from_fields, from_json
from gpssm.plumbing.times import UNITS, Times, duration

nan = np.nan
many = settings(deadline=None, max_examples=100, derandomize=True)
NANO = 1_000_000_000
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(content: str | pd.DataFrame, name: str = "log.csv") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else content.to_csv())
        return path

    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("times") / "log.csv"


def read(path: Path, *arguments: Any, **keywords: Any) -> tuple[Any, list[str]]:
    """What a file holds, and what is said about it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = from_csv(path, *(arguments or ("y",)), **keywords)
    assert all(warning.category is DataWarning for warning in caught)
    notes = [str(warning.message) for warning in caught]
    assert all("\n" not in note and note.endswith(".") for note in notes)
    return data, notes


def refused(path: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(path, *arguments, **keywords)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    return str(caught.value)


def table(cells: Any, name: str = "time") -> str:
    return f"{name},y\n" + "".join(f'"{cell}",{i}\n' for i, cell in enumerate(cells))


def stamps(data: Series) -> pd.DatetimeIndex:
    assert data.times is not None and data.times.dated
    return pd.DatetimeIndex(data.times.values(len(data.outputs)))


# What a time can be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cells",
    [
        ["2024-03-01", "2024-03-02", "2024-03-03"],
        ["2024-03-01T12:00", "2024-03-01T12:05", "2024-03-01T12:10"],
        ["2024-03-01 12:00:00.25", "2024-03-01 12:00:00.50", "2024-03-01 12:00:00.75"],
        ["2024-03-01 12:00:00.000000001", "2024-03-01 12:00:00.000000003", "2024-03-01 12:00:00.000000005"],
        ["2024/03/01 12:00:00", "2024/03/01 12:00:01", "2024/03/01 12:00:02"],
        ["20240301T120000", "20240301T120002", "20240301T120004"],
        ["1999-12-31 23:59:59", "2000-01-01 00:00:00", "2000-01-01 00:00:01"],
        ["1960-02-28", "1960-02-29", "1960-03-01"],
    ],
)
def test_dates_are_those_of_pandas(write: Write, cells: list[str]) -> None:
    data, notes = read(write(table(cells)))
    assert list(stamps(data)) == list(pd.to_datetime(cells)) and notes == []
    assert data.times.name == "time" and data.times.zone == ""
    assert data.outputs[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["11/02/2024", "12/02/2024", "13/02/2024"], "%d/%m/%Y"),
        (["2/11/2024 1:00 PM", "2/12/2024 1:00 pm", "2/13/2024 1:00 PM"], "%m/%d/%Y %I:%M %p"),
        (["01.02.2024 12:00", "02.02.2024 12:00", "03.02.2024 12:00"], "%d.%m.%Y %H:%M"),
        (["12-31-2023 12:00:00", "01-01-2024 12:00:00", "01-02-2024 12:00:00"], "%m-%d-%Y %H:%M:%S"),
    ],
)
def test_one_number_above_twelve_decides_for_the_column(write: Write, cells: list[str], form: str) -> None:
    data, notes = read(write(table(cells)))
    assert list(stamps(data)) == list(pd.to_datetime([cell.upper() for cell in cells], format=form)) and notes == []


def test_days_that_may_be_months_are_refused(write: Write) -> None:
    path = write(table(["01/02/2024", "02/02/2024"]))
    for keywords in ({}, {"time": "time"}):
        message = refused(path, **keywords)
        assert "log.csv' line 2, column 'time': '01/02/2024': the day or the month may be first" in message
        assert "year first" in message and "--time none" in message
    assert "others the month" in refused(write(table(["13/02/2024", "02/14/2024"])), time="time")
    assert read(path, time="none")[0].times is None


@pytest.mark.parametrize(
    ("cells", "line", "wrong"),
    [
        (["2024-03-01", "x", "2024-03-03"], 3, "'x' is not a time"),
        (["2024-03-01", "", "2024-03-03"], 3, "the time is missing"),
        (["2024-02-30", "2024-03-01"], 2, "'2024-02-30' is no date (day is out of range"),
        (["2024-02-01 25:00", "2024-03-01 26:00"], 2, "is no date"),
        (["2024-02-01 13:00 PM", "2024-03-01 11:00 PM"], 2, "is no date"),
        (["0001-01-01", "0001-01-02"], 2, "expected a year from 1678 to 2261"),
        (["2024-03-01T12:00Z", "2024-03-01T12:01"], 3, "other rows are with an offset from UTC"),
        (["1", "inf"], 3, "'inf' is not a finite number"),
        (["1", "2024-01-01"], 3, "'2024-01-01' is not a finite number"),
        (["1", "2", "-"], 4, "'-' is not a finite number"),
    ],
)
def test_a_cell_that_is_no_time_is_named(write: Write, cells: list[str], line: int, wrong: str) -> None:
    message = refused(write(table(cells)), time="time")
    assert f"log.csv' line {line}, column 'time': " in message and wrong in message
    data, notes = read(write(table(cells)))  # nobody has asked for it: a word is enough
    assert data.times is None and len(notes) == 1
    assert "column 'time' looks like times but is not used" in notes[0] and wrong in notes[0]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("time [s]", "s"), ("t (ms)", "ms"), ("time_s", "s"), ("Time (seconds)", "s"), ("TIME/min", "min"),
        ("timestamp", ""), ("t", ""), ("time [samples]", "samples"), ("run time", ""), ("date_time", ""),
    ],
)  # fmt: skip
def test_numbers_have_the_unit_of_their_name(write: Write, name: str, unit: str) -> None:
    data, notes = read(write(table(["0.5", "0.6", "0.7"], name)), time=name)
    assert (data.times.start, data.times.step, data.times.unit, data.times.dated) == (0.5, 0.1, unit, False)
    assert data.times.name == name and notes == []
    found = read(write(table(["0.5", "0.6", "0.7"], name)))[0].times
    assert found == (None if name == "run time" else data.times)


def test_seconds_since_1970_stay_numbers(write: Write) -> None:
    start = 1709294400.123
    data, _ = read(write(table([f"{start + 0.01 * i:.3f}" for i in range(100)], "timestamp")))
    assert not data.times.dated and data.times.step == 0.01
    assert data.times.text(2) == ["1709294400.123", "1709294400.133"]
    data, _ = read(write(table([1709294400123 + 10 * i for i in range(100)], "timestamp_ms")))
    assert data.times.text(2) == ["1709294400123", "1709294400133"] and data.times.unit == "ms"
    data, _ = read(write(table([f"{0.05 * i:.2f}" for i in range(200)])))
    assert data.times.text(2) == ["0", "0.05"]


def test_dates_without_separators_in_a_column_called_date(write: Write) -> None:
    data, notes = read(write(table(["20240228", "20240229", "20240301"], "Date")))
    assert list(stamps(data)) == list(pd.date_range("2024-02-28", periods=3)) and notes == []
    assert not read(write(table(["20240228", "20240229", "20240230"])))[0].times.dated


def test_the_date_and_the_time_of_day_in_two_columns(write: Write) -> None:
    path = write("Date,Time,y\n2024-03-01,23:59:59,1\n2024-03-02,00:00:00,2\n2024-03-02,00:00:01,3\n")
    for keywords in ({}, {"time": ["Date", "Time"]}):
        data, notes = read(path, **keywords)
        assert list(stamps(data)) == list(pd.date_range("2024-03-01 23:59:59", periods=3, freq="s"))
        assert data.times.name == "Date Time" and notes == []


# Clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "zone"), [("+01:00", "+01:00"), ("-0530", "-05:30"), ("Z", "Z"), ("+02", "+02:00")])
def test_one_offset_is_kept(write: Write, offset: str, zone: str) -> None:
    data, notes = read(write(table([f"2024-03-01T12:0{i}:00{offset}" for i in range(3)])))
    assert data.times.zone == zone and notes == []
    assert data.times.text(3) == [f"2024-03-01T12:0{i}:00{zone}" for i in range(3)]


@pytest.mark.parametrize("day", ["2024-03-31", "2024-10-27"])
def test_daylight_saving_is_turned_to_utc(write: Write, day: str) -> None:
    expected = pd.date_range(day, periods=30, freq="h", tz="Europe/Berlin")
    data, notes = read(write(pd.DataFrame({"y": np.arange(30.0)}, expected.rename("when"))))
    assert list(stamps(data)) == list(expected.tz_convert("UTC").tz_localize(None))
    assert data.times.zone == "Z" and data.outputs[:, 0].tolist() == list(range(30))
    assert len(notes) == 1 and "several offsets from UTC" in notes[0]


def test_a_clock_that_is_set_back_needs_offsets(write: Write) -> None:
    local = pd.date_range("2024-10-27", periods=30, freq="h", tz="Europe/Berlin").tz_localize(None)
    message = refused(write(pd.DataFrame({"y": np.arange(30.0)}, local.rename("time"))))
    assert "same time 2024-10-27T02:00:00" in message and "A clock that is set back needs offsets from UTC" in message


# From rows to samples -------------------------------------------------------------------------

steps = st.sampled_from(["1ms", "250ms", "1s", "7s", "5min", "1h", "1D"])


@st.composite
def chosen_rows(draw: Any) -> tuple[int, list[int]]:
    """A length, and more than half of so many rows in any order, the first and the last among them."""
    length = draw(st.integers(3, 60))
    dropped = draw(st.sets(st.integers(1, length - 2), max_size=(length - 2) // 2))
    kept = [i for i in range(length) if i not in dropped]
    return length, draw(st.permutations(kept))


@many
@given(rows=chosen_rows(), step=steps, start=st.datetimes(pd.Timestamp("1970-01-02"), pd.Timestamp("2100-01-01")))
def test_shuffled_and_dropped_rows_are_the_regular_grid_with_gaps(file: Path, rows: Any, step: str, start: Any) -> None:
    length, kept = rows
    grid = pd.date_range(start, periods=length, freq=step, name="when")
    frame = pd.DataFrame({"y": np.arange(length) ** 2.0, "u": np.arange(length) + 0.5}, grid)
    frame.iloc[kept].to_csv(file, date_format="%Y-%m-%dT%H:%M:%S.%f")
    data, notes = read(file, "y", "u")
    expected = frame.iloc[sorted(kept)].reindex(grid)
    np.testing.assert_array_equal(data.outputs[:, 0], expected["y"])
    np.testing.assert_array_equal(data.inputs[:, 0], expected["u"].ffill())  # known, or a fit would refuse them
    assert list(stamps(data)) == list(grid)
    assert len(notes) == (kept != sorted(kept)) + (len(kept) < length)
    assert data.times.text(1) == [str(np.datetime64(grid[0], data_unit(data.times)))]


def data_unit(times: Times) -> Any:
    """The shortest in which nothing is lost."""
    sizes = {"D": UNITS["d"], "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
    return next(unit for unit, size in sizes.items() if times.start % size == 0 and times.step % size == 0)


@many
@given(
    rows=chosen_rows(),
    step=st.sampled_from(["0.001", "0.1", "0.25", "1", "3", "60", "1e-6"]),
    first=st.integers(-1000, 10**6),
)
def test_numbers_likewise(file: Path, rows: Any, step: str, first: int) -> None:
    length, kept = rows
    from decimal import Decimal

    grid = [(first + i) * Decimal(step) for i in range(length)]
    file.write_text("time,y\n" + "".join(f"{grid[i]},{i}\n" for i in kept))
    data, _ = read(file, time="time")
    np.testing.assert_array_equal(data.outputs[:, 0], [i if i in kept else nan for i in range(length)])
    assert data.times.step == float(step) and data.times.start == float(grid[0])
    np.testing.assert_allclose(data.times.values(length), np.array(grid, float), rtol=1e-13, atol=1e-15)


@many
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(20, 300),
    step=st.sampled_from([0.01, 1.0, 1.000003, 300.0]),
    gap=st.integers(0, 5),
)
def test_jitter_is_put_in_its_place_and_said(file: Path, seed: int, length: int, step: float, gap: int) -> None:
    rng = np.random.default_rng(seed)
    start = pd.Timestamp("2024-03-01 12:00").value
    kept = np.delete(np.arange(length), slice(length // 2, length // 2 + gap))
    times = start + np.round((kept + rng.uniform(-0.1, 0.1, len(kept))) * step * NANO).astype(np.int64)
    pd.DataFrame({"time": pd.DatetimeIndex(times), "y": kept}).to_csv(file, index=False)
    data, notes = read(file)
    np.testing.assert_array_equal(data.outputs[kept, 0], kept)
    assert len(data.outputs) == length and np.isnan(data.outputs).sum() == gap
    away = np.abs(data.times.values(length)[kept].astype(np.int64) - times)
    assert away.max() <= 0.25 * step * NANO
    assert "taken as regular" in notes[0] and len(notes) == 1 + (gap > 0)


def test_a_slow_clock_does_not_drift_off_the_grid(write: Write) -> None:
    """A step that is wrong by a thousandth is a hundred samples off after a hundred thousand."""
    length = 100_000
    rng = np.random.default_rng(0)
    values = np.round(np.arange(length) * 1.00137 + rng.uniform(-0.05, 0.05, length), 2)
    text = "t [s],y\n" + "".join(f"{t:.2f},{i % 7}\n" for i, t in enumerate(values.tolist()))
    data, notes = read(write(text))
    assert len(data.outputs) == length and not np.isnan(data.outputs).any() and len(notes) == 1
    assert data.times.step == pytest.approx(1.00137, rel=1e-6)
    np.testing.assert_allclose(data.times.values(length), values, atol=0.1)


def test_milliseconds_of_a_logger_leave_round_times(write: Write) -> None:
    rng = np.random.default_rng(1)
    times = pd.date_range("2024-03-01 12:00", periods=200, freq="s") + pd.to_timedelta(rng.integers(0, 6, 200), "ms")
    data, notes = read(write(pd.DataFrame({"y": np.arange(200.0)}, times.rename("time"))))
    assert data.times.step == NANO and notes == []  # less than a hundredth of a step is not worth a word
    assert abs(data.times.start - pd.Timestamp("2024-03-01 12:00").value) <= 6_000_000


def test_each_change_is_said_in_a_line(write: Write) -> None:
    path = write("time,y,u\n0,0,5\n20,2,6\n10,1,7\n20,2,6\n50,5,8\n")
    data, notes = read(path, "y", "u")
    np.testing.assert_array_equal(data.outputs[:, 0], [0, 1, 2, nan, nan, 5])
    np.testing.assert_array_equal(data.inputs[:, 0], [5, 7, 6, 6, 6, 8])
    assert notes == [
        f"{path}: column 'time' goes back at line 4: rows are sorted by it.",
        f"{path}: column 'time': 1 row(s) are there twice (the first is line 5): kept once.",
        f"{path}: 2 of 6 samples at a step of 10 have no row, the first at 30: there outputs are missing and inputs "
        "stay what they were.",
    ]


def test_two_rows_at_one_time_are_refused(write: Write) -> None:
    path = write("time,y\n2024-01-01,0\n2024-01-02,1\n2024-01-02,2\n2024-01-03,3\n")
    message = refused(path, time="time")
    assert "lines 3 and 4 have different numbers for the same time 2024-01-02 in " in message
    assert "--resample 1d or 1d:last" in message and "--id" in message
    np.testing.assert_array_equal(read(path, resample="1d")[0].outputs[:, 0], [0, 1.5, 3])
    np.testing.assert_array_equal(read(path, resample="1d:last")[0].outputs[:, 0], [0, 2, 3])


@pytest.mark.parametrize("name", ["time", "time [s]", "dates"])
def test_irregular_times_are_refused_with_ways_out_that_work(write: Write, name: str) -> None:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.2, 3, 80)).round(3)
    cells = [f"{pd.Timestamp('2024-03-01') + pd.Timedelta(t, 's')}" for t in times] if name == "dates" else times
    path = write(table(cells, name))
    message = refused(path)
    shortest = "207 ms" if name == "dates" else "0.207"
    assert f"column {name!r}: steps are from {shortest}" in message and "expected regular samples" in message
    assert "--time none" in message
    found = re.search(r"--resample (\S+) or (\S+:last)\)", message)
    assert found is not None
    for way in found.groups():
        data, notes = read(path, resample=way)
        assert data.times is not None and "resampled" in notes[0]
    assert read(path, time="none")[0].times is None


def test_a_recording_that_was_cut_is_refused_with_ways_out(write: Write) -> None:
    day = pd.date_range("2024-03-01 08:00", periods=50, freq="min")
    cut = day.append(day + pd.Timedelta("1D 20s")).rename("time")
    frame = pd.DataFrame({"y": np.arange(100.0), "day": np.repeat([1, 2], 50)}, cut)
    message = refused(write(frame))
    assert "a gap of 23.19 h before line 52, where the step is 1 min" in message
    assert "--id" in message and "--resample 1min or 1min:last" in message
    filled, _ = read(write(frame), resample="1min")
    assert (~np.isnan(filled.outputs)).sum() == 100
    data, notes = read(write(frame), id="day")
    assert isinstance(data, SeriesList) and notes == [] and list(map(len, data.outputs)) == [50, 50]
    assert data.times[1] is not None and data.times[1].text(1) == ["2024-03-02T08:00:20"]
    assert data.end is not None and data.end.text(1) == ["2024-03-02T08:49:20"]
    regular = day.append(day + pd.Timedelta("1D")).rename("time")
    assert "a gap of 23.19 h before line 52" in refused(write(pd.DataFrame({"y": np.arange(100.0)}, regular)))


def test_recordings_of_different_steps_are_refused(write: Write) -> None:
    a = write(table(pd.date_range("2024-03-01", periods=5, freq="s")), "a.csv")
    b = write(table(pd.date_range("2024-03-01", periods=5, freq="2s")), "b.csv")
    message = refused([a, b])
    assert f"{str(b)!r} has a step of 2 s, {str(a)!r} one of 1 s" in message
    data, _ = read([a, b], resample="2s")
    assert [t.step for t in data.times] == [2 * NANO] * 2


def test_a_single_row_has_no_step(write: Write) -> None:
    data, notes = read(write(table(["2024-03-01"])))
    assert data.times is None and notes == [] and data.outputs.tolist() == [[0.0]]


@many
@given(
    seed=st.integers(0, 10**6),
    rule=st.sampled_from(["2s", "500ms", "7s", "1min", "90s"]),
    last=st.booleans(),
    dated=st.booleans(),
)
def test_resampled_as_by_pandas(file: Path, seed: int, rule: str, last: bool, dated: bool) -> None:
    rng = np.random.default_rng(seed)
    size = int(pd.Timedelta(rule).value)
    offsets = np.cumsum(rng.integers(1, size, 60))
    day = pd.Timestamp("2024-03-01" if dated else "1970-01-01")
    times = pd.DatetimeIndex(day + pd.to_timedelta(offsets))
    values = np.where(rng.random(60) < 0.2, nan, rng.standard_normal(60))
    frame = pd.DataFrame({"y": values, "u": rng.standard_normal(60)}, times)
    if dated:
        frame.rename_axis("time").to_csv(file)
    else:
        frame.set_axis(offsets).rename_axis("time [ns]").to_csv(file)
    bins = frame.resample(rule)
    expected = bins.last() if last else bins.mean()
    data, notes = read(file, "y", "u", resample=f"{rule}:last" if last else rule)
    np.testing.assert_allclose(data.outputs[:, 0], expected["y"], rtol=1e-12)
    empty = (bins.size() == 0).to_numpy()
    np.testing.assert_allclose(data.inputs[:, 0], expected["u"].ffill(), rtol=1e-12)
    assert len(notes) == 1 + empty.any() and "60 rows resampled to a step of" in notes[0]
    if dated:
        assert list(stamps(data)) == list(expected.index)
    else:
        np.testing.assert_allclose(data.times.values(len(expected)), expected.index.asi8, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "resample", "message"),
    [
        ("time", "2s", "column 'time' has none that is known; expected a number alone"),
        ("time [s]", "2 parsecs", "expected a step such as 2s"),
        ("time [s]", "0s", "expected a step such as 2s"),
        ("time [s]", "-1s", "expected a step such as 2s"),
        ("time [s]", "2s:first", "expected a step such as 2s"),
        ("time [s]", "1us", "expected a longer step"),
        ("time", "1e-300", "expected a longer step"),
        ("x", "2s", "no column of times was found"),
    ],
)
def test_steps_that_cannot_be(write: Write, name: str, resample: str, message: str) -> None:
    found = refused(write(table(range(10), name)), resample=resample)
    assert found.startswith("resample: ") and message in found


def test_dates_need_a_unit_to_resample(write: Write) -> None:
    path = write(table(pd.date_range("2024-03-01", periods=9, freq="s")))
    assert "has no unit" in refused(path, resample="2")
    assert "whole number of nanoseconds" in refused(path, resample="0.5ns")
    np.testing.assert_array_equal(read(path, resample="2s")[0].outputs[:, 0], [0.5, 2.5, 4.5, 6.5, 8])
    in_ms = write(table(range(0, 9000, 1000), "t (ms)"))
    np.testing.assert_array_equal(read(in_ms, resample="2s")[0].outputs[:, 0], [0.5, 2.5, 4.5, 6.5, 8])
    assert read(in_ms, resample="2000")[0].times.step == 2000


@many
@given(cells=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_any_numbers_as_times(file: Path, cells: list[float]) -> None:
    """They are used or refused in one sentence."""
    file.write_text(table(map(repr, cells)))
    for keywords in ({"time": "time"}, {}, {"time": "time", "resample": "1"}):
        try:
            data, _ = read(file, **keywords)
        except InvalidInput as error:
            assert "\n" not in str(error) and str(error).endswith(".")
        else:
            assert np.nansum(data.outputs) <= sum(range(len(cells))) and len(data.outputs) <= 100 * len(cells)


# Which column it is ---------------------------------------------------------------------------


def test_columns_that_look_like_times() -> None:
    assert all(map(looks_like_time, ["time", "Time", "TIMESTAMP", "Date/Time", "date", "Zeit [s]", "time_ms", "Datum"]))
    assert not any(map(looks_like_time, ["t", "run time", "uptime", "y", "", "0", "temperature", "x" * 10**6]))


def test_a_temperature_is_not_a_time(write: Write) -> None:
    for cells in ([20.1, 20.3, 20.2, 20.4, 20.1, 19.9], [20.0] * 6, [20.1, 20.1, 20.2, 20.2, 20.3, 20.3]):
        data, notes = read(write(table(cells, "t")))
        assert data.times is None and notes == []


def test_numbers_called_time_that_do_not_increase_are_said_not_to_be_used(write: Write) -> None:
    data, notes = read(write(table([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3])))
    assert data.times is None and len(notes) == 1
    assert "column 'time' looks like times but is not used: its numbers do not increase from row to row" in notes[0]
    assert read(write(table([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3])), time="none")[1] == []


def test_dates_are_found_whatever_they_are_called(write: Write) -> None:
    assert read(write("when,y\n2024-01-01,1\n2024-01-02,2\n"))[0].times.name == "when"
    constant, notes = read(write("made,y\n2024-01-01,1\n2024-01-01,2\n2024-01-01,3\n"))
    assert constant.times is None and notes == []


def test_of_two_that_may_be_the_time_dates_are_taken_and_it_is_said(write: Write) -> None:
    path = write("t,timestamp,y\n0,2024-01-01,1\n1,2024-01-02,2\n2,2024-01-03,3\n")
    data, notes = read(path)
    assert data.times.dated and len(notes) == 1
    assert "column 'timestamp' is taken as the time, 't' would be possible, too" in notes[0]
    data, notes = read(path, time="t")
    assert data.times == Times(0.0, 1.0, name="t") and notes == []
    data, notes = read(write("time,t,y\n0,5,1\n1,6,2\n2,7,3\n"))
    assert data.times.name == "time" and len(notes) == 1


def test_columns_that_are_used_are_not_the_time(write: Write) -> None:
    path = write("time,t,y\n0,5,1\n1,6,2\n2,7,3\n")
    assert read(path, ["time", "t"])[0].times is None
    assert "time: column 'y' is already in outputs" in refused(path, time="y")
    assert "time: no column 'when'" in refused(path, time="when")


def test_times_of_interleaved_recordings(write: Write) -> None:
    path = write("run,time,y\na,0,1\nb,100,2\na,1,3\nb,101,4\na,3,5\nb,102,6\n")
    data, notes = read(path, id="run")
    np.testing.assert_array_equal(data.outputs[0][:, 0], [1, 3, nan, 5])
    assert data.times == (Times(0.0, 1.0), Times(100.0, 1.0))
    assert len(notes) == 1 and notes[0].startswith(f"{path}: a: 1 of 4 samples")


def test_not_every_one_of_many_recordings_is_talked_about(write: Write) -> None:
    path = write("run,time,y\n" + "".join(f"{run},{t},{t}\n" for run in range(30) for t in (0, 1, 3)))
    data, notes = read(path, id="run")
    assert [len(y) for y in data.outputs] == [4] * 30
    assert len(notes) == 11 and notes[-1] == "20 more recordings were changed in such ways."


# Cells and separators -------------------------------------------------------------------------


def test_words_of_one_s_own_for_missing_values(write: Write) -> None:
    path = write("y,u\n1,2\n-999,3\nERR,4\n -999 ,bad\n")
    data, _ = read(path, "y", "u", na=["-999", "err", "BAD"])
    np.testing.assert_array_equal(data.outputs[:, 0], [1, nan, nan, nan])
    np.testing.assert_array_equal(data.inputs[:, 0], [2, 3, 4, nan])
    assert "'ERR' is not a number" in refused(path, na="-999")
    np.testing.assert_array_equal(read(write("1,ERR\n2,3\n"), 0, na=["ERR"])[0].outputs[:, 0], [1, 2])
    assert "na: expected words" in refused(path, na=[-999])


@pytest.mark.parametrize("spaces", [" ", "   "])
def test_spaces_as_separators_are_found(write: Write, spaces: str) -> None:
    text = " time  y   u\n 0  1.5  -1 \n 1  NA   3e2\n\n 2  -    4\n".replace("  ", spaces)
    data, _ = read(write(text), "y", "u")
    np.testing.assert_array_equal(data.outputs[:, 0], [1.5, nan, nan])
    np.testing.assert_array_equal(data.inputs[:, 0], [-1, 300, 4])
    assert data.times == Times(0.0, 1.0)
    expected = pd.read_csv(io.StringIO(text), sep=r"\s+", na_values=["-"])
    np.testing.assert_array_equal(data.outputs[:, 0], expected["y"])


def test_a_name_with_a_space_is_one_column(write: Write) -> None:
    assert read(write("water level\n1\n2\n"), "water level")[0].outputs[:, 0].tolist() == [1, 2]
    assert "line 3 has 3 cell(s)" in refused(write("a b\n1 2\n3 4 5\n"), "a", delimiter="space")


@pytest.mark.parametrize("delimiter", ["|", ":", "tab", "\\t", "\t", "space", " "])
def test_a_chosen_delimiter(write: Write, delimiter: str) -> None:
    character = {"tab": "\t", "\\t": "\t", "space": " "}.get(delimiter, delimiter)
    path = write("a;x,y\n1,5;2,6\n".replace(",", ".").replace(";", character) + f"3{character}4\n")
    assert read(path, 1, delimiter=delimiter)[0].outputs[:, 0].tolist() == [2.6, 4]


@pytest.mark.parametrize("delimiter", ["", "||", '"', "\n", 3])
def test_what_cannot_be_a_delimiter(write: Write, delimiter: Any) -> None:
    assert "delimiter: expected one character" in refused(write("y\n1\n"), delimiter=delimiter)


# Times ----------------------------------------------------------------------------------------


def test_durations_in_words() -> None:
    for text, expected in [("5min", "5 min"), ("90s", "90 s"), ("1D", "1 d"), ("36h", "36 h"), ("1500us", "1.5 ms")]:
        assert duration(pd.Timedelta(text).value) == expected
    assert list(UNITS.values()) == [pd.Timedelta(f"1{unit}".replace("d", "D")).value for unit in UNITS]


def test_clocks_that_can_be_compared() -> None:
    utc, berlin = Times(0, NANO, True, zone="Z"), Times(3600 * NANO + 5 * NANO, NANO, True, zone="+01:00")
    assert utc.steps_until(berlin) == 5 and berlin.steps_until(utc) == -5
    assert Times(0, 1, True).steps_until(utc) is None and Times(0.0, 1.0).steps_until(utc) is None
    assert Times(0.0, 1.0, unit="s").same_step(utc) and not Times(0.0, 1.1, unit="s").same_step(utc)
    assert Times(0.0, 5.0).same_step(utc)  # whatever it is in
    assert not Times(0.0, 5.0).same_step(Times(0.0, 1.0, unit="s"))


def test_days_are_written_without_a_time_of_day() -> None:
    day = pd.Timestamp("2024-03-01").value
    assert Times(day, UNITS["d"], True).text(2) == ["2024-03-01", "2024-03-02"]
    assert Times(day, UNITS["d"], True, zone="Z").text(1) == ["2024-03-01T00:00:00Z"]
    assert Times(day, UNITS["h"], True).text(1) == ["2024-03-01T00:00:00"]


# Live -----------------------------------------------------------------------------------------


def test_the_time_of_a_live_sample_comes_back_as_it_was() -> None:
    lines = Lines(Names(["y"], ["u"]))
    found = [lines.read(line) for line in (b"u,Timestamp,y", b"1, yesterday ,2", b"3,,4")]
    assert found == [None, Sample([2.0], [1.0], "yesterday"), Sample([4.0], [3.0])]
    names = Names(["y"])
    assert from_json('{"y": 1, "time": "2024-03-01T12:00Z"}', names).time == "2024-03-01T12:00Z"
    assert from_json('{"y": 1, "date": 17.5, "time": 3}', names).time == 17.5
    assert from_fields({b"time": b"12:00", b"y": b"1"}, names).time == "12:00"
    assert from_json('{"y": 1, "time": 5}', Names(["y"], time="none")).time is None
    assert from_json('{"y": 1, "when": 5}', names).time is None
    assert from_json('{"y": 1, "when": 5}', Names(["y"], time="when")).time == 5
    assert from_json('{"y": 1, "time": 5}', Names(["time"])).time is None
    for value in ("[1]", "{}", "null", "true", "NaN", "Infinity", '""'):
        assert from_json(f'{{"y": 1, "time": {value}}}', names).time is None
    with pytest.raises(InvalidInput, match="time: no column 'when'"):
        Lines(Names(["y"], time="when")).read(b"t,y")
    with pytest.raises(InvalidInput, match="time: column 'y' is already in outputs"):
        Lines(Names(["y"], time="y")).read(b"t,y")


def test_an_estimate_has_the_time_of_its_sample() -> None:
    from gpssm.live.learner import Learner

    learner = Learner(gpssm.RGPSSM(1).start(), None, print)
    lines = Lines(Names(["y"]))
    found = [learner.line(lambda text=text: lines.read(text), "line", 1) for text in (b"time,y", b"noon,1", b",2")]
    assert found[0] is None and found[1] is not None and found[2] is not None
    assert json.loads(found[1])["time"] == "noon" and "time" not in json.loads(found[2])
