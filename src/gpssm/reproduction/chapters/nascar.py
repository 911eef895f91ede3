"""The NASCAR track: learned in one pass, then driven on without looking."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from gpssm.datasets import nascar
from gpssm.experiments import nascar as experiment
from gpssm.methods import registry
from gpssm.reproduction.drawing import panels
from gpssm.reproduction.numbers import Estimate, files, median, number, over_seeds, verdict
from gpssm.reproduction.pages import Figure, Section, Table, entry
from gpssm.reproduction.plan import Cell, Group, Task
from gpssm.reproduction.settings import spell

SEEDS = 20
LEFT_OUT = "nascar: all methods but OEnVI and RGPSSM"

_FAST_METHODS = ("OEnVI", "RGPSSM")
_STEPS, _PATHS, _GRID = 100, 25, (22, 14)
"""Of the figure: steps and paths of the forecast, arrows of the flow along either axis."""


def cells(fast: bool) -> list[Cell]:
    return [Cell(m, "track", "") for m in (_FAST_METHODS if fast else experiment.METHODS)]


def configuration(task: Task) -> str:
    return spell(
        registry.build_online(
            task.method, state_dim=2, num_inducing=experiment.NUM_INDUCING, emission=nascar(1, task.seed).emission
        )
    )


def cost(task: Task) -> float:
    return 20.0


def run(task: Task) -> dict[str, Any]:
    found, score = experiment.run(task.method, task.seed)
    states = found.data.series.states
    assert states is not None
    low, high = states[: experiment.LENGTH].min(axis=0), states[: experiment.LENGTH].max(axis=0)
    margin = 0.1 * (high - low)
    axes = (np.linspace(a, b, n) for a, b, n in zip(low - margin, high + margin, _GRID, strict=True))
    at = np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)
    ahead = found.forecast.states[:, :_STEPS]
    figure = {
        "track": states[: experiment.LENGTH],
        "filtered": found.filtered,
        "at": at,
        "flow": found.stream.transition(at)[0] - at,
        "to_come": states[experiment.LENGTH :][:_STEPS],
        "median": np.median(ahead, axis=0),
        "paths": ahead[:_PATHS],
    }
    return asdict(score) | {"figure": {name: np.round(values, 3).tolist() for name, values in figure.items()}}


def section(groups: Sequence[Group]) -> Section:
    return Section(
        "NASCAR: one pass, then a forecast",
        (
            f"{experiment.LENGTH} samples, each seen once; then the median of sampled paths beside the true track. "
            "Medians over seeds, with their standard errors. Over 500 steps the result is mostly luck, so the oracle "
            "stands beside it: the true dynamics from the true state. What the paper prints is for 500 steps of one "
            "recording, OEnVI's after 25 passes over it.",
        ),
        (_table(groups),),
        _figure(groups),
    )


def _at(groups: Group, name: str, horizon: int) -> list[float]:
    return [float("nan") if r[name][str(horizon)] is None else r[name][str(horizon)] for r in groups.results]


def _table(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        forecast = [median(_at(group, "forecast_rmse", h)) for h in experiment.HORIZONS]
        told = experiment.PAPER.get(group.method)
        rows.append(
            (
                entry(group.method), *(number(group, e, 2) for e in forecast),
                entry("" if told is None else f"{told:.2f}"),
                entry(verdict(forecast[-1], None if told is None else Estimate(told))),
                number(group, median(group.values("filter_rmse"))._replace(error=None)),
                number(group, median(group.values("coverage90"))._replace(error=None), 2),
                number(group, median(group.values("milliseconds"))._replace(error=None), 2), files(group),
            )
        )  # fmt: skip
    best = max(groups, key=lambda group: len(group.results))
    oracle = (number(best, median(_at(best, "oracle_rmse", h)), 2) for h in experiment.HORIZONS)
    rows.append((entry("oracle"), *oracle, *[entry("")] * 6))
    squares = number(best, median(best.values("least_squares_rmse"))._replace(error=None))
    rows.append((entry("least squares of each sample"), *[entry("")] * 5, squares, *[entry("")] * 3))
    columns = (
        "method", *(f"RMSE, {h} steps" for h in experiment.HORIZONS), "printed, 500 steps", "verdict", "filter RMSE",
        "in 90% band", "ms a sample", "results by seed",
    )  # fmt: skip
    return Table("NASCAR", columns, tuple(rows), over_seeds(groups), True)


def _figure(groups: Sequence[Group]) -> tuple[Figure, ...]:
    shown = [(group, ahead) for group in groups if group.results for ahead in (False, True)]
    caption = (
        "NASCAR, first seed. Left: the true track (black), as filtered, and the learned flow. Right: the next "
        f"{_STEPS} steps (black), sampled paths and their median."
    )
    return panels("nascar", caption, shown, 2, (5.5, 3.2), _draw)


def _draw(ax: Axes, item: tuple[Group, bool]) -> None:
    group, ahead = item
    figure = {name: np.array(values, float) for name, values in group.results[0]["figure"].items()}
    at = figure["at"]
    if ahead:
        for path in figure["paths"]:
            ax.plot(*path.T, color="C0", alpha=0.2, lw=0.7)
        ax.plot(*figure["median"].T, color="C0", lw=1.6)
        ax.plot(*figure["to_come"].T, color="k", lw=1.1)
    else:
        ax.plot(*figure["track"].T, color="k", lw=0.6)
        ax.plot(*figure["filtered"].T, color="C0", lw=0.6)
        ax.quiver(*at.T, *figure["flow"].T, color="C2", alpha=0.6, width=0.002)
    ax.set(xlim=(at[:, 0].min(), at[:, 0].max()), ylim=(at[:, 1].min(), at[:, 1].max()))
    ax.set(title=f"{group.method}: {f'the next {_STEPS} steps' if ahead else 'the track'}")
