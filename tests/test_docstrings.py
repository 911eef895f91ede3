"""Examples in the documentation of the code do what they say."""

import doctest
import importlib
from pathlib import Path

import matplotlib as mpl
import pytest

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
