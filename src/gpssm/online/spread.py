"""Where the states have been: the unit of length scales, and the range of forecasts."""

import jax.numpy as jnp
from jaxtyping import Array, Float

Spread = tuple[Float[Array, " dx"], Float[Array, " dx"]]
"""Running mean and variance of the states."""


def running_spread(spread: Spread, x: Float[Array, " dx"], count: Array, counts: Array) -> Spread:
    """With one more state, if it counts; an outlier moves them by ten standard deviations at most."""
    mean, variance = spread
    share = jnp.where(counts, 1.0 / (count + 10.0), 0.0)
    deviation = jnp.clip(x - mean, -10 * jnp.sqrt(variance), 10 * jnp.sqrt(variance))
    return mean + share * deviation, (1 - share) * (variance + share * deviation**2)


def bounded_lengthscale(
    log_lengthscale: Float[Array, " d"], variance: Float[Array, " dx"], scale: Float[Array, " d"]
) -> Float[Array, " d"]:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity.

    `variance` is that of the states so far, `scale` the first standard deviations of states and inputs.
    """
    dx, scale = len(variance), jnp.log(scale)
    span = jnp.concatenate([jnp.maximum(0.5 * jnp.log(variance), scale[:dx]), scale[dx:]])
    return jnp.clip(log_lengthscale, span - 1.5, span + 3.0)
