"""The skeleton of a GP state-space model: the model without noise, fitted to the error of its simulation.

    x_t = A x_{t-1} + B c_t + b + g([x_{t-1}, c_t]),   g_i(s) = k_i(s, Z) L_i^{-T} w_i,   L_i L_i^T = k_i(Z, Z)
    y_t = the first states

One simulation of every recording from an initial state that is learned, too; no ensemble, no random
numbers. It finds the nonlinearity that a noisy bound, started from nothing, does not. What is
minimised is

    1/2 sum_j n_j log v_j + 1/2 |w|^2 + (priors on the rest),    v_j = mean_t (y_tj - x_tj)^2 + open

where `open` is the variance that u leaves open, summed over the states and averaged along the
simulation: without it (Titsias' penalty) the length scales shrink until the GP, as a GP, would be all
noise at its own simulation, and nothing of the skeleton survives in what is learned from it.

This is least squares, so it is solved as such, by Levenberg and Marquardt: the sensitivities of the
states to all parameters obey the linear recursion S_t = F_x S_{t-1} + F_theta, one pass forwards; a
few dozen iterations, each O(T P^2) for P parameters, do what takes a quasi-Newton method thousands of
gradients. Several guesses run side by side. One that explodes is worth nothing and is never NaN.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jaxtyping import Array, Float

from gpssm.numerics.parameters import Leaf
from gpssm.plumbing.compilation import jit

_JITTER = 1e-6
FURTHEST = 1e3
"""Standard deviations: where a simulation has exploded."""
_OPEN_ROWS = 96  # of the simulation at most, or one of every recording, at which the open variance is looked at
_HESSIAN_ROWS = 1200  # at most
_TRIALS = (0.1, 1.0, 10.0)  # factors on the damping that are tried in every iteration
_REJECTED = 30.0  # factor where none of them has helped
_LEAST_VARIANCE = 1e-8  # of the residuals, standardised: a perfect fit has a logarithm, too


class Skeleton(NamedTuple):
    """What is learned, in standardised units, for s recordings. All GPs share their inducing inputs; a linear model has
    none of these.
    """

    linear: Leaf  # (dx, f)
    """[A, B, b]."""
    whitened: Leaf  # (dx, m)
    """w."""
    inducing_inputs: Leaf  # (m, d)
    log_lengthscale: Leaf  # (dx, d)
    log_scale: Leaf  # (dx)
    """Logarithm of the GPs' standard deviations."""
    initial: Leaf  # (s, dx)
    """States one step before the first samples."""


class SkeletonProblem(NamedTuple):
    """An initial guess, and the prior of every parameter; that of w is standard normal."""

    guess: Skeleton
    centre: Skeleton
    width: Skeleton
    """Standard deviations; zero holds a parameter at its guess."""


class SkeletonFit(NamedTuple):
    """A skeleton after some iterations."""

    skeleton: Skeleton
    damping: Leaf  # ()
    loss: Leaf  # ()
    states: Leaf  # (s, t, dx)
    """The simulation, also where outputs are missing."""
    precision: Leaf  # (dx, m, m)
    """Curvature of the loss in w of every GP: the precision of q(u) that it implies."""


@partial(jit, static_argnames=("iterations",))
def fit(
    problems: SkeletonProblem,
    damping: Float[Array, " k"],
    outputs: Float[Array, "s t dy"],
    inputs: Float[Array, "s t dc"],
    *,
    iterations: int,
) -> SkeletonFit:
    """`iterations` steps for every one of k problems (leading axis of all leaves); NaN outputs are missing.

    To go on, call it again with the last skeletons as guesses.
    """
    seen = ~jnp.isnan(outputs)
    y = jnp.where(seen, outputs, 0.0)

    def one(problem: SkeletonProblem, damping: Array) -> SkeletonFit:
        centre = problem.centre._replace(whitened=jnp.zeros_like(problem.guess.whitened))
        problem = problem._replace(centre=centre)
        nothing = _Simulated(jnp.zeros((*y.shape[:2], len(problem.guess.linear))), _factors(problem.guess))
        alpha = _backsolve(nothing.factors, problem.guess.whitened)
        # One program looks at whatever is tried: of the guess, which is all there is at first, as many copies.
        dampings = jnp.full(len(_TRIALS), damping)
        trials = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(_TRIALS)), (problem.guess, alpha))
        first = _State(
            problem.guess, alpha, nothing, jnp.ones(y.shape[2]), jnp.full((), jnp.inf), damping, nothing.factors,
            trials, dampings,
        )  # fmt: skip
        last, _ = jax.lax.scan(
            lambda at, _: (_iterate(at, problem, y, seen, inputs), None), first, None, iterations + 1
        )
        return SkeletonFit(last.skeleton, last.damping, last.loss, last.simulated.states, last.precision)

    return jax.vmap(one)(problems, damping)


class _State(NamedTuple):
    """The best so far, and what is tried next."""

    skeleton: Skeleton
    alpha: Float[Array, "dx m"]
    """L^{-T} w."""
    simulated: "_Simulated"
    variance: Float[Array, " dy"]
    loss: Float[Array, ""]
    damping: Float[Array, ""]
    precision: Float[Array, "dx m m"]
    trials: tuple[Skeleton, Float[Array, "n dx m"]]
    """A step keeps alpha while the kernels move; its w is found with the new L."""
    dampings: Float[Array, " n"]


def _iterate(at: _State, problem: SkeletonProblem, y: Array, seen: Array, inputs: Array) -> _State:
    """Take the best of what is tried, if it is better; then a step of Levenberg and Marquardt with a few dampings."""
    losses, tried = jax.vmap(lambda skeleton, alpha: _loss(skeleton, alpha, problem, y, seen, inputs))(*at.trials)
    best = jnp.argmin(losses)
    better = losses[best] < at.loss
    new = (*tried, at.trials[1], losses, at.dampings)
    old = (at.skeleton, at.simulated, at.variance, at.alpha, at.loss, _REJECTED * at.damping)
    chosen = jax.tree.map(lambda new, old: jnp.where(better, new[best], old), new, old)
    skeleton, simulated, variance, alpha, loss, damping = chosen
    damping = jnp.clip(damping, 1e-9, 1e9)

    dx, m = skeleton.whitened.shape
    weight = jnp.where(seen, 1.0 / variance, 0.0)
    jacobian, at_rows = _sensitivities(skeleton, alpha, simulated, inputs, y.shape[2])
    rows = jacobian.reshape(-1, jacobian.shape[-1])
    error = (simulated.states[..., : y.shape[2]] - y) * weight
    gradient = error.reshape(-1) @ rows
    # The gradient is that of all samples; for its curvature some of many are enough.
    stride = -(-rows.shape[0] // _HESSIAN_ROWS)
    some = rows[::stride] * jnp.sqrt(stride * weight.reshape(-1)[::stride])[:, None]
    hessian = some.T @ some

    before = skeleton.linear.size
    lower = before + skeleton.whitened.size
    if m:
        root, by_kernels, by_state = _open_sensitivities(skeleton, simulated, inputs)
        around = (lower, len(gradient) - lower - by_kernels.shape[2])
        along = jnp.einsum("inj,njp->inp", by_state, at_rows)  # a skeleton that moves also moves what it is looked at
        open_rows = (jnp.pad(by_kernels, ((0, 0), (0, 0), around)) + along).reshape(-1, len(gradient))
        per_row = jnp.sum(weight) / root.shape[1]
        hessian = hessian + per_row * open_rows.T @ open_rows
        gradient = gradient + per_row * root.reshape(-1) @ open_rows

    width = ravel_pytree(problem.width)[0]
    free = width > 0
    prior = jnp.where(free, 1.0 / jnp.where(free, width, 1.0) ** 2, 0.0)
    position, unravel = ravel_pytree(skeleton)
    gradient = gradient + prior * (position - ravel_pytree(problem.centre)[0])
    if m:
        moves = free & jnp.any(problem.width.whitened > 0)
        gradient = gradient + jnp.where(moves, ravel_pytree(_prior_by_kernels(skeleton, alpha))[0], 0.0)
    hessian = hessian + jnp.diag(prior)
    # In units of the curvature, so that one damping is right for all parameters.
    unit = jnp.where(free, 1.0 / jnp.sqrt(jnp.diagonal(hessian) + 1e-12), 0.0)
    scaled = hessian * unit[:, None] * unit[None, :] + jnp.diag(jnp.where(free, 0.0, 1.0))
    eye = jnp.eye(len(position))

    def attempt(damping: Array) -> tuple[Skeleton, Array]:
        step = -unit * cho_solve(cho_factor(scaled + damping * eye, lower=True), unit * gradient)
        moved = unravel(position + jnp.where(jnp.isfinite(step), step, 0.0))
        return moved, _backsolve(simulated.factors, moved.whitened)

    dampings = damping * jnp.asarray(_TRIALS)
    blocks = hessian[before:lower, before:lower].reshape(dx, m, dx, m)
    precision = jnp.einsum("imin->imn", blocks)
    return _State(skeleton, alpha, simulated, variance, loss, damping, precision, jax.vmap(attempt)(dampings), dampings)


# --- simulation ---------------------------------------------------------------------------


class _Simulated(NamedTuple):
    states: Float[Array, "s t dx"]
    factors: Float[Array, "dx m m"]
    """L."""


def _simulate(
    skeleton: Skeleton, alpha: Float[Array, "dx m"], inputs: Float[Array, "s t dc"]
) -> Float[Array, "s t dx"]:
    """States of every recording; kept within bounds where they explode."""

    def body(x: Array, c: Array) -> tuple[Array, Array]:
        s = jnp.concatenate([x, c], axis=1)
        g = jnp.sum(_kernel(skeleton, s) * alpha[:, None, :], axis=2).T
        moved = s @ skeleton.linear[:, :-1].T + skeleton.linear[:, -1] + g
        moved = jnp.clip(moved, -FURTHEST, FURTHEST)
        return moved, moved

    _, states = jax.lax.scan(body, skeleton.initial, jnp.swapaxes(inputs, 0, 1))
    return jnp.swapaxes(states, 0, 1)


@jit
def simulate(skeleton: Skeleton, inputs: Float[Array, "s t dc"]) -> Float[Array, "s t dx"]:
    """States of recordings with these inputs."""
    return _simulate(skeleton, _backsolve(_factors(skeleton), skeleton.whitened), inputs)


def _arguments(skeleton: Skeleton, states: Array, inputs: Array) -> Float[Array, "s t d"]:
    """What f was evaluated at on the way to every state."""
    before = jnp.concatenate([skeleton.initial[:, None], states[:, :-1]], axis=1)
    return jnp.concatenate([before, inputs], axis=2)


def _kernel(skeleton: Skeleton, s: Float[Array, "n d"]) -> Float[Array, "dx n m"]:
    precision, z = jnp.exp(-2.0 * skeleton.log_lengthscale), skeleton.inducing_inputs
    cross = (s[None] * precision[:, None]) @ z.T
    square, own = precision @ (s * s).T, precision @ (z * z).T
    exponent = cross - 0.5 * (square[:, :, None] + own[:, None, :]) + 2.0 * skeleton.log_scale[:, None, None]
    return jnp.exp(exponent)


def _factors(skeleton: Skeleton) -> Float[Array, "dx m m"]:
    if not skeleton.whitened.size:  # a linear model
        return jnp.zeros((*skeleton.whitened.shape, 0))
    gram = _kernel(skeleton, skeleton.inducing_inputs)
    jitter = _JITTER * jnp.exp(2.0 * skeleton.log_scale)[:, None, None]
    return jnp.linalg.cholesky(gram + jitter * jnp.eye(gram.shape[1]))


def _solve(factors: Array, b: Float[Array, "dx m n"]) -> Float[Array, "dx m n"]:
    return jax.vmap(lambda chol, b: solve_triangular(chol, b, lower=True))(factors, b) if b.size else b


def _backsolve(factors: Array, w: Float[Array, "dx m *n"]) -> Float[Array, "dx m *n"]:
    return jax.vmap(lambda chol, b: solve_triangular(chol, b, lower=True, trans=1))(factors, w) if w.size else w


# --- loss ---------------------------------------------------------------------------------


def _loss(
    skeleton: Skeleton, alpha: Array, problem: SkeletonProblem, y: Array, seen: Array, inputs: Array
) -> tuple[Array, tuple[Skeleton, _Simulated, Float[Array, " dy"]]]:
    """The loss; infinite where it is not a number. And the skeleton with the w of `alpha`, its simulation, and v."""
    factors = _factors(skeleton)
    skeleton = skeleton._replace(whitened=jnp.einsum("dmn,dm->dn", factors, alpha))
    simulated = _Simulated(_simulate(skeleton, alpha, inputs), factors)
    error = jnp.where(seen, simulated.states[..., : y.shape[2]] - y, 0.0)
    count = jnp.sum(seen, axis=(0, 1), dtype=y.dtype)
    _, remaining = _open(skeleton, _open_at(skeleton, simulated, inputs), factors)
    variance = jnp.sum(error**2, axis=(0, 1)) / jnp.maximum(count, 1.0) + _LEAST_VARIANCE
    variance = variance + jnp.mean(jnp.sum(remaining, axis=0))
    value = 0.5 * jnp.sum(count * jnp.log(variance)) + _prior(skeleton, problem)
    return jnp.where(jnp.isfinite(value), value, jnp.inf), (skeleton, simulated, variance)


def _prior(skeleton: Skeleton, problem: SkeletonProblem) -> Array:
    width = ravel_pytree(problem.width)[0]
    free = width > 0
    distance = (ravel_pytree(skeleton)[0] - ravel_pytree(problem.centre)[0]) / jnp.where(free, width, 1.0)
    return 0.5 * jnp.sum(jnp.where(free, distance, 0.0) ** 2)


def _prior_by_kernels(skeleton: Skeleton, alpha: Float[Array, "dx m"]) -> Skeleton:
    """Derivative of 1/2 |w|^2 = 1/2 alpha^T K alpha by what K depends on, at a fixed alpha."""
    z, precision = skeleton.inducing_inputs, jnp.exp(-2.0 * skeleton.log_lengthscale)
    pairs = alpha[:, :, None] * alpha[:, None, :] * _kernel(skeleton, z)  # (dx, m, m)
    total = jnp.sum(pairs, axis=2)
    return jax.tree.map(jnp.zeros_like, skeleton)._replace(
        inducing_inputs=jnp.sum((pairs @ z - total[..., None] * z) * precision[:, None], axis=0),
        log_lengthscale=(total @ z**2 - jnp.einsum("dmn,mj,nj->dj", pairs, z, z)) * precision,
        log_scale=jnp.sum(skeleton.whitened**2, axis=1),
    )


def _open_at(skeleton: Skeleton, simulated: _Simulated, inputs: Array) -> Float[Array, "n d"]:
    """What f was evaluated at, now and then on the way."""
    rows = _arguments(skeleton, simulated.states, inputs)
    return rows[:, :: rows.shape[1] // _stretches(*rows.shape[:2])].reshape(-1, rows.shape[2])


def _stretches(recordings: int, length: int) -> int:
    """How many equally long ones of every recording there are between rows at which the open variance is looked at."""
    return next(n for n in range(max(1, _OPEN_ROWS // recordings), 0, -1) if length % n == 0)


def _open(skeleton: Skeleton, s: Array, factors: Array) -> tuple[Float[Array, "dx n m"], Float[Array, "dx n"]]:
    """k(s, Z), and the variance `k(s, s) - k(s, Z) K^{-1} k(Z, s)` that u leaves open."""
    k = _kernel(skeleton, s)
    if not k.size:
        return k, jnp.zeros(k.shape[:2])
    half = _solve(factors, jnp.swapaxes(k, 1, 2))
    total = (1.0 + _JITTER) * jnp.exp(2.0 * skeleton.log_scale)[:, None]
    return k, jnp.maximum(total - jnp.sum(half**2, axis=1), 1e-12)


# --- sensitivities ------------------------------------------------------------------------


def _sensitivities(
    skeleton: Skeleton, alpha: Array, simulated: _Simulated, inputs: Array, dy: int
) -> tuple[Float[Array, "s t dy p"], Float[Array, "n dx p"]]:
    """d x_t / d parameters of the first `dy` states, and of all states that `_open_at` has.

    w moves alpha at the present L, kernels move at a fixed alpha.
    """
    s, t, dx = simulated.states.shape
    arguments = jnp.swapaxes(_arguments(skeleton, simulated.states, inputs), 0, 1)
    count = skeleton.linear.size + skeleton.whitened.size + skeleton.inducing_inputs.size
    count += skeleton.log_lengthscale.size + skeleton.log_scale.size + dx
    first_row = jnp.broadcast_to(jnp.eye(dx, count, count - dx), (s, dx, count))

    def body(sensitivity: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        by_state, by_parameter = now
        # Of a simulation that explodes: large, but a number.
        sensitivity = jnp.clip(by_state @ sensitivity + by_parameter, -1e12, 1e12)
        return sensitivity, sensitivity[:, :dy]

    def stretch(sensitivity: Array, rows: Float[Array, "n s d"]) -> tuple[Array, tuple[Array, Array]]:
        """Derivatives of single steps by all parameters are a hundred times as large as what is kept of them."""
        by_state, by_parameter = _derivatives(skeleton, alpha, simulated.factors, rows.reshape(-1, rows.shape[2]))
        single = by_state.reshape(-1, s, dx, dx), by_parameter.reshape(-1, s, dx, count)
        last, outputs = jax.lax.scan(body, sensitivity, single)
        return last, (sensitivity, outputs)

    stretches = _stretches(s, t)
    rows, found = jax.lax.scan(stretch, first_row, arguments.reshape(stretches, -1, *arguments.shape[1:]))[1]

    def of_all(found: Float[Array, "n s k q"]) -> Float[Array, "s n k p"]:
        """Every recording has its own initial state."""
        found = jnp.swapaxes(found, 0, 1)
        initial = jnp.eye(s)[:, None, None, :, None] * found[..., None, count - dx :]
        return jnp.concatenate([found[..., : count - dx], initial.reshape(*found.shape[:3], s * dx)], axis=3)

    return of_all(found.reshape(t, s, dy, count)), of_all(rows).reshape(s * stretches, dx, -1)


def _derivatives(
    skeleton: Skeleton, alpha: Array, factors: Array, at: Float[Array, "n d"]
) -> tuple[Float[Array, "n dx dx"], Float[Array, "n dx p"]]:
    """Of f by the states and by all parameters; the initial states, the last ones, move nothing by themselves."""
    z, precision = skeleton.inducing_inputs, jnp.exp(-2.0 * skeleton.log_lengthscale)
    (dx, m), (n, d) = skeleton.whitened.shape, at.shape
    k = _kernel(skeleton, at)
    weighted = k * alpha[:, None, :]  # (dx, n, m)
    difference = at[:, None, :] - z[None]  # (n, m, d)
    total = jnp.sum(weighted, axis=2)
    first = (at[None] * total[:, :, None] - weighted @ z) * precision[:, None, :]
    second = at[None] ** 2 * total[:, :, None] - 2.0 * at[None] * (weighted @ z) + weighted @ (z * z)
    by_argument = jnp.swapaxes(skeleton.linear[:, None, :-1] - first, 0, 1)  # (n, dx, d)

    def own(block: Float[Array, "dx n q"]) -> Float[Array, "n dx p"]:
        """A parameter of one GP moves one state."""
        spread = jnp.eye(dx)[None, :, :, None] * jnp.swapaxes(block, 0, 1)[:, :, None, :]
        return spread.reshape(n, dx, -1)

    by_linear = own(jnp.broadcast_to(jnp.concatenate([at, jnp.ones((n, 1))], axis=1), (dx, n, d + 1)))
    by_whitened = own(jnp.swapaxes(_solve(factors, jnp.swapaxes(k, 1, 2)), 1, 2))
    by_inducing = jnp.swapaxes(weighted, 0, 1)[..., None] * difference[:, None] * precision[None, :, None, :]
    by_lengthscale = own(second * precision[:, None, :])
    by_scale = own(2.0 * total[:, :, None])
    parts = [by_linear, by_whitened, by_inducing.reshape(n, dx, m * d), by_lengthscale, by_scale]
    return by_argument[..., :dx], jnp.concatenate([*parts, jnp.zeros((n, dx, dx))], axis=2)


def _open_sensitivities(
    skeleton: Skeleton, simulated: _Simulated, inputs: Array
) -> tuple[Float[Array, "dx n"], Float[Array, "dx n q"], Float[Array, "dx n dx"]]:
    """The root of the open variance at some rows, its derivative by Z, length scales and scales, and by the states.

    With beta = K^{-1} k: d open = -2 beta^T dk + beta^T dK beta, and 2 open for the logarithm of the scale.
    """
    s = _open_at(skeleton, simulated, inputs)
    k, remaining = _open(skeleton, s, simulated.factors)
    z, precision = skeleton.inducing_inputs, jnp.exp(-2.0 * skeleton.log_lengthscale)
    gram = _kernel(skeleton, z)
    half = _solve(simulated.factors, jnp.swapaxes(k, 1, 2))
    beta = jnp.swapaxes(_backsolve(simulated.factors, half), 1, 2)  # (dx, n, m)
    mixed = beta @ gram
    mixed_z = jnp.einsum("dnk,dkm,kj->dnmj", beta, gram, z)
    pull = mixed_z - mixed[..., None] * z - k[..., None] * (s[None, :, None] - z)
    by_z = 2.0 * beta[..., None] * pull * precision[:, None, None, :]
    far = jnp.einsum("dnm,nmj->dnj", beta * k, (s[:, None] - z[None]) ** 2)
    apart = 2.0 * ((beta * mixed) @ (z * z) - jnp.einsum("dnm,dnmj,mj->dnj", beta, mixed_z, z))
    by_lengthscale = (apart - 2.0 * far) * precision[:, None, :]
    by_state = 2.0 * (s * jnp.sum(beta * k, axis=2)[..., None] - (beta * k) @ z) * precision[:, None, :]
    root = jnp.sqrt(remaining)
    dx, n = root.shape
    eye = jnp.eye(dx)[:, None, :, None]
    by_kernels = [
        (0.5 * by_z / root[..., None, None]).reshape(dx, n, -1),
        (eye * (0.5 * by_lengthscale / root[..., None])[:, :, None, :]).reshape(dx, n, -1),
        (eye * root[:, :, None, None]).reshape(dx, n, -1),
    ]
    return root, jnp.concatenate(by_kernels, axis=2), 0.5 * by_state[..., :dx] / root[..., None]
