"""The paper's convergence figure: error of the learned f against iterations and against seconds.

EnVI, vGPSSM and VCDT learn the kink function from the same recording (observation noise 0.008, both
readings of the process noise), all for the same number of steps and without stopping early. What
differs is what each has to learn besides the model: the number of variational parameters is counted
from the methods themselves.
"""

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np

from gpssm.datasets import kink, kink_function
from gpssm.experiments.kink import GRID, LENGTH, NUM_INDUCING, PROCESS_NOISE, Setting, known_emission
from gpssm.methods import registry
from gpssm.methods.base import StateSpaceMethod
from gpssm.numerics.parameters import parameters
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors.history import Progress
from gpssm.training.optimiser import Schedule
from gpssm.training.progress import Watch

METHODS = ("EnVI", "vGPSSM", "VCDT", "VCDT (amortised)")
OBS_NOISE, CHUNK = 0.008, 25

# What makes up the generative model; everything else that is learned is variational.
_MODEL = ("transition.gp.kernel", "transition.mean", "transition.mixing", "process_noise", "obs_noise", "emission")


@dataclass(frozen=True)
class Curve:
    """The course of one fit: one entry for every `CHUNK` steps."""

    method: str
    setting: Setting
    seed: int
    variational_parameters: int
    seconds_per_iteration: float
    step: list[int]
    seconds: list[float]
    mse: list[float]

    def as_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return asdict(self)


def fit(method: str, setting: Setting, seed: int, max_steps: int, watch: Watch | None = None) -> Curve:
    """Learn for `max_steps` steps, looking at f after every chunk of them; looking is not counted as learning."""
    outputs = kink(LENGTH, PROCESS_NOISE[setting], OBS_NOISE, seed).outputs
    chosen: StateSpaceMethod = registry.build(
        method, state_dim=1, num_inducing=NUM_INDUCING, **known_emission(OBS_NOISE)
    )
    schedule = Schedule(max_steps=max_steps, chunk=CHUNK, patience=max_steps)
    step, seconds, mse = [], [], []
    looking = 0.0

    def look(p: Progress) -> None:
        nonlocal looking
        began = time.perf_counter()
        assert p.snapshot is not None
        mean, _ = p.snapshot().transition(GRID[:, None])
        step.append(p.step)
        seconds.append(p.seconds - looking)
        mse.append(float(np.mean((mean[:, 0] - kink_function(GRID)) ** 2)))
        if watch is not None:
            watch(p)
        looking += time.perf_counter() - began

    # The first fit is there to compile.
    replace(chosen, schedule=schedule._replace(max_steps=CHUNK)).fit(outputs, seed=seed)
    replace(chosen, schedule=schedule).fit(outputs, seed=seed, restarts=1, progress=look)
    count = variational_parameters(chosen, outputs)
    return Curve(method, setting, seed, count, seconds[-1] / step[-1], step, seconds, mse)


@double_precision
def variational_parameters(method: StateSpaceMethod, outputs: np.ndarray) -> int:
    """How many numbers describe q: of u, of the states, and of the networks that tell them."""
    ys, cs = [outputs], [np.zeros((len(outputs), 0))]
    learner, _ = method.learner(method.problem(ys, cs), jax.random.key(0))
    return sum(np.size(p.value) for p in parameters(learner) if not p.name.removeprefix("model.").startswith(_MODEL))


def summarise(curves: list[Curve]) -> list[dict[str, Any]]:
    """One row for every method and setting: size, cost, and the error reached, over seeds."""
    rows = []
    for method, setting in dict.fromkeys((c.method, c.setting) for c in curves):
        own = [c for c in curves if (c.method, c.setting) == (method, setting)]
        final = [c.mse[-1] for c in own]
        rows.append(
            {
                "method": method,
                "setting": setting,
                "seeds": len(own),
                "variational_parameters": own[0].variational_parameters,
                "seconds_per_iteration": float(np.mean([c.seconds_per_iteration for c in own])),
                "mse": float(np.mean(final)),
                "mse_sd": float(np.std(final, ddof=1)) if len(own) > 1 else 0.0,
            }
        )
    return rows
