"""Sixteen recordings of up to 4000 samples, and three long ones, beside what is published for them.

Every recording has a part to learn from and a part to test on (`gpssm.datasets.benchmark`). The test part is forecast
at once, from the end of learning. One that was recorded apart starts from an unknown state: its first samples are
filtered to find it, and what follows them is forecast and scored. No later output is ever read. Online, a method sees
every sample of the part to learn from once, and goes on learning from the first samples of the other.

Errors of different systems are compared as NRMSE, the error relative to the spread of the outputs:

    sqrt(mean over outputs j of (RMSE_j / sd_j)^2),  sd_j: standard deviation of what is scored

so that 1 is the error of a forecast that knows the mean of the test part and nothing else.
"""

import copy
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from gpssm import metrics
from gpssm.datasets import SOURCES, Benchmark, benchmark
from gpssm.datasets.registry import Unseen
from gpssm.errors import InvalidInput
from gpssm.experiments import sysid
from gpssm.experiments.base import Cell, Group, Task, by, choose, number_or_nan, spell
from gpssm.experiments.drawing import Axes, forecast, panels
from gpssm.experiments.estimates import mean
from gpssm.experiments.online import learn, learn_once
from gpssm.experiments.pages import Entry, Figure, Part, Section, Table
from gpssm.experiments.published import best_published, published
from gpssm.experiments.tables import Column, entry, line, method_name, number, over_seeds, table, value
from gpssm.methods import registry
from gpssm.online.stream import Stream
from gpssm.training.linear_search import AUTO

NDArray = np.ndarray

SEEDS = 3
LEFT_OUT = "recordings: all but the cascaded tanks and one of the coupled drives, and all methods but three"
OUT = "results/recordings"

DATASETS = (
    *sysid.DATASETS, "cascaded_tanks", "coupled_drives_1", "coupled_drives_2", "heating", "robot_arm",
    "flutter", "thermic_wall", "exchanger", "tank", "winding", "glass_furnace",
)  # fmt: skip
LONG = ("silverbox", "wiener_hammerstein", "emps")
"""Recordings of 25 000 to 100 000 samples to learn from."""
METHODS = (*registry.METHODS, *registry.ONLINE)
LONG_METHODS = ("EnVI", "ARX", "LinearGaussian", "OEnVI")
"""Methods whose cost does not grow with the length of a recording, or hardly."""
LINEAR = ("ARX", "LinearGaussian")
DEFAULT = ("EnVI", *LINEAR)

BEHIND = 1.05
"""Relative error from which on a method is behind a linear one."""
_KEPT = 2000  # samples of a forecast that a figure needs at the most
_LONG_HORIZON = 10_000
_FAST_DATASETS = ("cascaded_tanks", "coupled_drives_1")
_DRAWN = 2  # outputs of one system: further ones would only repeat the picture


def cells(fast: bool) -> list[Cell]:
    """Every method on every recording; on long ones those that can."""
    if fast:
        return [Cell(m, d, "") for d, m in product(_FAST_DATASETS, DEFAULT)]
    return [Cell(m, d, "") for d, m in (*product(DATASETS, METHODS), *product(LONG, LONG_METHODS))]


def select(
    dataset: Annotated[list[str] | None, "A recording that `gpssm datasets` lists; repeat for several."] = None,
    method: Annotated[
        list[str] | None,
        f"{', '.join(METHODS)}, or all; repeat for several. By default EnVI and two linear ones.",
    ] = None,
) -> list[Cell]:
    """The cells that the options ask for."""
    methods = choose("method", method or DEFAULT, METHODS)
    pairs = product(choose("dataset", dataset or "all", (*DATASETS, *LONG)), methods)
    chosen = [Cell(m, d, "") for d, m in pairs if d not in LONG or m in LONG_METHODS]
    if not chosen:
        raise InvalidInput(f"method: on long recordings expected one of {', '.join(LONG_METHODS)}.")
    return chosen


def configuration(task: Task) -> str:
    """The settings of the method, as text."""
    return spell(build(task.method, len(SOURCES[task.dataset].output_names)))


def cost(task: Task) -> float:
    """Seconds that a fit takes, roughly."""
    if task.method not in registry.SYSTEMS and task.method not in registry.ONLINE and task.method != "LinearGaussian":
        return 2.0
    length = min(SOURCES[task.dataset].learn.length, 4000)  # what there is beyond costs little
    return (70.0 if task.method in registry.SYSTEMS else 15.0) * max(1.0, length / 500)


def run(task: Task) -> dict[str, Any]:
    """Learn from a recording, forecast its test part and score that (`fit`)."""
    return fit(benchmark(task.dataset), task.method, task.seed)


def build(method: str, output_dim: int) -> Any:
    """The method as it is compared: as many states as it finds it needs, live a few more than outputs; defaults."""
    return sysid.build(method, max(sysid.STATE_DIM, output_dim + 2) if method in registry.ONLINE else AUTO)


def fit(data: Benchmark, method: str, seed: int) -> dict[str, Any]:
    """Learn from one part of a recording, forecast the other and score it.

    The `scores`, the CPU seconds of learning without compilation (`cpu_seconds`) and of compilation, and curves with a
    list for every output, of which there is one of every `step` samples: the `mean` of the forecast, the quantiles
    `low` and `high` that hold 90%, and the `truth`. Where there are further parts to test on, the same of each of them
    in `further`, with its name as `test`.
    """
    learned, seconds, compiling = learn(build(method, data.test.series.outputs.shape[1]), data.train, seed)
    first, *further = (_tested(learned, test, seed) for test in data.tests)
    return (
        {"dataset": data.name, "method": method, "seed": seed}
        | first
        | {"cpu_seconds": seconds, "compile_seconds": compiling}
        | ({"further": further} if further else {})
    )


def _tested(learned: Any, test: Unseen, seed: int) -> dict[str, Any]:
    """The forecast of one part to test on: its scores and curves."""
    seen, rest = (test.series.rows(rows) for rows in (slice(None, test.run_in), slice(test.run_in, None)))
    horizon = len(rest.outputs)
    if isinstance(learned, Stream):
        stream = copy.deepcopy(learned)
        if test.run_in:  # as a live system would: the jump to the other recording is one that it has to live with
            learn_once(stream, seen.outputs, seen.inputs)
        num_paths = 500 if horizon <= _LONG_HORIZON else 100  # all of them are in memory at once
        pieces = iter([stream.forecast(horizon, rest.inputs, num_paths=num_paths, seed=seed).samples])
    else:
        state = learned.filter(seen.outputs, seen.inputs, seed=seed) if test.run_in else None
        inputs = learned.future(horizon, rest.inputs, state)
        pieces = (piece.samples for piece in learned.pieces(inputs, state=state, seed=seed))
    step, found = -(-horizon // _KEPT), list[tuple[NDArray, dict[str, Any]]]()
    curves = []
    for paths in pieces:
        first = sum(len(each) for each, _ in found)
        truth = rest.outputs[first : first + paths.shape[1]]
        found.append((truth, scores(paths, truth, rest.outputs.std(axis=0))))
        low, high = np.quantile(paths, [0.05, 0.95], axis=0)
        curves.append((paths.mean(axis=0), low, high, truth))
    shown = [np.concatenate(curve)[::step] for curve in zip(*curves, strict=True)]
    named = zip(("mean", "low", "high", "truth"), shown, strict=True)
    return {"test": test.name} | _together(found) | {"step": step} | {name: _digits(curve) for name, curve in named}


def _together(found: list[tuple[NDArray, dict[str, Any]]]) -> dict[str, Any]:
    """The scores of a forecast from those of its pieces."""
    shares = np.array([len(truth) for truth, _ in found]) / sum(len(truth) for truth, _ in found)
    each = [piece for _, piece in found]
    rmse = np.sqrt(shares @ np.array([piece["rmse"] for piece in each]) ** 2)
    others = {name: float(shares @ [piece[name] for piece in each]) for name in ("coverage90", "crps", "nlpd")}
    nrmse = float(np.sqrt(shares @ np.array([piece["nrmse"] for piece in each]) ** 2))
    return {"rmse": rmse.tolist(), "nrmse": nrmse} | others


def scores(
    paths: Float[NDArray, "p h dy"], truth: Float[NDArray, "h dy"], spread: Float[NDArray, " dy"] | None = None
) -> dict[str, Any]:
    """Of a forecast: `rmse` as a list in the unit of every output, `crps` relative to their standard deviations.

    These are those of the truth, or `spread` where that is a piece of it.
    """
    spread = truth.std(axis=0) if spread is None else spread
    average = paths.mean(axis=0)
    rmse = [metrics.rmse(average[:, j], truth[:, j]) for j in range(truth.shape[1])]
    return {
        "rmse": rmse,
        "nrmse": float(np.sqrt(np.mean((np.array(rmse) / spread) ** 2))),
        "coverage90": metrics.coverage(paths, truth, 0.9),
        "crps": metrics.crps(paths / spread, truth / spread),
        "nlpd": metrics.nlpd(paths, truth),
    }


def summarise(dataset: str, method: str, results: Sequence[dict[str, Any]], failed: int = 0) -> dict[str, Any]:
    """A method on a data set: means over seeds; NaN without results, or where one has diverged.

    `rmse` and `rmse_sd`, the standard deviation over seeds, have a number for every output, if there are several.
    """
    rmse = np.array([[number_or_nan(error) for error in result["rmse"]] for result in results] or [[np.nan]])
    sd = rmse.std(axis=0, ddof=1) if len(rmse) > 1 else np.zeros_like(rmse[0])
    row = {"dataset": dataset, "method": method, "seeds": len(results), "failed": failed}
    row |= {"rmse": _one_or_list(rmse.mean(axis=0)), "rmse_sd": _one_or_list(sd)}
    for name in ("nrmse", "coverage90", "crps", "nlpd", "cpu_seconds", "compile_seconds"):
        row[name] = mean([number_or_nan(result[name]) for result in results]).value
    return row


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every method over all data sets, in the order of `rows`. What has failed or diverged is behind all others.

    On how many `datasets` it has a finite error, the geometric mean of its NRMSE relative to that of ARX where both
    have one, on how many data sets it is `first`, and on how many behind the better of ARX and LinearGaussian by more
    than 5%, or failed. None where there is nothing to compare with.
    """
    found = {(r["dataset"], r["method"]): r["nrmse"] if np.isfinite(r["nrmse"]) else np.inf for r in rows}
    best, linear = dict[str, float](), dict[str, float]()
    for (dataset, method), error in found.items():
        best[dataset] = min(error, best.get(dataset, np.inf))
        if method in LINEAR:
            linear[dataset] = min(error, linear.get(dataset, np.inf))
    result = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = {dataset: error for (dataset, name), error in found.items() if name == method}
        finite = {dataset: error for dataset, error in own.items() if np.isfinite(error)}
        arx = {d: found.get((d, "ARX"), np.inf) for d in finite}
        ratios = [error / arx[d] for d, error in finite.items() if np.isfinite(arx[d])]
        compared = [error > BEHIND * linear[d] or d not in finite for d, error in own.items() if d in linear]
        result.append(
            {
                "method": method,
                "datasets": len(finite),
                "relative_to_arx": float(np.exp(np.mean(np.log(ratios)))) if ratios else None,
                "first": sum(error <= best[d] for d, error in finite.items()),
                "behind_linear": sum(compared) if compared else None,
            }
        )
    return result


def _one_or_list(values: NDArray) -> float | list[float]:
    return float(values[0]) if len(values) == 1 else values.tolist()


def _digits(curve: Float[NDArray, "h dy"]) -> list[list[float]]:
    """A list for every output, in as many digits as a figure shows."""
    return [[float(f"{value:.6g}") for value in channel] for channel in curve.T]


def _rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """One for every group, over its seeds; nothing of those that were not run."""
    return [
        summarise(group.cell.dataset, group.method, group.results, len(group.failed))
        for group in groups
        if group.results or group.failed
    ]


def rows(groups: Sequence[Group]) -> dict[str, Any]:
    """Every method on every data set, every method over all of them, and what is published."""
    found = _rows(groups)
    return {
        "rows": found,
        "summary": summary(found),
        "published": {dataset: [each._asdict() for each in published(dataset)] for dataset in by(groups, "dataset")},
    }


def section(groups: Sequence[Group]) -> Section:
    """Three tables over all data sets; then a table and a figure for every one."""
    own = by(groups, "dataset")
    short = [group for group in groups if group.cell.dataset not in LONG]
    long = [group for group in groups if group.cell.dataset in LONG]
    datasets = list(by(short, "dataset"))
    over_all = (_brief(short, datasets), _overview(short, datasets), _summary(short)) if short else ()
    over_all = (*over_all, _long(long)) if long else over_all
    return Section(
        "Sixteen recordings, and three long ones",
        (
            "Each has a part to learn from and a part to test on, as it is published: mostly its halves. The test part "
            "is forecast at once from the end of learning; one that was recorded apart, from the state that its first "
            f"samples give ({_run_ins(list(own))}), which are not scored. NRMSE: the root mean square error of "
            "every output relative to the standard deviation of what is scored, and the root mean square of these; "
            "mean ± standard error over seeds. Online methods see every sample once.",
        ),
        (*over_all, *(_table(dataset, each) for dataset, each in own.items())),
        tuple(figure for dataset, each in own.items() for figure in _figure(dataset, each)),
    )


def _run_ins(datasets: list[str]) -> str:
    found = {name: SOURCES[name].tests[0].run_in for name in datasets}
    return ", ".join(f"{name}: {count}" for name, count in found.items() if count) or "none here"


def _long(groups: Sequence[Group]) -> Table:
    """A row for every part to test on of the long recordings, a column for every method."""
    methods = tuple(dict.fromkeys(group.method for group in groups))
    found = {(group.cell.dataset, group.method): group for group in groups}
    lines = []
    for dataset, place in ((d, i) for d in by(groups, "dataset") for i in range(len(SOURCES[d].tests))):
        test = SOURCES[dataset].tests[place].name
        quoted = [each for each in best_published(dataset) if each.test == test]
        shown = (_error_of(found.get((dataset, method)), place) for method in methods)
        lines.append((entry(f"{dataset}, {test}"), *shown, entry(", ".join(f"{q.name} {q.error}" for q in quoted))))
    title = "Long recordings: RMSE of the free run (share of numbers in its 90% band; CPU seconds of the fit)"
    return Table(title, ("part to test on", *methods, "published RMSE"), tuple(lines), over_seeds(groups), brief=True)


def _error_of(group: Group | None, test: int) -> Entry:
    """Of one of the parts to test on."""
    if group is None:
        return entry("")
    link = number(group, mean(group.values("nrmse")))
    if not group.results:
        return link
    tests = [[result, *result.get("further", [])][test] for result in group.results]
    rmse = np.mean([number_or_nan(each["rmse"][0]) for each in tests])
    band = np.mean([number_or_nan(each["coverage90"]) for each in tests])
    seconds = np.mean(group.values("cpu_seconds"))
    return entry(f"{rmse:.3g} ({band:.2f}; {seconds:.0f} s)", link[0].link)


def _overview(groups: Sequence[Group], datasets: list[str]) -> Table:
    """A row for every data set, a column for every method."""
    found = {(group.cell.dataset, group.method): group for group in groups}
    methods = tuple(dict.fromkeys(group.method for group in groups))
    lines = []
    for dataset in datasets:
        ours = (_error_and_band(found.get((dataset, method))) for method in methods)
        quoted = ", ".join(f"{each.name} {each.error}" for each in best_published(dataset))
        lines.append((entry(dataset), *ours, entry(quoted)))
    title = "Recordings: NRMSE of the free run, and the share of numbers in its 90% band"
    return Table(title, ("data set", *methods, "published RMSE"), tuple(lines), over_seeds(groups))


def _brief(groups: Sequence[Group], datasets: list[str]) -> Table:
    """EnVI beside a line, the best of all others, and the best that is published."""
    found = {(group.cell.dataset, group.method): group for group in groups if group.results}
    first = ("EnVI", "ARX")
    lines = []
    for dataset in datasets:
        others = [group for (name, m), group in found.items() if name == dataset and m not in first]
        best = min(others, key=lambda group: float(np.mean(group.values("nrmse"))), default=None)
        named = entry("") if best is None else (*_error_and_band(best), Part(best.method))
        envi = _rmse(found[dataset, "EnVI"]) if (dataset, "EnVI") in found else entry("")
        quoted = min(published(dataset), key=lambda each: each.rmse, default=None)
        ours = (_error_and_band(found.get((dataset, m))) for m in first)
        lines.append(
            (entry(dataset), *ours, named, envi, entry("" if quoted is None else f"{quoted.error} ({quoted.name})"))
        )
    title = "Sixteen recordings: NRMSE of the free run (share of numbers in its 90% band)"
    columns = ("data set", *first, "best of the others", "EnVI: RMSE", "published RMSE")
    return Table(title, columns, tuple(lines), over_seeds(groups), brief=True)


def _error_and_band(group: Group | None) -> Entry:
    if group is None:
        return entry("")
    shown = number(group, mean(group.values("nrmse")))
    if not group.results:
        return shown
    return (*shown, Part(f"({np.mean(group.values('coverage90')):.2f})", shown[0].link))


def _summary(groups: Sequence[Group]) -> Table:
    folders = {group.method: f"{group.folder.rpartition('/')[0]}/" for group in groups}
    lines = []
    for method, datasets, relative, first, behind in (each.values() for each in summary(_rows(groups))):
        shown = (datasets, None if relative is None else f"{relative:.3f}", first, behind)
        ours = (entry("") if text is None else entry(str(text), folders[method]) for text in shown)
        lines.append((entry(method), *ours))
    title = "Recordings: every method over all data sets"
    columns = ("method", "data sets", "NRMSE relative to ARX", "first on", "behind the better linear one on")
    note = "Relative to ARX: the geometric mean. Behind: by more than 5%, or without a forecast at all."
    return Table(title, columns, tuple(lines), note)


def _table(dataset: str, groups: list[Group]) -> Table:
    columns: dict[str, Column] = {
        "method": method_name,
        "NRMSE": value("nrmse", error=True),
        "RMSE": _rmse,
        "NLPD": value("nlpd"),
        "CRPS / sd": value("crps"),
        "in 90% band": value("coverage90", digits=2),
        "CPU seconds a fit": value("cpu_seconds", digits=1),
        "compiling, s": value("compile_seconds", digits=1),
    }
    quoted = published(dataset)
    sources = dict.fromkeys(each.source for each in quoted)
    note = f"Published: {'; '.join(sources)}." if sources else ""
    shown = table(f"{dataset}: {SOURCES[dataset].description}", groups, columns, note)
    theirs = (line(f"{each.name}, published", "", each.error, *[""] * 6) for each in quoted)
    return shown._replace(rows=(*shown.rows, *theirs))


def _rmse(group: Group) -> Entry:
    """In the unit of every output."""
    shown = number(group, mean(group.values("nrmse")))
    if not group.results:
        return shown
    (row,) = _rows([group])
    return entry(", ".join(f"{error:.4g}" for error in np.atleast_1d(row["rmse"])), shown[0].link)


def _figure(dataset: str, groups: list[Group]) -> tuple[Figure, ...]:
    names = SOURCES[dataset].output_names[:_DRAWN]
    shown = [(group, j) for j in range(len(names)) for group in groups if group.results]
    caption = (
        f"{dataset}, {' and '.join(names)}: what was tested on (black) and its forecast with the 90% band, first seed."
    )
    return panels(f"recording-{dataset}", caption, shown, 3, (4.0, 1.9), _draw)


def _draw(ax: Axes, panel: tuple[Group, int]) -> None:
    group, j = panel
    result = group.results[0]
    curves = {name: result[name][j] for name in ("mean", "low", "high", "truth")}
    title = f"{group.method}: {SOURCES[group.cell.dataset].output_names[j]}"
    if result["rmse"][j] is not None:
        title += f", RMSE {result['rmse'][j]:.3g}"
    forecast(ax, title, curves, result["step"])
