"""The arguments that a class inherits, in its own docstring: each is described once, where it is declared.

`help(gpssm.EnVI)` shows them all, and so does everything else that reads docstrings.
"""

import inspect
import re
from dataclasses import Field
from typing import Any

_SECTION = re.compile(r"^Args:\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): ", re.MULTILINE)
_AFTER = re.compile(r"^(>>> |Returns:|Raises:)", re.MULTILINE)
_DEFAULT = re.compile(r"\s+Default: `[^`]*`\.$")
_WIDTH = 100


class Described:
    """A base of dataclasses whose docstrings have the `Args` of their bases, too, and every plain default.

    What a class describes itself takes the place of what a base says. A default that is a number, a word or a truth
    value is added; what another one means is for the description to say.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Base(Described):
    ...     '''Any thing.
    ...
    ...     Args:
    ...         size: in metres.
    ...         name: of the thing.
    ...     '''
    ...     size: float
    ...     name: str = "base"
    >>> @dataclass
    ... class Thing(Base):
    ...     '''A thing.
    ...
    ...     Args:
    ...         colour: its wavelength in nanometres.
    ...     '''
    ...     name: str = "thing"
    ...     colour: float = 500.0
    >>> print(Thing.__doc__)
    A thing.
    <BLANKLINE>
    Args:
        size: in metres.
        name: of the thing. Default: `'thing'`.
        colour: its wavelength in nanometres. Default: `500.0`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).get("__doc__")
        if own is None:
            return
        described: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            if issubclass(base, Described) and base is not Described:
                described |= arguments(vars(base).get("__doc__"))
        if not described:
            return
        before, _, after = _split(inspect.cleandoc(own))
        section = "Args:\n" + "\n".join(_with_default(cls, *entry) for entry in described.items())
        cls.__doc__ = "\n\n".join(filter(None, (before.rstrip(), section, after.strip())))


def arguments(docstring: str | None) -> dict[str, str]:
    r"""The lines that describe each argument, by its name.

    >>> arguments("A thing.\n\nArgs:\n    size: in metres.\n    name: of the thing.\n")
    {'size': '    size: in metres.', 'name': '    name: of the thing.'}
    """
    section = _split(inspect.cleandoc(docstring or ""))[1]
    starts = [match.start() for match in _ENTRY.finditer(section)]
    ends = [*starts[1:], len(section)]
    entries = [section[start:end].rstrip() for start, end in zip(starts, ends, strict=False)]
    return {entry.partition(":")[0].strip(): entry for entry in entries}


def _split(docstring: str) -> tuple[str, str, str]:
    """What comes before the arguments, what describes them, and what comes after."""
    docstring += "\n"
    match = _SECTION.search(docstring)
    if match is not None:
        return docstring[: match.start()], match[1], docstring[match.end() :]
    place = _AFTER.search(docstring)
    middle = len(docstring) if place is None else place.start()
    return docstring[:middle], "", docstring[middle:]


def _with_default(kind: type, name: str, entry: str) -> str:
    """The description of an argument, with its default in this class if that is plain."""
    default = getattr(kind, name, None)
    default = default.default if isinstance(default, Field) else default
    entry = _DEFAULT.sub("", entry)
    if not isinstance(default, bool | int | float | str) or default == "":
        return entry
    last = entry.rpartition("\n")[2]
    text = f"Default: `{default!r}`."
    return f"{entry}\n        {text}" if len(last) + len(text) >= _WIDTH else f"{entry} {text}"
