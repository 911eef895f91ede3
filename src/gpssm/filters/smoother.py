"""The ensemble smoother: states given all samples, a stretch of them at a time, from the last one to the first."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpssm.filters.ensemble import safe_cholesky, sample_moments
from gpssm.numerics.linalg import solve_lower, solve_lower_transposed


class Backwards(NamedTuple):
    """Where a smoother has come to: the members of a sample given all, and as they were predicted."""

    smoothed: Float[Array, "n dx"]
    predicted: Float[Array, "n dx"]


def smooth(
    members: Float[Array, "t n dx"], predicted: Float[Array, "t n dx"], ahead: Backwards, last: Int[Array, ""] | int
) -> tuple[Backwards, tuple[Float[Array, "t dx"], Float[Array, "t dx dx"]]]:
    """Means (T, dx) and covariances (T, dx, dx) given all observations, by Rauch, Tung and Striebel.

        x^s_t = x_t + J_t (x^s_{t+1} - xbar_{t+1}),   J_t = cov(x_t, xbar_{t+1}) cov(xbar_{t+1})^{-1}

    member by member, with covariances of the ensemble. Cost O(T (n dx^2 + dx^3)).

    Args:
        members, predicted: of every sample of a stretch, as filtered and as predicted.
        ahead: where the smoother is after the stretch.
        last: the row of the last sample of all, which `ahead` says nothing about; -1 if it comes later.

    Returns:
        Where the smoother is before the stretch, and the moments.
    """

    def body(ahead: Backwards, now: tuple[Array, Array, Array]) -> tuple[Backwards, tuple[Array, Array]]:
        members, predicted, row = now
        anomalies = members - jnp.mean(members, axis=0)
        away = ahead.predicted - jnp.mean(ahead.predicted, axis=0)
        scale = 1.0 / (members.shape[0] - 1)
        chol = safe_cholesky(away.T @ away * scale)
        half = solve_lower(chol, away.T @ anomalies * scale)
        gain_t = solve_lower_transposed(chol, half)
        smoothed = jnp.where(row == last, members, members + (ahead.smoothed - ahead.predicted) @ gain_t)
        return Backwards(smoothed, predicted), sample_moments(smoothed)

    return jax.lax.scan(body, ahead, (members, predicted, jnp.arange(len(members))), reverse=True)
