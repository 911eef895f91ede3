"""PRSSM: probabilistic recurrent state-space models (Doerr et al., ICML 2018).

    q(x_{0:T}, f) = q(x_0 | y) prod_t p(x_t | f_t) p(f_t | x_{t-1}, u) q(u)

States are sampled from the learned transition itself and no observation corrects them; observations
enter through the bound alone:

    maximise  sum_t E_q[log N(y_t | C x_t, R)] - KL[q(x_0) || p(x_0)] - KL[q(u) || p(u)].

The expectation is taken over sampled trajectories ("doubly stochastic"). As in the paper, long
recordings are cut into windows and q(x_0) of each is read from its first samples by a recognition
network. Where the paper leaves room, what is best for the method: u is sampled once per trajectory
and not again at every step (Ialongo et al. 2019 call the latter a flaw), the linear mean function,
start values and optimiser are those of EnVI, and a fitted model is filtered by the ensemble Kalman
filter, so that a forecast starts from a state that has seen the data.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.filters import ensemble
from gpssm.methods.base import GPMethod, Learner
from gpssm.models.gpssm import GPSSM, InitialState
from gpssm.models.noise import Noise
from gpssm.numerics.draws import draw
from gpssm.numerics.networks import GRU, Dense, readable, readable_width
from gpssm.training.problem import Initialisation, Problem
from gpssm.training.windows import Windows, by_time, expected_log_density, noise_shapes, u_shape, unroll

SAMPLED = ensemble.Options(update="sqrt")  # no observation is perturbed here
_LENGTH, _WIDTH = 16, 16  # samples that the recognition network reads, and its units
_SPREAD = 0.3  # of q(x_0) before training, standardised

# Of the model, f at every member, the members after the step, and the observed sample.
Score = Callable[[GPSSM, tuple[Array, Noise], Float[Array, "n dx"], Float[Array, " dy"]], Float[Array, ""]]


class Recognition(eqx.Module):
    """A recurrent network over the first samples of a window, read backwards, so that it ends where x_0 is."""

    reader: GRU
    head: Dense

    @classmethod
    def start(cls, key: Array, state_dim: int, output_dim: int, input_dim: int) -> "Recognition":
        """Initialised with q(x_0) around the middle of the data."""
        key_reader, key_head = jax.random.split(key)
        head = Dense.start(key_head, _WIDTH, 2 * state_dim, scale=0.3)
        bias = np.concatenate([np.zeros(state_dim), np.full(state_dim, np.log(_SPREAD))])
        return cls(GRU.start(key_reader, readable_width(output_dim, input_dim), _WIDTH), Dense(head.weight, bias))

    def __call__(self, windows: Windows, prior: InitialState) -> InitialState:
        """q(x_0) of every window, beside the p(x_0) that `prior` has."""
        read = readable(windows.outputs[:, :_LENGTH], windows.inputs[:, :_LENGTH])
        mean, log_std = jnp.split(self.head(self.reader(read, reverse=True)[:, 0]), 2, axis=-1)
        return InitialState(mean, jax.vmap(jnp.diag)(jnp.exp(log_std)), prior.prior_mean, prior.prior_chol)


def elbo(
    learner: Learner, carry: Array, windows: Windows, key: Array, num_samples: int
) -> tuple[Float[Array, ""], tuple[Array, dict[str, Array]]]:
    """The bound, from `num_samples` trajectories in every window."""
    model = learner.model
    key_x0, key_path = jax.random.split(key)
    q_x0 = learner.states(windows, model.initial_state)
    starts = q_x0.draw(key_x0, num_samples)
    shapes = [u_shape(model, windows), *noise_shapes(model, windows, num_samples, SAMPLED)]
    eps, noise = draw(key_path, shapes, dtype=starts.dtype)
    scores = trajectory_scores(
        model, starts, windows, eps, noise, lambda model, f, moved, y: expected_log_density(model, moved, y)
    )
    likelihood = jnp.sum(scores) - windows.log_volume
    kl_u, kl_x0 = model.transition.kl(), q_x0.kl()
    return likelihood - kl_u - kl_x0, (carry, {"likelihood": likelihood, "KL(u)": kl_u, "KL(x0)": kl_x0})


def trajectory_scores(
    model: GPSSM, starts: Float[Array, "b n dx"], windows: Windows, eps: Array, noise: Array, score: Score
) -> Float[Array, "w b"]:
    """What `score` says of every sample, along trajectories that no observation corrects.

    `eps` (b, dx, m) draws u, `noise` (w, b, k, n, dx) the moves.
    """

    def one(members: Array, f: tuple[Array, Noise], y: Array, active: Array, noise: Array) -> tuple[Array, Array]:
        moved = ensemble.move(*f, model.process_noise, noise)
        return jnp.where(active > 0, moved, members), score(model, f, moved, y)

    columns = (by_time(windows.outputs), by_time(windows.active), noise)
    return unroll(model, starts, windows, eps, columns, one)[1]


@dataclass(frozen=True)
class PRSSM(GPMethod):
    """PRSSM with everything a user may want to choose.

    Args:
        num_samples: trajectories of every window.

    >>> import gpssm
    >>> gpssm.PRSSM(state_dim=4, num_samples=8).name
    'PRSSM'
    """

    num_samples: int = field(default=16, kw_only=True)

    _COUNTS = GPMethod._COUNTS | {"num_samples": 1}
    objective = staticmethod(elbo)

    def learner(self, problem: Problem, key: Array) -> tuple[Learner, Any]:
        return Learner(problem.model, Recognition.start(key, *problem.dims)), jnp.zeros(())

    def settings(self, initial: Initialisation) -> int:
        return self.num_samples

    def default_window(self, initial: Initialisation) -> int:
        """Short where the state is seen: nothing pulls a trajectory back, and on kink it diverges within five steps."""
        return 50 if initial.hidden else 5
