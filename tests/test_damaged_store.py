"""The directory of a run with files in it that are cut off, edited, or somebody else's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gpssm.errors import InvalidInput
from gpssm.experiments import EXPERIMENTS
from gpssm.experiments.base import Task
from gpssm.experiments.pages import Table
from gpssm.experiments.tables import entry
from gpssm.reproduction import report
from gpssm.reproduction.plan import Job, plan
from gpssm.reproduction.run import record
from gpssm.reproduction.store import Store

SCRIPT = Path(__file__).with_name("fake_paper.py")
VERSIONS = {"gpssm": "1"}
MODULE = EXPERIMENTS["kink"].module
JOBS = [Job(Task("kink", "EnVI", "0.08", "sd", seed), MODULE, "as ever", VERSIONS, 1.0) for seed in range(3)]


def filled(directory: Path) -> Store:
    """A result, a failure, and a fit that was not run."""
    store = Store(directory)
    store.begin(JOBS, fast=False)
    store.write(JOBS[0], record(JOBS[0], {"mse": 0.5}, None, "", 2.0, 3.0))
    store.write(JOBS[1], record(JOBS[1], None, "ValueError: no luck", "Traceback", 2.0, 3.0))
    return store


WHOLE = json.dumps(record(JOBS[0], {"mse": 0.5}, None, "", 2.0, 3.0)).encode()
NOT_A_RESULT = {
    "empty": b"",
    "cut off": WHOLE[: len(WHOLE) // 2],
    "not text": b"\xff\xfe\x00",
    "another thing": b"[1, 2]",
    "nothing": b"null",
    "very deep": b"[" * 200_000,
    "of another fit": json.dumps(record(JOBS[2], {"mse": 0.5}, None, "", 2.0, 3.0)).encode(),
    "a failure": json.dumps(record(JOBS[0], None, "ValueError", "", 2.0, 3.0)).encode(),
    "without a machine": json.dumps({k: v for k, v in json.loads(WHOLE).items() if k != "machine"}).encode(),
}


@pytest.mark.parametrize("content", NOT_A_RESULT.values(), ids=NOT_A_RESULT.keys())
def test_what_is_not_a_result_is_not_done_and_is_set_aside(tmp_path: Path, content: bytes) -> None:
    store = filled(tmp_path)
    assert (store.status().done, store.status().damaged) == (1, ())
    (tmp_path / JOBS[0].file).write_bytes(content)
    found = store.status()
    assert (found.done, found.failed, found.left, found.damaged) == (0, 1, 2, (JOBS[0].file,))
    assert store.read(JOBS[0]) is None and not store.has(JOBS[0]) and not store.has_failed(JOBS[0])
    assert store.begin(JOBS, fast=False) == [JOBS[0].file]
    assert (tmp_path / f"{JOBS[0].file}.damaged").read_bytes() == content and not (tmp_path / JOBS[0].file).exists()
    assert store.begin(JOBS, fast=False) == [] and store.status().damaged == ()


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.integers(0, len(WHOLE)), st.binary(max_size=4), st.integers(0, 4))
def test_a_record_with_any_change_is_whole_or_damaged(
    tmp_path_factory: pytest.TempPathFactory, place: int, put: bytes, cut: int
) -> None:
    store = filled(tmp_path_factory.mktemp("store"))
    content = WHOLE[:place] + put + WHOLE[place + cut :]
    (store.directory / JOBS[0].file).write_bytes(content)
    found = store.read(JOBS[0])
    assert (found is None) == (store.status().damaged == (JOBS[0].file,))
    assert found is None or found == json.loads(content)


JOB = JOBS[0].as_dict()


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"fast": tr',
        "[]",
        '{"fast": false}',
        '{"fast": false, "jobs": [1]}',
        "[" * 200_000,
        *(
            json.dumps({"fast": False, "jobs": [JOB | change]})
            for change in (
                {"task": {}},
                {"task": JOB["task"] | {"seed": "../../secret"}},
                {"task": JOB["task"] | {"method": 3}},
                {"task": JOB["task"] | {"shortened": []}},
                {"task": JOB["task"] | {"varied": "../../secret"}},
                {"versions": ["1"]},
                {"cost": None},
            )
        ),
    ],
)
def test_a_damaged_plan_is_one_sentence_and_a_run_writes_it_anew(tmp_path: Path, content: str) -> None:
    store = filled(tmp_path)
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"plan.json: not a plan, or a damaged one; a run with --out .* anew"):
        store.status()
    store.begin(JOBS, fast=False)
    assert store.status().done == 1


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.text(st.sampled_from("./\\_a~"), max_size=6), min_size=4, max_size=4))
def test_results_are_looked_for_inside_the_directory(words: list[str]) -> None:
    file = Job(Task(*words, seed=0), "", "", {}, 1.0).file
    assert os.path.normpath(file).startswith("results/") and ".." not in file.split("/")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": 3}', '{"pid": 1}', "[" * 200_000])
def test_damaged_progress_is_that_of_nobody(tmp_path: Path, content: str) -> None:
    store = filled(tmp_path)
    (tmp_path / "progress.json").write_text(content)
    assert not store.status().alive
    store.begin(JOBS, fast=False)


def test_a_plan_cannot_name_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file says of modules is not imported, whatever the experiment is called."""
    (tmp_path / "intruder.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'seen')!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    store = Store(tmp_path / "out")
    jobs = plan(seeds=1, only="nascar:OEnVI")
    for experiment in ("nascar", "intruder"):
        store.begin(jobs, fast=False)
        content = json.loads((store.directory / "plan.json").read_text())
        for fields in content["jobs"]:
            fields["module"] = "intruder"
            fields["task"]["experiment"] = experiment
        (store.directory / "plan.json").write_text(json.dumps(content))
        assert store.status().total == 1
        if experiment == "nascar":
            report.write(store)
        else:
            with pytest.raises(InvalidInput, match="an experiment of another version of gpssm; expected some of kink"):
                report.write(store)
    assert "intruder" not in sys.modules and not (tmp_path / "seen").exists()


def test_only_leftovers_of_its_own_are_deleted(tmp_path: Path) -> None:
    store = filled(tmp_path)
    folder = (tmp_path / JOBS[0].file).parent
    own = [tmp_path / ".plan.json.x_3abcde.tmp", folder / f".{Path(JOBS[0].failed_file).name}.0abcdefg.tmp"]
    foreign = [
        tmp_path / ".notes.tmp", tmp_path / ".thesis.docx.abcdefgh.tmp", folder / ".other.json.abcdefgh.tmp",
        tmp_path / "elsewhere" / ".plan.json.abcdefgh.tmp", tmp_path / "plan.json.tmp",
    ]  # fmt: skip
    for path in (*own, *foreign):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    store.begin(JOBS, fast=False)
    assert not any(path.exists() for path in own) and all(path.read_text() == "mine" for path in foreign)


def paper(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "reproduce", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=os.environ | environment
    )


def test_a_run_goes_on_over_damaged_results(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    arguments = ("all", "--only", "fake:plain,fake:failing", "--out", out, "--json")
    assert paper(*arguments, FAKE_LOG=str(log)).returncode == 0
    results = sorted(out.glob("results/**/seed-*.json"))
    assert len(results) == len(log.read_text().splitlines()) == 8
    cut = [next(path for path in results if part in str(path)) for part in ("plain/data/seed-1", "failing/data/seed-2")]
    for path in cut:
        path.write_bytes(path.read_bytes()[:40])
    for command in ("status", "report"):
        told = paper(command, out, "--json")
        assert told.returncode == 0, told.stderr
        counts: dict[str, Any] = json.loads(told.stdout)
        assert (counts["total"], counts["done"], counts["failed"]) == (8, 3, 3)
        assert all(f"gpssm: {path} is not a result, or a damaged one; its fit counts" in told.stderr for path in cut)
    assert "3 done, 3 failed, 2 not run yet" in (out / "report.md").read_text()
    again = paper(*arguments, FAKE_LOG=str(log))
    assert again.returncode == 0, again.stderr
    counts = json.loads(again.stdout)
    assert (counts["total"], counts["done"], counts["failed"]) == (8, 4, 4)
    for path in cut:
        assert f"gpssm: {path} is not a result" in again.stderr
        assert path.with_name(f"{path.name}.damaged").stat().st_size == 40
    assert sorted(line.split()[:2] for line in log.read_text().splitlines()[8:]) == [["failing", "2"], ["plain", "1"]]


def test_a_worker_of_a_cluster_opens_no_file_that_others_can_put_there(tmp_path: Path) -> None:
    """Each has a core of its own, and what lies in the directory for temporary files is as it was."""
    cores = sorted(int(core) for core in os.environ.get("GPSSM_TEST_CORES", "0").split(","))
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for core in cores:
        (tmp_path / f"gpssm-core-{core}").symlink_to(precious)
    code = (
        f"import os; os.sched_setaffinity(0, {set(cores)})\n"
        f"from gpssm.parallel import cluster\ncluster.CLAIM = {str(tmp_path)[-40:]!r}; cluster._settle()\n"
        "print(len(cluster._held), *os.sched_getaffinity(0), flush=True); input()"
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )
        for _ in cores
    ]  # fmt: skip
    told = [worker.stdout.readline().split() for worker in workers if worker.stdout is not None]
    for worker in workers:
        worker.communicate("\n", timeout=300)
    assert sorted(told) == [["1", str(core)] for core in cores]
    assert precious.read_text() == "mine"


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.text(st.sampled_from("ab1_ \n\t|`*[]()<>&\\~!#-./:$\"'="), max_size=25), st.booleans())
def test_any_text_is_one_cell_of_a_table(text: str, linked: bool) -> None:
    """As another program reads Markdown: the text, in its cell, and nothing that it could have meant."""
    table = Table("", ("one", "two"), ((entry(text, "results/" if linked else ""), entry("next")),))
    lines = str(report.TEMPLATES.get_template("table.md.j2").module.lines(table, True))  # type: ignore[attr-defined]
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(lines)
    inline = [token.children or [] for token in tokens if token.type == "inline"]
    assert len(inline) == 4  # two of the head, two of the row
    kinds = {child.type for child in inline[2]}
    assert kinds <= {"text", "text_special"} | ({"link_open", "link_close"} if linked else set())
    assert "".join(child.content for child in inline[2]) == " ".join(text.split())
