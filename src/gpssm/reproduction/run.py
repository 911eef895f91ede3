"""Do what is missing of a plan: one job at a time in the process of a worker, and the loop that keeps their records."""

import os
import platform
import socket
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpssm.parallel.pool import Event
from gpssm.plumbing.cache import cpuinfo
from gpssm.reproduction.plan import Job, experiment, versions
from gpssm.reproduction.store import BEAT, Status, Store

Runner = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Event]]
"""`pool.run` or `cluster.run`, with everything else decided."""


def run(store: Store, jobs: Sequence[Job], runner: Runner, retry_failed: bool, watch: Callable[[Status], None]) -> None:
    """Run the jobs of which nothing is stored, the longest first, and store their records.

    `watch` is given the status after every event, and now and then. However this ends, what is stored is whole.
    """
    left = [job for job in jobs if not store.has(job) and (retry_failed or not store.has_failed(job))]
    left.sort(key=lambda job: -job.cost)
    running: dict[str, float] = {}  # label of a job -> when it was started
    began, reported = time.time(), 0.0
    total, finished = sum(job.cost for job in left), 0.0
    try:
        for event in runner(perform, left) if left else ():
            if event.kind == "started":
                running[left[event.place].task.label] = time.time()
            elif event.kind != "waiting":
                job = left[event.place]
                seconds = time.time() - running.pop(job.task.label, time.time())
                died = event.kind == "died"
                store.write(job, record(job, None, event.value, "", seconds, 0.0) if died else event.value)
                finished += job.cost
            if event.kind != "waiting" or time.monotonic() - reported > BEAT:
                reported = time.monotonic()
                # If it goes on like this; rounding must not leave less than nothing.
                rest = max(total - finished, 0.0)
                store.tell(running, (time.time() - began) * rest / finished if finished else None)
                watch(store.status())
    finally:
        store.end()


def perform(job: Job) -> dict[str, Any]:
    """Run a job in the process of a worker. What goes wrong is part of the record, and stops no other job."""
    wall, cpu = time.perf_counter(), time.process_time()
    result, error, log = None, None, ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if versions() != job.versions:
                raise RuntimeError(f"this worker has {versions()}, the plan {job.versions}; install the same.")
            result = experiment(job.module).run(job.task)
        except Exception as problem:
            error, log = f"{type(problem).__name__}: {problem}", traceback.format_exc()
    log = "".join([*(f"{w.category.__name__}: {w.message}\n" for w in caught), log])
    return record(job, result, error, log, time.perf_counter() - wall, time.process_time() - cpu)


def record(
    job: Job, result: dict[str, Any] | None, error: str | None, log: str, seconds: float, cpu_seconds: float
) -> dict[str, Any]:
    """What is stored of a job, with where it ran; either `result` or `error` is None."""
    return {
        "task": job.task.as_dict(),
        "configuration": job.configuration,
        "versions": job.versions | {"python": platform.python_version()},
        "machine": machine(),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "result": result,
        "error": error,
        "log": log,
    }


def machine() -> dict[str, Any]:
    """Host, system, cores of this machine, and the name that its processor gives itself."""
    names = [line.partition(":")[2].strip() for line in cpuinfo("model name")]
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }
