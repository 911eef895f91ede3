"""A linear mean function that is kept a contraction.

A bound that looks few steps ahead is blind to a mode that grows by some per cent per step, with which a free run
over hundreds of steps explodes; a contraction plus a GP is bounded. Any stable linear system is one in suitable
hidden coordinates.
"""

import equinox as eqx
import jax.numpy as jnp

from gpssm.gp.means import Linear
from gpssm.models.gpssm import GPSSM

_MAX_NORM = 0.995


def contracted(model: GPSSM) -> GPSSM:
    """The model with `A <- A min(1, max_norm / |A|_2)` in its linear mean function, if it has one."""
    mean = model.transition.mean
    if not isinstance(mean, Linear):
        return model
    dx, weight = model.state_dim, jnp.asarray(mean.weight)
    norm = jnp.sqrt(jnp.linalg.eigvalsh(weight[:, :dx] @ weight[:, :dx].T)[-1])
    factors = jnp.where(jnp.arange(weight.shape[1]) < dx, jnp.minimum(1.0, _MAX_NORM / norm), 1.0)
    return eqx.tree_at(lambda m: m.transition.mean.weight, model, weight * factors)
