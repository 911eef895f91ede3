"""What commands print and draw."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from gpssm.datasets.csv_files import csv_text, to_csv
from gpssm.errors import InvalidInput
from gpssm.plumbing.atomic import write_atomically
from gpssm.plumbing.json_numbers import plain
from gpssm.plumbing.messages import say
from gpssm.plumbing.times import Times
from gpssm.posteriors.states import first_not_finite
from gpssm.training.progress import StatusLines

NDArray = np.ndarray
_EXACT = 2**53  # whole numbers below it are themselves as floats


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """A drawing as a file that is whole or absent."""
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.removeprefix("."), dpi=dpi)
    write_atomically(path, image.getvalue())


def check_picture(path: Path) -> None:
    """Refuse, before any work is done, a picture of a kind that cannot be drawn."""
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = FigureCanvasBase.filetypes
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise InvalidInput(f"out: {str(path)!r} ends in {path.suffix!r}; expected one of {', '.join(kinds)}.")


def print_json(value: object) -> None:
    """One JSON object on standard output, in which null is a missing number and "inf" and "-inf" are infinite ones."""
    sys.stdout.write(json.dumps(plain(value, infinite=str), allow_nan=False) + "\n")


def print_line(text: str) -> None:
    """A line on standard output, as it is: no markup, no line breaks."""
    sys.stdout.write(text + "\n")


def print_columns(
    columns: dict[str, NDArray], out: Path | None, about: dict[str, object], as_json: bool, row: str
) -> None:
    """Columns as a CSV file at `out`, or on standard output; as JSON `about` them, with those that are in no file.

    Columns hold words or numbers. None of these is expected to be missing: the first `row` where one is not finite is
    reported.
    """
    diverged = first_not_finite(np.column_stack([column for column in columns.values() if column.dtype.kind != "U"]))
    if out is not None:
        to_csv(out, columns)
    if as_json:
        shown: dict[str, object] = {"columns": {name: column.tolist() for name, column in columns.items()}}
        print_json(about | {"diverged": diverged} | (shown if out is None else {"out": str(out)}))
    elif out is None:
        sys.stdout.write(csv_text(columns))
    # Here, where a reader that has gone away is still noticed as one.
    sys.stdout.flush()
    if diverged is not None:
        report_divergence(f"from {row} {diverged} on")


def with_times(times: Times | None, columns: dict[str, NDArray]) -> dict[str, NDArray]:
    """Columns, and before them that of their times, if these are known: dates in words, or numbers."""
    if times is None:
        return columns
    length = len(next(iter(columns.values())))
    shown = np.array(times.text(length)) if times.dated else times.values(length)
    if not times.dated and np.all(shown == np.rint(shown)) and np.all(np.abs(shown) < _EXACT):
        shown = shown.astype(np.int64)  # 240 rather than 240.0
    return {times.name if times.name not in columns else "time": shown} | columns


def report_divergence(where: str) -> None:
    """Say on standard error where numbers that a model has computed are not finite."""
    say(f"diverged: {where} numbers are infinite or undefined, the model is unstable; use those before, or refit.")


def table_console(width: int) -> Console:
    """Where a table goes: to the terminal as wide as it is, or `width` columns wide into a file or pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


@contextmanager
def working(text: str, quiet: bool) -> Iterator[None]:
    """Say what is going on: on a terminal all the time, elsewhere by a line now and then; not if `quiet`.

    Numbers that overflow are reported when they are printed, not where they arise.
    """
    shown = Console(stderr=True).status(text) if sys.stderr.isatty() else StatusLines(text)
    with np.errstate(over="ignore", invalid="ignore"), nullcontext() if quiet else shown:
        yield
