"""Standardised recordings of which the end may be held back while candidates are compared.

The error of a simulation that runs on into the last quarter of a recording goes with the error on later data far better
than the loss does, which rewards learning by heart. What was chosen then learns from everything.
"""

from typing import NamedTuple

import numpy as np

from gpssm.models.scaling import moments

NDArray = np.ndarray

_HELD = 0.25  # share of every recording that is held back
_LEAST_HELD = 20  # samples; with fewer nothing can be learned from holding them back
_LEAST_LEARNED = 40


class Recordings(NamedTuple):
    """Standardised recordings, continued to one length: missing outputs, zero inputs."""

    outputs: NDArray  # (s, t, dy)
    inputs: NDArray  # (s, t, dc)
    lengths: tuple[int, ...]
    cuts: tuple[int, ...]
    """How much of every recording is learned from; what comes after is held back."""

    @classmethod
    def of(cls, outputs: list[NDArray], inputs: list[NDArray], *, hold_back: bool = True) -> "Recordings":
        """From recordings (T_i, dy) and (T_i, dc) that are standardised already."""
        lengths = tuple(map(len, outputs))
        longest = max(lengths)
        cuts = lengths
        if hold_back:
            cuts = tuple(n - held if (held := int(_HELD * n)) >= 2 else n for n in lengths)
            if sum(lengths) - sum(cuts) < _LEAST_HELD or sum(cuts) < _LEAST_LEARNED:
                cuts = lengths
        return cls(stack(outputs, longest, np.nan), stack(inputs, longest, 0.0), lengths, cuts)

    @classmethod
    def standardised(cls, outputs: list[NDArray], inputs: list[NDArray]) -> "Recordings":
        """From recordings (T_i, dy) and (T_i, dc) in the user's units; the end of each is held back."""
        (y_shift, y_scale), (c_shift, c_scale) = moments(outputs), moments(inputs)
        return cls.of([(y - y_shift) / y_scale for y in outputs], [(c - c_shift) / c_scale for c in inputs])

    @property
    def holds_back(self) -> bool:
        return self.cuts != self.lengths

    @property
    def output_dim(self) -> int:
        return int(self.outputs.shape[2])

    def early(self) -> tuple[list[NDArray], list[NDArray]]:
        """Outputs and inputs without what is held back."""
        return (
            [y[:cut] for y, cut in zip(self.outputs, self.cuts, strict=True)],
            [c[:cut] for c, cut in zip(self.inputs, self.cuts, strict=True)],
        )

    def learned(self) -> NDArray:
        """Outputs (s, t, dy) of which those held back are missing."""
        after = np.arange(self.outputs.shape[1]) >= np.asarray(self.cuts)[:, None]
        return np.where(after[:, :, None], np.nan, self.outputs)

    def error(self, states: NDArray) -> float:
        """Root mean square error of simulated states (s, t, dx), on what is held back; on everything if nothing is."""
        truth = np.where(np.isnan(self.learned()), self.outputs, np.nan) if self.holds_back else self.outputs
        error = states[..., : self.output_dim] - truth
        return float(np.sqrt(np.nanmean(error**2))) if not np.isnan(error).all() else np.inf


def stack(arrays: list[NDArray], length: int, value: float) -> NDArray:
    """Recordings (s, length, n), each continued with `value`."""
    return np.stack([np.pad(a, ((0, length - len(a)), (0, 0)), constant_values=value) for a in arrays])
