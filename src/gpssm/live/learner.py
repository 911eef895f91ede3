"""A stream that is given records, and says what it thinks after each in one line of JSON."""

import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpssm.errors import InvalidInput
from gpssm.live.delays import Delays
from gpssm.live.records import BadRecord, Sample
from gpssm.online.estimate import Estimate
from gpssm.online.stream import Stream

NDArray = np.ndarray


class StoppedLearning(InvalidInput):
    """What comes must not be learned from; what was learned before is saved."""


class Learner:
    """Learns from good records, and reports bad ones."""

    def __init__(
        self, stream: Stream, horizon: int | None, say: Callable[[str], None], calibrated: bool = True
    ) -> None:
        self.stream = stream
        self.learned = self.skipped = self.doubted = 0
        self.delays = Delays()
        self.say = say
        self._horizon = horizon
        self._calibrated = calibrated

    def line(self, read: Callable[[], Sample | None], kind: str, place: int | str) -> str | None:
        """What is known after the record that `read` reads, which is the line or message (`kind`) at `place`.

        None if the record is bad, or holds no sample.
        """
        started, where = time.perf_counter(), f"{'message' if kind == 'id' else kind} {place}"
        try:
            sample = read()
            if sample is None:
                return None
            estimate = self._learn(sample)
        except BadRecord as error:
            self.skipped += 1
            self.say(f"{where} skipped: {error}")
            return None
        self.learned += 1
        record = {
            "sample": self.stream.count,
            kind: place,
            **({} if sample.time is None else {"time": sample.time}),
            "state": _normal(estimate.state_mean, estimate.state_std),
            "predicted": _normal(estimate.predicted_mean, estimate.predicted_std),
            "log_score": _finite(estimate.log_score),
        }
        if estimate.refused:
            self.doubted += 1
            record["refused"] = estimate.refused
            self.say(f"{where}: {estimate.refused}")
        if self._horizon is not None:
            record["forecast"] = self._forecast(self._horizon, sample.inputs)
        line = json.dumps(record, allow_nan=False)
        self.delays.add(time.perf_counter() - started)
        return line

    def _learn(self, sample: Sample) -> Estimate:
        outputs: list[float] | None = sample.outputs
        if self.stream.output_dim is not None and all(map(math.isnan, sample.outputs)):
            outputs = None  # a single null stands for all channels of a list
        try:
            # Numbers near the largest overflow; that is seen in the estimate, and needs no warning of NumPy.
            with np.errstate(all="ignore"):
                return self.stream.learn_one(outputs, sample.inputs or None)
        except InvalidInput as error:  # of another width than those before, or an input that is missing
            raise BadRecord(str(error)) from error

    def _forecast(self, horizon: int, inputs: list[float]) -> dict[str, Any] | None:
        if not self.stream.ready:
            if self.learned == 1:  # who waits for the first estimate waits for all that is compiled
                self.stream.prepare(horizon)
            return None
        held = np.tile(inputs, (horizon, 1)) if inputs else None
        paths = self.stream.forecast(horizon, held, calibrated=self._calibrated, follow=self._calibrated)
        return _normal(paths.mean, paths.std)


def _normal(mean: NDArray, sd: NDArray) -> dict[str, Any]:
    return {"mean": _finite(mean), "sd": _finite(sd)}


def _finite(value: Any) -> Any:
    """A number or lists of numbers; JSON has no infinity and no NaN."""
    return np.where(np.isfinite(value), value, np.array(None)).tolist()
