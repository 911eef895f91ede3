"""A linear Gaussian state-space model by maximum likelihood.

    x_t = A x_{t-1} + B c_t + b + v_t,  v_t ~ N(0, Q)        y_t = [I 0] x_t + e_t,  e_t ~ N(0, R)

The first states are the outputs without their noise, the rest are hidden: every observable system
with linearly independent outputs has such coordinates. A, B, b, a full Q and a diagonal R maximise
the exact likelihood of the Kalman filter, missing samples included, with L-BFGS, over stable A:
what is not stable cannot be run freely. It starts twice, from the subspace fit and from the line
whose simulation is closest to the recordings, and goes on where the likelihood is larger. The
state before the first sample has the prior N(0, I), in standardised units. What is left of the
choice of hidden coordinates hardly matters to what is observed; a very wide Gaussian prior on the
parameters, around their start, keeps the optimiser from drifting there until numbers lose their
digits.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from gpssm.errors import InvalidInput
from gpssm.filters import kalman
from gpssm.filters.kalman import Gaussian, System
from gpssm.models.scaling import Scaling, moments
from gpssm.numerics.linalg import cholesky, solve_lower, solve_lower_transposed
from gpssm.plumbing.compilation import CompileClock
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import positive_int, training_data
from gpssm.posteriors.history import History, Progress
from gpssm.posteriors.linear import NOISE_FLOOR, LinearPosterior
from gpssm.training import search, subspace
from gpssm.training.progress import Watch, watcher

NDArray = np.ndarray

_FIRST_STEPS = 30  # from every start, before the better one goes on
_ANCHOR = 1e-4  # precision of the prior around the start; parameters are of order one
_REJECTED = 1e6  # nats per number: what a step that is not finite is told to have cost


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
class LinearGaussian:
    """Linear dynamics with hidden states.

    Args:
        state_dim: dimension of the state, at least the number of outputs; `"auto"` is 4, or two more than there
            are outputs, or more where that forecasts the end of the recording clearly better.
        max_steps: iterations of L-BFGS at most.
    """

    state_dim: int = 4
    max_steps: int = 1000
    name: str = "LinearGaussian"

    def __post_init__(self) -> None:
        if self.state_dim != search.AUTO:
            positive_int("state_dim", self.state_dim)
        positive_int("max_steps", self.max_steps)

    @double_precision
    def fit(
        self,
        outputs: Any,
        inputs: Any = None,
        *,
        seed: int = 0,
        progress: bool | Callable[[Progress], None] = False,
    ) -> LinearPosterior:
        """Learn the model from a recording.

        Args:
            outputs: (T, dy), NaN where a value is missing; or a list of such arrays.
            inputs: (T, dc) known inputs, the row that acts on the way to the same row of
                `outputs`; or a list of such arrays.
            seed: not used; nothing here is random.
            progress: show a progress bar, or call this function after every iteration.
        """
        clock = CompileClock()
        ys, cs = training_data(outputs, inputs)
        if self.state_dim == search.AUTO:
            order = search.enough_states(search.standardised(ys, cs)).state_dim
            fitted = replace(self, state_dim=order).fit(outputs, inputs, seed=seed, progress=progress)
            fitted.history.compile_seconds = clock.seconds
            return fitted
        self._check_size(ys, cs)
        dx, dy = self.state_dim, ys[0].shape[1]
        shift, scale = moments(ys)
        hidden = dx - dy  # has no unit
        scaling = Scaling(
            np.pad(shift, (0, hidden)), np.pad(scale, (0, hidden), constant_values=1.0), shift, scale, *moments(cs)
        )
        standard = [scaling.standardise_outputs(y) for y in ys], [scaling.standardise_inputs(c) for c in cs]
        with watcher(progress, self.name) as watch:
            begun = [_maximise(first, ys, cs, scaling, _FIRST_STEPS, None) for first in _starts(*standard, dx)]
            first, _ = max(begun, key=lambda course: course[1].best)
            best, history = _maximise(first, ys, cs, scaling, self.max_steps, watch)
        prior = Gaussian(jnp.zeros(dx), jnp.eye(dx))
        posterior = LinearPosterior(
            system=jax.jit(_Parameters.system)(best),
            input_weight=np.asarray(best.input_weight),
            bias=np.asarray(best.bias),
            prior=prior,
            scaling=scaling,
            history=history,
            method=self.name,
            final=prior,
            fixed=("initial_state.prior_mean", "emission.weight", "emission.bias"),
        )
        posterior = posterior.learned_from(ys, cs)
        history.compile_seconds = clock.seconds
        return posterior

    def _check_size(self, ys: list[NDArray], cs: list[NDArray]) -> None:
        dx, dy, dc = self.state_dim, ys[0].shape[1], cs[0].shape[1]
        if dx < dy:
            raise InvalidInput(f"state_dim: got {dx} for {dy} outputs; expected at least {dy}.")
        # Of A and Q only this much can be identified: the system is as rich as its innovations form.
        parameters = dx * (2 * dy + dc) + dy + dy * (dy + 1) // 2
        seen = sum(int(np.sum(~np.isnan(y))) for y in ys)
        if seen <= parameters:
            raise InvalidInput(f"outputs: {seen} number(s); expected more than {parameters} for state_dim={dx}.")


def _starts(outputs: list[NDArray], inputs: list[NDArray], state_dim: int) -> list[_Parameters]:
    """The subspace fit, which looks one step ahead, and the line whose simulation is closest to the recordings.

    Where poles lie near the unit circle the first is far from the second, and L-BFGS does not find the way.
    """
    data, dy = search.Data.of(outputs, inputs, hold_back=False), outputs[0].shape[1]
    near = subspace.identify(outputs, inputs, state_dim)
    (far,) = search.lines(data, (state_dim,))
    linear = far.fit.skeleton.linear
    simulated = [x[: len(y)] for x, y in zip(far.fit.states, outputs, strict=True)]
    seen = [np.hstack([subspace.fill(y), x[:, dy:]]) for y, x in zip(outputs, simulated, strict=True)]
    return [_start(*near, inputs, dy), _start(linear[:, :-1], linear[:, -1], seen, inputs, dy)]


def _start(
    weight: NDArray, bias: NDArray, states: list[NDArray], inputs: list[NDArray], output_dim: int
) -> _Parameters:
    """A linear model, made stable, with its residuals one step ahead shared out between the two noises."""
    dx = len(bias)
    a = search.stable(weight[:, :dx])
    weight = np.column_stack([a, weight[:, dx:]])
    residuals = np.concatenate(
        [x[1:] - np.hstack([x[:-1], c[1:]]) @ weight.T - bias for x, c in zip(states, inputs, strict=True)]
    )
    variances = np.maximum(np.mean(residuals**2, axis=0), 1e-4)
    root = np.diag(0.5 * np.log(0.5 * variances))
    matrices = (*_contraction(a), weight[:, dx:], bias, root, np.log(0.5 * variances[:output_dim]))
    return _Parameters(*map(jnp.asarray, matrices))


def _contraction(a: NDArray) -> tuple[NDArray, NDArray]:
    """K and S of a stable A: S S^T = P solves P = A P A^T + I."""
    eye = np.eye(len(a))
    cov = np.linalg.solve(np.eye(a.size) - np.kron(a, a), eye.ravel()).reshape(a.shape)
    s = np.linalg.cholesky(0.5 * (cov + cov.T))
    contracted = np.linalg.solve(s, a @ s)
    return np.linalg.solve(np.linalg.cholesky(eye - contracted.T @ contracted), contracted.T).T, s


def _maximise(
    first: _Parameters, ys: list[NDArray], cs: list[NDArray], scaling: Scaling, max_steps: int, watch: Watch | None
) -> tuple[_Parameters, History]:
    """The most probable parameters that L-BFGS evaluated, and its course."""
    longest = max(map(len, ys))
    outputs = jnp.asarray(search.stack([scaling.standardise_outputs(y) for y in ys], longest, np.nan))
    inputs = jnp.asarray(search.stack([scaling.standardise_inputs(c) for c in cs], longest, 0.0))
    size = sum(int(np.sum(~np.isnan(y))) for y in ys)
    log_volume = sum(scaling.log_volume(y) for y in ys)
    shapes = tuple(part.shape for part in first)
    started, history = time.perf_counter(), History()
    start = np.concatenate([np.ravel(part) for part in first])
    best_value, best = np.inf, start

    def anchor(flat: NDArray) -> float:
        return 0.5 * _ANCHOR * float(np.sum((flat - start) ** 2))

    def loss(flat: NDArray) -> tuple[float, NDArray]:
        nonlocal best_value, best
        value, gradient = map(np.asarray, _loss(flat, outputs, inputs, shapes=shapes))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return _REJECTED, np.zeros_like(flat)
        total = float(value) + anchor(flat)
        if total < best_value:
            best_value, best = total, flat.copy()
        return total / size, (gradient + _ANCHOR * (flat - start)) / size

    def record(_: NDArray) -> None:
        objective, terms = -best_value - log_volume, {"prior": -anchor(best)}
        terms["likelihood"] = objective - terms["prior"]
        history.step.append(len(history.step) + 1)
        history.elbo.append(objective)
        for name, term in terms.items():
            history.terms.setdefault(name, []).append(term)
        history.seconds.append(time.perf_counter() - started)
        if watch is not None:
            watch(Progress(history.step[-1], max_steps, "learning", objective, terms, history.seconds[-1], ()))

    result = minimize(
        loss, best, jac=True, method="L-BFGS-B", callback=record,
        options={"maxiter": max_steps, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-6},
    )  # fmt: skip
    history.converged, history.best = bool(result.success), -best_value - log_volume
    return _unflatten(jnp.asarray(best), shapes), history


def _unflatten(flat: Float[Array, " n"], shapes: tuple[tuple[int, ...], ...]) -> _Parameters:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return _Parameters(*(part.reshape(s) for part, s in zip(jnp.split(flat, ends[:-1]), shapes, strict=True)))


@partial(jax.jit, static_argnames="shapes")
@jax.value_and_grad
def _loss(
    flat: Float[Array, " n"],
    outputs: Float[Array, "b t dy"],
    inputs: Float[Array, "b t dc"],
    *,
    shapes: tuple[tuple[int, ...], ...],
) -> Float[Array, ""]:
    """Minus the log-likelihood of recordings that may end in missing samples. Cost O(b T dx^3)."""
    parameters = _unflatten(flat, shapes)
    system, dx = parameters.system(), parameters.bias.shape[0]
    offsets = inputs @ parameters.input_weight.T + parameters.bias
    prior = Gaussian(jnp.zeros(dx), jnp.eye(dx))
    trace = jax.vmap(lambda y, offset: kalman.filter(system, prior, y, offset))(outputs, offsets)
    return -jnp.sum(trace.log_likelihood)
