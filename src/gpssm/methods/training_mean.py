"""The training mean: what any forecast has to beat.

    y_t = mean + e_t,  e_t ~ N(0, variance)

Mean and variance of every channel over the training recordings. Nothing that happens changes it.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from gpssm.filters.kalman import Gaussian, System
from gpssm.methods.linear import LinearFit, LinearMethod, NDArray, Reported, observed_scaling


@dataclass(frozen=True)
class TrainingMean(LinearMethod):
    """Forecasts the mean of the training outputs, whatever the inputs."""

    name: str = "TrainingMean"
    fixed: ClassVar[tuple[str, ...]] = (
        "transition.weight",
        "transition.bias",
        "process_noise.cov",
        "emission.weight",
        "emission.bias",
    )

    def learn(self, outputs: list[NDArray], inputs: list[NDArray], progress: Reported) -> LinearFit:
        # Standardised outputs have mean 0 and variance 1. The state is the mean: known, and constant.
        eye = jnp.eye(outputs[0].shape[1])
        known = Gaussian(jnp.zeros_like(eye[0]), jnp.zeros_like(eye))
        system = System(eye, jnp.zeros_like(eye), eye, jnp.zeros_like(eye[0]), eye)
        return LinearFit(system, known, observed_scaling(outputs, inputs, len(eye)))
