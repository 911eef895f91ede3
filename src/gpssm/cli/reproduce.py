"""`gpssm reproduce all`, `status`, `report` and `readme`: the whole paper, how far it is, and what came out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from gpssm.cli.output import print_json, print_line, say
from gpssm.errors import InvalidInput
from gpssm.plumbing.atomic import write_atomically
from gpssm.reproduction.plan import Job
from gpssm.reproduction.run import Runner
from gpssm.reproduction.store import Status, Store
from gpssm.training.progress import duration


def run(
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
    """Do what is missing, then write the report."""
    from gpssm.parallel import cluster, pool
    from gpssm.reproduction.plan import plan

    if dask is not None and processes is not None:
        raise InvalidInput("processes: how many there are is up to the cluster; leave out --processes or --dask.")
    runner = partial(pool.run, processes=processes) if dask is None else partial(cluster.run, dask)
    store, written = work_off(plan(seeds, only, fast), out, fast, runner, retry_failed, quiet)
    _tell(store.status(), written, as_json)


def work_off(
    jobs: Sequence[Job], out: Path, fast: bool, runner: Runner, retry_failed: bool, quiet: bool
) -> tuple[Store, Path]:
    """Run what is missing of a plan while showing how far it is; its store, and the report that was written."""
    from gpssm.reproduction import report
    from gpssm.reproduction.run import run as run_plan

    store = Store(out)
    for name in store.begin(jobs, fast):
        say(f"{out / name} is not a result, or a damaged one; it is now {name}.damaged, and its fit is done again.")
    with _shown(quiet) as watch:
        run_plan(store, jobs, runner, retry_failed, watch)
        written = report.write(store)
    return store, written


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
