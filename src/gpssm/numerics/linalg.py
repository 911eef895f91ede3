"""Small dense factorisations that stay inside a compiled time loop.

A LAPACK call costs microseconds and cannot be fused; for the few channels and states that most
series have, the same factor written out as scalar arithmetic is several times faster, forward
and backward. Larger matrices go to LAPACK.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float

_UNROLL = 4


def cholesky(a: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Lower Cholesky factor. Cost O(n^3)."""
    n = a.shape[0]
    if n > _UNROLL:
        return jnp.linalg.cholesky(a)
    entries: dict[tuple[int, int], Array] = {}
    for i in range(n):
        for j in range(i + 1):
            rest = a[i, j]
            for k in range(j):
                rest = rest - entries[i, k] * entries[j, k]
            entries[i, j] = jnp.sqrt(rest) if i == j else rest / entries[j, j]
    zero = jnp.zeros((), a.dtype)
    return jnp.stack([jnp.stack([entries.get((i, j), zero) for j in range(n)]) for i in range(n)])


def solve_lower(lower: Float[Array, "n n"], b: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """`lower^{-1} b`. Cost O(n^2 k)."""
    n = lower.shape[0]
    if n > _UNROLL:
        return jsl.solve_triangular(lower, b, lower=True)
    rows: list[Array] = []
    for i in range(n):
        rest = b[i]
        for k in range(i):
            rest = rest - lower[i, k] * rows[k]
        rows.append(rest / lower[i, i])
    return jnp.stack(rows)


def solve_lower_transposed(lower: Float[Array, "n n"], b: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """`lower^{-T} b`. Cost O(n^2 k)."""
    n = lower.shape[0]
    if n > _UNROLL:
        return jsl.solve_triangular(lower, b, lower=True, trans=1)
    rows: dict[int, Array] = {}
    for i in reversed(range(n)):
        rest = b[i]
        for k in range(i + 1, n):
            rest = rest - lower[k, i] * rows[k]
        rows[i] = rest / lower[i, i]
    return jnp.stack([rows[i] for i in range(n)])


def gaussian_log_density(whitened: Float[Array, " n"], chol: Float[Array, "n n"], count: Array) -> Float[Array, ""]:
    """`log N(r | 0, chol chol^T)` from `whitened = chol^{-1} r`, over `count` channels.

    A missing channel has a unit diagonal in `chol` and a zero in `whitened`, so that only the
    normalising constant needs to know how many channels there are.
    """
    log_det = jnp.sum(jnp.log(jnp.diagonal(chol)))
    return -0.5 * (jnp.sum(whitened**2) + count * jnp.log(2 * jnp.pi)) - log_det


def symmetric_root(cov: Any) -> Any:
    """The symmetric S with S S = `cov` (..., n, n), in NumPy or JAX as `cov` is. Cost O(n^3).

    The covariance may be singular, and a little indefinite from rounding. Eigenvectors alone would be a root, too,
    but rounding decides their signs, and with them all draws.
    """
    xp: Any = jnp if isinstance(cov, jax.Array) else np
    values, vectors = xp.linalg.eigh(cov)
    return vectors * xp.sqrt(xp.maximum(values, 0.0))[..., None, :] @ xp.swapaxes(vectors, -1, -2)
