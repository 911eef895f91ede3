"""Showing a fit while it runs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpssm.history import Progress

Watch = Callable[[Progress], None]


@contextmanager
def watcher(progress: bool | Watch, title: str) -> Iterator[Watch | None]:
    """What a fit should call after every chunk: nothing, the caller's function, or a bar on standard error."""
    if not progress:
        yield None
    elif callable(progress):
        yield progress
    else:
        with _bar(title) as watch:
            yield watch


@contextmanager
def _bar(title: str) -> Iterator[Watch]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ModuleNotFoundError:
        yield _plain(title)
        sys.stderr.write("\n")
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, state="compiling")

        def watch(p: Progress) -> None:
            bar.update(task, total=p.max_steps, completed=p.step, state=describe(p))

        yield watch


def _plain(title: str) -> Watch:
    def watch(p: Progress) -> None:
        sys.stderr.write(f"\r{title}: {describe(p)}, {p.seconds:.0f} s ")
        sys.stderr.flush()

    return watch


def describe(p: Progress) -> str:
    """One line: where a fit is, its objective, and the terms that make it up."""
    where = f"{p.phase} {p.step}/{p.max_steps}"
    if not p.terms:
        return where
    parts = ", ".join(f"{name} {value:.0f}" for name, value in p.terms.items())
    return f"{where} ELBO {p.elbo:.1f} ({parts})"
