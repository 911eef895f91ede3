"""What is run: every table and figure of the paper, cut into fits that do not need each other.

The experiments are those of `gpssm.experiments`. Their lists of methods are those of the registry, so a new method
joins by its registration.
"""

import hashlib
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, cast

from gpssm import __version__
from gpssm.errors import InvalidInput
from gpssm.experiments import EXPERIMENTS
from gpssm.experiments.base import Cell, Experiment, Group, Task


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
        """Where the error is kept if the job fails."""
        return self.file.removesuffix(".json") + ".failed.json"

    def as_dict(self) -> dict[str, Any]:
        """For a file: without the module, which is a matter of the program that reads it."""
        own = {"configuration": self.configuration, "versions": self.versions, "cost": self.cost}
        return {"task": self.task.as_dict()} | own

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Job":
        """What `as_dict` made; a KeyError, a TypeError or a ValueError for anything else.

        What runs it is the experiment of that name, if there is one here: a file cannot name another program.
        """
        task = Task(**fields["task"])
        configuration, versions, cost = (fields[name] for name in ("configuration", "versions", "cost"))
        words = [task.experiment, task.method, task.dataset, task.setting, configuration, *versions]
        words += [versions[name] for name in versions]
        types = (type(task.seed), type(task.shortened))
        varied = task.varied is None or isinstance(task.varied, (int, float))
        if not all(isinstance(word, str) for word in words) or types != (int, bool) or not varied:
            raise ValueError(f"not a job: {fields!r}.")
        module = EXPERIMENTS[task.experiment].module if task.experiment in EXPERIMENTS else ""
        return cls(task, module, configuration, dict(versions), float(cost))


def experiment(module: str) -> Experiment:
    """The experiment that is the module of that name."""
    if not module:
        expected = ", ".join(EXPERIMENTS)
        raise InvalidInput(f"plan: an experiment of another version of gpssm; expected some of {expected}.")
    return cast(Experiment, importlib.import_module(module))


@cache
def versions() -> dict[str, str]:
    """Of what decides the digits of a result."""
    return {"gpssm": __version__, "jax": version("jax"), "numpy": version("numpy")}


def plan(seeds: int | None = None, only: str | None = None, fast: bool = False) -> list[Job]:
    """All fits, in the order of the report.

    Args:
        seeds: how many, 0, 1, ...; by default one with `fast`, otherwise as many as each experiment asks for.
        only: parts of the plan with commas between them, `experiment` or `experiment:method`; all by default.
        fast: fewer methods, data sets and seeds, and shorter curves.
    """
    wanted = _parse(only)
    if fast and seeds is None:
        seeds = 1
    jobs = []
    for name, entry in EXPERIMENTS.items():
        if name in wanted or (not wanted and entry.in_paper):
            jobs += jobs_of(name, _chosen(name, experiment(entry.module).cells(fast), wanted.get(name, set())), seeds)
    return jobs


def jobs_of(name: str, cells: Iterable[Cell], seeds: int | None = None) -> list[Job]:
    """The fits of some cells of an experiment, of every one for so many seeds."""
    module = EXPERIMENTS[name].module
    found = experiment(module)
    jobs = []
    for cell in cells:
        for seed in range(found.SEEDS if seeds is None else seeds):
            task = Task(name, cell.method, cell.dataset, cell.setting, seed, cell.shortened, cell.varied)
            jobs.append(Job(task, module, found.configuration(task), versions(), found.cost(task)))
    return jobs


def _parse(only: str | None) -> dict[str, set[str]]:
    """Experiment -> methods, an empty set for all of them."""
    wanted: dict[str, set[str]] = {}
    if not only:
        return wanted
    # A name may hold a comma ("EnVI, R known"): parts begin where an experiment is named.
    for part in re.split(rf",\s*(?=(?:{'|'.join(map(re.escape, EXPERIMENTS))})(?:[:,]|$))", only):
        name, _, method = (piece.strip() for piece in part.partition(":"))
        if name not in EXPERIMENTS:
            raise InvalidInput(
                f"only: expected parts like kink or sysid:EnVI, of {', '.join(EXPERIMENTS)}; got {name!r}."
            )
        methods = wanted.setdefault(name, set())
        if method:
            methods.add(method.lower())
    return wanted


def _chosen(name: str, cells: list[Cell], methods: set[str]) -> list[Cell]:
    known = {cell.method.lower(): cell.method for cell in cells}
    for method in sorted(methods - set(known)):
        raise InvalidInput(f"only: {name} has no {method!r} here; expected one of {', '.join(known.values())}.")
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
