"""What is installed, with which extras, and what a command says that lacks one."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gpssm

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
