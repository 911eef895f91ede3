"""A million samples, one in a thousand of them hostile: does a stream survive, and is it as good as without them?

    python benchmarks/hostile.py [--method OEnVI RGPSSM SVMC VJF] [--samples 1000000] [--seed 0] [--json]

Two streams learn the kink system one sample at a time, the same samples; into one of them faults are mixed: infinities
(which are refused), +-1e300, 1e30 and 1e5, runs of NaN and runs of one value. Printed: root mean square error of the
predictions of one step, of samples that are no faults, over the last tenth, and over a clean stretch after all of it;
faults refused; memory at the start and at the end. Exit code 1 if a state was not finite, or if the error after the
faults is more than 10% larger than without them.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import numpy as np

from gpssm.datasets import kink
from gpssm.errors import InvalidInput
from gpssm.methods import registry
from gpssm.online.stream import Stream
from online import resident_megabytes

RARE = 1000  # samples between two faults, on average
RUN = 50  # samples of a gap, or of a sensor that is frozen
CLEAN = 20_000  # samples after all faults
PROCESS_NOISE, OBS_NOISE = 0.0025, 0.008


def faults(outputs: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The samples with faults among them, and which are none."""
    hostile, good = outputs.copy(), np.ones(len(outputs), bool)
    for at in np.flatnonzero(rng.uniform(size=len(outputs)) < 1 / RARE):
        kind = rng.integers(7)
        length = RUN if kind >= 5 else 1
        stretch = slice(at, at + length)
        values = (np.inf, 1e300, -1e300, 1e30, 1e5, np.nan, outputs[at, 0])
        hostile[stretch], good[stretch] = values[kind], False
    return hostile, good


def learn(stream: Stream, outputs: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Errors of one step, samples refused by an error, and estimates that are not finite."""
    errors, refused, damaged = np.full(len(outputs), np.nan), 0, 0
    for t, (y, true) in enumerate(zip(outputs, truth, strict=True)):
        try:
            estimate = stream.learn_one(y)
        except InvalidInput:
            refused += 1
            continue
        errors[t] = true[0] - estimate.predicted_mean[0]
        damaged += stream.ready and not np.isfinite(estimate.state_mean).all()
    return errors, refused, damaged


def rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.nanmean(errors**2)))


def measure(name: str, samples: int, seed: int) -> dict[str, Any]:
    chosen = registry.applicable(name, state_dim=1, num_inducing=15, num_particles=30)
    method = registry.build_online(name, **chosen)
    truth = kink(samples + CLEAN, PROCESS_NOISE, OBS_NOISE, seed=seed).outputs
    hostile, good = faults(truth[:samples], np.random.default_rng(seed))
    found: dict[str, Any] = {"method": name, "faults": int((~good).sum())}
    late = np.arange(samples) >= 0.9 * samples
    for label, outputs in (("clean", truth[:samples]), ("hostile", hostile)):
        stream, started = method.start(), time.process_time()
        learn(stream, outputs[:1000], truth[:1000])
        before = resident_megabytes()
        stream = method.start()
        errors, refused, damaged = learn(stream, outputs, truth[:samples])
        after, _, damaged_after = learn(stream, truth[samples:], truth[samples:])
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(stream.state))
        found[label] = {
            "rmse_last_tenth": rms(errors[late & good]),
            "rmse_after": rms(after),
            "infinite_refused": refused,
            "taken_as_missing": stream.refused,
            "not_finite": damaged + damaged_after + (not finite),
            "megabytes": (before, resident_megabytes()),
            "cpu_seconds": time.process_time() - started,
        }
    found["ratio_last_tenth"], found["ratio_after"] = (
        found["hostile"][key] / found["clean"][key] for key in ("rmse_last_tenth", "rmse_after")
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", nargs="+", choices=list(registry.ONLINE), default=list(registry.ONLINE))
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.method:
        found = measure(name, arguments.samples, arguments.seed)
        hostile = found["hostile"]
        failed |= hostile["not_finite"] > 0 or found["ratio_after"] > 1.1
        if arguments.json:
            print(json.dumps(found), flush=True)
            continue
        print(
            f"{name}: {found['faults']} faults, {hostile['infinite_refused']} refused, "
            f"{hostile['taken_as_missing']} taken as missing, {hostile['not_finite']} states not finite\n"
            f"  error in the last tenth {hostile['rmse_last_tenth']:.4f}, without faults "
            f"{found['clean']['rmse_last_tenth']:.4f}; after all faults {hostile['rmse_after']:.4f}, without "
            f"{found['clean']['rmse_after']:.4f} (ratio {found['ratio_after']:.3f}); "
            f"{hostile['megabytes'][0]:.0f} -> {hostile['megabytes'][1]:.0f} MB, {hostile['cpu_seconds']:.0f} CPU s",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
