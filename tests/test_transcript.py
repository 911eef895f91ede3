"""Everything in docs/start.md is run, and says what the page says, but for digits."""

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "start.md"


def without_digits(text: str) -> list[str]:
    """Words and signs; numbers, and the room that they take, depend on the machine."""
    return [" ".join(re.sub(r"-?\d[\d.e+-]*", "#", line).split()) for line in text.splitlines()]


def marked(page: str) -> list[tuple[str, str]]:
    """What stands after each mark, and the mark."""
    found = re.findall(r"<!-- ([^>]+) -->\n```\w*\n(.*?)```", page, flags=re.S)
    assert [mark for mark, _ in found].count("run") == 3
    return found


@pytest.mark.slow
def test_three_commands_lead_from_a_strangers_file_to_a_checked_forecast(tmp_path: Path) -> None:
    for file in ("greenhouse.csv", "tomorrow.csv"):
        shutil.copy(PAGE.parent / "greenhouse" / file, tmp_path)
    page, done = PAGE.read_text(), None
    for mark, text in marked(page):
        if mark == "run":
            words = shlex.split(text.removeprefix("$ "))
            done = subprocess.run(
                [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ)
            )
            assert done.returncode == 0, done.stderr
            continue
        assert done is not None
        kind, _, place = mark.partition(":")
        if kind == "file":
            printed = "".join(
                (tmp_path / place.strip()).read_text().splitlines(keepends=True)[: len(text.splitlines())]
            )
        else:
            printed = {"stdout": done.stdout, "stderr": done.stderr}[kind]
            printed = "".join(printed.splitlines(keepends=True)[-len(text.splitlines()) :]) if place else printed
        assert without_digits(printed) == without_digits(text), mark
    with (tmp_path / "forecast.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [rows[0]["time"], rows[-1]["time"], len(rows)] == ["2024-03-10T00:00:00", "2024-03-10T11:50:00", 72]
    (script,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    # As it stands, but for the fit, which is another minute of the same.
    script = script.replace('gpssm.EnVI("auto")', "gpssm.ARX()") + "print(table.index[0], list(table)[0])\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "2024-03-10 00:00:00 inside [°C]_mean", done.stderr
