"""Showing a fit while it runs: a bar on a terminal, and now and then a line anywhere else."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gpssm.plumbing.interruption import Interruption
from gpssm.plumbing.messages import say
from gpssm.posteriors.history import History, Progress

Watch = Callable[[Progress], None]

FIRST, EVERY = 10.0, 30.0
"""Seconds until the first line where there is no terminal, and between two of them."""


@contextmanager
def watcher(progress: bool | Watch, title: str) -> Iterator[Watch | None]:
    """What a fit should call after every chunk: nothing, the caller's function, or what shows it on standard error."""
    if not progress:
        yield None
    elif callable(progress):
        yield progress
    elif sys.stderr.isatty() or _in_notebook():
        with _bar(title) as watch:
            yield watch
    else:
        with StatusLines(f"{title}: compiling") as lines:
            yield lambda p: lines.update(f"{title}: {describe(p)}")


def record(history: History, p: Progress, watch: Watch | None) -> None:
    """Add one report to the history of a fit, and pass it on."""
    history.step.append(p.step)
    history.elbo.append(p.elbo)
    for name, term in p.terms.items():
        history.terms.setdefault(name, []).append(term)
    history.seconds.append(p.seconds)
    history.messages.extend(p.messages)
    if watch is not None:
        watch(p)


class Monitor(NamedTuple):
    """Who may interrupt a fit, and who is notified of its progress."""

    interruption: Interruption
    watch: Watch | None
    later: int = 0
    """Steps of the optimiser that follow those of the present phase: other phases, and other starts."""
    again: float = 0.0
    """How much of the time of this fit will be spent once more, by the next one."""

    def seconds_left(self, steps: int, seconds_per_step: float) -> float:
        """Until the end, with so many steps left in this phase."""
        left = (steps + self.later) * seconds_per_step
        return left + self.again * (self.interruption.seconds + left)

    def searching(self) -> Callable[[int, int], bool]:
        """What a search calls with how many of its calls are done, and how many there are; says whether time is up."""
        started = time.perf_counter()

        def report(done: int, total: int) -> bool:
            self.interruption.check()
            if self.watch is not None:
                seconds = time.perf_counter() - started
                self.watch(Progress(done, total, "looking for starts", math.nan, {}, seconds, ()))
            return self.interruption.out_of_time

        return report


class StatusLines:
    """A context in which a line on standard error says now and then what is going on, for logs.

    They come by the clock, also while something is compiled and nobody calls `update`.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> "StatusLines":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def update(self, text: str) -> None:
        """Replace the text by what is going on from now on."""
        self._text = text

    def _repeat(self) -> None:
        started, wait = time.monotonic(), FIRST
        while not self._over.wait(wait):
            wait = EVERY
            say(f"{duration(time.monotonic() - started)}, {self._text}")


def duration(seconds: float) -> str:
    """In the unit that a person would use."""
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


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


def _in_notebook() -> bool:
    """Where a bar can be drawn without a terminal."""
    shell: Any = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


def _plain(title: str) -> Watch:
    def watch(p: Progress) -> None:
        sys.stderr.write(f"\r{title}: {describe(p)}, {p.seconds:.0f} s ")
        sys.stderr.flush()

    return watch


def describe(p: Progress) -> str:
    """One line: where a fit is, its objective, and the terms that make it up."""
    where = f"{p.phase} {p.step}/{p.max_steps}"
    if p.seconds_left is not None:
        where += f", about {duration(p.seconds_left)} left,"
    if not p.terms:
        return where
    parts = ", ".join(f"{name} {value:.0f}" for name, value in p.terms.items())
    return f"{where} ELBO {p.elbo:.1f} ({parts})"
