"""The Gaussian process state-space model.

    f_d ~ GP(mean_d, k_d)          d = 1..dx
    x_t = f(x_{t-1}, c_t) + v_t    v_t ~ N(0, Q)                                      (Eq. 4)
    y_t = g(x_t) + e_t             e_t ~ N(0, R)                                      (Eq. 5)

A model works in standardised units throughout; `gpssm.scaling` translates to the user's.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.gp.means import Mean
from gpssm.gp.sparse import Conditional, SparseGP, standard_normal_kl
from gpssm.linalg import solve_lower
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.parameters import as_array, parameter


class Dynamics(eqx.Module):
    """`[x, c] -> mean and variance of f`, one independent GP per state dimension."""

    mean: Mean
    conditionals: Conditional  # every leaf has a leading axis of length dx

    def __call__(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n dx"], Float[Array, "n dx"]]:
        residual, var = jax.vmap(lambda conditional: conditional(x))(self.conditionals)
        return self.mean(x) + residual.T, var.T

    def given(self, alpha: Float[Array, "dx m"]) -> "Dynamics":
        """The same with other weights: under `vmap` over many samples of u only `alpha` is batched."""
        return eqx.tree_at(lambda d: d.conditionals.alpha, self, alpha)


class Transition(eqx.Module):
    """The unknown f: a mean function plus one sparse GP per state dimension.

    Every array of `gp` has a leading axis of length `state_dim`.
    """

    mean: Mean
    gp: SparseGP

    def prior(self) -> Dynamics:
        """f given u = 0: everything that `draw` does not change, computed once."""
        return Dynamics(self.mean, jax.vmap(lambda gp: gp.prior())(self.gp))

    def draw(self, prior: Dynamics, eps: Float[Array, "dx m"]) -> Float[Array, "dx m"]:
        """The weights `alpha` of f for a reparameterised sample of u; `eps` is standard normal."""

        def one(gp: SparseGP, explained: Array, e: Array) -> Array:
            return explained @ gp.draw(e)

        return jax.vmap(one)(self.gp, prior.conditionals.explained, eps)

    def marginal(self) -> Dynamics:
        """f with u integrated out."""
        return Dynamics(self.mean, jax.vmap(lambda gp: gp.marginal())(self.gp))

    def kl(self) -> Float[Array, ""]:
        """`KL[q(u) || p(u)]`, summed over state dimensions."""
        return jnp.sum(jax.vmap(lambda gp: gp.kl())(self.gp))


class DiagonalNoise(eqx.Module):
    """`N(0, diag(variance))`. Parameter: `variance` (n,)."""

    variance: Array = parameter("positive")

    @property
    def covariance(self) -> Float[Array, "n n"]:
        return jnp.diag(jnp.asarray(self.variance))

    @property
    def factor(self) -> Float[Array, " n"]:
        """What `filters.ensemble.predict` takes."""
        return jnp.asarray(self.variance)


class FullNoise(eqx.Module):
    """`N(0, chol chol^T)`. Parameter: `chol` (n, n), lower triangular."""

    chol: Array = parameter("cholesky")

    @property
    def covariance(self) -> Float[Array, "n n"]:
        return jnp.asarray(self.chol @ self.chol.T)

    @property
    def factor(self) -> Float[Array, "n n"]:
        return jnp.asarray(self.chol)


class InitialState(eqx.Module):
    """`q(x_0) = N(mean, chol chol^T)` of every sequence, and the prior `p(x_0)` they share.

    Parameters: `mean` (sequences, dx), `chol` (sequences, dx, dx).
    """

    mean: Array = parameter("real")
    chol: Array = parameter("cholesky")
    prior_mean: Array = eqx.field(converter=as_array)
    prior_chol: Array = eqx.field(converter=as_array)

    def members(self, eps: Float[Array, "s n dx"]) -> Float[Array, "s n dx"]:
        """Reparameterised draws of `x_0`, for every sequence."""
        return self.mean[:, None] + jnp.einsum("sij,snj->sni", jnp.tril(self.chol), eps)

    def kl(self) -> Float[Array, ""]:
        """`KL[q(x_0) || p(x_0)]`, summed over sequences."""

        def one(mean: Array, chol: Array) -> Array:
            whitened_mean = solve_lower(jnp.asarray(self.prior_chol), (mean - self.prior_mean)[:, None])[:, 0]
            return standard_normal_kl(whitened_mean, solve_lower(jnp.asarray(self.prior_chol), jnp.tril(chol)))

        return jnp.sum(jax.vmap(one)(jnp.asarray(self.mean), jnp.asarray(self.chol)))


class GPSSM(eqx.Module):
    """All that is learned. Names of its parameters are the dotted paths of its fields."""

    transition: Transition
    process_noise: DiagonalNoise | FullNoise
    emission: LinearEmission | FunctionEmission
    obs_noise: DiagonalNoise
    initial_state: InitialState

    @property
    def state_dim(self) -> int:
        return int(self.transition.gp.q_mean.shape[0])

    @property
    def num_inducing(self) -> int:
        return int(self.transition.gp.q_mean.shape[1])
