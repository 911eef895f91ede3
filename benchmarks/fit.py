"""What whole fits cost, in CPU seconds of one core: `python benchmarks/fit.py`.

Kink, whose state is measured; and a recording with hidden states: the first half of dryer where the files are at hand
(`GPSSM_DATA`), otherwise two tanks in a row that drain through holes, the level of the second one measured. Every fit
runs twice in this process: the second one finds all programs compiled, and the difference is what the compiler took.
Everything that the second one does, also the search for initial models, is shared out to the steps of the optimiser.
The error is that of a free run over what was not learned from, divided by its standard deviation.

Where the package jax-sysid is installed, here or for the interpreter that `JAX_SYSID_PYTHON` names, its recurrent
network learns from the same rows (`benchmarks/rnn.py`).
"""

import os

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpssm
from gpssm import datasets


def tanks(length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Level of the second tank (T, 1) and the pump's voltage (T, 1)."""
    rng = np.random.default_rng(seed)
    voltage = np.repeat(rng.uniform(0.5, 4.0, length // 20 + 1), 20)[:length]
    levels, upper, lower = [], 2.0, 2.0
    for u in voltage:
        upper = max(upper + 0.15 * u - 0.25 * np.sqrt(upper), 0.0)
        lower = max(lower + 0.25 * np.sqrt(upper) - 0.3 * np.sqrt(lower), 0.0)
        levels.append(lower + 0.05 * rng.standard_normal())
    return np.asarray(levels)[:, None], voltage[:, None]


def hidden() -> tuple[str, np.ndarray, np.ndarray]:
    """A name, outputs (T, 1) and inputs (T, 1), of which the first half is learned from."""
    if datasets.where("dryer"):
        recording = datasets.load("dryer")
        assert recording.inputs is not None
        return "dryer", recording.outputs, recording.inputs
    return ("two tanks", *tanks(1000))


def cost(method: gpssm.EnVI, outputs: np.ndarray, inputs: np.ndarray | None = None) -> tuple[Any, dict[str, float]]:
    """The fitted model, and steps, CPU seconds and those of compilation among them."""
    seconds = []
    for _ in range(2):
        clock = time.process_time()
        fitted = method.fit(outputs, inputs, seed=0)
        seconds.append(time.process_time() - clock)
    first, second = seconds
    return fitted, {"steps": fitted.history.step[-1], "seconds": first, "compile_s": first - second}


def network(outputs: np.ndarray, inputs: np.ndarray, train: int) -> dict[str, float] | None:
    """The same of jax-sysid; None where it is not installed."""
    python = os.environ.get("JAX_SYSID_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import jax_sysid"], capture_output=True, check=False).returncode:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        np.savez(file, outputs=outputs, inputs=inputs, train=train)
        command = [python, str(Path(__file__).with_name("rnn.py")), str(file)]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout.splitlines()[-1])


def main() -> None:
    rows = {"kink, 600 samples, EnVI": cost(gpssm.EnVI(1), datasets.kink(600, seed=0).outputs)[1]}
    name, outputs, inputs = hidden()
    train = len(outputs) // 2
    fitted, found = cost(gpssm.EnVI("auto"), outputs[:train], inputs[:train])
    residual = fitted.forecast(len(outputs) - train, inputs[train:]).mean - outputs[train:]
    found["nrmse"] = float(np.sqrt(np.mean(residual**2)) / outputs[train:].std())
    rows[f"{name}, {train} samples, EnVI with {fitted.state_dim} states"] = found
    other = network(outputs, inputs, train)
    if other is not None:
        rows[f"{name}, {train} samples, jax-sysid"] = other
    if "--json" in sys.argv:
        print(json.dumps(rows))
        return
    print(f"{'a whole fit, CPU time':<44}{'steps':>8}{'ms a step':>11}{'compile s':>11}{'total s':>9}{'NRMSE':>8}")
    for label, row in rows.items():
        each = 1e3 * (row["seconds"] - row["compile_s"]) / row["steps"]
        error = f"{row['nrmse']:.3f}" if "nrmse" in row else ""
        print(
            f"{label:<44}{row['steps']:>8}{each:>11.2f}{row['compile_s']:>11.1f}{row['seconds']:>9.1f}{error:>8}",
        )


if __name__ == "__main__":
    main()
