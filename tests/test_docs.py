"""What the pages say can be done is done: Python is run, commands are parsed, every public name has its entry."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import gpssm
from gpssm.cli.main import app
from gpssm.methods import checked
from gpssm.parallel import pool, sweep
from test_docstrings import offered

DOCS = Path(__file__).parents[1] / "docs"
HOWTO = sorted((DOCS / "howto").glob("*.md"))
PAGES = [*HOWTO, *sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"]
REAL = gpssm.EnVI


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in one of these languages."""
    fenced = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in fenced if language in languages]


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the pages speak of, where they are looked for."""
    rng = np.random.default_rng(0)
    u = rng.normal(size=160)
    y = np.convolve(u, [1.0, 0.5, 0.2])[:160] + 0.1 * rng.normal(size=160)
    rows = np.column_stack([u, y, np.repeat([1, 2], 80)])
    for name in ("recording.csv", "runs.csv"):
        np.savetxt(tmp_path / name, rows, delimiter=",", header="u,y,run", comments="")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of a few steps, without hidden states, in this process: whether they learn is for other tests."""

    def envi(state_dim: Any, *arguments: Any, **choices: Any) -> gpssm.EnVI:
        asked = REAL(state_dim, *arguments, **choices)  # says what is wrong with it, if anything is
        schedule = gpssm.Schedule(max_steps=4, chunk=2)
        return replace(asked, state_dim=1, num_inducing=5, dtype="float64", schedule=schedule)

    def here(function: Any, jobs: list[Any]) -> Any:
        return (pool.Event("done", place, function(job)) for place, job in enumerate(jobs))

    def few(method: Any, grid: Any, *rest: Any, **named: Any) -> Any:
        return real(
            method, {name: [1] if name == "state_dim" else values[:1] for name, values in grid.items()}, *rest, **named
        )

    real = sweep.sweep
    monkeypatch.setattr(gpssm, "EnVI", envi, raising=False)
    monkeypatch.setattr(gpssm, "sweep", few, raising=False)
    monkeypatch.setattr(sweep.pool, "run", here)
    monkeypatch.setattr(checked, "LINES", ("ARX",))


# Half a minute of compilation for models that other tests fit, too.
LONG = ("bad_result", "several_recordings", "state_dimension")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=pytest.mark.slow if page.stem in LONG else ()) for page in HOWTO],
)
@pytest.mark.usefixtures("recordings", "tiny")
def test_python_of_a_page_runs_as_one_script(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = "\n".join(blocks(page, "python"))
    assert script or page.stem == "index"
    exec(compile(script, str(page), "exec"), {"__name__": "__main__"})
    assert ("print(" in script) == bool(capsys.readouterr().out)


def shown() -> list[Any]:
    """Every command of ours that a page shows, after a prompt or in an indented line, whatever it is fed by."""
    found = []
    for page in PAGES:
        text = page.read_text()
        fenced = "".join(blocks(page, "console", "sh", "bash"))
        for line in [*fenced.splitlines(), *re.findall(r"^ {4}(?!-)(.*)", text, re.MULTILINE)]:
            command = re.search(r"(?:^|\| )(?:\$ )?(gpssm [a-z].*)", line)
            if command is not None:
                found.append(pytest.param(command[1], id=f"{page.stem}: {command[1][:60]}"))
    return found


SHOWN = shown()


@pytest.mark.parametrize("line", SHOWN)
def test_a_command_that_a_page_shows_has_these_arguments(line: str) -> None:
    """It is parsed to the end, and not run."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = get_command(app)
    while hasattr(command, "get_command"):
        name, *words = words
        command = command.get_command(command.context_class(command), name)
        assert command is not None, f"there is no command {name!r}"
    assert command.make_context(command.name, words).params


def test_there_are_commands_to_look_at() -> None:
    assert len(SHOWN) > 25


def test_an_option_that_there_is_not_would_be_seen() -> None:
    with pytest.raises(Exception, match="No such option"):
        test_a_command_that_a_page_shows_has_these_arguments("gpssm fit a.csv --outputs y --out m --no-such 3")


def entries() -> set[str]:
    """The names that have a page of the reference, or a line on one."""
    found: set[str] = set()
    for page in (DOCS / "reference").glob("*.rst"):
        text = page.read_text()
        for listed in re.findall(r"^\.\. autosummary::\n(?:   :.*\n)+\n((?:   \S+\n)+)", text, re.MULTILINE):
            found |= set(listed.split())
        module = re.search(r"^\.\. currentmodule:: (\S+)", text, re.MULTILINE)
        for name in re.findall(r"^\.\. (?:py:)?(?:class|data|function):: (\S+)", text, re.MULTILINE):
            found.add(f"{module[1]}.{name}" if module else name)
    return found


def test_every_name_that_a_user_reaches_has_an_entry_in_the_reference() -> None:
    missing = {f"gpssm.{name}" for name, _ in offered()} - entries()
    assert not missing
