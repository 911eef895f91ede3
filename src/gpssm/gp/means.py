"""Mean functions of the transition: what f is before the data say otherwise.

A mean maps GP inputs `[x, c]` (n, state_dim + input_dim) to states (n, state_dim).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.numerics.parameters import Leaf, as_array, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Positive, shape


class Mean(eqx.Module):
    """A function from GP inputs (n, dx + dc) to states (n, dx), all standardised.

    >>> isinstance(Zero(2), Mean)
    True
    """

    @abstractmethod
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]: ...


@saved
class Zero(Mean):
    """`0`: the paper's choice.

    Args:
        state_dim: dx.

    >>> Zero(2)(jnp.ones((1, 3))).tolist()
    [[0.0, 0.0]]
    """

    state_dim: Annotated[int, shape("dx")] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]:
        return jnp.zeros((x.shape[0], self.state_dim), x.dtype)


@saved
class Identity(Mean):
    """`x`: the state stays where it is.

    Args:
        state_dim: dx.

    >>> Identity(2)(jnp.array([[1.0, 2.0, 7.0]])).tolist()  # the last is an input
    [[1.0, 2.0]]
    """

    state_dim: Annotated[int, shape("dx")] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]:
        return x[:, : self.state_dim]


@saved
class Linear(Mean):
    """`A [x, c] + b`, learned with everything else: any linear system is in reach.

    Args:
        weight: A (dx, dx + dc).
        bias: b (dx,).

    >>> Linear([[0.5, 2.0]], [1.0])(jnp.array([[4.0, 3.0]])).tolist()
    [[9.0]]
    """

    weight: Annotated[Leaf, shape("dx d")] = parameter("real")
    bias: Annotated[Leaf, shape("dx")] = parameter("real")

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]:
        return x @ self.weight.T + self.bias


@saved
class Function(Mean):
    """A function of the user's, from `[x, c]` (n, dx + dc) to (n, dx), in the user's units.

    The model works in standardised units; the four arrays translate.

    Args:
        function: made of JAX operations.
        input_shift, input_scale: (dx + dc,) of its arguments.
        state_shift, state_scale: (dx,) of what it returns.

    >>> double = Function(lambda x: 2.0 * x, [10.0], [5.0], [10.0], [5.0])
    >>> double(jnp.array([[0.0]])).tolist()  # from 10 to 20, which is two scales from the shift
    [[2.0]]
    """

    function: Callable[[Array], Array] = eqx.field(static=True)
    input_shift: Annotated[Leaf, shape("d")] = eqx.field(converter=as_array)
    input_scale: Annotated[Positive[Leaf], shape("d")] = eqx.field(converter=as_array)
    state_shift: Annotated[Leaf, shape("dx")] = eqx.field(converter=as_array)
    state_scale: Annotated[Positive[Leaf], shape("dx")] = eqx.field(converter=as_array)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]:
        return (self.function(self.input_shift + self.input_scale * x) - self.state_shift) / self.state_scale
