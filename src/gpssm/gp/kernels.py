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
from jax.tree_util import Partial
from jaxtyping import Array, Float

from gpssm.numerics.fastmath import exp
from gpssm.numerics.parameters import Leaf, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import shape

Cross = Callable[[Float[Array, "n d"]], Float[Array, "m n"]]
"""`k(Z, x)` as a function of `x`, for fixed inducing inputs `Z` (m, d); a tree of arrays (`Partial`)."""


class Kernel(eqx.Module):
    """A positive-definite function of two inputs, `kernel(x, z)`: (n, d) and (m, d) to (n, m).

    Kernels are added and multiplied; a method takes one with the length scales of all inputs, or with one for all of
    them, in standardised units.

    >>> kernel = RBF(lengthscale=2.0) + RBF(lengthscale=0.5, variance=0.1) * Matern32()
    >>> round(float(kernel(jnp.zeros((1, 2)), jnp.zeros((1, 2)))[0, 0]), 2)
    1.1
    """

    @abstractmethod
    def at(self, z: Float[Array, "m d"]) -> Cross:
        """`k(z, .)` of inputs `z` (m, d): a function from inputs (n, d) to (m, n)."""

    @abstractmethod
    def diag(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """`k(x_i, x_i)`: the variances (n,) of f at the inputs `x` (n, d)."""

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


def _quadratic(z: Array, lengthscale: Array, offset: Array) -> Float[Array, "m f"]:
    """The matrix A of `offset - |x - z|^2_l / 2`, which is ONE product `A [x*x, x, 1]`.

    Written this way the backward pass of the time loop takes half the time of the textbook
    form: no (m, n, d) array of differences is ever made.
    """
    precision = jnp.broadcast_to(lengthscale, (z.shape[1],)) ** -2
    squares = jnp.broadcast_to(-0.5 * precision, z.shape)
    constant = offset - 0.5 * jnp.sum(z * z * precision, axis=1)
    return jnp.concatenate([squares, z * precision, constant[:, None]], axis=1)


def _distance(exponent: Array) -> Array:
    # The floor keeps the square root differentiable where x equals an inducing input.
    return jnp.sqrt(jnp.maximum(-2.0 * exponent, 1e-12))


class Stationary(Kernel):
    """A kernel of the distance between its inputs, in units of the length scales."""

    lengthscale: Annotated[Leaf, shape("d", "")] = parameter("positive", default=1.0)
    """(d,), or () for all inputs, in standardised units: how far f stays similar."""
    variance: Annotated[Leaf, shape("")] = parameter("positive", default=1.0)
    """() of f, in squared standardised units."""

    @staticmethod
    @abstractmethod
    def correlation(exponent: Array) -> Array:
        """The kernel of unit variance from its `exponent` `-r^2 / 2`, `r` the distance."""

    def at(self, z: Float[Array, "m d"]) -> Cross:
        variance = jnp.asarray(self.variance)
        return Partial(self._cross, _quadratic(z, self.lengthscale, jnp.zeros_like(variance)), variance)

    @classmethod
    def _cross(cls, matrix: Array, variance: Array | None, x: Array) -> Array:
        columns = x.T
        features = jnp.concatenate([columns * columns, columns, jnp.ones((1, x.shape[0]), x.dtype)])
        correlation = cls.correlation(matrix @ features)
        return correlation if variance is None else variance * correlation

    def diag(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(self.variance, (x.shape[0],))

    def expand(self, input_dim: int) -> "Kernel":
        # NumPy, not JAX: a kernel that does not fit must be refused before anything is compiled.
        return type(self)(np.broadcast_to(np.asarray(self.lengthscale), (input_dim,)), self.variance)


@saved
class RBF(Stationary):
    """`variance * exp(-r^2 / 2)`, `r` the distance in units of the length scales: smooth sample paths.

    Args:
        lengthscale: (d,), or () for all inputs, in standardised units: how far f stays similar.
        variance: () of f, squared standardised units.

    >>> k = RBF(lengthscale=[1.0, 2.0], variance=3.0)(jnp.array([[0.0, 0.0]]), jnp.array([[1.0, 2.0], [0.0, 0.0]]))
    >>> np.asarray(k, float).round(3).tolist()
    [[1.104, 3.0]]
    """

    @staticmethod
    def correlation(exponent: Array) -> Array:
        return exp(exponent)

    def at(self, z: Float[Array, "m d"]) -> Cross:
        # The variance in the exponent saves a product in the time loop.
        return Partial(self._cross, _quadratic(z, self.lengthscale, jnp.log(jnp.asarray(self.variance))), None)


@saved
class Matern32(Stationary):
    """`variance * (1 + sqrt(3) r) exp(-sqrt(3) r)`: once differentiable sample paths.

    Args:
        lengthscale: (d,), or () for all inputs, in standardised units: how far f stays similar.
        variance: () of f, squared standardised units.

    >>> np.asarray(Matern32()(jnp.zeros((1, 1)), jnp.array([[0.0], [1.0]])), float).round(3).tolist()
    [[1.0, 0.483]]
    """

    @staticmethod
    def correlation(exponent: Array) -> Array:
        r = 3**0.5 * _distance(exponent)
        return (1.0 + r) * exp(-r)


@saved
class Matern52(Stationary):
    """`variance * (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r)`: twice differentiable sample paths.

    Args:
        lengthscale: (d,), or () for all inputs, in standardised units: how far f stays similar.
        variance: () of f, squared standardised units.

    >>> np.asarray(Matern52()(jnp.zeros((1, 1)), jnp.array([[0.0], [1.0]])), float).round(3).tolist()
    [[1.0, 0.524]]
    """

    @staticmethod
    def correlation(exponent: Array) -> Array:
        r = 5**0.5 * _distance(exponent)
        return (1.0 + r + r * r / 3.0) * exp(-r)


KERNELS: dict[str, type[Stationary]] = {kernel.__name__: kernel for kernel in (RBF, Matern32, Matern52)}
"""Kernels of a distance by name: what a stream can learn with, and what a file can name."""


# --- combinations -------------------------------------------------------------------------


class _Pair(Kernel):
    left: Kernel
    """One part."""
    right: Kernel
    """The other."""

    combine: ClassVar[Any]  # a static method of two arrays

    def at(self, z: Float[Array, "m d"]) -> Cross:
        return Partial(self._cross, self.left.at(z), self.right.at(z))

    @classmethod
    def _cross(cls, left: Cross, right: Cross, x: Array) -> Array:
        return jnp.asarray(cls.combine(left(x), right(x)))

    def diag(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.asarray(self.combine(self.left.diag(x), self.right.diag(x)))

    def expand(self, input_dim: int) -> "Kernel":
        return type(self)(self.left.expand(input_dim), self.right.expand(input_dim))


@saved
class Sum(_Pair):
    """`left(x, z) + right(x, z)`, which is what `left + right` makes.

    >>> Sum(RBF(), Matern32(variance=0.5)).diag(jnp.zeros((2, 1))).tolist()
    [1.5, 1.5]
    """

    combine = staticmethod(jnp.add)


@saved
class Product(_Pair):
    """`left(x, z) * right(x, z)`, which is what `left * right` makes. Variances of the parts have no unit of their own.

    >>> Product(RBF(variance=2.0), Matern32(variance=3.0)).diag(jnp.zeros((2, 1))).tolist()
    [6.0, 6.0]
    """

    combine = staticmethod(jnp.multiply)

    def in_squares_of_f(self, path: Sequence[str]) -> bool:
        return not path
