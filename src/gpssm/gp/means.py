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
    """A function from GP inputs to states."""

    @abstractmethod
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]: ...


@saved
class Zero(Mean):
    """`0`: the paper's choice."""

    state_dim: Annotated[int, shape("dx")] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]:
        return jnp.zeros((x.shape[0], self.state_dim), x.dtype)


@saved
class Identity(Mean):
    """`x`: the state stays where it is."""

    state_dim: Annotated[int, shape("dx")] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]:
        return x[:, : self.state_dim]


@saved
class Linear(Mean):
    """`A [x, c] + b`, learned with everything else: any linear system is in reach.

    Parameters: `weight` (dx, dx + dc), `bias` (dx,).
    """

    weight: Annotated[Leaf, shape("dx d")] = parameter("real")
    bias: Annotated[Leaf, shape("dx")] = parameter("real")

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]:
        return x @ self.weight.T + self.bias


@saved
class Function(Mean):
    """A function of the user's, from `[x, c]` (n, dx + dc) to (n, dx), in the user's units.

    The model works in standardised units; the four arrays translate.
    """

    function: Callable[[Array], Array] = eqx.field(static=True)
    input_shift: Annotated[Leaf, shape("d")] = eqx.field(converter=as_array)
    input_scale: Annotated[Positive[Leaf], shape("d")] = eqx.field(converter=as_array)
    state_shift: Annotated[Leaf, shape("dx")] = eqx.field(converter=as_array)
    state_scale: Annotated[Positive[Leaf], shape("dx")] = eqx.field(converter=as_array)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n dx"]:
        return (self.function(self.input_shift + self.input_scale * x) - self.state_shift) / self.state_scale
