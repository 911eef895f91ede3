"""One pass of an online method over a recording, and what a sample costs."""

import time
from typing import NamedTuple

import numpy as np

from gpssm.online.stream import Stream

NDArray = np.ndarray


class Pass(NamedTuple):
    """What is left of it."""

    filtered: NDArray
    """(T, dx) the state after every sample."""
    milliseconds: float
    """CPU time of one sample: the median, so that compilation does not count."""


def learn_once(stream: Stream, outputs: NDArray, inputs: NDArray | None = None) -> Pass:
    """Show every sample to the stream once, in order."""
    filtered = np.empty((len(outputs), stream.method.state_dim))
    costs = np.empty(len(outputs))
    for t, y in enumerate(outputs):
        started = time.process_time()
        filtered[t] = stream.learn_one(y, None if inputs is None else inputs[t]).state_mean
        costs[t] = time.process_time() - started
    return Pass(filtered, 1e3 * float(np.median(costs)))
