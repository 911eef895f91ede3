"""What the tab key offers. It is asked at every key: nothing here imports JAX."""

from collections.abc import Callable, Iterable

import typer

Completion = Callable[[str], list[str]]


def one_of(names: Iterable[str]) -> Completion:
    """Of an option that takes one of these names.

    >>> one_of(["EnVI", "VCDT (amortised)"])("")
    ['EnVI']
    """
    # A shell puts in what it is given as it is: names with spaces or parentheses would have to be quoted.
    offered = [name for name in names if name.replace("-", "").replace("_", "").isalnum()]
    return lambda incomplete: [name for name in offered if name.startswith(incomplete)]


def some_of(names: Iterable[str]) -> Completion:
    """Of an option that takes several of these names, with commas between them.

    >>> some_of(["EnVI", "ARX"])("EnVI,A")
    ['EnVI,ARX']
    """
    complete = one_of(names)

    def last(incomplete: str) -> list[str]:
        before, comma, incomplete = incomplete.rpartition(",")
        return [before + comma + name for name in complete(incomplete)]

    return last


def after_options(completions: dict[str, Completion]) -> Callable[[typer.Context, str], list[str]]:
    """Of the `words` that a command passes on: those that come after one of these options."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        words = ctx.params.get("words") or [""]
        return completions.get(words[-1], one_of(()))(incomplete)

    return complete
