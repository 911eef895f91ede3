"""Sixteen recordings, the paper's five among them: each test part forecast, beside what is published for it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from gpssm.datasets import SOURCES, benchmark
from gpssm.experiments import recordings as experiment
from gpssm.methods import registry
from gpssm.reproduction.drawing import forecast, panels
from gpssm.reproduction.numbers import files, mean, number, over_seeds
from gpssm.reproduction.pages import Entry, Figure, Part, Section, Table, entry
from gpssm.reproduction.plan import Cell, Group, Task, by_dataset
from gpssm.reproduction.settings import spell

SEEDS = 3
LEFT_OUT = "recordings: all but the cascaded tanks and one of the coupled drives, and all methods but three"

_FAST_DATASETS = ("cascaded_tanks", "coupled_drives_1")
_DRAWN = 2  # outputs of one system: further ones would only repeat the picture


def cells(fast: bool) -> list[Cell]:
    datasets = _FAST_DATASETS if fast else experiment.DATASETS
    methods = experiment.DEFAULT if fast else experiment.METHODS
    return [Cell(method, dataset, "") for dataset in datasets for method in methods]


def configuration(task: Task) -> str:
    return spell(experiment.build(task.method, len(SOURCES[task.dataset].output_names)))


def cost(task: Task) -> float:
    if task.method not in registry.SYSTEMS and task.method not in registry.ONLINE and task.method != "LinearGaussian":
        return 2.0
    return (70.0 if task.method in registry.SYSTEMS else 15.0) * max(1.0, SOURCES[task.dataset].learn.length / 500)


def run(task: Task) -> dict[str, Any]:
    return asdict(experiment.fit(benchmark(task.dataset), task.method, task.seed))


def rows(groups: Sequence[Group]) -> list[experiment.Row]:
    """One for every group, over its seeds; nothing of those that were not run."""
    return [
        experiment.summarise(group.cell.dataset, group.method, group.results, len(group.failed))
        for group in groups
        if group.results or group.failed
    ]


def section(groups: Sequence[Group]) -> Section:
    own = by_dataset(groups)
    tables = [
        _brief(groups, list(own)),
        _overview(groups, list(own)),
        _summary(groups),
        *(_table(dataset, each) for dataset, each in own.items()),
    ]
    figures = [figure for dataset, each in own.items() for figure in _figure(dataset, each)]
    return Section(
        "Sixteen recordings",
        (
            "Each has a part to learn from and a part to test on, as it is published: mostly its halves. The test part "
            "is forecast at once from the end of learning; one that was recorded apart, from the state that its first "
            f"samples give ({_run_ins(list(own))}), which are not scored. NRMSE: the root mean square error of "
            "every output relative to the standard deviation of what is scored, and the root mean square of these; "
            "mean ± standard error over seeds. Online methods see every sample once.",
        ),
        tuple(tables),
        tuple(figures),
    )


def _run_ins(datasets: list[str]) -> str:
    found = {name: SOURCES[name].tests[0].run_in for name in datasets}
    return ", ".join(f"{name}: {count}" for name, count in found.items() if count) or "none here"


def _overview(groups: Sequence[Group], datasets: list[str]) -> Table:
    """A row for every data set, a column for every method."""
    found = {(group.cell.dataset, group.method): group for group in groups}
    methods = list(dict.fromkeys(group.method for group in groups))
    lines: list[tuple[Entry, ...]] = []
    for dataset in datasets:
        own = (found.get((dataset, method)) for method in methods)
        ours = (entry("") if group is None else _error_and_band(group) for group in own)
        lines.append((entry(dataset), *ours, entry(_published(dataset))))
    return Table(
        "Recordings: NRMSE of the free run, and the share of numbers in its 90% band",
        ("data set", *methods, "published RMSE"),
        tuple(lines),
        over_seeds(groups),
    )


def _brief(groups: Sequence[Group], datasets: list[str]) -> Table:
    """EnVI beside a line, the best of all others, and the best that is published."""
    found = {(group.cell.dataset, group.method): group for group in groups if group.results}
    first = ("EnVI", "ARX")
    lines: list[tuple[Entry, ...]] = []
    for dataset in datasets:
        ours = [_error_and_band(found[dataset, m]) if (dataset, m) in found else entry("") for m in first]
        others = [group for (name, m), group in found.items() if name == dataset and m not in first]
        best = min(others, key=lambda group: float(np.mean(group.values("nrmse"))), default=None)
        named = entry("") if best is None else (*_error_and_band(best), Part(best.method))
        envi = _rmse(found[dataset, "EnVI"]) if (dataset, "EnVI") in found else entry("")
        published = min(experiment.published(dataset), key=lambda each: each.rmse, default=None)
        told = "" if published is None else f"{published.rmse:g} {published.unit}".strip() + f" ({_named(published)})"
        lines.append((entry(dataset), *ours, named, envi, entry(told)))
    return Table(
        "Sixteen recordings: NRMSE of the free run (share of numbers in its 90% band)",
        ("data set", *first, "best of the others", "EnVI: RMSE", "published RMSE"),
        tuple(lines),
        over_seeds(groups),
        brief=True,
    )


def _error_and_band(group: Group) -> Entry:
    shown = number(group, mean(group.values("nrmse")))
    if not group.results:
        return shown
    return (*shown, Part(f"({np.mean(group.values('coverage90')):.2f})", shown[0].link))


def _published(dataset: str) -> str:
    return ", ".join(f"{_named(each)} {each.rmse:g} {each.unit}".strip() for each in experiment.best_published(dataset))


def _named(each: experiment.Published) -> str:
    return f"{each.kind} ({each.system})" if each.system else each.kind


def _summary(groups: Sequence[Group]) -> Table:
    folders = {group.method: f"{group.folder.rpartition('/')[0]}/" for group in groups}
    lines = []
    for each in experiment.summary(rows(groups)):
        relative = "" if each.relative_to_arx is None else f"{each.relative_to_arx:.3f}"
        behind = "" if each.behind_linear is None else str(each.behind_linear)
        ours = (str(each.datasets), relative, str(each.first), behind)
        lines.append((entry(each.method), *(entry(text, folders[each.method]) if text else entry("") for text in ours)))
    return Table(
        "Recordings: every method over all data sets",
        ("method", "data sets", "NRMSE relative to ARX", "first on", "behind the better linear one on"),
        tuple(lines),
        "Relative to ARX: the geometric mean. Behind: by more than 5%, or without a forecast at all.",
    )


def _table(dataset: str, groups: list[Group]) -> Table:
    lines: list[tuple[Entry, ...]] = []
    for group in groups:
        plain = {
            name: mean(group.values(name))._replace(error=None)
            for name in ("nlpd", "crps", "coverage90", "cpu_seconds", "compile_seconds")
        }
        lines.append(
            (
                entry(group.method), number(group, mean(group.values("nrmse"))), _rmse(group),
                number(group, plain["nlpd"]), number(group, plain["crps"]), number(group, plain["coverage90"], 2),
                number(group, plain["cpu_seconds"], 1), number(group, plain["compile_seconds"], 1), files(group),
            )
        )  # fmt: skip
    for each in experiment.published(dataset):
        told = f"{each.rmse:g} {each.unit}".strip()
        lines.append((entry(f"{_named(each)}, published"), entry(""), entry(told), *[entry("")] * 6))
    columns = (
        "method", "NRMSE", "RMSE", "NLPD", "CRPS / sd", "in 90% band", "CPU seconds a fit", "compiling, s",
        "results by seed",
    )  # fmt: skip
    sources = dict.fromkeys(each.source for each in experiment.published(dataset))
    note = f"Published: {'; '.join(sources)}." if sources else ""
    return Table(f"{dataset}: {SOURCES[dataset].description}", columns, tuple(lines), note)


def _rmse(group: Group) -> Entry:
    """In the unit of every output."""
    (row,) = rows([group]) or (None,)
    shown = number(group, mean(group.values("nrmse")))
    if row is None or not group.results:
        return shown
    values = row.rmse if isinstance(row.rmse, list) else [row.rmse]
    return entry(", ".join(f"{value:.4g}" for value in values), shown[0].link)


class _Panel(NamedTuple):
    group: Group
    output: int


def _figure(dataset: str, groups: list[Group]) -> tuple[Figure, ...]:
    names = SOURCES[dataset].output_names[:_DRAWN]
    shown = [_Panel(group, j) for j in range(len(names)) for group in groups if group.results]
    which = names[0] if len(names) == 1 else " and ".join(names)
    caption = f"{dataset}, {which}: what was tested on (black) and its forecast with the 90% band, first seed."
    return panels(f"recording-{dataset}", caption, shown, 3, (4.0, 1.9), _draw)


def _draw(ax: Axes, panel: _Panel) -> None:
    result, j = panel.group.results[0], panel.output
    curves = {name: result[name][j] for name in ("mean", "low", "high", "truth")}
    title = f"{panel.group.method}: {SOURCES[panel.group.cell.dataset].output_names[j]}"
    if result["rmse"][j] is not None:
        title += f", RMSE {result['rmse'][j]:.3g}"
    forecast(ax, title, curves, result["step"])
