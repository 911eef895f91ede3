"""The wheel holds the package and nothing else, and works where there is nothing but it."""

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

import gpssm
import stranger

pytestmark = pytest.mark.slow


def test_it_holds_the_package_and_nothing_else(installed_wheel: Path) -> None:
    """No tests, no documents, and nothing that lies beside the sources untracked."""
    (file,) = (installed_wheel.parents[1] / "dist").glob("*.whl")
    package = stranger.ROOT / "src" / "gpssm"
    expected = {
        str(Path("gpssm") / path.relative_to(package))
        for pattern in ("**/*.py", "py.typed", "reproduction/templates/*.j2")
        for path in package.glob(pattern)
    }
    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"gpssm-{gpssm.__version__}.dist-info/METADATA").decode()
    about = {name for name in names if name.startswith(f"gpssm-{gpssm.__version__}.dist-info/")}
    assert names - about == expected
    assert {"gpssm/py.typed", "gpssm/reproduction/templates/report.html.j2"} <= names
    assert {Path(name).name for name in about} == {"METADATA", "WHEEL", "entry_points.txt", "LICENSE", "RECORD"}
    assert "License-Expression: Apache-2.0" in metadata and "Requires-Python: <3.14,>=3.11" in metadata


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd, capture_output=True, text=True, timeout=900, check=False, env=stranger.environment(HOME=str(cwd)),
    )  # fmt: skip


def test_a_type_checker_finds_the_types(installed_wheel: Path) -> None:
    code = "import gpssm, pathlib; print(pathlib.Path(gpssm.__file__).with_name('py.typed').is_file(), gpssm.__file__)"
    found = run(installed_wheel / "python", "-c", code, cwd=installed_wheel).stdout
    assert found.startswith(f"True {installed_wheel.parent}")


def test_it_runs_the_demo(installed_wheel: Path, tmp_path: Path) -> None:
    """From another directory, with an empty home; what the demo leaves can be read."""
    result = run(installed_wheel / "gpssm", "demo", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["mse"] < 0.02
    assert (tmp_path / found["picture"]).read_bytes().startswith(b"\x89PNG")
    shown = run(installed_wheel / "gpssm", "summary", found["model"], "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["method"] == "EnVI"
