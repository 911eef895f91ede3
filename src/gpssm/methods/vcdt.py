"""VCDT: variationally coupled dynamics and trajectories (Ialongo et al., ICML 2019).

    q(x_t | f_t) = N(A_t f_t + b_t, S_t),    f_t ~ p(f_t | x_{t-1}, u),    u ~ q(u)

The states' posterior depends on f: each step starts where the learned transition leads and is then
corrected by a linear map of its own.

    maximise  sum_t E_q[ log N(y_t | C x_t, R) - KL[N(A_t f_t + b_t, S_t) || N(f_t, Q)] ]
              - KL[q(x_0) || p(x_0)] - KL[q(u) || p(u)]

Two forms of (A_t, b_t, S_t): free parameters for every time step, or read from the recording by a
bidirectional recurrent network (`amortised=True`). Both are initialised as the Kalman update of the initial
model, A = I - K C, b_t = K (y_t - d), S = (I - K C) Q, which is where the paper's own discussion of
the optimum leads; where an output is missing they are the transition itself. Windows of a long
recording start where their left neighbours ended one iteration earlier, as in EnVI. A fitted model is
filtered by the ensemble Kalman filter.
"""

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.methods.base import GPMethod, Learner
from gpssm.methods.prssm import SAMPLED
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM
from gpssm.models.noise import Noise
from gpssm.numerics.draws import draw
from gpssm.numerics.linalg import solve_lower
from gpssm.numerics.networks import BidirectionalGRU, Dense, readable, readable_width
from gpssm.numerics.parameters import Leaf, as_array, parameter
from gpssm.training import initialisation
from gpssm.training.problem import Initialisation, Problem
from gpssm.training.windows import (
    Windows,
    by_time,
    continued,
    expected_log_density,
    noise_shapes,
    u_shape,
    unroll,
    window_starts,
)

_WIDTH = 16  # of the recurrent network, in each direction


class Gates(eqx.Module):
    """Free parameters: `weight` A (b, w, dx, dx), `bias` b (b, w, dx), `chol` (b, w, dx, dx) with S = chol chol^T."""

    weight: Leaf = parameter("real")
    bias: Leaf = parameter("real")
    chol: Leaf = parameter("cholesky")

    def __call__(self, windows: Windows) -> tuple[Array, Array, Array]:
        return jnp.asarray(self.weight), jnp.asarray(self.bias), jnp.asarray(self.chol)


class AmortisedGates(eqx.Module):
    """The initial gates, and a network's corrections: added to A and b, factors on the rows of `chol`."""

    reader: BidirectionalGRU
    head: Dense
    weight: Leaf = eqx.field(converter=as_array)
    bias: Leaf = eqx.field(converter=as_array)
    chol: Leaf = eqx.field(converter=as_array)

    def __call__(self, windows: Windows) -> tuple[Array, Array, Array]:
        dx = self.weight.shape[-1]
        read = self.head(self.reader(readable(windows.outputs, windows.inputs)))
        weight, bias, log_scale = jnp.split(read, [dx * dx, dx * dx + dx], axis=-1)
        return (
            self.weight + weight.reshape(*weight.shape[:-1], dx, dx),
            self.bias + bias,
            self.chol * jnp.exp(log_scale)[..., None],
        )


def elbo(
    learner: Learner, carry: Float[Array, "b n dx"], windows: Windows, key: Array, settings: None
) -> tuple[Float[Array, ""], tuple[Float[Array, "b n dx"], dict[str, Array]]]:
    """The bound, from as many trajectories as `carry` has members in every window."""
    model = learner.model
    key_x0, key_path = jax.random.split(key)
    shapes = [u_shape(model, windows), *noise_shapes(model, windows, carry.shape[1], SAMPLED, kinds=2)]
    eps_u, noise = draw(key_path, shapes, dtype=carry.dtype)
    starts = window_starts(windows, carry, model.initial_state.draw(key_x0, carry.shape[1]))
    chol_q = jnp.linalg.cholesky(model.process_noise.covariance)

    def one(
        members: Array, f: tuple[Array, Noise], y: Array, active: Array, noise: Array, a: Array, b: Array, chol: Array
    ) -> tuple[Array, Array]:
        mean, of_f = f
        reached = mean + of_f.draws(noise[0])
        corrected = reached @ a.T + b
        moved = corrected + noise[1] @ chol.T
        divergence = _divergence(corrected - reached, chol, chol_q)
        # Padding has no y, and must not have a divergence.
        value = jnp.where(active > 0, expected_log_density(model, moved, y) - divergence, 0.0)
        return jnp.where(active > 0, moved, members), jnp.stack([value, jnp.where(active > 0, divergence, 0.0)])

    columns = (*map(by_time, (windows.outputs, windows.active)), noise, *map(by_time, learner.states(windows)))
    ends, scores = unroll(model, starts, windows, eps_u, columns, one)
    value, divergence = jnp.sum(scores, axis=(0, 1))
    kl_u, kl_x0 = model.transition.kl(), model.initial_state.kl()
    value = value - windows.log_volume
    terms = {"likelihood": value + divergence, "KL(x)": divergence, "KL(u)": kl_u, "KL(x0)": kl_x0}
    return value - kl_u - kl_x0, (continued(windows, carry, ends), terms)


def _divergence(
    shift: Float[Array, "n dx"], chol: Float[Array, "dx dx"], chol_q: Float[Array, "dx dx"]
) -> Float[Array, ""]:
    """`KL[N(f + shift, chol chol^T) || N(f, Q)]`, averaged over the members."""
    scale, moved = solve_lower(chol_q, chol), solve_lower(chol_q, shift.T)
    log_det = jnp.sum(jnp.log(jnp.diagonal(scale)))
    distance = jnp.mean(jnp.sum(moved**2, axis=0))
    return 0.5 * (jnp.sum(scale**2) + distance - shift.shape[1]) - log_det


def kalman_gates(model: GPSSM, windows: Windows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, b and the Cholesky factor of S of a Kalman update whose prediction has covariance Q, at every time step.

    Where an output is missing, f itself.
    """
    outputs = np.asarray(windows.outputs)
    dx, (count, length) = model.state_dim, outputs.shape[:2]
    q, r = np.asarray(model.process_noise.covariance), np.diag(model.obs_noise.variance)
    seen = ~np.isnan(outputs).any(axis=-1)
    weight, bias = np.tile(np.eye(dx), (count, length, 1, 1)), np.zeros((count, length, dx))
    chol = np.tile(np.linalg.cholesky(q), (count, length, 1, 1))
    if isinstance(model.emission, LinearEmission):
        c, d = np.asarray(model.emission.weight), np.asarray(model.emission.bias)
        gain = np.linalg.solve(c @ q @ c.T + r, c @ q).T
        weight[seen] = np.eye(dx) - gain @ c
        bias[seen] = (outputs[seen] - d) @ gain.T
        chol[seen] = np.linalg.cholesky(q - gain @ c @ q)
    return weight, bias, chol


@dataclass(frozen=True)
class VCDT(GPMethod):
    """VCDT with everything a user may want to choose.

    Args:
        amortised: read the corrections from the recording with a network, instead of learning them for
            every time step.
        num_samples: trajectories of every window.

    >>> import gpssm
    >>> gpssm.VCDT(state_dim=4, amortised=True).num_samples
    16
    """

    amortised: bool = field(default=False, kw_only=True)
    num_samples: int = field(default=16, kw_only=True)

    _COUNTS = GPMethod._COUNTS | {"num_samples": 1}
    objective = staticmethod(elbo)

    def learner(self, problem: Problem, key: Array) -> tuple[Learner, Any]:
        key_carry, key_reader, key_head = jax.random.split(key, 3)
        carry = initialisation.ensembles(problem, self.num_samples, key_carry, jnp.dtype(self.dtype))
        gates = kalman_gates(problem.model, problem.windows)
        if not self.amortised:
            return Learner(problem.model, Gates(*gates)), carry
        dx, dy, dc = problem.dims
        reader = BidirectionalGRU.start(key_reader, readable_width(dy, dc), _WIDTH)
        head = Dense.start(key_head, 2 * _WIDTH, dx * dx + 2 * dx, scale=0.01)
        return Learner(problem.model, AmortisedGates(reader, head, *gates)), carry

    def contracts(self, initial: Initialisation) -> bool:
        """A network repeats the mistakes of f at every time step alike, and corrects them: on one series all restarts
        ended with unstable models.
        """
        return initial.hidden and self.amortised and self.mean == "linear"
