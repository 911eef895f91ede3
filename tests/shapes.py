"""A type checker for jaxtyping's import hook that looks at arrays alone.

What a public call does with an argument of a wrong type is itself under test, and must reach it.
"""

import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
from beartype import beartype

# A size that is calculated from others, which may not be known to the function: these are for saved files.
_FORMULA = re.compile(r"\w[-+*]")


def of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with a check of every argument and result whose annotation names a shape."""
    # Trees of arrays are stacked, and read from files, where `plumbing.contents` checks them.
    hints = {} if function.__name__ == "__init__" else getattr(function, "__annotations__", {})
    kept = {}
    for name, hint in hints.items():
        shapes = list(_shapes(hint))
        if shapes and not any(map(_FORMULA.search, shapes)):
            kept[name] = hint
    if not kept:
        return function
    function.__annotations__ = kept
    return beartype(function)


def _shapes(hint: Any) -> Iterator[str]:
    """All that an annotation says of shapes, as "t dy"."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        yield hint.dim_str
    for part in typing.get_args(hint):
        yield from _shapes(part)
