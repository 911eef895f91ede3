"""What the site needs of Sphinx besides its extensions."""

import inspect
import os
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.util.inspect import stringify_signature

TUTORIALS = (
    "engine", "gaps_and_outliers", "live", "compare", "emission", "pendulum", "kink", "lorenz96", "sktime", "river",
)  # fmt: skip
"""In the order of reading; others follow."""


def place(file: str) -> tuple[int, str]:
    """Of a tutorial in the gallery."""
    name = os.path.basename(file).removeprefix("plot_").removesuffix(".py")  # noqa: PTH119
    return TUTORIALS.index(name) if name in TUTORIALS else len(TUTORIALS), name


def linked_if_known(app: Any, env: Any, node: Any, content: nodes.TextElement) -> nodes.TextElement | None:
    """Single backticks in docstrings are code, and links where they name something of the reference."""
    return content if node["reftype"] == "obj" else None


def of_attributes(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """An invisible line first: what stands before a colon in the first line would be taken for the type."""
    if what in ("attribute", "property", "data"):
        lines.insert(0, "\\ ")


class Default:
    """How a default value of one of our own classes is written: as it was called, not as it is made inside."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self.value).__name__}()"


def of_signatures(app: Any, what: str, name: str, obj: Any, options: Any, *given: str | None) -> Any:
    """The arguments of a class, with defaults that can be read."""
    if what != "class" or not given[0]:
        return None
    signature = inspect.signature(obj)
    readable = [
        p.replace(default=Default(p.default)) if type(p.default).__module__.startswith("gpssm.") else p
        for p in signature.parameters.values()
    ]
    return stringify_signature(signature.replace(parameters=readable), show_annotation=False), None


def inline_formula(self: Any, node: nodes.math) -> None:
    """As MathML, which browsers draw by themselves: nothing is loaded."""
    self.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def displayed_formula(self: Any, node: nodes.math_block) -> None:
    """Likewise, in a line of its own."""
    formula = latex2mathml.tex2mathml(node.astext(), as_block=True)
    self.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
    app.connect("autodoc-process-docstring", of_attributes, priority=400)
    app.connect("autodoc-process-signature", of_signatures)
    app.connect("missing-reference", linked_if_known)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
