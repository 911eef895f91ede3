"""Recordings with dates, from `gpssm fit` to the dates of a forecast; the dates are those of pandas."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpssm
from test_cli_files import Result, run, simulate, succeed

TRAIN, TEST = 200, 60
STEP = "5min"


def grid(length: int, first: int = 0, step: str = STEP) -> pd.DatetimeIndex:
    start = pd.Timestamp("2024-03-01 23:00") + first * pd.Timedelta(step)
    return pd.date_range(start, periods=length, freq=step, name="Timestamp")


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    u, y = simulate(TRAIN + TEST)
    return pd.DataFrame({"valve": u, "level": y}, grid(TRAIN + TEST))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, frame: pd.DataFrame) -> Path:
    folder = tmp_path_factory.mktemp("times")
    frame[:TRAIN].to_csv(folder / "train.csv")
    frame[TRAIN:].to_csv(folder / "test.csv")
    return folder


@pytest.fixture(scope="session")
def model(place: Path) -> Path:
    path = place / "m.gpssm"
    assert fit(place / "train.csv", path).err == ""
    return path


def fit(data: Path, out: Path, *options: object) -> Result:
    return run("fit", data, "--outputs", "level", "--inputs", "valve", "--method", "ARX", "-o", out, *options)


def failed(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "") and result.err.count("\n") == 1
    return result.err


def future(tmp_path: Path, frame: pd.DataFrame) -> Path:
    path = tmp_path / "future.csv"
    frame[["valve"]].to_csv(path)
    return path


def test_a_model_knows_when_its_recording_ends(model: Path) -> None:
    fitted = gpssm.load(model)
    times = fitted.recording.times
    assert list(times.values(TRAIN)) == list(grid(TRAIN)) and times.name == "Timestamp"
    assert fitted.end.times.text(1) == ["2024-03-02T15:35:00"]


def test_a_forecast_has_real_dates(model: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    ahead = future(tmp_path, frame[TRAIN:])
    succeed("forecast", model, "--inputs", ahead, "-o", tmp_path / "forecast.csv")
    found = pd.read_csv(tmp_path / "forecast.csv", parse_dates=["Timestamp"])
    assert list(found.columns[:3]) == ["Timestamp", "step", "level_mean"]
    assert list(found["Timestamp"]) == list(frame.index[TRAIN:])
    printed = succeed("forecast", model, "--inputs", ahead, "--horizon", 2)
    assert printed["columns"]["Timestamp"] == ["2024-03-02T15:40:00", "2024-03-02T15:45:00"]
    result = run("forecast", model, "--inputs", ahead, "--horizon", 1)
    assert result.out.splitlines()[1].startswith("2024-03-02T15:40:00,1,")


def test_a_forecast_after_a_history_has_its_dates(model: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    frame[TRAIN : TRAIN + 30].to_csv(tmp_path / "history.csv")
    ahead = future(tmp_path, frame[TRAIN + 30 :])
    printed = succeed("forecast", model, "--history", tmp_path / "history.csv", "--inputs", ahead)
    assert pd.to_datetime(printed["columns"]["Timestamp"]).tolist() == list(frame.index[TRAIN + 30 :])


def test_times_that_are_numbers_stay_numbers(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.set_axis(0.5 * np.arange(TRAIN + TEST)).rename_axis("t [s]").to_csv(tmp_path / "train.csv")
    fit(tmp_path / "train.csv", tmp_path / "m")
    times = 0.5 * np.arange(TRAIN + TEST, TRAIN + TEST + 4)
    frame[:4].set_axis(times).rename_axis("t [s]").to_csv(tmp_path / "future.csv")
    printed = succeed("forecast", tmp_path / "m", "--inputs", tmp_path / "future.csv")
    assert printed["columns"]["t [s]"] == times.tolist()


def test_future_inputs_start_where_the_recording_ends(model: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    expected = succeed("forecast", model, "--inputs", future(tmp_path, frame[TRAIN:]))
    result = run("forecast", model, "--inputs", future(tmp_path, frame[TRAIN - 10 :]), "--json")
    assert json.loads(result.out) == expected
    assert "the first 10 row(s) of" in result.err and "begins at 2024-03-02T15:40:00" in result.err
    assert result.err.count("\n") == 1
    for rows in (slice(TRAIN + 1, None), slice(0, TRAIN)):
        message = failed("forecast", model, "--inputs", future(tmp_path, frame[rows]))
        assert (
            f"has the times from {frame.index[rows][0].isoformat()} to {frame.index[rows][-1].isoformat()}" in message
        )
        assert "expected 2024-03-02T15:40:00 to be the first" in message
    unknown = run("forecast", model, "--inputs", future(tmp_path, frame[TRAIN + 1 :]), "--time", "none", "--json")
    assert unknown.code == 0 and unknown.err == ""


def test_a_gap_in_future_inputs_is_held(model: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    ahead = frame[TRAIN:].drop(frame.index[TRAIN + 5])
    result = run("forecast", model, "--inputs", future(tmp_path, ahead), "--json")
    assert "1 of 60 samples" in result.err and "there inputs stay what they were" in result.err
    held = frame[TRAIN:].copy()
    held.iloc[5] = held.iloc[4]
    assert json.loads(result.out) == succeed("forecast", model, "--inputs", future(tmp_path, held))


def test_filtered_states_have_dates(model: Path, place: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    for option in ([], ["--smooth"]):
        succeed("filter", model, place / "test.csv", "-o", tmp_path / "states.csv", *option)
        found = pd.read_csv(tmp_path / "states.csv", parse_dates=["Timestamp"])
        assert found.columns[0] == "Timestamp" and list(found["Timestamp"]) == list(frame.index[TRAIN:])


def test_another_step_than_the_model_s_is_refused(model: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast.csv", tmp_path / "slow.csv"
    frame[:TEST].set_axis(grid(TEST, step="1min")).to_csv(fast)
    frame[:TEST].set_axis(grid(TEST, step="1h")).to_csv(slow)
    commands: list[tuple[object, ...]] = [
        ("filter", model, slow, "-o", tmp_path / "s.csv"),
        ("evaluate", model, slow),
        ("plot", model, "--data", slow, "-o", tmp_path / "p.png"),
        ("forecast", model, "--history", slow, "--inputs", slow),
        ("forecast", model, "--inputs", slow),
    ]
    for command in commands:
        message = failed(*command)
        assert "has a step of 1 h, the model learned from one of 5 min" in message
    result = run("filter", model, fast, "-o", tmp_path / "s.csv", "--resample", "5min")
    assert result.code == 0 and "60 rows resampled to a step of 5 min" in result.err
    assert len(pd.read_csv(tmp_path / "s.csv")) == TEST // 5


def test_a_test_that_does_not_follow_the_training_data_is_said(
    model: Path, place: Path, frame: pd.DataFrame, tmp_path: Path
) -> None:
    succeed("evaluate", model, place / "test.csv")  # does follow, and nothing is said
    frame[TRAIN + 10 :].to_csv(tmp_path / "late.csv")
    result = run("evaluate", model, tmp_path / "late.csv", "--json")
    assert result.code == 0 and result.err.count("\n") == 1
    assert "starts at 2024-03-02T16:30:00, 11 steps after 2024-03-02T15:35:00" in result.err
    assert "--fresh" in result.err and "--history" in result.err
    succeed("evaluate", model, tmp_path / "late.csv", "--fresh", "--block", 10)
    frame[: TRAIN + 10].to_csv(tmp_path / "history.csv")
    succeed("evaluate", model, tmp_path / "late.csv", "--history", tmp_path / "history.csv")
    result = run("evaluate", model, place / "train.csv", "--json")
    assert "starts at 2024-03-01T23:00:00, not after 2024-03-02T15:35:00" in result.err
    result = run("plot", model, "--data", tmp_path / "late.csv", "-o", tmp_path / "p.png", "--json")
    assert result.code == 0 and "11 steps after" in result.err and result.err.count("\n") == 1


def test_unsorted_and_cut_recordings_are_put_right_with_a_word(
    model: Path, frame: pd.DataFrame, tmp_path: Path
) -> None:
    """As if the rows had come in order, and those that are missing had been empty."""
    rows = frame[:TRAIN].drop(frame.index[[20, 21, 90]])
    rows.sample(frac=1.0, random_state=0).to_csv(tmp_path / "shuffled.csv")
    gaps = rows.reindex(frame.index[:TRAIN])
    gaps.assign(valve=gaps["valve"].ffill()).to_csv(tmp_path / "gaps.csv")
    result = fit(tmp_path / "shuffled.csv", tmp_path / "a", "--quiet")
    said = result.err.splitlines()
    assert result.code == 0 and len(said) == 2 and all(line.startswith("gpssm: ") for line in said)
    assert "rows are sorted by it" in said[0] and "3 of 200 samples at a step of 5 min have no row" in said[1]
    assert fit(tmp_path / "gaps.csv", tmp_path / "b").err == ""
    a, b = gpssm.load(tmp_path / "a"), gpssm.load(tmp_path / "b")
    assert a.recording.times == b.recording.times
    inputs = frame[["valve"]][TRAIN:].to_numpy()
    np.testing.assert_array_equal(a.forecast(TEST, inputs).samples, b.forecast(TEST, inputs).samples)


def test_irregular_recordings_are_refused_before_the_fit(frame: pd.DataFrame, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = frame.index[0] + pd.to_timedelta(np.cumsum(rng.uniform(10, 500, TRAIN)), "s")
    data = tmp_path / "irregular.csv"
    frame[:TRAIN].set_axis(times.rename("time")).to_csv(data)
    arguments: tuple[Any, ...] = ("fit", data, "--outputs", "level", "--method", "ARX", "-o", tmp_path / "m")
    message = failed(*arguments)
    assert "column 'time': steps are from" in message and "--resample" in message and ":last" in message
    for option, value in (("--resample", "10min"), ("--resample", "10min:last"), ("--time", "none")):
        assert run(*arguments, option, value).code == 0
        times_kept = gpssm.load(tmp_path / "m").recording.times
        assert times_kept is None if value == "none" else times_kept.step_text == "10 min"


def test_other_options_for_tables(frame: pd.DataFrame, tmp_path: Path) -> None:
    text = frame[:TRAIN].reset_index(drop=True).to_csv(sep="|", index_label="n")
    lines = text.splitlines()
    lines[5] = "4|0.5|?"
    lines[6] = lines[6].rpartition("|")[0] + "|bad"
    (tmp_path / "odd.csv").write_text("\n".join(lines))
    options = ("--delimiter", "|", "--na", "bad", "--time", "n")
    result = fit(tmp_path / "odd.csv", tmp_path / "m", *options)
    assert (result.code, result.err) == (0, "")
    recording = gpssm.load(tmp_path / "m").recording
    assert np.flatnonzero(np.isnan(recording.outputs[:, 0])).tolist() == [4, 5]
    assert recording.times is not None and recording.times.name == "n"
    message = failed(
        "fit", tmp_path / "odd.csv", "--outputs", "level", "-o", tmp_path / "x", "--method", "ARX", "--delimiter", "|"
    )
    assert "'bad' is not a number" in message
    result = fit(tmp_path / "odd.csv", tmp_path / "m", *options, "--na", "0.5")
    assert result.code == 2 and "inputs" in result.err
