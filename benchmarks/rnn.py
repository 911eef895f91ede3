"""A recurrent network of the package jax-sysid, for `benchmarks/fit.py`: `python benchmarks/rnn.py DATA`.

DATA is a file of NumPy's with `outputs`, `inputs` and `train`, the number of rows to learn from. Eight units, four
states, 1000 steps of Adam and 2000 evaluations of L-BFGS. Prints steps, CPU seconds and the error of a free run over
the other rows as JSON. The package needs an old version of JAX, and so an environment of its own.
"""

import os

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import json
import sys
import time
from functools import partial

import flax.linen as nn
import jax
import numpy as np
from jax_sysid.models import RNN

ADAM, LBFGS, STATES, UNITS = 1000, 2000, 4, 8


class Layers(nn.Module):
    """One hidden layer."""

    size: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.size)(nn.swish(nn.Dense(UNITS)(x)))


def fit(outputs: np.ndarray, inputs: np.ndarray, adam: int, lbfgs: int) -> tuple[RNN, float]:
    """The network and the CPU seconds of its fit, compilation included."""
    clock = time.process_time()
    ny, nu = outputs.shape[1], inputs.shape[1]
    model = RNN(STATES, ny, nu, FX=partial(Layers, STATES), FY=partial(Layers, ny), seed=0)
    model.loss(rho_x0=1e-4, rho_th=1e-4)
    model.optimization(adam_epochs=adam, lbfgs_epochs=lbfgs, iprint=-1)
    model.fit(outputs, inputs)
    return model, time.process_time() - clock


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    data = np.load(sys.argv[1])
    train = int(data["train"])
    y, u = ((a - a[:train].mean(axis=0)) / a[:train].std(axis=0) for a in (data["outputs"], data["inputs"]))
    # Every fit is compiled anew, the first one also starts JAX.
    (_, start), (_, again) = (fit(y[:train], u[:train], 1, 1) for _ in range(2))
    model, seconds = fit(y[:train], u[:train], ADAM, LBFGS)
    forecast = np.asarray(model.predict(model.x0, u)[0])[train:]
    error = float(np.sqrt(np.mean((forecast - y[train:]) ** 2)) / y[train:].std())
    found = {"steps": ADAM + LBFGS, "seconds": start + seconds - again, "compile_s": start, "nrmse": error}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
