"""The published recordings: what is scored, what a forecast may know, and the table over all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpssm.datasets import Benchmark, Series, Unseen
from gpssm.experiments import recordings, sysid
from gpssm.experiments.base import Cell, Group
from gpssm.experiments.published import best_published, published
from gpssm.experiments.recordings import summarise, summary
from gpssm.methods import registry
from gpssm.reproduction.plan import plan

PUBLISHED = Path(__file__).parents[1].parent / "shared" / "data"
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published data are not part of the project")


def test_scores_are_those_computed_by_hand() -> None:
    """Two outputs, of which the second has a hundred times the unit of the first."""
    truth = np.array([[1.0, 100.0], [-1.0, -300.0]])  # standard deviations 1 and 200
    paths = np.array([[[2.0, 80.0], [0.0, -320.0]], [[4.0, 120.0], [2.0, -280.0]]])  # means 3, 100; 1, -300
    found = recordings.scores(paths, truth)
    assert found["rmse"] == pytest.approx([2.0, 0.0])
    assert found["nrmse"] == pytest.approx(np.sqrt((2.0**2 + 0.0) / 2))
    assert found["coverage90"] == 0.5  # 1 is below both paths, and so is -1; the second output lies between its paths
    # E|X - y| - |X1 - X2| / 2 with the pair counted once: 2 - 1 and 20 - 20, relative to 1 and 200.
    assert found["crps"] == pytest.approx(((2.0 - 1.0) + (20.0 - 20.0) / 200) / 2)
    variances = np.array([2.0, 800.0])  # of two paths: half the square of their distance
    errors = np.array([4.0, 0.0])
    assert found["nlpd"] == pytest.approx(np.mean(0.5 * (np.log(2 * np.pi * variances) + errors / variances)))


def test_errors_do_not_depend_on_units() -> None:
    rng = np.random.default_rng(0)
    truth, paths = rng.normal(size=(30, 2)), rng.normal(size=(20, 30, 2))
    unit, shift = np.array([1e-8, 1e4]), np.array([3e-8, -2e4])
    plain, other = recordings.scores(paths, truth), recordings.scores(paths * unit + shift, truth * unit + shift)
    assert (other["nrmse"], other["crps"], other["coverage90"]) == pytest.approx(
        (plain["nrmse"], plain["crps"], plain["coverage90"])
    )
    np.testing.assert_allclose(other["rmse"], np.array(plain["rmse"]) * unit)
    assert other["nlpd"] == pytest.approx(plain["nlpd"] + np.log(unit).mean())


def simulated(run_in: int, outputs: int = 1, length: int = 160) -> Benchmark:
    """A linear system that ARX learns well; the test part starts elsewhere if it has a run-in."""
    rng = np.random.default_rng(3)

    def record(first: float, count: int) -> Series:
        u = rng.normal(size=(count, 1))
        y = np.full((count, outputs), first)
        for t in range(1, count):
            y[t] = 0.9 * y[t - 1] + u[t] * np.arange(1, outputs + 1) + 0.05 * rng.normal(size=outputs)
        return Series(y, u, None)

    whole = record(0.0, 200 + length)
    train, later = whole.rows(slice(None, 200)), whole.rows(slice(200, None))
    return Benchmark("simulated", train, (Unseen("test", record(50.0, length) if run_in else later, run_in),))


def with_outputs(data: Benchmark, outputs: np.ndarray) -> Benchmark:
    return data._replace(tests=(data.test._replace(series=data.test.series._replace(outputs=outputs)),))


@pytest.mark.filterwarnings("ignore::gpssm.errors.DataWarning")  # these start far away
@pytest.mark.parametrize("run_in", [0, 50])
def test_outputs_after_the_run_in_are_never_read(run_in: int) -> None:
    data = simulated(run_in)
    poisoned = data.test.series.outputs.copy()
    poisoned[run_in:] = 1e6 * np.random.default_rng(0).normal(size=poisoned[run_in:].shape)
    honest, other = (recordings.fit(each, "ARX", 0) for each in (data, with_outputs(data, poisoned)))
    assert other["mean"] == honest["mean"] and other["low"] == honest["low"] and other["high"] == honest["high"]
    assert other["rmse"] != honest["rmse"]
    assert len(honest["mean"][0]) == len(honest["truth"][0]) == 160 - run_in
    np.testing.assert_allclose(honest["truth"][0], data.test.series.outputs[run_in:, 0], rtol=1e-5)


@pytest.mark.filterwarnings("ignore::gpssm.errors.DataWarning")  # these start far away
def test_the_run_in_finds_the_state_and_is_not_scored() -> None:
    data = simulated(50)
    found = recordings.fit(data, "ARX", 0)
    assert found["nrmse"] < 0.2
    # From the end of learning, the forecast would start far from where the test recording is.
    away = recordings.fit(data._replace(tests=(data.test._replace(run_in=0),)), "ARX", 0)
    assert away["nrmse"] > 1.0 and abs(away["mean"][0][0] - data.test.series.outputs[0, 0]) > 20
    # Missing, the samples of the run-in tell nothing; wrong, they tell where it was not.
    moved = data.test.series.outputs.copy()
    moved[:50] += 100.0
    other = recordings.fit(with_outputs(data, moved), "ARX", 0)
    assert other["truth"] == found["truth"] and other["mean"] != found["mean"]


@pytest.mark.parametrize("run_in", [0, 50])
def test_a_stream_goes_on_learning_in_the_run_in(run_in: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample of the part to learn from, then those of the run-in, then a forecast over the rest."""
    data, asked = simulated(run_in), dict[str, Any](learned=[])

    class Method:
        state_dim = 1

    class Stream:
        method = Method()

        def learn_many(self, outputs: np.ndarray, inputs: np.ndarray) -> Any:
            asked["learned"] += [(y[0], u[0]) for y, u in zip(outputs, inputs, strict=True)]
            return type("Estimates", (), {"state_mean": np.zeros((len(outputs), 1))})

        def forecast(self, horizon: int, inputs: np.ndarray, num_paths: int, seed: int) -> Any:
            asked.update(horizon=horizon, inputs=inputs)
            return type("Forecast", (), {"samples": np.random.default_rng(seed).normal(size=(9, horizon, 1))})

    monkeypatch.setattr(recordings, "build", lambda *_: type("Chosen", (), {"start": lambda self, seed: Stream()})())
    found = recordings.fit(data, "OEnVI", 0)
    test = data.test.series
    assert data.train.inputs is not None and test.inputs is not None
    outputs = np.vstack([data.train.outputs, test.outputs[:run_in]])
    inputs = np.vstack([data.train.inputs, test.inputs[:run_in]])
    np.testing.assert_array_equal(np.array(asked["learned"]), np.hstack([outputs, inputs]))
    assert asked["horizon"] == 160 - run_in == len(found["mean"][0])
    np.testing.assert_array_equal(asked["inputs"], test.inputs[run_in:])


def test_what_is_stored_has_every_output_and_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    data = simulated(0, outputs=2)
    monkeypatch.setattr(recordings, "_KEPT", 60)
    found = recordings.fit(data, "ARX", 0)
    assert found["step"] == 3 and len(found["rmse"]) == 2
    for curves in (found["mean"], found["low"], found["high"], found["truth"]):
        assert [len(curve) for curve in curves] == [54, 54]
    np.testing.assert_allclose(np.array(found["truth"]).T, data.test.series.outputs[::3], rtol=1e-5)
    assert all(low < high for low, high in zip(found["low"][1], found["high"][1], strict=True))
    assert found["cpu_seconds"] >= 0 and found["compile_seconds"] >= 0


def test_time_spent_compiling_is_not_that_of_the_fit() -> None:
    """ARX takes milliseconds; the filter that it ends with is compiled for lengths that no other test here has."""
    import jax

    jax.clear_caches()
    found = recordings.fit(simulated(0), "ARX", 0)
    assert found["compile_seconds"] > 0 and found["cpu_seconds"] < 5


def result(nrmse: float | None, rmse: list[float | None], seconds: float = 1.0) -> dict[str, Any]:
    names = ("coverage90", "crps", "nlpd", "compile_seconds")
    return dict.fromkeys(names, 0.5) | {"nrmse": nrmse, "rmse": rmse, "cpu_seconds": seconds}


def test_rows_are_means_over_seeds() -> None:
    row = summarise("drive", "ARX", [result(0.5, [1.0], 2.0), result(0.7, [3.0], 4.0)])
    assert (row["seeds"], row["failed"], row["rmse"], row["cpu_seconds"]) == (2, 0, 2.0, 3.0)
    assert (row["nrmse"], row["rmse_sd"]) == pytest.approx((0.6, np.sqrt(2.0)))
    assert list(row) == [
        "dataset", "method", "seeds", "failed", "rmse", "rmse_sd", "nrmse", "coverage90", "crps", "nlpd",
        "cpu_seconds", "compile_seconds",
    ]  # fmt: skip
    several = summarise("tank", "ARX", [result(0.5, [1.0, 10.0])])
    assert several["rmse"] == [1.0, 10.0] and several["rmse_sd"] == [0.0, 0.0]
    diverged = summarise("drive", "ARX", [result(0.5, [1.0]), result(None, [None])])
    assert np.isnan(diverged["nrmse"]) and np.isnan(diverged["rmse"]) and diverged["seeds"] == 2
    failed = summarise("drive", "ARX", [], 3)
    assert np.isnan(failed["nrmse"]) and (failed["seeds"], failed["failed"]) == (0, 3)


def rows(**errors: tuple[float, ...]) -> list[dict[str, Any]]:
    return [
        summarise(str(place), method, [result(error if np.isfinite(error) else None, [1.0])])
        for method, each in errors.items()
        for place, error in enumerate(each)
        if not np.isneginf(error)
    ]


def line(*values: Any) -> dict[str, Any]:
    return dict(zip(("method", "datasets", "relative_to_arx", "first", "behind_linear"), values, strict=True))


def test_summary() -> None:
    found = summary(rows(EnVI=(0.1, 0.8, 0.42, np.nan), ARX=(0.2, 0.4, 0.4, 1.0), LinearGaussian=(0.4, 0.2, 0.5, 2.0)))
    assert [each["method"] for each in found] == ["EnVI", "ARX", "LinearGaussian"]
    envi, arx, linear = found
    # Half, twice and 1.05 times the error of ARX; where it has diverged there is no ratio, but it is behind.
    assert envi["relative_to_arx"] == pytest.approx(1.05 ** (1 / 3))
    assert (envi["datasets"], envi["first"], envi["behind_linear"]) == (3, 1, 2)
    assert arx == line("ARX", 4, pytest.approx(1.0), 2, 1)
    assert linear == line("LinearGaussian", 4, pytest.approx((2 * 0.5 * 1.25 * 2) ** 0.25), 1, 3)


def test_summary_without_arx_or_any_linear_method() -> None:
    missing = -np.inf
    (envi, linear) = summary(rows(EnVI=(0.1, 0.8), LinearGaussian=(0.2, missing)))
    assert envi == line("EnVI", 2, None, 2, 0) and linear == line("LinearGaussian", 1, None, 0, 0)
    (alone,) = summary(rows(EnVI=(0.1, np.nan)))
    assert alone == line("EnVI", 1, None, 1, None)


def test_published_numbers() -> None:
    assert len(recordings.DATASETS) == len(set(recordings.DATASETS)) == 16
    tanks = {(each.kind, each.rmse) for each in best_published("cascaded_tanks")}
    assert tanks == {("linear", 0.588), ("black box", 0.306), ("grey box", 0.191)}
    best = {name: best_published(name) for name in sysid.DATASETS}
    offline = [each.rmse for name in best for each in best[name] if each.kind == "offline"]
    assert offline == [0.657, 0.055, 0.647, 0.125, 1.388]
    online = [each.rmse for name in best for each in best[name] if each.kind == "online"]
    assert tuple(online) == sysid.PUBLISHED_ONLINE["RGPSSM"]
    assert published("heating") == ()
    assert {each.test for each in published("silverbox")} == {"multisine", "arrow"}


def test_every_method_is_built_for_any_number_of_outputs() -> None:
    for method in recordings.METHODS:
        for outputs, states in ((1, 4), (2, 4), (6, 8)):
            built = recordings.build(method, outputs)
            expected = states if method in registry.ONLINE else "auto"
            assert getattr(built, "state_dim", expected) == expected, method
            if method in registry.ONLINE and hasattr(built, "input_lags"):
                assert built.input_lags == 4


def test_the_table_has_our_numbers_and_those_published() -> None:
    def group(method: str, dataset: str, *errors: float) -> Group:
        folder = f"results/recordings/{method}/{dataset}"
        found = tuple(result(error, [error]) | {"step": 1} for error in errors)
        curves = {name: [[0.0, 1.0]] for name in ("mean", "low", "high", "truth")}
        files = tuple((seed, f"{folder}/seed-{seed}.json") for seed in range(len(errors)))
        return Group(Cell(method, dataset, ""), folder, tuple(f | curves for f in found), files, (), ())

    groups = [group("EnVI", "cascaded_tanks", 0.2, 0.4), group("ARX", "cascaded_tanks", 0.5), group("EnVI", "heating")]
    section = recordings.section(groups)
    brief, overview, over_all, tanks, _ = section.tables
    assert brief.brief and not overview.brief
    shown = ["".join(part.text for part in cell) for cell in brief.rows[0]]
    assert shown[:4] == ["cascaded_tanks", "0.300 ± 0.100(0.50)", "0.500(0.50)", ""]
    assert shown[4:] == ["0.3", "0.191 V (grey box)"]
    assert overview.columns == ("data set", "EnVI", "ARX", "published RMSE")
    cells = ["".join(part.text for part in cell) for cell in overview.rows[0]]
    assert cells[:3] == ["cascaded_tanks", "0.300 ± 0.100(0.50)", "0.500(0.50)"]
    assert cells[3] == "linear 0.588 V, black box (continuous-time SUBNET) 0.306 V, grey box 0.191 V"
    assert overview.rows[1][1][0].text == "not run" and overview.rows[1][2][0].text == ""
    assert [[cell[0].text for cell in row] for row in over_all.rows] == [
        ["EnVI", "1", "0.600", "1", "0"], ["ARX", "1", "1.000", "0", "0"],
    ]  # fmt: skip
    assert tanks.rows[-1][0][0].text == "grey box, published" and "arXiv 2405.10779" in tanks.note
    assert [figure.name for figure in section.figures] == ["recording-cascaded_tanks"]
    assert "cascaded_tanks: 50" in section.text[0]


def test_the_plan_of_the_recordings() -> None:
    jobs = plan(only="recordings:ARX,recordings:VCDT (amortised)")
    assert len(jobs) == 2 * 16 * 3 + 3 * 3  # ARX on the long ones, too
    by_name = {job.task.dataset: job for job in jobs if job.task.method == "VCDT (amortised)"}
    assert "state_dim='auto'" in by_name["glass_furnace"].configuration
    assert by_name["exchanger"].cost > by_name["drive"].cost


def command(*arguments: str, data: Path = PUBLISHED) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpssm", "reproduce", "recordings", *arguments],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"GPSSM_DATA": str(data)},
    )  # fmt: skip


@needs_published
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--method", "ARX", "--dataset", "drive", "--seeds", "2", "--out", str(tmp_path))
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"experiment", "rows", "summary", "published", "report"}
    assert found["experiment"] == "recordings" and Path(found["report"]).is_file()
    (row,) = found["rows"]
    assert (row["dataset"], row["method"], row["seeds"], row["failed"]) == ("drive", "ARX", 2, 0)
    assert found["summary"] == [
        {"method": "ARX", "datasets": 1, "relative_to_arx": 1.0, "first": 1, "behind_linear": 0}
    ]
    assert {each["system"] for each in found["published"]["drive"]} == {*sysid.PAPER, *sysid.PUBLISHED_ONLINE}
    # The same halves and forecasts as in the paper's table.
    monkeypatch.setenv("GPSSM_DATA", str(PUBLISHED))
    from gpssm.datasets import load

    data = load("drive")
    same = [sysid.fit("drive", data, "ARX", seed) for seed in range(2)]
    assert row["rmse"] == pytest.approx(np.mean([score["free_run_rmse"] for score in same]))
    assert row["nlpd"] == pytest.approx(np.mean([score["nlpd"] for score in same]))
    spread = data.split(0.5)[1].outputs.std()
    assert row["nrmse"] == pytest.approx(row["rmse"] / spread)
    assert row["crps"] == pytest.approx(np.mean([score["crps"] for score in same]) / spread)
    files = sorted(tmp_path.glob("results/recordings/ARX/drive/seed-*.json"))
    kept = [json.loads(path.read_text())["result"] for path in files]
    assert np.mean([each["nrmse"] for each in kept]) == pytest.approx(row["nrmse"])

    before = {path: path.read_bytes() for path in files}
    table = command(*arguments)
    assert table.returncode == 0 and "offline (PRSSM), published" in table.stdout
    assert "Recordings: every method over all data sets" in table.stdout
    assert {path: path.read_bytes() for path in files} == before  # nothing was fitted again


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "nobody"), "method: expected one of EnVI, "),
        (("--dataset", "golden_box"), "dataset: expected one of actuator, "),
        (("--dataset", "drive"), "GPSSM_DATA: there is no drive.csv"),
    ],
)
def test_command_explains_mistakes(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = command(*arguments, "--out", str(tmp_path / "out"), data=tmp_path)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""
    assert not (tmp_path / "out").exists()
