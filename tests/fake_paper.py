"""The command line with a paper of its own, without JAX: `python tests/fake_paper.py reproduce all ...`.

Its one experiment has fits that take FAKE_SECONDS, one that always fails and one that kills its process. Every fit
leaves a line in the file that FAKE_LOG names; those that come after the first FAKE_STUCK of them do not end.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpssm.experiments import EXPERIMENTS, Entry
from gpssm.experiments.base import Cell, Group, Task
from gpssm.experiments.estimates import mean
from gpssm.experiments.pages import Section, Table
from gpssm.experiments.tables import entry, files, number

SEEDS = 4
LEFT_OUT = "fake: nothing"
METHODS = ("plain", "other", "failing", "fatal")


def cells(fast: bool) -> list[Cell]:
    return [Cell(method, "data", "") for method in METHODS]


def configuration(task: Task) -> str:
    return os.environ.get("FAKE_CONFIGURATION", "as ever")


def cost(task: Task) -> float:
    return {"fatal": 3.0, "failing": 2.0}.get(task.method, 1.0)


def run(task: Task) -> dict[str, Any]:
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    path = Path(os.environ["FAKE_LOG"])
    line = f"{task.method} {task.seed} {os.getpid()} {cores}"
    with path.open("a") as log:
        log.write(f"{line}\n")
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    if path.read_text().splitlines().index(line) >= int(os.environ.get("FAKE_STUCK", "1000")):
        time.sleep(600)
    if task.method == "failing" and "FAKE_REPAIRED" not in os.environ:
        raise ValueError(f"seed {task.seed} is not to my liking")
    if task.method == "fatal" and task.seed == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"score": value(task.method, task.seed)}


def value(method: str, seed: int) -> float:
    return METHODS.index(method) + 0.1 * seed


def section(groups: Sequence[Group]) -> Section:
    rows = tuple((entry(g.method), number(g, mean(g.values("score")), 6), files(g)) for g in groups)
    return Section("Fake", (), (Table("Fake", ("method", "score", "results by seed"), rows, brief=True),))


def main() -> None:
    EXPERIMENTS.clear()
    EXPERIMENTS["fake"] = Entry("fake_paper", "Nothing but names.")
    from gpssm.cli.main import main  # commands are those of the experiments that there are now

    if hasattr(os, "sched_setaffinity"):  # the test that starts this is pinned to one core
        os.sched_setaffinity(0, {int(core) for core in os.environ["GPSSM_TEST_CORES"].split(",")})
    main()


if __name__ == "__main__":
    main()
