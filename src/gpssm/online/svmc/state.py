"""What SVMC carries from one sample to the next."""

from typing import Annotated, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.gp.basis import Basis, Expansion
from gpssm.gp.kernels import RBF
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.numerics.networks import MLP
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance, NonNegative, Positive, renamed


@saved
class Particles(NamedTuple):
    """Paths, each reduced to what the future needs of it. F = M + d + 1 weights in a row of W, P = k + dy.

    The first k states have a transition that is learned, the others are their past.
    """

    x: Float[Array, "n dx"]
    log_weight: Float[Array, " n"]
    mean: Float[Array, "n k m+d+1"]
    """Of the rows of W, given the path."""
    cov: Covariance[Float[Array, "n k m+d+1 m+d+1"]]
    x_slope: Float[Array, "n k+dy dx"]
    """Derivatives of x and of the logarithm of the weight in log Q and log R, with the random numbers as drawn."""
    weight_slope: Float[Array, "n k+dy"]


@saved
class KernelParameters(NamedTuple):
    """Logarithms; the amplitude is a variance."""

    lengthscale: Float[Array, " d"]
    amplitude: Float[Array, " k"]

    def expand(self, basis: Basis) -> Expansion:
        """What f is made of, besides the weights."""
        kernel = RBF(jnp.exp(self.lengthscale), jnp.ones((), self.lengthscale.dtype))
        return Expansion.of(basis, kernel, jnp.exp(self.amplitude))


@saved
class NoiseParameters(NamedTuple):
    """Logarithms of the variances Q and R."""

    process: Float[Array, " k"]
    obs: Float[Array, " dy"]


@saved
class Adapted(NamedTuple):
    """What is learned by gradient."""

    kernel: KernelParameters
    noise: NoiseParameters
    proposal: MLP


@saved
class SVMCState(eqx.Module):
    """All that is carried from one sample to the next."""

    particles: Particles
    basis: Basis
    learned: Adapted
    adam: tuple[Adapted, NonNegative[Adapted]]
    count: NonNegative[Float[Array, ""]]
    rejected: NonNegative[Float[Array, ""]]
    """Outliers in a row."""
    loose: NonNegative[Float[Array, " k"]]
    """Variance of the state before anything was seen."""
    spread: tuple[Float[Array, " dx"], NonNegative[Float[Array, " dx"]]]
    """Running mean and variance of the states: where length scales make sense."""
    unit: Positive[Float[Array, " k"]]
    """Mean square of a step of the state as first seen."""
    obs_unit: Positive[Float[Array, " dy"]]
    emission: Annotated[LinearEmission | FunctionEmission, renamed(dx="k")]
    """Of the first k states."""
    learn_obs_noise: bool = eqx.field(static=True)

    def check_fields(self) -> None:
        """Refuse networks of a file that do not fit the rest."""
        d, k = len(self.basis.scale), len(self.unit)
        self.learned.proposal.check_ends(d + k, 2 * k)
        for moments in self.adam:
            if moments.proposal.sizes != self.learned.proposal.sizes:
                raise InvalidInput(f"adam: sizes {moments.proposal.sizes}; expected {self.learned.proposal.sizes}.")
