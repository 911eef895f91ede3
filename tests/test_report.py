"""The report of the whole paper, from results with made-up numbers: tables, figures, verdicts, links, a browser."""

import html
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import WIDTHS, look, needs_chromium
from gpssm.datasets import SOURCES
from gpssm.experiments import EXPERIMENTS, car, nascar
from gpssm.experiments.base import Cell, Group, Task
from gpssm.experiments.estimates import Estimate, mean, median, verdict
from gpssm.experiments.tables import over_seeds
from gpssm.reproduction import report
from gpssm.reproduction.plan import Job, plan
from gpssm.reproduction.run import record
from gpssm.reproduction.store import Store

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded series are not on this machine")


def made_up(task: Task) -> dict[str, Any]:
    """A result of the right shape; every number is told by the task."""
    rng = np.random.default_rng([len(task.method), task.seed])

    def curve(*shape: int) -> Any:
        return rng.normal(size=shape).round(3).tolist()

    if task.experiment == "kink":
        numbers = {"mse": 0.001, "log_likelihood": 1.5, "process_noise": 0.003, "fit_seconds": 4.0}
        return numbers | {"f": curve(100), "f_sd": [0.1] * 100}
    if task.experiment == "sysid":
        names = ("free_run_rmse", "blocks50_rmse", "nlpd", "crps", "coverage90", "fit_seconds")
        return dict.fromkeys(names, 0.5 + task.seed) | {n: curve(50) for n in ("mean", "low", "high", "truth")}
    if task.experiment == "car":
        figure = {name: curve(2, 30) for name in ("mean", "std", "truth", "observed")}
        return {"rmse": dict.fromkeys(car.NAMES, 0.6), "seconds": 3.0, "figure": figure}
    if task.experiment == "nascar":
        at_steps = {str(h): 1.0 + task.seed for h in nascar.HORIZONS}
        names = ("filter_rmse", "least_squares_rmse", "coverage90", "milliseconds")
        shapes = {"track": (20, 2), "filtered": (20, 2), "at": (9, 2), "flow": (9, 2), "to_come": (5, 2)}
        figure = {name: curve(*shape) for name, shape in shapes.items()}
        figure |= {"median": curve(5, 2), "paths": curve(3, 5, 2)}
        return dict.fromkeys(names, 0.1) | {"forecast_rmse": at_steps, "oracle_rmse": at_steps, "figure": figure}
    if task.experiment == "recordings":
        width = len(SOURCES[task.dataset].output_names)
        names = ("nrmse", "nlpd", "crps", "coverage90", "cpu_seconds", "compile_seconds")
        curves = {name: curve(width, 50) for name in ("mean", "low", "high", "truth")}
        return dict.fromkeys(names, 0.5 + task.seed) | {"rmse": [1.5 + task.seed] * width, "step": 2} | curves
    counts = {"variational_parameters": 257, "seconds_per_iteration": 0.007}
    return counts | {"step": [25, 50], "seconds": [0.1, 0.2], "mse": [0.5, 0.01 + task.seed]}


def write(directory: Path, jobs: list[Job], skip: str = "", fail: str = "", fast: bool = True) -> Store:
    store = Store(directory)
    store.begin(jobs, fast)
    for job in jobs:
        if job.task.label == fail:
            store.write(job, record(job, None, "ValueError: no <luck>", "Traceback", 1.0, 1.0))
        elif job.task.label != skip:
            store.write(job, record(job, made_up(job.task), None, "", 2.0, 3.0))
    report.write(store)
    return store


FAILED, SKIPPED = "sysid DKF actuator offline seed 0", "kink EnVI 0.08 sd seed 0"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the fast plan, with a fit that has failed and one that was not run."""
    return write(tmp_path_factory.mktemp("made"), plan(fast=True), SKIPPED, FAILED).directory


FIGURES = (
    "kink-sd",
    "forecast-actuator",
    "forecast-gas_furnace",
    "car-identity",
    "car-random",
    "nascar",
    "convergence",
    "recording-cascaded_tanks",
    "recording-coupled_drives_1",
)


def test_every_table_and_figure_is_there(made: Path) -> None:
    page, text = (made / "report.html").read_text(), (made / "report.md").read_text()
    for title in ("Table I:", "Table II:", "C identity", "C random", "NASCAR", "Convergence", "Sixteen recordings",
                  "Machines and versions"):  # fmt: skip
        assert title in page and title in text
    for figure in FIGURES:
        assert f'<figure id="{figure}">' in page and f"(figures/{figure}.png)" in text
        assert (made / "figures" / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("<img") == page.count('src="data:image/png;base64,') == len(FIGURES)
    assert "<script" not in page and "http" not in re.sub(r"base64,[^\"]*", "", page)
    assert "This is the fast version" in page and all(name in page for name, e in EXPERIMENTS.items() if e.in_paper)
    # Printed numbers, and what they are set beside.
    assert "0.0046 ± 0.0025" in text and "1.878" not in text and "1.88" in text


def test_what_failed_and_what_is_missing_is_told(made: Path) -> None:
    page = (made / "report.html").read_text()
    assert "1 failed, 1 not run yet" in page
    assert "no &lt;luck&gt;" in page and ">failed<" in page and ">not run<" in page


def test_every_link_leads_to_a_result_and_every_result_is_linked(made: Path) -> None:
    links = {html.unescape(link) for link in re.findall(r'href="(results/[^"]*)"', (made / "report.html").read_text())}
    assert all((made / link).exists() for link in links)
    kept = {str(path.relative_to(made)) for path in made.glob("results/**/*.json")}
    assert kept <= links
    in_text = re.findall(r"\]\((results/[^)]*)\)", (made / "report.md").read_text())
    assert set(in_text) == links


NOT_OURS = re.compile(r"|method|data set|verdict|experiment|.* noise|.*printed.*|published.*")
"""Columns that hold no number of ours."""


def test_every_number_of_ours_is_a_link(made: Path) -> None:
    page = (made / "report.html").read_text()
    counted = 0
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        title = re.findall(r"<caption>(.*?)</caption>", table)[0]
        if title in ("Settings", "Where it ran", "Failed fits"):
            continue
        columns = re.findall(r"<th>(.*?)</th>", table)
        for row in re.findall(r"<tr>(<td>.*?)</tr>", table):
            cells = re.findall(r"<td>(.*?)</td>", row)
            assert len(cells) == len(columns), title
            if cells[0].endswith(("printed", "published")):
                continue
            for column, cell in zip(columns, cells, strict=True):
                if not NOT_OURS.fullmatch(column) and cell not in ("", "failed", "not run", "0 not run"):
                    assert cell.startswith('<a href="results/'), (title, column, cell)
                    counted += 1
    assert counted > 300


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    jobs = plan(seeds=2, only="nascar:OEnVI,convergence:EnVI")
    first = write(tmp_path / "first", jobs).directory
    second = write(tmp_path / "second", jobs[::-1]).directory  # the order of work is not that of the plan
    Store(second).begin(jobs, True)
    report.write(Store(second))
    names = ["report.md", "report.html", *(str(p.relative_to(first)) for p in first.glob("figures/*"))]
    assert len(names) == 4
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    text = (first / "report.md").read_text()
    assert "[1.50 ± 0.33](results/nascar/OEnVI/track/)" in text  # two seeds, 1 and 2: the directory of both
    assert "ahead" not in text.partition("## NASCAR")[2].partition("##")[0].replace("ahead of", "")


def test_a_plan_without_results_has_a_report(tmp_path: Path) -> None:
    jobs = plan(fast=True)
    store = Store(tmp_path)
    store.begin(jobs, fast=True)
    report.write(store)
    text = (tmp_path / "report.md").read_text()
    assert f"0 done, 0 failed, {len(jobs)} not run yet" in text and "not run" in text


@pytest.mark.parametrize(
    ("ours", "printed", "higher", "expected"),
    [
        (Estimate(1.0, 0.1, 5), Estimate(2.0, 0.1), False, "ahead"),
        (Estimate(1.0, 0.1, 5), Estimate(2.0, 0.1), True, "behind"),
        (Estimate(1.0, 0.3, 5), Estimate(2.0, 0.4), False, "equal"),  # exactly two of the joint standard errors, 0.5
        (Estimate(1.0, 0.3, 5), Estimate(2.001, 0.4), False, "ahead"),
        (Estimate(2.0, None, 1), Estimate(1.0, None), False, "behind, one seed"),
        (Estimate(2.0, None, 1), Estimate(1.0, 0.6), False, "equal, one seed"),
        (Estimate(math.nan, math.nan, 5), Estimate(1.0, 0.6), False, "behind"),
        (Estimate(1.0, 0.1, 5), None, False, ""),
        (Estimate(math.nan), Estimate(1.0), False, ""),
    ],
)
def test_verdicts(ours: Estimate, printed: Estimate | None, higher: bool, expected: str) -> None:
    assert verdict(ours, printed, higher) == expected


def test_how_many_seeds_is_told() -> None:
    def groups(**counts: tuple[int, ...]) -> list[Group]:
        return [
            Group(Cell(method, str(place), ""), "", ({},) * count, (), (), ())
            for method, each in counts.items()
            for place, count in enumerate(each)
        ]

    assert over_seeds(groups(A=(5, 5), B=(5, 5))) == "Seeds: 5."
    assert over_seeds(groups(A=(5, 5), B=(2, 3), C=(5, 5))) == "Seeds: 5 (A, C); 2 to 3 (B)."


def test_the_page_of_results_is_ready_for_its_tables(made: Path) -> None:
    """Between its markers it holds the titles of the tables that the command would write there now."""
    text = (Path(__file__).parents[1] / "docs" / "results.md").read_text()
    written = report.readme(Store(made), text)
    titles = re.findall(r"^(\S.*):\n\n\| method", written.partition(report.BEGIN)[2], re.MULTILINE)
    assert len(titles) > 3
    for title in titles:
        assert f"{title}:\n" in text, f"gpssm reproduce readme would add {title!r}"


def test_standard_errors_are_those_of_repetition() -> None:
    """The spread of means and medians of many samples of 101 normal numbers."""
    samples = np.random.default_rng(0).normal(size=(4000, 101))
    for estimate, exact in ((mean, np.mean), (median, np.median)):
        told = np.mean([estimate(list(row)).error for row in samples[:500]])
        assert told == pytest.approx(exact(samples, axis=1).std(), rel=0.06)


@needs_chromium
def test_a_browser_shows_every_figure_and_has_no_complaint(made: Path, tmp_path: Path) -> None:
    widths, complaints = look(made / "report.html", tmp_path, WIDTHS)
    assert len(widths) == len(FIGURES) and min(widths) > 300
    assert complaints == ""


@needs_chromium
def test_a_picture_that_is_broken_would_be_seen(made: Path, tmp_path: Path) -> None:
    broken = made / "broken.html"
    page = (
        (made / "report.html").read_text().replace('src="data:image/png;base64,', 'src="data:image/png;base64,AAAA', 1)
    )
    broken.write_text(page.replace("</body>", "<script>nonsense()</script></body>"))
    widths, complaints = look(broken, tmp_path, WIDTHS)
    assert widths[0] in (0, False) and min(widths[1:]) > 300
    assert "nonsense is not defined" in complaints


@needs_chromium
@needs_data
def test_real_experiments_from_the_command_to_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest fits of two of them; `benchmarks/reproduce.py --paper` runs all."""
    monkeypatch.setenv("GPSSM_DATA", str(DATA))
    command = [sys.executable, "-m", "gpssm", "reproduce", "all", "--fast", "--json", "--out", str(tmp_path)]
    command += ["--only", "car:KF,sysid:ARX,sysid:TrainingMean"]
    done = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout)
    assert done["failed"] == 0 and done["done"] == done["total"] > 2
    widths, complaints = look(tmp_path / "report.html", tmp_path / "profile", WIDTHS)
    assert len(widths) == 4 and min(widths) > 300 and complaints == ""  # of two emissions and of two recordings
