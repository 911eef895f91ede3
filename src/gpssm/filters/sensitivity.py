"""How the filtered state depends on the noise variances, carried from sample to sample.

The gradient of log p(y_t | y_{1:t-1}) in a noise variance goes through the whole past of the state. Forward
in time that past is d(m_t, P_t) / d(log Q, log amplitude, log R), a few numbers. Without it only the size
of the innovations is seen, which cannot tell Q from R; their correlation can.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpssm.filters.augmented import Innovation, Predicted, Seen
from gpssm.plumbing.catalogue import saved

_STEEP = 10.0  # standard deviations of the states, for a change of a variance by a factor of e


@saved
class Sensitivity(NamedTuple):
    """d(m, P) in the p = 2 k + dy logarithms of Q, amplitude and R, in this order."""

    mean: Float[Array, "2*k+dy dx"]
    cov: Float[Array, "2*k+dy dx dx"]


class NoiseGradient(NamedTuple):
    """Of log p(y_t | y_{1:t-1}) in the logarithms of the variances."""

    process_noise: Float[Array, " k"]
    amplitude: Float[Array, " k"]
    obs_noise: Float[Array, " dy"]


def predict(
    before: Sensitivity, predicted: Predicted, amplitude: Float[Array, " k"], process_noise: Float[Array, " k"]
) -> Sensitivity:
    """Through the prediction. What W has learned is taken as given."""
    dx, rows = len(predicted.mean), len(amplitude)
    eye = jnp.eye(rows, dx, dtype=amplitude.dtype)
    unit = eye[:, :, None] * eye[:, None, :]
    direct = jnp.concatenate(
        [
            process_noise[:, None, None] * unit,
            (amplitude * predicted.open_share)[:, None, None] * unit,
            jnp.zeros((len(before.mean) - 2 * rows, dx, dx), amplitude.dtype),
        ]
    )
    slope = predicted.slope
    return Sensitivity(before.mean @ slope.T, slope @ before.cov @ slope.T + direct)


def gradient(carried: Sensitivity, rows: int, seen: Seen, innovation: Innovation) -> NoiseGradient:
    """What a sample says of the variances; `carried` is that of the prediction."""
    pull, curvature = innovation.pull, innovation.curvature
    change = jnp.outer(pull, pull) - curvature
    found = carried.mean @ pull + 0.5 * jnp.sum(carried.cov * change, axis=(1, 2))
    precision = seen.precision - seen.precision**2 * jnp.sum((seen.matrix @ innovation.cov) * seen.matrix, axis=1)
    obs = found[2 * rows :] + 0.5 * (innovation.weighted**2 - precision) * _noise(seen)
    return NoiseGradient(found[:rows], found[rows : 2 * rows], obs)


def update(carried: Sensitivity, seen: Seen, innovation: Innovation) -> Sensitivity:
    """Through the conditioning on a sample."""
    mean, cov = carried
    before = len(mean) - len(seen.residual)
    gain = innovation.cov @ seen.matrix.T * seen.precision
    own = jnp.concatenate([jnp.zeros((before, gain.shape[1]), gain.dtype), jnp.diag(_noise(seen))])
    mean = (mean + jnp.sum(cov * innovation.pull, axis=2)) @ innovation.keep.T - (own * innovation.weighted) @ gain.T
    cov = innovation.keep @ cov @ innovation.keep.T + jnp.einsum("ic,pc,jc->pij", gain, own, gain)
    return Sensitivity(mean, cov)


def confine(carried: Sensitivity, variance: Float[Array, " dx"], missing: Bool[Array, ""]) -> Sensitivity:
    """After a sample of which something is missing: no more than is plausible of states of this variance.

    Over a long gap the derivatives of an f that is unstable grow without end.
    """
    most = _STEEP * jnp.sqrt(variance)
    both = most[:, None] * most
    return Sensitivity(
        jnp.where(missing, jnp.clip(carried.mean, -most, most), carried.mean),
        jnp.where(missing, jnp.clip(carried.cov, -both, both), carried.cov),
    )


def _noise(seen: Seen) -> Float[Array, " dy"]:
    """Variance of every channel that was seen, zero for the others."""
    return jnp.where(seen.precision > 0, 1.0 / jnp.where(seen.precision > 0, seen.precision, 1.0), 0.0)
