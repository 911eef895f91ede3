"""Where results are kept: a directory with the plan, one file for every fit, and what is going on at present.

    plan.json                                        the jobs
    results/<experiment>/.../seed-0-<mark>.json          a result; `.failed.json` where there is an error instead
    progress.json                                    what a run is doing, while it does

Every file is written whole or not at all. A result that cannot be read nevertheless - cut off by a disk, edited, put
there by somebody else - counts as none, and the next run sets it aside.
"""

import json
import os
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpssm.errors import InvalidInput
from gpssm.plumbing import processes
from gpssm.plumbing.atomic import remove_leftovers, write_atomically
from gpssm.plumbing.json_numbers import plain
from gpssm.reproduction.plan import Job

# A run says every few seconds that it is alive. On another machine, this long a silence is taken for its end.
BEAT, SILENCE = 2.0, 60.0


@dataclass(frozen=True)
class Status:
    """How far a plan is."""

    total: int
    done: int
    failed: int
    running: dict[str, float]
    """Label of a fit -> seconds since it was started; empty where no run is alive."""
    alive: bool
    seconds_left: float | None
    """None where no run is alive or nothing has been learned of its speed."""
    damaged: tuple[str, ...] = ()
    """Files of results that cannot be read; their fits are not done."""

    @property
    def left(self) -> int:
        """How many fits are neither done nor failed."""
        return self.total - self.done - self.failed


class Store:
    """The directory of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._looked_at: dict[str, tuple[tuple[int, ...], bool]] = {}

    def begin(self, jobs: Sequence[Job], fast: bool) -> list[str]:
        """Set down the plan, sweep out what a killed run was writing, and set aside results that cannot be read.

        Returns the names of the latter, which now end in `.damaged`.
        """
        if self._beat() is not None:
            raise InvalidInput(f"{self.directory}: another run is at work here; wait for it, or choose another --out.")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.sweep([*_OWN, *(name for job in jobs for name in (job.file, job.failed_file))])
        damaged = self.damaged(jobs)
        for name in damaged:
            path = self.directory / name
            path.replace(path.with_name(f"{path.name}.damaged"))
        self._write("plan.json", {"fast": fast, "jobs": [job.as_dict() for job in jobs]})
        return damaged

    def plan(self) -> tuple[list[Job], bool]:
        """The jobs of the last run, and whether it was --fast."""
        path = self.directory / "plan.json"
        if not path.is_file():
            raise InvalidInput(
                f"{self.directory}: no plan here; expected a directory that `gpssm reproduce all` wrote."
            )
        try:
            found = _parse(path)
            return [Job.from_dict(fields) for fields in found["jobs"]], bool(found["fast"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"{path}: not a plan, or a damaged one; a run with --out {self.directory} writes it anew and keeps "
                "the results."
            ) from error

    def has(self, job: Job) -> bool:
        """Whether there is a result."""
        return self._is_whole(job, job.file) is True

    def has_failed(self, job: Job) -> bool:
        """Whether there is an error instead."""
        return not self.has(job) and self._is_whole(job, job.failed_file) is True

    def damaged(self, jobs: Iterable[Job]) -> list[str]:
        """Names of files where results belong that are none of theirs."""
        names = ((job, name) for job in jobs for name in (job.file, job.failed_file))
        return [name for job, name in names if self._is_whole(job, name) is False]

    def read(self, job: Job) -> dict[str, Any] | None:
        """The record of a job, if there is one."""
        for name in (job.file, job.failed_file):
            if self._is_whole(job, name):
                return _parse(self.directory / name)
        return None

    def write(self, job: Job, record: dict[str, Any]) -> None:
        """Keep a record; a result takes the place of an earlier failure."""
        name = job.file if record["error"] is None else job.failed_file
        (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
        self._write(name, record)
        if record["error"] is None:
            (self.directory / job.failed_file).unlink(missing_ok=True)

    def sweep(self, names: Iterable[str]) -> None:
        """Delete what `write_atomically` has left beside these files, and nothing of anybody else's."""
        for name in names:
            remove_leftovers(self.directory / name)

    def tell(self, running: dict[str, float], seconds_left: float | None) -> None:
        """Say what is going on: label of every running job -> when it was started."""
        here = {"pid": os.getpid(), "born": processes.started(os.getpid()), "host": socket.gethostname()}
        self._write("progress.json", here | {"running": running, "seconds_left": seconds_left})

    def end(self) -> None:
        """Nothing is going on any more."""
        (self.directory / "progress.json").unlink(missing_ok=True)

    def status(self) -> Status:
        """How far it is, from the files alone."""
        jobs, _ = self.plan()
        beat = self._beat()
        now = time.time()
        return Status(
            len(jobs),
            sum(self.has(job) for job in jobs),
            sum(self.has_failed(job) for job in jobs),
            {} if beat is None else {label: now - started for label, started in beat["running"].items()},
            beat is not None,
            None if beat is None else beat["seconds_left"],
            tuple(self.damaged(jobs)),
        )

    def _beat(self) -> dict[str, Any] | None:
        """What the run that is alive has said last; what a dead one has left does not count."""
        path = self.directory / "progress.json"
        try:
            found = _parse(path)
            age = time.time() - path.stat().st_mtime
        except (FileNotFoundError, ValueError):  # what is damaged is of a run that would have written it again
            return None
        if not _is_beat(found):
            return None
        if found["host"] == socket.gethostname():  # also if it is suspended, and says nothing
            runs = processes.exists(found["pid"]) and processes.started(found["pid"]) == found["born"]
            return found if runs else None
        return found if age < SILENCE else None

    def _is_whole(self, job: Job, name: str) -> bool | None:
        """Whether a file is a record of that job; None if there is no such file. Looked into once, while unchanged."""
        path = self.directory / name
        if not path.is_file():
            return None
        stat = path.stat()
        state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if name not in self._looked_at or self._looked_at[name][0] != state:
            try:
                whole = _is_record(_parse(path), job, failed=name == job.failed_file)
            except ValueError:
                whole = False
            self._looked_at[name] = state, whole
        return self._looked_at[name][1]

    def _write(self, name: str, value: Any) -> None:
        write_atomically(self.directory / name, json.dumps(plain(value), indent=1, allow_nan=False).encode())


_OWN = ("plan.json", "progress.json", "report.md", "report.html")


def _parse(path: Path) -> Any:
    """What is in a file; a ValueError if that is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply.") from error


def _is_record(found: Any, job: Job, failed: bool) -> bool:
    """Whether this is what `run.record` makes of the job."""
    if not isinstance(found, dict) or found.get("task") != job.task.as_dict():
        return False
    result, error, machine, versions = (found.get(name) for name in ("result", "error", "machine", "versions"))
    return (
        (isinstance(error, str) if failed else error is None and isinstance(result, dict))
        and all(isinstance(found.get(name), (int, float)) for name in ("seconds", "cpu_seconds"))
        and isinstance(machine, dict)
        and all(isinstance(machine.get(name), str) for name in ("system", "processor"))
        and "cores" in machine
        and isinstance(versions, dict)
    )


def _is_beat(found: Any) -> bool:
    """Whether this is what `Store.tell` writes."""
    return (
        isinstance(found, dict)
        and isinstance(found.get("host"), str)
        and isinstance(found.get("born"), str)
        and isinstance(found.get("pid"), int)
        and 0 < found["pid"] < 1 << 31
        and isinstance(found.get("running"), dict)
        and all(isinstance(started, (int, float)) for started in found["running"].values())
        and isinstance(found.get("seconds_left", ""), (int, float, type(None)))
    )
