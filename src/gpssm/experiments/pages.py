"""What a report is made of, whoever renders it."""

from typing import NamedTuple


class Part(NamedTuple):
    """A piece of a table's entry; with where it leads."""

    text: str
    link: str = ""
    quoted: bool = False
    """Somebody else's: faint on a terminal."""


Entry = tuple[Part, ...]
Row = tuple[Entry, ...]
"""An empty one is a line across the table, on a terminal."""


class Table(NamedTuple):
    """Columns and rows. `brief` ones are also for the README."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    brief: bool = False


class Figure(NamedTuple):
    """A picture as PNG."""

    name: str
    caption: str
    png: bytes


class Section(NamedTuple):
    """A chapter of the report."""

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
