"""`gpssm reproduce`: an experiment of the paper, or all of them; how far that is, and the report.

An experiment is a command by its line in `gpssm.experiments.EXPERIMENTS`: its plan, restricted by options that are in
its own file. That file is imported when the command is called, and not for the help of others: that would start JAX.
"""

import importlib
import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, TypeVar, cast, get_args

import typer
from typer.main import get_command

from gpssm.cli.completion import after_options, one_of, some_of
from gpssm.cli.options import AsJson, Quiet, Told, told, with_options
from gpssm.errors import InvalidInput
from gpssm.experiments import EXPERIMENTS
from gpssm.experiments.base import Cell, Group, choose
from gpssm.experiments.pages import Table
from gpssm.methods.registry import METHODS, ONLINE
from gpssm.parallel import cluster, pool
from gpssm.plumbing.atomic import write_atomically
from gpssm.plumbing.json_numbers import plain
from gpssm.plumbing.messages import say
from gpssm.reproduction.plan import Job, experiment, group, jobs_of, plan
from gpssm.reproduction.run import Runner
from gpssm.reproduction.run import run as run_plan
from gpssm.reproduction.store import Status, Store

app = typer.Typer(
    no_args_is_help=True,
    **told(
        """Run an experiment of the paper and set it beside the paper's numbers.

        Example:
            gpssm reproduce kink --method EnVI --seeds 1
            gpssm reproduce all --fast
        """
    ),
)


def _data_sets(incomplete: str) -> list[str]:
    from gpssm.datasets.sources import SOURCES  # not for the help: that would start NumPy

    return one_of(SOURCES)(incomplete)


F = TypeVar("F", bound=Callable[..., Any])

Processes = Annotated[
    int | None, typer.Option(min=1, help="How many fits at once on this machine; one per core by default.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try failed fits again.")]
Directory = Annotated[Path, typer.Argument(help="Where `gpssm reproduce` works.", show_default=False)]
Words = Annotated[
    list[str] | None,
    typer.Argument(autocompletion=after_options({"--method": one_of((*METHODS, *ONLINE)), "--dataset": _data_sets})),
]
"""What an experiment is asked for; which of these names it has, it says itself."""


def _add(name: str) -> None:
    """The command of an experiment passes on all that it is given."""

    @app.command(
        name,
        **_help_of(name),
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    def call(context: typer.Context, words: Words = None) -> Any:  # the exit code
        return _command(name)(args=words or [], prog_name=context.command_path, standalone_mode=False)


def _help_of(name: str) -> Told:
    """Of an experiment."""
    return told(f"{EXPERIMENTS[name].summary}\n\nExample:\n    gpssm reproduce {name} --fast --out {name}")


for _name in EXPERIMENTS:
    _add(_name)


def _command_of(name: str) -> Callable[[F], F]:
    """Make a function a command, with its docstring as the help."""
    return lambda function: app.command(name, **told(function.__doc__))(function)


def _command(name: str) -> Callable[..., Any]:
    """The command line of an experiment: the arguments of its `select` as options, and those of `run`."""
    found = experiment(EXPERIMENTS[name].module)
    chosen = getattr(found, "select", partial(select, found.cells(False)))
    own = []
    for option in inspect.signature(chosen).parameters.values():
        type_, help_ = get_args(option.annotation)
        flag = [f"--{option.name}"] if type_ is bool else []
        annotation = Annotated[type_, typer.Option(*flag, help=help_)]  # type: ignore[valid-type]
        own.append(option.replace(annotation=annotation, kind=option.KEYWORD_ONLY))
    common = list(inspect.signature(run).parameters.values())[2:]

    def call(**given: Any) -> None:
        cells = chosen(**{option.name: given.pop(option.name) for option in own})
        run(name, cells, **given)

    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command(**_help_of(name))(with_options(call, inspect.Signature([*own, *common])))
    return get_command(command)


def run(
    name: str,
    cells: list[Cell],
    *,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of repetitions, seeds 0, 1, ...; by default as the table needs.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="What `gpssm reproduce all --fast` has of it.")] = False,
    processes: Processes = None,
    retry_failed: RetryFailed = False,
    json_: AsJson = False,
    quiet: Quiet = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for results, figures and report; fits found there are not repeated."),
    ] = None,
) -> None:
    """Do what is missing of some cells of an experiment and print their tables; keep everything in `out`, if given.

    The command ends with exit code 1 if a fit has failed.
    """
    from gpssm.cli.output import print_json, print_line
    from gpssm.datasets import SOURCES, benchmark
    from gpssm.experiments.drawing import stacked

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
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as directory:
        store = Store(Path(directory))
        _work_off(store, jobs, fast, partial(pool.run, processes=processes), retry_failed, quiet, out is not None)
        records = [(job, store.read(job)) for job in jobs]
    failed = [(job, record["error"]) for job, record in records if record is not None and record["error"] is not None]
    for job, error in failed:
        say(f"failed: {job.task.label}: {error}")
    groups = group(records)
    section = found.section(groups)
    result: dict[str, Any] = {"experiment": name} | rows(found, groups)
    if out is not None:
        fits = [record["task"] | record["result"] for _, record in records if record is not None and record["result"]]
        write_atomically(out / "results.json", json.dumps(plain(result | {"fits": fits}), indent=1).encode())
        if section.figures:
            write_atomically(out / f"{name}.png", stacked(section.figures))
        result["report"] = str(out / "report.html")
    if json_:
        print_json(result)
    else:
        print_tables(section.tables)
        if out is not None:
            print_line(f"report: {result['report']}")
    if failed:
        raise typer.Exit(1)


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


def rows(found: Any, groups: Sequence[Group]) -> dict[str, Any]:
    """What --json prints of an experiment: what it says itself (`rows`, or `row` of every cell), or else every fit."""
    if hasattr(found, "rows"):
        return cast(dict[str, Any], found.rows(groups))
    if hasattr(found, "row"):
        return {"rows": [found.row(group) for group in groups if group.results]}
    each = ((g.cell, seed, result) for g in groups for (seed, _), result in zip(g.files, g.results, strict=True))
    names = ("method", "dataset", "setting")
    return {"rows": [dict(zip(names, cell[:3], strict=True)) | {"seed": seed} | result for cell, seed, result in each]}


def print_tables(tables: Sequence[Table]) -> None:
    """On standard output, without links to files. Numbers stand to the right of their columns and are never broken."""
    import rich.table
    from rich.text import Text

    from gpssm.cli.output import table_console

    for table in (table.without_files() for table in tables):
        drawn = rich.table.Table(title=table.title, caption=table.note or None)
        rows = [[Text(" ".join(part.text for part in entry)) for entry in row] for row in table.rows]
        for place, column in enumerate(table.columns):
            numbers = all(_NUMBER.match(row[place].plain) for row in rows)
            heading = fill(column, max((len(row[place]) for row in rows), default=0) or 11, break_long_words=False)
            drawn.add_column(heading, justify="right" if numbers else "left", no_wrap=numbers)
        for row in rows:
            drawn.add_row(*row)
        table_console(500).print(drawn)  # whatever is in a file is whole


_NUMBER = re.compile(r"[-+\d/]|nan|inf|diverged|failed|not run|$")


@_command_of("all")
def all_(
    out: Annotated[
        Path, typer.Option("--out", help="Directory for results and report; fits found there are not repeated.")
    ] = Path("results/paper"),
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of repetitions; by default 3 to 20, as each table needs.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS",
            help="Parts like kink or sysid:EnVI, with commas between them.",
            autocompletion=some_of(name for name, entry in EXPERIMENTS.items() if entry.in_paper),
        ),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="One seed, fewer methods and data: a quarter of an hour on two cores.")
    ] = False,
    processes: Processes = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the Dask cluster of this scheduler instead.")
    ] = None,
    retry_failed: RetryFailed = False,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Every table and figure of the paper, with every method, and a report. Stop it and start it as you like.

    `gpssm reproduce status` tells from another terminal how far it is.

    Example:
        gpssm reproduce all --only kink,sysid:EnVI --fast --out results
    """
    if dask is not None and processes is not None:
        raise InvalidInput("processes: how many there are is up to the cluster; leave out --processes or --dask.")
    runner = partial(pool.run, processes=processes) if dask is None else partial(cluster.run, dask)
    store = Store(out)
    _work_off(store, plan(seeds, only, fast), fast, runner, retry_failed, quiet)
    _tell(store.status(), out / "report.html", json_)


def _work_off(
    store: Store, jobs: Sequence[Job], fast: bool, runner: Runner, retry: bool, quiet: bool, with_report: bool = True
) -> None:
    """Run what is missing of a plan while showing how far it is, and write its report."""
    if with_report:  # what draws and writes, after hours perhaps, has to be there now
        importlib.import_module("matplotlib")
        from gpssm.reproduction import report
    for name in store.begin(jobs, fast):
        place = store.directory / name
        say(f"{place} is not a result, or a damaged one; it is now {name}.damaged, and its fit is done again.")
    with _shown(quiet) as watch:
        run_plan(store, jobs, runner, retry, watch)
        if with_report:
            report.write(store)


@_command_of("status")
def status(directory: Directory, json_: AsJson = False) -> None:
    """How many fits of `gpssm reproduce` are done, running and failed, and the time left.

    Example:
        gpssm reproduce status results/paper
    """
    from gpssm.cli.output import print_json, print_line
    from gpssm.training.progress import duration

    found = _look(Store(directory))
    if json_:
        print_json(asdict(found))
        return
    print_line(describe(found) if found.alive else f"{describe(found)}; nobody is at work")
    for label, seconds in found.running.items():
        print_line(f"  {label}, {duration(seconds)}")


@_command_of("report")
def report(directory: Directory, json_: AsJson = False) -> None:
    """Write the report of `gpssm reproduce` again, from the results that there are.

    Example:
        gpssm reproduce report results/paper
    """
    from gpssm.reproduction.report import write

    store = Store(directory)
    _tell(_look(store), write(store), json_)


@_command_of("readme")
def readme(
    directory: Directory,
    write: Annotated[Path, typer.Option(help="File with the two markers.", exists=True, dir_okay=False)],
) -> None:
    """Put the brief tables of a report between two lines of a file.

    The lines are `<!-- results: begin -->` and `<!-- results: end -->`.

    Example:
        gpssm reproduce readme results/paper --write README.md
    """
    from gpssm.reproduction.report import readme as with_tables

    write_atomically(write, with_tables(Store(directory), write.read_text()).encode())


def describe(found: Status) -> str:
    """One line."""
    from gpssm.training.progress import duration

    parts = [f"{found.done} of {found.total} done"]
    if found.failed:
        parts.append(f"{found.failed} failed")
    if found.running:
        parts.append(f"{len(found.running)} running")
    if found.seconds_left is not None:
        parts.append(f"about {duration(found.seconds_left)} left")
    return ", ".join(parts)


def _look(store: Store) -> Status:
    """How far it is; says what is wrong with the directory, if anything is."""
    found = store.status()
    for name in found.damaged:
        say(f"{store.directory / name} is not a result, or a damaged one; its fit counts as not done.")
    return found


def _tell(found: Status, written: Path, as_json: bool) -> None:
    from gpssm.cli.output import print_json, print_line

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
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn

    from gpssm.training.progress import duration

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
