"""The examples in the README, and in the page about a user's own file, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]


def examples(page: str) -> list[str]:
    """The blocks of Python in a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


OFFLINE, LIVE = examples("README.md")
(OWN_FILE,) = examples("docs/howto/your_file.md")


def run(code: str, directory: Path) -> str:
    result = subprocess.run([sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_ten_lines_run(tmp_path: Path) -> None:
    assert "process_noise.variance" in run(OFFLINE, tmp_path)
    assert (tmp_path / "kink.gpssm").is_file()


def test_own_file_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    u = rng.standard_normal(100)
    y = np.convolve(u, [1.0, 0.5, 0.2])[:100] + 0.1 * rng.standard_normal(100)
    np.savetxt(tmp_path / "recording.csv", np.column_stack([u, y]), delimiter=",", header="u,y", comments="")
    assert "coverage90" in run(OWN_FILE, tmp_path)


def test_live_runs(tmp_path: Path) -> None:
    run(LIVE, tmp_path)
    assert (tmp_path / "live.gpssm").is_file()


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
