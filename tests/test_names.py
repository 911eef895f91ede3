"""The names that a package loads on first use are those that a type checker sees."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LAZY = [file for file in sorted(SOURCE.rglob("__init__.py")) if "import exports" in file.read_text()]


@pytest.mark.parametrize("file", LAZY, ids=lambda file: file.parent.name)
def test_what_is_loaded_on_first_use_is_declared_for_type_checkers(file: Path) -> None:
    package = importlib.import_module(".".join(file.parent.relative_to(SOURCE).parts))
    (block,) = (
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    declared = {}
    for line in block.body:
        assert isinstance(line, ast.ImportFrom)
        for alias in line.names:
            assert alias.asname == alias.name, "only `import X as X` is public to a type checker"
            declared[alias.name] = line.module
    offered = {name for name in dir(package) if name not in vars(package) or name in declared}
    assert set(declared) == offered
    for name, module in declared.items():
        assert getattr(importlib.import_module(str(module)), name) is getattr(package, name)


def test_the_packages_that_load_names_on_first_use_are_found() -> None:
    assert {"gpssm", "filters", "models"} <= {file.parent.name for file in LAZY}


@pytest.mark.slow
def test_a_type_checker_knows_every_name_and_no_other(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        "import gpssm\n"
        "right: type[gpssm.VCDT] = gpssm.VCDT\n"
        "also: type[gpssm.models.GPSSM] = gpssm.models.GPSSM\n"
        "gpssm.plots.forecast, gpssm.datasets.load, gpssm.metrics.crps, gpssm.filters.kalman\n"
        "wrong: int = gpssm.EnVI(2)\n"
        "gpssm.Envi\n"
        "gpssm.models.GPSM\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "mypy", str(snippet)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    faults = [line for line in result.stdout.splitlines() if ": error: " in line]
    assert [fault.split(":")[1] for fault in faults] == ["5", "6", "7"], result.stdout
