"""Table II and its figures: five recorded systems, forecast over their second halves."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from gpssm.datasets import load
from gpssm.experiments import sysid as experiment
from gpssm.methods import registry
from gpssm.reproduction.drawing import forecast, panels
from gpssm.reproduction.numbers import Estimate, files, mean, number, over_seeds, printed, text, verdict
from gpssm.reproduction.pages import Entry, Figure, Section, Table, entry
from gpssm.reproduction.plan import Cell, Group, Task, by_dataset
from gpssm.reproduction.settings import spell

SEEDS = 5
LEFT_OUT = "sysid: only the actuator and the gas furnace, and half of the methods"

_PAPER_SEEDS = 5
_FAST_DATASETS = ("actuator", "gas_furnace")
_FAST_METHODS = ("EnVI", "vGPSSM", "DKF", "LinearGaussian", "ARX", "LastValue", "TrainingMean", "OEnVI", "RGPSSM")


def cells(fast: bool) -> list[Cell]:
    datasets = _FAST_DATASETS if fast else experiment.DATASETS
    methods = _FAST_METHODS if fast else (*experiment.METHODS, *experiment.ONLINE)
    return [Cell(m, d, "online" if m in experiment.ONLINE else "offline") for d in datasets for m in methods]


def configuration(task: Task) -> str:
    return spell(experiment.build(task.method))


def cost(task: Task) -> float:
    return 70.0 if task.method in registry.SYSTEMS else 15.0


def run(task: Task) -> dict[str, Any]:
    data = load(task.dataset)
    score = asdict(experiment.fit(task.dataset, data, task.method, task.seed))
    curves = {name: np.round(score[name], 6).tolist() for name in ("mean", "low", "high")}
    return score | curves | {"truth": np.round(data.split(0.5)[1].outputs[:, 0], 6).tolist()}


def section(groups: Sequence[Group]) -> Section:
    own = by_dataset(groups)
    tables = [_brief(groups, list(own)), *(_table(dataset, each) for dataset, each in own.items())]
    figures = [figure for dataset, each in own.items() for figure in _figure(dataset, each)]
    return Section(
        "Table II: five recorded systems",
        (
            "The first half of a series is to learn from. Free run: the second half forecast at once, as in the code "
            "of the paper. Blocks: forecast 50 steps at a time, each from what was recorded before it. RMSE in the "
            "units of the recording, mean ± standard error over seeds; the printed numbers with the standard error "
            "that follows from the printed standard deviation over five seeds. Online methods see every sample once.",
        ),
        tuple(tables),
        tuple(figures),
    )


def _printed(group: Group) -> Estimate | None:
    place = experiment.DATASETS.index(group.cell.dataset)
    if group.method in experiment.PUBLISHED_ONLINE:
        return Estimate(experiment.PUBLISHED_ONLINE[group.method][place])
    if group.method not in experiment.PAPER:
        return None
    value, spread = experiment.PAPER[group.method][place]
    return Estimate(value, spread / np.sqrt(_PAPER_SEEDS))


def _table(dataset: str, groups: list[Group]) -> Table:
    rows = []
    for group in groups:
        rmse = mean(group.values("free_run_rmse"))
        plain = [mean(group.values(name))._replace(error=None) for name in ("nlpd", "crps", "coverage90")]
        rows.append(
            (
                entry(group.method), entry(group.cell.setting), number(group, rmse), printed(_printed(group)),
                entry(verdict(rmse, _printed(group))), number(group, mean(group.values("blocks50_rmse"))),
                number(group, plain[0]), number(group, plain[1]), number(group, plain[2], 2),
                number(group, mean(group.values("fit_seconds"))._replace(error=None), 1), files(group),
            )
        )  # fmt: skip
    columns = (
        "method", "", "free run RMSE", "printed", "verdict", "blocks of 50 RMSE", "NLPD", "CRPS", "in 90% band",
        "seconds a fit", "results by seed",
    )  # fmt: skip
    return Table(dataset, columns, tuple(rows), "NLPD, CRPS and the band are those of the free run.")


def _brief(groups: Sequence[Group], datasets: list[str]) -> Table:
    """As the paper prints it: a row for every method, a column for every data set."""
    found = {(g.method, g.cell.dataset): g for g in groups}
    rows: list[tuple[Entry, ...]] = []
    for method in dict.fromkeys(g.method for g in groups):
        own = [found.get((method, dataset)) for dataset in datasets]
        ours = (entry("") if g is None else number(g, mean(g.values("free_run_rmse"))) for g in own)
        rows.append((entry(method), *ours))
        told = [None if g is None else _printed(g) for g in own]
        if any(told):
            rows.append((entry(f"{method}, printed"), *(entry("" if e is None else text(e)) for e in told)))
    title = "Five recorded systems: RMSE of the free run"
    return Table(title, ("method", *datasets), tuple(rows), over_seeds(groups), True)


def _figure(dataset: str, groups: list[Group]) -> tuple[Figure, ...]:
    shown = [group for group in groups if group.results]
    caption = f"{dataset}: the second half (black) and its free-run forecast with the 90% band, first seed."
    return panels(f"forecast-{dataset}", caption, shown, 3, (4.0, 1.9), _draw)


def _draw(ax: Axes, group: Group) -> None:
    result = group.results[0]
    forecast(ax, f"{group.method}: RMSE {result['free_run_rmse']:.3g}", result)
