"""What a report is made of, whoever renders it."""

from typing import NamedTuple


class Part(NamedTuple):
    """A piece of a table's entry; with where it leads."""

    text: str
    link: str = ""


Entry = tuple[Part, ...]
Row = tuple[Entry, ...]

FILES = "results by seed"
"""The heading of the last column of a table, where it leads to files."""


class Table(NamedTuple):
    """Columns and rows. `brief` ones are also for the README."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    brief: bool = False

    def without_files(self) -> "Table":
        """Without the column that leads to files, for where it would lead nowhere."""
        kept = self.columns.index(FILES) if FILES in self.columns else None
        return self._replace(columns=self.columns[:kept], rows=tuple(row[:kept] for row in self.rows))


class Figure(NamedTuple):
    """A picture as PNG."""

    name: str
    caption: str
    png: bytes


class Section(NamedTuple):
    """What the report shows of one experiment."""

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
