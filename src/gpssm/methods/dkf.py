"""DKF: deep Kalman filters with a structured inference network (Krishnan, Shalit and Sontag, AAAI 2017).

    p(x_t | x_{t-1}) = N(G(x_{t-1}, c_t), S(x_{t-1}, c_t))                    a gated network, `GatedTransition`
    q(x_t | x_{t-1}, y_{t:T}) = N(mean(h), softplus(var(h))),   h = 1/2 (tanh(W x_{t-1} + b) + h_t)

where h_t is the state of a recurrent network that reads outputs and inputs from the end (the paper's
DKS: given x_{t-1}, the past adds nothing). The bound is

    maximise  sum_t E_q[log N(y_t | g(x_t), R)] - E_q KL[q(x_t | x_{t-1}, y) || p(x_t | x_{t-1})] - KL[q(x_0) || p(x_0)]

with divergences in closed form, expectations over sampled trajectories, a random batch of windows in
every step, and, as the authors do, divergences weighed from 0.01 up to 1 in the first third of the steps.

Where the paper leaves room, what is best for the method: a linear part that is started from least
squares and a gate that is nearly shut; windows as of other methods, each with its q(x_0), read where
the recurrent network ends; several trajectories instead of one; the best of several restarts. A fitted
model is filtered by the ensemble Kalman filter, so that a forecast starts from a state that has seen
the data.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.gp.means import Linear
from gpssm.methods.base import Learner, StateSpaceMethod
from gpssm.models.gpssm import InitialState
from gpssm.models.neural import GatedTransition
from gpssm.models.noise import DiagonalNoise, Noise
from gpssm.numerics.draws import draw
from gpssm.numerics.networks import GRU, Dense, readable, readable_width
from gpssm.plumbing.validation import variances
from gpssm.training import subspace
from gpssm.training.optimiser import Schedule
from gpssm.training.problem import Initialisation, Problem, RoughStates
from gpssm.training.windows import Windows, by_time, expected_log_density, u_shape, unroll

_NEGLIGIBLE = 1e-6  # standardised variance beside S(x), which is all the noise there is
_SPREAD = 0.3  # of q before training, standardised
_FIRST_WEIGHT = 0.01


class DKFSettings(NamedTuple):
    """What `elbo` is compiled for; `annealing` is in steps."""

    num_samples: int
    batch: int
    annealing: int


class StructuredInference(eqx.Module):
    """q of the states of every window, from the samples at and after each of them."""

    reader: GRU
    first: Dense
    memory: Dense
    combined: Dense

    @classmethod
    def start(cls, key: Array, width: int, state_dim: int, output_dim: int, input_dim: int) -> "StructuredInference":
        """Initialised with q around the middle of the data."""
        keys = jax.random.split(key, 4)
        bias = np.concatenate([np.zeros(state_dim), np.full(state_dim, np.log(np.expm1(_SPREAD**2)))])
        heads = [Dense(Dense.start(k, width, 2 * state_dim, 0.3).weight, bias) for k in keys[:2]]
        reader = GRU.start(keys[2], readable_width(output_dim, input_dim), width)
        return cls(reader, heads[0], Dense.start(keys[3], state_dim, width), heads[1])

    def read(self, windows: Windows) -> Float[Array, "b w h"]:
        """h_t of all windows. The reader starts at the last active sample, not in the padding after it."""
        length = windows.outputs.shape[1]
        shift = jnp.sum(windows.active > 0, axis=1, dtype=int)[:, None]
        order = jnp.arange(length)[None]

        def turned(column: Array, index: Array) -> Array:
            return jnp.take_along_axis(column, (index % length)[..., None], axis=1)

        read = turned(readable(windows.outputs, windows.inputs), order + shift)
        return turned(self.reader(read, reverse=True), order - shift)

    def initial(self, read: Float[Array, "b w h"], prior: InitialState) -> InitialState:
        """q(x_0 | y) of every window, beside the p(x_0) that `prior` has."""
        mean, var = _moments(self.first(read[:, 0]))
        return InitialState(mean, jax.vmap(jnp.diag)(jnp.sqrt(var)), prior.prior_mean, prior.prior_chol)

    def __call__(self, x: Float[Array, "n dx"], h: Float[Array, " h"]) -> tuple[Array, Array]:
        """Mean and variance (n, dx) of q(x_t | x_{t-1}, y_{t:T})."""
        return _moments(self.combined(0.5 * (jnp.tanh(self.memory(x)) + h)))


def _moments(head: Float[Array, "*n d2"]) -> tuple[Array, Array]:
    mean, spread = jnp.split(head, 2, axis=-1)
    return mean, jax.nn.softplus(spread) + _NEGLIGIBLE


def elbo(
    learner: Learner, carry: Float[Array, ""], windows: Windows, key: Array, settings: DKFSettings
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], dict[str, Array]]]:
    """The bound, from `settings.num_samples` trajectories in every window of a random batch.

    `carry` counts evaluations. The value is the bound itself; its gradient is that of the bound with
    the weight on its divergences that this count has come to.
    """
    model, inference = learner.model, learner.states
    key_batch, key_x0, key_x = jax.random.split(key, 3)
    batch, share = _batch(windows, key_batch, settings.batch)
    read = inference.read(batch)
    q_x0 = inference.initial(read, model.initial_state)
    starts = q_x0.draw(key_x0, settings.num_samples)
    noise, eps = draw(key_x, [(batch.outputs.shape[1], *starts.shape), u_shape(model, batch)], dtype=starts.dtype)

    def one(
        members: Array, f: tuple[Array, Noise], y: Array, active: Array, h: Array, eps: Array
    ) -> tuple[Array, Array]:
        mean, var = inference(members, h)
        moved = mean + jnp.sqrt(var) * eps
        next_var = f[1].variance + model.process_noise.variance
        scores = jnp.stack([expected_log_density(model, moved, y), _divergence(mean, var, f[0], next_var)])
        return jnp.where(active > 0, moved, members), jnp.where(active > 0, scores, 0.0)

    columns = (*map(by_time, (batch.outputs, batch.active, read)), noise)
    _, scores = unroll(model, starts, batch, eps, columns, one)
    fit, kl_x = jnp.sum(scores, axis=(0, 1)) / share
    likelihood, kl_x0 = fit - windows.log_volume, q_x0.kl() / share
    weight = jnp.minimum(1.0, _FIRST_WEIGHT + (1.0 - _FIRST_WEIGHT) * carry / settings.annealing)
    bound, annealed = (likelihood - w * (kl_x + kl_x0) for w in (1.0, weight))
    # Values of the annealed bound at different weights cannot be compared, and the best one is kept.
    value = annealed + jax.lax.stop_gradient(bound - annealed)
    return value, (carry + 1.0, {"likelihood": likelihood, "KL(x)": kl_x, "KL(x0)": kl_x0})


def _batch(windows: Windows, key: Array, size: int) -> tuple[Windows, float]:
    """A random subset of the windows, and which share of them it is."""
    count = windows.outputs.shape[0]
    if size >= count:
        return windows, 1.0
    rows = jax.random.choice(key, count, (size,), replace=False)
    picked: dict[str, Any] = {n: jnp.asarray(getattr(windows, n))[rows] for n in ("outputs", "inputs", "active")}
    return windows._replace(**picked), size / count


def _divergence(
    q_mean: Float[Array, "n dx"], q_var: Float[Array, "n dx"], p_mean: Float[Array, "n dx"], p_var: Float[Array, "n dx"]
) -> Float[Array, ""]:
    """`1/n sum_n KL[N(q_mean^n, q_var^n) || N(p_mean^n, p_var^n)]`, all covariances diagonal."""
    ratio = q_var / p_var
    return 0.5 * jnp.mean(jnp.sum(ratio - jnp.log(ratio) + (q_mean - p_mean) ** 2 / p_var - 1.0, axis=1))


@dataclass(frozen=True)
class DKF(StateSpaceMethod):
    """DKF with everything a user may want to choose.

    Args:
        process_noise: the networks' variance(s) S(x) of one step before training, one number or (dx,), in squared
            units of the states; by default their variances.
        schedule: learning rate, number of steps and when to stop, by default
            `Schedule(learning_rate=0.01, max_steps=1800, max_drop=1.0)`.
        width: units of the hidden layers of the transition, and of the recurrent network.
        num_samples: trajectories of every window.
        batch: windows in every step, at most.

    >>> import gpssm
    >>> gpssm.DKF(state_dim=4, width=16).schedule.max_steps
    1800
    """

    width: int = field(default=32, kw_only=True)
    num_samples: int = field(default=4, kw_only=True)
    batch: int = field(default=32, kw_only=True)
    # While the weight rises and R falls the bound moves more than other methods' do.
    schedule: Schedule = field(default=Schedule(learning_rate=0.01, max_steps=1800, max_drop=1.0), kw_only=True)

    _COUNTS = StateSpaceMethod._COUNTS | {"width": 1, "num_samples": 1, "batch": 1}
    always_held = frozenset({"process_noise.variance"})
    objective = staticmethod(elbo)

    def transition(self, rough: RoughStates, seed: int) -> GatedTransition:
        mean = Linear(*subspace.one_step(rough.states, rough.inputs))
        variance = np.full(self.state_dim, 1.0)
        if self.process_noise is not None:
            variance = variances("process_noise", self.process_noise, self.state_dim) / rough.scaling.state_scale**2
        return GatedTransition.start(jax.random.key(seed), mean, self.width, variance)

    def initial_process_noise(self, variance: np.ndarray) -> DiagonalNoise:
        return DiagonalNoise(np.full_like(variance, _NEGLIGIBLE))

    def learner(self, problem: Problem, key: Array) -> tuple[Learner, Any]:
        return Learner(problem.model, StructuredInference.start(key, self.width, *problem.dims)), jnp.zeros(())

    def settings(self, initial: Initialisation) -> DKFSettings:
        return DKFSettings(self.num_samples, self.batch, max(1, self.schedule.max_steps // 3))

    def default_restarts(self, problem: Problem) -> int:
        return 2 if problem.hidden else 1
