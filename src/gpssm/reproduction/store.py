"""Where results are kept: a directory with the plan, one file for every fit, and what is going on at present.

    plan.json                                        the jobs
    results/<experiment>/.../seed-0-<mark>.json          a result; `.failed.json` where there is an error instead
    progress.json                                    what a run is doing, while it does

Every file is written whole or not at all. What is there is told from names alone.
"""

import json
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpssm.atomic import write_atomically
from gpssm.errors import InvalidInput
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
    """Label of a fit -> seconds since it was begun; empty where no run is alive."""
    alive: bool
    seconds_left: float | None
    """None where no run is alive or nothing has been learned of its speed."""

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed


class Store:
    """The directory of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def begin(self, jobs: Sequence[Job], fast: bool) -> None:
        """Set down the plan, and sweep out what a killed run was writing."""
        if self._beat() is not None:
            raise InvalidInput(f"{self.directory}: another run is at work here; wait for it, or choose another --out.")
        self.directory.mkdir(parents=True, exist_ok=True)
        for unfinished in self.directory.rglob(".*.tmp"):
            unfinished.unlink(missing_ok=True)
        self._write("plan.json", {"fast": fast, "jobs": [job.as_dict() for job in jobs]})

    def plan(self) -> tuple[list[Job], bool]:
        """The jobs of the last run, and whether it was --fast."""
        path = self.directory / "plan.json"
        if not path.is_file():
            raise InvalidInput(
                f"{self.directory}: no plan here; expected a directory that `gpssm reproduce all` wrote."
            )
        found = json.loads(path.read_text())
        return [Job.from_dict(fields) for fields in found["jobs"]], found["fast"]

    def has(self, job: Job) -> bool:
        return (self.directory / job.file).is_file()

    def has_failed(self, job: Job) -> bool:
        return not self.has(job) and (self.directory / job.failed_file).is_file()

    def read(self, job: Job) -> dict[str, Any] | None:
        """The record of a job, if there is one."""
        for name in (job.file, job.failed_file):
            path = self.directory / name
            if path.is_file():
                return json.loads(path.read_text())
        return None

    def write(self, job: Job, record: dict[str, Any]) -> None:
        """Keep a record; a result takes the place of an earlier failure."""
        name = job.file if record["error"] is None else job.failed_file
        (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
        self._write(name, record)
        if record["error"] is None:
            (self.directory / job.failed_file).unlink(missing_ok=True)

    def tell(self, running: dict[str, float], seconds_left: float | None) -> None:
        """Say what is going on: label of every running job -> when it was begun."""
        here = {"pid": os.getpid(), "born": _born(os.getpid()), "host": socket.gethostname()}
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
            {} if beat is None else {label: now - begun for label, begun in beat["running"].items()},
            beat is not None,
            None if beat is None else beat["seconds_left"],
        )

    def _beat(self) -> dict[str, Any] | None:
        """What the run that is alive has said last; what a dead one has left does not count."""
        path = self.directory / "progress.json"
        try:
            found = json.loads(path.read_text())
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            return None
        if found["host"] == socket.gethostname():  # also if it is suspended, and says nothing
            return found if _lives(found["pid"]) and _born(found["pid"]) == found["born"] else None
        return found if age < SILENCE else None

    def _write(self, name: str, value: Any) -> None:
        write_atomically(self.directory / name, json.dumps(plain(value), indent=1, allow_nan=False).encode())


def plain(value: Any) -> Any:
    """The same in JSON's words, which have no infinity and no NaN."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _lives(pid: int) -> bool:
    if os.name != "posix":  # there, asking would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _born(pid: int) -> str:
    """When a process was started, to tell it from a later one of the same number; empty where that is not known."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.read_text().rpartition(")")[2].split()[19] if stat.is_file() else ""
