"""What an experiment is: cells of a table, each repeated over seeds, their results, and what is shown of them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple, Protocol, cast

from gpssm.errors import InvalidInput
from gpssm.experiments.pages import Section


class Cell(NamedTuple):
    """What is repeated over seeds: one cell of a table."""

    method: str
    dataset: str
    setting: str
    shortened: bool = False
    """Whether --fast has cut the fit itself, and not only the number of fits."""
    varied: float | None = None
    """Another length, number of steps or share of missing outputs than that of the plan; which, the experiment says."""


@dataclass(frozen=True)
class Task:
    """One fit."""

    experiment: str
    method: str
    dataset: str
    setting: str
    seed: int
    shortened: bool = False
    varied: float | None = None

    @property
    def cell(self) -> Cell:
        """What the task repeats, with one seed."""
        return Cell(self.method, self.dataset, self.setting, self.shortened, self.varied)

    @property
    def label(self) -> str:
        """For people: `kink EnVI 0.008 sd seed 0`."""
        return " ".join([self.experiment, *filter(None, self.cell[:3]), f"seed {self.seed}"])

    @property
    def folder(self) -> str:
        """Where the results of all seeds are, relative to the directory of the run."""
        parts = [_slug(part) for part in (self.experiment, *self.cell[:3]) if part]
        varied = [] if self.varied is None else [f"{self.varied:g}"]
        return "/".join(["results", *parts, *(["shortened"] if self.shortened else []), *varied])

    def as_dict(self) -> dict[str, Any]:
        """For a file; what is as in the plan is not said."""
        return {name: value for name, value in asdict(self).items() if name != "varied" or value is not None}


@dataclass(frozen=True)
class Group:
    """The fits of a cell, over seeds, as far as there are results."""

    cell: Cell
    folder: str
    results: tuple[dict[str, Any], ...]
    files: tuple[tuple[int, str], ...]
    """Seed and file of every result."""
    failed: tuple[tuple[int, str], ...]
    missing: tuple[int, ...]

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.cell.method

    def values(self, *path: str | int) -> list[float]:
        """One number of every result, by its name and those of what it is part of; NaN where it was not finite."""
        return [
            number_or_nan(reduce(lambda part, name: part[name], path, cast(Any, result))) for result in self.results
        ]


class Experiment(Protocol):
    """The names that the file of an experiment has."""

    SEEDS: int
    """How many there are by default."""
    LEFT_OUT: str
    """What --fast does without, for the report."""

    def cells(self, fast: bool) -> list[Cell]:
        """All cells, in the order of the report."""

    def configuration(self, task: Task) -> str:
        """Every setting of the method that will be fitted (`spell`): other settings are other results."""

    def cost(self, task: Task) -> float:
        """A guess of the seconds that it takes."""

    def run(self, task: Task) -> dict[str, Any]:
        """Fit and score, in a process of its own; ready for JSON, with all that a figure needs."""

    def section(self, groups: Sequence[Group]) -> Section:
        """What the report shows of the results."""

    # A file may also have:
    #
    # OUT: str
    #     The directory that the command keeps results in; by default it keeps none without --out.
    # select(...) -> list[Cell]
    #     The cells that the command runs. Its arguments are the options of the command, each with its help:
    #     `method: Annotated[str, "EnVI, or all."] = "all"`. By default --method, --dataset and --setting by name.
    # row(group) -> dict[str, Any]
    #     What the command prints with --json of the results of a cell; by default every fit.
    # rows(groups) -> dict[str, Any]
    #     The same of all cells, `{"rows": [...]}`, where there is more to say, or not one row for every cell.


def choose(name: str, asked: str | Iterable[str], known: Iterable[str]) -> list[str]:
    """Those of the names `known` that an option asks for, in its order and whatever their case; `all` is every one."""
    known, found = list(dict.fromkeys(known)), list[str]()
    for value in [asked] if isinstance(asked, str) else asked:
        fitting = known if value == "all" else [k for k in known if k.lower() == value.lower()]
        if not fitting:
            raise InvalidInput(f"{name}: expected one of {', '.join(known)} or all, got {value!r}.")
        found += fitting
    return list(dict.fromkeys(found))


def spell(value: Any) -> str:
    """As `repr`, with the values of arrays, which modules such as kernels keep to themselves."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{field.name}={spell(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    return repr(value.tolist()) if hasattr(value, "dtype") else repr(value)


def number_or_nan(value: Any) -> float:
    """JSON has no NaN and no infinity: what is stored instead is None."""
    return float("nan") if value is None else float(value)


def by(groups: Sequence[Group], name: Literal["dataset", "setting"]) -> dict[str, list[Group]]:
    """The groups of every data set, or of every setting, in the order they come in."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(getattr(group.cell, name), []).append(group)
    return found


def _slug(text: str) -> str:
    """As the name of a directory: below the one that it is in, never above."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", text).strip("_.")
