"""Packages whose names are loaded on first use, so that `gpssm --help` does not wait for JAX."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def exports(package: str, own: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that offers each name from its home, a module, beside its `own` one.

    A home that ends in the name itself is a submodule, and is offered as such.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    return load, lambda: sorted([*homes, own])
