"""The first samples of a stream: they only tell where the data live and on what scale.

Until that is known, the prediction is the mean of what was seen. A stream keeps its first samples for a while and looks
back at them: a system that was at rest outgrows its units, and then they are taken again, from all samples so far.
"""

from typing import Any

import numpy as np

from gpssm.online.gate import Gate

NDArray = np.ndarray

# More samples than this multiple of the warm-up are not waited for, whatever they look like.
_LONGEST_WARM_UP = 10
LOOK_BACK = (2, 4, 8, 16)
"""Multiples of the warm-up at which a stream looks back."""
# How much more than at first is too much for the units: of steps of the outputs, and of inputs. That the outputs
# themselves go far is in the nature of a slow system.
_OUTGROWN = 10.0
# How much less: then the first samples were a fault. (That a system comes from afar is not.)
_ABSURD = 1e4


def believable(early: list[tuple[Any, Any]], input_lags: int) -> tuple[NDArray, NDArray, tuple[Gate, Gate]]:
    """Outputs (t, dy) and inputs (t, lags * dc) of the first samples, without what cannot be believed among so many,
    and the ranges of both.

    Where that is an input, something usual is put in its place, and nothing is to be learned from the sample.
    """
    outputs, inputs = (np.array(part) for part in zip(*early, strict=True))
    lags = inputs.reshape(len(inputs), input_lags, -1)
    gates = Gate.of(outputs), Gate.of(lags[:, 0], least=1.0)
    unknown = np.stack([gates[1].outside(lag) for lag in np.moveaxis(lags, 1, 0)], axis=1)
    inputs = np.where(unknown, gates[1].centre, lags).reshape(inputs.shape)
    undriven = unknown.reshape(len(inputs), -1).any(axis=1, keepdims=True)
    return np.where(gates[0].outside(outputs) | undriven, np.nan, outputs), inputs, gates


def tells_scale(outputs: NDArray, needed: int) -> bool:
    """Whether every channel was seen often enough, and moved."""
    if len(outputs) >= _LONGEST_WARM_UP * needed:
        return True
    enough = np.sum(~np.isnan(outputs), axis=0).min() >= needed
    return bool(enough and (np.nanmax(outputs, axis=0) > np.nanmin(outputs, axis=0)).all())


def predict(outputs: NDArray) -> tuple[NDArray, NDArray, float]:
    """Mean and standard deviation (dy,) of the last sample by those before it, and the log-density of what was seen
    of it; NaN where there are too few values.
    """
    before, last = outputs[:-1], outputs[-1]
    mean, std = np.full(len(last), np.nan), np.full(len(last), np.nan)
    for channel, column in enumerate(before.T):
        known = column[~np.isnan(column)]
        if len(known) > 1:
            mean[channel], std[channel] = known.mean(), known.std(ddof=1)
    seen = ~np.isnan(last)
    if not seen.any() or not (std[seen] > 0).all():
        return mean, std, float("nan")
    z = (last - mean)[seen] / std[seen]
    return mean, std, float(np.sum(-0.5 * (z**2 + np.log(2 * np.pi)) - np.log(std[seen])))


def outgrown(outputs: NDArray, inputs: NDArray, first: int, least: NDArray, now: Gate) -> bool:
    """Whether the samples have outgrown the units, which come from the `first` of them, or were a fault at first.

    `least` is the smallest reach of the outputs' range that the stream has allowed, `now` that of all samples.
    """
    moves = np.concatenate([np.diff(outputs, axis=0), inputs[1:]], axis=1)
    grown = _range(moves) > _OUTGROWN * _range(moves[: first - 1])
    return bool(grown.any() or (least > _ABSURD * now.reach).any())


def _range(rows: NDArray) -> NDArray:
    """Width of the middle 80% of every column, which one outlier does not change."""
    width = np.zeros(rows.shape[1])
    for channel, column in enumerate(rows.T):
        seen = column[~np.isnan(column)]
        width[channel] = np.subtract(*np.quantile(seen, [0.9, 0.1])) if len(seen) else 0.0
    return width
