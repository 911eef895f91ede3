"""CPU time and memory of `learn_one` and `learn_many`, from the first samples to the millionth.

    python benchmarks/online.py [--method OEnVI] [--inducing 20 50] [--samples 1000000] [--json]

The sizes of the NASCAR experiment (2 states, 10 channels) at some budgets of inducing inputs. CPU
time, pinned to one core, after compilation; memory is the resident set of the process.
"""

import argparse
import json
import os
import time
from pathlib import Path

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np

from gpssm.datasets import nascar
from gpssm.methods import registry

AT = (100, 1_000, 10_000, 100_000, 1_000_000)
TIMED = 500  # samples, from each of these on


def resident_megabytes() -> float:
    """Of this process; Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(name: str, num_inducing: int, samples: int) -> list[dict[str, float]]:
    """Milliseconds of one sample, how many a second go through `learn_many`, and megabytes, at some on the way."""
    data = nascar(20_000, seed=0)
    outputs = data.series.outputs
    method = registry.build_online(name, state_dim=2, num_inducing=num_inducing, emission=data.emission)
    warm = method.start()
    for y in outputs[: method.trial + 50]:  # compiles what is used during the trial and after it
        warm.learn_one(y)
    stream, rows = method.start(), []
    for at in (at for at in AT if at <= samples):
        while stream.count < at:
            first = stream.count % len(outputs)
            stream.learn_many(outputs[first : first + min(TIMED, at - stream.count)])
        few = outputs[np.arange(at, at + TIMED) % len(outputs)]
        started = time.process_time()
        for y in few:
            stream.learn_one(y)
        between = time.process_time()
        many = stream.learn_many(few)
        ended = time.process_time()
        assert np.isfinite(many.state_mean).all()
        found = {"milliseconds": 1e3 * (between - started) / TIMED, "at_once_per_second": TIMED / (ended - between)}
        rows.append({"sample": at, **found, "megabytes": resident_megabytes()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=list(registry.ONLINE), default="OEnVI")
    parser.add_argument("--inducing", type=int, nargs="+", default=[20, 50])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {num: measure(arguments.method, num, arguments.samples) for num in arguments.inducing}
    if arguments.json:
        print(json.dumps(found))
        return
    for num, rows in found.items():
        print(f"{num} inducing inputs")
        for row in rows:
            one, many = f"{row['milliseconds']:.3f} ms", f"{row['at_once_per_second']:,.0f} a second at once"
            print(f"  at sample {row['sample']:>9,.0f}: {one}, {many}, {row['megabytes']:.0f} MB")


if __name__ == "__main__":
    main()
