"""What `gpssm reproduce` does: the fits of a plan that are missing; then their tables, or the report of them all."""

import importlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import rich.table
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from gpssm.cli.output import print_json, print_line, say, table_console
from gpssm.datasets import SOURCES, benchmark
from gpssm.errors import InvalidInput
from gpssm.experiments import EXPERIMENTS
from gpssm.experiments.base import Cell, Entry, Group, Table, choose
from gpssm.parallel import cluster, pool
from gpssm.plumbing.atomic import write_atomically
from gpssm.reproduction.plan import Job, experiment, group, jobs_of, plan
from gpssm.reproduction.run import Runner
from gpssm.reproduction.run import run as run_plan
from gpssm.reproduction.store import Status, Store, plain
from gpssm.training.progress import duration


def run(
    name: str,
    cells: list[Cell],
    seeds: int | None,
    fast: bool,
    processes: int | None,
    retry_failed: bool,
    as_json: bool,
    quiet: bool,
    out: Path | None,
) -> None:
    """Do what is missing of some cells of an experiment and print their tables; keep everything in `out`, if given."""
    found: Any = experiment(EXPERIMENTS[name].module)
    if fast:
        known = {cell[:3]: cell for cell in found.cells(True)}
        cells = [known[cell[:3]] for cell in cells if cell[:3] in known]
    if not cells:
        raise InvalidInput("fast: that leaves nothing of what was asked for; leave out --fast, or ask for more.")
    for dataset in dict.fromkeys(cell.dataset for cell in cells if cell.dataset in SOURCES):
        benchmark(dataset)  # downloaded once, and a missing file is reported before anything is fitted
    if out is None and hasattr(found, "OUT"):
        out = Path(found.OUT)
    jobs = jobs_of(name, cells, 1 if fast and seeds is None else seeds)
    runner = partial(pool.run, processes=processes)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as directory:
        store = Store(Path(directory))
        work_off(store, jobs, fast, runner, retry_failed, quiet, with_report=out is not None)
        records = [(job, store.read(job)) for job in jobs]
    for job, record in records:
        if record is not None and record["error"] is not None:
            say(f"failed: {job.task.label}: {record['error']}")
    groups = group(records)
    result: dict[str, Any] = {"experiment": name} | getattr(found, "rows", every_fit)(groups)
    if out is not None:
        from gpssm.experiments.drawing import stacked

        fits = [record["task"] | record["result"] for _, record in records if record is not None and record["result"]]
        write_atomically(out / "results.json", json.dumps(plain(result | {"fits": fits}), indent=1).encode())
        figures = found.section(groups).figures
        if figures:
            write_atomically(out / f"{name}.png", stacked(figures))
        result["report"] = str(out / "report.html")
    if as_json:
        print_json(result)
        return
    print_tables(found.tables(groups) if hasattr(found, "tables") else found.section(groups).tables)
    if out is not None:
        print_line(f"report: {result['report']}")


def select(
    cells: list[Cell],
    method: Annotated[str, "One of its methods, or all."] = "all",
    dataset: Annotated[str, "One of its data sets, or all."] = "all",
    setting: Annotated[str, "One of its settings, or all."] = "all",
) -> list[Cell]:
    """The `select` of an experiment that has none of its own."""
    methods = choose("method", method, [cell.method for cell in cells])
    datasets = choose("dataset", dataset, [cell.dataset for cell in cells])
    settings = choose("setting", setting, [cell.setting for cell in cells])
    return [cell for cell in cells if cell.method in methods and cell.dataset in datasets and cell.setting in settings]


def every_fit(groups: Sequence[Group]) -> dict[str, Any]:
    """The `rows` of an experiment that has none of its own."""
    return {"rows": [group.cell._asdict() | result for group in groups for result in group.results]}


def print_tables(tables: Sequence[Table]) -> None:
    """On standard output; columns of numbers end where the next begins."""
    console = table_console(160)

    def shown(entry: Entry) -> Text:
        return Text(" ".join(part.text for part in entry))

    for table in tables:
        drawn = rich.table.Table(title=table.title, caption=table.note or None)
        rows = [[shown(entry) for entry in row] for row in table.rows]
        for place, column in enumerate(table.columns):
            numbers = all(_NUMBER.match(row[place].plain) for row in rows if row)
            drawn.add_column(column, justify="right" if numbers else "left", no_wrap=True)
        for row, entries in zip(rows, table.rows, strict=True):
            if row:
                drawn.add_row(*row, style="dim" if entries[0][0].quoted else None)
            else:
                drawn.add_section()
        console.print(drawn)


_NUMBER = re.compile(r"[-+\d/]|nan|inf|diverged|failed|not run|$")


def run_all(
    out: Path,
    seeds: int | None,
    only: str | None,
    fast: bool,
    processes: int | None,
    dask: str | None,
    retry_failed: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Do what is missing of the whole plan, then write the report."""
    if dask is not None and processes is not None:
        raise InvalidInput("processes: how many there are is up to the cluster; leave out --processes or --dask.")
    runner = partial(pool.run, processes=processes) if dask is None else partial(cluster.run, dask)
    store = Store(out)
    work_off(store, plan(seeds, only, fast), fast, runner, retry_failed, quiet)
    _tell(store.status(), out / "report.html", as_json)


def work_off(
    store: Store,
    jobs: Sequence[Job],
    fast: bool,
    runner: Runner,
    retry_failed: bool,
    quiet: bool,
    with_report: bool = True,
) -> None:
    """Run what is missing of a plan while showing how far it is, and write its report."""
    if with_report:  # what draws the figures, after hours perhaps, has to be there now
        importlib.import_module("matplotlib")
        from gpssm.reproduction import report
    for name in store.begin(jobs, fast):
        place = store.directory / name
        say(f"{place} is not a result, or a damaged one; it is now {name}.damaged, and its fit is done again.")
    with _shown(quiet) as watch:
        run_plan(store, jobs, runner, retry_failed, watch)
        if with_report:
            report.write(store)


def status(directory: Path, as_json: bool) -> None:
    """How far a run is, from its files."""
    found = Store(directory).status()
    _tell_of_damage(directory, found)
    if as_json:
        print_json(asdict(found))
        return
    print_line(describe(found) if found.alive else f"{describe(found)}; nobody is at work")
    for label, seconds in found.running.items():
        print_line(f"  {label}, {duration(seconds)}")


def report(directory: Path, as_json: bool) -> None:
    """Write the report anew."""
    from gpssm.reproduction.report import write

    store = Store(directory)
    found = store.status()  # says what is wrong with the directory, if anything is
    _tell_of_damage(directory, found)
    _tell(found, write(store), as_json)


def readme(directory: Path, target: Path) -> None:
    """Put the tables of the report between the markers of a file."""
    from gpssm.reproduction.report import readme as with_tables

    write_atomically(target, with_tables(Store(directory), target.read_text()).encode())


def describe(found: Status) -> str:
    """One line."""
    parts = [f"{found.done} of {found.total} done"]
    if found.failed:
        parts.append(f"{found.failed} failed")
    if found.running:
        parts.append(f"{len(found.running)} running")
    if found.seconds_left is not None:
        parts.append(f"about {duration(found.seconds_left)} left")
    return ", ".join(parts)


def _tell_of_damage(directory: Path, found: Status) -> None:
    for name in found.damaged:
        say(f"{directory / name} is not a result, or a damaged one; its fit counts as not done.")


def _tell(found: Status, written: Path, as_json: bool) -> None:
    counts = {"total": found.total, "done": found.done, "failed": found.failed}
    if as_json:
        print_json(counts | {"report": str(written)})
        return
    print_line(describe(found))
    print_line(f"report: {written}")


@contextmanager
def _shown(quiet: bool) -> Iterator[Callable[[Status], None]]:
    """A bar on a terminal; elsewhere a line whenever something was finished; nothing if `quiet`."""
    if quiet:
        yield lambda found: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        finished = -1

        def tell(found: Status) -> None:
            nonlocal finished
            if found.done + found.failed != finished:
                finished = found.done + found.failed
                console.print(describe(found), highlight=False, soft_wrap=True)

        yield tell
        return
    with Progress(BarColumn(bar_width=30), TextColumn("{task.description}"), console=console) as bar:
        line = bar.add_task("starting", total=None)

        def draw(found: Status) -> None:
            running = "".join(f"\n  {label}, {duration(seconds)}" for label, seconds in found.running.items())
            text = escape(describe(found) + running)
            bar.update(line, total=found.total, completed=found.done + found.failed, description=text)

        yield draw
