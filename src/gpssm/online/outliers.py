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

    excess: Float[Array, ""]
    """Its squared distance, as a multiple of that of the last sample that is no outlier; at least one."""
    outlier: Bool[Array, ""]
    jump: Bool[Array, ""]
    rejected: Float[Array, ""]
    """Outliers in a row, up to this sample."""

    @property
    def usual(self) -> Bool[Array, ""]:
        """Neither an outlier nor a jump."""
        return self.excess == 1.0

    @property
    def doubt(self) -> Float[Array, ""]:
        """That the variance of the observation noise is to be multiplied by."""
        return jnp.where(self.outlier, self.excess**2, 1.0)

    @property
    def freedom(self) -> Float[Array, ""]:
        """That the covariance of the predicted state is to be multiplied by."""
        return jnp.where(self.jump, self.excess**2, 1.0)

    def raised(self, most: float) -> Float[Array, ""]:
        """That the logarithm of Q grows by at once, as the system is not what it was."""
        return jnp.where(self.jump, jnp.minimum(jnp.log(self.excess), most), 0.0)


def judge(distance: Array, rejected: Array, largest: float = jnp.inf) -> Verdict:
    """Of a sample whose squared Mahalanobis distance is `distance` per channel, after so many outliers in a row."""
    excess = jnp.clip(distance / _OUTLIER, 1.0, largest)
    outlier = (excess > 1.0) & (rejected < _BELIEVED)
    return Verdict(excess, outlier, (excess > 1.0) & ~outlier, jnp.where(outlier, rejected + 1.0, 0.0))
