"""Emissions: from states to noise-free outputs, `y = g(x)`."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.numerics.parameters import Leaf, as_array, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Positive, shape


@saved
class LinearEmission(eqx.Module):
    """`y = C x + d`, learned unless held fixed.

    Args:
        weight: C (dy, dx).
        bias: d (dy,).

    >>> LinearEmission([[1.0, 0.0]], [0.5])(jnp.array([[2.0, 3.0]])).tolist()
    [[2.5]]
    """

    weight: Annotated[Leaf, shape("dy dx")] = parameter("real")
    bias: Annotated[Leaf, shape("dy")] = parameter("real")

    @property
    def matrix(self) -> Float[Array, "dy dx"]:
        """C: filters are exact in g where there is one."""
        return jnp.asarray(self.weight)

    def __call__(self, x: Float[Array, "n dx"]) -> Float[Array, "n dy"]:
        return x @ self.weight.T + self.bias


@saved
class FunctionEmission(eqx.Module):
    """`y = g(x)` for a function of the user's, in the user's units.

    The filter works in standardised units; the four arrays translate.

    Args:
        function: from states (n, dx) to outputs (n, dy), made of JAX operations.
        state_shift, state_scale: (dx,) of its arguments.
        output_shift, output_scale: (dy,) of what it returns.

    >>> squares = FunctionEmission.unscaled(lambda x: x**2, state_dim=1, output_dim=1)
    >>> squares(jnp.array([[3.0]])).tolist(), squares.matrix
    ([[9.0]], None)
    """

    function: Callable[[Array], Array] = eqx.field(static=True)
    state_shift: Annotated[Leaf, shape("dx")] = eqx.field(converter=as_array)
    state_scale: Annotated[Positive[Leaf], shape("dx")] = eqx.field(converter=as_array)
    output_shift: Annotated[Leaf, shape("dy")] = eqx.field(converter=as_array)
    output_scale: Annotated[Positive[Leaf], shape("dy")] = eqx.field(converter=as_array)

    @classmethod
    def unscaled(cls, function: Callable[[Array], Array], state_dim: int, output_dim: int) -> "FunctionEmission":
        """`function` of `state_dim` states with `output_dim` values, for a filter that works in the user's units."""
        return cls(function, np.zeros(state_dim), np.ones(state_dim), np.zeros(output_dim), np.ones(output_dim))

    @property
    def matrix(self) -> None:
        """None: g is not linear."""
        return None

    def __call__(self, x: Float[Array, "n dx"]) -> Float[Array, "n dy"]:
        return (self.function(self.state_shift + self.state_scale * x) - self.output_shift) / self.output_scale


Emission = LinearEmission | FunctionEmission
