"""What is said while something takes long, and what Ctrl-C does meanwhile."""

import hashlib
import io
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpssm
from gpssm.cli.main import main
from gpssm.datasets import kink, to_csv
from gpssm.methods.envi import EnVI
from gpssm.plumbing.interruption import Interruption
from gpssm.posteriors.history import Progress
from gpssm.training import progress

# As a compilation is for Python: minutes without a single instruction of its own, and other threads can run.
BUSY = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)"
STOPPING = "gpssm: stopping after the present step; press Ctrl-C again to "


class Script:
    """A script in a process of its own, of which standard error is read."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
        self.said = ""

    def wait_for(self, text: str, seconds: float = 300.0) -> float:
        """Seconds until it was said."""
        began = time.monotonic()
        assert self.process.stderr is not None
        while text not in self.said:
            left = began + seconds - time.monotonic()
            assert left > 0 and select.select([self.process.stderr], [], [], left)[0], self.said
            more = os.read(self.process.stderr.fileno(), 1 << 16)
            assert more, self.said
            self.said += more.decode()
        return time.monotonic() - began


@pytest.fixture
def scripts() -> Iterator[Any]:
    started: list[Script] = []

    def start(code: str) -> Script:
        started.append(Script(code))
        started[-1].wait_for("busy\n")
        time.sleep(0.2)  # what comes after that word has begun
        return started[-1]

    yield start
    for script in started:
        script.process.kill()
        script.process.communicate()


COMMAND = f"""
import hashlib, sys
from gpssm.cli import datasets
from gpssm.cli.main import main
def run(options):
    sys.stderr.write("busy\\n"); sys.stderr.flush()
    {BUSY}
datasets.run = run
sys.argv = ["gpssm", "datasets"]
main()
"""


def test_a_command_that_compiles_says_at_once_that_it_stops_and_ends_when_told_again(scripts: Any) -> None:
    script = scripts(COMMAND)
    script.process.send_signal(signal.SIGINT)
    assert script.wait_for(f"{STOPPING}end at once.\n") < 5
    assert script.process.poll() is None
    script.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert script.process.wait(timeout=20) == 130
    assert time.monotonic() - began < 10 and "Traceback" not in script.said


def test_a_fit_in_a_program_of_the_users_says_that_it_stops_and_does_not_end_it(scripts: Any) -> None:
    script = scripts(
        "import hashlib, sys\nfrom gpssm.plumbing.interruption import Interruption\n"
        f"with Interruption():\n    sys.stderr.write('busy\\n'); sys.stderr.flush(); {BUSY}"
    )
    script.process.send_signal(signal.SIGINT)
    script.wait_for(f"{STOPPING}raise KeyboardInterrupt.\n", 5)
    script.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        script.process.wait(timeout=3)


def test_an_interrupt_that_is_acted_on_is_not_talked_about(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Interruption():
        signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err == ""


def test_an_application_with_a_handler_is_left_alone() -> None:
    seen = []
    previous = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    threads = threading.active_count()
    try:
        with Interruption() as asked:
            assert signal.set_wakeup_fd(-1) == -1 and threading.active_count() == threads
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert seen == [1] and not asked.requested


def test_who_listened_before_hears_it_too_and_has_its_place_back() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads = threading.active_count()
    try:
        with Interruption() as asked, Interruption():  # the second has nothing to do
            asked.something_to_keep = True
            signal.raise_signal(signal.SIGINT)
            assert select.select([reader], [], [], 5)[0] and os.read(reader, 9) == bytes([signal.SIGINT])
        assert asked.requested
    finally:
        assert signal.set_wakeup_fd(previous) == writer
        os.close(reader)
        os.close(writer)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors - 2 and threading.active_count() == threads


def test_only_a_whole_fit_is_the_result_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt ends the command: what was learned so far would pass for a result."""
    cut_short = SimpleNamespace(history=SimpleNamespace(interrupted=True))
    monkeypatch.setattr(EnVI, "fit", lambda *_, **__: cut_short)
    monkeypatch.setattr(sys, "argv", ["gpssm", "demo", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130 and not list(tmp_path.iterdir())


def lost() -> None:
    """An interrupt that arrives where what it raises goes no further."""
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_was_lost_is_noticed_all_the_same() -> None:
    """A callback of the garbage collector, of which JAX has one, swallows what is raised in it."""
    with Interruption() as asked:
        monitor = progress.Monitor(asked, None)
        monitor.searching()(1, 7)
        lost()
        assert asked.requested  # so that training stops after its first chunk
        with pytest.raises(KeyboardInterrupt):
            monitor.searching()(2, 7)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.2)
    monkeypatch.setattr(progress, "EVERY", 0.4)


def told(step: int) -> Progress:
    return Progress(step, 100, "learning", -12.5, {"likelihood": -10.0}, 1.0, ())


@pytest.mark.usefixtures("impatient")
def test_lines_come_by_the_clock_where_there_is_no_terminal() -> None:
    """Also while nothing is heard of the fit, because it compiles."""
    said, began = io.StringIO(), time.monotonic()
    with redirect_stderr(said), progress.watcher(True, "EnVI") as watch:
        assert watch is not None
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # a third of a second, or more, in one instruction
        time.sleep(0.3)
        watch(told(25))
        time.sleep(0.8)
    lines, most = said.getvalue().splitlines(), (time.monotonic() - began) / progress.EVERY + 1
    assert re.fullmatch(r"gpssm: \d s, EnVI: compiling", lines[0])
    assert re.fullmatch(r"gpssm: \d s, EnVI: learning 25/100 ELBO -12.5 \(likelihood -10\)", lines[-1])
    assert 2 <= len(lines) <= most
    time.sleep(0.6)
    assert said.getvalue().splitlines() == lines  # and end with the fit


def test_what_is_over_soon_says_nothing() -> None:
    said = io.StringIO()
    with redirect_stderr(said), progress.watcher(True, "EnVI") as watch:
        assert watch is not None
        watch(told(25))
    assert said.getvalue() == "" and progress.FIRST == 10.0 and progress.EVERY == 30.0


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (89.4, "89 s"), (100.0, "2 min"), (5300.0, "88 min"), (5460.0, "1.5 h")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert progress.duration(seconds) == shown


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("quiet", [False, True])
def test_commands_tell_how_they_go_on_unless_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    """A fit, which is told by its steps, and an evaluation, which has none; JSON is what it is."""
    to_csv(tmp_path / "data.csv", {"y": kink(60, 0.05, 0.008, seed=0).outputs[:, 0]})
    model = tmp_path / "m.gpssm"
    options = ["--json", *(["--quiet"] if quiet else [])]

    def slow(fit: Any) -> Any:
        def run(self: Any, *arguments: Any, progress: Any, **more: Any) -> Any:
            with gpssm.training.progress.watcher(progress, "LastValue") as watch:
                if watch is not None:
                    watch(told(25))
                time.sleep(0.5)
            return fit(self, *arguments, **more)

        return run

    from gpssm import evaluation
    from gpssm.methods.naive import LastValue

    monkeypatch.setattr(LastValue, "fit", slow(LastValue.fit))
    free_run = evaluation.score_free_run
    monkeypatch.setattr(evaluation, "score_free_run", lambda *a, **k: (time.sleep(0.5), free_run(*a, **k))[1])
    for arguments, text in (
        (["fit", tmp_path / "data.csv", "--outputs", "y", "--method", "LastValue", "-o", model], "learning 25/100"),
        (["evaluate", model, tmp_path / "data.csv"], "evaluating"),
    ):
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["gpssm", *map(str, arguments), *options])
        monkeypatch.setattr(sys, "stdout", out)
        handler = signal.getsignal(signal.SIGTERM)
        with redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
        signal.signal(signal.SIGTERM, handler)
        assert not ended.value.code, err.getvalue()
        assert out.getvalue().startswith("{") and out.getvalue().count("\n") == 1
        assert (err.getvalue() == "") if quiet else (text in err.getvalue())
