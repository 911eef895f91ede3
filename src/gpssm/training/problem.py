"""What a fit works on: data, scaling, initial model and windows, made and checked once before anything is compiled."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpssm.models.gpssm import GPSSM
from gpssm.models.scaling import Scaling
from gpssm.training.windows import Windows


@dataclass(frozen=True)
class Initialisation:
    """The model before training, in standardised units."""

    model: GPSSM
    scaling: Scaling
    fixed: frozenset[str]
    """Names of parameters that are not trained because of how the model was specified."""
    states: list[np.ndarray]
    """Rough states (T_i, dx) of every recording, without gaps."""
    informed: bool = False
    """Whether model and states are those of a skeleton."""
    rates: tuple[tuple[str, float], ...] = ()
    """Words of the names of parameters that a skeleton has fitted, and the small steps that are enough for them."""

    @property
    def dims(self) -> tuple[int, int, int]:
        """Numbers of states, outputs and inputs."""
        scaling = self.scaling
        return len(scaling.state_shift), len(scaling.output_shift), len(scaling.input_shift)

    @property
    def hidden(self) -> bool:
        """Whether there are more states than outputs."""
        return self.dims[0] > self.dims[1]


@dataclass(frozen=True, kw_only=True)
class Problem(Initialisation):
    """An initialised model and the recordings that it is to be learned from."""

    outputs: list[np.ndarray]
    """(T_i, dy) in the user's units, NaN where a value is missing."""
    inputs: list[np.ndarray]
    """(T_i, dc) in the user's units."""
    windows: Windows
    """The recordings, standardised and cut."""
    held: frozenset[str]
    """Names of the model's parameters that are not trained."""
    settings: Any
    """What the objective is compiled for. Hashable."""
