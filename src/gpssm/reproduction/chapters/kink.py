"""Table I and its figure: the kink function, offline and online, with both readings of the process noise."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast, get_args

import numpy as np
from matplotlib.axes import Axes

from gpssm.datasets import kink_function
from gpssm.experiments import kink as experiment
from gpssm.reproduction.drawing import BAND, panels
from gpssm.reproduction.numbers import Estimate, files, mean, number, over_seeds, printed, text, verdict
from gpssm.reproduction.pages import Entry, Figure, Section, Table, entry
from gpssm.reproduction.plan import Cell, Group, Task
from gpssm.reproduction.settings import spell

SEEDS = 5
LEFT_OUT = "kink: only the reading sd, observation noise 0.008 and 0.08, and four methods"

_FAST_METHODS, _FAST_LEVELS = ("EnVI", "vGPSSM", "AD-EnKF", "OEnVI"), (0.008, 0.08)
_COST = {"EnVI": 12.0, "EnVI (paper)": 25.0}


def cells(fast: bool) -> list[Cell]:
    methods = (*experiment.METHODS, *experiment.ONLINE)
    settings: tuple[str, ...] = get_args(experiment.Setting)
    levels: tuple[float, ...] = experiment.OBS_NOISE
    if fast:
        methods, settings, levels = _FAST_METHODS, ("sd",), _FAST_LEVELS
    return [Cell(m, f"{level:g}", s) for s in settings for level in levels for m in methods]


def configuration(task: Task) -> str:
    build = experiment.build_online if task.method in experiment.ONLINE else experiment.build
    return spell(build(task.method, float(task.dataset)))


def cost(task: Task) -> float:
    return 10.0 if task.method in experiment.ONLINE else _COST.get(task.method, 20.0)


def run(task: Task) -> dict[str, Any]:
    setting, level = cast(experiment.Setting, task.setting), float(task.dataset)
    fit = experiment.learn_live if task.method in experiment.ONLINE else experiment.fit
    learned, score = fit(task.method, setting, level, task.seed)
    f, var = (np.asarray(a)[:, 0] for a in learned.transition(experiment.GRID[:, None]))
    return asdict(score) | {"f": f.round(5).tolist(), "f_sd": np.sqrt(var).round(5).tolist()}


def section(groups: Sequence[Group]) -> Section:
    settings = list(dict.fromkeys(group.cell.setting for group in groups))
    kinds = (("offline", False), ("online, every sample seen once", True))
    tables, figures = [_brief(groups)], list[Figure]()
    for setting in settings:
        for kind, online in kinds:
            own = [g for g in groups if g.cell.setting == setting and (g.method in experiment.ONLINE) == online]
            if own:
                tables.append(_table(f"Kink, process noise read as {setting}, {kind}", own, online))
        figures += _figure(setting, [g for g in groups if g.cell.setting == setting])
    return Section(
        "Table I: the kink function",
        (
            "Mean squared error and log-density of the learned f on 100 points, mean ± standard error over seeds. The "
            "text of the paper gives process noise as a variance (variance, 0.05), its code as a standard deviation "
            "(sd, 0.05). The printed numbers belong to sd: with variance, no method could reach the log-density of "
            "1.106. Those of RGPSSM and SVMC are from the results that RGPSSM's authors have stored.",
        ),
        tuple(tables),
        tuple(figures),
    )


def _printed(group: Group) -> tuple[Estimate | None, Estimate | None]:
    """MSE and log-density, where they are published."""
    level = float(group.cell.dataset)
    found = experiment.PAPER.get(group.method, {}).get(level)
    online = experiment.PUBLISHED_ONLINE.get(group.method, {}).get(level)
    if group.cell.setting != "sd" or (found is None and online is None):
        return None, None
    if found is None:
        assert online is not None
        return Estimate(*online), None
    return Estimate(found[0], found[1]), Estimate(found[2], found[3])


def _verdict(group: Group) -> str:
    error, density = _printed(group)
    of_error = verdict(mean(group.values("mse")), error)
    of_density = verdict(mean(group.values("log_likelihood")), density, higher=True)
    return of_error if of_density in ("", of_error) else f"MSE {of_error}; log-density {of_density}"


def _table(title: str, groups: list[Group], online: bool) -> Table:
    rows = []
    for group in groups:
        error, density = _printed(group)
        seconds = group.values("fit_seconds")
        cost_ = mean([1e3 * s / experiment.LENGTH for s in seconds] if online else seconds)
        rows.append(
            (
                entry(group.cell.dataset), entry(group.method), number(group, mean(group.values("mse")), 4),
                number(group, mean(group.values("log_likelihood"))), printed(error, 4), printed(density),
                entry(_verdict(group)), number(group, mean(group.values("process_noise")), 4),
                number(group, cost_._replace(error=None), 2), files(group),
            )
        )  # fmt: skip
    columns = (
        "observation noise", "method", "MSE", "log-density", "MSE printed", "log-density printed", "verdict",
        "Q learned", "ms a sample" if online else "seconds a fit", "results by seed",
    )  # fmt: skip
    return Table(title, columns, tuple(rows))


def _brief(groups: Sequence[Group]) -> Table:
    """As the paper prints it: a row for every method, a column for every level of noise."""
    columns = list(dict.fromkeys((g.cell.setting, g.cell.dataset) for g in groups))
    found = {(g.method, g.cell.setting, g.cell.dataset): g for g in groups}
    rows: list[tuple[Entry, ...]] = []
    for method in dict.fromkeys(g.method for g in groups):
        own = [found.get((method, *column)) for column in columns]
        rows.append((entry(method), *(entry("") if g is None else number(g, mean(g.values("mse")), 4) for g in own)))
        if any(g is not None and _printed(g)[0] for g in own):
            told = [None if g is None else _printed(g)[0] for g in own]
            rows.append((entry(f"{method}, printed"), *(entry("" if e is None else text(e, 4)) for e in told)))
    names = tuple(f"{setting}, {level}" for setting, level in columns)
    title = "Kink: MSE of f, by process and observation noise"
    return Table(title, ("method", *names), tuple(rows), over_seeds(groups), True)


def _figure(setting: str, groups: list[Group]) -> tuple[Figure, ...]:
    levels = list(dict.fromkeys(g.cell.dataset for g in groups))
    found = {(g.method, g.cell.dataset): g for g in groups if g.results}
    places = [found.get((m, level)) for m in dict.fromkeys(g.method for g in groups) for level in levels]
    caption = (
        f"Kink, process noise {setting}: f (dashed) as learned from one recording (first seed), with its 90% band."
    )
    return panels(f"kink-{setting}", caption, places, len(levels), (3.3, 2.2), _draw)


def _draw(ax: Axes, group: Group) -> None:
    x, result = experiment.GRID, group.results[0]
    f, band = np.array(result["f"], float), BAND * np.array(result["f_sd"], float)
    ax.fill_between(x, f - band, f + band, color="C0", alpha=0.25, lw=0)
    ax.plot(x, f, color="C0", lw=1.5)
    ax.plot(x, kink_function(x), "k--", lw=0.9)
    ax.set(title=f"{group.method}, observation noise {group.cell.dataset}", ylim=(-4.5, 2.5))
