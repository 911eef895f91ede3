"""One job, in the process of a worker: everything that is to be known of it comes back as one record."""

import os
import platform
import socket
import time
import traceback
import warnings
from typing import Any

from gpssm.parallel.runtime import cpuinfo
from gpssm.reproduction.plan import Job, experiment, versions


def perform(job: Job) -> dict[str, Any]:
    """Run it. What goes wrong is part of the record, and stops nobody else."""
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
    """What is stored of a job."""
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
    """Where this is, and the name that its processor gives itself."""
    names = [line.partition(":")[2].strip() for line in cpuinfo("model name")]
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }
