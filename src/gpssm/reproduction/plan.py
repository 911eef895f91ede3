"""What is run: every table and figure of the paper, cut into fits that do not need each other.

A chapter (`chapters/`) is a module that knows one experiment: which fits it has, how to run one of them and what
to tell of their results. Its list of methods is that of the registry, so a new method joins by its registration.
"""

import hashlib
import importlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

from gpssm import __version__
from gpssm.errors import InvalidInput
from gpssm.reproduction.pages import Section

CHAPTERS: dict[str, str] = {
    name: f"gpssm.reproduction.chapters.{name}"
    for name in ("kink", "sysid", "recordings", "car", "nascar", "convergence")
}


class Cell(NamedTuple):
    """What is repeated over seeds: one cell of a table."""

    method: str
    dataset: str
    setting: str
    shortened: bool = False
    """Whether --fast has cut the fit itself, and not only the number of fits."""


@dataclass(frozen=True)
class Task:
    """One fit."""

    experiment: str
    method: str
    dataset: str
    setting: str
    seed: int
    shortened: bool = False

    @property
    def cell(self) -> Cell:
        return Cell(self.method, self.dataset, self.setting, self.shortened)

    @property
    def label(self) -> str:
        return " ".join([self.experiment, *filter(None, self.cell[:3]), f"seed {self.seed}"])

    @property
    def folder(self) -> str:
        """Where the results of all seeds are, relative to the directory of the run."""
        parts = [_slug(part) for part in (self.experiment, *self.cell[:3]) if part]
        return "/".join(["results", *parts, *(["shortened"] if self.shortened else [])])


@dataclass(frozen=True)
class Job:
    """A task with all that decides its result: what runs it, how that is configured, and the versions of everything."""

    task: Task
    module: str
    configuration: str
    versions: dict[str, str]
    cost: float
    """A guess of its seconds: which job to begin with, and how long all will take."""

    @property
    def file(self) -> str:
        """The name tells configuration and versions apart: results of others are never taken for these."""
        decides = repr((self.configuration, sorted(self.versions.items())))
        mark = hashlib.sha256(decides.encode()).hexdigest()[:8]
        return f"{self.task.folder}/seed-{self.task.seed}-{mark}.json"

    @property
    def failed_file(self) -> str:
        return self.file.removesuffix(".json") + ".failed.json"

    def as_dict(self) -> dict[str, Any]:
        """For a file: without the module, which is a matter of the program that reads it."""
        return {name: value for name, value in asdict(self).items() if name != "module"}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Job":
        """What `as_dict` made; a KeyError, a TypeError or a ValueError for anything else.

        What runs it is the chapter of its experiment, if there is one here: a file cannot name another program.
        """
        task = Task(**fields["task"])
        configuration, versions, cost = (fields[name] for name in ("configuration", "versions", "cost"))
        words = [task.experiment, task.method, task.dataset, task.setting, configuration, *versions]
        words += [versions[name] for name in versions]
        types = (type(task.seed), type(task.shortened))
        if not all(isinstance(word, str) for word in words) or types != (int, bool):
            raise ValueError(f"not a job: {fields!r}.")
        return cls(task, CHAPTERS.get(task.experiment, ""), configuration, dict(versions), float(cost))


class Chapter(Protocol):
    """What a module in `chapters/` has."""

    SEEDS: int
    """How many there are by default."""
    LEFT_OUT: str
    """What --fast does without, for the report."""

    def cells(self, fast: bool) -> list[Cell]:
        """All cells, in the order of the report."""

    def configuration(self, task: Task) -> str:
        """Every setting of the method that will be fitted."""

    def cost(self, task: Task) -> float:
        """A guess of the seconds that it takes."""

    def run(self, task: Task) -> dict[str, Any]:
        """Fit and score; whatever a figure needs is in what is returned."""

    def section(self, groups: "Sequence[Group]") -> Section:
        """What the report tells of the results."""


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
        return self.cell.method

    def values(self, name: str) -> list[float]:
        """One number of every result; NaN where it was not finite."""
        return [float("nan") if result[name] is None else float(result[name]) for result in self.results]


def chapter(module: str) -> Any:
    """The chapter that is the module of that name (a `Chapter`)."""
    if not module:
        raise InvalidInput(f"plan: an experiment of another version of gpssm; expected some of {', '.join(CHAPTERS)}.")
    return importlib.import_module(module)


@cache
def versions() -> dict[str, str]:
    """Of what decides the digits of a result."""
    return {"gpssm": __version__, "jax": version("jax"), "numpy": version("numpy")}


def plan(seeds: int | None = None, only: str | None = None, fast: bool = False) -> list[Job]:
    """All fits, in the order of the report.

    Args:
        seeds: how many, 0, 1, ...; by default one with `fast`, otherwise as many as each chapter asks for.
        only: parts of the plan with commas between them, `experiment` or `experiment:method`; all by default.
        fast: fewer methods, data sets and seeds, and shorter curves.
    """
    wanted = _parse(only)
    if fast and seeds is None:
        seeds = 1
    jobs = []
    for experiment, module in CHAPTERS.items():
        if wanted and experiment not in wanted:
            continue
        found: Chapter = chapter(module)
        for cell in _chosen(experiment, found.cells(fast), wanted.get(experiment, set())):
            for seed in range(found.SEEDS if seeds is None else seeds):
                task = Task(experiment, cell.method, cell.dataset, cell.setting, seed, cell.shortened)
                jobs.append(Job(task, module, found.configuration(task), versions(), found.cost(task)))
    return jobs


def _parse(only: str | None) -> dict[str, set[str]]:
    """Experiment -> methods, an empty set for all of them."""
    wanted: dict[str, set[str]] = {}
    if not only:
        return wanted
    # A name may hold a comma ("EnVI, R known"): parts begin where an experiment is named.
    for part in re.split(rf",\s*(?=(?:{'|'.join(map(re.escape, CHAPTERS))})(?:[:,]|$))", only):
        experiment, _, method = (piece.strip() for piece in part.partition(":"))
        if experiment not in CHAPTERS:
            raise InvalidInput(
                f"only: expected parts like kink or sysid:EnVI, of {', '.join(CHAPTERS)}; got {experiment!r}."
            )
        methods = wanted.setdefault(experiment, set())
        if method:
            methods.add(method.lower())
    return wanted


def _chosen(experiment: str, cells: list[Cell], methods: set[str]) -> list[Cell]:
    known = {cell.method.lower(): cell.method for cell in cells}
    for method in sorted(methods - set(known)):
        raise InvalidInput(f"only: {experiment} has no {method!r} here; expected one of {', '.join(known.values())}.")
    return [cell for cell in cells if not methods or cell.method.lower() in methods]


def group(found: Iterable[tuple[Job, dict[str, Any] | None]]) -> list[Group]:
    """Jobs with what is stored of them, put together by cell, in the order they come in."""
    cells: dict[Cell, list[tuple[Job, dict[str, Any] | None]]] = {}
    for job, record in found:
        cells.setdefault(job.task.cell, []).append((job, record))
    groups = []
    for cell, members in cells.items():
        good = [(job, record) for job, record in members if record is not None and record["error"] is None]
        groups.append(
            Group(
                cell,
                members[0][0].task.folder,
                tuple(record["result"] for _, record in good),
                tuple((job.task.seed, job.file) for job, _ in good),
                tuple((job.task.seed, job.failed_file) for job, record in members if record and record["error"]),
                tuple(job.task.seed for job, record in members if record is None),
            )
        )
    return groups


def by_dataset(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of every data set, in the order they come in."""
    found: dict[str, list[Group]] = {}
    for each in groups:
        found.setdefault(each.cell.dataset, []).append(each)
    return found


def _slug(text: str) -> str:
    """As the name of a directory: below the one that it is in, never above."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", text).strip("_.")
