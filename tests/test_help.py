"""What a command says of itself: its help with an example that works, what the tab key offers, and what it logs."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import gpssm
from gpssm.cli import reproduce
from gpssm.cli.main import app
from gpssm.experiments import EXPERIMENTS


def commands(command: Any, name: str = "gpssm") -> Iterator[tuple[str, Any]]:
    """Every command, by what is typed to call it; an experiment's is made when it is called."""
    yield name, command
    for inner, found in getattr(command, "commands", {}).items():
        made = reproduce._command(inner) if inner in EXPERIMENTS else found
        yield from commands(made, f"{name} {inner}")


COMMANDS = dict(commands(get_command(app)))


def parse(command: Any, words: list[str], name: str, parent: Any = None) -> None:
    """What Typer does before it calls a function: every option has to exist, every value to be of its kind."""
    context = command.make_context(name, list(words), parent=parent)
    if getattr(command, "commands", None):
        inner, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parse(reproduce._command(inner) if inner in EXPERIMENTS else found, rest, inner, context)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_parse(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("README.md").touch()  # which one of them writes to
    heading, *examples = COMMANDS[name].epilog.splitlines()
    assert heading == "Example:" and examples
    for example in examples:
        assert len(example) < 79  # is not wrapped
        called = shlex.split(example.rpartition("| ")[2])
        assert called[0] == "gpssm" and (name in example or name == "gpssm")
        parse(get_command(app), called[1:], "gpssm")


def test_an_example_that_does_not_parse_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(get_command(app), ["fit", "a.csv", "--outputs", "y", "-o", "m.gpssm", "--colour", "red"], "gpssm")
    with pytest.raises(Exception, match="No such option"):
        parse(get_command(app), ["reproduce", "kink", "--colour", "red"], "gpssm")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpssm", *arguments],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["", "fit", "reproduce status"])
def test_examples_are_the_last_lines_as_they_are_without_a_terminal(command: str) -> None:
    shown = run(*command.split(), "--help", COLUMNS="80").stdout
    epilog = COMMANDS[f"gpssm {command}".strip()].epilog.splitlines()
    assert [line.strip() for line in shown.rstrip().splitlines()[-len(epilog) :]] == epilog


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("gpssm reproduce ki", {"kink"}),
        ("gpssm fit --method VC", {"VCDT"}),
        ("gpssm fit --likelihood ", {"gaussian", "student_t"}),
        ("gpssm compare x.csv --methods EnVI,A", {"EnVI,AD-EnKF", "EnVI,ARX"}),
        ("gpssm stream --method ", {"OEnVI", "RGPSSM", "SVMC", "VJF"}),
        ("gpssm filter m.gpssm x.csv --filter p", {"particle"}),
        ("gpssm reproduce sysid --dataset d", {"drive", "dryer"}),
        ("gpssm reproduce kink --seeds 1 --method PR", {"PRSSM"}),
        ("gpssm reproduce all --only kink,na", {"kink,nascar"}),
        ("gpssm fit --max", {"--max-seconds"}),
    ],
)
def test_the_tab_key_offers_names(typed: str, offered: set[str]) -> None:
    """By the protocol of bash."""
    words = typed.split(" ")
    result = run(_GPSSM_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1))
    assert set(result.stdout.split()) == offered
    assert result.stderr == ""


def test_the_tab_key_does_not_wait_for_jax() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['gpssm']\n"
        "try:\n"
        "    from gpssm.__main__ import main; main()\n"
        "finally:\n"
        "    assert not {'jax', 'matplotlib'} & set(sys.modules), 'loaded'\n"
    )
    environment = {"_GPSSM_COMPLETE": "complete_bash", "COMP_WORDS": "gpssm reproduce sysid --dataset a"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ | environment | {"COMP_CWORD": "4"},
    )  # fmt: skip
    assert result.stdout.split() == ["actuator"] and "loaded" not in result.stderr


def test_the_script_for_the_shell_is_shown_and_installed(tmp_path: Path) -> None:
    """To the shell that has called it, for the command `gpssm`."""

    def run(option: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f"{shlex.quote(sys.executable)} -m gpssm {option}; exit $?"],
            capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"HOME": str(tmp_path)},
        )  # fmt: skip

    shown = run("--show-completion")
    assert shown.returncode == 0 and "complete -o default -F _gpssm_completion gpssm" in shown.stdout
    installed = run("--install-completion")
    assert installed.returncode == 0, installed.stderr
    (script,) = tmp_path.rglob("gpssm.sh")
    assert "_gpssm_completion" in script.read_text() and str(script) in (tmp_path / ".bashrc").read_text()


def test_the_library_itself_says_nothing() -> None:
    """Whoever uses it decides; without a handler of its own Python would print warnings of a logger."""
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("gpssm").handlers)
    assert logging.getLogger("gpssm").level == logging.NOTSET


def test_a_reader_says_what_it_has_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "log.csv"
    file.write_text("time [s];level\n0;1,5\n1;2,5\n2;3,5\n")
    with caplog.at_level(logging.INFO, "gpssm"):
        gpssm.datasets.from_csv(file, "level")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"{file}: 3 rows of 2 cells, separator ';', names 'time [s]', 'level'",
        f"{file}: times are in 'time [s]'",
    ]


SPEAKERS = ("training.restarts", "training.optimiser", "methods.base", "plumbing.compilation")
"""Who has something to say of a fit."""


def test_a_fit_says_which_start_it_has_chosen(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    y = np.sin(0.4 * np.arange(60))[:, None] + 0.1 * rng.normal(size=(60, 1))
    with caplog.at_level(logging.DEBUG, "gpssm"):
        fitted = gpssm.EnVI(1, 5, schedule=gpssm.Schedule(max_steps=50)).fit(y, restarts=2)
    said = {name: [r.getMessage() for r in caplog.records if r.name == f"gpssm.{name}"] for name in SPEAKERS}
    assert len([line for line in said["training.restarts"] if re.match(r"start [12]: bound ", line)]) == 2
    ended = [line for line in said["training.optimiser"] if "ELBO" in line and "of at most" not in line]
    assert len(ended) == 2 and all(line.startswith(f"start {i + 1} of 2, ") for i, line in enumerate(ended))
    best = re.search(r"ELBO (\S+)$", max(ended, key=lambda line: float(line.rpartition(" ")[2])))
    assert best is not None and float(best[1]) == pytest.approx(fitted.history.best, rel=1e-4)
    assert re.fullmatch(
        r"EnVI: compilation took [\d.]+ s for \d+ programs, \d+ of them from the cache", said["methods.base"][-1]
    )
    assert any("_run_chunk" in line for line in said["plumbing.compilation"])


def test_a_stream_says_that_it_starts_again(caplog: pytest.LogCaptureFixture) -> None:
    """A system at rest that then moves a thousand times as far."""
    rng = np.random.default_rng(0)
    y = np.concatenate([1e-3 * rng.normal(size=12), rng.normal(size=30)])
    with caplog.at_level(logging.INFO, "gpssm.online"):
        gpssm.VJF(1, num_inducing=2).start().learn_many(y[:, None])
    assert any("starts again with units of" in record.getMessage() for record in caplog.records)


def test_verbose_goes_to_standard_error_and_leaves_the_output_alone(tmp_path: Path) -> None:
    log, model = tmp_path / "log.csv", tmp_path / "model.gpssm"
    log.write_text("y\n" + "\n".join(f"{0.5**k:.3f}" for k in range(40)) + "\n")
    plain, verbose, twice = (
        run(*flags, "fit", str(log), "--outputs", "y", "--method", "ARX", "-o", str(model), "--quiet", "--json")
        for flags in ((), ("--verbose",), ("-vv",))
    )
    assert plain.stderr == "" and plain.returncode == verbose.returncode == 0

    def facts(text: str) -> dict[str, Any]:
        return {name: value for name, value in json.loads(text).items() if "seconds" not in name}

    assert facts(verbose.stdout) == facts(plain.stdout) == facts(twice.stdout)
    lines = verbose.stderr.splitlines()
    assert lines and all(re.match(r"\d\d:\d\d:\d\d gpssm\.[a-z_.]+: ", line) for line in lines)
    assert any("40 rows of 1 cells" in line for line in lines)
    assert any("compiled programs are kept in" in line for line in lines)
    assert len(twice.stderr.splitlines()) > len(lines)
