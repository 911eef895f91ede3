"""Checkpoints of live streams, read by the commands that read fitted models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpssm
from gpssm import evaluation, plots
from gpssm.datasets import from_csv, to_csv
from gpssm.methods import registry
from gpssm.online.stream import Stream
from test_cli_files import run, succeed, table

METHODS = ("OEnVI", "RGPSSM", "SVMC", "VJF")
FILTERED = METHODS[:2]
LEARNED, TEST = 40, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream of every method, after the same samples, and those that follow."""
    place, rng = tmp_path_factory.mktemp("live"), np.random.default_rng(0)
    u = rng.standard_normal(LEARNED + TEST)
    y = np.zeros(LEARNED + TEST)
    for t in range(1, len(y)):
        y[t] = 0.8 * y[t - 1] + 0.5 * u[t] + 0.1 * rng.standard_normal()
    for name in METHODS:
        stream = registry.build_online(name, state_dim=1, num_inducing=4).start()
        stream.names = ("level",), ("valve",)
        for sample, control in zip(y[:LEARNED], u[:LEARNED], strict=True):
            stream.learn_one([sample], [control])
        stream.save(place / f"{name}.gpssm")
    to_csv(place / "test.csv", {"valve": u[LEARNED:], "level": y[LEARNED:]})
    return place


def loaded(folder: Path, name: str) -> Stream:
    stream = gpssm.load(folder / f"{name}.gpssm")
    assert isinstance(stream, Stream)
    return stream


@pytest.mark.parametrize("name", METHODS)
def test_forecast_is_that_of_the_stream(folder: Path, name: str, tmp_path: Path) -> None:
    out = tmp_path / "ahead.csv"
    succeed("forecast", folder / f"{name}.gpssm", "--inputs", folder / "test.csv", "--paths", 50, "-o", out, "-q")
    ahead = loaded(folder, name).forecast(TEST, from_csv(folder / "test.csv", "valve").outputs, num_paths=50)
    assert ahead.names == ("level",)
    np.testing.assert_allclose(table(out)["level_mean"], ahead.mean[:, 0])
    np.testing.assert_allclose(table(out)["level_sd"], ahead.std[:, 0])


@pytest.mark.parametrize("name", METHODS)
def test_evaluate_scores_what_the_method_can(folder: Path, name: str) -> None:
    """The free run always; blocks and one step where there is a filter."""
    found = succeed("evaluate", folder / f"{name}.gpssm", folder / "test.csv", "--block", TEST, "-q")
    test, stream = from_csv(folder / "test.csv", "level", "valve"), loaded(folder, name)
    model: Any = stream.posterior() if name in FILTERED else stream
    expected = evaluation.score(model.forecast(TEST, test.inputs).samples, test.outputs).as_dict()
    assert found["free_run"] == pytest.approx(expected)
    scored = {"one_step", f"blocks{TEST}"} if name in FILTERED else set()
    assert found.keys() == {"samples", "numbers", "free_run", "diverged"} | scored
    assert name in run("evaluate", folder / f"{name}.gpssm", folder / "test.csv").out


@pytest.mark.parametrize("name", METHODS)
def test_plot_and_summary(folder: Path, name: str, tmp_path: Path) -> None:
    found = succeed("plot", folder / f"{name}.gpssm", "--data", folder / "test.csv", "-o", tmp_path / "m.png", "-q")
    assert found["horizon"] == TEST and len(found["lag1_autocorrelation"]) == (name in FILTERED)
    summary = succeed("summary", folder / f"{name}.gpssm")
    assert (summary["method"], summary["samples"], summary["refused"]) == (name, LEARNED, 0)
    assert (summary["outputs"], summary["inputs"]) == (["level"], ["valve"])
    assert ("parameters" in summary) == (name in FILTERED)
    printed = run("summary", folder / f"{name}.gpssm").out.splitlines()
    assert printed[0].split() == ["method", name] and ["samples", str(LEARNED)] in [row.split() for row in printed]


@pytest.mark.parametrize("name", FILTERED)
def test_a_stream_read_back_is_the_same_f(folder: Path, name: str, tmp_path: Path) -> None:
    """It filters a recording, and starts from where the stream is."""
    stream = loaded(folder, name)
    posterior, x = stream.posterior(), np.column_stack([np.linspace(-1, 1, 9), np.zeros(9)])
    assert posterior.output_names == ("level",) and posterior.input_names == ("valve",)
    np.testing.assert_allclose(posterior.transition(x)[0], stream.transition(x)[0], atol=1e-5)
    z = plots.inducing_inputs(posterior)  # elsewhere what is not known of the linear part is approximated
    np.testing.assert_allclose(posterior.transition(z)[1], stream.transition(z)[1], rtol=1e-3)
    out = tmp_path / "states.csv"
    succeed("filter", folder / f"{name}.gpssm", folder / "test.csv", "-o", out, "-q")
    test = from_csv(folder / "test.csv", "level", "valve")
    np.testing.assert_allclose(table(out)["x1_mean"], posterior.filter(test.outputs, test.inputs).mean[:, 0])
    ours, again = (model.forecast(TEST, test.inputs) for model in (stream, posterior))
    np.testing.assert_allclose(
        again.mean[0], ours.mean[0], atol=0.5 * float(ours.std[0, 0])
    )  # no correlation of x and u
    np.testing.assert_allclose(again.std[0], ours.std[0], rtol=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("filter SVMC.gpssm test.csv -o out.csv", "a stream of SVMC can be forecast, not filtered"),
        ("forecast VJF.gpssm --inputs test.csv --history test.csv", "a stream of VJF can be forecast, not filtered"),
        ("evaluate VJF.gpssm test.csv --fresh --block 9", "a stream of VJF can be forecast, not filtered"),
        ("plot OEnVI.gpssm", "data: missing, and the model holds 0 sample(s) of its training; expected a file."),
        ("forecast new.gpssm --horizon 5", "forecast: the stream has seen 0 sample(s); expected at least 10"),
    ],
)
def test_what_a_checkpoint_cannot_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    gpssm.OEnVI(1).start().save("new.gpssm")
    result = run(*arguments.split())
    assert (result.code, result.out) == (2, "") and message in result.err and result.err.count("\n") == 1


def test_names_that_are_too_few_are_numbered(tmp_path: Path) -> None:
    """One key may hold a list; and a stream in a file of earlier versions knows none."""
    stream = gpssm.OEnVI(2).start()
    stream.names = ("y",), ()
    stream.learn_one([0.5, 0.7])
    assert (stream.output_names, stream.input_names) == (("y1", "y2"), ())
    stream.save(tmp_path / "s")
    assert gpssm.load(tmp_path / "s").names == (("y",), ())
    found = succeed("summary", tmp_path / "s")
    assert (found["samples"], found["outputs"], found["ready"]) == (1, ["y1", "y2"], "no, it looks at 10 samples first")
