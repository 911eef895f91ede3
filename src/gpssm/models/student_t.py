"""The Student t likelihood, for recordings with outliers.

    y = g(x) + sqrt(variance) e,    e ~ t(nu)

It is Gaussian noise of a random width, `y - g(x) | w ~ N(0, variance / w)`, `w ~ Gamma(nu/2, nu/2)`. Given w there is a
Kalman update; over w it is averaged, on a grid of log w in two parts, with steps that follow the width of its density:
where w is before y is seen, and to the left of it, where w is if y is an outlier. The predictive density of y is a
mixture over w, and the weights of that mixture, given y, move to small w, that is small gains, where y is far off: in
the end the state moves by `P (nu + 1) / (y - E[y])`, P its covariance with g. The update is made with the variance
whose gain is the average one. With nu -> infinity all of it becomes what Gaussian noise does.

Several channels are taken one after the other, each with the moments that those before it leave.
"""

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.models.noise import Channels, Likelihood, Matched
from gpssm.numerics.parameters import Leaf, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import shape

# Of log w, in its standard deviations at large nu, 0.75 apart: before y is seen, with the tail that it has to the left;
# and given an outlier, from where its density is largest.
_USUAL = np.linspace(-14.0, 4.0, 25)
_OUTLIER = np.linspace(-8.25, 6.0, 20)
_ITERATIONS = 8


@saved
class StudentT(Likelihood):
    """Heavy tails, common to all channels.

    Args:
        variance: (dy,) the squared scale of every channel, that of the noise without its tails.
        degrees_of_freedom: () nu > 2, so that the noise has a variance, `variance * nu / (nu - 2)`; learned above 2.25.

    >>> noise = StudentT([1.0], 4.0)
    >>> float(noise.moments(jnp.zeros(1), jnp.zeros(1))[1][0])
    2.0
    >>> near, far = (noise.match(jnp.array([y]), jnp.zeros(1), jnp.eye(1)).variance[0] for y in (1.0, 10.0))
    >>> bool(far > 10 * near)  # an outlier is hardly believed
    True
    """

    units: ClassVar = {"degrees_of_freedom": ("of Student t", 0)}
    # With more, process noise takes the outliers for jumps of the state, and learning may never leave that explanation.
    initial_process_noise: ClassVar[float] = 0.02

    variance: Annotated[Leaf, shape("n")] = parameter("positive")
    degrees_of_freedom: Annotated[Leaf, shape("")] = parameter("above two", default=4.0)

    def sample(self, key: Array, clean: Float[Array, "*b dy"]) -> Float[Array, "*b dy"]:
        nu = jnp.asarray(self.degrees_of_freedom, clean.dtype)
        return clean + jnp.sqrt(self.variance) * jax.random.t(key, nu, clean.shape, clean.dtype)

    def log_prob(self, y: Channels, clean: Float[Array, "n dy"]) -> Float[Array, " n"]:
        nu, seen = jnp.asarray(self.degrees_of_freedom), ~jnp.isnan(y)
        squares = jnp.where(seen, jnp.where(seen, y, 0.0) - clean, 0.0) ** 2 / (nu * self.variance)
        gammas = jax.lax.lgamma(0.5 * (nu + 1.0)) - jax.lax.lgamma(0.5 * nu)
        constant = jnp.sum(jnp.where(seen, gammas - 0.5 * jnp.log(nu * jnp.pi * self.variance), 0.0))
        return constant - 0.5 * (nu + 1.0) * jnp.sum(jnp.log1p(squares), axis=1)

    def moments(self, mean: Channels, variance: Channels) -> tuple[Channels, Channels]:
        nu = self.degrees_of_freedom
        return mean, variance + self.variance * nu / (nu - 2.0)

    def match(self, y: Channels, mean: Channels, cov: Float[Array, "dy dy"]) -> Matched:
        """Predictive density of `y` under `mean` and `cov`, and the variance whose gain is the average over w.

        Cost O(dy^3).
        """

        def channel(moments: tuple[Array, Array], now: tuple[Array, Array, Array]) -> tuple[Any, tuple[Array, Array]]:
            (mean, cov), (i, y, squared_scale) = moments, now
            seen = ~jnp.isnan(y)
            innovation = jnp.where(seen, y, 0.0) - mean[i]
            log_share, widths = self._widths(innovation**2 / squared_scale, cov[i, i] / squared_scale)
            noise = squared_scale * widths
            total = cov[i, i] + noise
            scores = log_share - 0.5 * (innovation**2 / total + jnp.log(2 * jnp.pi * total))
            weights = jax.nn.softmax(scores) / total
            variance = jnp.sum(weights * noise) / jnp.sum(weights)
            gain = jnp.where(seen, cov[:, i] / (cov[i, i] + variance), 0.0)
            score = jnp.where(seen, jax.nn.logsumexp(scores), 0.0)
            return (mean + gain * innovation, cov - gain[:, None] * cov[i]), (variance, score)

        columns = jnp.arange(len(y)), y, jnp.asarray(self.variance, y.dtype)
        variance, scores = jax.lax.scan(channel, (mean, cov), columns)[1]
        return Matched(variance, jnp.sum(scores))

    def _widths(
        self, square: Float[Array, ""], spread: Float[Array, ""]
    ) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """Logarithms of the shares of a grid of 1/w, and the grid, for a squared innovation and a variance of g(x).

        Both are in units of the squared scale.
        """
        nu = jnp.asarray(self.degrees_of_freedom, square.dtype)
        half, width = 0.5 * nu, jnp.ones_like(square) * jnp.inf
        # The largest width at which the density of log w, given y, is stationary; from above, by iteration.
        for _ in range(_ITERATIONS):
            ratio = 1.0 + spread / width
            width = (square + nu * ratio**2) / (nu * ratio**2 + ratio)
        outlier = -jnp.sqrt(half) * jnp.log(jax.lax.stop_gradient(width))
        below, usual = jnp.asarray(_OUTLIER, nu.dtype), jnp.asarray(_USUAL, nu.dtype)
        last = jnp.minimum(outlier + below[-1], usual[0] - 0.75)
        log_w = jnp.concatenate([last - below[-1] + below, usual]) / jnp.sqrt(half)
        # The density of log w is proportional to exp(nu/2 (log w - w)); w - 1 - log w does not cancel.
        log_density = half * (log_w - jnp.expm1(log_w))
        return log_density - jax.nn.logsumexp(log_density[len(_OUTLIER) :]), jnp.exp(-log_w)
