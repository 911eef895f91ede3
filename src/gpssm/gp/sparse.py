"""The sparse GP posterior q(u) of one scalar function, in whitened form.

    f ~ GP(0, k),   u = f(Z),   u = L v,   L L^T = k(Z, Z) + jitter I,   q(v) = N(m, S S^T)

Section IV.B of the paper, with `K_zz^{-1}` where it prints `(K_zz + Q)^{-1}`: inducing outputs
are noise-free, and the process noise is added once, by the model.
"""

from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

from gpssm.gp.kernels import Cross, Kernel
from gpssm.numerics.parameters import Leaf, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import shape

# Rounding can push a variance below zero next to an inducing input.
MIN_VARIANCE = 1e-10


def jitter_for(dtype: jnp.dtype) -> float:
    """Relative jitter on the diagonal of K_zz at which its Cholesky factor is safe."""
    return 1e-6 if dtype == jnp.float64 else 1e-4


class Conditional(eqx.Module):
    """`x -> mean and variance of f(x)`, everything but `x` folded into arrays.

    With `W = L^{-1}` the mean is `alpha^T k(Z,x)`, `alpha = W^T v`, and the variance
    `k(x,x) - |W k(Z,x)|^2`, plus `|S^T W k(Z,x)|^2` where u is integrated out. Cost of a call
    with n inputs: O(n M^2), no factorisation.
    """

    cross: Cross
    kernel: Kernel
    alpha: Float[Array, " m"]
    whitener: Float[Array, "m m"]  # W
    uncertain: Float[Array, "m m"] | None  # S^T W

    def __call__(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        k = self.cross(x)
        var = self.kernel.diag(x) - jnp.sum((self.whitener @ k) ** 2, axis=0)
        if self.uncertain is not None:
            var = var + jnp.sum((self.uncertain @ k) ** 2, axis=0)
        return self.alpha @ k, jnp.maximum(var, MIN_VARIANCE)


@saved
class SparseGP(eqx.Module):
    """Sparse Gaussian process with a free-form Gaussian over its inducing outputs.

    Args:
        kernel: of f.
        inducing_inputs: Z (M, d).
        q_mean: m (M,), whitened.
        q_chol: S (M, M), lower triangular, whitened.

    >>> from gpssm.gp import RBF
    >>> gp = SparseGP(RBF(), [[0.0], [5.0]], [2.0, 0.0], 1e-3 * jnp.eye(2))  # f(0) = 2
    >>> mean, variance = gp.marginal()(jnp.array([[0.0], [100.0]]))
    >>> [round(float(v), 2) for v in mean], [round(float(v), 2) for v in variance]
    ([2.0, 0.0], [0.0, 1.0])
    """

    kernel: Kernel
    inducing_inputs: Annotated[Leaf, shape("m d")] = parameter("real")
    q_mean: Annotated[Leaf, shape("m")] = parameter("real")
    q_chol: Annotated[Leaf, shape("m m")] = parameter("cholesky")

    def _whitener(self) -> Float[Array, "m m"]:
        """`W = L^{-1}`, computed once so that the time loop has no triangular solves."""
        z = jnp.asarray(self.inducing_inputs)
        gram = self.kernel(z, z)
        scale = jnp.mean(jnp.diagonal(gram))
        eye = jnp.eye(z.shape[0], dtype=gram.dtype)
        chol = jnp.linalg.cholesky(gram + jitter_for(gram.dtype) * scale * eye)
        return jsl.solve_triangular(chol, eye, lower=True)

    def prior(self) -> Conditional:
        """The GP given `u = 0`. For another `u = L v`, replace `alpha` by `whitener^T v`."""
        whitener = self._whitener()
        cross = self.kernel.at(jnp.asarray(self.inducing_inputs))
        return Conditional(cross, self.kernel, jnp.zeros_like(whitener[0]), whitener, None)

    def marginal(self) -> Conditional:
        """The GP with `u` integrated out: `q(f) = int p(f | u) q(u) du`."""
        prior = self.prior()
        alpha = prior.whitener.T @ self.q_mean
        uncertain = jnp.tril(self.q_chol).T @ prior.whitener
        return Conditional(prior.cross, prior.kernel, alpha, prior.whitener, uncertain)

    def draw(self, eps: Float[Array, " m"]) -> Float[Array, " m"]:
        """A reparameterised sample `v = m + S eps` of the whitened inducing outputs; `eps` (m,) is standard normal."""
        return self.q_mean + jnp.tril(self.q_chol) @ eps

    def kl(self) -> Float[Array, ""]:
        """`KL[q(u) || p(u)]`; whitened, it is the divergence from a standard normal."""
        return standard_normal_kl(jnp.asarray(self.q_mean), jnp.asarray(self.q_chol))


def standard_normal_kl(mean: Float[Array, " n"], chol: Float[Array, "n n"]) -> Float[Array, ""]:
    """`KL[N(mean, chol chol^T) || N(0, I)]`."""
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(chol)))
    return 0.5 * (jnp.sum(jnp.tril(chol) ** 2) + jnp.sum(mean**2) - mean.shape[0] - log_det)
