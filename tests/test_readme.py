"""The example in the README runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path


def test_readme_example_runs(tmp_path: Path) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "process_noise.variance" in result.stdout
    assert (tmp_path / "kink.gpssm").is_file()
