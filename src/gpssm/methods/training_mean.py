"""The training mean: what any forecast has to beat.

    y_t = mean + e_t,  e_t ~ N(0, variance)

Mean and variance of every channel over the training recordings. Nothing that happens changes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from gpssm.filters.kalman import Gaussian, System
from gpssm.models.scaling import Scaling, moments
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import training_data
from gpssm.posteriors.history import History, Progress
from gpssm.posteriors.linear import LinearPosterior


@dataclass(frozen=True)
class TrainingMean:
    """Forecasts the mean of the training outputs, whatever the inputs."""

    name: str = "TrainingMean"

    @double_precision
    def fit(
        self,
        outputs: Any,
        inputs: Any = None,
        *,
        seed: int = 0,
        progress: bool | Callable[[Progress], None] = False,
    ) -> LinearPosterior:
        """Learn from `outputs` (T, dy), NaN where missing, or a list of such arrays; `inputs` are not used.

        Nothing here is random or slow: `seed` and `progress` are those of every method.
        """
        ys, cs = training_data(outputs, inputs)
        shift, scale = moments(ys)
        # Standardised outputs have mean 0 and variance 1. The state is the mean: known, and constant.
        eye = jnp.eye(len(shift))
        known = Gaussian(jnp.zeros_like(eye[0]), jnp.zeros_like(eye))
        posterior = LinearPosterior(
            system=System(eye, jnp.zeros_like(eye), eye, jnp.zeros_like(eye[0]), eye),
            input_weight=np.zeros((len(shift), cs[0].shape[1])),
            bias=np.zeros(len(shift)),
            prior=known,
            scaling=Scaling(shift, scale, shift, scale, *moments(cs)),
            history=History(converged=True),
            method=self.name,
            final=known,
            fixed=("transition.weight", "transition.bias", "process_noise.cov", "emission.weight", "emission.bias"),
        )
        return posterior.learned_from(ys, cs)
