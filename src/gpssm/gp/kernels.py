"""Covariance functions of one scalar Gaussian process.

Each kernel is called as `kernel(x, z) -> (n, m)`. The time loop evaluates one kernel against
the same inducing inputs thousands of times, so a kernel also offers `kernel.at(z)`: the function
`x -> k(z, x)` (m, n) in which everything that depends on `z` and the parameters has been computed
once. Its columns are the inputs: with many members and few inducing points, that is the order in
which products and sums run fastest.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.numerics.fastmath import exp
from gpssm.numerics.parameters import Leaf, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import shape


class Cross(eqx.Module):
    """`k(Z, x)` as a function of `x`, for fixed inducing inputs `Z` (m, d)."""

    @abstractmethod
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "m n"]: ...


class Kernel(eqx.Module):
    """A positive-definite function of two inputs."""

    @abstractmethod
    def at(self, z: Float[Array, "m d"]) -> Cross:
        """`k(z, .)`."""

    @abstractmethod
    def diag(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """`k(x_i, x_i)`."""

    @abstractmethod
    def expand(self, input_dim: int) -> "Kernel":
        """The same kernel with one length scale for each of `input_dim` inputs."""

    def in_squares_of_f(self, path: Sequence[str]) -> bool:
        """Whether a variance of the part at `path` has the unit of f squared; parts of a product have not."""
        own: bool = not path or getattr(self, path[0]).in_squares_of_f(path[1:])
        return own

    def __call__(self, x: Float[Array, "n d"], z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        return self.at(jnp.asarray(z))(jnp.asarray(x)).T

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


# --- stationary kernels -------------------------------------------------------------------


class _Quadratic(eqx.Module):
    """`offset - |x - z|^2_l / 2` as ONE product `A [x*x, x, 1]`.

    Written this way the backward pass of the time loop takes half the time of the textbook
    form: no (m, n, d) array of differences is ever made.
    """

    matrix: Float[Array, "m f"]

    @classmethod
    def build(cls, z: Array, lengthscale: Array, offset: Array) -> "_Quadratic":
        precision = lengthscale**-2
        squares = jnp.broadcast_to(-0.5 * precision, z.shape)
        constant = offset - 0.5 * jnp.sum(z * z * precision, axis=1)
        return cls(jnp.concatenate([squares, z * precision, constant[:, None]], axis=1))

    def __call__(self, x: Array) -> Array:
        columns = x.T
        features = jnp.concatenate([columns * columns, columns, jnp.ones((1, x.shape[0]), x.dtype)])
        return self.matrix @ features


class _StationaryCross(Cross):
    quadratic: _Quadratic
    variance: Array | None
    correlation: Callable[[Array], Array] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "m n"]:
        correlation = self.correlation(self.quadratic(x))
        return correlation if self.variance is None else self.variance * correlation


def _distance(exponent: Array) -> Array:
    # The floor keeps the square root differentiable where x equals an inducing input.
    return jnp.sqrt(jnp.maximum(-2.0 * exponent, 1e-12))


class Stationary(Kernel):
    """A kernel of the distance between its inputs, in units of the length scales.

    Parameters: `lengthscale` (input_dim,) or (), `variance` ().
    """

    lengthscale: Annotated[Leaf, shape("d", "")] = parameter("positive", default=1.0)
    variance: Annotated[Leaf, shape("")] = parameter("positive", default=1.0)

    @staticmethod
    @abstractmethod
    def correlation(exponent: Array) -> Array:
        """The kernel of unit variance from `-r^2 / 2`, `r` the distance."""

    def at(self, z: Float[Array, "m d"]) -> Cross:
        variance = jnp.asarray(self.variance)
        return _StationaryCross(self._quadratic(z, jnp.zeros_like(variance)), variance, self.correlation)

    def _quadratic(self, z: Array, offset: Array) -> _Quadratic:
        return _Quadratic.build(z, jnp.broadcast_to(self.lengthscale, (z.shape[1],)), offset)

    def diag(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(self.variance, (x.shape[0],))

    def expand(self, input_dim: int) -> "Kernel":
        # NumPy, not JAX: a kernel that does not fit must be refused before anything is compiled.
        return type(self)(np.broadcast_to(np.asarray(self.lengthscale), (input_dim,)), self.variance)


@saved
class RBF(Stationary):
    """`variance * exp(-r^2 / 2)`, `r` the distance in units of the length scales."""

    @staticmethod
    def correlation(exponent: Array) -> Array:
        return exp(exponent)

    def at(self, z: Float[Array, "m d"]) -> Cross:
        # The variance in the exponent saves a product in the time loop.
        return _StationaryCross(self._quadratic(z, jnp.log(jnp.asarray(self.variance))), None, self.correlation)


@saved
class Matern32(Stationary):
    """`variance * (1 + sqrt(3) r) exp(-sqrt(3) r)`: once differentiable sample paths."""

    @staticmethod
    def correlation(exponent: Array) -> Array:
        r = 3**0.5 * _distance(exponent)
        return (1.0 + r) * exp(-r)


@saved
class Matern52(Stationary):
    """`variance * (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r)`: twice differentiable paths."""

    @staticmethod
    def correlation(exponent: Array) -> Array:
        r = 5**0.5 * _distance(exponent)
        return (1.0 + r + r * r / 3.0) * exp(-r)


KERNELS: dict[str, type[Stationary]] = {kernel.__name__: kernel for kernel in (RBF, Matern32, Matern52)}
"""Kernels of a distance by name: what a stream can learn with, and what a file can name."""


# --- combinations -------------------------------------------------------------------------


class _Pair(Kernel):
    left: Kernel
    right: Kernel

    combine: ClassVar[Any]  # a static method of two arrays

    def at(self, z: Float[Array, "m d"]) -> Cross:
        return _PairCross(self.left.at(z), self.right.at(z), self.combine)

    def diag(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.asarray(self.combine(self.left.diag(x), self.right.diag(x)))

    def expand(self, input_dim: int) -> "Kernel":
        return type(self)(self.left.expand(input_dim), self.right.expand(input_dim))


class _PairCross(Cross):
    left: Cross
    right: Cross
    combine: Callable[[Array, Array], Array] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "m n"]:
        return self.combine(self.left(x), self.right(x))


@saved
class Sum(_Pair):
    """`left(x, z) + right(x, z)`."""

    combine = staticmethod(jnp.add)


@saved
class Product(_Pair):
    """`left(x, z) * right(x, z)`."""

    combine = staticmethod(jnp.multiply)

    def in_squares_of_f(self, path: Sequence[str]) -> bool:
        return not path
