"""The whole paper in one command: what is planned, where it runs, what is kept, and what a kill leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpssm
from gpssm.errors import InvalidInput
from gpssm.experiments import EXPERIMENTS, Entry
from gpssm.experiments.base import Task
from gpssm.methods import registry
from gpssm.reproduction.plan import Job, plan
from gpssm.reproduction.report import readme
from gpssm.reproduction.store import Status, Store

SCRIPT = Path(__file__).with_name("fake_paper.py")
CORES = [int(core) for core in os.environ.get("GPSSM_TEST_CORES", "0").split(",")]


class Paper:
    """A directory in which the fake paper is run."""

    def __init__(self, directory: Path) -> None:
        self.out, self.log = directory / "out", directory / "log"
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(SCRIPT), "reproduce", "all", "--out", str(self.out), *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"FAKE_LOG": str(self.log)} | environment,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def run(self, *arguments: str, **environment: str) -> dict[str, Any]:
        process = self.start(*arguments, "--json", **environment)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    def status(self) -> Status:
        return Store(self.out).status()

    def fits(self) -> list[str]:
        """Method and seed of every fit that was begun, in this order."""
        lines = self.log.read_text().splitlines() if self.log.is_file() else []
        return [" ".join(line.split()[:2]) for line in lines]

    def results(self) -> list[Path]:
        return sorted(self.out.glob("results/**/seed-*.json"))

    def report(self) -> tuple[bytes, bytes]:
        """Drawn anew with the same seconds everywhere: they are measured, and all that may differ."""
        for path in self.results():
            path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 1.0, "cpu_seconds": 1.0}))
        command = [sys.executable, str(SCRIPT), "reproduce", "report", str(self.out)]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
        return (self.out / "report.md").read_bytes(), (self.out / "report.html").read_bytes()


@pytest.fixture
def paper(tmp_path: Path) -> Iterator[Paper]:
    made = Paper(tmp_path)
    yield made
    for process in made.processes:  # of a test that has failed
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def whole() -> list[Job]:
    return plan(seeds=1)


def test_the_plan_has_every_registered_method(whole: list[Job]) -> None:
    def methods(experiment: str) -> set[str]:
        return {job.task.method for job in whole if job.task.experiment == experiment}

    assert methods("kink") == {*registry.SYSTEMS, *registry.ONLINE, "EnVI (paper)"}
    assert methods("sysid") == {*registry.METHODS, *registry.ONLINE}
    assert methods("nascar") == {*registry.ONLINE}
    assert methods("recordings") == {*registry.METHODS, *registry.ONLINE}
    for experiment, count in (("sysid", 5), ("recordings", 16 + 3)):
        assert len({job.task.dataset for job in whole if job.task.experiment == experiment}) == count
    cars = {(job.task.method, job.task.setting) for job in whole if job.task.experiment == "car"}
    assert {("EnVI", "identity"), ("EnVI", "random"), ("OEnVI", "random")} <= cars


def test_every_fit_has_a_file_of_its_own_and_survives_json(whole: list[Job]) -> None:
    both = [*whole, *(job for job in plan(fast=True) if job.task.shortened)]
    assert len({job.file for job in both}) == len(both)
    assert [Job.from_dict(json.loads(json.dumps(job.as_dict()))) for job in whole] == whole


def test_the_fast_plan_is_part_of_every_experiment(whole: list[Job]) -> None:
    fast = plan(fast=True)
    assert {job.task.experiment for job in fast} == {name for name, entry in EXPERIMENTS.items() if entry.in_paper}
    assert {job.file for job in fast if not job.task.shortened} <= {job.file for job in whole}
    # Two cores, a quarter of an hour, and half of it to spare for a slower machine.
    assert sum(job.cost for job in fast) < 2 * 15 * 60


def test_the_configuration_is_complete(whole: list[Job]) -> None:
    (job,) = (j for j in whole if (j.task.experiment, j.task.method, j.task.setting) == ("car", "EnVI", "identity"))
    for part in ("lengthscale=4.0", "learning_rate=0.03", "fixed=('inducing_inputs', 'lengthscale')", "window=120"):
        assert part in job.configuration
    assert "0x" not in "".join(job.configuration for job in whole)  # an address would be another at the next start


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("nascar:OEnVI", {("nascar", "OEnVI")}),
        ("nascar:oenvi, car:EnVI, R known", {("nascar", "OEnVI"), ("car", "EnVI, R known")}),
        ("nascar:OEnVI,nascar:RGPSSM", {("nascar", "OEnVI"), ("nascar", "RGPSSM")}),
        ("convergence", {("convergence", m) for m in ("EnVI", "vGPSSM", "VCDT", "VCDT (amortised)")}),
    ],
)
def test_parts_of_the_plan(only: str, expected: set[tuple[str, str]]) -> None:
    jobs = plan(seeds=2, only=only)
    assert {(job.task.experiment, job.task.method) for job in jobs} == expected
    assert {job.task.seed for job in jobs} == {0, 1}


@pytest.mark.parametrize(
    ("only", "message"), [("kinks", "only: expected parts like"), ("car:nobody", "only: car has no 'nobody' here")]
)
def test_parts_that_are_not_there(only: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        plan(only=only)


def test_results_of_other_settings_or_versions_are_not_these() -> None:
    task = Task("fake", "plain", "data", "", 0)
    first = Job(task, "m", "a=1", {"gpssm": "1"}, 1.0)
    assert first.file != Job(task, "m", "a=2", {"gpssm": "1"}, 1.0).file
    assert first.file != Job(task, "m", "a=1", {"gpssm": "2"}, 1.0).file
    assert first.file == Job(task, "m", "a=1", {"gpssm": "1"}, 9.0).file


def test_a_run_and_what_it_leaves(paper: Paper) -> None:
    """Failures are records, stop nobody, and a second run does only what is missing."""
    assert paper.run() == {"total": 16, "done": 11, "failed": 5, "report": str(paper.out / "report.html")}
    assert sorted(paper.fits()) == sorted(f"{m} {s}" for m in ("plain", "other", "failing", "fatal") for s in range(4))
    assert [fit.split()[0] for fit in paper.fits()[:4]].count("fatal") >= 3  # the longest come first
    lines = [line.split() for line in paper.log.read_text().splitlines()]
    cores = {pid: core for *_, pid, core in lines}
    assert set(cores.values()) == {str(core) for core in CORES}  # each pinned to one
    record = json.loads(next(paper.out.glob("results/fake/plain/data/seed-2-*.json")).read_text())
    assert record["result"] == {"score": pytest.approx(0.2)} and record["error"] is None
    assert record["task"]["seed"] == 2 and record["versions"]["gpssm"] == gpssm.__version__ and record["seconds"] > 0
    (failed,) = paper.out.glob("results/fake/failing/data/seed-1-*.failed.json")
    assert 'raise ValueError(f"seed' in json.loads(failed.read_text())["log"]
    (lost,) = paper.out.glob("results/fake/fatal/data/seed-0-*.failed.json")
    assert "code -9: killed" in json.loads(lost.read_text())["error"]
    report = (paper.out / "report.md").read_text()
    assert "ValueError: seed 1 is not to my liking" in report and str(lost.relative_to(paper.out)) in report
    assert "11 done, 5 failed, 0 not run yet" in report

    begun = len(paper.fits())
    assert paper.run()["done"] == 11 and len(paper.fits()) == begun
    assert paper.run("--retry-failed", FAKE_REPAIRED="1") == {
        **paper_counts(15, 1),
        "report": str(paper.out / "report.html"),
    }
    assert sorted(paper.fits()[begun:]) == sorted(["fatal 0", *(f"failing {seed}" for seed in range(4))])
    assert not list(paper.out.glob("results/fake/failing/data/*.failed.json"))
    # Another configuration is another result.
    begun = len(paper.fits())
    paper.run("--only", "fake:plain", FAKE_CONFIGURATION="otherwise")
    assert len(paper.fits()) == begun + 4


def test_an_experiment_is_a_command(tmp_path: Path) -> None:
    """By its line in the list alone: its plan, its table, its fits, and what has failed."""
    command = [sys.executable, str(SCRIPT), "reproduce", "fake", "--method", "plain", "--seeds", "2"]
    environment = os.environ | {"FAKE_LOG": str(tmp_path / "log")}

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=300, env=environment)

    assert "Nothing but names." in call("--help").stdout
    table = call("--quiet")
    assert table.returncode == 0 and table.stderr == ""
    assert re.search(r"plain *│ 0.050000 ± 0.050000 │$", table.stdout, re.MULTILINE)
    first = call("--json", "--quiet", "--out", str(tmp_path / "out"))
    found = json.loads(first.stdout)
    assert [(row["method"], row["seed"], row["score"]) for row in found["rows"]] == [
        ("plain", 0, 0.0),
        ("plain", 1, 0.1),
    ]
    assert Path(found["report"]).is_file()
    fits = (tmp_path / "log").read_text()
    assert call("--json", "--quiet", "--out", str(tmp_path / "out")).stdout == first.stdout
    assert (tmp_path / "log").read_text() == fits  # nothing was fitted again
    failing = call("--method", "failing", "--seeds", "1", "--quiet")
    assert failing.returncode == 1 and failing.stderr.startswith("gpssm: failed: fake failing data seed 0: ValueError:")
    assert "method: expected one of plain, other, failing, fatal or all, got 'x'" in call("--method", "x").stderr


def paper_counts(done: int, failed: int) -> dict[str, int]:
    return {"total": done + failed, "done": done, "failed": failed}


def test_killed_and_begun_again_gives_the_same_report(paper: Paper, tmp_path: Path) -> None:
    arguments = ("--only", "fake:plain,fake:other,fake:failing", "--processes", "2")
    process = paper.start(*arguments, FAKE_STUCK="5")
    wait_until(lambda: len(paper.fits()) == 7 and len(paper.status().running) == 2)
    seen = paper.status()
    assert seen.alive and (seen.total, seen.done + seen.failed, seen.left) == (12, 5, 7)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    done = paper.results()
    assert len(done) == 5
    assert replace(paper.status(), running=seen.running, seconds_left=seen.seconds_left) == replace(seen, alive=False)
    assert paper.status().running == {}
    workers = {int(line.split()[2]) for line in paper.log.read_text().splitlines()}
    wait_until(lambda: not any(map(lives, workers)))  # nobody goes on in secret
    for name in (done[0].name, "report.md"):
        folder = done[0].parent if name == done[0].name else paper.out
        (folder / f".{name}.ab_c1234.tmp").write_text("{")
    before = {path: path.read_bytes() for path in done}
    paper.run(*arguments)
    assert {path: path.read_bytes() for path in done} == before
    assert not list(paper.out.rglob("*.tmp"))

    undisturbed = Paper(tmp_path / "undisturbed")
    undisturbed.log.parent.mkdir()
    undisturbed.run(*arguments)
    assert paper.report() == undisturbed.report()


def test_interrupt_ends_with_130_and_nothing_half_written(paper: Paper) -> None:
    process = paper.start("--only", "fake:plain", "--processes", "2", FAKE_STUCK="1")
    wait_until(lambda: len(paper.fits()) == 3)
    with pytest.raises(AssertionError, match="another run is at work here"):
        paper.run("--only", "fake:plain")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in err
    assert not list(paper.out.rglob("*.tmp")) and not paper.status().alive
    assert not any(lives(int(line.split()[2])) for line in paper.log.read_text().splitlines())
    assert all(json.loads(path.read_text())["error"] is None for path in paper.results())


@contextmanager
def dask_cluster(directory: Path, workers: int) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and workers on loopback; its address and the workers."""
    pytest.importorskip("distributed")
    places = os.pathsep.join([str(SCRIPT.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": places, "FAKE_LOG": str(directory / "log")}
    environment |= {"FAKE_SECONDS": "0.3"}
    file = directory / "scheduler.json"

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
        with (directory / "dask.log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=directory)

    processes = [start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))]
    try:
        wait_until(file.is_file)
        address = json.loads(file.read_text())["address"]
        options = ("--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", "--local-directory", str(directory))
        processes += [start("worker", address, *options) for _ in range(workers)]
        wait_until(lambda: (directory / "dask.log").read_text().count("Registered to") == workers)
        yield address, processes[1:]
    finally:
        for process in processes[::-1]:
            process.kill()
            process.wait()


def test_a_worker_of_a_cluster_dies_and_nothing_is_lost(paper: Paper, tmp_path: Path) -> None:
    with dask_cluster(tmp_path, 2) as (address, workers):
        process = paper.start("--only", "fake:plain,fake:other", "--dask", address, "--json")
        wait_until(lambda: len(paper.results()) >= 2)
        workers[0].kill()
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert json.loads(out) | {"report": ""} == {**paper_counts(8, 0), "report": ""}
    scores = [json.loads(path.read_text())["result"]["score"] for path in paper.results()]
    assert sorted(scores) == pytest.approx(sorted(m + 0.1 * s for m in range(2) for s in range(4)))
    assert len({line.split()[2] for line in paper.log.read_text().splitlines()}) == 2  # both had worked


def test_a_cluster_that_is_not_there(paper: Paper) -> None:
    process = paper.start("--dask", "tcp://127.0.0.1:1", "--processes", "1")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2 and "leave out --processes or --dask" in err


@pytest.mark.parametrize(
    ("said", "silence", "alive"),
    [
        ({}, 0.0, True),
        ({}, 1000.0, True),  # suspended, perhaps; but there
        ({"born": "17"}, 0.0, False),  # another process with the number of the one that wrote it
        ({"pid": 2**22 + 1}, 0.0, False),
        ({"host": "elsewhere"}, 10.0, True),
        ({"host": "elsewhere"}, 100.0, False),
    ],
)
def test_only_a_run_that_is_alive_is_at_work(tmp_path: Path, said: dict[str, Any], silence: float, alive: bool) -> None:
    store = Store(tmp_path)
    store.begin([], fast=False)
    store.tell({"a fit": time.time()}, 5.0)
    progress = tmp_path / "progress.json"
    progress.write_text(json.dumps(json.loads(progress.read_text()) | said))
    os.utime(progress, (time.time() - silence,) * 2)
    found = store.status()
    assert found.alive == alive and (found.seconds_left == 5.0) == alive and list(found.running) == ["a fit"] * alive


def test_status_of_a_directory_without_a_plan(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpssm", "reproduce", "status", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 2 and "no plan here" in result.stderr


def test_the_plan_and_the_status_do_without_jax() -> None:
    code = "import sys, gpssm.reproduction.store, gpssm.reproduction.run; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_readme_is_filled_from_a_run(paper: Paper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper.run("--only", "fake:plain")
    text = "before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n"
    target = tmp_path / "README.md"
    target.write_text(text)
    command = [sys.executable, str(SCRIPT), "reproduce", "readme", str(paper.out), "--write", str(target)]
    subprocess.run(command, check=True, timeout=300)
    filled = target.read_text()
    assert re.fullmatch(r"before\n<!-- results: begin -->\n.*<!-- results: end -->\nafter\n", filled, re.DOTALL)
    assert "| plain | 0.150000 ± 0.064550 |" in filled and "old" not in filled and "](" not in filled
    monkeypatch.syspath_prepend(SCRIPT.parent)  # where the fake experiment is
    monkeypatch.setitem(EXPERIMENTS, "fake", Entry("fake_paper", ""))
    assert readme(Store(paper.out), filled) == filled
    with pytest.raises(InvalidInput, match="<!-- results: begin -->"):
        readme(Store(paper.out), "no markers")


def test_sweep() -> None:
    """The rows are those of fits made here."""
    data = gpssm.datasets.kink(length=60, process_noise=0.0025, obs_noise=0.008, seed=0)
    rows = gpssm.sweep(gpssm.ARX(order=1), {"order": [1, 2, 50], "seed": [0, 3]}, data)
    assert [(row["order"], row["seed"]) for row in rows] == [(o, s) for o in (1, 2, 50) for s in (0, 3)]
    train, test = data.split(0.5)
    for row in rows[:4]:
        fitted = gpssm.ARX(order=row["order"]).fit(train.outputs, seed=row["seed"])
        expected = gpssm.evaluation.score(fitted.forecast(30, seed=row["seed"]).samples, test.outputs).as_dict()
        assert {name: row[name] for name in expected} == pytest.approx(expected)
        assert row["error"] is None and row["seconds"] > 0
    assert all("InvalidInput" in row["error"] and "rmse" not in row for row in rows[4:])


@pytest.mark.parametrize(
    ("method", "grid", "message"),
    [
        ("EnVI", {"seed": [0]}, "method: expected a method such as"),
        (None, {"orders": [1]}, "grid: ARX has no 'orders'; expected seed or "),
        (None, {"order": 3}, "grid: expected a list of values for 'order', got 3"),
    ],
)
def test_sweep_explains_mistakes(method: Any, grid: Any, message: str) -> None:
    data = gpssm.datasets.kink(length=60, process_noise=0.0025, obs_noise=0.008, seed=0)
    with pytest.raises(InvalidInput, match=message):
        gpssm.sweep(gpssm.ARX(order=1) if method is None else method, grid, data)
