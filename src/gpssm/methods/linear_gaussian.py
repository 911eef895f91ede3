"""A linear Gaussian state-space model by maximum likelihood.

    x_t = A x_{t-1} + B c_t + b + v_t,  v_t ~ N(0, Q)        y_t = [I 0] x_t + e_t,  e_t ~ N(0, R)

The first states are the outputs without their noise, the rest are hidden: every observable system
with linearly independent outputs has such coordinates. A, B, b, a full Q and a diagonal R maximise
the exact likelihood of the Kalman filter, missing samples included, with L-BFGS, over stable A:
what is not stable cannot be run freely. It starts twice, from the subspace fit and from the linear model
whose simulation is closest to the recordings, and goes on where the likelihood is larger. The
state before the first sample has the prior N(0, I), in standardised units. What is left of the
choice of hidden coordinates hardly matters to what is observed; a very wide Gaussian prior on the
parameters, around their start, keeps the optimiser from drifting there until numbers lose their
digits.
"""

import time
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from scipy.optimize import minimize

from gpssm.errors import InvalidInput
from gpssm.filters import kalman
from gpssm.filters.kalman import Gaussian, System
from gpssm.methods.linear import LinearMethod, NDArray, observed_scaling
from gpssm.numerics.linalg import cholesky, solve_lower, solve_lower_transposed
from gpssm.plumbing.compilation import bucket, jit
from gpssm.plumbing.validation import positive_int
from gpssm.posteriors.history import History, Progress
from gpssm.posteriors.linear import NOISE_FLOOR, LinearPosterior
from gpssm.training import subspace
from gpssm.training.candidates import Recordings, pieces, stack
from gpssm.training.linear_search import AUTO, enough_states, linear_models, stable
from gpssm.training.progress import Watch, record, watcher

_FIRST_STEPS = 30  # from every start, before the better one goes on
_ANCHOR = 1e-4  # precision of the prior around the start; parameters are of order one
_REJECTED = 1e6  # nats per number: the cost of a step that is not finite


class _Parameters(NamedTuple):
    """What is learned, in standardised units and without constraints.

    A = S K L^{-T} S^{-1} with L L^T = I + K^T K: S^{-1} A S is a contraction, and every A with
    eigenvalues inside the unit circle can be written so.
    """

    contraction: Float[Array, "dx dx"]
    """K."""
    coordinates: Float[Array, "dx dx"]
    """S, of which only the lower triangle counts."""
    input_weight: Float[Array, "dx dc"]
    bias: Float[Array, " dx"]
    process_root: Float[Array, "dx dx"]
    """The Cholesky factor of Q, with the logarithm of its diagonal."""
    log_obs_var: Float[Array, " dy"]

    def system(self) -> System:
        dx, dy = len(self.bias), len(self.log_obs_var)
        chol = cholesky(jnp.eye(dx) + self.contraction.T @ self.contraction)
        contracted = solve_lower(chol, self.contraction.T).T
        coordinates = jnp.tril(self.coordinates)
        transition = solve_lower_transposed(coordinates, (coordinates @ contracted).T).T
        root = jnp.tril(self.process_root, -1) + jnp.diag(jnp.exp(jnp.diagonal(self.process_root)))
        obs_cov = jnp.diag(jnp.exp(self.log_obs_var) + NOISE_FLOOR)
        return System(transition, root @ root.T, jnp.eye(dy, dx), jnp.zeros(dy), obs_cov)


@dataclass(frozen=True)
class LinearGaussian(LinearMethod):
    """Linear dynamics with hidden states.

    Args:
        state_dim: dimension of the state, at least the number of outputs; `"auto"` is 4, or two more than there
            are outputs, or more where that forecasts the end of the recording clearly better.
        max_steps: iterations of L-BFGS at most.

    >>> import gpssm, numpy as np
    >>> y = np.sin(np.arange(40))[:, None]
    >>> posterior = gpssm.LinearGaussian(2, max_steps=50).fit(y)
    >>> abs(posterior.forecast(1).mean - np.sin(40)).item() < 0.1
    True
    """

    state_dim: int = 4
    max_steps: int = 1000
    name: str = "LinearGaussian"
    fixed: ClassVar[tuple[str, ...]] = ("initial_state.prior_mean", "emission.weight", "emission.bias")

    def __post_init__(self) -> None:
        if self.state_dim != AUTO:
            positive_int("state_dim", self.state_dim)
        positive_int("max_steps", self.max_steps)

    def learn(self, outputs: list[NDArray], inputs: list[NDArray], progress: bool | Watch) -> LinearPosterior:
        if self.state_dim == AUTO:
            order = enough_states(Recordings.standardised(outputs, inputs))[0][0].order
            return replace(self, state_dim=order).learn(outputs, inputs, progress)
        self._check_size(outputs, inputs)
        dx = self.state_dim
        scaling = observed_scaling(outputs, inputs, dx)
        ys, cs = pieces(*scaling.standardise(outputs, inputs))
        log_volume = sum(map(scaling.log_volume, outputs))
        with watcher(progress, self.name) as watch:
            tried = [_maximise(first, ys, cs, log_volume, _FIRST_STEPS, None) for first in _initial(ys, cs, dx)]
            first, _ = max(tried, key=lambda found: found[1].best)
            best, history = _maximise(first, ys, cs, log_volume, self.max_steps, watch)
        system, prior = jax.jit(_Parameters.system)(best), Gaussian(jnp.zeros(dx), jnp.eye(dx))
        return self.posterior(system, prior, scaling, np.asarray(best.input_weight), np.asarray(best.bias), history)

    def _check_size(self, ys: list[NDArray], cs: list[NDArray]) -> None:
        dx, dy, dc = self.state_dim, ys[0].shape[1], cs[0].shape[1]
        if dx < dy:
            raise InvalidInput(f"state_dim: got {dx} for {dy} outputs; expected at least {dy}.")
        # Of A and Q only this much can be identified: the system is as rich as its innovations form.
        parameters = dx * (2 * dy + dc) + dy + dy * (dy + 1) // 2
        seen = sum(int(np.sum(~np.isnan(y))) for y in ys)
        if seen <= parameters:
            raise InvalidInput(f"outputs: {seen} number(s); expected more than {parameters} for state_dim={dx}.")


def _initial(outputs: list[NDArray], inputs: list[NDArray], state_dim: int) -> list[_Parameters]:
    """The subspace fit, which looks one step ahead, and the linear model whose simulation is closest to the recordings.

    Where poles lie near the unit circle the first is far from the second, and L-BFGS does not find the way.
    """
    data, dy = Recordings.of(outputs, inputs, hold_back=False), outputs[0].shape[1]
    near = subspace.identify(outputs, inputs, state_dim)
    (far,) = linear_models(data, (state_dim,))
    linear = far.fit.skeleton.linear
    simulated = [x[: len(y)] for x, y in zip(far.fit.states, outputs, strict=True)]
    seen = [np.hstack([subspace.fill(y), x[:, dy:]]) for y, x in zip(outputs, simulated, strict=True)]
    return [_stable(*near, inputs, dy), _stable(linear[:, :-1], linear[:, -1], seen, inputs, dy)]


def _stable(
    weight: NDArray, bias: NDArray, states: list[NDArray], inputs: list[NDArray], output_dim: int
) -> _Parameters:
    """A linear model, made stable, with its residuals one step ahead shared out between the two noises."""
    dx = len(bias)
    weight = stable(weight)
    variances = np.maximum(np.mean(subspace.residuals(weight, bias, states, inputs) ** 2, axis=0), 1e-4)
    root = np.diag(0.5 * np.log(0.5 * variances))
    matrices = (*_contraction(weight[:, :dx]), weight[:, dx:], bias, root, np.log(0.5 * variances[:output_dim]))
    return _Parameters(*map(jnp.asarray, matrices))


def _contraction(a: NDArray) -> tuple[NDArray, NDArray]:
    """K and S of a stable A: S S^T = P solves P = A P A^T + I."""
    eye = np.eye(len(a))
    cov = np.linalg.solve(np.eye(a.size) - np.kron(a, a), eye.ravel()).reshape(a.shape)
    s = np.linalg.cholesky(0.5 * (cov + cov.T))
    contracted = np.linalg.solve(s, a @ s)
    return np.linalg.solve(np.linalg.cholesky(eye - contracted.T @ contracted), contracted.T).T, s


def _maximise(
    first: _Parameters, ys: list[NDArray], cs: list[NDArray], log_volume: float, max_steps: int, watch: Watch | None
) -> tuple[_Parameters, History]:
    """The most probable parameters that L-BFGS evaluated on standardised recordings, and its course."""
    longest = bucket(max(map(len, ys)))
    outputs, inputs = jnp.asarray(stack(ys, longest, np.nan)), jnp.asarray(stack(cs, longest, 0.0))
    size = sum(int(np.sum(~np.isnan(y))) for y in ys)
    started, history = time.perf_counter(), History()
    flat_first, unflatten = ravel_pytree(first)
    start = np.asarray(flat_first)
    best_value, best = np.inf, start

    def anchor(flat: NDArray) -> float:
        return 0.5 * _ANCHOR * float(np.sum((flat - start) ** 2))

    def loss(flat: NDArray) -> tuple[float, NDArray]:
        nonlocal best_value, best
        value, gradient = map(np.asarray, _loss(flat, first, outputs, inputs))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return _REJECTED, np.zeros_like(flat)
        total = float(value) + anchor(flat)
        if total < best_value:
            best_value, best = total, flat.copy()
        return total / size, (gradient + _ANCHOR * (flat - start)) / size

    def report(_: NDArray) -> None:
        objective, prior = -best_value - log_volume, -anchor(best)
        terms, seconds = {"prior": prior, "likelihood": objective - prior}, time.perf_counter() - started
        step = len(history.step) + 1
        record(history, Progress(step, max_steps, "learning", objective, terms, seconds, ()), watch)

    result = minimize(
        loss, best, jac=True, method="L-BFGS-B", callback=report,
        options={"maxiter": max_steps, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-6},
    )  # fmt: skip
    history.converged, history.best = bool(result.success), -best_value - log_volume
    return unflatten(jnp.asarray(best)), history


@jit
@jax.value_and_grad
def _loss(
    flat: Float[Array, " n"], like: _Parameters, outputs: Float[Array, "b t dy"], inputs: Float[Array, "b t dc"]
) -> Float[Array, ""]:
    """Minus the log-likelihood of recordings that may end in missing samples. Cost O(b T dx^3)."""
    parameters = ravel_pytree(like)[1](flat)
    system, dx = parameters.system(), parameters.bias.shape[0]
    offsets = inputs @ parameters.input_weight.T + parameters.bias
    prior = Gaussian(jnp.zeros(dx), jnp.eye(dx))
    trace = jax.vmap(lambda y, offset: kalman.filter(system, prior, y, offset))(outputs, offsets)
    return -jnp.sum(trace.log_likelihood)
