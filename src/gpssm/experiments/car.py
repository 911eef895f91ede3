"""The paper's linear Gaussian car (Section VI.A): the two tables of its supplement and the figure of state inference.

Position and velocity of a car, all four seen with noise, either directly (C = I) or through a random
matrix that is known. The Kalman filter knows the system; the others learn it from the observations.
OEnVI sees each sample once, in order. EnVI is fitted to the samples of the slot that it filters: the
first 120, or all 1000. C is given; the paper does not say whether R is, so both ways are shown.

The score is the supplement's: the root of the mean over time of the squared distance between the
filtered and the true state, all four numbers together.
"""

import time
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, Literal, cast, get_args

import jax.numpy as jnp
import numpy as np

from gpssm.datasets import car
from gpssm.datasets.car import INITIAL_STATE, OBS_NOISE, PROCESS_NOISE, TRANSITION, Car
from gpssm.experiments.base import Cell, Group, Task, by, choose, spell
from gpssm.experiments.drawing import BAND, Axes, band, panels
from gpssm.experiments.estimates import Estimate, mean, means, median, spread, verdict
from gpssm.experiments.pages import Entry, Figure, Section, Table
from gpssm.experiments.tables import Column, entry, line, method_name, over_seeds, table, value
from gpssm.filters import kalman
from gpssm.gp.kernels import RBF
from gpssm.methods.envi import EnVI
from gpssm.online.oenvi.method import OEnVI
from gpssm.plumbing.precision import double_precision

NDArray = np.ndarray
Emission = Literal["identity", "random"]

SEEDS = 10
LEFT_OUT = "car: the methods with R known"

LENGTH, TRAINING, NUM_INDUCING = 1000, 120, 15
SLOTS = (*((first, first + 120) for first in range(0, 960, 120)), (900, 1000), (0, 1000))
NAMES = tuple(f"{first}-{last}" for first, last in SLOTS)
METHODS = ("KF", "EnVI", "EnVI, R known", "OEnVI", "OEnVI, R known", "baseline")

_SHOWN = 360  # samples in the figure
_COST = {"EnVI": 60.0, "EnVI, R known": 60.0, "KF": 3.0, "baseline": 1.0}

# emission -> method -> RMSE in each of the slots; None where the paper has no number
PAPER: dict[Emission, dict[str, tuple[float | None, ...]]] = {
    "identity": {
        "KF": (0.5252, 0.5149, 0.5228, 0.5658, 0.5246, 0.4907, 0.4983, 0.5202, 0.4846, 0.5199),
        "EnVI": (0.6841, *(None,) * 8, 0.7182),
        "OEnVI": (0.7784, 0.7130, 0.6512, 0.6487, 0.6786, 0.6515, 0.5958, 0.6713, 0.6418, 0.6739),
        "baseline": (0.9872, 0.9811, 0.9510, 1.0077, 1.0215, 0.9967, 1.0077, 1.0314, 1.0222, 0.9974),
    },
    "random": {
        "KF": (0.7799, 1.0302, 1.1086, 1.3682, 1.4355, 1.1277, 0.7517, 1.1239, 1.0911, 1.1062),
        "EnVI": (1.8413, *(None,) * 8, 2.3356),
        "OEnVI": (1.4508, 1.5902, 1.3763, 3.0673, 1.2875, 2.1743, 1.2470, 3.6032, 2.8966, 2.1546),
        "baseline": (24.10, 100.49, 211.82, 272.88, 303.85, 422.38, 547.60, 741.17, 847.08, 428.24),
    },
}


def cells(fast: bool) -> list[Cell]:
    """Both emissions with every method; with --fast none that knows R."""
    methods = [m for m in METHODS if not (fast and m.endswith("R known"))]
    return [Cell(m, "car", e) for e, m in product(get_args(Emission), methods)]


def select(
    emission: Annotated[str, "C: 'identity', 'random' or 'all'."] = "all",
    method: Annotated[str, "KF, EnVI, OEnVI (either also as 'EnVI, R known'), baseline, or all."] = "all",
) -> list[Cell]:
    """The cells that the options ask for."""
    emissions = choose("emission", emission, get_args(Emission))
    return [Cell(m, "car", e) for e, m in product(emissions, choose("method", method, METHODS))]


def configuration(task: Task) -> str:
    """The settings of the method, as text."""
    return spell(build(task.method, _simulate(task).emission))


def cost(task: Task) -> float:
    """Seconds that a fit takes, roughly."""
    return _COST.get(task.method, 15.0)


def _simulate(task: Task) -> Car:
    return car(LENGTH, task.setting == "random", task.seed)


@double_precision
def _kalman(data: Car) -> tuple[NDArray, NDArray]:
    """The exact filter of the true system."""
    system = kalman.System(
        jnp.asarray(TRANSITION),
        jnp.asarray(PROCESS_NOISE),
        jnp.asarray(data.emission),
        jnp.zeros(4),
        OBS_NOISE * jnp.eye(4),
    )
    start = kalman.Gaussian(jnp.asarray(INITIAL_STATE), 1e-9 * jnp.eye(4))
    filtered = kalman.filter(system, start, jnp.asarray(data.series.outputs)).filtered
    return np.asarray(filtered.mean), np.sqrt(np.diagonal(filtered.cov, axis1=1, axis2=2))


def build(method: str, emission: NDArray) -> Any:
    """The method as it is compared; None where nothing is learned."""
    kind, _, known = method.partition(", ")
    obs_noise = OBS_NOISE if known else None
    if kind == "OEnVI":
        return OEnVI(4, NUM_INDUCING, emission=emission, obs_noise=obs_noise)
    if kind == "EnVI":
        # Gradients through 120 steps of a linear system are tame, and no window starts from a guess. A hundred
        # samples in four dimensions cannot place inducing inputs or tell length scales: learned, they make the
        # variance of f between inducing inputs follow the noise of single samples.
        return EnVI(
            4, NUM_INDUCING, kernel=RBF(4.0, 0.01), emission=emission, update="sqrt", window=TRAINING,
            obs_noise=obs_noise,
            fixed=("inducing_inputs", "lengthscale", *(("obs_noise",) if known else ())),
        )  # fmt: skip
    return None


def infer(method: str, data: Car, seed: int) -> tuple[NDArray, NDArray]:
    """Filtered states (T, 4) and their standard deviations."""
    outputs = data.series.outputs
    if method == "KF":
        return _kalman(data)
    if method == "baseline":  # the observations themselves, as in the paper
        return outputs, np.full_like(outputs, np.sqrt(OBS_NOISE))
    chosen = build(method, data.emission)
    if isinstance(chosen, OEnVI):
        estimates = chosen.start(seed=seed).learn_many(outputs)
        return estimates.state_mean, estimates.state_std
    first, whole = (
        chosen.fit(outputs[:length], seed=seed).filter(outputs[:length], seed=seed) for length in (TRAINING, LENGTH)
    )
    mean, std = whole.mean.copy(), whole.std.copy()
    mean[:TRAINING], std[:TRAINING] = first.mean, first.std
    return mean, std


def run(task: Task) -> dict[str, Any]:
    """Simulate, filter and score, everything from one seed."""
    data = _simulate(task)
    started = time.perf_counter()
    mean, std = infer(task.method, data, task.seed)
    seconds = time.perf_counter() - started
    assert data.series.states is not None
    shown = {"mean": mean, "std": std, "truth": data.series.states, "observed": data.series.outputs}
    # Position and velocity along the first axis.
    figure = {name: np.round(values[:_SHOWN, [0, 2]].T, 4).tolist() for name, values in shown.items()}
    return {"rmse": score(mean, data), "seconds": seconds, "figure": figure}


def score(mean: NDArray, data: Car) -> dict[str, float]:
    """RMSE in every slot."""
    assert data.series.states is not None
    squared = np.sum((mean - data.series.states) ** 2, axis=1)
    return {
        name: float(np.sqrt(np.mean(squared[first:last]))) for name, (first, last) in zip(NAMES, SLOTS, strict=True)
    }


def row(group: Group) -> dict[str, Any]:
    """A method over its seeds. Some random C are nearly singular, and their few seeds decide every mean."""
    slots = {name: group.values("rmse", name) for name in NAMES}
    return {
        "emission": group.cell.setting,
        "method": group.method,
        "seeds": len(group.results),
        "rmse": {name: mean(values).value for name, values in slots.items()},
        "rmse_sd": {name: spread(values) for name, values in slots.items()},
        "rmse_median": {name: median(values).value for name, values in slots.items()},
        **means(group, "seconds"),
    }


def section(groups: Sequence[Group]) -> Section:
    """A table and a figure for every emission."""
    by_emission = by(groups, "setting")
    return Section(
        "Supplement: inference of a car's state",
        (
            "Position and velocity of a car, seen with noise through C, which is known: the identity (first table) or "
            "a random matrix (second). The Kalman filter (KF) knows the system, the others learn it. Numbers are RMSE "
            "of the filtered state in slots of samples: means over seeds for the identity, medians for random "
            "matrices, of which some are nearly singular; the paper has one matrix. The verdict is on all samples.",
        ),
        tuple(_table(emission, own) for emission, own in by_emission.items()),
        tuple(figure for emission, own in by_emission.items() for figure in _figure(emission, own)),
    )


def _table(emission: str, groups: list[Group]) -> Table:
    middle = mean if emission == "identity" else median
    quoted = PAPER[cast(Emission, emission)]

    def compared(group: Group) -> Entry:
        whole = quoted.get(group.method, (None,))[-1]
        return entry(verdict(middle(group.values("rmse", NAMES[-1])), None if whole is None else Estimate(whole)))

    columns: dict[str, Column] = {"method": method_name}
    columns |= {name: value("rmse", name, middle=middle) for name in NAMES}
    columns |= {"verdict": compared, "seconds, all": value("seconds", digits=1)}
    shown = table(f"Car, C {emission}: RMSE of the filtered state", groups, columns, over_seeds(groups), brief=True)
    lines = []
    for group, row in zip(groups, shown.rows, strict=True):
        lines.append(row)
        if group.method in quoted:
            numbers = ("" if each is None else f"{each:.3f}" for each in quoted[group.method])
            lines.append(line(f"{group.method}, printed", *numbers, "", "", ""))
    return shown._replace(rows=tuple(lines))


def _figure(emission: str, groups: list[Group]) -> tuple[Figure, ...]:
    shown = [(group, state) for group in groups if group.results and group.method != "baseline" for state in (0, 1)]
    caption = f"Car, C {emission}, first seed: true (black) and filtered state with its 90% band" + (
        "; dots are observations." if emission == "identity" else "."
    )
    return panels(f"car-{emission}", caption, shown, 2, (5.5, 1.8), _draw)


def _draw(ax: Axes, item: tuple[Group, int]) -> None:
    group, state = item
    figure = {name: np.array(values[state], float) for name, values in group.results[0]["figure"].items()}
    if group.cell.setting == "identity":
        ax.plot(np.arange(len(figure["mean"])), figure["observed"], ".", ms=1.5, color="0.6")
    around = BAND * figure["std"]
    band(ax, figure["mean"] - around, figure["mean"] + around, figure["mean"], figure["truth"], width=1.1)
    ax.set(title=f"{group.method}: {('position', 'velocity')[state]}")
