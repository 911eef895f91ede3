"""The commands on a user's own files: fit, filter, forecast, evaluate, plot."""

import dataclasses
import errno
import io
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

import gpssm
from gpssm import evaluation, metrics
from gpssm.cli import plot
from gpssm.cli.main import main
from gpssm.datasets import columns, from_csv, kink, to_csv
from gpssm.datasets.series import Series
from gpssm.methods.arx import ARX
from gpssm.models.emission import FunctionEmission
from gpssm.plumbing import atomic
from gpssm.plumbing.times import Times
from gpssm.posteriors.verdict import words

TRAIN, TEST = 240, 60
HORIZON = 20  # of all forecasts of EnVI: compiled once


class Result(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: object) -> Result:
    """The command line in this process: importing JAX for every call would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            patch.object(sys, "argv", ["gpssm", *map(str, arguments)]),
            pytest.raises(SystemExit) as ended,
        ):
            main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    code = ended.value.code
    return Result(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def succeed(*arguments: object) -> Any:
    """What the command printed as JSON."""
    result = run(*arguments, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def table(path: Path) -> dict[str, np.ndarray]:
    names = columns(path)
    return dict(zip(names, from_csv(path, names).outputs.T, strict=True))


def simulate(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Input and output of a damped oscillator that is pushed around."""
    rng = np.random.default_rng(0)
    u = np.repeat(rng.standard_normal(length // 5), 5)
    x, y = np.zeros(2), np.empty(length)
    for t in range(length):
        x = np.array([0.9 * x[0] + 0.3 * x[1], 0.7 * x[1] - 0.3 * x[0] + 0.6 * u[t]]) + 0.1 * rng.standard_normal(2)
        y[t] = 20.0 + 5.0 * x[0]
    return u, y


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings with and without an input, and a model of each."""
    place = tmp_path_factory.mktemp("files")
    u, y = simulate(TRAIN + TEST)
    y[7] = np.nan
    for name, rows in (("train", slice(None, TRAIN)), ("test", slice(TRAIN, None))):
        to_csv(place / f"{name}.csv", {"time": np.arange(len(y))[rows], "valve": u[rows], "level": y[rows]})
    free = kink(120, 0.05, 0.008, seed=0).outputs[:, 0]
    to_csv(place / "kink.csv", {"y": free[:80]})
    to_csv(place / "kink_test.csv", {"y": free[80:]})
    return place


@pytest.fixture(scope="session")
def arx(folder: Path) -> Path:
    """A model with an input."""
    path = folder / "arx.gpssm"
    printed = succeed(
        "fit", folder / "train.csv", "--outputs", "level", "--inputs", "valve", "--method", "arx", "-o", path
    )
    assert printed.keys() == {
        "model", "method", "state_dim", "outputs", "inputs", "recordings", "samples", "log_likelihood", "iterations",
        "fit_seconds", "compile_seconds", "converged", "interrupted", "messages", "check", "calibration",
    }  # fmt: skip
    assert (printed["model"], printed["method"], printed["samples"]) == (str(path), "ARX", TRAIN)
    assert (printed["outputs"], printed["inputs"], printed["recordings"]) == (["level"], ["valve"], 1)
    return path


@pytest.fixture(scope="session")
def envi(folder: Path) -> Path:
    """A model without inputs, learned in a few seconds."""
    path = folder / "kink.gpssm"
    arguments = ("--outputs", "y", "--state-dim", 1, "--num-inducing", 8, "--seed", 1, "-o", path)
    result = run("fit", folder / "kink.csv", *arguments, "--quiet")  # a busy machine may take long enough to be told of
    assert (result.code, result.err) == (0, "")
    fitted = gpssm.load(path)
    assert result.out == f"{fitted.summary()}\n\nmodel: {path}\n"
    assert fitted.recording.output_names == ("y",) and (fitted.state_dim, fitted.model.num_inducing) == (1, 8)
    return path


def test_fit_is_the_fit_of_the_library(folder: Path, arx: Path) -> None:
    fitted, data = gpssm.load(arx), from_csv(folder / "train.csv", "level", "valve")
    assert fitted.recording.output_names == ("level",) and fitted.recording.input_names == ("valve",)
    same = ARX().fit(data.outputs, data.inputs)
    assert fitted.log_likelihood(data.outputs, data.inputs) == same.log_likelihood(data.outputs, data.inputs)


def test_fit_several_recordings(folder: Path, tmp_path: Path) -> None:
    """Two files, or one with a column that tells recordings apart: the same model."""
    both = [table(folder / f"{name}.csv") for name in ("train", "test")]
    joined = {name: np.concatenate([part[name] for part in both]) for name in ("level", "valve")}
    to_csv(tmp_path / "joined.csv", joined | {"run": np.repeat([1, 2], [TRAIN, TEST])})
    names = ("--outputs", "level", "--inputs", "valve", "--method", "ARX")
    models = tmp_path / "a.gpssm", tmp_path / "b.gpssm"
    two = succeed("fit", folder / "train.csv", folder / "test.csv", *names, "-o", models[0])
    one = succeed("fit", tmp_path / "joined.csv", *names, "--id", "run", "-o", models[1])
    assert two["recordings"] == one["recordings"] == 2
    assert two["samples"] == one["samples"] == TRAIN + TEST
    assert two["log_likelihood"] == pytest.approx(one["log_likelihood"], rel=1e-12)


def test_columns_by_name_or_number_with_commas_or_repeated(folder: Path, tmp_path: Path) -> None:
    """A person without names in the file counts the columns from 0; filter then finds them again."""
    values = np.column_stack(list(table(folder / "train.csv").values()))
    np.savetxt(tmp_path / "bare.csv", np.nan_to_num(values, nan=20.0), delimiter=",")
    model, states = tmp_path / "m.gpssm", tmp_path / "states.csv"
    fit = ("fit", "--method", "LastValue", "-o", model)
    printed = succeed(*fit, tmp_path / "bare.csv", "--outputs", "2,1", "--inputs", "0")
    assert (printed["outputs"], printed["inputs"]) == (["2", "1"], ["0"])
    assert succeed("filter", model, tmp_path / "bare.csv", "-o", states)["samples"] == TRAIN
    np.testing.assert_allclose(table(states)["x1_mean"], np.nan_to_num(values[:, 2], nan=20.0))
    printed = succeed(*fit, folder / "train.csv", "--outputs", "level", "--outputs", "1")
    assert printed["outputs"] == ["level", "valve"]


@pytest.mark.parametrize("smooth", [False, True])
def test_filter(folder: Path, envi: Path, tmp_path: Path, smooth: bool) -> None:
    out = tmp_path / "states.csv"
    printed = succeed("filter", envi, folder / "kink_test.csv", "-o", out, *(["--smooth"] if smooth else []))
    fitted, y = gpssm.load(envi), from_csv(folder / "kink_test.csv", "y").outputs
    states = fitted.smooth(y) if smooth else fitted.filter(y)
    found = table(out)
    assert list(found) == ["x1_mean", "x1_sd"]
    np.testing.assert_array_equal(found["x1_mean"], states.mean[:, 0])
    np.testing.assert_array_equal(found["x1_sd"], states.std[:, 0])
    assert printed["log_likelihood"] == states.log_likelihood and printed["smoothed"] is smooth


def test_filter_by_another_filter(folder: Path, envi: Path, arx: Path, tmp_path: Path) -> None:
    data, out = folder / "kink_test.csv", tmp_path / "states.csv"
    succeed("filter", envi, data, "-o", out, "--filter", "extended")
    states = gpssm.load(envi).filter(from_csv(data, "y").outputs, filter="extended")
    np.testing.assert_array_equal(table(out)["x1_mean"], states.mean[:, 0])
    for model, options, message in (
        (envi, ["--filter", "kalman"], "filter: expected one of ensemble, particle, extended"),
        (envi, ["--filter", "particle", "--smooth"], "leave out --filter or --smooth"),
        (arx, ["--filter", "extended"], "is filtered exactly"),
    ):
        result = run("filter", model, data, "-o", tmp_path / "none.csv", "--outputs", "y", *options)
        assert result.code == 2 and message in result.err
        assert not (tmp_path / "none.csv").exists()


def test_a_linear_model_is_described_and_filtered_like_any_other(folder: Path, arx: Path, tmp_path: Path) -> None:
    arguments = ("--outputs", "level", "--inputs", "valve", "--method", "ARX", "-o", tmp_path / "m.gpssm")
    fitted = gpssm.load(arx)
    assert run("fit", folder / "train.csv", *arguments).out == f"{fitted.summary()}\n\nmodel: {tmp_path / 'm.gpssm'}\n"
    for name, options in (("named", ["--filter", "kalman"]), ("default", [])):
        succeed("filter", arx, folder / "test.csv", "-o", tmp_path / name, *options)
    assert (tmp_path / "named").read_text() == (tmp_path / "default").read_text()


def test_filter_finds_other_columns_when_told(folder: Path, arx: Path, tmp_path: Path) -> None:
    data = table(folder / "test.csv")
    to_csv(tmp_path / "other.csv", {"h": data["level"], "q": data["valve"], "time": data["time"]})
    result = run("filter", arx, tmp_path / "other.csv", "-o", tmp_path / "s.csv")
    assert result.code == 2 and "outputs: no column 'level'" in result.err
    result = run("filter", arx, tmp_path / "other.csv", "-o", tmp_path / "s.csv", "--outputs", "h", "--inputs", 1)
    assert result.code == 0 and result.out.startswith(f"{TEST} samples, log-likelihood ")
    succeed("filter", arx, folder / "test.csv", "-o", tmp_path / "same.csv")
    assert (tmp_path / "s.csv").read_text() == (tmp_path / "same.csv").read_text()


def test_forecast_without_inputs(envi: Path, tmp_path: Path) -> None:
    """Printed, in a file and as JSON: the same numbers, those of the library."""
    out = tmp_path / "f.csv"
    printed = run("forecast", envi, "--horizon", HORIZON, "--seed", 3)
    assert (printed.code, printed.err) == (0, "")
    assert succeed("forecast", envi, "--horizon", HORIZON, "--seed", 3, "-o", out) == {
        "model": str(envi), "horizon": HORIZON, "paths": 500, "diverged": None, "out": str(out),
    }  # fmt: skip
    assert out.read_text() == printed.out
    as_json = succeed("forecast", envi, "--horizon", HORIZON, "--seed", 3)["columns"]
    paths, found = gpssm.load(envi).forecast(HORIZON, seed=3), table(out)
    assert list(found) == ["step", "y_mean", "y_sd", "y_q05", "y_q50", "y_q95"]
    np.testing.assert_array_equal(found["step"], np.arange(1, HORIZON + 1))
    expected = (paths.mean, paths.std, *paths.quantile([0.05, 0.5, 0.95]))
    for name, values in zip(list(found)[1:], expected, strict=True):
        np.testing.assert_array_equal(found[name], values[:, 0])
        np.testing.assert_array_equal(as_json[name], values[:, 0])


def test_forecast_with_history_and_inputs(folder: Path, arx: Path, tmp_path: Path) -> None:
    """Future inputs may come without outputs; the end of the training data is the default history."""
    out, future = tmp_path / "f.csv", tmp_path / "future.csv"
    data = table(folder / "test.csv")
    to_csv(future, {"valve": data["valve"]})
    assert succeed("forecast", arx, "--inputs", future, "-o", out)["horizon"] == TEST
    fitted = gpssm.load(arx)
    expected = fitted.forecast(TEST, data["valve"])
    np.testing.assert_array_equal(table(out)["level_mean"], expected.mean[:, 0])
    succeed("forecast", arx, "--inputs", future, "-o", out, "--history", folder / "train.csv", "--horizon", 9)
    found = table(out)
    assert len(found["step"]) == 9
    # The exact filter over the training data ends where the fit did.
    np.testing.assert_allclose(found["level_mean"], fitted.forecast(9, data["valve"]).mean[:, 0], rtol=1e-9)
    succeed("forecast", arx, "--inputs", future, "-o", out, "--history", folder / "test.csv", "--paths", 40)
    state = fitted.filter(data["level"], data["valve"])
    expected = fitted.forecast(TEST, data["valve"], state=state, num_paths=40)
    np.testing.assert_array_equal(table(out)["level_sd"], expected.std[:, 0])


def test_evaluate_is_the_evaluation_of_the_library(folder: Path, arx: Path) -> None:
    fitted, test = gpssm.load(arx), from_csv(folder / "test.csv", "level", "valve")
    y, c = test.outputs, test.inputs
    found = succeed("evaluate", arx, folder / "test.csv", "--block", 20)
    assert found.keys() == {"samples", "numbers", "free_run", "blocks20", "one_step", "training_mean", "diverged"}
    assert found["diverged"] is None
    assert found["free_run"] == evaluation.score(evaluation.free_run(fitted, TEST, c), y).as_dict()
    assert found["blocks20"] == evaluation.score(evaluation.blocks(fitted, y, c, length=20), y).as_dict()
    mean = np.nanmean(from_csv(folder / "train.csv", "level").outputs)
    assert found["training_mean"]["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert found["one_step"]["log_likelihood"] == fitted.filter(y, c, state=fitted.end).log_likelihood / TEST
    assert found["blocks20"]["rmse"] < found["training_mean"]["rmse"]
    continued = succeed("evaluate", arx, folder / "test.csv", "--block", 20, "--history", folder / "train.csv")
    assert continued["free_run"]["rmse"] == pytest.approx(found["free_run"]["rmse"])


def test_evaluate_a_new_experiment(folder: Path, envi: Path) -> None:
    """Its first block is seen and not scored."""
    fitted, y = gpssm.load(envi), from_csv(folder / "kink_test.csv", "y").outputs
    found = succeed("evaluate", envi, folder / "kink_test.csv", "--fresh", "--block", HORIZON)
    assert found["samples"] == found["numbers"] == len(y) - HORIZON
    samples = evaluation.free_run(fitted, len(y) - HORIZON, state=fitted.filter(y[:HORIZON]))
    assert found["free_run"] == evaluation.score(samples, y[HORIZON:]).as_dict()
    printed = run("evaluate", envi, folder / "kink_test.csv", "--fresh", "--block", HORIZON)
    assert printed.code == 0 and "blocks20" in printed.out and f"{found['free_run']['rmse']:.4g}" in printed.out


def test_plot(folder: Path, arx: Path, envi: Path, tmp_path: Path) -> None:
    """Next to the model by default; the numbers beside the picture are those of the library."""
    printed, verdict = run("plot", envi), succeed("plot", envi)["verdict"]
    assert (printed.code, printed.out, printed.err) == (0, f"{verdict}\npicture: {folder / 'kink.png'}\n", "")
    assert (folder / "kink.png").read_bytes().startswith(b"\x89PNG")
    out = tmp_path / "test.svg"
    found = succeed("plot", arx, "--data", folder / "test.csv", "-o", out)
    text = out.read_text()
    assert "<svg" in text
    fitted, test = gpssm.load(arx), from_csv(folder / "test.csv", "level", "valve")
    mean, sd = fitted.one_step(test.outputs, test.inputs, state=fitted.end)
    residuals = (test.outputs - mean) / sd
    assert found["picture"] == str(out) and found["training_samples"] is False
    assert (found["samples"], found["horizon"]) == (TEST, TEST)
    assert found["lag1_autocorrelation"] == [metrics.autocorrelation(residuals, 1)[1, 0]]
    assert found["one_step_coverage90"] == pytest.approx(np.mean(np.abs(residuals) < 1.6449), abs=1e-3)
    paths = fitted.forecast(TEST, test.inputs)
    fit = 100 * (1 - np.sqrt(np.mean((paths.mean - test.outputs) ** 2)) / np.std(test.outputs))
    coverage = metrics.coverage(paths.samples, test.outputs)
    assert found["fit_percent"] == [pytest.approx(fit)] and found["diverged"] is None
    assert found["verdict"] == words(fit, coverage, lag1=found["lag1_autocorrelation"][0], numbers=TEST)
    assert succeed("plot", envi, "-o", tmp_path / "training.png")["training_samples"] is True


def drawn(out: Path, *arguments: object) -> list[str]:
    """The words in a picture, with what the command printed last."""
    with mpl.rc_context({"svg.fonttype": "none"}):
        result = run("plot", *arguments, "-o", out)
    assert result.code == 0, result.err
    texts = [element.text or "" for element in ElementTree.parse(out).iter("{http://www.w3.org/2000/svg}text")]
    return [*texts, result.err]


def test_the_words_in_a_picture(folder: Path, arx: Path, tmp_path: Path) -> None:
    """The model, the data, how well it does, and the user's names."""
    fitted, test = gpssm.load(arx), from_csv(folder / "test.csv", "level", "valve")
    paths = fitted.forecast(TEST, test.inputs)
    (fit,) = metrics.fit_percent(paths.mean, test.outputs)
    inside = 100 * metrics.coverage(paths.samples, test.outputs)
    texts = drawn(tmp_path / "test.svg", arx, "--data", folder / "test.csv")
    assert f"level: fit {fit:.1f}%, {inside:.0f}% inside the 90% band" in texts
    title = "arx.gpssm (ARX): free run over test.csv, from "
    assert any(text.startswith(f"{title}the end of the training data") for text in texts)
    assert {"valve", "level", "observed", "90% band", "free run", "one step ahead"} <= set(texts)
    continued = drawn(tmp_path / "test.svg", arx, "--data", folder / "test.csv", "--history", folder / "train.csv")
    assert any(text.startswith(f"{title}the end of train.csv") for text in continued)
    assert any(text.startswith("level: fit") for text in continued)
    # A new experiment: 50 samples are seen, the others forecast.
    state = fitted.filter(test.outputs[:50], test.inputs[:50])
    fresh = fitted.forecast(TEST - 50, test.inputs[50:], state=state)
    (fit,) = metrics.fit_percent(fresh.mean, test.outputs[50:])
    texts = drawn(tmp_path / "test.svg", arx, "--data", folder / "test.csv", "--fresh")
    assert any(text.startswith(f"{title}its sample 50") for text in texts)
    assert any(text.startswith(f"level: fit {fit:.1f}%, ") for text in texts)


def test_a_picture_with_dates(tmp_path: Path) -> None:
    """Those that follow the training data; a dollar sign is one."""
    rng, days = np.random.default_rng(0), np.array(["2024-03-01", "2024-03-02"], "datetime64[ns]")
    y = np.sin(0.3 * np.arange(90))[:, None] + 0.1 * rng.standard_normal((90, 1))
    end = Times.of_dates(days, zone="Z", name="day").later(59)
    ARX(order=2).fit(y[:60]).named(("price [$]",), (), end).save(tmp_path / "m.gpssm")
    to_csv(tmp_path / "test.csv", {"price [$]": y[60:, 0]})
    texts = drawn(tmp_path / "m.svg", tmp_path / "m.gpssm", "--data", tmp_path / "test.csv")
    assert {"day [Z]", "price [$]"} <= set(texts) and any(text.startswith("2024") for text in texts)
    assert "steps ahead" not in texts and "t" not in texts
    summary = run("summary", tmp_path / "m.gpssm").out
    assert f"{end.later(-59).text(1)[0]}, {end.text(1)[0]}" in summary


def test_a_picture_shows_the_past_where_times_do_not_show_a_gap() -> None:
    y = np.sin(0.3 * np.arange(90))[:, None]
    fitted = ARX(order=2).fit(y[:60]).named(("y",), (), Times(5.9, 0.1))
    for times, shown in ((None, 20), (Times(6.0, 0.1), 20), (Times(6.1, 0.1), 0), (Times(5.9, 0.1), 0)):
        view = plot._of_test(fitted, None, Series(y[60:], None, None, ("y",), times=times), "test.csv", "")
        assert len(view.past.outputs) == shown and view.future.times == (times or Times(pytest.approx(6.0), 0.1))


def test_summary(arx: Path, envi: Path) -> None:
    """What was learned, and what from."""
    fitted = gpssm.load(arx)
    found = succeed("summary", arx)
    assert (found["outputs"], found["inputs"], found["samples"], found["kept"]) == (["level"], ["valve"], TRAIN, TRAIN)
    assert found["parameters"] == json.loads(json.dumps(fitted.summary().as_dict()["parameters"]))
    printed = run("summary", envi)
    assert printed.code == 0 and printed.out.endswith(f"\n\n{gpssm.load(envi).summary()}\n")


def test_a_picture_of_a_free_run_that_diverges(unstable: Path, tmp_path: Path) -> None:
    """What is finite is drawn, and it is said where it ends."""
    to_csv(tmp_path / "long.csv", {"y": np.exp(0.05 * np.arange(1500))})
    with np.errstate(over="ignore"):
        squares = np.square(gpssm.load(unstable / "m.gpssm").forecast(1500).samples).sum(axis=0)
    step = int(np.argmin(np.isfinite(squares))) + 1
    *texts, said = drawn(tmp_path / "m.svg", unstable / "m.gpssm", "--data", tmp_path / "long.csv")
    assert said == SAID.format(f"in the free run, from sample {step} on,")
    assert f"y: the free run diverges from step {step} on" in texts
    assert any(text.startswith(f"unstable: the forecast diverges from step {step} on") for text in texts)


def test_plot_of_many_channels_with_gaps(tmp_path: Path) -> None:
    """More outputs and states than there is room for, one of them missing throughout, with any names."""
    y = np.random.default_rng(0).standard_normal((60, 7)).cumsum(axis=0)
    names = ["$x^", "$", "_a", "b c", "äöü", "5", "<&>"]
    to_csv(tmp_path / "train.csv", dict(zip(names, y[:40].T, strict=True)))
    y[40:, 1] = np.nan
    to_csv(tmp_path / "$est.csv", dict(zip(names, y[40:].T, strict=True)))
    model = tmp_path / "m.gpssm"
    succeed("fit", tmp_path / "train.csv", "--outputs", ",".join(names), "--method", "LastValue", "-o", model)
    assert len(succeed("plot", model, "--data", tmp_path / "$est.csv")["lag1_autocorrelation"]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit train.csv --outputs level -o out --method nonsense", "method: expected one of EnVI, PRSSM"),
        (
            "fit train.csv --outputs level -o out --method arx --state-dim 9",
            "state_dim: ARX has no such choice; expected none but order, max_order, name.",
        ),
        ("fit train.csv --outputs level -o out --method DKF --num-inducing 9", "num_inducing: DKF has no such choice"),
        ("fit train.csv --outputs level -o out --method ARX --restarts 2", "restarts: ARX is fitted once"),
        ("fit train.csv --outputs nonsense -o out", "outputs: no column 'nonsense' in"),
        ("fit train.csv --outputs level --inputs level -o out", "inputs: column 'level' is already in outputs"),
        ("fit nowhere.csv --outputs level -o out", "there is no file"),
        ("fit train.csv --outputs level -o nowhere/out", "out: the directory 'nowhere' does not exist"),
        ("fit train.csv --outputs level -o train.csv", "out: 'train.csv' is a file that is read"),
        ("fit train.csv --outputs level -o .", "out: '.' is not a file"),
        ("fit train.csv --outputs level -o /dev/null", "out: '/dev/null' is not a file"),
        ("fit train.csv --outputs level -o " + 255 * "x", "(File name too long); choose another place"),
        ("fit train.csv --outputs , -o out", "outputs: no column; expected at least one"),
        ("fit train.csv -o out", "Missing option '--outputs'"),
        ("fit train.csv --outputs level -o out --seed x", "'--seed'"),
        ("fit train.csv --outputs level -o out --restarts 0", "'--restarts'"),
        ("fit train.csv --outputs level -o out --nonsense", "No such option: --nonsense"),
        ("nonsense", "No such command 'nonsense'"),
        ("filter nowhere.gpssm test.csv -o out", "there is no file 'nowhere.gpssm'"),
        ("filter train.csv test.csv -o out", "'train.csv' is not a gpssm model"),
        ("filter damaged.gpssm test.csv -o out", "'damaged.gpssm' is damaged"),
        ("filter header.gpssm test.csv -o out", "'header.gpssm' is damaged"),
        ("filter arx.gpssm test.csv -o arx.gpssm", "out: 'arx.gpssm' is a file that is read"),
        ("filter arx.gpssm test.csv -o out --outputs 1,2", "outputs: 2 column(s) (1, 2); the model expects 1"),
        ("forecast arx.gpssm", "inputs: missing; the model has the input(s) valve"),
        ("forecast arx.gpssm --inputs test.csv --horizon 61", "horizon: 61 steps, but 'test.csv' has 60 row(s)"),
        ("forecast arx.gpssm --inputs kink.csv", "inputs: no column 'valve' in 'kink.csv'"),
        ("forecast kink.gpssm", "horizon: missing"),
        ("forecast kink.gpssm --horizon 0", "'--horizon'"),
        ("forecast kink.gpssm --horizon 5 --inputs kink.csv", "inputs: got 'kink.csv'; the model was fitted without"),
        ("evaluate kink.gpssm kink_test.csv --fresh --history kink.csv", "fresh: given with a history"),
        ("evaluate kink.gpssm kink_test.csv --fresh", "fresh: 50 samples to start from, but 'kink_test.csv' has 40"),
        ("plot kink.gpssm --data kink_test.csv --fresh", "fresh: 50 samples to start from, but 'kink_test.csv' has 40"),
        ("plot kink.gpssm --data kink_test.csv --fresh --history kink.csv", "fresh: given with a history"),
        ("plot kink.gpssm --fresh", "data: missing; expected the file that is new (--fresh)"),
        ("summary train.csv", "'train.csv' is not a gpssm model"),
        ("plot kink.gpssm -o kink.nonsense", "out: 'kink.nonsense' ends in '.nonsense'; expected one of"),
    ],
)
@pytest.mark.usefixtures("arx", "envi", "damaged")
def test_a_mistake_is_one_line_and_exit_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for more in ([], ["--json"]):
        result = run(*arguments.split(), *more)
        assert (result.code, result.out) == (2, "")
        assert message in result.err and result.err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.fixture(scope="module")
def unstable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exponential, and the line that was learned from it."""
    place = tmp_path_factory.mktemp("unstable")
    to_csv(place / "train.csv", {"y": np.exp(0.5 * np.arange(200))})
    succeed("fit", place / "train.csv", "--outputs", "y", "--method", "ARX", "-o", place / "m.gpssm")
    return place


SAID = "gpssm: diverged: {} numbers are infinite or undefined, the model is unstable; use those before, or refit.\n"


def test_a_forecast_that_diverges_says_so(unstable: Path, tmp_path: Path) -> None:
    """Infinity is not a missing number; NumPy says nothing (warnings are errors here)."""
    paths = gpssm.load(unstable / "m.gpssm").forecast(2000)
    step = paths.diverged
    assert step is not None and np.isfinite(paths.samples[:, : step - 1]).all() and 1000 < step < 1999
    said = SAID.format(f"from step {step} on")
    printed = run("forecast", unstable / "m.gpssm", "--horizon", 2000)
    assert (printed.code, printed.err) == (0, said)
    rows = [line.split(",") for line in printed.out.splitlines()]
    assert rows[-1] == ["2000", *["inf"] * 5] and all(np.isfinite(float(cell)) for cell in rows[step - 1])
    assert "" not in [cell for row in rows for cell in row]
    in_file = run("forecast", unstable / "m.gpssm", "--horizon", 2000, "-o", tmp_path / "f.csv")
    assert (in_file.code, in_file.err, (tmp_path / "f.csv").read_text()) == (0, said, printed.out)
    as_json = run("forecast", unstable / "m.gpssm", "--horizon", 2000, "--json")
    found = json.loads(as_json.out)
    assert (as_json.code, as_json.err, found["diverged"]) == (0, said, step)
    assert found["columns"]["y_mean"][-1] == "inf" and found["columns"]["y_mean"][0] == float(rows[1][1])


def test_scores_of_forecasts_that_diverge(unstable: Path) -> None:
    """As bad as can be, and said; what has not diverged is scored."""
    to_csv(unstable / "long.csv", {"y": np.exp(0.05 * np.arange(1500))})
    result = run("evaluate", unstable / "m.gpssm", unstable / "long.csv", "--json")
    found = json.loads(result.out)
    assert result.code == 0 and found["diverged"] == {"free_run": found["diverged"]["free_run"]}
    assert result.err == SAID.format(f"in free_run, from sample {found['diverged']['free_run']} on,")
    assert found["free_run"] == {"rmse": "inf", "nlpd": "inf", "crps": "inf", "coverage90": None}
    assert np.isfinite(found["blocks50"]["rmse"])
    table = run("evaluate", unstable / "m.gpssm", unstable / "long.csv")
    assert table.code == 0 and table.err == result.err and "inf" in table.out


def test_states_beyond_the_largest_number_say_so(unstable: Path, tmp_path: Path) -> None:
    """Samples near it: their variance is not finite."""
    to_csv(tmp_path / "huge.csv", {"y": np.linspace(1e200, 1e300, 20)})
    for name, options in (("small", []), ("large", ["--json"])):
        succeed(
            "fit",
            tmp_path / "huge.csv",
            "--outputs",
            "y",
            "--method",
            "LastValue",
            "--holdout",
            0,
            "-o",
            tmp_path / "m.gpssm",
        )
        result = run("filter", tmp_path / "m.gpssm", tmp_path / "huge.csv", "-o", tmp_path / f"{name}.csv", *options)
        assert result.code == 0 and result.err == SAID.format("from sample 1 on")
        if options:
            assert json.loads(result.out)["diverged"] == 1


@pytest.fixture(scope="session")
def damaged(folder: Path, arx: Path) -> None:
    data = arx.read_bytes()
    (folder / "damaged.gpssm").write_bytes(data[:-1])
    (folder / "header.gpssm").write_bytes(data.replace(b'"scaling"', b'"scalinh"'))


def test_a_model_with_functions_is_for_python(envi: Path, tmp_path: Path) -> None:
    fitted = gpssm.load(envi)
    model = dataclasses.replace(fitted.model, emission=FunctionEmission(lambda x: x, *np.ones((4, 1))))
    dataclasses.replace(fitted, model=model).save(tmp_path / "m.gpssm")
    result = run("forecast", tmp_path / "m.gpssm", "--horizon", 3)
    assert result.code == 2 and "was made with functions of yours" in result.err and result.err.count("\n") == 1


def test_a_full_disk_leaves_what_was_there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "m.gpssm"
    out.write_text("precious")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    result = run("fit", folder / "train.csv", "--outputs", "level", "--method", "LastValue", "-o", out)
    assert (result.code, result.out) == (1, "") and "the model is lost" in result.err and result.err.count("\n") == 1
    assert f"cannot write {str(out)!r} (No space left on device), nor " in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gpssm"] and out.read_text() == "precious"


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("full", [["full"], ["full", "here"], ["gone"]])
def test_a_fit_is_not_lost_with_its_place(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], full: list[str]
) -> None:
    """A disk that is full, or is not there any more, when the fit has ended."""
    places = {name: tmp_path / name for name in ("full", "here", "temporary")}
    for directory in places.values():
        directory.mkdir()
    out = places["full"] / "m.gpssm"
    write = atomic._write

    def fail(place: Path, *arguments: Any) -> None:
        if place.parent.name in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if full == ["gone"] and out.parent.exists():
            out.parent.rmdir()
        write(place, *arguments)

    monkeypatch.chdir(places["here"])
    monkeypatch.setattr(tempfile, "tempdir", str(places["temporary"]))
    monkeypatch.setattr(atomic, "_write", fail)
    fit = ("fit", folder / "train.csv", "--outputs", "level", "--method", "LastValue")
    result = run(*fit, *options, "-o", out)
    (found,) = tmp_path.rglob("m-*.gpssm")
    assert found.parent.name == ("temporary" if "here" in full else "here")
    assert result.code == 1 and result.err.count("\n") == 1
    assert f"cannot write {str(out)!r} (" in result.err and f"the model is in {str(found)!r} instead" in result.err
    assert str(found) in result.out and not out.exists()
    assert gpssm.load(found).method == "LastValue"


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux limits files")
def test_a_file_that_may_not_grow_is_named(folder: Path, tmp_path: Path) -> None:
    """In a process of its own, whose files are limited as by a quota."""
    out = tmp_path / "m.gpssm"
    fit = ("fit", folder / "train.csv", "--outputs", "level", "--method", "LastValue", "-o", out)
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        f"sys.argv = {['gpssm', *map(str, fit)]!r}\n"
        "from gpssm.cli.main import main\n"
        "main()\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path), "JAX_ENABLE_COMPILATION_CACHE": "0"}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"gpssm: cannot write {str(out)!r} (File too large); the model is lost.\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("link", ["dangling", "loop"])
def test_a_link_that_leads_nowhere_is_refused_before_the_fit(folder: Path, tmp_path: Path, link: str) -> None:
    out = tmp_path / link
    out.symlink_to("nowhere" if link == "dangling" else link)
    result = run("fit", folder / "train.csv", "--outputs", "level", "-o", out)
    assert (result.code, result.out) == (2, "") and result.err.count("\n") == 1
    assert f"out: cannot write {str(out)!r} (a symbolic link " in result.err and out.is_symlink()


class Terminal:
    """The command in a process of its own, with a terminal for its standard error."""

    def __init__(self, *arguments: object) -> None:
        self.screen, theirs = pty.openpty()
        command = [sys.executable, "-m", "gpssm", *map(str, arguments)]
        environment = os.environ | {"COLUMNS": "200", "TERM": "xterm"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        while text not in self.shown:
            assert self._read(), self.shown

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        while self._read():
            pass
        out, _ = self.process.communicate(timeout=300)
        os.close(self.screen)
        return self.process.returncode, out.decode()

    def _read(self) -> bool:
        try:
            more = os.read(self.screen, 1 << 16)
        except OSError:  # how Linux says that the other end is closed
            return False
        self.shown += more.decode(errors="replace")
        return bool(more)


def test_an_interrupted_fit_leaves_a_model(tmp_path: Path) -> None:
    data = kink(600, 0.05, 0.08, seed=0)
    to_csv(tmp_path / "data.csv", {"y": data.outputs[:, 0]})
    out = tmp_path / "m.gpssm"
    terminal = Terminal(
        "fit", tmp_path / "data.csv", "--outputs", "y", "--state-dim", 1, "--num-inducing", 8, "-o", out
    )
    terminal.wait_for("ELBO")
    time.sleep(0.3)
    code, printed = terminal.end(signal.SIGINT)
    assert (code, printed) == (130, ""), terminal.shown
    assert "gpssm: interrupted; the best model so far" in terminal.shown
    fitted = gpssm.load(out)
    assert fitted.history.interrupted and fitted.history.step[-1] < 1000
    assert np.isfinite(fitted.forecast(HORIZON).samples).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "m.gpssm"]


def test_a_fit_ended_before_its_first_steps_leaves_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With programs kept by an earlier run the first steps could be over before the signal arrives.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    to_csv(tmp_path / "data.csv", {"y": kink(601, 0.05, 0.08, seed=0).outputs[:, 0]})
    arguments = ("--outputs", "y", "--state-dim", 1, "--num-inducing", 17, "-o", tmp_path / "m.gpssm")
    terminal = Terminal("fit", tmp_path / "data.csv", *arguments)
    terminal.wait_for("compiling")
    code, printed = terminal.end(signal.SIGTERM)
    assert (code, printed) == (130, ""), terminal.shown
    assert "gpssm: interrupted before there was a model to save." in terminal.shown
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]
