"""Trees of arrays, handed to a compiled function as few arrays.

To hand thirty arrays over takes longer than to compute with them.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

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

    def pack(self, tree: Any, of: Any = np) -> tuple[Any, ...]:
        """The vector of all small leaves, then the large leaves, made by NumPy, or by `jax.numpy` while tracing."""
        leaves = list(zip(jax.tree.leaves(tree), self.sizes, strict=True))
        small = [of.ravel(of.asarray(leaf, float)) for leaf, size in leaves if size <= _LARGE]
        return of.concatenate([of.zeros(0), *small]), *(of.asarray(leaf) for leaf, size in leaves if size > _LARGE)

    def unpack(self, packed: tuple[Any, ...]) -> Any:
        """The tree that `pack` has packed: copies of NumPy arrays, or what is traced."""
        vector, *large = packed
        leaves, end, rest = [], 0, iter(large)
        for size, (shape, kind) in zip(self.sizes, self.leaves, strict=True):
            end += size if size <= _LARGE else 0
            part = vector[end - size : end] if size <= _LARGE else next(rest)
            leaves.append(part.reshape(shape).astype(kind))
        return jax.tree.unflatten(self.structure, leaves)


_layout = cache(Layout)
