"""CPU time of one training iteration beside what XLA needs for its products and exponentials alone.

    python benchmarks/iteration.py [--json]

One iteration is the value and the gradient of the evidence bound. The floor is the time that XLA takes, on the same
core and in the same run, for the batched products and exponentials of f: forwards, forwards again as on the way back,
and their gradient. Both are medians of CPU time, pinned to one core.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

from gpssm.methods.envi import Data, EnVI, Phase, elbo
from gpssm.numerics.parameters import free_values, parameters, with_free_values
from gpssm.plumbing.compilation import HOT
from gpssm.training import initialisation

CASES = {
    # name: (windows, steps, states, inputs, inducing points, members, milliseconds allowed)
    "kink 30x20": (30, 20, 1, 0, 15, 100, 25.0),
    "kink 1x600": (1, 600, 1, 0, 15, 100, 25.0),
    "system identification 10x50": (10, 50, 4, 1, 20, 50, 60.0),
}


def iteration(windows: int, steps: int, dx: int, dc: int, inducing: int, members: int) -> tuple[float, float]:
    """Milliseconds of CPU time for one value and gradient, and seconds to compile it."""
    rng = np.random.default_rng(0)
    y, c = rng.standard_normal((windows * steps, 1)).cumsum(axis=0), rng.standard_normal((windows * steps, dc))
    method = EnVI(dx, inducing, num_members=members, window=steps)
    problem = method.problem([y], [c])
    names = [p.name for p in parameters(problem.model) if p.name not in problem.held]
    carry = initialisation.ensembles(problem, members, jax.random.key(1), jnp.float64)
    phase = Phase(0.7 if problem.hidden else 0.0)
    model, data = jax.tree.map(jnp.asarray, (problem.model, Data(problem.windows, phase)))
    free = free_values(model, names)

    @partial(jax.jit, compiler_options=HOT)
    def step(free: dict[str, jax.Array], carry: jax.Array, key: jax.Array) -> object:
        def loss(free: dict[str, jax.Array]) -> tuple[jax.Array, object]:
            return elbo(with_free_values(model, free), carry, data, key, problem.settings)

        return jax.value_and_grad(loss, has_aux=True)(free)

    started = time.perf_counter()
    compiled = step.lower(free, carry, jax.random.key(0)).compile()
    compile_seconds = time.perf_counter() - started
    return _median_ms(lambda i: jax.block_until_ready(compiled(free, carry, jax.random.key(i)))), compile_seconds


def floor(windows: int, steps: int, dx: int, dc: int, inducing: int, members: int) -> float:
    """Milliseconds XLA needs for the products and exponentials of one iteration, and for nothing else of it.

    What is differentiated goes through the steps as an iteration does: forwards, and on the way back through every
    step again and then through its gradient, in the same shapes.
    """
    rng = np.random.default_rng(0)
    rows, width = windows * members, 2 * (dx + dc) + 1
    weights = jnp.asarray(0.1 * rng.standard_normal((dx, inducing, width)))
    whitener = jnp.asarray(0.1 * rng.standard_normal((dx, inducing, inducing)))
    alphas = jnp.asarray(0.1 * rng.standard_normal((dx, windows, 1, inducing)))
    inputs = jnp.asarray(rng.standard_normal((steps, dc, rows)))
    first = jnp.asarray(rng.standard_normal((dx, rows)))

    def work(weights: jax.Array, whitener: jax.Array, alphas: jax.Array, inputs: jax.Array) -> jax.Array:
        def body(x: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
            z = jnp.concatenate([x, c])
            kernel = jnp.exp(weights @ jnp.concatenate([z * z, z, jnp.ones((1, rows))]))  # (dx, inducing, rows)
            side = jnp.swapaxes(kernel.reshape(dx, inducing, windows, members), 1, 2)
            return (alphas @ side).reshape(dx, rows), jnp.sum((whitener @ kernel) ** 2)

        last, spreads = jax.lax.scan(jax.checkpoint(body), first, inputs)
        return jnp.sum(last) + jnp.sum(spreads)

    arguments = weights, whitener, alphas, inputs
    gradient = jax.jit(jax.value_and_grad(work, argnums=(0, 1, 2)), compiler_options=HOT)
    compiled = gradient.lower(*arguments).compile()
    return _median_ms(lambda _: jax.block_until_ready(compiled(*arguments)))


def _median_ms(call: Callable[[int], object], repeats: int = 15) -> float:
    times = []
    for i in range(repeats + 2):
        started = time.process_time()
        call(i)
        times.append(1e3 * (time.process_time() - started))
    return float(np.median(times[2:]))


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    rows = []
    for name, (*sizes, allowed) in CASES.items():
        took, compile_seconds = iteration(*sizes)
        least = floor(*sizes)
        rows.append(
            {
                "case": name,
                "ms": took,
                "floor_ms": least,
                "ratio": took / least,
                "allowed_ms": allowed,
                "compile_s": compile_seconds,
            }
        )
    if "--json" in sys.argv:
        print(json.dumps(rows))
        return
    print(f"{'one value and gradient, float64':<32}{'ms':>8}{'floor':>8}{'ratio':>8}{'allowed':>9}{'compile s':>11}")
    for row in rows:
        print(
            f"{row['case']:<32}{row['ms']:>8.1f}{row['floor_ms']:>8.1f}{row['ratio']:>8.2f}"
            f"{row['allowed_ms']:>9.0f}{row['compile_s']:>11.1f}"
        )


if __name__ == "__main__":
    main()
