"""EnVI: variational learning of a GP state-space model with a differentiable EnKF (Algorithm 1).

    maximise  E_q(u)[ sum_t log N(y_t | C mbar_t, C Pbar_t C^T + R) ] - KL[q(x_0) || p(x_0)] - KL[q(u) || p(u)]

(Proposition 1, with R in the likelihood.) What is added to the paper's algorithm, each for a
measured reason; `EnVI.paper` switches it off:

- windows of a recording are filtered side by side, each with its own sample of u: the
  expectation of a sum is the sum of expectations, so that the variance of the gradient falls with
  the number of windows. What a window starts from, its left neighbour's last ensemble, is one
  iteration old and not differentiated; of more than some thousand samples an iteration sees a batch
  of windows, whose likelihood stands for that of all;
- the process noise enters the predicted moments in closed form, and members are given the posterior
  moments of the predicted mixture (`filters.ensemble`);
- a learned linear mean function, started from least squares;
- where states are hidden, the model is initialised from a skeleton (`training.skeleton`): the same model
  without noise, fitted to the error of its simulation; one of several, linear ones among them, chosen by
  what EnVI from each of them forecasts of the end of the recording (`training.restarts`);
- where states are hidden, gap training: over random blocks the update is skipped while every y_t
  is still scored, so that the model learns to run freely and not only one step ahead. Where no
  skeleton follows the recording, from nothing: in two phases, from several starts, of which the one
  with the best bound is kept;
- noise variances start large (the filter follows the data first) where they start from nothing, and
  move at a higher rate.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.filters import ensemble
from gpssm.filters.ensemble import FilterSettings
from gpssm.filters.small_ensembles import gaspari_cohn
from gpssm.methods.base import GPMethod, default_update
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM
from gpssm.models.noise import DiagonalNoise, FullNoise, Noise
from gpssm.numerics.draws import draw
from gpssm.training import initialisation
from gpssm.training.optimiser import Schedule
from gpssm.training.problem import Initialisation, Problem, one_of
from gpssm.training.windows import (
    Windows,
    batch,
    by_time,
    continued,
    handed_on,
    noise_shapes,
    u_shape,
    unroll,
    window_starts,
)


class Batching(NamedTuple):
    """How many windows an iteration sees, 0 if all of them; and how many samples each of them starts early."""

    size: int = 0
    run_in: int = 0


class EnVISettings(NamedTuple):
    """What `elbo` is compiled for."""

    num_members: int
    num_samples: int
    options: ensemble.Options
    taper: tuple[tuple[float, ...], ...] | None
    gap_length: int  # 0 if the update is never skipped
    batching: Batching = Batching()


class Phase(NamedTuple):
    """What changes in the course of a fit."""

    gap_fraction: float | Array = 0.0
    """Share of blocks over which the update is skipped."""
    kl_weight: float | Array = 1.0
    """Weight of KL[q(u) || p(u)]. Without updates the errors of a block are one error seen many times."""
    share: float = 1.0
    """Of the schedule's steps, at most."""


class Data(NamedTuple):
    """What `elbo` is evaluated on: the recordings, and the phase of the fit."""

    windows: Windows
    phase: Phase = Phase()


def elbo(
    model: GPSSM, carry: Float[Array, "b n dx"], data: Data, key: Array, settings: EnVISettings
) -> tuple[Float[Array, ""], tuple[Float[Array, "b n dx"], dict[str, Array]]]:
    """The evidence lower bound, from `settings.num_samples` samples of u for every window.

    `carry` holds the ensembles that the windows start from; the new ones come back, with the
    terms of the bound. Cost O(T N dx M^2) for every sample.
    """
    if settings.num_samples == 1:
        likelihood, carry = _window_likelihood(model, carry, data, key, settings)
    else:
        keys = jax.random.split(key, settings.num_samples)
        likelihoods, carries = jax.vmap(lambda k: _window_likelihood(model, carry, data, k, settings))(keys)
        likelihood, carry = jnp.mean(likelihoods), carries[0]
    likelihood = likelihood - data.windows.log_volume
    kl_u, kl_x0 = model.transition.kl(), model.initial_state.kl()
    value = likelihood - data.phase.kl_weight * kl_u - kl_x0
    return value, (carry, {"likelihood": likelihood, "KL(u)": kl_u, "KL(x0)": kl_x0})


def _window_likelihood(
    model: GPSSM, carry: Float[Array, "b n dx"], data: Data, key: Array, settings: EnVISettings
) -> tuple[Float[Array, ""], Float[Array, "b n dx"]]:
    """An unbiased estimate of the log-likelihood of all windows, and what they start from next time."""
    size, run_in = settings.batching
    everything, num_members, gap = data.windows, carry.shape[1], settings.gap_length
    some = everything if not size else everything._replace(outputs=np.zeros((size, *everything.outputs.shape[1:])))
    num_windows, length = some.outputs.shape[:2]
    normal = [
        u_shape(model, some),
        (len(model.initial_state.mean), num_members, model.state_dim),
        *noise_shapes(model, some, num_members, settings.options),
    ]
    uniform = [(size,), (num_windows, length // gap + 2 if gap else 0), (num_windows, 1)]
    *draws, places, blocks, shift = draw(key, normal, uniform, dtype=carry.dtype)
    eps_u, eps_x0, process, *perturbations = draws
    windows, chosen, share = batch(everything, places if size else None)
    starts = window_starts(windows, carry if chosen is None else carry[chosen], model.initial_state.members(eps_x0))
    observing = ensemble.Observing.of(model, settings.taper)

    def one(
        members: Array, f: tuple[Array, Noise], y: Array, active: Array, skip: Array, noise: Array, pert: Array | None
    ) -> tuple[Array, Array]:
        predicted, filtered = ensemble.assimilate(*f, y, noise, pert, observing, settings.options)
        moved = jnp.where(skip, predicted.members, filtered.members) if gap else filtered.members
        return jnp.where(active > 0, moved, members), filtered.log_likelihood

    skips = _gaps(blocks, shift, data.phase.gap_fraction, gap, length, run_in)
    perturbed = perturbations[0] if perturbations else None
    columns = (*map(by_time, (windows.outputs, windows.active, skips)), process, perturbed)
    ends, likelihoods = unroll(model, starts, windows, eps_u, columns, one, length - run_in if run_in else None)
    carry = continued(windows, carry, ends) if chosen is None else handed_on(everything, chosen, carry, ends)
    return jnp.sum(likelihoods[run_in:]) / share, carry


def _gaps(
    blocks: Float[Array, "b k"], shift: Float[Array, "b 1"], share: Array | float, gap: int, length: int, run_in: int
) -> Array:
    """Samples (b, w) at which the update is skipped, in blocks that lie elsewhere in every iteration."""
    if not gap:
        return jnp.zeros((len(blocks), length), bool)
    time = jnp.arange(length)[None]
    index = (time + (shift * gap).astype(int)) // gap
    return jnp.take_along_axis(blocks < share, index, axis=1) & (time >= run_in)


# Hidden states start from nothing: long stretches without updates make the model find what it needs to
# run freely; then shorter ones.
_HIDDEN_PHASES = (Phase(0.7, 1.0, 0.5), Phase(0.3, 2.0, 0.6))
_HIDDEN_GAP = 25
# A skeleton runs freely over the whole recording; longer stretches without updates keep it able to.
_INFORMED_PHASE = Phase(0.5)
_INFORMED_GAP, _INFORMED_WINDOW = 50, 100
# Samples of an iteration, of which a recording may have twice as many before it sees only some of them; and how much of
# its length a window starts early then.
_BATCH, _RUN_IN = 2000, 0.25
# A square-root update needs few members more than states, and time goes with their number.
_HIDDEN_MEMBERS = 16


@dataclass(frozen=True)
class EnVI(GPMethod):
    """EnVI with everything a user may want to choose.

    Args:
        full_process_noise: learn a full covariance Q instead of a diagonal one.
        num_members: number N of members of the ensemble; by default 50, or 16 where states are hidden.
        num_samples: samples of u for every window and step.
        update: `"mixture"`, `"perturbed"` or `"sqrt"`; see `gpssm.filters.ensemble`. By default the
            first; the last where states are hidden; perturbed observations where the emission is a
            function or localised.
        moments: `"exact_noise"` or `"sampled"`; see `gpssm.filters.ensemble`.
        inflation: factor on the ensemble's anomalies, at least 1.
        localization: radius of the Gaspari-Cohn taper, in positions of the state's index; by default no taper.
        gap_fraction: share of blocks over which the update is skipped, from 0 to 1. By default none where all
            states are observed; 0.7, then 0.3, where some are hidden; 0.5 from a skeleton.
        gap_length: samples in such a block; by default 25, or 50 from a skeleton.

    >>> import gpssm
    >>> method = gpssm.EnVI(state_dim=4, obs_noise=0.1, fixed=("obs_noise",))  # the variance of the noise is known
    >>> method.name
    'EnVI'
    >>> posterior = method.fit(outputs, inputs)  # doctest: +SKIP
    """

    full_process_noise: bool = field(default=False, kw_only=True)
    num_members: int | None = field(default=None, kw_only=True)
    num_samples: int = field(default=1, kw_only=True)
    update: ensemble.Update | None = field(default=None, kw_only=True)
    moments: ensemble.Moments = field(default="exact_noise", kw_only=True)
    inflation: float = field(default=1.0, kw_only=True)
    localization: float | None = field(default=None, kw_only=True)
    gap_fraction: float | None = field(default=None, kw_only=True)
    gap_length: int | None = field(default=None, kw_only=True)

    _COUNTS = GPMethod._COUNTS | {"num_samples": 1, "num_members": 3, "gap_length": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("update", self.update, (None, "perturbed", "sqrt", "mixture"))
        one_of("moments", self.moments, ("exact_noise", "sampled"))
        if not isinstance(self.inflation, (int, float)) or not self.inflation >= 1.0:
            raise InvalidInput(f"inflation: expected a factor of at least 1, got {self.inflation!r}.")
        if self.localization is not None:
            if not isinstance(self.localization, (int, float)) or not self.localization > 0:
                raise InvalidInput(f"localization: expected a positive radius, got {self.localization!r}.")
            if self.update == "mixture":
                raise InvalidInput("update: 'mixture' cannot be localised; expected 'perturbed' or 'sqrt'.")
        if self.gap_fraction is not None and not 0 <= self.gap_fraction < 1:
            raise InvalidInput(f"gap_fraction: expected a share in [0, 1), got {self.gap_fraction!r}.")

    fills_up = True
    objective = staticmethod(elbo)

    @classmethod
    def paper(cls, state_dim: int, num_inducing: int = 15, **changes: Any) -> "EnVI":
        """Algorithm 1 as the paper writes it (with the errata), and nothing else.

        Zero mean function, one sample of u for the whole recording, back-propagation through all
        of it, sampled moments, perturbed observations, Adam at one constant rate for a fixed
        number of iterations. The paper does not say where to start or what to do when a step
        fails: standardisation, initial values, gradient clipping, rollback and best-so-far are those
        of `EnVI`.

        Args:
            state_dim: dimension dx of the state.
            num_inducing: inducing points of each state dimension's GP.
            changes: further arguments of `EnVI`.

        >>> EnVI.paper(1, num_members=50).update
        'perturbed'
        """
        preset = cls(
            state_dim, num_inducing, mean="zero", num_members=100, update="perturbed", moments="sampled",
            window=0, gap_fraction=0.0, noise_rate=1.0, inducing_rate=1.0, name="EnVI (paper)",
            schedule=Schedule(learning_rate=0.01, max_steps=1000, decay_steps=0, patience=10**9),
        )  # fmt: skip
        return replace(preset, **changes)

    def settings(self, initial: Initialisation) -> EnVISettings:
        linear = isinstance(initial.model.emission, LinearEmission)
        if not linear and self.update == "mixture":
            raise InvalidInput("update: 'mixture' needs a linear emission; expected 'perturbed' or 'sqrt' here.")
        if not linear and self.localization is not None:
            raise InvalidInput("localization: needs a linear emission; expected None for a function.")
        num_members = self.num_members or (_HIDDEN_MEMBERS if initial.hidden else 50)
        taper = None
        if self.localization is not None:
            index = np.arange(self.state_dim)
            weights = np.asarray(gaspari_cohn(jnp.asarray(index[:, None] - index, float), self.localization))
            taper = tuple(tuple(float(v) for v in row) for row in weights)
        update = self.update or ("perturbed" if taper is not None else default_update(initial))
        options = ensemble.Options(self.moments, update, self.inflation)
        gaps = any(float(phase.gap_fraction) > 0 for phase in self._gap_phases(initial))
        gap_length = self.gap_length or (_INFORMED_GAP if initial.informed else _HIDDEN_GAP)
        batching = self._batching(initial)
        return EnVISettings(num_members, self.num_samples, options, taper, gap_length if gaps else 0, batching)

    def run_in(self, initial: Initialisation) -> int:
        return self._batching(initial).run_in

    def _batching(self, initial: Initialisation) -> Batching:
        """In a recording that is longer than two batches, batches."""
        window, samples = self.window_length(initial), sum(map(len, initial.states))
        if samples <= 2 * _BATCH or window > _BATCH // 2:
            return Batching()
        run_in = round(_RUN_IN * window)
        return Batching(_BATCH // (window + run_in), run_in)

    def default_window(self, initial: Initialisation) -> int:
        return _INFORMED_WINDOW if initial.informed else super().default_window(initial)

    def filter_settings(self, problem: Problem) -> FilterSettings:
        """The filter of the objective, with more members."""
        settings: EnVISettings = problem.settings
        return FilterSettings(4 * settings.num_members, settings.options, settings.taper)

    def initial_process_noise(self, variance: np.ndarray) -> Noise:
        return FullNoise(np.diag(np.sqrt(variance))) if self.full_process_noise else DiagonalNoise(variance)

    def default_restarts(self, problem: Problem) -> int:
        return super().default_restarts(problem) if self.gap_fraction is None else 1

    def learner(self, problem: Problem, key: Array) -> tuple[GPSSM, Float[Array, "b n dx"]]:
        members = problem.settings.num_members
        return problem.model, initialisation.ensembles(problem, members, key, jnp.dtype(self.dtype))

    def phases(self, problem: Problem, schedule: Schedule) -> list[tuple[Data, Schedule]]:
        phases = self._gap_phases(problem)
        shares = [schedule._replace(max_steps=max(1, round(phase.share * schedule.max_steps))) for phase in phases]
        # The rate falls to zero once, in the end.
        limits = [*(share._replace(decay_steps=0) for share in shares[:-1]), shares[-1]]
        return list(zip((Data(problem.windows, phase) for phase in phases), limits, strict=True))

    def _gap_phases(self, initial: Initialisation) -> tuple[Phase, ...]:
        if self.gap_fraction is not None:
            return (Phase(self.gap_fraction),)
        if initial.informed:
            return (_INFORMED_PHASE,)
        return _HIDDEN_PHASES if initial.hidden else (Phase(),)
