"""The convergence figure: error of the learned f against iterations and against seconds."""

from collections.abc import Sequence
from typing import Any, cast, get_args

import numpy as np
from matplotlib.axes import Axes

from gpssm.experiments import convergence as experiment
from gpssm.experiments import kink
from gpssm.reproduction.drawing import panels
from gpssm.reproduction.numbers import files, mean, number
from gpssm.reproduction.pages import Figure, Section, Table, entry
from gpssm.reproduction.plan import Cell, Group, Task
from gpssm.reproduction.settings import spell

SEEDS = 3
LEFT_OUT = "convergence: 300 steps instead of 1000, only the reading sd, EnVI and VCDT"

STEPS, FAST_STEPS = 1000, 300
_FAST_METHODS = ("EnVI", "VCDT")


def cells(fast: bool) -> list[Cell]:
    methods = _FAST_METHODS if fast else experiment.METHODS
    settings = ("sd",) if fast else get_args(kink.Setting)
    return [Cell(m, f"{experiment.OBS_NOISE:g}", s, shortened=fast) for s in settings for m in methods]


def _steps(shortened: bool) -> int:
    return FAST_STEPS if shortened else STEPS


def configuration(task: Task) -> str:
    return f"{spell(kink.build(task.method, experiment.OBS_NOISE))}, {_steps(task.shortened)} steps"


def cost(task: Task) -> float:
    return 10.0 + 0.01 * _steps(task.shortened)


def run(task: Task) -> dict[str, Any]:
    setting = cast(kink.Setting, task.setting)
    return experiment.fit(task.method, setting, task.seed, _steps(task.shortened)).as_dict()


def section(groups: Sequence[Group]) -> Section:
    steps = "" if not groups else f"{_steps(groups[0].cell.shortened)} steps each, none stopped early. "
    return Section(
        "Convergence",
        (
            f"Kink, observation noise {experiment.OBS_NOISE:g}. {steps}Variational parameters are counted from the "
            "methods themselves; seconds are without compilation. The paper shows curves, and prints no number.",
        ),
        (_table(groups),),
        _figure(groups),
    )


def _table(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        milliseconds = mean([1e3 * s for s in group.values("seconds_per_iteration")])
        rows.append(
            (
                entry(group.cell.setting), entry(group.method),
                number(group, mean(group.values("variational_parameters"))._replace(error=None), 0),
                number(group, milliseconds._replace(error=None), 1),
                number(group, mean([result["mse"][-1] for result in group.results]), 4), files(group),
            )
        )  # fmt: skip
    columns = (
        "process noise", "method", "variational parameters", "ms an iteration", "MSE at the end", "results by seed",
    )  # fmt: skip
    return Table("Convergence on kink", columns, tuple(rows))


def _figure(groups: Sequence[Group]) -> tuple[Figure, ...]:
    settings = dict.fromkeys(group.cell.setting for group in groups)
    shown = [
        ([g for g in groups if g.cell.setting == s and g.results], against)
        for s in settings
        for against in ("step", "seconds")
    ]
    caption = "MSE of f against iterations (left) and seconds (right): median over seeds, and the range between them."
    return panels("convergence", caption, [item if item[0] else None for item in shown], 2, (5.5, 3.2), _draw)


def _draw(ax: Axes, item: tuple[list[Group], str]) -> None:
    groups, against = item
    for place, group in enumerate(groups):
        errors = np.array([result["mse"] for result in group.results], float)
        x = np.mean([result[against] for result in group.results], axis=0)
        ax.fill_between(x, errors.min(axis=0), errors.max(axis=0), color=f"C{place}", alpha=0.2, lw=0)
        ax.plot(x, np.median(errors, axis=0), color=f"C{place}", label=group.method)
    ax.set(yscale="log", xlabel="iteration" if against == "step" else "seconds", ylabel="MSE of f")
    ax.set_title(f"process noise {groups[0].cell.setting}")
    ax.legend(fontsize=7)
