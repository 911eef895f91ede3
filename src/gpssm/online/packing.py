"""Trees of arrays, handed to a compiled function as few arrays.

To hand thirty arrays over takes longer than to compute with them.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

_LARGE = 20_000  # numbers in an array; to copy one that is larger takes longer than to hand it over


@dataclass(frozen=True, eq=False)
class Layout:
    """How a tree of arrays is handed over: large ones as they are, all others in one vector.

    There is one for every kind of tree: compared by identity, at once.
    """

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]  # shape and type of each

    @staticmethod
    def of(tree: Any) -> "Layout":
        """That of a tree of arrays; the same object for every tree of the same shapes and types."""
        leaves, structure = jax.tree.flatten(tree)
        return _layout(structure, tuple((np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves))

    @property
    def sizes(self) -> list[int]:
        """How many numbers each leaf holds."""
        return [int(np.prod(shape)) for shape, _ in self.leaves]

    def pack(self, tree: Any) -> tuple[Array, ...]:
        """The vector of all small leaves, then the large leaves."""
        leaves = list(zip(jax.tree.leaves(tree), self.sizes, strict=True))
        small = [jnp.ravel(jnp.asarray(leaf, float)) for leaf, size in leaves if size <= _LARGE]
        return jnp.concatenate([jnp.zeros(0), *small]), *(jnp.asarray(leaf) for leaf, size in leaves if size > _LARGE)

    def unpack(self, packed: tuple[Array, ...]) -> Any:
        """The tree that `pack` has packed."""
        vector, *large = packed
        ends = np.cumsum([size for size in self.sizes if size <= _LARGE])
        small, rest = iter(jnp.split(vector, ends)), iter(large)
        parts = [next(rest if size > _LARGE else small) for size in self.sizes]
        leaves = [part.reshape(shape).astype(kind) for part, (shape, kind) in zip(parts, self.leaves, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


_layout = cache(Layout)
