"""The last value: tomorrow is like today.

    y_t = y_{t-1} + v_t,  v_t ~ N(0, variance)

The variance of every channel is that of its increments, by maximum likelihood: over a gap of k
samples an increment has k times the variance.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from gpssm.errors import InvalidInput
from gpssm.filters.kalman import Gaussian, System
from gpssm.methods.linear import LinearFit, LinearMethod, NDArray, Reported, observed_scaling
from gpssm.posteriors.linear import NOISE_FLOOR


@dataclass(frozen=True)
class LastValue(LinearMethod):
    """Forecasts the last value seen of every channel, whatever the inputs."""

    name: str = "LastValue"
    fixed: ClassVar[tuple[str, ...]] = (
        "transition.weight",
        "transition.bias",
        "emission.weight",
        "emission.bias",
        "obs_noise.cov",
    )

    def learn(self, outputs: list[NDArray], inputs: list[NDArray], progress: Reported) -> LinearFit:
        eye = jnp.eye(outputs[0].shape[1])
        scaling = observed_scaling(outputs, inputs, len(eye))
        variances = _increment_variances([scaling.standardise_outputs(y) for y in outputs])
        system = System(eye, jnp.diag(jnp.asarray(variances)), eye, jnp.zeros_like(eye[0]), jnp.zeros_like(eye))
        return LinearFit(system, Gaussian(jnp.zeros_like(eye[0]), eye), scaling)


def _increment_variances(outputs: list[NDArray]) -> NDArray:
    """Variance of the increment of every channel over one step."""
    variances = []
    for channel in range(outputs[0].shape[1]):
        squares: list[NDArray] = []
        for y in outputs:
            seen = np.flatnonzero(~np.isnan(y[:, channel]))
            squares.append(np.diff(y[seen, channel]) ** 2 / np.diff(seen))
        joined = np.concatenate(squares)
        if joined.size == 0:
            raise InvalidInput(
                f"outputs: channel {channel} has at most one value in every recording; expected two to compare."
            )
        variances.append(max(float(np.mean(joined)), NOISE_FLOOR))
    return np.array(variances)
