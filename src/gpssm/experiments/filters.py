"""Filters side by side: error of the state, log-likelihood and time of the ensemble, particle and extended filter.

**Kink** (process noise `sd`, 600 samples that nothing was learned from), with the true f and with f learned by EnVI
from 600 others.

**Lorenz-96**, a twin experiment in 40 dimensions with the true model, no process noise and every cell seen with
unit noise at every step. The settings are those of Sakov and Oke (2008) and Bocquet (2011) as suggested by DAPPER
(`dapper/mods/Lorenz96/sakov2008.py`), whose errors stand beside ours. An error here is the mean over time of the root
mean square over cells, as there.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm import metrics
from gpssm.datasets import kink, lorenz96, lorenz96_function
from gpssm.datasets.lorenz96 import DIM, OBS_NOISE, STEP
from gpssm.experiments import kink as kink_experiment
from gpssm.experiments.base import Cell, Group, Task, choose, number_or_nan, spell
from gpssm.experiments.drawing import Axes, panels
from gpssm.experiments.estimates import mean, with_errors
from gpssm.experiments.kink import LENGTH, PROCESS_NOISE
from gpssm.experiments.pages import Figure, Section, Table
from gpssm.experiments.tables import line
from gpssm.filters import FILTERS, ensemble, extended, kalman, particle
from gpssm.filters.ensemble import FilterSettings
from gpssm.filters.particle import NUM_PARTICLES
from gpssm.filters.small_ensembles import gaspari_cohn, rotate
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState
from gpssm.models.noise import DiagonalNoise, Noise
from gpssm.models.scaling import Scaling
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import Posterior

SEEDS = 5
LEFT_OUT = "filters: the kink function but for observation noise 0.008"

SYSTEMS = ("kink", "lorenz96")
TRUE, LEARNED, LORENZ = "kink, true f", "kink, learned f", "Lorenz-96"

# name -> filter, and the update where it is an ensemble
KINK_FILTERS: dict[str, tuple[str, ensemble.Update | None]] = {
    "ensemble, perturbed": ("ensemble", "perturbed"),
    "ensemble, sqrt": ("ensemble", "sqrt"),
    "ensemble, mixture": ("ensemble", "mixture"),
    **{name: (name, None) for name in FILTERS if name != "ensemble"},
}
NUM_MEMBERS = 200
TEST_SEED = 1000  # of the recording that is filtered, plus that of the one learned from


class Twin(NamedTuple):
    """How an ensemble is run on Lorenz-96. Hashable: part of what a compiled loop is built for."""

    num_members: int
    options: ensemble.Options
    rotated: bool = False
    radius: float | None = None
    """Where the taper is exp(-1/2), as in DAPPER."""


TWINS = {
    "ensemble, sqrt, 24 members": Twin(24, ensemble.Options(update="sqrt", inflation=1.013), rotated=True),
    "ensemble, perturbed, 40 members": Twin(40, ensemble.Options(update="perturbed", inflation=1.06)),
    "ensemble, sqrt, 7 localised members": Twin(
        7, ensemble.Options(update="sqrt", inflation=1.04), rotated=True, radius=4.0
    ),
}
# The covariance of the extended filter grows tenfold in a unit of time.
EXTENDED_INFLATION = 10.0 ** (STEP / 2)
PUBLISHED = dict(zip(TWINS, (0.18, 0.22, 0.22), strict=True)) | {"extended": 0.24}
TWIN_LENGTH, BURN_IN = 5000, 400
# Truth and ensemble begin close together: this is a test of following, not of finding.
START_VARIANCE = 1e-3
# Gaspari and Cohn's function of distance / (1.82 radius) is exp(-1/2) at the radius.
_WIDTH = np.sqrt(10 / 3)


def cells(fast: bool) -> list[Cell]:
    """The kink function at every level of observation noise, and Lorenz-96; every filter is part of each."""
    levels = kink_experiment.OBS_NOISE[: 1 if fast else None]
    return [*(Cell("kink", f"{level:g}", "") for level in levels), Cell("lorenz96", f"{OBS_NOISE:g}", "")]


def select(system: Annotated[str, f"{', '.join(SYSTEMS)}, or all."] = "all") -> list[Cell]:
    """The cells that the options ask for."""
    systems = choose("system", system, SYSTEMS)
    return [cell for cell in cells(fast=False) if cell.method in systems]


def configuration(task: Task) -> str:
    """What f is learned with, and how many members or particles there are."""
    if task.method == "kink":
        method = kink_experiment.build("EnVI", float(task.dataset))
        return f"{spell(method)}, {NUM_MEMBERS} members, {NUM_PARTICLES} particles"
    return f"{TWINS!r}, {NUM_PARTICLES} particles, {TWIN_LENGTH} samples"


def cost(task: Task) -> float:
    """Seconds that a fit takes, roughly."""
    return 30.0


def run(task: Task) -> dict[str, Any]:
    """Every filter on one recording."""
    found = kink_runs(float(task.dataset), task.seed) if task.method == "kink" else lorenz96_runs(task.seed)
    return {"runs": found}


def score(system: str, obs_noise: float, name: str, seed: int, *numbers: float) -> dict[str, Any]:
    """What is kept of the filter `name` on one recording.

    The `numbers` are the `rmse` of the state, the `log_likelihood` per sample, and the CPU `seconds` for 1000 samples,
    compilation not counted.
    """
    keys = ("system", "obs_noise", "filter", "seed", "rmse", "log_likelihood", "seconds")
    return dict(zip(keys, (system, obs_noise, name, seed, *numbers), strict=True))


class KnownTransition(eqx.Module):
    """The true f in the place of a learned one: no GP, nothing uncertain but the process noise."""

    function: Callable[[Array], Array] = eqx.field(static=True)
    state_dim: int = eqx.field(static=True)
    num_inducing = 0

    def __call__(self, x: Float[Array, "n dx"]) -> tuple[Float[Array, "n dx"], Noise]:
        mean = self.function(x)
        return mean, DiagonalNoise(jnp.zeros_like(mean))

    def marginal(self) -> "KnownTransition":
        """Itself: there is no u to integrate out."""
        return self


def true_kink(x: Array) -> Array:
    """`datasets.kink_function` of a JAX array."""
    return 0.8 + (x + 0.2) * (1.0 - 5.0 * jax.nn.sigmoid(2.0 * x))


def true_model(obs_noise: float) -> Posterior:
    """The system that `datasets.kink` simulates, as if it had been fitted."""
    zero, one = np.zeros(1), np.ones(1)
    eye = np.eye(1)
    model = GPSSM(
        KnownTransition(true_kink, 1),
        DiagonalNoise(PROCESS_NOISE["sd"] * one),
        LinearEmission(eye, zero),
        DiagonalNoise(obs_noise * one),
        InitialState(zero[None], eye[None], zero, eye),
    )
    settings = FilterSettings(NUM_MEMBERS, ensemble.Options())
    scaling = Scaling(zero, one, zero, one, np.zeros(0), np.ones(0))
    return Posterior(model, scaling, settings, (), History(), "known", np.zeros((NUM_MEMBERS, 1)))


def kink_runs(obs_noise: float, seed: int) -> list[dict[str, Any]]:
    """Every filter with the true and with the learned f on the same recording."""
    process_noise = PROCESS_NOISE["sd"]
    method = kink_experiment.build("EnVI", obs_noise)
    learned: Posterior = method.fit(kink(LENGTH, process_noise, obs_noise, seed).outputs, seed=seed)
    test = kink(LENGTH, process_noise, obs_noise, TEST_SEED + seed)
    runs = []
    for system, model in ((TRUE, true_model(obs_noise)), (LEARNED, learned)):
        for name, (kind, update) in KINK_FILTERS.items():
            if update is not None:
                model = replace(model, settings=FilterSettings(NUM_MEMBERS, ensemble.Options(update=update)))
            states, seconds = timed(partial(model.filter, test.outputs, filter=kind, seed=seed))
            numbers = metrics.rmse(states.mean, test.states), states.log_likelihood / LENGTH, 1e3 * seconds / LENGTH
            runs.append(score(system, obs_noise, name, seed, *numbers))
    return runs


@double_precision
def lorenz96_runs(seed: int, length: int = TWIN_LENGTH) -> list[dict[str, Any]]:
    """The twin experiment for every filter; `length` samples count, after a burn-in."""
    data = lorenz96(1 + BURN_IN + length, seed)
    assert data.states is not None
    start = data.states[0] + np.sqrt(START_VARIANCE) * np.random.default_rng(seed).normal(size=DIM)
    outputs, guess, key = jnp.asarray(data.outputs[1:]), jnp.asarray(start), jax.random.key(seed)
    filters: dict[str, Callable[[], tuple[Array, Array]]] = {
        name: partial(twin, outputs, guess, key, settings=settings) for name, settings in TWINS.items()
    }
    filters["extended"] = partial(twin_extended, outputs, guess)
    filters["particle"] = partial(twin_particle, outputs, guess, key)
    runs = []
    for name, filter_ in filters.items():
        (mean, scores), seconds = timed(filter_)
        errors = np.sqrt(np.mean((np.asarray(mean) - data.states[1:]) ** 2, axis=1))[BURN_IN:]
        density = float(np.mean(np.asarray(scores)[BURN_IN:]))
        runs.append(score(LORENZ, OBS_NOISE, name, seed, float(errors.mean()), density, 1e3 * seconds / len(outputs)))
    return runs


@partial(jax.jit, static_argnames="settings")
def twin(
    outputs: Float[Array, "t dx"], start: Float[Array, " dx"], key: Array, *, settings: Twin
) -> tuple[Float[Array, "t dx"], Float[Array, " t"]]:
    """Means after the update and scores of an ensemble filter on Lorenz-96."""
    n, options = settings.num_members, settings.options
    still = jnp.zeros((1, n, DIM))  # no process noise, hence no draws of it
    observing = _observing(settings.radius)

    def body(members: Array, now: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        y, key = now
        key_y, key_rotation = jax.random.split(key)
        perturbations = None if options.update == "sqrt" else jax.random.normal(key_y, (n, DIM))
        _, filtered = ensemble.assimilate(*_transition(members), y, still, perturbations, observing, options)
        members = filtered.members
        if settings.rotated:
            members = rotate(members, jax.random.normal(key_rotation, (n - 1, n - 1)))
        return members, (jnp.mean(members, axis=0), filtered.log_likelihood)

    key_start, key_steps = jax.random.split(key)
    first = start + jnp.sqrt(START_VARIANCE) * jax.random.normal(key_start, (n, DIM))
    _, found = jax.lax.scan(body, first, (outputs, jax.random.split(key_steps, outputs.shape[0])))
    return found


def _observing(radius: float | None = None) -> ensemble.Observing:
    emission = LinearEmission(np.eye(DIM), np.zeros(DIM))
    taper = None
    if radius is not None:
        index = np.arange(DIM)
        apart = np.abs(index[:, None] - index)
        on_the_ring = np.minimum(apart, DIM - apart).astype(float)
        taper = gaspari_cohn(jnp.asarray(on_the_ring), _WIDTH * radius)
    return ensemble.Observing(DiagonalNoise(jnp.zeros(DIM)), emission, DiagonalNoise(jnp.full(DIM, OBS_NOISE)), taper)


def _transition(x: Float[Array, "n dx"]) -> tuple[Float[Array, "n dx"], Noise]:
    return lorenz96_function(x), DiagonalNoise(jnp.zeros_like(x))


def _no_inputs(outputs: Array) -> Array:
    return jnp.zeros((outputs.shape[0], 0))


@jax.jit
def twin_extended(outputs: Array, start: Array) -> tuple[Array, Array]:
    """Means and scores of the extended Kalman filter on Lorenz-96."""
    first = kalman.Gaussian(start, START_VARIANCE * jnp.eye(DIM))
    trace = extended.run(_transition, _observing(), first, outputs, _no_inputs(outputs), inflation=EXTENDED_INFLATION)
    return trace.filtered.mean, trace.log_likelihood


@jax.jit
def twin_particle(outputs: Array, start: Array, key: Array) -> tuple[Array, Array]:
    """Means and scores of the bootstrap particle filter on Lorenz-96, which it is no match for."""
    key_start, key_run = jax.random.split(key)
    first = start + jnp.sqrt(START_VARIANCE) * jax.random.normal(key_start, (NUM_PARTICLES, DIM))
    trace = particle.run(_transition, _observing(), first, outputs, _no_inputs(outputs), key_run)
    return trace.mean, trace.log_likelihood


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the CPU time of getting it, the second time: the first is there to compile."""
    jax.block_until_ready(call())
    began = time.process_time()
    result = jax.block_until_ready(call())
    return result, time.process_time() - began


def rows(groups: Sequence[Group]) -> dict[str, Any]:
    """One for every filter on a system: means and standard errors over seeds, and what was published."""
    runs = [each for group in groups for result in group.results for each in result["runs"]]
    runs.sort(key=lambda each: (TRUE, LEARNED, LORENZ).index(each["system"]))
    by_filter: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for each in runs:
        by_filter.setdefault((each["system"], each["obs_noise"], each["filter"]), []).append(each)
    found = []
    for key, own in by_filter.items():
        numbers = {n: [number_or_nan(each[n]) for each in own] for n in ("rmse", "log_likelihood", "seconds")}
        row = dict(zip(("system", "obs_noise", "filter"), key, strict=True)) | {"seeds": len(own)}
        seconds = mean(numbers.pop("seconds")).value
        published = PUBLISHED.get(key[2]) if key[0] == LORENZ else None
        found.append(row | with_errors(**numbers) | {"seconds": seconds, "published_rmse": published})
    return {"rows": found}


def _table(groups: Sequence[Group]) -> Table:
    lines = tuple(
        line(
            row["system"],
            f"{row['obs_noise']:g}",
            row["filter"],
            f"{row['rmse']:.3f} ± {row['rmse_se']:.3f}",
            "" if row["published_rmse"] is None else f"{row['published_rmse']:.2f}",
            f"{row['log_likelihood']:.3f} ± {row['log_likelihood_se']:.3f}",
            f"{row['seconds']:.3f}",
        )
        for row in rows(groups)["rows"]
    )
    columns = ("system", "obs noise", "filter", "RMSE", "published", "log-likelihood / sample", "CPU s / 1000")
    title = f"Filters, mean ± standard error over {max(len(group.results) for group in groups)} seed(s)"
    return Table(title, columns, lines)


def section(groups: Sequence[Group]) -> Section:
    """The table, and error against time."""
    about = (
        "Error of the filtered state, log-likelihood and CPU time of every filter with the true f, and with f learned "
        "from another recording; Lorenz-96 with the true model only, beside the errors that DAPPER tells.",
    )
    return Section("Filters side by side", about, (_table(groups),), _figure(groups))


def _figure(groups: Sequence[Group]) -> tuple[Figure, ...]:
    found = rows(groups)["rows"]
    systems = dict.fromkeys((row["system"], row["obs_noise"]) for row in found)
    items = [[row for row in found if (row["system"], row["obs_noise"]) == system] for system in systems]
    caption = "RMSE of the state against CPU seconds; a bar where an error is published."
    return panels("filters", caption, items, min(3, max(len(items), 1)), (4.6, 3.4), _draw)


def _draw(ax: Axes, found: list[dict[str, Any]]) -> None:
    for row in found:
        ax.errorbar(row["seconds"], row["rmse"], row["rmse_se"], marker="o", ls="", label=row["filter"])
        if row["published_rmse"] is not None:
            ax.plot(row["seconds"], row["published_rmse"], "k_", ms=12)
    ax.set(xscale="log", title=f"{found[0]['system']}, obs noise {found[0]['obs_noise']:g}")
    ax.set(xlabel="CPU seconds for 1000 samples", ylabel="RMSE of the state")
    if found[0]["system"] == LORENZ:  # what works and what fails in one picture
        ticks = [0.2, 0.5, 1, 2, 5]
        ax.set_yscale("log")
        ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        ax.set_yticks([], minor=True)
    else:
        ax.set_ylim(bottom=0.0)
    ax.legend(fontsize=6)
