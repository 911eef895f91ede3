"""Backtests of several methods: what each has seen when it forecasts, what is scored, and what is said of it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpssm
from gpssm.datasets import Series
from gpssm.datasets.csv_files import to_csv
from gpssm.datasets.series import SeriesList
from gpssm.errors import InvalidInput
from gpssm.parallel.backtest import Backtest
from gpssm.plumbing.times import Times


def driven(length=160, seed=0):
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=(length, 1)), np.zeros((length, 1))
    for t in range(1, length):
        y[t] = 0.8 * y[t - 1] + u[t] + 0.05 * rng.normal()
    return Series(y, u, None, ("level",), ("valve",), Times(0, 60_000_000_000, dated=True))


def test_a_backtest_is_what_a_loop_over_the_origins_gives():
    data = driven()
    found = gpssm.backtest([gpssm.ARX(order=1), "TrainingMean"], data, origins=3, horizon=10, seed=5)
    assert found.origins == (130, 140, 150) and found.horizon == 10
    model, state = gpssm.ARX(order=1).fit(data.outputs[:130], data.inputs[:130]), None
    errors = []
    for start in found.origins:
        if start > 130:
            rows = slice(start - 10, start)
            state = model.filter(data.outputs[rows], data.inputs[rows], state=state or model.end)
        ahead = model.forecast(10, data.inputs[start : start + 10], state=state, num_paths=4000)
        errors.append(ahead.mean - data.outputs[start : start + 10])
    rmse = np.sqrt(np.mean(np.concatenate(errors) ** 2))
    (score,) = [s for s in found.scores if s.method == "ARX"]
    assert score.rmse[0] == pytest.approx(rmse, rel=0.05)
    assert found.best == "ARX" and found.verdict == "Use ARX."


def test_with_refits_every_forecast_has_learned_from_all_samples_before_it():
    """A level that jumps: the mean of what was seen before each origin."""
    y = np.concatenate([np.zeros(60), np.full(60, 10.0)])[:, None] + 0.01 * np.random.default_rng(0).normal(
        size=(120, 1)
    )
    once, again = (
        gpssm.backtest(["TrainingMean"], Series(y, None, None), origins=4, horizon=15, refit=refit)
        for refit in (False, True)
    )
    means = [paths.mean() for paths in again.paths["TrainingMean"]]
    np.testing.assert_allclose(means, [y[:start].mean() for start in again.origins], atol=0.5)
    np.testing.assert_allclose([p.mean() for p in once.paths["TrainingMean"]], y[:60].mean(), atol=0.5)


def test_the_table_is_tidy_and_has_the_users_names_and_times():
    data = driven()
    found = gpssm.backtest(["ARX", "LastValue"], data, origins=2, horizon=20)
    frame = found.to_dataframe()
    assert (
        len(frame) == 2 * 2 * 1 and set(frame["method"]) == {"ARX", "LastValue"} and set(frame["output"]) == {"level"}
    )
    assert frame["origin"].tolist()[:2] == ["1970-01-01T02:00:00", "1970-01-01T02:20:00"]
    assert (frame["horizon"] == 20).all() and np.isfinite(frame["rmse"]).all()
    forecast = found.forecast("ARX")
    assert forecast.samples.shape[1:] == (40, 1) and forecast.times.text(1) == ["1970-01-01T02:00:00"]
    assert "level" in str(found) and found.verdict in str(found)


def test_of_several_recordings_the_longest_is_forecast_and_the_others_are_learned_from():
    long, short = driven(100), np.full((30, 1), 50.0) + np.random.default_rng(0).normal(size=(30, 1))
    data = SeriesList([short, long.outputs], None, ("a", "b"), ("level",))
    found = gpssm.backtest(["TrainingMean"], data, origins=1, horizon=10)
    np.testing.assert_array_equal(found.data.outputs, long.outputs)
    expected = np.concatenate([short, long.outputs[:90]]).mean()
    assert found.paths["TrainingMean"][0].mean() == pytest.approx(expected, abs=2.0)
    assert "of the longest of 2 recordings" in str(found)


def test_a_recording_that_nothing_can_be_learned_from_is_refused_in_a_sentence():
    found = gpssm.backtest(["ARX", "TrainingMean"], Series(np.full((80, 1), 3.0), None, None))
    with pytest.raises(
        InvalidInput, match=r"none can forecast this recording \(ARX: InvalidInput: outputs: .* is constant"
    ):
        _ = found.best


def test_a_method_that_fails_or_learns_live_is_one_of_them():
    found = gpssm.backtest(
        {"too many": gpssm.ARX(order=70), "live": gpssm.VJF(1, num_inducing=2), "mean": "TrainingMean"},
        Series(driven(140).outputs, None, None), origins=2, horizon=10,
    )  # fmt: skip
    assert set(found.paths) == {"live", "mean"} and "InvalidInput" in found.failures["too many"]
    assert "too many" in str(found) and "failed" in str(found)
    assert found.paths["live"][1].shape[1:] == (10, 1)


def paths_of(error):
    """A forecast of zeros that is wrong by `error` everywhere."""
    return [np.stack([np.full((50, 1), error + d) for d in (-0.1, 0.0, 0.1)])]


@pytest.mark.parametrize(
    ("errors", "best", "said"),
    [
        ({"EnVI": 0.1, "ARX": 0.5, "TrainingMean": 1.0}, "EnVI", "a line is not enough (ARX has 5.00 times its error)"),
        ({"EnVI": 0.1, "ARX": 0.102, "TrainingMean": 1.0}, "ARX", "a line is enough (EnVI has 0.98 times its error)"),
        ({"EnVI": 1.1, "ARX": 1.2, "TrainingMean": 1.0}, "TrainingMean", "nothing here forecasts better"),
        ({"EnVI": 0.1, "TrainingMean": 1.0}, "EnVI", "Use EnVI."),
    ],
)
def test_it_ends_with_one_sentence(errors, best, said):
    data = Series(np.where(np.arange(50) % 2, 1e-3, -1e-3)[:, None], None, None).numbered()
    paths = {name: paths_of(error) for name, error in errors.items()}
    found = Backtest(data, (0,), 50, paths, {}, dict.fromkeys(errors, 1.0))
    assert found.best == best and said in found.verdict


def test_in_doubt_it_is_not_the_line():
    """A line that is better twice and worse twice: its error is the smaller one, but four forecasts do not tell."""
    data = Series(np.where(np.arange(200) % 2, 1e-3, -1e-3)[:, None], None, None).numbered()
    errors = {"EnVI": [0.1, 0.1, 0.3, 0.3], "ARX": [0.3, 0.25, 0.1, 0.1]}
    paths = {name: [paths_of(error)[0] for error in each] for name, each in errors.items()}
    found = Backtest(data, (0, 50, 100, 150), 50, paths, {}, dict.fromkeys(errors, 1.0))
    assert found.scores[0].method == "ARX" and found.best == "EnVI" and "may be enough" in found.verdict


def test_nonsense_is_refused():
    data = driven(60)
    for methods in ([], "ARX", 3, ["ARX", "ARX"], [object()], ["nobody"]):
        with pytest.raises(InvalidInput, match="method"):
            gpssm.backtest(methods, data)
    with pytest.raises(InvalidInput, match=r"origins: 50 forecast\(s\) of 1 step"):
        gpssm.backtest(["ARX"], data, origins=50, horizon=1)
    with pytest.raises(InvalidInput, match="data: expected a recording"):
        gpssm.backtest(["ARX"], data.outputs)


def test_the_command_ranks_draws_and_says_which_to_use(tmp_path: Path):
    data = driven(120)
    dates = data.times.text(120)
    rows = [f"{d},{u},{y}" for d, u, y in zip(dates, data.inputs[:, 0], data.outputs[:, 0], strict=True)]
    (tmp_path / "log.csv").write_text("\n".join(["when,valve,level", *rows]) + "\n")
    command = [sys.executable, "-m", "gpssm", "compare", "log.csv", "--outputs", "level", "--inputs", "valve"]
    command += ["--methods", "ARX,LastValue,TrainingMean", "--origins", "2", "--horizon", "10"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-2] == "Use ARX." and lines[-1] == "picture: compare.png"
    assert (tmp_path / "compare.png").read_bytes()[:4] == b"\x89PNG"
    done = subprocess.run([*command, "--json", "-o", "c.svg"], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["best"] == found["ranking"][0]["method"] == "ARX" and len(found["rows"]) == 3 * 2
    assert found["rows"][0]["origin"].startswith("1970-01-01T")
    words = (tmp_path / "c.svg").read_text()
    assert "<svg" in words
    to_csv(tmp_path / "short.csv", {"level": np.arange(10.0)})
    bad = subprocess.run(
        [*command[:4], "short.csv", "--outputs", "level"], cwd=tmp_path, capture_output=True, text=True
    )
    assert bad.returncode == 2 and "origins:" in bad.stderr and len(bad.stderr.splitlines()) == 1
