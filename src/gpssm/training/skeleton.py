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
_OPEN_ROWS = 96  # of the simulation, at which the open variance is looked at
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
    """An initial guess, and the prior of every parameter."""

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
        dx, m = problem.guess.whitened.shape
        loss = _loss(problem.guess, problem, y, seen, inputs)[0]
        first = SkeletonFit(problem.guess, damping, loss, jnp.zeros((*y.shape[:2], dx)), jnp.zeros((dx, m, m)))
        last, _ = jax.lax.scan(lambda at, _: (_iterate(at, problem, y, seen, inputs), None), first, None, iterations)
        return last

    return jax.vmap(one)(problems, damping)


def _iterate(at: SkeletonFit, problem: SkeletonProblem, y: Array, seen: Array, inputs: Array) -> SkeletonFit:
    """One step of Levenberg and Marquardt, with the best of a few dampings."""
    skeleton = at.skeleton
    _, (simulated, variance) = _loss(skeleton, problem, y, seen, inputs)
    dx, m = skeleton.whitened.shape
    weight = jnp.where(seen, 1.0 / variance, 0.0)
    jacobian = _sensitivities(skeleton, simulated, inputs, y.shape[2])
    rows = jacobian.reshape(-1, jacobian.shape[-1])
    error = (simulated.states[..., : y.shape[2]] - y) * weight
    gradient = error.reshape(-1) @ rows
    # The gradient is that of all samples; for its curvature some of many are enough.
    stride = -(-rows.shape[0] // _HESSIAN_ROWS)
    some = rows[::stride] * jnp.sqrt(stride * weight.reshape(-1)[::stride])[:, None]
    hessian = some.T @ some

    lower = skeleton.linear.size + skeleton.whitened.size
    if m:
        open_rows, open_jacobian = _open_sensitivities(skeleton, simulated, inputs)
        per_row = jnp.sum(weight) / (open_rows.shape[0] // dx)
        upper = lower + open_jacobian.shape[1]
        hessian = hessian.at[lower:upper, lower:upper].add(per_row * open_jacobian.T @ open_jacobian)
        gradient = gradient.at[lower:upper].add(per_row * open_jacobian.T @ open_rows)

    width = ravel_pytree(problem.width)[0]
    free = width > 0
    prior = jnp.where(free, 1.0 / jnp.where(free, width, 1.0) ** 2, 0.0)
    position, unravel = ravel_pytree(skeleton)
    # In the coordinates of a step alpha stays where it is while the kernels move.
    prior_loss = jax.grad(lambda v: _prior(_whitened_again(unravel(v), simulated.factors), problem))
    gradient = gradient + prior_loss(position)
    hessian = hessian + jnp.diag(prior)
    # In units of the curvature, so that one damping is right for all parameters.
    unit = jnp.where(free, 1.0 / jnp.sqrt(jnp.diagonal(hessian) + 1e-12), 0.0)
    scaled = hessian * unit[:, None] * unit[None, :] + jnp.diag(jnp.where(free, 0.0, 1.0))
    eye = jnp.eye(len(position))

    def attempt(damping: Array) -> tuple[Array, Skeleton]:
        step = -unit * cho_solve(cho_factor(scaled + damping * eye, lower=True), unit * gradient)
        moved = _whitened_again(unravel(position + jnp.where(jnp.isfinite(step), step, 0.0)), simulated.factors)
        return _loss(moved, problem, y, seen, inputs)[0], moved

    dampings = at.damping * jnp.asarray(_TRIALS)
    losses, moved = jax.vmap(attempt)(dampings)
    best = jnp.argmin(losses)
    better = losses[best] < at.loss
    chosen = jax.tree.map(lambda new, old: jnp.where(better, new[best], old), moved, skeleton)
    blocks = hessian[skeleton.linear.size : lower, skeleton.linear.size : lower].reshape(dx, m, dx, m)
    return SkeletonFit(
        chosen,
        jnp.clip(jnp.where(better, dampings[best], _REJECTED * at.damping), 1e-9, 1e9),
        jnp.where(better, losses[best], at.loss),
        simulated.states,
        jnp.moveaxis(jnp.diagonal(blocks, axis1=0, axis2=2), 2, 0),
    )


# --- simulation ---------------------------------------------------------------------------


class _Simulated(NamedTuple):
    states: Float[Array, "s t dx"]
    factors: Float[Array, "dx m m"]
    alpha: Float[Array, "dx m"]


def _simulate(skeleton: Skeleton, inputs: Float[Array, "s t dc"]) -> _Simulated:
    """States of every recording; kept within bounds where they explode."""
    factors = _factors(skeleton)
    alpha = _backsolve(factors, skeleton.whitened)

    def body(x: Array, c: Array) -> tuple[Array, Array]:
        s = jnp.concatenate([x, c], axis=1)
        g = jnp.sum(_kernel(skeleton, s) * alpha[:, None, :], axis=2).T
        moved = s @ skeleton.linear[:, :-1].T + skeleton.linear[:, -1] + g
        moved = jnp.clip(moved, -FURTHEST, FURTHEST)
        return moved, moved

    _, states = jax.lax.scan(body, skeleton.initial, jnp.swapaxes(inputs, 0, 1))
    return _Simulated(jnp.swapaxes(states, 0, 1), factors, alpha)


@jit
def simulate(skeleton: Skeleton, inputs: Float[Array, "s t dc"]) -> Float[Array, "s t dx"]:
    """States of recordings with these inputs."""
    return _simulate(skeleton, inputs).states


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
    skeleton: Skeleton, problem: SkeletonProblem, y: Array, seen: Array, inputs: Array
) -> tuple[Array, tuple[_Simulated, Float[Array, " dy"]]]:
    """The loss; infinite where it is not a number. And the simulation, and v."""
    simulated = _simulate(skeleton, inputs)
    error = jnp.where(seen, simulated.states[..., : y.shape[2]] - y, 0.0)
    count = jnp.sum(seen, axis=(0, 1), dtype=y.dtype)
    _, remaining = _open(skeleton, _open_at(skeleton, simulated, inputs), simulated.factors)
    variance = jnp.sum(error**2, axis=(0, 1)) / jnp.maximum(count, 1.0) + _LEAST_VARIANCE
    variance = variance + jnp.mean(jnp.sum(remaining, axis=0))
    value = 0.5 * jnp.sum(count * jnp.log(variance)) + _prior(skeleton, problem)
    return jnp.where(jnp.isfinite(value), value, jnp.inf), (simulated, variance)


def _prior(skeleton: Skeleton, problem: SkeletonProblem) -> Array:
    width = ravel_pytree(problem.width)[0]
    free = width > 0
    distance = (ravel_pytree(skeleton)[0] - ravel_pytree(problem.centre)[0]) / jnp.where(free, width, 1.0)
    return 0.5 * jnp.sum(jnp.where(free, distance, 0.0) ** 2)


def _whitened_again(moved: Skeleton, factors: Array) -> Skeleton:
    """A step moves the weights alpha = L^{-T} w at the old L, in `factors`; w is what gives them at the new one."""
    alpha = _backsolve(factors, moved.whitened)
    return moved._replace(whitened=jnp.einsum("dmn,dm->dn", _factors(moved), alpha))


def _open_at(skeleton: Skeleton, simulated: _Simulated, inputs: Array) -> Float[Array, "n d"]:
    rows = _arguments(skeleton, simulated.states, inputs).reshape(-1, skeleton.inducing_inputs.shape[1])
    count = min(_OPEN_ROWS, rows.shape[0])
    index = jnp.linspace(0, rows.shape[0] - 1, count).astype(int)
    return jax.lax.stop_gradient(rows[index])


def _open(skeleton: Skeleton, s: Array, factors: Array) -> tuple[Float[Array, "dx n m"], Float[Array, "dx n"]]:
    """k(s, Z), and the variance `k(s, s) - k(s, Z) K^{-1} k(Z, s)` that u leaves open."""
    k = _kernel(skeleton, s)
    if not k.size:
        return k, jnp.zeros(k.shape[:2])
    half = _solve(factors, jnp.swapaxes(k, 1, 2))
    total = (1.0 + _JITTER) * jnp.exp(2.0 * skeleton.log_scale)[:, None]
    return k, jnp.maximum(total - jnp.sum(half**2, axis=1), 1e-12)


# --- sensitivities ------------------------------------------------------------------------


def _sensitivities(skeleton: Skeleton, simulated: _Simulated, inputs: Array, dy: int) -> Float[Array, "s t dy p"]:
    """d x_t / d parameters of the first `dy` states; w moves alpha at the present L, kernels move at a fixed alpha."""
    (s, t, dx), m = simulated.states.shape, skeleton.whitened.shape[1]
    rows = _arguments(skeleton, simulated.states, inputs)
    d = rows.shape[2]
    flat, z, precision = rows.reshape(s * t, d), skeleton.inducing_inputs, jnp.exp(-2.0 * skeleton.log_lengthscale)
    k = _kernel(skeleton, flat)
    weighted = k * simulated.alpha[:, None, :]  # (dx, n, m)
    difference = flat[:, None, :] - z[None]  # (n, m, d)
    total = jnp.sum(weighted, axis=2)
    first = (flat[None] * total[:, :, None] - weighted @ z) * precision[:, None, :]
    second = flat[None] ** 2 * total[:, :, None] - 2.0 * flat[None] * (weighted @ z) + weighted @ (z * z)
    by_argument = jnp.swapaxes(skeleton.linear[:, None, :-1] - first, 0, 1)  # (n, dx, d)

    def own(block: Float[Array, "dx n q"]) -> Float[Array, "n dx p"]:
        """A parameter of one GP moves one state."""
        spread = jnp.eye(dx)[None, :, :, None] * jnp.swapaxes(block, 0, 1)[:, :, None, :]
        return spread.reshape(s * t, dx, -1)

    ones = jnp.ones((s * t, 1))
    by_linear = own(jnp.broadcast_to(jnp.concatenate([flat, ones], axis=1), (dx, s * t, d + 1)))
    by_whitened = own(jnp.swapaxes(_solve(simulated.factors, jnp.swapaxes(k, 1, 2)), 1, 2))
    by_inducing = jnp.swapaxes(weighted, 0, 1)[..., None] * difference[:, None] * precision[None, :, None, :]
    by_lengthscale = own(second * precision[:, None, :])
    by_scale = own(2.0 * total[:, :, None])
    parts = [by_linear, by_whitened, by_inducing.reshape(s * t, dx, m * d), by_lengthscale, by_scale]
    forcing = jnp.concatenate([*parts, jnp.zeros((s * t, dx, dx))], axis=2).reshape(s, t, dx, -1)
    moving = by_argument[..., :dx].reshape(s, t, dx, dx)
    count = forcing.shape[3]
    first_row = jnp.zeros((s, dx, count)).at[:, :, count - dx :].set(jnp.eye(dx))

    def body(sensitivity: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        by_state, by_parameter = now
        # Of a simulation that explodes: large, but a number.
        sensitivity = jnp.clip(by_state @ sensitivity + by_parameter, -1e12, 1e12)
        return sensitivity, sensitivity[:, :dy]

    by_time = (jnp.swapaxes(moving, 0, 1), jnp.swapaxes(forcing, 0, 1))
    found = jnp.swapaxes(jax.lax.scan(body, first_row, by_time)[1], 0, 1)  # (s, t, dy, count)
    # Every recording has its own initial state.
    of_initial = jnp.eye(s)[:, None, None, :, None] * found[..., None, count - dx :]
    return jnp.concatenate([found[..., : count - dx], of_initial.reshape(s, t, dy, s * dx)], axis=3)


def _open_sensitivities(
    skeleton: Skeleton, simulated: _Simulated, inputs: Array
) -> tuple[Float[Array, " r"], Float[Array, "r q"]]:
    """The root of the open variance at some rows, and its derivative by Z, length scales and scales.

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
    root = jnp.sqrt(remaining)
    dx, n = root.shape
    eye = jnp.eye(dx)
    blocks = [
        (0.5 * by_z / root[..., None, None]).reshape(dx * n, -1),
        (eye[:, None, :, None] * (0.5 * by_lengthscale / root[..., None])[:, :, None, :]).reshape(dx * n, -1),
        (eye[:, None, :] * root[:, :, None]).reshape(dx * n, -1),
    ]
    return root.reshape(-1), jnp.concatenate(blocks, axis=1)
