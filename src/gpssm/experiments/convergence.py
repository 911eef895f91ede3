"""The paper's convergence figure: error of the learned f against iterations and against seconds.

EnVI, vGPSSM and VCDT learn the kink function from the same recording (observation noise 0.008, both
readings of the process noise), all for the same number of steps and without stopping early. What
differs is what each has to learn besides the model: the number of variational parameters is counted
from the methods themselves.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any, cast, get_args

import jax
import numpy as np

from gpssm.datasets import kink, kink_function
from gpssm.errors import InvalidInput
from gpssm.experiments.base import Cell, Group, Task, by, choose, spell
from gpssm.experiments.drawing import Axes, panels
from gpssm.experiments.estimates import mean, means, spread
from gpssm.experiments.kink import GRID, LENGTH, PROCESS_NOISE, Setting, build
from gpssm.experiments.pages import Figure, Section, Table
from gpssm.experiments.tables import Column, entry, method_name, table, value
from gpssm.methods.base import StateSpaceMethod
from gpssm.numerics.parameters import parameters
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors.history import Progress
from gpssm.training.optimiser import Schedule

SEEDS = 3
LEFT_OUT = "convergence: 300 steps instead of 1000, only the reading sd, EnVI and VCDT"

METHODS = ("EnVI", "vGPSSM", "VCDT", "VCDT (amortised)")
OBS_NOISE, CHUNK, STEPS, FAST_STEPS = 0.008, 25, 1000, 300

# What makes up the generative model; everything else that is learned is variational.
_MODEL = ("transition.gp.kernel", "transition.mean", "transition.mixing", "process_noise", "obs_noise", "emission")


def cells(fast: bool) -> list[Cell]:
    """Both readings of the process noise; with --fast one of them, and fewer steps."""
    settings, methods = (["sd"], ["EnVI", "VCDT"]) if fast else (get_args(Setting), METHODS)
    return [Cell(m, f"{OBS_NOISE:g}", s, shortened=fast) for s, m in product(settings, methods)]


def select(
    setting: Annotated[str, "Process noise 0.05 as a 'variance' or as 'sd'; or 'all'."] = "sd",
    method: Annotated[str, f"{', '.join(METHODS)}, or all."] = "all",
    steps: Annotated[int, f"Iterations of every fit, {CHUNK} or more."] = STEPS,
) -> list[Cell]:
    """The cells that the options ask for."""
    if steps < CHUNK:
        raise InvalidInput(f"steps: expected {CHUNK} or more, got {steps}.")
    chosen = product(choose("setting", setting, get_args(Setting)), choose("method", method, METHODS))
    return [Cell(m, f"{OBS_NOISE:g}", s, varied=None if steps == STEPS else steps) for s, m in chosen]


def _steps(cell: Cell) -> int:
    return int(cell.varied or (FAST_STEPS if cell.shortened else STEPS))


def configuration(task: Task) -> str:
    """The settings of the method, as text."""
    return f"{spell(build(task.method, OBS_NOISE))}, {_steps(task.cell)} steps"


def cost(task: Task) -> float:
    """Seconds that a fit takes, roughly."""
    return 10.0 + 0.01 * _steps(task.cell)


def run(task: Task) -> dict[str, Any]:
    """Learn, looking at f after every chunk of steps; looking is not counted as learning."""
    max_steps, seed = _steps(task.cell), task.seed
    outputs = kink(LENGTH, PROCESS_NOISE[cast(Setting, task.setting)], OBS_NOISE, seed).outputs
    method: StateSpaceMethod = build(task.method, OBS_NOISE)
    schedule = Schedule(max_steps=max_steps, chunk=CHUNK, patience=max_steps)
    step, seconds, mse = list[int](), list[float](), list[float]()
    looking = 0.0

    def look(p: Progress) -> None:
        nonlocal looking
        began = time.perf_counter()
        assert p.snapshot is not None
        mean, _ = p.snapshot().transition(GRID[:, None])
        step.append(p.step)
        seconds.append(p.seconds - looking)
        mse.append(float(np.mean((mean[:, 0] - kink_function(GRID)) ** 2)))
        looking += time.perf_counter() - began

    # The first fit is there to compile.
    replace(method, schedule=schedule._replace(max_steps=CHUNK)).fit(outputs, seed=seed)
    replace(method, schedule=schedule).fit(outputs, seed=seed, restarts=1, progress=look)
    return {
        "method": task.method,
        "setting": task.setting,
        "seed": seed,
        "variational_parameters": variational_parameters(method, outputs),
        "seconds_per_iteration": seconds[-1] / step[-1],
        "step": step,
        "seconds": seconds,
        "mse": mse,
    }


@double_precision
def variational_parameters(method: StateSpaceMethod, outputs: np.ndarray) -> int:
    """How many numbers describe q: of u, of the states, and of the networks that tell them."""
    ys, cs = [outputs], [np.zeros((len(outputs), 0))]
    learner, _ = method.learner(method.problem(ys, cs), jax.random.key(0))
    return sum(np.size(p.value) for p in parameters(learner) if not p.name.removeprefix("model.").startswith(_MODEL))


def row(group: Group) -> dict[str, Any]:
    """Size, cost, and the error reached, over seeds."""
    return (
        {"method": group.method, "setting": group.cell.setting, "seeds": len(group.results)}
        | {"variational_parameters": group.results[0]["variational_parameters"]}
        | means(group, "seconds_per_iteration")
        | {"mse": mean(group.values("mse", -1)).value, "mse_sd": spread(group.values("mse", -1))}
    )


def section(groups: Sequence[Group]) -> Section:
    """A table, and the error against iterations and against seconds."""
    steps = "" if not groups else f"{_steps(groups[0].cell)} steps each, none stopped early. "
    return Section(
        "Convergence",
        (
            f"Kink, observation noise {OBS_NOISE:g}. {steps}Variational parameters are counted from the "
            "methods themselves; seconds are without compilation. The paper shows curves, and prints no number.",
        ),
        (_table(groups),),
        _figure(groups),
    )


def _table(groups: Sequence[Group]) -> Table:
    columns: dict[str, Column] = {
        "process noise": lambda group: entry(group.cell.setting),
        "method": method_name,
        "variational parameters": value("variational_parameters", digits=0),
        "ms an iteration": value("seconds_per_iteration", digits=1, scale=1e3),
        "MSE at the end": value("mse", -1, digits=4, error=True),
    }
    return table("Convergence on kink", groups, columns)


def _figure(groups: Sequence[Group]) -> tuple[Figure, ...]:
    by_setting = ([group for group in own if group.results] for own in by(groups, "setting").values())
    shown = [(own, against) if own else None for own in by_setting for against in ("step", "seconds")]
    caption = "MSE of f against iterations (left) and seconds (right): median over seeds, and the range between them."
    return panels("convergence", caption, shown, 2, (5.5, 3.2), _draw)


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
