"""Noise of the states and likelihood of the outputs.

A `Noise` is what is added to a state: Gaussian, diagonal or full, of one vector or of a batch of them (what a GP
leaves open of f at every member is such a batch). A `Likelihood` is `p(y | g(x))`, channel by channel. Independent
Gaussian noise is both. A new likelihood is a file like `models.student_t` and one line in `models.LIKELIHOODS`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.numerics.parameters import Leaf, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import shape

Channels = Float[Array, " dy"]


class Noise(eqx.Module):
    """Gaussian noise of mean zero; `variance` (*b, n) are the diagonals of its covariances."""

    variance: eqx.AbstractVar[Leaf]

    @property
    @abstractmethod
    def covariance(self) -> Float[Array, "n n"]:
        """Averaged over the batch, if there is one."""

    @abstractmethod
    def draws(self, eps: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
        """Draws of the noise (*b, n) from standard normal ones `eps`."""


class Matched(NamedTuple):
    """What a likelihood is in the update of a Kalman filter, given what was observed."""

    variance: Channels
    """Of Gaussian noise that would move the state as far."""
    score: Float[Array, ""] | None = None
    """`log p(y)`, if it is not that of this Gaussian noise."""


class Likelihood(eqx.Module):
    """`p(y | g(x))`, every channel by itself. A channel of `y` that is NaN was not observed.

    `variance` (dy,) is the squared width of the noise, the parameter that starts from `obs_noise`.
    """

    variance: eqx.AbstractVar[Leaf]

    units: ClassVar[Mapping[str, tuple[str, int]]] = {}
    """Of its other parameters, by name: what a summary calls the unit, and which power of the outputs' unit it is."""
    initial_process_noise: ClassVar[float] = 1.0
    """Variance of the process noise before training, standardised; large, so that a filter follows the data first."""

    @abstractmethod
    def sample(self, key: Array, clean: Float[Array, "*b dy"]) -> Float[Array, "*b dy"]:
        """Outputs, for noise-free ones `clean`, by the random `key`."""

    @abstractmethod
    def log_prob(self, y: Channels, clean: Float[Array, "n dy"]) -> Float[Array, " n"]:
        """`log p(y | clean^n)` of a sample `y` (dy,) for `clean` (n, dy), over what was observed. Cost O(n dy)."""

    @abstractmethod
    def moments(self, mean: Channels, variance: Channels) -> tuple[Channels, Channels]:
        """Mean and variance (dy,) of outputs, from `mean` and `variance` of noise-free ones."""

    def match(self, y: Channels, mean: Channels, cov: Float[Array, "dy dy"]) -> Matched:
        """What a Kalman update conditions by, from `y` and `mean` and `cov` of the noise-free output before it.

        By default Gaussian noise of the variance that this likelihood has.
        """
        return Matched(self.moments(mean, jnp.zeros_like(mean))[1])


@saved
class DiagonalNoise(Noise, Likelihood):
    """`N(0, diag(variance))`, as noise of the state or as the Gaussian likelihood.

    Args:
        variance: (n,) of every dimension, or a batch of them `(*b, n)`.

    >>> noise = DiagonalNoise([1.0, 4.0])
    >>> noise.covariance.tolist(), noise.draws(jnp.ones(2)).tolist()
    ([[1.0, 0.0], [0.0, 4.0]], [1.0, 2.0])
    """

    variance: Annotated[Leaf, shape("n")] = parameter("positive")

    @property
    def covariance(self) -> Float[Array, "n n"]:
        rows = jnp.asarray(self.variance)
        return jnp.diag(jnp.mean(rows.reshape(-1, rows.shape[-1]), axis=0))

    def draws(self, eps: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
        return jnp.sqrt(self.variance) * eps

    def sample(self, key: Array, clean: Float[Array, "*b dy"]) -> Float[Array, "*b dy"]:
        return clean + self.draws(jax.random.normal(key, clean.shape, clean.dtype))

    def log_prob(self, y: Channels, clean: Float[Array, "n dy"]) -> Float[Array, " n"]:
        seen = ~jnp.isnan(y)
        residual = jnp.where(seen, jnp.where(seen, y, 0.0) - clean, 0.0)
        constant = jnp.sum(jnp.where(seen, jnp.log(2 * jnp.pi * self.variance), 0.0))
        return -0.5 * (jnp.sum(residual**2 / self.variance, axis=1) + constant)

    def moments(self, mean: Channels, variance: Channels) -> tuple[Channels, Channels]:
        return mean, variance + self.variance


@saved
class FullNoise(Noise):
    """`N(0, chol chol^T)`, noise of a state.

    Args:
        chol: (n, n), lower triangular; in a batch `(*b, n, n)` any factor of the covariance.

    >>> noise = FullNoise([[1.0, 0.0], [1.0, 2.0]])
    >>> noise.covariance.tolist(), noise.variance.tolist()
    ([[1.0, 1.0], [1.0, 5.0]], [1.0, 5.0])
    """

    chol: Annotated[Leaf, shape("n n")] = parameter("cholesky")

    @property
    def variance(self) -> Float[Array, "*b n"]:
        return jnp.sum(jnp.asarray(self.chol) ** 2, axis=-1)

    @property
    def covariance(self) -> Float[Array, "n n"]:
        chol = jnp.asarray(self.chol)
        factors = chol.reshape(-1, *chol.shape[-2:])
        return jnp.einsum("bij,bkj->ik", factors, factors) / factors.shape[0]

    def draws(self, eps: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
        return jnp.einsum("...ij,...j->...i", jnp.asarray(self.chol), eps)


def num_draws(*noises: Noise) -> int:
    """How many standard normal numbers the sum of two noises takes: one where their variances add up."""
    return 1 if all(isinstance(noise, DiagonalNoise) for noise in noises) else len(noises)
