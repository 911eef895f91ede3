"""f as a linear function of features, for methods that learn it one sample at a time.

    f_d(s) = x_d + W_d h(s) + r_d(s),   h(s) = [phi(s), (s - shift) / scale, 1],   phi(s) = K^{-1} k(Z, s)

Row d of W holds the inducing outputs u_d of f_d(s) - x_d - linear_d(s) and the weights of a linear function, r_d the
part of f_d that u leaves open. All rows share inducing inputs and correlations; the variance of f_d is its amplitude.
The number of inducing inputs is fixed, so that nothing is compiled twice: some slots may be free. They are placed where
the stream goes, and moved when it goes elsewhere.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from gpssm.gp.kernels import Kernel, Stationary
from gpssm.gp.sparse import jitter_for
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative, Positive

T = TypeVar("T")

# An inducing input is worth its place if the error it removes is not lost in the process noise.
_WORTH, _NOVEL = 0.3, (1e-3, 0.3)


@saved
class Basis(NamedTuple):
    """What h is made of: up to M inducing inputs, and the origin and unit of the linear part."""

    inducing_inputs: Float[Array, "m d"]
    used: NonNegative[Float[Array, " m"]]
    """1 where an inducing input is in use, 0 where there is room for one."""
    shift: Float[Array, " d"]
    scale: Positive[Float[Array, " d"]]

    @classmethod
    def empty(cls, num_inducing: int, shift: Any, scale: Any) -> "Basis":
        """No inducing input is in use; of NumPy arrays, for which nothing is compiled."""
        zeros: Any = np.zeros
        return cls(zeros((num_inducing, len(scale))), zeros(num_inducing), shift, scale)


class Joining(NamedTuple):
    """A new inducing output given the others: u_new = phi . u + noise."""

    slot: Array
    phi: Float[Array, " m"]
    """Zero for the slot itself, whose old u is marginalised."""
    open_share: Float[Array, ""]
    """Variance of the noise, as a share of the amplitude."""


class Expansion(NamedTuple):
    """A basis with its kernel, factored. Cost O(M^3)."""

    basis: Basis
    kernel: Kernel
    """Correlations: of variance one."""
    amplitude: Float[Array, " k"]
    """Variance of every f_d."""
    inverse: Float[Array, "m m"]
    """Of K over the inducing inputs; a slot that is not in use is a unit row that touches nothing."""
    chol: Float[Array, "m m"]

    @classmethod
    def of(cls, basis: Basis, kernel: Kernel, amplitude: Float[Array, " k"]) -> "Expansion":
        """Factor the correlations `kernel` over the inducing inputs; `amplitude` are variances."""
        used = basis.used
        gram = kernel(basis.inducing_inputs, basis.inducing_inputs) * used[:, None] * used
        chol = jnp.linalg.cholesky(gram + jnp.diag(1.0 - used + jitter_for(gram.dtype)))
        lower = jax.scipy.linalg.solve_triangular(chol, jnp.eye(len(used), dtype=gram.dtype), lower=True)
        return cls(basis, kernel, amplitude, lower.T @ lower, chol)

    @classmethod
    def learned(
        cls, basis: Basis, kind: type[Stationary], lengthscale: Float[Array, " d"], amplitude: Float[Array, " k"]
    ) -> "Expansion":
        """The same from logarithms, which is how length scales and amplitudes are learned by gradient."""
        return cls.of(basis, kind(jnp.exp(lengthscale), jnp.ones((), lengthscale.dtype)), jnp.exp(amplitude))

    def features(self, s: Float[Array, "n d"]) -> tuple[Float[Array, "n f"], Float[Array, " n"]]:
        """h at the rows of `s`, and the share of the amplitude that u leaves open there."""
        k = self.kernel(s, self.basis.inducing_inputs) * self.basis.used
        phi = k @ self.inverse
        open_share = jnp.maximum(1.0 - jnp.sum(phi * k, axis=1), 0.0)
        linear = (s - self.basis.shift) / self.basis.scale
        return jnp.concatenate([phi, linear, jnp.ones((len(s), 1), s.dtype)], axis=1), open_share

    def moments(
        self, s: Float[Array, "n d"], mean: Float[Array, "k f"], cov: Float[Array, "k f f"]
    ) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
        """Mean and variance of f at the rows of `s`, given those of the rows of W."""
        h, open_share = self.features(s)
        variance = jnp.einsum("nf,dfg,ng->nd", h, cov, h) + open_share[:, None] * self.amplitude
        return s[:, : len(mean)] + h @ mean.T, variance

    def placed(
        self,
        weights: T,
        here: Float[Array, " d"],
        least: Array | float,
        allowed: Bool[Array, ""],
        insert: Callable[[Joining], T],
    ) -> "tuple[T, Expansion]":
        """With a new inducing input `here`, if the others leave more than a share `least` of the variance open there.

        It takes the place of the one that the others explain best, if it says more than that, and has its conditional
        prior given the others. `insert` returns the weights of f with it. Nothing is placed unless `allowed`.
        """
        basis, kernel, amplitude, inverse, _ = self
        k = kernel(here[None], basis.inducing_inputs)[0] * basis.used
        novelty = 1.0 - k @ inverse @ k
        # Conditional variance of each given the others; a free slot goes first.
        worth = jnp.where(basis.used > 0, 1.0 / jnp.diagonal(inverse), 0.0)
        slot = jnp.argmin(worth)

        def add() -> tuple[T, Expansion]:
            others = basis._replace(used=basis.used.at[slot].set(0.0))
            k = kernel(here[None], basis.inducing_inputs)[0] * others.used
            phi = Expansion.of(others, kernel, amplitude).inverse @ k
            jitter = jitter_for(phi.dtype)
            inputs, used = basis.inducing_inputs.at[slot].set(here), basis.used.at[slot].set(1.0)
            wider = basis._replace(inducing_inputs=inputs, used=used)
            joining = Joining(slot, phi, jnp.maximum(1.0 + jitter - phi @ k, jitter))
            return insert(joining), Expansion.of(wider, kernel, amplitude)

        wanted = (novelty > least) & (novelty > 2.0 * worth[slot]) & allowed
        placed: tuple[T, Expansion] = jax.lax.cond(wanted, add, lambda: (weights, self))
        return placed


def novel(process_noise: Float[Array, " k"], amplitude: Float[Array, " k"]) -> Float[Array, ""]:
    """Share of the amplitude (both are variances) that must be open where an inducing input is placed."""
    return jnp.clip(_WORTH * jnp.min(process_noise / amplitude), *_NOVEL)
