"""Samples a second and memory of a fleet: many sensors that report in turn, one core.

    python benchmarks/fleet.py [--sensors 2000] [--samples 1000000] [--inducing 20] [--json]

Every sensor is an oscillator of its own with two noisy outputs. A call brings a sample of every sensor. CPU time,
pinned to one core; memory is the resident set of the process.
"""

import argparse
import json
import os
import time

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np

import gpssm
from online import resident_megabytes


def measure(sensors: int, samples: int, num_inducing: int) -> list[dict[str, float]]:
    """A row for every tenth of the samples; the first holds compilation, warm-up and trial."""
    rng = np.random.default_rng(0)
    phase, rate = rng.uniform(0, 6, sensors), rng.uniform(0.1, 0.4, sensors)
    fleet, names = gpssm.Fleet(gpssm.OEnVI(2, num_inducing=num_inducing)), [f"sensor {i}" for i in range(sensors)]
    rows, calls, t = list[dict[str, float]](), max(1, samples // sensors // 10), 0
    for _ in range(10):
        seconds = 0.0
        for _ in range(calls):
            angle = rate * t + phase
            outputs = np.column_stack([np.sin(angle), np.cos(angle)]) + 0.05 * rng.normal(size=(sensors, 2))
            started = time.process_time()
            estimates = fleet.learn_many(names, outputs)
            seconds += time.process_time() - started
            t += 1
        assert np.isfinite(estimates.state_mean).all()
        rows.append({"sample": t * sensors, "per_second": calls * sensors / seconds, "megabytes": resident_megabytes()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--inducing", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments.sensors, arguments.samples, arguments.inducing)
    if arguments.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"to sample {row['sample']:>12,.0f}: {row['per_second']:,.0f} a second, {row['megabytes']:,.0f} MB")


if __name__ == "__main__":
    main()
