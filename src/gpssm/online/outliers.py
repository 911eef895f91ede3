"""How far a sample is believed that is far from its prediction.

An outlier is trusted less, the more so the farther out it is. After some in a row it is the state that has jumped: it
may go where it likes, and f is not blamed.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_OUTLIER = 16.0  # squared innovation per channel; beyond it a sample is trusted less
_BELIEVED = 3  # outliers in a row: then it is the system that has changed


class Verdict(NamedTuple):
    """What a sample is taken for."""

    seen: Bool[Array, ""]
    """Whether anything of it was seen."""
    usual: Bool[Array, ""]
    """Something was seen, and it is neither an outlier nor a jump."""
    jump: Bool[Array, ""]
    excess: Float[Array, ""]
    """Its squared distance, as a multiple of that of the last sample that is no outlier; at least one."""
    doubt: Float[Array, ""]
    """Factor on the variance of the observation noise."""
    freedom: Float[Array, ""]
    """Factor on the covariance of the predicted state."""
    rejected: Float[Array, ""]
    """Outliers in a row, up to this sample."""

    def raised(self, most: float) -> Float[Array, ""]:
        """Addend to the logarithm of Q, as the system is not what it was; `most` is the largest."""
        return jnp.where(self.jump, jnp.minimum(jnp.log(self.excess), most), 0.0)


def judge(distance: Array, channels: Array, rejected: Array, largest: float = jnp.inf) -> Verdict:
    """Of a sample of which `channels` were seen, at a squared Mahalanobis distance of `distance` from its prediction.

    `rejected` counts the outliers in a row before it; no excess is above `largest`.
    """
    seen, excess = channels > 0, jnp.clip(distance / jnp.maximum(channels, 1) / _OUTLIER, 1.0, largest)
    outlier = (excess > 1.0) & (rejected < _BELIEVED)
    jump = (excess > 1.0) & ~outlier
    doubt, freedom = (jnp.where(on, excess**2, 1.0) for on in (outlier, jump))
    count = jnp.where(outlier, rejected + 1.0, 0.0)
    return Verdict(seen, seen & (excess == 1.0), jump, excess, doubt, freedom, count)
