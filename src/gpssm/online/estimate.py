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
    """Of the filtered state."""
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


class Estimates(NamedTuple):
    """What `learn_many` of a stream returns: the fields of an `Estimate`, each with a row for every sample."""

    state_mean: Float[NDArray, "t dx"]
    """Of the filtered states, each given its sample and all before it."""
    state_cov: Float[NDArray, "t dx dx"]
    """Of the filtered states."""
    predicted_mean: Float[NDArray, "t dy"]
    """Of the outputs, each before its sample was seen."""
    predicted_std: Float[NDArray, "t dy"]
    """Standard deviations, observation noise included."""
    log_score: Float[NDArray, " t"]
    """Log-density of what was seen of every sample under its prediction."""
    refused: tuple[str, ...]
    """What was not believed, a sentence for every sample; empty where all of it was."""

    @property
    def state_std(self) -> Float[NDArray, "t dx"]:
        """Standard deviations of the filtered states."""
        return np.sqrt(np.diagonal(self.state_cov, axis1=1, axis2=2))

    @classmethod
    def of(cls, rows: list[Estimate], dx: int, dy: int) -> "Estimates":
        """Those of the `rows`, stacked; none at all have `dx` states and `dy` outputs, too."""
        if not rows:
            empty = Estimate(np.zeros(dx), np.zeros((dx, dx)), np.zeros(dy), np.zeros(dy), 0.0)
            return cls._make([*(np.array([part])[:0] for part in empty[:5]), ()])
        *numbers, refused = zip(*rows, strict=True)
        return cls._make([*map(np.array, numbers), refused])


RESTARTED = "the state could not be moved any more: the stream has started again, with this sample."
_MISSED = "y: no finite state can follow this sample; taken as missing."


def estimate_of(report: Float[NDArray, " r"], dx: int, refused: str = "") -> Estimate:
    """From a row of `Core.moved`, of `dx` states; `refused` says what of the sample was not believed before."""
    a = dx + dx * dx
    dy = (len(report) - a - 2) // 2
    mean, cov = report[a : a + dy], report[dx:a].reshape(dx, dx)
    refused = refused or (_MISSED if report[-1] else "")
    return Estimate(report[:dx], cov, mean, report[a + dy : -2], float(report[-2]), refused)
