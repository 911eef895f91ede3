"""What a stream says of one sample."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

NDArray = np.ndarray


class Estimate(NamedTuple):
    """What `learn_one` of a stream returns. NaN where there was nothing to predict from yet."""

    state_mean: Float[NDArray, " dx"]
    """Of the filtered state, given this sample and all before it."""
    state_cov: Float[NDArray, "dx dx"]
    predicted_mean: Float[NDArray, " dy"]
    """Of the outputs, before this sample was seen."""
    predicted_std: Float[NDArray, " dy"]
    """Standard deviations, observation noise included."""
    log_score: float
    """Log-density of what was seen of the sample under that prediction."""
    refused: str = ""
    """What of the sample was not believed and taken as missing, in one sentence; empty if all of it was."""

    @property
    def state_std(self) -> Float[NDArray, " dx"]:
        """Standard deviations of the filtered state."""
        return np.sqrt(np.diagonal(self.state_cov))


def estimate_of(report: NDArray, dx: int, dy: int, refused: str = "") -> Estimate:
    """From the numbers that a compiled step has reported, of `dx` states and `dy` outputs."""
    a, b = dx + dx * dx, dx + dx * dx + dy
    cov = report[dx:a].reshape(dx, dx)
    return Estimate(report[:dx], cov, report[a:b], report[b : b + dy], float(report[b + dy]), refused)
