"""The paper's linear Gaussian car (Section VI.A) and the two tables of its supplement.

Position and velocity of a car, all four seen with noise, either directly (C = I) or through a random
matrix that is known. The Kalman filter knows the system; the others learn it from the observations.
OEnVI sees each sample once, in order. EnVI is fitted to the samples of the slot that it filters: the
first 120, or all 1000. C is given; the paper does not say whether R is, so both ways are shown.

The score is the supplement's: the root of the mean over time of the squared distance between the
filtered and the true state, all four numbers together.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from gpssm.datasets import car
from gpssm.datasets.car import INITIAL_STATE, OBS_NOISE, PROCESS_NOISE, TRANSITION, Car
from gpssm.filters import kalman
from gpssm.gp.kernels import RBF
from gpssm.methods.envi import EnVI
from gpssm.online.oenvi.method import OEnVI
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors.history import Progress

NDArray = np.ndarray
Emission = Literal["identity", "random"]
Watch = Callable[[Progress], None] | None

LENGTH, TRAINING, NUM_INDUCING = 1000, 120, 15
SLOTS = (*((first, first + 120) for first in range(0, 960, 120)), (900, 1000), (0, 1000))

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


@dataclass(frozen=True)
class Track:
    """Filtered states (T, 4) of one run, their standard deviations, and what they cost."""

    mean: NDArray
    std: NDArray
    seconds: float


@dataclass(frozen=True)
class Row:
    """One line of a table: a method over seeds, its RMSE in every slot."""

    emission: Emission
    method: str
    seeds: int
    rmse: dict[str, float]
    rmse_sd: dict[str, float]
    rmse_median: dict[str, float]
    """Some random C are nearly singular, and their few seeds decide every mean."""
    seconds: float

    def as_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return asdict(self)


def slot_names() -> list[str]:
    return [f"{first}-{last}" for first, last in SLOTS]


@double_precision
def _kalman(data: Car, seed: int, watch: Watch) -> tuple[NDArray, NDArray]:
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


def _envi(name: str, data: Car, seed: int, watch: Watch) -> tuple[NDArray, NDArray]:
    outputs = data.series.outputs
    method: EnVI = build(name, data.emission)
    parts = [
        method.fit(outputs[:length], seed=seed, progress=watch or False).filter(outputs[:length], seed=seed)
        for length in (TRAINING, LENGTH)
    ]
    mean, std = parts[1].mean.copy(), parts[1].std.copy()
    mean[:TRAINING], std[:TRAINING] = parts[0].mean, parts[0].std
    return mean, std


def _oenvi(name: str, data: Car, seed: int, watch: Watch) -> tuple[NDArray, NDArray]:
    stream = build(name, data.emission).start(seed=seed)
    estimates = [stream.learn_one(y) for y in data.series.outputs]
    return np.array([e.state_mean for e in estimates]), np.array([e.state_std for e in estimates])


def _baseline(data: Car, seed: int, watch: Watch) -> tuple[NDArray, NDArray]:
    """The observations themselves, as in the paper."""
    return data.series.outputs, np.full((len(data.series.outputs), 4), np.sqrt(OBS_NOISE))


METHODS: dict[str, Callable[[Car, int, Watch], tuple[NDArray, NDArray]]] = {
    "KF": _kalman,
    "EnVI": partial(_envi, "EnVI"),
    "EnVI, R known": partial(_envi, "EnVI, R known"),
    "OEnVI": partial(_oenvi, "OEnVI"),
    "OEnVI, R known": partial(_oenvi, "OEnVI, R known"),
    "baseline": _baseline,
}


def run(method: str, emission: Emission, seed: int, watch: Watch = None) -> tuple[Track, dict[str, float]]:
    """Simulate, filter and score, everything from one seed."""
    data = car(LENGTH, emission == "random", seed)
    started = time.perf_counter()
    mean, std = METHODS[method](data, seed, watch)
    track = Track(mean, std, time.perf_counter() - started)
    return track, score(mean, data)


def score(mean: NDArray, data: Car) -> dict[str, float]:
    """RMSE in every slot."""
    assert data.series.states is not None
    squared = np.sum((mean - data.series.states) ** 2, axis=1)
    return {
        name: float(np.sqrt(np.mean(squared[first:last])))
        for name, (first, last) in zip(slot_names(), SLOTS, strict=True)
    }


def summarise(method: str, emission: Emission, scores: list[dict[str, float]], seconds: list[float]) -> Row:
    """Mean and standard deviation over the seeds."""
    names = slot_names()
    table = np.array([[score[name] for name in names] for score in scores])
    spread = table.std(axis=0, ddof=1) if len(scores) > 1 else np.zeros(len(names))
    return Row(
        emission,
        method,
        len(scores),
        dict(zip(names, table.mean(axis=0).tolist(), strict=True)),
        dict(zip(names, spread.tolist(), strict=True)),
        dict(zip(names, np.median(table, axis=0).tolist(), strict=True)),
        float(np.mean(seconds)),
    )
