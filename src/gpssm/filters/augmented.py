"""The augmented state: one Gaussian over the state and the weights of f, moved and conditioned a sample at a time.

    x_t = x_{t-1} + W h(s_t) + r_t + v_t,   s_t = [x_{t-1}, c_t],   v_t ~ N(0, Q)          (`gp.basis`)

W may have fewer rows than there are states: then the further states are the past of the first ones,
x_t[d] = x_{t-1}[d - rows], without noise.

Given x everything is linear and Gaussian in W, so that an ensemble is needed for the few numbers of x
only and W is integrated out exactly. The posterior after one sample is the prior of the next: q(u) is
updated in closed form, and the prior counts once however long the stream is.

Pure functions of arrays, in the user's units; nothing here depends on them.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from gpssm.filters.ensemble import with_inputs
from gpssm.gp.basis import Expansion, Joining
from gpssm.models.emission import Emission
from gpssm.numerics.linalg import cholesky, solve_lower, solve_lower_transposed
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance

_ANYWHERE = 2.0  # standard deviations of all states so far, as that of a state of which nothing is known
_FARTHEST = 100.0  # times that, which no prediction goes


@saved
class AugmentedState(NamedTuple):
    """`N(mean, cov)` of [x, W row by row]; F = M + d + 1 weights in a row, k rows."""

    mean: Float[Array, " dx+k*(m+d+1)"]
    cov: Covariance[Float[Array, "dx+k*(m+d+1) dx+k*(m+d+1)"]]


class Predicted(NamedTuple):
    """Moments of x_t before y_t is seen, and its covariance with W."""

    mean: Float[Array, " dx"]
    cov: Float[Array, "dx dx"]
    cross: Float[Array, "dx w"]
    slope: Float[Array, "dx dx"]
    """d x_t / d x_{t-1}, by regression over the members."""
    open_share: Float[Array, ""]
    """Share of the kernel's variance that u leaves open, averaged over the members."""


class Seen(NamedTuple):
    """What y_t says about x_t: `y = expected + C (x - mean) + noise`, a missing channel with precision zero."""

    expected: Float[Array, " dy"]
    matrix: Float[Array, "dy dx"]
    residual: Float[Array, " dy"]
    variance: Float[Array, " dy"]
    precision: Float[Array, " dy"]


class Innovation(NamedTuple):
    """Everything the update needs, in dx dimensions however many channels there are."""

    keep: Float[Array, "dx dx"]  # (I + P C^T R^{-1} C)^{-1}: what the sample leaves of the prediction
    cov: Float[Array, "dx dx"]  # of x_t, given y_t
    pull: Float[Array, " dx"]  # C^T S^{-1} (y - expected)
    curvature: Float[Array, "dx dx"]  # C^T S^{-1} C
    weighted: Float[Array, " dy"]  # S^{-1} (y - expected)
    distance: Float[Array, ""]  # (y - expected)^T S^{-1} (y - expected)
    log_density: Float[Array, ""]


def members(count: int, state_dim: int) -> Float[np.ndarray, "n dx"]:
    """Fixed points whose mean is 0 and whose covariance is I, exactly.

    Then [x_t, W] has the covariance of a genuine mixture, which stays positive. Quasi-random, and
    the same at every step: no random numbers in the hot loop. More than `count` where so few cannot
    span all states: they come in pairs of opposite sign.
    """
    count = max(count, 2 * state_dim + 2)
    from scipy.stats import norm, qmc  # takes a second, which reading a saved model should not

    half = norm.ppf(qmc.Sobol(state_dim, rng=0).random(1 << count.bit_length())[: count // 2] * 0.998 + 0.001)
    points = np.concatenate([half, -half])
    return np.asarray(points @ np.linalg.inv(np.linalg.cholesky(points.T @ points / len(points))).T)


def state_factor(state: AugmentedState, state_dim: int) -> Float[Array, "dx dx"]:
    """Cholesky factor of the state's covariance; the floor keeps it real where the state is known."""
    cov = state.cov[:state_dim, :state_dim]
    variance = jnp.diagonal(cov)
    return cholesky(cov + jnp.diag(1e-9 * variance + 1e-12 * jnp.max(variance) + 1e-300))


def with_past(new: Float[Array, "n k"], x: Float[Array, "n dx"]) -> Float[Array, "n dx"]:
    """The next states: those that are learned, then the past of the first ones."""
    return jnp.concatenate([new, x[:, : x.shape[1] - new.shape[1]]], axis=1)


def predict(
    state: AugmentedState,
    factor: Float[Array, "dx dx"],
    f: Expansion,
    process_noise: Float[Array, " k"],
    c: Float[Array, " dc"],
    points: Float[Array, "n dx"],
) -> Predicted:
    """Move x one step. Cost O(N M^2 + (dx M)^2).

    With x^i = m + L p_i and W | x^i ~ N(W + B p_i, S), B = cov(W, x) L^{-T}, S = cov(W) - B B^T:
    moments of x^i + h_i^T (W + B p_i) over the members, plus what S, r and v add.

    Args:
        state: of x_{t-1} and W.
        factor: Cholesky factor L of the covariance of x_{t-1}.
        process_noise: variances of v.
        points: of `members`.
    """
    (count, dx), rows = points.shape, len(f.amplitude)
    x = state.mean[:dx] + points @ factor.T
    h, open_share = f.features(with_inputs(x, c))
    width = h.shape[1]
    weights = state.mean[dx:].reshape(rows, width)
    b = solve_lower(factor, state.cov[:dx, dx:]).T
    rest = (state.cov[dx:, dx:] - b @ b.T).reshape(rows, width, rows, width)
    tilt = jnp.einsum("nf,dfj,nj->nd", h, b.reshape(rows, width, dx), points)
    moved = with_past(x[:, :rows] + h @ weights.T + tilt, x)
    mean = jnp.mean(moved, axis=0)
    anomalies = moved - mean
    second, first = h.T @ h / count, jnp.mean(h, axis=0)
    unknown = jnp.sum(rest * second[None, :, None, :], axis=(1, 3))
    share = jnp.mean(open_share)
    added = unknown + jnp.diag(f.amplitude * share + process_noise)
    cov = anomalies.T @ anomalies / count + jnp.pad(added, (0, dx - rows))
    slope = anomalies.T @ points / count
    learned = jnp.tensordot(first, rest, (0, 1)).reshape(rows, rows * width)
    cross = jnp.pad(learned, ((0, dx - rows), (0, 0))) + slope @ b.T
    # slope is in units of the standardised members: x = m + L p.
    return Predicted(mean, 0.5 * (cov + cov.T), cross, solve_lower_transposed(factor, slope.T).T, share)


def observe(
    emission: Emission,
    predicted: Predicted,
    y: Float[Array, " dy"],
    obs_noise: Float[Array, " dy"],
    points: Float[Array, "n dx"],
) -> Seen:
    """What `y` says, exactly for a linear g; by regression over the members otherwise, the rest counted as noise."""
    mask = ~jnp.isnan(y)
    if emission.matrix is not None:
        expected, matrix, extra = emission(predicted.mean[None])[0], emission.matrix, jnp.zeros_like(obs_noise)
    else:
        factor = cholesky(predicted.cov)
        images = emission(predicted.mean + points @ factor.T)
        expected = jnp.mean(images, axis=0)
        slope = (images - expected).T @ points / len(points)
        extra = jnp.mean((images - expected - points @ slope.T) ** 2, axis=0)
        matrix = solve_lower_transposed(factor, slope.T).T
    variance = obs_noise + extra
    residual = jnp.where(mask, jnp.where(mask, y, 0.0) - expected, 0.0)
    return Seen(expected, matrix, residual, variance, jnp.where(mask, 1.0 / variance, 0.0))


def innovate(predicted: Predicted, seen: Seen) -> Innovation:
    """Cost O(dx^2 dy + dx^3). Written so that nothing cancels where the noise is a tiny part of the prediction."""
    matrix, precision = seen.matrix, seen.precision
    information = (matrix.T * precision) @ matrix
    score = matrix.T @ (precision * seen.residual)
    gain = jnp.eye(len(score), dtype=score.dtype) + predicted.cov @ information  # its determinant is |S| / |R|
    keep = jnp.linalg.inv(gain)
    cov = keep @ predicted.cov
    cov = 0.5 * (cov + cov.T)
    curvature = information @ keep
    distance = jnp.sum(precision * seen.residual**2) - score @ cov @ score
    constants = jnp.sum(jnp.where(precision > 0, jnp.log(2 * jnp.pi * seen.variance), 0.0))
    return Innovation(
        keep,
        cov,
        keep.T @ score,
        0.5 * (curvature + curvature.T),
        precision * (seen.residual - matrix @ (cov @ score)),
        distance,
        -0.5 * (distance + jnp.linalg.slogdet(gain)[1] + constants),
    )


def update(state: AugmentedState, predicted: Predicted, innovation: Innovation) -> AugmentedState:
    """Condition x_t and W on y_t: a correction of rank dx. Cost O((dx M)^2 dx)."""
    dx = len(predicted.mean)
    rows = jnp.concatenate([predicted.cov, predicted.cross], axis=1)
    mean = jnp.concatenate([predicted.mean, state.mean[dx:]]) + innovation.pull @ rows
    learned = predicted.cross.T @ innovation.curvature @ predicted.cross
    cross = innovation.keep @ predicted.cross
    above = jnp.concatenate([innovation.cov, cross], axis=1)
    below = jnp.concatenate([cross.T, state.cov[dx:, dx:] - 0.5 * (learned + learned.T)], axis=1)
    return AugmentedState(mean, jnp.concatenate([above, below]))


def confine(
    state: AugmentedState,
    spread: tuple[Float[Array, " dx"], Float[Array, " dx"]],
    scale: Float[Array, " d"],
    missing: Bool[Array, ""],
) -> AugmentedState:
    """After a sample of which something is missing: x is not less certain than to be somewhere among all states so far.

    The moments of many steps ahead are those of the few f that are unstable, and run away with the rest; a gap of some
    hundred samples would end in infinity. What is no longer known is drawn towards the middle of what was seen.
    """
    dx = len(spread[0])
    far = _ANYWHERE * jnp.maximum(jnp.sqrt(spread[1]), scale[:dx])
    std = jnp.sqrt(jnp.maximum(jnp.diagonal(state.cov)[:dx], jnp.finfo(far.dtype).tiny))
    shrink = jnp.where(missing, jnp.minimum(far / std, 1.0), 1.0)
    away = state.mean[:dx] - spread[0]
    # An f that is unstable and known well goes far and stays certain.
    nearer = jnp.clip(shrink * away, -_FARTHEST * far, _FARTHEST * far)
    mean = state.mean.at[:dx].set(jnp.where(missing, spread[0] + nearer, state.mean[:dx]))
    factor = jnp.concatenate([shrink, jnp.ones(len(state.mean) - dx, far.dtype)])
    return AugmentedState(mean, state.cov * factor[:, None] * factor)


def forget(state: AugmentedState, prior: Float[Array, " w"], share: Float[Array, ""]) -> AugmentedState:
    """Let all samples so far count less for W by `share`; nowhere is it less sure than its `prior` variances."""
    dx = len(state.mean) - len(prior)
    variance = jnp.maximum(jnp.diagonal(state.cov)[dx:], jnp.finfo(prior.dtype).tiny)
    wider = jnp.sqrt(jnp.clip(prior / variance, 1.0, 1.0 + share))
    scale = jnp.concatenate([jnp.ones(dx, prior.dtype), wider])
    return AugmentedState(state.mean, state.cov * scale[:, None] * scale)


def insert(state: AugmentedState, state_dim: int, joining: Joining, amplitude: Float[Array, " k"]) -> AugmentedState:
    """With a new inducing output in a slot, whose old one is marginalised: q over everything else stays as it is."""
    dx, rows, num, phi = state_dim, len(amplitude), len(joining.phi), joining.phi
    width = (len(state.mean) - dx) // rows
    at = dx + jnp.arange(rows) * width + joining.slot
    cross = jnp.tensordot(phi, state.cov[dx:].reshape(rows, width, -1)[:, :num], (0, 1))
    corner = jnp.tensordot(cross[:, dx:].reshape(rows, rows, width)[:, :, :num], phi, (2, 0))
    corner = 0.5 * (corner + corner.T) + jnp.diag(amplitude * joining.open_share)
    cov = state.cov.at[at, :].set(cross).at[:, at].set(cross.T).at[at[:, None], at[None, :]].set(corner)
    mean = state.mean.at[at].set(state.mean[dx:].reshape(rows, width)[:, :num] @ phi)
    return AugmentedState(mean, cov)


def rows_of(state: AugmentedState, state_dim: int, rows: int) -> tuple[Float[Array, "k f"], Float[Array, "k f f"]]:
    """Mean and covariance of every row of W by itself."""
    dx = state_dim
    width = (len(state.mean) - dx) // rows
    cov = state.cov[dx:, dx:].reshape(rows, width, rows, width)
    return state.mean[dx:].reshape(rows, width), jnp.einsum("dfdg->dfg", cov)


def second_moment(state: AugmentedState, state_dim: int, rows: int, num: int) -> Float[Array, "k m m"]:
    """E[u_d u_d^T] of the `num` inducing outputs, for every d."""
    mean, cov = rows_of(state, state_dim, rows)
    mean, cov = mean[:, :num], cov[:, :num, :num]
    return cov + mean[:, :, None] * mean[:, None, :]
