"""Standardisation: the model works on numbers of order one, the user never sees them.

x_user = state_shift + state_scale * x        (and so for outputs and inputs)
"""

from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Positive
from gpssm.plumbing.guards import CONSTANT

NDArray = np.ndarray
A = TypeVar("A", np.ndarray, jax.Array)


@saved
class Scaling(NamedTuple):
    """Affine maps between the user's units and the model's, one factor per dimension."""

    state_shift: Float[NDArray, " dx"]
    state_scale: Positive[Float[NDArray, " dx"]]
    output_shift: Float[NDArray, " dy"]
    output_scale: Positive[Float[NDArray, " dy"]]
    input_shift: Float[NDArray, " lags*dc"]
    input_scale: Positive[Float[NDArray, " lags*dc"]]

    def standardise_outputs(self, outputs: A) -> A:
        return (outputs - self.output_shift) / self.output_scale

    def standardise_inputs(self, inputs: A) -> A:
        return (inputs - self.input_shift) / self.input_scale

    def standardise(self, outputs: list[A], inputs: list[A]) -> tuple[list[A], list[A]]:
        """Recordings (T_i, dy) and (T_i, dc) in the model's units."""
        return list(map(self.standardise_outputs, outputs)), list(map(self.standardise_inputs, inputs))

    def standardise_states(self, states: A) -> A:
        return (states - self.state_shift) / self.state_scale

    def outputs(self, standardised: A) -> A:
        return self.output_shift + self.output_scale * standardised

    def states(self, standardised: A) -> A:
        return self.state_shift + self.state_scale * standardised

    def state_cov(self, standardised: A) -> A:
        with np.errstate(over="ignore"):  # the square of a very large unit is infinite
            return standardised * self.state_scale[:, None] * self.state_scale

    @property
    def argument_shift(self) -> NDArray:
        """Shift of `[state, input]`, the argument of f."""
        return np.concatenate([self.state_shift, self.input_shift])

    @property
    def argument_scale(self) -> NDArray:
        """Scale of `[state, input]`, the argument of f."""
        return np.concatenate([self.state_scale, self.input_scale])

    def standardise_arguments(self, x: NDArray) -> NDArray:
        """Standardise rows `[state, input]`."""
        return (x - self.argument_shift) / self.argument_scale

    def log_volume(self, outputs: NDArray) -> float:
        """What turns the log-density of standardised outputs into that of `outputs`: subtract it."""
        return float(np.sum(~np.isnan(outputs) * np.log(self.output_scale)))


def moments(values: list[NDArray]) -> tuple[NDArray, NDArray]:
    """Mean and standard deviation per column over all sequences, ignoring NaN.

    A constant column keeps its unit: it is shifted, not scaled.
    """
    rows = np.concatenate(values)
    if rows.shape[1] == 0:
        return np.zeros(0), np.ones(0)
    size = np.nanmax(np.abs(rows), axis=0)
    size = np.where(size > 0, size, 1.0)  # squares of tiny numbers underflow
    shift, scale = np.nanmean(rows / size, axis=0), np.nanstd(rows / size, axis=0)
    return size * shift, np.where(scale > CONSTANT, size * scale, 1.0)
