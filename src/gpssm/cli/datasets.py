"""`gpssm datasets`: the published recordings, and which of them are on this machine."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from gpssm.cli.output import print_json, table_console
from gpssm.datasets import SOURCES, Source, where


def run(as_json: bool) -> None:
    """List every data set that `gpssm.datasets.load` knows."""
    found = {name: where(name) for name in SOURCES}
    if as_json:
        print_json({"datasets": [_as_dict(s) | {"local": _path(found[name])} for name, s in SOURCES.items()]})
        return
    console = table_console(160)
    table = Table(title="Published recordings", caption=_CAPTION)
    for column in ("name", "samples", "input -> output", "source", "on this machine"):
        table.add_column(column, justify="right" if column == "samples" else "left", overflow="fold")
    for name, source in SOURCES.items():
        local = _path(found[name]) or "no"
        table.add_row(name, str(source.length), _channels(source), source.citation, Text(local))
    console.print(table)


_CAPTION = "gpssm.datasets.load(name) reads the directory that GPSSM_DATA names, or else downloads once."


def _as_dict(source: Source) -> dict[str, object]:
    return {
        "name": source.name,
        "length": source.length,
        "inputs": list(source.input_names),
        "outputs": list(source.output_names),
        "description": f"{source.description}: {_channels(source)}",
        "source": source.citation,
    }


def _channels(source: Source) -> str:
    channels = f"{', '.join(source.input_names)} -> {', '.join(source.output_names)}"
    return channels if source.interval is None else f"{channels}, every {source.interval:g} s"


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
