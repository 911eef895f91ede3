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
    for column in ("name", "learn", "test", "inputs -> outputs", "source", "on this machine"):
        table.add_column(column, justify="right" if column in ("learn", "test") else "left", overflow="fold")
    for name, source in SOURCES.items():
        local = _path(found[name]) or "no"
        tests = "\n".join(str(rows.length) for rows in source.tests)
        table.add_row(name, str(source.learn.length), tests, _briefly(source), source.citation, Text(local))
    console.print(table)


_CAPTION = (
    "learn, test: samples. gpssm.datasets.load(name) and benchmark(name) read the directory that GPSSM_DATA names, "
    "or else download once."
)


def _as_dict(source: Source) -> dict[str, object]:
    return {
        "name": source.name,
        "length": source.length,
        "inputs": list(source.input_names),
        "outputs": list(source.output_names),
        "interval": source.interval,
        "learn": source.learn.length,
        "tests": [{"name": rows.name, "length": rows.length, "run_in": rows.run_in} for rows in source.tests],
        "description": f"{source.description}: {_channels(source)}",
        "source": source.citation,
    }


def _channels(source: Source) -> str:
    return _timed(f"{', '.join(source.input_names)} -> {', '.join(source.output_names)}", source)


def _briefly(source: Source) -> str:
    """Many channels are counted."""
    inputs, outputs = (
        f"{len(names)} {kind}" if len(names) > 2 else ", ".join(names)
        for names, kind in ((source.input_names, "inputs"), (source.output_names, "outputs"))
    )
    return _timed(f"{inputs} -> {outputs}", source)


def _timed(channels: str, source: Source) -> str:
    return channels if source.interval is None else f"{channels}, every {source.interval:.4g} s"


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
