"""Named parameters: what a model can learn, where it lives, which values are legal.

A module declares a learnable array with `parameter(...)`. Arrays are stored in their
natural, constrained form (a variance is a variance), so that a user can read and set them;
training moves the unconstrained image of those that are not held fixed.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gpssm.errors import InvalidInput

_KEY = "gpssm_constraint"

# An array of a module: of NumPy as long as it is only stored, of JAX inside a computation.
Leaf = Any


class Constraint(NamedTuple):
    """A bijection between legal values and unconstrained ones."""

    to_free: Callable[[Array], Array]
    to_legal: Callable[[Array], Array]


def _on_diagonal(function: Callable[[Array], Array], lower: Array) -> Array:
    """Lower triangular matrices (..., n, n) with `function` applied to their diagonals."""
    diagonal = function(jnp.diagonal(lower, axis1=-2, axis2=-1))
    return jnp.tril(lower, -1) + diagonal[..., None] * jnp.eye(diagonal.shape[-1], dtype=diagonal.dtype)


CONSTRAINTS = {
    "real": Constraint(lambda x: x, lambda x: x),
    # The logarithm, not softplus: Adam moves a coordinate by about its rate per step, and
    # a noise variance must be able to fall by orders of magnitude in a few hundred steps.
    "positive": Constraint(jnp.log, jnp.exp),
    # Degrees of freedom: towards 2 the variance grows without bound, and no recording can tell how far.
    "above two": Constraint(lambda x: jnp.log(jnp.maximum(x - 2.25, 1e-6)), lambda x: 2.25 + jnp.exp(x)),
    "cholesky": Constraint(partial(_on_diagonal, jnp.log), partial(_on_diagonal, jnp.exp)),
}


def as_array(value: Any) -> Any:
    """Keep JAX arrays as they are, and nothing as nothing; turn anything else numeric into a float NumPy array."""
    return value if value is None or isinstance(value, jax.Array) else np.asarray(value, dtype=float)


def parameter(constraint: str = "real", **kwargs: Any) -> Any:
    """Declare a field of a module as a learnable array whose values satisfy a constraint, a key of `CONSTRAINTS`."""
    if constraint not in CONSTRAINTS:
        raise ValueError(f"constraint: {constraint!r} is not one of {sorted(CONSTRAINTS)}.")
    return eqx.field(converter=as_array, metadata={_KEY: constraint}, **kwargs)


class Parameter(NamedTuple):
    """One learnable array of a model."""

    name: str
    value: Array
    constraint: str


def parameters(module: Any, prefix: str = "") -> Iterator[Parameter]:
    """All learnable arrays below `module`, with dotted names, in a stable order."""
    if isinstance(module, (tuple, list)):
        for i, item in enumerate(module):
            yield from parameters(item, f"{prefix}{i}.")
    elif isinstance(module, eqx.Module) and dataclasses.is_dataclass(module):
        for field in dataclasses.fields(module):
            value = getattr(module, field.name)
            name = prefix + field.name
            if _KEY in field.metadata:
                if value is not None:
                    yield Parameter(name, value, field.metadata[_KEY])
            else:
                yield from parameters(value, name + ".")


def match(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """The names that a pattern selects: a full name, or any whole words of it that follow each other.

    `"process_noise"`, `"transition.gp.kernel"` and `"lengthscale"` all select something;
    a pattern that selects nothing is refused with a list of what there is.
    """
    names = list(names)
    selected: set[str] = set()
    for pattern in patterns:
        hit = {name for name in names if f".{pattern}." in f".{name}."}
        if not hit:
            raise InvalidInput(f"fixed: no parameter is called {pattern!r}; the model has {', '.join(sorted(names))}.")
        selected |= hit
    return selected


def free_values(module: Any, names: Iterable[str]) -> dict[str, Array]:
    """The unconstrained images of the named parameters, by name."""
    names = set(names)
    return {
        p.name: CONSTRAINTS[p.constraint].to_free(jnp.asarray(p.value)) for p in parameters(module) if p.name in names
    }


def with_free_values(module: Any, free: dict[str, Array]) -> Any:
    """A copy of `module` with the named parameters set from their unconstrained images, `free_values`."""
    legal = {p.name: CONSTRAINTS[p.constraint].to_legal(free[p.name]) for p in parameters(module) if p.name in free}
    return with_values(module, legal)


def with_values(module: Any, values: dict[str, Any]) -> Any:
    """A copy of `module` with the named parameters replaced by these values, in their constrained form."""
    if not values:
        return module

    def where(tree: Any) -> list[Any]:
        found = {p.name: p.value for p in parameters(tree)}
        return [found[name] for name in values]

    return eqx.tree_at(where, module, list(values.values()))
