"""What is installed, with which extras, and what a command says that lacks one."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import gpssm
from gpssm.cli.main import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run_without(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`gpssm` as the console script starts it, where a package is not installed."""
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['gpssm', *{arguments!r}]\n"
        "from gpssm.__main__ import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )


def test_the_console_script_is_the_module() -> None:
    assert PROJECT["project"]["scripts"] == {"gpssm": "gpssm.__main__:main"}
    result = subprocess.run([sys.executable, "-m", "gpssm", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"gpssm {gpssm.__version__}\n"


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("typer", "--help", "cli"),
        ("typer", "fit data.csv", "cli"),
        ("rich", "datasets", "cli"),
        ("matplotlib", "plot model.gpssm", "plot"),
        ("matplotlib", "demo", "plot"),
        ("matplotlib", "reproduce kink --out kink", "plot"),  # and not after the fits
        ("matplotlib", "reproduce all", "plot"),
        ("distributed", "reproduce all --only nascar --dask tcp://127.0.0.1:1", "dask"),
    ],
)
def test_what_is_missing_is_named_with_how_to_get_it(tmp_path: Path, module: str, arguments: str, extra: str) -> None:
    result = run_without(module, *arguments.split(), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"pip install 'gpssm[{extra}]'" in result.stderr and result.stderr.count("\n") == 1
    assert extra in PROJECT["project"]["optional-dependencies"]


def test_a_package_lists_what_it_has_itself_and_what_it_loads_on_first_use() -> None:
    assert {"__version__", "EnVI", "load", "datasets"} <= set(dir(gpssm))
    assert {"FILTERS", "kalman"} <= set(dir(gpssm.filters))
    assert {"LIKELIHOODS", "GPSSM"} <= set(dir(gpssm.models))


@pytest.mark.parametrize(
    ("room", "package", "first", "extra"),
    [
        ("plots", "matplotlib", "matplotlib.pyplot", "plot"),
        ("sktime", "sktime", "sktime.datatypes", "sktime"),
        ("river", "river", "river.conf.interval", "river"),
    ],
)
def test_a_room_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, room: str, package: str, first: str, extra: str
) -> None:
    monkeypatch.delattr(gpssm, room, raising=False)
    monkeypatch.delitem(sys.modules, f"gpssm.{room}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, first, None)
    sentence = rf"^gpssm\.{room} needs {package}; run pip install 'gpssm\[{extra}\]'\.$"
    with pytest.raises(ModuleNotFoundError, match=sentence):
        getattr(gpssm, room)
    assert extra in PROJECT["project"]["optional-dependencies"]


def test_the_source_archive_is_what_is_tracked() -> None:
    """Whatever else lies in the directory stays at home."""
    pathspec = pytest.importorskip("pathspec")
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ)
    tracked = {name for name in listed.stdout.split() if not name.startswith(".") and name != "pyproject.toml"}
    patterns = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    packed = pathspec.PathSpec.from_lines("gitignore", patterns)
    assert {name for name in tracked if packed.match_file(name)} == tracked
    for name in ("notes.txt", "model.gpssm", "tests/data.csv", "src/gpssm/secret.env", "results/plan.json", "a/b.py"):
        assert not packed.match_file(name)


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {gpssm.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert newest.split()[1] == gpssm.__version__


def run_check(program: str, *arguments: str) -> None:
    """A linter of the development environment, which is there wherever `make test` has made that."""
    path = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"{program} is not installed")
    result = subprocess.run([path, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_citation_is_one() -> None:
    run_check("check-jsonschema", "--builtin-schema", "vendor.citation-file-format", "CITATION.cff")


WORKFLOWS = sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))


def test_workflows_are_workflows() -> None:
    assert WORKFLOWS
    run_check("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)


def test_every_supported_python_is_tested_before_a_release() -> None:
    yaml = pytest.importorskip("yaml")
    tested, released = (
        yaml.safe_load((ROOT / ".github/workflows" / f"{n}.yml").read_text()) for n in ("test", "release")
    )
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    assert tested["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    lowest, highest = (tuple(map(int, version.split("."))) for version in (versions[0], versions[-1]))
    assert PROJECT["project"]["requires-python"] == f">={lowest[0]}.{lowest[1]},<{highest[0]}.{highest[1] + 1}"
    jobs = released["jobs"]
    assert jobs["test"]["uses"].endswith("/test.yml") and jobs["build"]["needs"] == "test"
    assert jobs["publish"]["needs"] == "build"


def test_only_the_job_that_publishes_may_do_anything() -> None:
    """It has no password, and none of our code runs in it."""
    yaml = pytest.importorskip("yaml")
    for file in WORKFLOWS:
        workflow = yaml.safe_load(Path(file).read_text())
        assert workflow["permissions"] in ({}, {"contents": "read"})
        for name, job in workflow["jobs"].items():
            allowed = {"id-token": "write"} if name == "publish" else {"contents": "read"}
            assert job.get("permissions", allowed) == allowed
            if name == "publish":
                assert job["environment"] == "pypi" and not any("run" in step for step in job["steps"])


def test_the_image_is_built_as_it_should_be() -> None:
    run_check("hadolint", "Dockerfile")


def test_the_image_is_built_from_what_is_sent() -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert sorted(" ".join(copied).split()) == sorted(sent) and all((ROOT / name).exists() for name in sent)
    needed = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml", "src"}
    assert set(sent) == needed


def test_the_image_starts_a_command_that_there_is() -> None:
    words = re.search(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert words is not None
    command, *arguments = json.loads(words[1])
    context = get_command(app).commands[command].make_context(command, arguments)
    assert context.params["target"] == "estimates" and context.params["checkpoint"] == Path("/data/live.gpssm")
