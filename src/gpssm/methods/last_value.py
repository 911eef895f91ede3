"""The last value: tomorrow is like today.

    y_t = y_{t-1} + v_t,  v_t ~ N(0, variance)

The variance of every channel is that of its increments, by maximum likelihood: over a gap of k
samples an increment has k times the variance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from gpssm.errors import InvalidInput
from gpssm.filters.kalman import Gaussian, System
from gpssm.models.scaling import Scaling, moments
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import training_data
from gpssm.posteriors.history import History, Progress
from gpssm.posteriors.linear import NOISE_FLOOR, LinearPosterior

NDArray = np.ndarray


@dataclass(frozen=True)
class LastValue:
    """Forecasts the last value seen of every channel, whatever the inputs."""

    name: str = "LastValue"

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
        scaling = Scaling(shift, scale, shift, scale, *moments(cs))
        variances = _increment_variances([scaling.standardise_outputs(y) for y in ys])
        eye = jnp.eye(len(shift))
        prior = Gaussian(jnp.zeros_like(eye[0]), eye)  # of standardised outputs
        posterior = LinearPosterior(
            system=System(eye, jnp.diag(jnp.asarray(variances)), eye, jnp.zeros_like(eye[0]), jnp.zeros_like(eye)),
            input_weight=np.zeros((len(shift), cs[0].shape[1])),
            bias=np.zeros(len(shift)),
            prior=prior,
            scaling=scaling,
            history=History(converged=True),
            method=self.name,
            final=prior,
            fixed=("transition.weight", "transition.bias", "emission.weight", "emission.bias", "obs_noise.cov"),
        )
        return posterior.learned_from(ys, cs)


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
