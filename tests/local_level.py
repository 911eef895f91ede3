"""The command line with a small online method in place of OEnVI: `python tests/local_level.py stream ...`.

Its exact filter is an oracle for every number that is printed, and it is compiled in no time. Every channel is a
random walk, moved by the inputs and seen with noise:

    x_t = x_{t-1} + sum(u_t) + w_t,  w ~ N(0, Q),        y_t = x_t + v_t,  v ~ N(0, R),        x_0 ~ N(0, P)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

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
class LocalLevel:
    state_dim: int
    name = "local level"
    warm_up = WARM_UP
    trial = 0
    input_lags = 1

    def check(self, output_dim: int, input_dim: int) -> None:
        from gpssm.errors import InvalidInput

        if output_dim != self.state_dim:
            raise InvalidInput(f"outputs: {output_dim} channel(s); expected as many as states, {self.state_dim}.")

    def guess(self, output: np.ndarray) -> np.ndarray:
        return output

    def begin(self, outputs: np.ndarray, inputs: np.ndarray) -> Level:
        zero = np.zeros(self.state_dim)
        return Level(zero, zero + P, zero)

    def settled(self, state: Level) -> Level:
        return state

    @staticmethod
    def step(key: Any, state: Level, y: Any, u: Any) -> tuple[Level, Any]:
        import jax
        import jax.numpy as jnp

        from gpssm.online.stream import Info

        mean, var = state.mean + u.sum(), state.var + Q
        seen = ~jnp.isnan(y)
        error = jnp.where(seen, y - mean, 0.0)
        gain = jnp.where(seen, var / (var + R), 0.0)
        score = jnp.sum(jnp.where(seen, jax.scipy.stats.norm.logpdf(error, 0.0, jnp.sqrt(var + R)), 0.0))
        luck = jax.random.normal(key, mean.shape)  # as random as the key of this sample
        new = Level(mean + gain * error, (1 - gain) * var, state.total + error * luck)
        return new, Info(new.mean, jnp.diag(new.var), mean, jnp.sqrt(var + R), score)

    @staticmethod
    def paths(key: Any, state: Level, inputs: Any, num_paths: int) -> tuple[Any, Any]:
        import jax
        import jax.numpy as jnp

        keys = jax.random.split(key, 3)
        shape = num_paths, len(inputs), len(state.mean)
        start = state.mean + jnp.sqrt(state.var) * jax.random.normal(keys[0], (num_paths, 1, len(state.mean)))
        steps = jnp.sqrt(Q) * jax.random.normal(keys[1], shape) + inputs.sum(axis=1)[:, None]
        states = start + jnp.cumsum(steps, axis=1)
        return states, states + jnp.sqrt(R) * jax.random.normal(keys[2], shape)

    @staticmethod
    def transition(state: Level, x: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    @staticmethod
    def process_noise(state: Level) -> Any:
        raise NotImplementedError

    @staticmethod
    def posterior(state: Level) -> Any:
        raise NotImplementedError


def put_in_place(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    from gpssm.cli import stream
    from gpssm.online.stream import Stream

    replace(stream, "_new_stream", lambda choices: Stream(LocalLevel(choices.state_dim), choices.seed))


def main() -> None:
    from gpssm.cli.main import main
    from gpssm.live import signals

    class Stop(signals.Stop):
        """When the command has come to import JAX, and not before: what signals do until then is tested, too."""

        def __enter__(self) -> signals.Stop:
            super().__enter__()
            put_in_place()
            return self

    signals.Stop = Stop
    main()


if __name__ == "__main__":
    from local_level import main  # a checkpoint names the module of its classes

    main()
