"""`gpssm datasets`: the published recordings, and which of them are on this machine."""

from rich.table import Table
from rich.text import Text

from gpssm.cli.options import DatasetsOptions
from gpssm.cli.output import print_json, table_console
from gpssm.datasets import SOURCES, Source, where


def run(options: DatasetsOptions) -> None:
    """List every data set that `gpssm.datasets.load` knows."""
    found = {name: None if (path := where(name)) is None else str(path) for name in SOURCES}
    if options.as_json:
        print_json({"datasets": [_as_dict(s) | {"local": found[name]} for name, s in SOURCES.items()]})
        return
    console = table_console(160)
    table = Table(title="Published recordings", caption=_CAPTION)
    for column in ("name", "learn", "test", "inputs -> outputs", "source", "on this machine"):
        table.add_column(column, justify="right" if column in ("learn", "test") else "left", overflow="fold")
    for name, source in SOURCES.items():
        tests = "\n".join(str(rows.length) for rows in source.tests)
        channels, local = _channels(source, counted=True), Text(found[name] or "no")
        table.add_row(name, str(source.learn.length), tests, channels, source.citation, local)
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
        "description": f"{source.description}: {_channels(source, counted=False)}",
        "source": source.citation,
    }


def _channels(source: Source, *, counted: bool) -> str:
    """Names of inputs and outputs, and the sampling interval; if `counted`, a number instead of more than two names."""
    inputs, outputs = (
        f"{len(names)} {kind}" if counted and len(names) > 2 else ", ".join(names)
        for names, kind in ((source.input_names, "inputs"), (source.output_names, "outputs"))
    )
    return f"{inputs} -> {outputs}" + ("" if source.interval is None else f", every {source.interval:.4g} s")
