"""Everything in docs/start.md is run where nothing but the wheel is, and says what the page says, but for digits."""

import csv
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import stranger

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
def test_three_commands_lead_from_a_strangers_file_to_a_checked_forecast(installed_wheel: Path, tmp_path: Path) -> None:
    def follow(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(installed_wheel / words[0]), *words[1:]]
        env = stranger.environment(HOME=str(tmp_path))
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False, env=env)

    page, done = PAGE.read_text(), None
    assert "$ pip install 'gpssm[all]'" in page  # what `installed_wheel` has done
    downloads = re.findall(r"{download}`[^<]+<([^>]+)>`", page)
    assert len(downloads) == 2
    for file in downloads:
        shutil.copy(PAGE.parent / file, tmp_path)
    for mark, text in marked(page):
        if mark == "run":
            done = follow(*shlex.split(text.removeprefix("$ ")))
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
    done = follow("python", "-c", script)
    assert done.stdout.splitlines()[-1] == "2024-03-10 00:00:00 inside [°C]_mean", done.stderr
