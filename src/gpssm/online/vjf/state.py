"""What VJF carries from one sample to the next."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.numerics.networks import MLP
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance, NonNegative, Positive

_PRIOR_STD = 2.0  # of W, in steps of the state


@saved
class Recognition(eqx.Module):
    """What a sample says of the state: a factor exp(eta x - Lambda x^2 / 2) per dimension, about the prediction."""

    network: MLP
    gain: Float[Array, "k dy"]
    """Linear path from the innovation to the displacement."""
    log_precision: Float[Array, " k"]


@saved
class Learned(NamedTuple):
    """What is learned by gradient."""

    recognition: Recognition
    process_noise: Float[Array, " k"]  # logarithms, as the next
    obs_noise: Float[Array, " dy"]
    centres: Float[Array, "m d"]
    log_width: Float[Array, " d"]


@saved
class Weights(NamedTuple):
    """q(W, B): one Gaussian for each of the k states that are learned, over num_inducing + dc features."""

    mean: Float[Array, "k m+d-dx"]
    cov: Covariance[Float[Array, "k m+d-dx m+d-dx"]]


@saved
class Scales(NamedTuple):
    """Units of the warm-up; inside, states and inputs are standardised by them."""

    shift: Float[Array, " d"]
    scale: Positive[Float[Array, " d"]]
    step: Positive[Float[Array, " k"]]  # size of one step of the (standardised) state
    output: Positive[Float[Array, " dy"]]  # of an innovation
    site: Positive[Float[Array, " k"]]  # of the displacement that it causes


@saved
class VJFState(eqx.Module):
    """All that is carried from one sample to the next."""

    mean: Float[Array, " dx"]
    var: NonNegative[Float[Array, " dx"]]
    weights: Weights
    used: NonNegative[Float[Array, " m"]]
    learned: Learned
    adam: tuple[Float[Array, " p"], NonNegative[Float[Array, " p"]]]
    """Moments of the gradient of `learned`, as one vector."""
    count: NonNegative[Float[Array, ""]]
    rejected: NonNegative[Float[Array, ""]]
    scales: Scales
    emission: LinearEmission | FunctionEmission
    learn_obs_noise: bool = eqx.field(static=True)

    def check_fields(self) -> None:
        """Refuse a network of a file that does not fit the rest, and moments of other parameters."""
        d, k, dy = len(self.scales.scale), len(self.scales.step), len(self.scales.output)
        self.learned.recognition.network.check_ends(dy + d + k, 2 * k)
        count = sum(np.size(leaf) for leaf in jax.tree.leaves(self.learned))
        if len(self.adam[0]) != count:
            raise InvalidInput(f"adam: moments of {len(self.adam[0])} parameters; expected {count}.")


def prior(step: Float[Array, " k"], width: int) -> Float[Array, "k f f"]:
    """Covariance of W before anything was seen."""
    return (_PRIOR_STD * step)[:, None, None] ** 2 * jnp.eye(width, dtype=step.dtype)
