"""The Student t likelihood, for recordings with outliers.

    y = g(x) + sqrt(variance) e,    e ~ t(nu)

It is Gaussian noise of a random width, `y - g(x) | w ~ N(0, variance / w)`, `w ~ Gamma(nu/2, nu/2)`. Given w there is a
Kalman update; over w it is averaged, on a grid of log w whose width follows that of its density. The predictive density
of y is a mixture over w, and the weights of that mixture, given y, move to small w, that is small gains, where y is far
off. The update is made with the variance whose gain is the average one. With nu -> infinity all of it becomes what
Gaussian noise does.

Several channels are taken one after the other, each with the moments that those before it leave.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.models.noise import Channels, Likelihood, Matched
from gpssm.numerics.parameters import Leaf, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import shape

# Of log w, in its standard deviations at large nu: to the left it has a tail, which is that of the outliers.
_GRID = (-14.0, 4.0, 25)


@saved
class StudentT(Likelihood):
    """Heavy tails, common to all channels.

    Parameters: `variance` (dy,), the squared scale of every channel, that of the noise without its tails;
    `degrees_of_freedom` () nu > 2, so that the noise has a variance, `variance * nu / (nu - 2)`; learned above 2.25.
    """

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
        """Predictive density of `y`, and the variance whose gain is the average over w. Cost O(dy^3)."""
        log_share, widths = self._widths(y.dtype)

        def channel(moments: tuple[Array, Array], now: tuple[Array, Array, Array]) -> tuple[Any, tuple[Array, Array]]:
            (mean, cov), (i, y, squared_scale) = moments, now
            seen, noise = ~jnp.isnan(y), squared_scale * widths
            innovation, total = jnp.where(seen, y, 0.0) - mean[i], cov[i, i] + noise
            scores = log_share - 0.5 * (innovation**2 / total + jnp.log(2 * jnp.pi * total))
            weights = jax.nn.softmax(scores) / total
            variance = jnp.sum(weights * noise) / jnp.sum(weights)
            gain = jnp.where(seen, cov[:, i] / (cov[i, i] + variance), 0.0)
            score = jnp.where(seen, jax.nn.logsumexp(scores), 0.0)
            return (mean + gain * innovation, cov - gain[:, None] * cov[i]), (variance, score)

        columns = jnp.arange(len(y)), y, jnp.asarray(self.variance, y.dtype)
        variance, scores = jax.lax.scan(channel, (mean, cov), columns)[1]
        return Matched(variance, jnp.sum(scores))

    def _widths(self, dtype: jnp.dtype) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """A grid of 1/w, and logarithms of what is the share of each."""
        half = 0.5 * jnp.asarray(self.degrees_of_freedom, dtype)
        log_w = jnp.linspace(*_GRID, dtype=dtype) / jnp.sqrt(half)
        # The density of log w is proportional to exp(nu/2 (log w - w)); w - 1 - log w does not cancel.
        return jax.nn.log_softmax(half * (log_w - jnp.expm1(log_w))), jnp.exp(-log_w)
