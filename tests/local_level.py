"""A small online method. Its exact filter is an oracle for every number that `gpssm stream` prints, and it is compiled
in no time. Every channel is a random walk, moved by the inputs and seen with noise:

    x_t = x_{t-1} + sum(c_t) + w_t,  w ~ N(0, Q),        y_t = x_t + v_t,  v ~ N(0, R),        x_0 ~ N(0, P)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpssm.errors import InvalidInput
from gpssm.online.base import Info, OnlineMethod
from gpssm.plumbing.catalogue import saved

Q, R, P, WARM_UP = 0.1, 0.5, 100.0, 3


@saved
class Level(NamedTuple):
    mean: Any
    var: Any
    total: Any
    """Never forgets, as the filter does: tells a sample that was lost or learned from twice."""


@saved
@dataclass(frozen=True)
class LocalLevel(OnlineMethod):
    state_dim: int
    name: str = "local level"
    warm_up: int = WARM_UP

    def check(self, output_dim: int, input_dim: int) -> None:
        if output_dim != self.state_dim:
            raise InvalidInput(f"outputs: {output_dim} channel(s); expected as many as states, {self.state_dim}.")

    def guess(self, output: np.ndarray) -> np.ndarray:
        return output

    def initial_state(self, outputs: np.ndarray, inputs: np.ndarray) -> Level:
        zero = np.zeros(self.state_dim)
        return Level(zero, zero + P, zero)

    @staticmethod
    def step(key: Any, state: Level, y: Any, c: Any) -> tuple[Level, Any]:
        mean, var = state.mean + c.sum(), state.var + Q
        seen = ~jnp.isnan(y)
        error = jnp.where(seen, y - mean, 0.0)
        gain = jnp.where(seen, var / (var + R), 0.0)
        score = jnp.sum(jnp.where(seen, jax.scipy.stats.norm.logpdf(error, 0.0, jnp.sqrt(var + R)), 0.0))
        luck = jax.random.normal(key, mean.shape)  # as random as the key of this sample
        new = Level(mean + gain * error, (1 - gain) * var, state.total + error * luck)
        return new, Info(new.mean, jnp.diag(new.var), mean, jnp.sqrt(var + R), score)

    @staticmethod
    def paths(key: Any, state: Level, inputs: Any, num_paths: int) -> tuple[Any, Any]:
        keys = jax.random.split(key, 3)
        shape = num_paths, len(inputs), len(state.mean)
        start = state.mean + jnp.sqrt(state.var) * jax.random.normal(keys[0], (num_paths, 1, len(state.mean)))
        steps = jnp.sqrt(Q) * jax.random.normal(keys[1], shape) + inputs.sum(axis=1)[:, None]
        states = start + jnp.cumsum(steps, axis=1)
        return states, states + jnp.sqrt(R) * jax.random.normal(keys[2], shape)
