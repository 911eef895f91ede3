"""Settings of the whole test process, made before JAX starts; and helpers shared by the files."""

import os

# One core per worker: XLA sizes its thread pool by the cores it may use, and a pool that shares
# its cores with other workers is far slower than a single thread.
if hasattr(os, "sched_setaffinity"):
    # Workers inherit the affinity of the process that started them, which has pinned itself already.
    _cores = os.environ.setdefault("GPSSM_TEST_CORES", ",".join(map(str, sorted(os.sched_getaffinity(0))))).split(",")
    _worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {int(_cores[_worker % len(_cores)])})

import jaxtyping

# Shapes and types of the array layers are checked at every call. The public entry points are
# left out: what they do with a wrong type is itself under test.
jaxtyping.install_import_hook(
    [
        "gpssm.fastmath",
        "gpssm.filters",
        "gpssm.gp",
        "gpssm.linalg",
        "gpssm.models",
        "gpssm.parameters",
        "gpssm.scaling",
        "gpssm.windows",
    ],
    "beartype.beartype",
)

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)


@pytest.fixture(scope="session")
def central_differences() -> Callable[..., np.ndarray]:
    """Gradient of a scalar function of a tree of arrays, by central differences, as one flat array."""

    def gradient(function: Callable[[Any], Any], tree: Any, step: float = 1e-6) -> np.ndarray:
        leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: np.array(leaf, dtype=float), tree))
        result = []
        for leaf in leaves:
            for index in np.ndindex(leaf.shape):
                centre = leaf[index]
                h = step * max(1.0, abs(centre))
                values = []
                for shifted in (centre + h, centre - h):
                    leaf[index] = shifted
                    values.append(float(function(jax.tree.unflatten(structure, [a.copy() for a in leaves]))))
                leaf[index] = centre
                result.append((values[0] - values[1]) / (2 * h))
        return np.array(result)

    return gradient
