"""The Gaussian process state-space model.

    f_d ~ GP(mean_d, k_d)          d = 1..dx
    x_t = f(x_{t-1}, c_t) + v_t    v_t ~ N(0, Q)                                      (Eq. 4)
    y_t = g(x_t) + e_t             e_t ~ N(0, R), or another likelihood               (Eq. 5)

A model works in standardised units throughout; `gpssm.models.scaling` translates to the user's.
"""

from typing import Annotated, Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.gp.means import Mean
from gpssm.gp.sparse import MIN_VARIANCE, Conditional, SparseGP, standard_normal_kl
from gpssm.models.emission import Emission
from gpssm.models.noise import DiagonalNoise, FullNoise, Likelihood, Noise
from gpssm.numerics.linalg import solve_lower
from gpssm.numerics.parameters import Leaf, as_array, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Cholesky, Stacked, renamed, shape


class Dynamics(eqx.Module):
    """`[x, c] -> mean of f, and what is not known of it`, one GP per state dimension.

    What is not known of f at every row is a batch of noises: diagonal where the GPs are independent; where
    they are mixed by a matrix W, full with the factors `W diag(var)^{1/2}`.
    """

    mean: Mean
    conditionals: Conditional  # every leaf has a leading axis of length dx
    mixing: Leaf  # (dx, dx), or None

    def __call__(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n dx"], Noise]:
        residual, var = jax.vmap(lambda conditional: conditional(x))(self.conditionals)
        return self._mixed(self.mean(x), residual.T, var.T)

    def _mixed(self, mean: Array, residual: Array, var: Array) -> tuple[Array, Noise]:
        if self.mixing is None:
            return mean + residual, DiagonalNoise(var)
        return mean + residual @ self.mixing.T, FullNoise(self.mixing * jnp.sqrt(var)[..., None, :])

    def given(self, alpha: Float[Array, "dx m"]) -> "Dynamics":
        """The same for another sample of u, by its weights."""
        return eqx.tree_at(lambda d: d.conditionals.alpha, self, alpha)

    def side_by_side(
        self, x: Float[Array, "b n d"], alphas: Float[Array, "b dx m"]
    ) -> tuple[Float[Array, "b n dx"], Noise]:
        """`self.given(alphas[i])(x[i])` for all i at once.

        All rows go through one kernel evaluation and one product per state dimension; only the
        means need to know which sample of u is theirs. Three times faster, with its gradient,
        than mapping over the samples.
        """
        (b, n, d), dx = x.shape, alphas.shape[1]
        rows = x.reshape(b * n, d)
        k = jax.vmap(lambda c: c.cross(rows))(self.conditionals)
        diag = jax.vmap(lambda c: c.kernel.diag(rows))(self.conditionals)
        var = jnp.maximum(diag - jnp.sum((self.conditionals.whitener @ k) ** 2, axis=1), MIN_VARIANCE)
        weights = jnp.moveaxis(alphas, 0, 2)[..., None]  # (dx, m, b, 1)
        residual = jnp.sum(k.reshape(dx, -1, b, n) * weights, axis=1)
        mean = self.mean(rows).reshape(b, n, dx)
        return self._mixed(mean, jnp.moveaxis(residual, 0, 2), var.T.reshape(b, n, dx))


@saved
class Transition(eqx.Module):
    """The unknown f: a mean function plus one sparse GP per state dimension, `f = mean + W g`.

    Args:
        mean: of f, from `[x, c]` (n, dx + dc) to (n, dx).
        gp: every array of it has a leading axis of length dx.
        mixing: W (dx, dx), or None where the dimensions are independent.

    >>> from gpssm.gp import RBF, Identity
    >>> one = SparseGP(RBF(), [[0.0], [1.0]], [0.0, 0.0], jnp.eye(2))  # q(u) = p(u)
    >>> f = Transition(Identity(1), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], one))
    >>> mean, noise = f.marginal()(jnp.array([[5.0]]))
    >>> mean.tolist(), round(float(noise.variance[0, 0]), 3), float(f.kl())
    ([[5.0]], 1.0, 0.0)
    """

    mean: Mean
    gp: Annotated[SparseGP, Stacked("dx")]
    mixing: Annotated[Leaf, shape("dx dx")] = parameter("real", default=None)

    @property
    def state_dim(self) -> int:
        return int(self.gp.q_mean.shape[0])

    @property
    def num_inducing(self) -> int:
        return int(self.gp.q_mean.shape[1])

    def prior(self) -> Dynamics:
        """f given u = 0: everything that `draw` does not change, computed once."""
        return Dynamics(self.mean, jax.vmap(lambda gp: gp.prior())(self.gp), self.mixing)

    def draw(self, prior: Dynamics, eps: Float[Array, "dx m"]) -> Float[Array, "dx m"]:
        """The weights `alpha` of f under the `prior`, for a reparameterised sample of u; `eps` is standard normal."""

        def one(gp: SparseGP, whitener: Array, e: Array) -> Array:
            return whitener.T @ gp.draw(e)

        return jax.vmap(one)(self.gp, prior.conditionals.whitener, eps)

    def marginal(self) -> Dynamics:
        """f with u integrated out."""
        return Dynamics(self.mean, jax.vmap(lambda gp: gp.marginal())(self.gp), self.mixing)

    def kl(self) -> Float[Array, ""]:
        """`KL[q(u) || p(u)]`, summed over state dimensions."""
        return jnp.sum(jax.vmap(lambda gp: gp.kl())(self.gp))


class TransitionLike(Protocol):
    """What a model asks of its f."""

    @property
    def state_dim(self) -> int: ...

    @property
    def num_inducing(self) -> int: ...

    def prior(self) -> Any: ...

    def draw(self, prior: Any, eps: Float[Array, "dx m"]) -> Float[Array, "dx m"]: ...

    def marginal(self) -> Any: ...

    def kl(self) -> Float[Array, ""]: ...


@saved
class InitialState(eqx.Module):
    """`q(x_0) = N(mean, chol chol^T)` of every sequence, and the prior `p(x_0)` they share.

    Args:
        mean: (sequences, dx).
        chol: (sequences, dx, dx), lower triangular.
        prior_mean: (dx,).
        prior_chol: (dx, dx), lower triangular.

    >>> initial = InitialState([[0.0]], [[[1.0]]], [0.0], [[1.0]])
    >>> float(initial.kl()), initial.members(jnp.ones((1, 3, 1))).shape
    (0.0, (1, 3, 1))
    """

    mean: Annotated[Leaf, shape("s dx")] = parameter("real")
    chol: Annotated[Leaf, shape("s dx dx")] = parameter("cholesky")
    prior_mean: Annotated[Leaf, shape("dx")] = eqx.field(converter=as_array)
    prior_chol: Annotated[Cholesky[Leaf], shape("dx dx")] = eqx.field(converter=as_array)

    def members(self, eps: Float[Array, "s n dx"]) -> Float[Array, "s n dx"]:
        """Reparameterised draws of `x_0`, for every sequence; `eps` (s, n, dx) is standard normal."""
        return self.mean[:, None] + jnp.einsum("sij,snj->sni", jnp.tril(self.chol), eps)

    def draw(self, key: Array, count: int) -> Float[Array, "s n dx"]:
        """`count` states of every sequence, by the random `key`."""
        shape = (len(self.mean), count, self.mean.shape[1])
        return self.members(jax.random.normal(key, shape, self.mean.dtype))

    def prior_members(self, eps: Float[Array, "n dx"]) -> Float[Array, "n dx"]:
        """Draws of p(x_0) from standard normal ones `eps` (n, dx), for a recording that was not trained on."""
        return self.prior_mean + eps @ jnp.asarray(self.prior_chol).T

    def kl(self) -> Float[Array, ""]:
        """`KL[q(x_0) || p(x_0)]`, summed over sequences."""

        def one(mean: Array, chol: Array) -> Array:
            whitened_mean = solve_lower(jnp.asarray(self.prior_chol), (mean - self.prior_mean)[:, None])[:, 0]
            return standard_normal_kl(whitened_mean, solve_lower(jnp.asarray(self.prior_chol), jnp.tril(chol)))

        return jnp.sum(jax.vmap(one)(jnp.asarray(self.mean), jnp.asarray(self.chol)))


@saved
class GPSSM(eqx.Module):
    """All that is learned, in standardised units; names of parameters are the dotted paths of its fields.

    Args:
        transition: f.
        process_noise: `N(0, Q)`.
        emission: g.
        obs_noise: `p(y | g(x))`, Gaussian noise or another likelihood.
        initial_state: q(x_0) of every recording and p(x_0).

    >>> from gpssm import EnVI, Schedule
    >>> model = EnVI(1, 3, schedule=Schedule(max_steps=1)).fit([[0.1], [0.3], [0.2], [0.5], [0.4]]).model
    >>> model.state_dim, model.num_inducing, model.emission.matrix.shape
    (1, 3, (1, 1))
    """

    transition: Annotated[Any, TransitionLike]
    """A `Transition`, or what has its methods and properties: `models.neural.NeuralTransition`."""
    process_noise: Annotated[Noise, renamed(n="dx")]
    emission: Emission
    obs_noise: Annotated[Likelihood, renamed(n="dy")]
    initial_state: InitialState

    @property
    def state_dim(self) -> int:
        """dx."""
        return int(self.transition.state_dim)

    @property
    def num_inducing(self) -> int:
        """M, the number of inducing points of every state; 0 if f is a network."""
        return int(self.transition.num_inducing)
