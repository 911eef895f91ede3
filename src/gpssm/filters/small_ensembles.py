"""Remedies for ensembles that are small beside the state: rotation of the members, and localisation."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def rotate(members: Float[Array, "n dx"], noise: Float[Array, "m m"]) -> Float[Array, "n dx"]:
    """Replace members by others with the same mean and covariance, at random; `noise` is standard normal, m = n - 1.

    A square-root update is deterministic: where nothing else is random either, it gathers the spread of many steps
    in few members. A rotation of the anomalies that leaves their mean at zero spreads it again (Sakov and Oke,
    2008, "Implications of the form of the ensemble transformation"). Cost O(n^3 + n^2 dx).
    """
    n, dtype = members.shape[0], members.dtype
    q, r = jnp.linalg.qr(noise)
    rotation = q * jnp.sign(jnp.diagonal(r))  # uniform over the rotations (Mezzadri, 2007)
    # A reflection that takes the first axis to (1, ..., 1) takes the others to a basis of what sums to zero.
    axis = jnp.full(n, n**-0.5, dtype).at[0].add(-1.0)
    basis = (jnp.eye(n, dtype=dtype) - 2.0 * axis[:, None] * axis / (axis @ axis))[:, 1:]
    mean = jnp.mean(members, axis=0)
    return mean + basis @ (rotation @ (basis.T @ (members - mean)))


def gaspari_cohn(distance: Float[Array, "..."], radius: float) -> Float[Array, "..."]:
    """Gaspari and Cohn's compactly supported correlation (1999, Eq. 4.10), zero beyond `2 radius`."""
    r = jnp.abs(distance) / radius
    inner = 1 - 5 / 3 * r**2 + 5 / 8 * r**3 + r**4 / 2 - r**5 / 4
    safe = jnp.maximum(r, 0.5)
    outer = 4 - 5 * r + 5 / 3 * r**2 + 5 / 8 * r**3 - r**4 / 2 + r**5 / 12 - 2 / (3 * safe)
    return jnp.where(r <= 1, inner, jnp.where(r < 2, outer, 0.0))
