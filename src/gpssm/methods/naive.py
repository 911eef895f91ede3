"""Two forecasts that any other has to beat: the training mean, and the last value.

    TrainingMean:  y_t = mean + e_t,     e_t ~ N(0, variance)
    LastValue:     y_t = y_{t-1} + v_t,  v_t ~ N(0, variance)

Mean and variance of every channel are those of the training recordings. The variance of the last
value is that of its increments, by maximum likelihood: over a gap of k samples an increment has k
times the variance.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from gpssm.errors import InvalidInput
from gpssm.filters.kalman import Gaussian, System
from gpssm.methods.linear import LinearMethod, NDArray, observed_scaling
from gpssm.posteriors.linear import NOISE_FLOOR, LinearPosterior
from gpssm.training.progress import Watch

_KNOWN = ("transition.weight", "transition.bias", "emission.weight", "emission.bias")


@dataclass(frozen=True)
class TrainingMean(LinearMethod):
    """Forecasts the mean of the training outputs, whatever the inputs; nothing observed later changes it.

    >>> import gpssm
    >>> posterior = gpssm.TrainingMean().fit([[1.0], [2.0], [6.0]])
    >>> posterior.end.mean.round(6).tolist()  # the state at the end, where a forecast starts
    [[3.0]]
    """

    name: str = "TrainingMean"
    fixed: ClassVar[tuple[str, ...]] = (*_KNOWN, "process_noise.cov")

    def learn(self, outputs: list[NDArray], inputs: list[NDArray], progress: bool | Watch) -> LinearPosterior:
        # Standardised outputs have mean 0 and variance 1. The state is the mean: known, and constant.
        eye = jnp.eye(outputs[0].shape[1])
        known = Gaussian(jnp.zeros_like(eye[0]), jnp.zeros_like(eye))
        system = System(eye, jnp.zeros_like(eye), eye, jnp.zeros_like(eye[0]), eye)
        return self.posterior(system, known, observed_scaling(outputs, inputs, len(eye)))


@dataclass(frozen=True)
class LastValue(LinearMethod):
    """Forecasts the last observed value of every channel, whatever the inputs.

    >>> import gpssm
    >>> posterior = gpssm.LastValue().fit([[1.0], [2.0], [4.0]])
    >>> posterior.end.mean.round(6).tolist()  # the state at the end, where a forecast starts
    [[4.0]]
    """

    name: str = "LastValue"
    fixed: ClassVar[tuple[str, ...]] = (*_KNOWN, "obs_noise.cov")

    def learn(self, outputs: list[NDArray], inputs: list[NDArray], progress: bool | Watch) -> LinearPosterior:
        eye = jnp.eye(outputs[0].shape[1])
        scaling = observed_scaling(outputs, inputs, len(eye))
        variances = _increment_variances([scaling.standardise_outputs(y) for y in outputs])
        system = System(eye, jnp.diag(jnp.asarray(variances)), eye, jnp.zeros_like(eye[0]), jnp.zeros_like(eye))
        return self.posterior(system, Gaussian(jnp.zeros_like(eye[0]), eye), scaling)


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
