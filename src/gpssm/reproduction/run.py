"""Do what is missing of a plan."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpssm.parallel.pool import Event
from gpssm.reproduction.plan import Job
from gpssm.reproduction.store import BEAT, Status, Store
from gpssm.reproduction.work import perform, record

Runner = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Event]]
"""`pool.run` or `cluster.run`, with everything else decided."""


def run(store: Store, jobs: Sequence[Job], runner: Runner, retry_failed: bool, watch: Callable[[Status], None]) -> None:
    """Run the jobs of which nothing is stored, the longest first, and store what comes back.

    `watch` is told how far it is, now and then. However this ends, what is stored is whole.
    """
    left = [job for job in jobs if not store.has(job) and (retry_failed or not store.has_failed(job))]
    left.sort(key=lambda job: -job.cost)
    clock = _Clock(left)
    told = 0.0
    try:
        for event in runner(perform, left) if left else ():
            if event.kind == "begun":
                clock.begin(left[event.place])
            elif event.kind != "waiting":
                job = left[event.place]
                seconds = clock.end(job)
                lost = event.kind == "lost"
                store.write(job, record(job, None, event.value, "", seconds, 0.0) if lost else event.value)
            if event.kind != "waiting" or time.monotonic() - told > BEAT:
                told = time.monotonic()
                store.tell(clock.running, clock.seconds_left())
                watch(store.status())
    finally:
        store.end()


class _Clock:
    """When jobs were begun, and how long the rest will take if it goes on like this."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.running: dict[str, float] = {}
        self._left = sum(job.cost for job in jobs)
        self._total = self._left
        self._started = time.time()

    def begin(self, job: Job) -> None:
        self.running[job.task.label] = time.time()

    def end(self, job: Job) -> float:
        self._left = max(self._left - job.cost, 0.0)  # rounding must not leave less than nothing
        return time.time() - self.running.pop(job.task.label, time.time())

    def seconds_left(self) -> float | None:
        finished = self._total - self._left
        return None if finished <= 0 else (time.time() - self._started) * self._left / finished
