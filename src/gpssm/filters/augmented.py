"""One Gaussian over the state and the weights of f, moved and conditioned a sample at a time.

    x_t = x_{t-1} + W h(s_t) + r_t + v_t,   s_t = [x_{t-1}, c_t],   v_t ~ N(0, Q)
    h(s) = [phi(s), (s - shift) / scale, 1],   phi(s) = K^{-1} k(Z, s)

Row d of W holds the inducing outputs u_d of f_d(s) - x_d - linear_d(s) and the weights of a linear
function, r the part of f that u leaves open. W may have fewer rows than there are states: then the
further states are the past of the first ones, x_t[d] = x_{t-1}[d - rows], without noise.

Given x everything is linear and Gaussian in W, so that an ensemble is needed for the few numbers of x
only and W is integrated out exactly. The posterior after one sample is the prior of the next: q(u) is
updated in closed form, and the prior counts once however long the stream is.

Pure functions of arrays, in the user's units; nothing here depends on them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gpssm.filters.ensemble import Emission, with_inputs
from gpssm.gp.kernels import Kernel
from gpssm.gp.sparse import jitter_for
from gpssm.numerics.linalg import cholesky, solve_lower, solve_lower_transposed
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance, NonNegative, Positive

_OUTLIER = 16.0  # squared innovation per channel; beyond it a sample is trusted less
_BELIEVED = 3  # outliers in a row: then it is the system that has changed
_FAR = 4.0  # standard deviations of all states so far, beyond which f is not extrapolated
_ANYWHERE = 2.0  # standard deviations of all states so far, as that of a state of which nothing is known
_FARTHEST = 100.0  # times that, which no prediction goes
_KEPT = 0.1  # share of the paths of a forecast that are kept although they leave that range


@saved
class Joint(NamedTuple):
    """`N(mean, cov)` of [x, W row by row]; F = M + d + 1 weights in a row, k rows."""

    mean: Float[Array, " dx+k*(m+d+1)"]
    cov: Covariance[Float[Array, "dx+k*(m+d+1) dx+k*(m+d+1)"]]


@saved
class Basis(NamedTuple):
    """What h is made of: up to M inducing inputs, and the origin and unit of the linear part."""

    inducing_inputs: Float[Array, "m d"]
    used: NonNegative[Float[Array, " m"]]
    """1 where an inducing input is in use, 0 where there is room for one."""
    shift: Float[Array, " d"]
    scale: Positive[Float[Array, " d"]]


class Whitening(NamedTuple):
    """Inverse and Cholesky factor of K over the inducing inputs, correlations only: variance one."""

    inverse: Float[Array, "m m"]
    chol: Float[Array, "m m"]


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


class Doubt(NamedTuple):
    """Whether a sample is believed as it is."""

    any: Array
    """It is far from what was predicted."""
    rejected: Float[Array, ""]
    """Samples in a row that were trusted less, up to this one."""


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


def prior(
    state_dim: int,
    num_inducing: int,
    scale: Float[np.ndarray, " d"],
    steps: Float[np.ndarray, " k"],
    linear: Float[np.ndarray, "f f"],
) -> Float[Array, "n n"]:
    """Covariance of [x, W] before the first sample: no inducing input is in use, and x may be anywhere.

    `scale` is the spread of x and the inputs, `steps` the mean square of a step of x, and `linear` the covariance
    of the weights of the linear function for a step of one.
    """
    weights = np.kron(np.diag(steps), np.pad(linear, (num_inducing, 0)))
    covariance = np.zeros((state_dim + len(weights),) * 2)
    # 100 times the spread: where the state was before the first sample is not known.
    covariance[:state_dim, :state_dim] = np.diag(100 * scale[:state_dim] ** 2)
    covariance[state_dim:, state_dim:] = weights
    return jnp.asarray(covariance)


def whiten(basis: Basis, kernel: Kernel) -> Whitening:
    """Factor K; a slot that is not in use is a unit row that touches nothing. Cost O(M^3)."""
    used = basis.used
    gram = kernel(basis.inducing_inputs, basis.inducing_inputs) * used[:, None] * used
    chol = jnp.linalg.cholesky(gram + jnp.diag(1.0 - used + jitter_for(gram.dtype)))
    lower = jax.scipy.linalg.solve_triangular(chol, jnp.eye(len(used), dtype=gram.dtype), lower=True)
    return Whitening(lower.T @ lower, chol)


def features(
    basis: Basis, kernel: Kernel, whitening: Whitening, s: Float[Array, "n d"]
) -> tuple[Float[Array, "n f"], Float[Array, " n"]]:
    """h at the rows of `s`, and the share of the kernel's variance that u leaves open there."""
    k = kernel(s, basis.inducing_inputs) * basis.used
    phi = k @ whitening.inverse
    open_share = jnp.maximum(1.0 - jnp.sum(phi * k, axis=1), 0.0)
    linear = (s - basis.shift) / basis.scale
    return jnp.concatenate([phi, linear, jnp.ones((len(s), 1), s.dtype)], axis=1), open_share


def state_factor(joint: Joint, state_dim: int) -> Float[Array, "dx dx"]:
    """Cholesky factor of the state's covariance; the floor keeps it real where the state is known."""
    cov = joint.cov[:state_dim, :state_dim]
    variance = jnp.diagonal(cov)
    return cholesky(cov + jnp.diag(1e-9 * variance + 1e-12 * jnp.max(variance) + 1e-300))


def with_past(new: Float[Array, "n k"], x: Float[Array, "n dx"]) -> Float[Array, "n dx"]:
    """The next states: those that are learned, then the past of the first ones."""
    return jnp.concatenate([new, x[:, : x.shape[1] - new.shape[1]]], axis=1)


def predict(
    joint: Joint,
    factor: Float[Array, "dx dx"],
    basis: Basis,
    kernel: Kernel,
    whitening: Whitening,
    amplitude: Float[Array, " k"],
    process_noise: Float[Array, " k"],
    c: Float[Array, " dc"],
    points: Float[Array, "n dx"],
) -> Predicted:
    """Move x one step. Cost O(N M^2 + (dx M)^2).

    With x^i = m + L p_i and W | x^i ~ N(W + B p_i, S), B = cov(W, x) L^{-T}, S = cov(W) - B B^T:
    moments of x^i + h_i^T (W + B p_i) over the members, plus what S, r and v add.

    Args:
        joint: of x_{t-1} and W.
        factor: Cholesky factor L of the covariance of x_{t-1}.
        amplitude: kernel variance of every f_d that is learned; `kernel` holds the correlations.
        process_noise: variances of v.
        points: of `members`.
    """
    (count, dx), rows = points.shape, len(amplitude)
    x = joint.mean[:dx] + points @ factor.T
    h, open_share = features(basis, kernel, whitening, with_inputs(x, c))
    width = h.shape[1]
    weights = joint.mean[dx:].reshape(rows, width)
    b = solve_lower(factor, joint.cov[:dx, dx:]).T
    rest = (joint.cov[dx:, dx:] - b @ b.T).reshape(rows, width, rows, width)
    tilt = jnp.einsum("nf,dfj,nj->nd", h, b.reshape(rows, width, dx), points)
    moved = with_past(x[:, :rows] + h @ weights.T + tilt, x)
    mean = jnp.mean(moved, axis=0)
    anomalies = moved - mean
    second, first = h.T @ h / count, jnp.mean(h, axis=0)
    unknown = jnp.sum(rest * second[None, :, None, :], axis=(1, 3))
    share = jnp.mean(open_share)
    added = unknown + jnp.diag(amplitude * share + process_noise)
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


def trust(
    predicted: Predicted, seen: Seen, innovation: Innovation, rejected: Float[Array, ""]
) -> tuple[Seen, Predicted, Doubt]:
    """What to condition on: an outlier is trusted less, the more so the farther out it is.

    After some in a row it is the state that has jumped: it may go where it likes, and f is not blamed.
    """
    channels = jnp.sum(seen.precision > 0)
    excess = jnp.maximum(innovation.distance / jnp.maximum(channels, 1) / _OUTLIER, 1.0)
    outlier = (excess > 1.0) & (rejected < _BELIEVED)
    jump = (excess > 1.0) & ~outlier
    trusted = seen._replace(precision=seen.precision / jnp.where(outlier, excess**2, 1.0))
    free = predicted._replace(cov=predicted.cov * jnp.where(jump, excess**2, 1.0))
    return trusted, free, Doubt(excess > 1.0, jnp.where(outlier, rejected + 1.0, 0.0))


def update(joint: Joint, predicted: Predicted, innovation: Innovation) -> Joint:
    """Condition x_t and W on y_t: a correction of rank dx. Cost O((dx M)^2 dx)."""
    dx = len(predicted.mean)
    rows = jnp.concatenate([predicted.cov, predicted.cross], axis=1)
    mean = jnp.concatenate([predicted.mean, joint.mean[dx:]]) + innovation.pull @ rows
    learned = predicted.cross.T @ innovation.curvature @ predicted.cross
    cross = innovation.keep @ predicted.cross
    above = jnp.concatenate([innovation.cov, cross], axis=1)
    below = jnp.concatenate([cross.T, joint.cov[dx:, dx:] - 0.5 * (learned + learned.T)], axis=1)
    return Joint(mean, jnp.concatenate([above, below]))


def confine(
    joint: Joint,
    spread: tuple[Float[Array, " dx"], Float[Array, " dx"]],
    scale: Float[Array, " d"],
    missing: Bool[Array, ""],
) -> Joint:
    """After a sample of which something is missing: x is not less certain than to be somewhere among all states so far.

    The moments of many steps ahead are those of the few f that are unstable, and run away with the rest; a gap of some
    hundred samples would end in infinity. What is no longer known is drawn towards the middle of what was seen.
    """
    dx = len(spread[0])
    far = _ANYWHERE * jnp.maximum(jnp.sqrt(spread[1]), scale[:dx])
    std = jnp.sqrt(jnp.maximum(jnp.diagonal(joint.cov)[:dx], jnp.finfo(far.dtype).tiny))
    shrink = jnp.where(missing, jnp.minimum(far / std, 1.0), 1.0)
    away = joint.mean[:dx] - spread[0]
    # An f that is unstable and known well goes far and stays certain.
    nearer = jnp.clip(shrink * away, -_FARTHEST * far, _FARTHEST * far)
    mean = joint.mean.at[:dx].set(jnp.where(missing, spread[0] + nearer, joint.mean[:dx]))
    factor = jnp.concatenate([shrink, jnp.ones(len(joint.mean) - dx, far.dtype)])
    return Joint(mean, joint.cov * factor[:, None] * factor)


def forget(joint: Joint, prior: Float[Array, " w"], share: Float[Array, ""]) -> Joint:
    """Let all samples so far count less for W by `share`; nowhere is it less sure than its `prior` variances."""
    dx = len(joint.mean) - len(prior)
    variance = jnp.maximum(jnp.diagonal(joint.cov)[dx:], jnp.finfo(prior.dtype).tiny)
    wider = jnp.sqrt(jnp.clip(prior / variance, 1.0, 1.0 + share))
    scale = jnp.concatenate([jnp.ones(dx, prior.dtype), wider])
    return Joint(joint.mean, joint.cov * scale[:, None] * scale)


def insert(
    joint: Joint,
    state_dim: int,
    basis: Basis,
    kernel: Kernel,
    amplitude: Float[Array, " k"],
    slot: Array,
    s: Float[Array, " d"],
) -> tuple[Joint, Basis]:
    """Put the inducing input `s` into a slot. The slot's old u is marginalised, the new one joins with its
    conditional prior given the others: q over everything else stays as it is. Cost O(M^3).
    """
    dx, rows, num = state_dim, len(amplitude), len(basis.used)
    width = (len(joint.mean) - dx) // rows
    others = basis._replace(used=basis.used.at[slot].set(0.0))
    k = kernel(s[None], basis.inducing_inputs)[0] * others.used
    phi = whiten(others, kernel).inverse @ k
    jitter = jitter_for(phi.dtype)
    open_share = jnp.maximum(1.0 + jitter - phi @ k, jitter)
    at = dx + jnp.arange(rows) * width + slot
    cross = jnp.tensordot(phi, joint.cov[dx:].reshape(rows, width, -1)[:, :num], (0, 1))
    corner = jnp.tensordot(cross[:, dx:].reshape(rows, rows, width)[:, :, :num], phi, (2, 0))
    corner = 0.5 * (corner + corner.T) + jnp.diag(amplitude * open_share)
    cov = joint.cov.at[at, :].set(cross).at[:, at].set(cross.T).at[at[:, None], at[None, :]].set(corner)
    mean = joint.mean.at[at].set(joint.mean[dx:].reshape(rows, width)[:, :num] @ phi)
    inputs = basis.inducing_inputs.at[slot].set(s)
    return Joint(mean, cov), basis._replace(inducing_inputs=inputs, used=basis.used.at[slot].set(1.0))


class Model(NamedTuple):
    """Everything but W that paths are drawn from."""

    basis: Basis
    kernel: Kernel
    amplitude: Float[Array, " k"]
    process_noise: Float[Array, " k"]
    emission: Emission
    obs_noise: Float[Array, " dy"]
    spread: tuple[Float[Array, " dx"], Float[Array, " dx"]]
    """Mean and variance of all states so far."""


def sample_paths(
    key: Array, joint: Joint, model: Model, inputs: Float[Array, "h dc"], num_paths: int, staying: bool
) -> tuple[Float[Array, "p h dx"], Float[Array, "p h dy"]]:
    """States and outputs; each path has its own draw of the state and of W.

    One draw of W in many is an unstable linear function, which must not take the mean of all paths with it: far from
    all states so far f is that of the nearest place; and if `staying`, paths that leave their range give way to others.
    """
    basis, kernel, amplitude, process_noise, emission, obs_noise, spread = model
    rows, dx, dtype = len(amplitude), len(basis.scale) - inputs.shape[1], inputs.dtype
    key_start, key_x, key_y, key_stay = jax.random.split(key, 4)
    values, vectors = jnp.linalg.eigh(joint.cov)
    eps = jax.random.normal(key_start, (num_paths, len(values)), dtype)
    drawn = joint.mean + (eps * jnp.sqrt(jnp.maximum(values, 0.0))) @ vectors.T
    weights = drawn[:, dx:].reshape(num_paths, rows, -1)
    whitening = whiten(basis, kernel)
    centre, far = spread[0], _FAR * jnp.sqrt(spread[1])
    low, high = jnp.minimum(centre, joint.mean[:dx]) - far, jnp.maximum(centre, joint.mean[:dx]) + far

    def body(x: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        c, own = now
        x = jnp.clip(x, low, high)
        h, open_share = features(basis, kernel, whitening, with_inputs(x, c))
        std = jnp.sqrt(open_share[:, None] * amplitude + process_noise)
        noise = std * jax.random.normal(own, std.shape, dtype)
        x = with_past(x[:, :rows] + jnp.einsum("nf,ndf->nd", h, weights) + noise, x)
        return x, x

    _, states = jax.lax.scan(body, drawn[:, :dx], (inputs, jax.random.split(key_x, len(inputs))))
    if staying:
        states = states[:, stay(key_stay, states, low, high)]
    clean = jax.vmap(emission)(states)
    outputs = clean + jnp.sqrt(obs_noise) * jax.random.normal(key_y, clean.shape, dtype)
    return jnp.swapaxes(states, 0, 1), jnp.swapaxes(outputs, 0, 1)


def stay(
    key: Array, states: Float[Array, "h p dx"], low: Float[Array, " dx"], high: Float[Array, " dx"]
) -> Int[Array, " p"]:
    """The number of the path to take for each: itself, or for one that leaves the range one of those that do not.

    The system has not left it, so that an f which does is refuted by all that was seen. Where nearly all of them leave,
    those that stay longest are kept.
    """
    inside = jnp.all((states > low) & (states < high), axis=2)
    steps = jnp.sum(jnp.cumprod(inside, axis=0), axis=0)
    count = len(steps)
    kept = jnp.maximum(jnp.sum(steps == len(states)), int(np.ceil(_KEPT * count)))
    order = jnp.argsort(-steps)
    good = jnp.zeros(count, bool).at[order].set(jnp.arange(count) < kept)
    others = order[jnp.floor(kept * jax.random.uniform(key, (count,))).astype(int)]
    return jnp.where(good, jnp.arange(count), others)


def transition(
    joint: Joint, basis: Basis, kernel: Kernel, amplitude: Float[Array, " k"], x: Float[Array, "n d"]
) -> tuple[Float[Array, "n dx"], Float[Array, "n dx"]]:
    """Mean and variance of f at the rows of `x`, with W integrated out."""
    h, open_share = features(basis, kernel, whiten(basis, kernel), x)
    rows, width = len(amplitude), h.shape[1]
    dx = len(joint.mean) - rows * width
    cov = joint.cov[dx:, dx:].reshape(rows, width, rows, width)
    mean = x[:, :rows] + h @ joint.mean[dx:].reshape(rows, width).T
    variance = jnp.einsum("nf,dfdg,ng->nd", h, cov, h) + open_share[:, None] * amplitude
    return with_past(mean, x[:, :dx]), jnp.pad(variance, ((0, 0), (0, dx - rows)))
