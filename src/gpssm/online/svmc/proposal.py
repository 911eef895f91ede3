"""The proposal of SVMC: a network moves and stretches the Gaussian p(x_t | x_{t-1}, y_t) of a linearised g."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from gpssm.numerics.linalg import solve_lower_transposed
from gpssm.numerics.networks import MLP
from gpssm.online.svmc.filtering import Conditioned, SVMCState

_FARTHEST, _WIDEST = 3.0, 1.0  # that the network may move the proposal, and stretch it (logarithm)


def readable(state: SVMCState, s: Array, of: Conditioned) -> Array:
    """What the network sees of a particle: where it comes from, and what the sample says; in no unit."""
    mean, variance = state.spread
    dx = len(mean)
    origin = (s[:, :dx] - mean) / jnp.sqrt(variance)
    control = (s[:, dx:] - state.basis.shift[dx:]) / state.basis.scale[dx:]
    return jnp.clip(jnp.concatenate([origin, control, of.score], axis=1), -5.0, 5.0)


def displacement(network: MLP, read: Array) -> tuple[Array, Array]:
    """How far the proposal is moved, and the logarithm of its stretch."""
    shift, stretch = jnp.split(jnp.tanh(network(read)), 2, axis=1)
    return _FARTHEST * shift, _WIDEST * stretch


def propose(network: MLP, read: Array, of: Conditioned, eps: Array) -> tuple[Array, Array]:
    """Draws of x_t, and the same in coordinates in which the linearised posterior is N(0, I)."""
    shift, stretch = displacement(network, read)
    z = shift + jnp.exp(stretch) * eps

    def one(centre: Array, chol: Array, z: Array) -> Array:
        return centre + solve_lower_transposed(chol, z[:, None])[:, 0]

    return jax.vmap(one)(of.centre, of.chol, z), z


def log_proposal(network: MLP, read: Array, z: Array) -> Array:
    """Log-density of z, relative to N(0, I) at its centre."""
    shift, stretch = displacement(network, read)
    return jnp.sum(-0.5 * ((z - shift) / jnp.exp(stretch)) ** 2 - stretch, axis=1)
