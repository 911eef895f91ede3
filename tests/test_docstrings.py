"""Examples in the documentation of the code do what they say."""

import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

import gpssm

SOURCE = Path(__file__).parents[1] / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text()
]

mpl.use("Agg")


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module.removesuffix(".__init__")))
    assert found.attempted and not found.failed


def offered() -> Iterator[tuple[str, Any]]:
    """The classes and functions that a user reaches from `import gpssm`, by name."""
    for name in dir(gpssm):
        value = getattr(gpssm, name)
        if not inspect.ismodule(value):
            yield name, value
        elif name not in ("methods", "experiments"):  # whose classes are in `gpssm` itself, or are commands
            for inner in {*dir(value), *vars(value)}:
                found = getattr(value, inner)
                if getattr(found, "__module__", "").startswith(f"gpssm.{name}") and not inner.startswith("_"):
                    yield f"{name}.{inner}", found


def test_every_name_that_a_user_reaches_has_an_example() -> None:
    missing = [name for name, value in offered() if callable(value) and ">>> " not in (value.__doc__ or "")]
    assert not missing
