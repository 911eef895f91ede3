"""q(x_0) of every window, read from its first samples by a network."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.gp.sparse import standard_normal_kl
from gpssm.models.gpssm import InitialState
from gpssm.numerics.linalg import solve_lower
from gpssm.numerics.networks import GRU, Dense, readable, readable_width
from gpssm.training.windows import Windows

LENGTH, WIDTH = 16, 16
_SPREAD = 0.3  # standardised


class Gaussians(eqx.Module):
    """`N(mean, chol chol^T)`, one for every window."""

    mean: Float[Array, "b dx"]
    chol: Float[Array, "b dx dx"]

    def members(self, eps: Float[Array, "b n dx"]) -> Float[Array, "b n dx"]:
        return self.mean[:, None] + jnp.einsum("bij,bnj->bni", self.chol, eps)

    def draw(self, key: Array, count: int) -> Float[Array, "b n dx"]:
        """`count` states of every window."""
        return self.members(jax.random.normal(key, (len(self.mean), count, self.mean.shape[1]), self.mean.dtype))

    def kl(self, prior: InitialState) -> Float[Array, ""]:
        """Divergence from p(x_0), summed over the windows."""
        prior_chol = jnp.asarray(prior.prior_chol)

        def one(mean: Array, chol: Array) -> Array:
            whitened = solve_lower(prior_chol, (mean - prior.prior_mean)[:, None])[:, 0]
            return standard_normal_kl(whitened, solve_lower(prior_chol, chol))

        return jnp.sum(jax.vmap(one)(self.mean, self.chol))


class Recognition(eqx.Module):
    """A recurrent network over the first samples of a window, read backwards, so that it ends where x_0 is."""

    reader: GRU
    head: Dense

    @classmethod
    def start(cls, key: Array, state_dim: int, output_dim: int, input_dim: int) -> "Recognition":
        """Initialised with q(x_0) around the middle of the data."""
        key_reader, key_head = jax.random.split(key)
        head = Dense.start(key_head, WIDTH, 2 * state_dim, scale=0.3)
        bias = np.concatenate([np.zeros(state_dim), np.full(state_dim, np.log(_SPREAD))])
        return cls(GRU.start(key_reader, readable_width(output_dim, input_dim), WIDTH), Dense(head.weight, bias))

    def __call__(self, windows: Windows) -> Gaussians:
        read = readable(windows.outputs[:, :LENGTH], windows.inputs[:, :LENGTH])
        mean, log_std = jnp.split(self.head(self.reader(read, reverse=True)[:, 0]), 2, axis=-1)
        return Gaussians(mean, jax.vmap(jnp.diag)(jnp.exp(log_std)))
