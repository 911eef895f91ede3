"""What commands print, and what they take."""

import csv
import io
import json
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.status import Status

from gpssm.atomic import write_atomically
from gpssm.errors import InvalidInput
from gpssm.progress import Watch, describe

NDArray = np.ndarray
Choice = TypeVar("Choice", bound=str)


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """A drawing as a file that is whole or absent."""
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.removeprefix("."), dpi=dpi)
    write_atomically(path, image.getvalue())


def print_json(value: object) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def print_line(text: str) -> None:
    """A line on standard output, as it is: no markup, no line breaks."""
    sys.stdout.write(text + "\n")


def print_columns(columns: dict[str, NDArray], out: Path | None, about: dict[str, object], as_json: bool) -> None:
    """Columns as a CSV file at `out`, or on standard output; as JSON `about` them, with those that are in no file."""
    if out is not None:
        from gpssm.datasets.csv_files import to_csv

        to_csv(out, columns)
    if as_json:
        print_json(about | ({"columns": _finite(columns)} if out is None else {"out": str(out)}))
    elif out is None:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    # Here, where a reader that has gone away is still noticed as one.
    sys.stdout.flush()


def table_console(width: int) -> Console:
    """Where a table goes: to the terminal as wide as it is, or `width` columns wide into a file or pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


@contextmanager
def working(text: str, as_json: bool) -> Iterator[None]:
    """Show on a terminal that something is going on, and nothing anywhere else."""
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield
    else:
        with console.status(text):
            yield


def _finite(columns: dict[str, NDArray]) -> dict[str, list[float | None]]:
    """JSON has no infinity and no NaN."""
    return {name: [v if math.isfinite(v) else None for v in column.tolist()] for name, column in columns.items()}


def choose(name: str, value: str, choices: list[Choice]) -> list[Choice]:
    """All of `choices`, or the one that `value` names."""
    if value == "all":
        return choices
    found = [c for c in choices if c.lower() == value.lower()]
    if not found:
        raise InvalidInput(f"{name}: expected one of {', '.join(choices)} or all, got {value!r}.")
    return found


@contextmanager
def fitting(status: Status, label: str) -> Iterator[Watch]:
    """One fit of an experiment: a watcher that tells on the status line how it goes on.

    Warnings of the training are not shown: what they tell of was repaired, and is part of the method.
    """
    from gpssm.methods.training import TrainingWarning  # brings JAX, which other commands do without

    status.update(f"{label}: compiling")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        yield lambda p: status.update(f"{label}: {describe(p)}, {p.seconds:.0f} s")
