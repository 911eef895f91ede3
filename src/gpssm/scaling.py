"""Standardisation: the model works on numbers of order one, the user never sees them.

x_user = state_shift + state_scale * x        (and so for outputs and inputs)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

NDArray = np.ndarray


class Scaling(NamedTuple):
    """Affine maps between the user's units and the model's, one factor per dimension."""

    state_shift: Float[NDArray, " dx"]
    state_scale: Float[NDArray, " dx"]
    output_shift: Float[NDArray, " dy"]
    output_scale: Float[NDArray, " dy"]
    input_shift: Float[NDArray, " dc"]
    input_scale: Float[NDArray, " dc"]

    def standardise_outputs(self, outputs: NDArray) -> NDArray:
        return (outputs - self.output_shift) / self.output_scale

    def standardise_inputs(self, inputs: NDArray) -> NDArray:
        return (inputs - self.input_shift) / self.input_scale

    def standardise_states(self, states: NDArray) -> NDArray:
        return (states - self.state_shift) / self.state_scale

    def outputs(self, standardised: NDArray) -> NDArray:
        return self.output_shift + self.output_scale * standardised

    def states(self, standardised: NDArray) -> NDArray:
        return self.state_shift + self.state_scale * standardised

    def state_cov(self, standardised: NDArray) -> NDArray:
        return standardised * self.state_scale[:, None] * self.state_scale

    def transition_inputs(self, x: NDArray) -> NDArray:
        """Standardise `[state, input]` rows, the input of f."""
        shift = np.concatenate([self.state_shift, self.input_shift])
        scale = np.concatenate([self.state_scale, self.input_scale])
        return (x - shift) / scale


def moments(values: list[NDArray]) -> tuple[NDArray, NDArray]:
    """Mean and standard deviation per column over all sequences, ignoring NaN.

    A constant column keeps its unit: it is shifted, not scaled.
    """
    rows = np.concatenate(values)
    if rows.shape[1] == 0:
        return np.zeros(0), np.ones(0)
    shift, scale = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
    tiny = 1e-9 * np.maximum(np.abs(shift), 1e-300)
    return shift, np.where(scale > tiny, scale, 1.0)
