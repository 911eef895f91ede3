"""Random numbers of many shapes from one stream.

Every stream that a program draws from is a hundred operations to be compiled; a block of numbers that is cut to pieces
is one stream.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Shape = tuple[int, ...]


def draw(key: Array, normal: Sequence[Shape], uniform: Sequence[Shape] = (), *, dtype: jnp.dtype) -> list[Array]:
    """Arrays of standard normal numbers, then arrays of numbers that are uniform on [0, 1), of these shapes.

    Drawn in single precision: seven digits of a random number are enough, at half the cost.

    >>> [a.shape for a in draw(jax.random.key(0), [(2, 3), (4,)], [(5,)], dtype=jnp.float32)]
    [(2, 3), (4,), (5,)]
    """
    sizes = [math.prod(shape) for shape in (*normal, *uniform)]
    count = sum(sizes[: len(normal)])
    lowest = float(np.nextafter(np.float32(-1.0), np.float32(0.0)))
    flat = jax.random.uniform(key, (sum(sizes),), jnp.float32, lowest, 1.0)
    normals = (math.sqrt(2.0) * jax.lax.erf_inv(flat[:count])).astype(dtype)
    uniforms = (0.5 * (flat[count:] + 1.0)).astype(dtype)
    ends = np.cumsum(sizes)
    parts = []
    for shape, size, end in zip((*normal, *uniform), sizes, ends, strict=True):
        source, offset = (normals, 0) if end <= count else (uniforms, count)
        parts.append(source[end - size - offset : end - offset].reshape(shape))
    return parts
