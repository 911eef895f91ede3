"""Learning from a recording, with any method, and what that costs."""

import time
from typing import Any

import numpy as np

from gpssm.datasets import Series
from gpssm.online.stream import Stream
from gpssm.plumbing.compilation import CompileClock

NDArray = np.ndarray

_AT_A_TIME = 16  # samples; the first of them wait for what is compiled


def learn_once(stream: Stream, outputs: NDArray, inputs: NDArray | None = None) -> tuple[NDArray, float]:
    """Show every sample to the stream once, in order.

    Returns the state (T, dx) after every sample, and the CPU time of one in milliseconds: the median of some at a
    time, so that compilation does not count.
    """
    filtered, costs = np.empty((len(outputs), stream.method.state_dim)), []
    for first in range(0, len(outputs), _AT_A_TIME):
        few, started = slice(first, first + _AT_A_TIME), time.process_time()
        filtered[few] = stream.learn_many(outputs[few], None if inputs is None else inputs[few]).state_mean
        costs.append((time.process_time() - started) / len(outputs[few]))
    return filtered, 1e3 * float(np.median(costs))


def learn(method: Any, data: Series, seed: int) -> tuple[Any, float, float]:
    """Fit a method to a recording, or show it every sample once if it learns online.

    Returns the fitted model or the stream, the CPU seconds of learning without compilation (online, those of the
    median sample times their number), and the seconds of compilation.
    """
    cpu, wall, clock = time.process_time(), time.perf_counter(), CompileClock()
    if not hasattr(method, "fit"):
        stream = method.start(seed=seed)
        _, milliseconds = learn_once(stream, data.outputs, data.inputs)
        return stream, 1e-3 * milliseconds * len(data.outputs), clock.seconds
    fitted = method.fit(data.outputs, data.inputs, seed=seed)
    compiling = clock.seconds
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    # Compilation is timed by the wall clock: its share is taken off, which is right on a busy machine, too.
    return fitted, cpu * max(1.0 - compiling / wall, 0.0), compiling
