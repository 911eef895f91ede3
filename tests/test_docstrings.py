"""Examples in the documentation of the code do what they say."""

import ast
import doctest
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

import gpssm
from gpssm.methods.base import StateSpaceMethod
from gpssm.methods.linear import LinearMethod
from gpssm.methods.registry import METHODS, ONLINE, Entry
from gpssm.online.base import OnlineMethod
from gpssm.online.estimate import Estimate, Estimates
from gpssm.parallel.backtest import Backtest
from gpssm.plumbing.docstrings import arguments
from gpssm.posteriors.calibration import Calibration
from gpssm.posteriors.check import Check
from gpssm.posteriors.history import History, Progress
from gpssm.posteriors.states import Forecast, ForecastSummary, States
from gpssm.posteriors.summary import Summary

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


RETURNED = (
    Backtest, Calibration, Check, Estimate, Estimates, Forecast, ForecastSummary, History, Progress, States, Summary,
)  # fmt: skip
"""Classes whose objects a user is given."""

OF_METHODS = ("fit", "start", "continuing", "paper")
"""What a user calls of a method; the rest is for those who write one, and `docs/extend.md` describes it."""


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """What a user can call: functions, classes, and public methods of these and of what is returned."""
    for name, value in [*offered(), *((kind.__name__, kind) for kind in RETURNED)]:
        if callable(value):
            yield name, value
        if inspect.isclass(value):
            of_a_method = issubclass(value, StateSpaceMethod | LinearMethod | OnlineMethod)
            for inner in dir(value):
                method = getattr(value, inner)
                ours = str(getattr(method, "__module__", None)).startswith("gpssm") and not inspect.isclass(method)
                if ours and callable(method) and not inner.startswith("_") and (not of_a_method or inner in OF_METHODS):
                    yield f"{name}.{inner}", method


def described(value: Callable[..., Any]) -> set[str]:
    """The parameters that a docstring describes: in its `Args`, or by name in a sentence; a field also by its own."""
    text = inspect.getdoc(value) or ""
    groups = re.findall(r"^ {4}((?:\w+, )+\w+): ", text, re.MULTILINE)
    names = {*arguments(text), *re.findall(r"`(\w+)`", text), *", ".join(groups).split(", ")}
    for kind in value.__mro__ if inspect.isclass(value) else ():
        if kind.__module__.startswith("gpssm"):
            names |= set(arguments(kind.__doc__))
            body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
            for line, after in pairwise(body):
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(line, ast.AnnAssign) and isinstance(text, ast.Constant) and isinstance(text.value, str):
                    names.add(line.target.id)
    return names


def test_every_parameter_that_a_user_can_give_is_described() -> None:
    """Of what is called with arguments: not of exceptions, whose argument is a sentence."""
    missing = {}
    for name, value in callables():
        try:
            parameters = inspect.signature(value).parameters
        except ValueError:  # of a class without a constructor of its own
            continue
        left = [parameter for parameter in parameters if parameter not in {"self", "cls"} | described(value)]
        if left or not inspect.getdoc(value):
            missing[name] = left
    assert not missing


@pytest.mark.parametrize("entry", (METHODS | ONLINE).values(), ids=METHODS | ONLINE)
def test_a_method_describes_every_argument_once_with_its_default(entry: Entry) -> None:
    kind = getattr(importlib.import_module(entry.module), entry.attribute)
    text = inspect.getdoc(kind) or ""
    found = arguments(text)
    assert list(found) and set(found) == set(inspect.signature(kind).parameters)
    for field in fields(kind):
        if not field.init:
            continue
        assert text.count(f"\n    {field.name}: ") == 1
        if field.default is not MISSING:
            assert "default" in found[field.name].lower(), field.name
        if isinstance(field.default, bool | int | float):
            assert f"Default: `{field.default!r}`." in found[field.name]
