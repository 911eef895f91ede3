"""Sixteen recordings of fifteen systems, up to 4000 samples each, beside what is published for them.

Every recording has a part to learn from and a part to test on (`gpssm.datasets.benchmark`). The test part is forecast
at once, from the end of learning. One that was recorded apart starts from an unknown state: its first samples are
filtered to find it, and what follows them is forecast and scored. No later output is ever read. Online, a method sees
every sample of the part to learn from once, and goes on learning from the first samples of the other.

Errors of different systems are compared as NRMSE, the error relative to the spread of the outputs:

    sqrt(mean over outputs j of (RMSE_j / sd_j)^2),  sd_j: standard deviation of what is scored

so that 1 is the error of a forecast that knows the mean of the test part and nothing else.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm import evaluation, metrics
from gpssm.datasets import Benchmark, Series
from gpssm.experiments import sysid
from gpssm.experiments.online import learn_once
from gpssm.methods import registry
from gpssm.plumbing.compilation import CompileClock
from gpssm.training.linear_search import AUTO

NDArray = np.ndarray

DATASETS = (
    *sysid.DATASETS,
    "cascaded_tanks",
    "coupled_drives_1",
    "coupled_drives_2",
    "heating",
    "robot_arm",
    "flutter",
    "thermic_wall",
    "exchanger",
    "tank",
    "winding",
    "glass_furnace",
)
METHODS = (*registry.METHODS, *registry.ONLINE)
LINEAR = ("ARX", "LinearGaussian")
DEFAULT = ("EnVI", *LINEAR)

BEHIND = 1.05
"""Relative error from which on a method is behind a linear one."""
_KEPT = 2000  # samples of a forecast that a figure needs at the most


class Published(NamedTuple):
    """The error of a system that somebody else has run on the same test part, in the units of the recording."""

    kind: str
    system: str
    rmse: float
    unit: str
    source: str
    test: str = "test"


def _champneys(unit: str, *numbers: tuple[str, str, float], test: str = "test") -> tuple[Published, ...]:
    source = "Champneys et al. 2024 (arXiv 2405.10779)"
    return tuple(Published(kind, system, rmse, unit, source, test) for kind, system, rmse in numbers)


# Kind, system and RMSE. Of the best linear systems the paper tells no names.
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "cascaded_tanks": _champneys(
        "V",
        ("linear", "", 0.588),
        ("black box", "continuous-time SUBNET", 0.306),
        ("black box", "GRU", 0.396),
        ("black box", "polynomial NARX", 0.413),
        ("black box", "GP NARX", 0.622),
        ("grey box", "", 0.191),
    ),
    "coupled_drives_1": _champneys(
        "", ("linear", "", 0.224), ("black box", "continuous-time SUBNET", 0.115), ("black box", "GP NARX", 0.102)
    ),
    "coupled_drives_2": _champneys(
        "", ("linear", "", 0.384), ("black box", "continuous-time SUBNET", 0.074), ("black box", "GP NARX", 0.090)
    ),
    "silverbox": (
        *_champneys(
            "V",
            ("linear", "", 6.96e-3),
            ("black box", "SUBNET", 0.36e-3),
            ("black box", "GP NARX", 0.30e-3),
            test="multisine",
        ),
        *_champneys(
            "V",
            ("linear", "", 14.4e-3),
            ("black box", "PNLSS", 0.26e-3),
            ("black box", "GP NARX", 0.60e-3),
            test="arrow",
        ),
    ),
    "wiener_hammerstein": _champneys(
        "V",
        ("linear", "", 43.4e-3),
        ("black box", "SUBNET", 0.241e-3),
        ("black box", "GRU", 3.97e-3),
        ("black box", "GP NARX", 23.1e-3),
    ),
    "emps": _champneys(
        "m",
        ("linear", "", 5.53e-3),
        ("black box", "dynoNet", 2.64e-3),
        ("black box", "GRU", 220e-3),
        ("black box", "GP NARX", 1690e-3),
    ),
}


def published(dataset: str) -> tuple[Published, ...]:
    """All that is published for a data set; of the paper's table, and of what its rows come from, every system."""
    found = PUBLISHED.get(dataset, ())
    if dataset in sysid.DATASETS:
        place = sysid.DATASETS.index(dataset)
        paper = ((name, cells[place][0]) for name, cells in sysid.PAPER.items())
        online = ((name, cells[place]) for name, cells in sysid.PUBLISHED_ONLINE.items())
        found += tuple(Published("offline", name, rmse, "", "the paper's Table II") for name, rmse in paper)
        found += tuple(Published("online", name, rmse, "", "results its authors have stored") for name, rmse in online)
    return found


def best_published(dataset: str) -> tuple[Published, ...]:
    """The smallest error of every kind of system, the largest first."""
    best: dict[tuple[str, str], Published] = {}
    for each in published(dataset):
        key = (each.kind, each.test)
        if key not in best or each.rmse < best[key].rmse:
            best[key] = each
    return tuple(sorted(best.values(), key=lambda each: (each.test, -each.rmse)))


@dataclass(frozen=True)
class Score:
    """One fit and its forecast of the test part; the curves have a list for every output."""

    dataset: str
    method: str
    seed: int
    rmse: list[float]
    """Of every output, in its unit."""
    nrmse: float
    coverage90: float
    crps: float
    """Relative to the standard deviation of each output."""
    nlpd: float
    cpu_seconds: float
    compile_seconds: float
    step: int
    """Of how many samples the curves have one."""
    mean: list[list[float]]
    low: list[list[float]]
    high: list[list[float]]
    truth: list[list[float]]


@dataclass(frozen=True)
class Row:
    """A method on a data set, over the seeds that have a result. `rmse` has a number for every output."""

    dataset: str
    method: str
    seeds: int
    failed: int
    rmse: float | list[float]
    rmse_sd: float | list[float]
    nrmse: float
    coverage90: float
    crps: float
    nlpd: float
    cpu_seconds: float
    compile_seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, but for numbers that are not finite."""
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """A method over all data sets."""

    method: str
    datasets: int
    """On how many it has a finite error."""
    relative_to_arx: float | None
    """Geometric mean of its NRMSE relative to that of ARX, where both have one."""
    first: int
    behind_linear: int | None
    """On how many it is behind the better of ARX and LinearGaussian by more than 5%, or has failed."""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def build(method: str, output_dim: int) -> Any:
    """The method as it is compared: as many states as it finds it needs, live a few more than outputs; defaults."""
    return sysid.build(method, max(sysid.STATE_DIM, output_dim + 2) if method in registry.ONLINE else AUTO)


def fit(data: Benchmark, method: str, seed: int) -> Score:
    """Learn from one part of a recording, forecast the other (the first, if there are several) and score it."""
    test, run_in = data.test.series, data.test.run_in
    seen, rest = test.rows(slice(None, run_in)), test.rows(slice(run_in, None))
    found = forecast(method, data.train, seen, rest.inputs, len(rest.outputs), seed)
    score = scores(found.paths, rest.outputs)
    step = -(-len(rest.outputs) // _KEPT)
    low, high = np.quantile(found.paths, [0.05, 0.95], axis=0)
    curves = (found.paths.mean(axis=0), low, high, rest.outputs)
    return Score(
        data.name,
        method,
        seed,
        score.rmse,
        score.nrmse,
        score.coverage90,
        score.crps,
        score.nlpd,
        found.cpu_seconds,
        found.compile_seconds,
        step,
        *(_digits(curve[::step]) for curve in curves),
    )


class FreeRun(NamedTuple):
    """Paths (p, h, dy) of a forecast, and what learning has cost."""

    paths: Float[NDArray, "p h dy"]
    cpu_seconds: float
    """Without compilation."""
    compile_seconds: float


def forecast(method: str, train: Series, seen: Series, inputs: NDArray | None, horizon: int, seed: int) -> FreeRun:
    """Learn from `train`; then forecast what follows it, or what follows the samples `seen` of another recording."""
    chosen = build(method, train.outputs.shape[1])
    cpu, clock = time.process_time(), CompileClock()
    if method in registry.ONLINE:
        stream = chosen.start(seed=seed)
        learn_once(stream, train.outputs, train.inputs)
        compiling = clock.seconds
        seconds = time.process_time() - cpu - compiling
        # As a live system would: the jump to the other recording is one that it has to live with.
        if len(seen.outputs):
            learn_once(stream, seen.outputs, seen.inputs)
        paths = stream.forecast(horizon, inputs, seed=seed).samples
    else:
        fitted = chosen.fit(train.outputs, train.inputs, seed=seed)
        compiling = clock.seconds
        seconds = time.process_time() - cpu - compiling
        state = fitted.filter(seen.outputs, seen.inputs, seed=seed) if len(seen.outputs) else None
        paths = evaluation.free_run(fitted, horizon, inputs, state=state, seed=seed)
    return FreeRun(paths, max(seconds, 0.0), compiling)


class Scores(NamedTuple):
    rmse: list[float]
    nrmse: float
    coverage90: float
    crps: float
    nlpd: float


def scores(paths: Float[NDArray, "p h dy"], truth: Float[NDArray, "h dy"]) -> Scores:
    """Of a forecast, with RMSE in the unit of every output and the CRPS relative to its standard deviation."""
    spread = truth.std(axis=0)
    mean = paths.mean(axis=0)
    rmse = [metrics.rmse(mean[:, j], truth[:, j]) for j in range(truth.shape[1])]
    return Scores(
        rmse,
        float(np.sqrt(np.mean((np.array(rmse) / spread) ** 2))),
        metrics.coverage(paths, truth, 0.9),
        metrics.crps(paths / spread, truth / spread),
        metrics.nlpd(paths, truth),
    )


def summarise(dataset: str, method: str, results: Sequence[dict[str, Any]], failed: int = 0) -> Row:
    """Means over seeds, from what is stored of every `Score`; NaN without results, or where one has diverged."""

    def mean(name: str) -> float:
        return float(np.mean([_number(result[name]) for result in results])) if results else float("nan")

    rmse = np.array([[_number(value) for value in result["rmse"]] for result in results] or [[np.nan]])
    sd = rmse.std(axis=0, ddof=1) if len(rmse) > 1 else np.zeros_like(rmse[0])
    return Row(
        dataset=dataset,
        method=method,
        seeds=len(results),
        failed=failed,
        rmse=_one_or_list(rmse.mean(axis=0)),
        rmse_sd=_one_or_list(sd),
        nrmse=mean("nrmse"),
        coverage90=mean("coverage90"),
        crps=mean("crps"),
        nlpd=mean("nlpd"),
        cpu_seconds=mean("cpu_seconds"),
        compile_seconds=mean("compile_seconds"),
    )


def summary(rows: Sequence[Row]) -> list[Summary]:
    """Every method over all data sets, in the order of `rows`. What has failed or diverged is behind all others."""
    found = {(row.dataset, row.method): row.nrmse if np.isfinite(row.nrmse) else np.inf for row in rows}
    best, linear = dict[str, float](), dict[str, float]()
    for (dataset, method), error in found.items():
        best[dataset] = min(error, best.get(dataset, np.inf))
        if method in LINEAR:
            linear[dataset] = min(error, linear.get(dataset, np.inf))
    result = []
    for method in dict.fromkeys(row.method for row in rows):
        own = {dataset: error for (dataset, name), error in found.items() if name == method}
        finite = {dataset: error for dataset, error in own.items() if np.isfinite(error)}
        arx = {d: found.get((d, "ARX"), np.inf) for d in finite}
        ratios = [error / arx[d] for d, error in finite.items() if np.isfinite(arx[d])]
        compared = [error > BEHIND * linear[d] or d not in finite for d, error in own.items() if d in linear]
        result.append(
            Summary(
                method,
                len(finite),
                float(np.exp(np.mean(np.log(ratios)))) if ratios else None,
                sum(error <= best[d] for d, error in finite.items()),
                sum(compared) if compared else None,
            )
        )
    return result


def _number(value: float | None) -> float:
    """JSON has no NaN and no infinity: what is stored instead is None."""
    return float("nan") if value is None else float(value)


def _one_or_list(values: NDArray) -> float | list[float]:
    return float(values[0]) if len(values) == 1 else values.tolist()


def _digits(curve: Float[NDArray, "h dy"]) -> list[list[float]]:
    """A list for every output, in as many digits as a figure shows."""
    return [[float(f"{value:.6g}") for value in channel] for channel in curve.T]
