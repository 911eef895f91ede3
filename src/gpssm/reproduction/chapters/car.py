"""The two tables of the supplement and the figure of state inference: filtering a car whose dynamics are learned."""

from collections.abc import Sequence
from typing import Any, cast, get_args

import numpy as np
from matplotlib.axes import Axes

from gpssm.datasets import car
from gpssm.experiments import car as experiment
from gpssm.reproduction.drawing import BAND, panels
from gpssm.reproduction.numbers import Estimate, files, mean, median, number, over_seeds, verdict
from gpssm.reproduction.pages import Figure, Section, Table, entry
from gpssm.reproduction.plan import Cell, Group, Task
from gpssm.reproduction.settings import spell

SEEDS = 10
LEFT_OUT = "car: the methods with R known"

_SHOWN = 360
"""Samples in the figure."""
_WHOLE = experiment.slot_names()[-1]
_COST = {"EnVI": 60.0, "EnVI, R known": 60.0, "KF": 3.0, "baseline": 1.0}


def cells(fast: bool) -> list[Cell]:
    methods = [m for m in experiment.METHODS if not (fast and m.endswith("R known"))]
    return [Cell(m, "car", e) for e in get_args(experiment.Emission) for m in methods]


def configuration(task: Task) -> str:
    data = car(experiment.LENGTH, task.setting == "random", task.seed)
    return spell(experiment.build(task.method, data.emission))


def cost(task: Task) -> float:
    return _COST.get(task.method, 15.0)


def run(task: Task) -> dict[str, Any]:
    emission = cast(experiment.Emission, task.setting)
    track, score = experiment.run(task.method, emission, task.seed)
    series = car(experiment.LENGTH, emission == "random", task.seed).series
    assert series.states is not None
    shown = {"mean": track.mean, "std": track.std, "truth": series.states, "observed": series.outputs}
    # Position and velocity along the first axis.
    figure = {name: np.round(values[:_SHOWN, [0, 2]].T, 4).tolist() for name, values in shown.items()}
    return {"rmse": score, "seconds": track.seconds, "figure": figure}


def section(groups: Sequence[Group]) -> Section:
    emissions = list(dict.fromkeys(group.cell.setting for group in groups))
    by_emission = [[g for g in groups if g.cell.setting == e] for e in emissions]
    return Section(
        "Supplement: inference of a car's state",
        (
            "Position and velocity of a car, seen with noise through C, which is known: the identity (first table) or "
            "a random matrix (second). The Kalman filter (KF) knows the system, the others learn it. Numbers are RMSE "
            "of the filtered state in slots of samples: means over seeds for the identity, medians for random "
            "matrices, of which some are nearly singular; the paper has one matrix. The verdict is on all samples.",
        ),
        tuple(_table(e, own) for e, own in zip(emissions, by_emission, strict=True)),
        tuple(f for e, own in zip(emissions, by_emission, strict=True) for f in _figure(e, own)),
    )


def _table(emission: str, groups: list[Group]) -> Table:
    middle = mean if emission == "identity" else median
    names = experiment.slot_names()
    rows = []
    for group in groups:
        found = {name: middle([result["rmse"][name] for result in group.results]) for name in names}
        told = experiment.PAPER[cast(experiment.Emission, emission)].get(group.method)
        whole = None if told is None or told[-1] is None else Estimate(told[-1])
        rows.append(
            (
                entry(group.method), *(number(group, found[name]._replace(error=None)) for name in names),
                entry(verdict(found[_WHOLE], whole)),
                number(group, mean(group.values("seconds"))._replace(error=None), 1), files(group),
            )
        )  # fmt: skip
        if told is not None:
            cells_ = (entry("" if value is None else f"{value:.3f}") for value in told)
            rows.append((entry(f"{group.method}, printed"), *cells_, entry(""), entry(""), entry("")))
    columns = ("method", *names, "verdict", "seconds, all", "results by seed")
    return Table(f"Car, C {emission}: RMSE of the filtered state", columns, tuple(rows), over_seeds(groups), True)


def _figure(emission: str, groups: list[Group]) -> tuple[Figure, ...]:
    shown = [(group, state) for group in groups if group.results and group.method != "baseline" for state in (0, 1)]
    caption = f"Car, C {emission}, first seed: true (black) and filtered state with its 90% band" + (
        "; dots are observations." if emission == "identity" else "."
    )
    return panels(f"car-{emission}", caption, shown, 2, (5.5, 1.8), _draw)


def _draw(ax: Axes, item: tuple[Group, int]) -> None:
    group, state = item
    figure = {name: np.array(values[state], float) for name, values in group.results[0]["figure"].items()}
    time, band = np.arange(len(figure["mean"])), BAND * figure["std"]
    if group.cell.setting == "identity":
        ax.plot(time, figure["observed"], ".", ms=1.5, color="0.6")
    ax.fill_between(time, figure["mean"] - band, figure["mean"] + band, color="C0", alpha=0.25, lw=0)
    ax.plot(time, figure["mean"], color="C0", lw=1.1)
    ax.plot(time, figure["truth"], color="k", lw=0.7)
    ax.set(title=f"{group.method}: {('position', 'velocity')[state]}")
