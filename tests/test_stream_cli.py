"""`gpssm stream` on standard input, with the method of local_level.py, whose exact filter is written out here."""

import contextlib
import errno
import fcntl
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gpssm.online.stream
from gpssm.cli.main import main
from gpssm.datasets import Series
from gpssm.errors import InvalidInput
from gpssm.filters import ensemble
from gpssm.filters.ensemble import FilterSettings
from gpssm.live.checkpoint import Checkpoint
from gpssm.live.locks import Holder, locked
from gpssm.live.records import LONGEST, BadRecord, Lines, Names, Sample, from_fields
from gpssm.methods import registry
from gpssm.methods.envi import EnVI
from gpssm.methods.naive import LastValue
from gpssm.plumbing.atomic import write_atomically
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import Posterior

COMMAND = [sys.executable, str(Path(__file__).with_name("local_level_cli.py")), "stream"]
Q, R, P, WARM_UP = 0.1, 0.5, 100.0, 3  # of the model in that file
nan = math.nan
Begin = Callable[..., subprocess.Popen[bytes]]
Stream = Callable[..., subprocess.CompletedProcess[str]]


def stream(*arguments: object, text: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with `text` for its standard input."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, timeout=300, check=False, text=True)


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts the command, and leaves it running until the test is over."""
    with ExitStack() as processes:

        def start(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
            options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
            process = processes.enter_context(subprocess.Popen([*COMMAND, *map(str, arguments)], **options))
            processes.callback(process.kill)
            return process

        yield start


def walk(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(length).cumsum()


def lines_of(values: Sequence[float]) -> str:
    return "".join(f'{{"y": {"null" if math.isnan(v) else repr(float(v))}}}\n' for v in values)


def kalman(y: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Filtered mean and sd, predicted mean and sd, log score at every sample: one row each."""
    mean, var, rows = 0.0, P, []
    for value, control in zip(y, u, strict=True):
        mean, var = mean + control, var + Q
        predicted, scale, score = mean, math.sqrt(var + R), 0.0
        if not math.isnan(value):
            gain = var / (var + R)
            score = -0.5 * ((value - mean) / scale) ** 2 - math.log(scale * math.sqrt(2 * math.pi))
            mean, var = mean + gain * (value - mean), (1 - gain) * var
        rows.append((mean, math.sqrt(var), predicted, scale, score))
    return np.array(rows)


def test_every_sample_gets_the_estimate_of_the_exact_filter() -> None:
    """With an input and gaps, and a forecast in which the input stays what it is."""
    y, u = walk(40), np.random.default_rng(1).standard_normal(40)
    y[[10, 11, 39]] = nan
    rows = "".join(f"0,{control},{'' if math.isnan(v) else v}\n" for control, v in zip(u, y, strict=True))
    result = stream(
        "--state-dim", 1, "--outputs", "level", "--inputs", "valve", "--forecast", 3, "--uncalibrated",
        text=f"t,valve,level\n{rows}",
    )  # fmt: skip
    assert result.returncode == 0
    assert result.stderr.startswith("gpssm: 40 sample(s) learned, 0 skipped, ") and result.stderr.count("\n") == 1
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["sample"], line["line"]) for line in found] == [(i + 1, i + 2) for i in range(40)]
    assert list(found[-1]) == ["sample", "line", "state", "predicted", "log_score", "forecast"]
    assert found[0]["forecast"] is None and found[0]["predicted"] == {"mean": [None], "sd": [None]}
    parts = (("state", "mean"), ("state", "sd"), ("predicted", "mean"), ("predicted", "sd"))
    printed = [[*(line[a][b][0] for a, b in parts), line["log_score"]] for line in found[WARM_UP:]]
    np.testing.assert_allclose(np.array(printed), kalman(y, u)[WARM_UP:], rtol=1e-9, atol=1e-9)
    mean, sd = printed[-1][:2]
    ahead = np.arange(1, 4)
    forecast = found[-1]["forecast"]
    # 500 paths, five standard errors.
    np.testing.assert_allclose(np.ravel(forecast["mean"]), mean + ahead * u[-1], atol=5 * 1.2 / math.sqrt(500))
    np.testing.assert_allclose(np.ravel(forecast["sd"]), np.sqrt(sd**2 + ahead * Q + R), rtol=5 / math.sqrt(1000))


def test_resumed_it_prints_what_it_would_have_printed(tmp_path: Path) -> None:
    """Byte for byte, also out of the warm-up; blank lines keep the numbers of lines the same."""
    y = walk(60)
    whole = stream("--state-dim", 1, "--seed", 3, "--checkpoint", tmp_path / "whole", text=lines_of(y))
    printed, file, before = "", tmp_path / "part", 0
    for end in (2, 35, 60):
        text = "\n" * before + lines_of(y[before:end])
        part = stream("--state-dim", 1, "--seed", 3, "--checkpoint", file, "--every", 10, text=text)
        resumed = f"gpssm: going on from {str(file)!r}, after {before} sample(s).\n"
        assert part.returncode == 0 and part.stderr.startswith(resumed if before else "gpssm: 2 sample(s) learned")
        printed, before = printed + part.stdout, end
    assert len(printed.splitlines()) == 60 and printed == whole.stdout
    assert file.read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part", "whole"]


def test_bad_lines_are_reported_and_skipped(stream_here: Stream) -> None:
    """What is printed is what the good lines alone would give."""
    good = [f'{{"y": [{a!r}, {b!r}]}}' for a, b in walk(20).reshape(-1, 2).tolist()]
    bad = {3: "{", 5: '{"y": [1]}', 6: "[1, 2, 3]", 8: '{"y": ["a", 1]}', 9: '{"y": [Infinity, 1]}', 10: "\0ä"}
    lines = list(good)
    for number, line in bad.items():
        lines.insert(number - 1, line)
    result, expected = (stream_here("--state-dim", 2, text="\n".join(part)) for part in (lines, good))
    assert (result.returncode, expected.returncode) == (0, 0)
    reports = result.stderr.splitlines()
    assert [report.split(" skipped: ")[0] for report in reports[:-1]] == [f"gpssm: line {number}" for number in bad]
    assert "10 sample(s) learned, 6 skipped" in reports[-1]
    without_line = [[json.loads(line) | {"line": 0} for line in r.stdout.splitlines()] for r in (result, expected)]
    assert without_line[0] == without_line[1] and len(without_line[0]) == 10


def read(names: Names, *lines: str) -> list[Sample | None]:
    reader = Lines(names)
    return [reader.read(line.encode()) for line in lines]


Y, YU = Names(["y"]), Names(["y"], ["u"])


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        (YU, ["t,u,y\r", "0,0.5,1.5\r", "1,-1,\r"]),
        (YU, ["\ufeff# from a logger", "", "y;u", "1,5;0,5", "NaN;-1"]),
        (YU, ["u\ty\tnote", "0.5\t1.5\ta", "-1\tnull\t"]),
        (Names(["2"], ["0"]), ["0.5,7,1.5", "-1,8,N/A"]),
        (Names(["y"], ["0"]), ['"u", "y"', '"0.5", "1.5"', '"-1", ""']),
        (YU, ['{"y": 1.5, "u": 0.5, "t": "now"}', '{"u": -1, "y": null}']),
        (YU, ['\ufeff {"y": [1.5], "u": [0.5]}', "  ", '{"u": [-1], "y": NaN}']),
    ],
)
def test_the_same_samples_in_many_ways(names: Names, lines: list[str]) -> None:
    found = [sample for sample in read(names, *lines) if sample is not None]
    np.testing.assert_equal(found, [Sample([1.5], [0.5]), Sample([nan], [-1.0])])


def test_a_list_spreads_over_channels() -> None:
    np.testing.assert_equal(read(Y, "[1, null, 3e0]", '{"y": [4]}'), [Sample([1, nan, 3], []), Sample([4], [])])
    np.testing.assert_equal(read(Names(["a", "b"]), '{"a": [1, 2], "b": 3}'), [Sample([1, 2, 3], [])])
    np.testing.assert_equal(from_fields({b"y": b" [1, null]", b"u": b"2"}, YU), Sample([1, nan], [2]))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("y,u", "1"), "1 cell(s), the first row has 2"),
        (("y,u", "1,2,3"), "3 cell(s), the first row has 2"),
        (("y,u", "one,2"), "'y' is 'one'; expected a number"),
        (("y,u", "1_0,2"), "'y' is '1_0'; expected a number"),
        (("y,u", "inf,2"), "'y' is infinite"),
        (("y;u", "1.234,5;2"), "'y' is '1.234,5'; expected a number"),
        (("y,u", '"1,2'), "not a row of a table"),
        (('"y,u',), "not a row of a table"),
        (("{",), "not JSON: '{'"),
        (("{}", "y,u"), "no 'y' in it"),
        (("[1, 2]",), "expected an object with the key(s) 'y', 'u'"),
        (("{}", "7"), "no 'y' in it"),
        (('{"y": 1}',), "no 'u' in it"),
        (('{"y": true, "u": 1}',), "'y' is True; expected a number"),
        (('{"y": "1", "u": 1}',), "'y' is '1'; expected a number"),
        (('{"y": [[1]], "u": 1}',), "'y' is [1]; expected a number"),
        (('{"y": -Infinity, "u": 1}',), "'y' is infinite"),
        (('{"y": 1e999, "u": 1}',), "'y' is infinite"),
        (('{"y": 1' + "0" * 400 + ', "u": 1}',), "'y' is too large a number"),
        (('{"y": 1' + "0" * 5000 + ', "u": 1}',), "not JSON"),
        (('{"y": [], "u": 1}',), "'y' is an empty list"),
        (("[" * 100_000,), "not JSON"),
    ],
)
def test_what_is_wrong_with_a_line(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadRecord) as caught:
        read(YU, *lines)
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({b"x": b"1"}, "no 'y' in it"),
        ({}, "no 'y' in it"),
        ({b"y": b"one"}, "'y' is 'one'; expected a number"),
        ({b"y": b"\xff\xfe"}, "expected a number"),
        ({b"y": b"-inf"}, "'y' is infinite"),
        ({b"y": b"[1, 2"}, "'y' is not a JSON list"),
        ({b"y": b'["a"]'}, "'y' is 'a'; expected a number"),
    ],
)
def test_what_is_wrong_with_a_message(fields: dict[bytes, bytes], message: str) -> None:
    with pytest.raises(BadRecord) as caught:
        from_fields(fields, Y)
    assert message in str(caught.value)


BAD_LINES = {
    "carriage returns alone": b"t,y\r1,2\r3,4\r",
    "a thousand lists": b'{"y": ' + b"[" * 950 + b"]" * 950 + b"}",
    "a thousand objects": b'{"y": ' + b'{"a":' * 950 + b"1" + b"}" * 950 + b"}",
    "a bare nest": b"[" * 950 + b"]" * 950,
    "deeper than JSON goes": b'{"y": ' + b"[" * 100_000,
    "5000 digits": b'{"y": ' + b"9" * 5000 + b"}",
    "an integer beyond floats": b'{"y": [' + b"9" * 4000 + b"]}",
    "NUL": b'{"y": 1\0}',
    "a lone surrogate": b'{"y": "\\ud800"}',
    "half a surrogate in bytes": b'{"y": "\xed\xa0\x80"}',
    "next line": b"\x85",
    "line separator": b"\xe2\x80\xa8",
    "a byte-order mark": b'\xef\xbb\xbf{"y": 1}',
    "a quotation mark": b'"1',
    "not UTF-8": b"\xff\xfe\0",
    "one megabyte and a byte": b'{"y": 1,' + b" " * ((1 << 20) - 14) + b'"z": 1}',
    "good if its middle is cut out": b'{"y": 1, ' + b" " * (3 << 20) + b'"z": 1}',
}


def test_no_line_ends_a_stream(stream_here: Stream) -> None:
    """Each is a sentence and one more that is skipped, wherever it comes; those around it are learned from."""
    for first, good in (('{"y": 0}', '{"y": 1.5}'), ("t,y", "3,1.5")):
        lines = [first.encode()]
        for bad in BAD_LINES.values():
            lines += [bad, good.encode()]
        result = stream_here("--state-dim", 1, text=b"\n".join(lines))
        *reports, summary = result.stderr.splitlines()
        assert result.returncode == 0 and len(reports) == len(BAD_LINES), result.stderr
        for number, report in zip(range(2, 2 * len(BAD_LINES) + 1, 2), reports, strict=True):
            assert report.startswith(f"gpssm: line {number} skipped: ") and len(report) < 200
        learned = len(BAD_LINES) + (first != "t,y")
        assert f"{learned} sample(s) learned, {len(BAD_LINES)} skipped" in summary


# Text, in a first line, is the names of columns.
@pytest.mark.parametrize("bad", sorted(BAD_LINES.keys() - {"next line", "line separator", "not UTF-8"}))
def test_no_line_that_could_not_be_names_ends_a_stream_at_its_start(stream_here: Stream, bad: str) -> None:
    first = BAD_LINES[bad]
    result = stream_here("--state-dim", 1, text=first + b'\n{"y": 2}')
    expected = (0, 2, 0) if bad == "a byte-order mark" else (0, 1, 1)
    learned, skipped = (int(result.stderr.splitlines()[-1].split()[i]) for i in (1, 4))
    assert (result.returncode, learned, skipped) == expected


def test_no_depth_is_too_deep_to_be_shown() -> None:
    """Python reads lists that are so deep that it cannot show them."""
    for depth in range(500, 1001):
        for opened, closed in ("[]", ('{"y":', "}")):
            with pytest.raises(BadRecord):
                read(Y, f'{{"y": {opened * depth}1{closed * depth}}}')


def test_the_memory_for_a_line_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is; what is kept of it is too long to be taken for a line."""
    from gpssm.cli import learning as command
    from gpssm.live.signals import Stop

    file = tmp_path / "text"
    with file.open("wb") as made:
        made.write(b"1\n")
        made.truncate(64 << 20)
        made.seek(0, os.SEEK_END)
        made.write(b"\n2")
    with file.open("rb") as text, Stop() as stop:
        monkeypatch.setattr(command, "STDIN", text.fileno())
        tracemalloc.start()
        lengths = {number: len(line) for number, line in command._lines(stop)}
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert list(lengths) == [1, 2, 3] and lengths[1] == lengths[3] == 1 and lengths[2] > LONGEST
    assert peak < 8 << 20


def test_a_line_without_end_does_not_fill_the_memory(stream_here: Stream) -> None:
    """Nor hide the lines after it."""
    text = b'{"y": 1}\n' + b"0" * 5_000_000 + b'\n{"y": 2}'
    result = stream_here("--state-dim", 1, text=text)
    assert [json.loads(line)["line"] for line in result.stdout.splitlines()] == [1, 3]
    assert "line 2 skipped" in result.stderr and len(result.stderr) < 500


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_waiting_for_a_line(begin: Begin, tmp_path: Path, number: int, code: int) -> None:
    """Every line is answered at once; the half of a line that has come is not learned from."""
    file = tmp_path / "c"
    process = begin("--state-dim", 1, "--checkpoint", file)
    assert process.stdin is not None and process.stdout is not None
    for i, line in enumerate(lines_of(walk(7)).splitlines()):
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["sample"] == i + 1
    process.stdin.write(b'{"y": 1')
    process.stdin.flush()
    assert not file.exists()
    time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(timeout=300) == code
    out, err = process.communicate()
    assert out == b"" and err.startswith(b"gpssm: 7 sample(s) learned, 0 skipped")
    resumed = stream("--checkpoint", file, text='{"y": 1}')
    assert resumed.returncode == 0 and json.loads(resumed.stdout)["sample"] == 8


def test_a_signal_while_starting(begin: Begin, tmp_path: Path) -> None:
    """As soon as it is caught, and JAX is still being imported."""
    process = begin("--state-dim", 1, "--checkpoint", tmp_path / "c")
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        pytest.skip("no /proc that tells which signals a process catches")
    caught = 0
    while not caught & 1 << (signal.SIGTERM - 1):
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
    process.terminate()
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, b"") and err.startswith(b"gpssm: 0 sample(s) learned")
    assert not list(tmp_path.iterdir())


def test_a_signal_while_nobody_reads(begin: Begin, tmp_path: Path) -> None:
    """The pipe is full, and the process waits to write."""
    file = tmp_path / "c"
    process = begin("--state-dim", 1, "--checkpoint", file, "--every", 1)
    assert process.stdin is not None
    process.stdin.write(lines_of(walk(1000)).encode())
    process.stdin.flush()
    seen, now = -1, 0
    while seen != now or not now:  # until it stands still
        assert process.poll() is None
        time.sleep(1.5)
        seen, now = now, file.stat().st_mtime_ns if file.exists() else 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 0
    out, err = process.communicate()
    printed = len(out.splitlines())
    assert 100 < printed < 1000 and f"{printed + 1} sample(s) learned" in err.decode()


@pytest.mark.parametrize("together", [False, True])
def test_a_reader_that_goes_away(begin: Begin, tmp_path: Path, together: bool) -> None:
    """As in `gpssm stream | head`, and in `gpssm stream 2>&1 | head`."""
    file = tmp_path / "c"
    process = begin("--state-dim", 1, "--checkpoint", file, stderr=subprocess.STDOUT if together else subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    data = lines_of(walk(20)).encode()
    process.stdin.write(data[: len(data) // 2])
    process.stdin.flush()
    process.stdout.readline()
    process.stdout.close()
    with patch.object(process, "stdout", None):
        _, err = process.communicate(data[len(data) // 2 :], timeout=300)
    assert process.returncode == 0 and file.exists()
    if not together:
        assert err.count(b"\n") == 1 and b"sample(s) learned, 0 skipped" in err


def test_a_disk_that_fails_is_said_once_and_tried_again(begin: Begin, tmp_path: Path) -> None:
    """The estimates go on; when the place is back, so is the checkpoint."""
    place, away = tmp_path / "place", tmp_path / "away"
    place.mkdir()
    process = begin("--state-dim", 1, "--checkpoint", place / "c", "--every", 2)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None

    def send(count: int) -> None:
        assert process.stdin is not None and process.stdout is not None
        for line in lines_of(walk(count)).splitlines():
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline()

    send(3)
    place.rename(away)
    send(10)
    assert b"does not exist" in process.stderr.readline()
    away.rename(place)
    send(3)
    _, err = process.communicate(timeout=300)
    reports = err.decode().splitlines()
    assert process.returncode == 0 and len(reports) == 2
    assert reports[0] == f"gpssm: checkpoint: {str(place / 'c')!r} could be written again."
    assert [path.name for path in place.iterdir()] == ["c"]


def test_an_end_without_its_checkpoint_is_not_a_success(begin: Begin, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    process = begin("--state-dim", 1, "--checkpoint", place / "c")
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b'{"y": 1}\n')
    process.stdin.flush()
    process.stdout.readline()
    shutil.rmtree(place)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and b"checkpoint: cannot write" in err and err.count(b"\n") == 2


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing half-written."""
    file, said = tmp_path / "c", list[str]()
    file.write_text("precious")
    checkpoint = Checkpoint(file, 2, said.append)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Saved:
        def save(self, path: Path) -> None:
            write_atomically(path, b"new")

    due = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for _ in range(5):
            checkpoint.unsaved += 1
            due.append(checkpoint.due)
            assert not checkpoint.save(Saved())
    assert due == [False, True, False, True, False]
    (sentence,) = said
    assert sentence.startswith(f"checkpoint: cannot write {str(file)!r} (No space left on device); going on")
    assert [path.name for path in tmp_path.iterdir()] == ["c"] and file.read_text() == "precious"
    assert checkpoint.save(Saved()) and file.read_text() == "new" and len(said) == 2 and not checkpoint.unsaved


def test_a_state_that_cannot_be_saved_leaves_the_last_checkpoint(
    tmp_path: Path, stream_here: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said once; estimates go on, and the end is not a success."""
    file = tmp_path / "c"
    assert stream_here("--state-dim", 1, "--checkpoint", file, text="[1]").returncode == 0
    before = file.read_bytes()

    def refuse(stream: Any, path: Path) -> None:
        raise InvalidInput("save: the state is not finite; go on from an older one.")

    with monkeypatch.context() as patched:
        patched.setattr(gpssm.online.stream.Stream, "save", refuse)
        result = stream_here("--checkpoint", file, "--every", 2, text=lines_of(walk(7)))
    assert result.returncode == 1 and len(result.stdout.splitlines()) == 7 and file.read_bytes() == before
    _, said, summary = result.stderr.splitlines()
    assert "cannot write" in said and "(save: the state is not finite; go on from an older one); going on" in said
    assert "7 sample(s) learned, 0 skipped" in summary


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that can go on learning, one that cannot, and a file that is no model."""
    place, rng = tmp_path_factory.mktemp("models"), np.random.default_rng(0)
    y, u = rng.standard_normal((2, 40))
    problem = EnVI(1, 5).problem([y[:, None]], [u[:, None]])  # untrained: nothing has to be compiled
    recording = Series(y[:, None], u[:, None], None, ("level",), ("valve",))
    settings = FilterSettings(10, ensemble.Options())
    members = np.zeros((10, 1))
    Posterior(problem.model, problem.scaling, settings, (), History(), "EnVI", members, recording).save(
        place / "envi.gpssm"
    )
    LastValue().fit(y).save(place / "last.gpssm")
    (place / "text").write_text("text")
    return place


def test_a_model_tells_where_to_start_and_the_names(models: Path, tmp_path: Path, stream_here: Stream) -> None:
    """Also of a stream that goes on from its checkpoint; that knows the names, and can be a model to start from."""
    arguments = ("--model", models / "envi.gpssm", "--checkpoint", tmp_path / "c")
    for count, run in ((1, stream), (2, stream_here)):
        result = run(*arguments, text="valve,level,y\n0.5,1,2\n")
        assert (result.returncode, json.loads(result.stdout)["sample"]) == (0, count)
    for option in ("--model", "--checkpoint"):
        result = stream_here(option, tmp_path / "c", "--method", "OEnVI", text='{"level": 1, "valve": 2}')
        assert (result.returncode, json.loads(result.stdout)["sample"]) == (0, 3), result.stderr
    result = stream_here("--model", tmp_path / "c", "--outputs", "y", text='{"y": 1, "valve": 2}')
    assert (result.returncode, json.loads(result.stdout)["sample"]) == (0, 4)


@pytest.mark.parametrize("name", list(registry.ONLINE))
def test_any_online_method_can_be_streamed(name: str, tmp_path: Path, stream_here: Stream) -> None:
    """Nothing has to be compiled: it is the warm-up that is saved and resumed."""
    arguments = ("--method", name.lower(), "--state-dim", 2, "--num-inducing", 5, "--checkpoint", tmp_path / "c")
    for count in (1, 2):
        result = stream_here(*arguments, text='{"y": 1.5}')
        assert (result.returncode, json.loads(result.stdout)["sample"]) == (0, count)
    method = gpssm.load(tmp_path / "c").method
    assert (method.name, method.state_dim, method.num_inducing) == (name, 2, 5)


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        ("", "a,b\n1,2\n", "outputs: no column 'y' in 'standard input'; it has 'a', 'b'."),
        ("", "1,2\n", "outputs: no column 'y' in 'standard input'; it has '0', '1'."),
        ("--inputs y", "y\n1\n", "inputs: column 'y' is already in outputs"),
        ("--outputs a,b", "a,b\n1,2\n", "outputs: 2 channel(s); expected as many as states, 1"),
        (
            "--checkpoint stream.gpssm --outputs a,b",
            "a,b\n",
            "outputs, inputs: 2 and 0 column(s); the stream has learned",
        ),
        ("--checkpoint envi.gpssm", "[1]", "checkpoint: 'envi.gpssm' holds a Posterior, not a stream"),
        ("--model last.gpssm", "[1]", "model: 'last.gpssm' holds a LinearPosterior, which cannot go on learning"),
        ("--model envi.gpssm --method SVMC", "[1]", "method: SVMC cannot go on from a fitted model; expected OEnVI"),
        ("--checkpoint stream.gpssm --method vjf", "[1]", "method: 'stream.gpssm' holds a stream of local level;"),
        ("--model stream.gpssm --method vjf", "[1]", "method: 'stream.gpssm' holds a stream of local level;"),
        ("--method EnVI", "[1]", "method: expected one of OEnVI, RGPSSM, SVMC, VJF, LocalLevel, got 'EnVI'."),
    ],
)
def test_a_mistake_in_the_data_is_one_line_and_exit_code_2(
    models: Path, stream_here: Stream, monkeypatch: pytest.MonkeyPatch, arguments: str, text: str, message: str
) -> None:
    monkeypatch.chdir(models)
    if "stream.gpssm" in arguments and not (models / "stream.gpssm").exists():
        stream_here("--state-dim", 1, "--checkpoint", models / "stream.gpssm", text="[1]")
    result = stream_here("--state-dim", 1, *arguments.split(), text=text)
    lines = [line for line in result.stderr.splitlines() if "going on from" not in line]
    assert (result.returncode, result.stdout, len(lines)) == (2, "", 1), result.stderr
    assert message in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--redis redis://localhost --in a --out b", "redis: expected --checkpoint, the file that knows"),
        ("--redis redis://localhost --in a --checkpoint c", "redis: expected the names of two streams"),
        ("--redis redis://localhost --in a --out a --checkpoint c", "redis: expected the names of two streams"),
        ("--in a", "in: 'a' given without --redis"),
        ("--checkpoint nowhere/c", "checkpoint: the directory 'nowhere' does not exist; create it first"),
        ("--checkpoint .", "checkpoint: '.' is not a file"),
        ("--checkpoint text", "'text' is not a gpssm model"),
        ("--model text", "'text' is not a gpssm model"),
        ("--model nowhere", "there is no file 'nowhere'"),
        ("--every 0", "'--every'"),
        ("--forecast 0", "'--forecast'"),
    ],
)
def test_a_mistake_in_the_options_is_one_line_and_exit_code_2(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    monkeypatch.chdir(models)
    monkeypatch.setattr(sys, "argv", ["gpssm", "stream", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert message in printed.err and printed.err.count("\n") == 1


def test_a_second_process_on_a_checkpoint_is_told_who_is_there(
    begin: Begin, tmp_path: Path, stream_here: Stream
) -> None:
    """It leaves everything as it is; and a process that is killed is in nobody's way."""
    file = tmp_path / "c"
    process = begin("--state-dim", 1, "--checkpoint", file, "--every", 1)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"[1]\n")
    process.stdin.flush()
    process.stdout.readline()
    while not file.exists():
        time.sleep(0.01)
    (tmp_path / ".c.half.tmp").touch()  # as if it were being saved
    for _ in range(2):
        result = stream_here("--checkpoint", file, text="[1]")
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert f"checkpoint: {str(file)!r} is in use by process {process.pid} on " in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [".c.half.tmp", ".c.lock", "c"]
    process.kill()
    process.wait()
    result = stream_here("--checkpoint", file, text="[1]")
    assert result.returncode == 0 and "after 1 sample(s)" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_one_lock_at_a_time(tmp_path: Path) -> None:
    """Of many that are after it, also while its file is removed and made again; under any name of the checkpoint."""
    (tmp_path / "link").symlink_to(tmp_path / "c")
    inside, most, got = 0, 0, 0
    counting = threading.Lock()

    def try_often(name: str) -> None:
        nonlocal inside, most, got
        for _ in range(300):
            with contextlib.suppress(InvalidInput), locked(tmp_path / name):
                with counting:
                    inside, got = inside + 1, got + 1
                    most = max(most, inside)
                time.sleep(0)
                with counting:
                    inside -= 1

    threads = [threading.Thread(target=try_often, args=(name,)) for name in ("c", "c", "link", "link")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and got > 4 and [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_lock_file_that_goes_away_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last holder removes it: a lock on a file without a name would keep nobody out."""
    real, gone = fcntl.flock, list[int]()

    def late(handle: int, operation: int) -> None:
        if not gone:
            gone.append(handle)
            (tmp_path / ".c.lock").unlink()
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(tmp_path / "c"):
        assert gone and (tmp_path / ".c.lock").exists()
        with pytest.raises(InvalidInput, match="in use by process"), locked(tmp_path / "c"):
            pass
    assert not list(tmp_path.iterdir())


def test_who_has_ended_is_known() -> None:
    """Also if somebody else has its number now, and before its parent has asked how it ended."""
    me = Holder.this()
    if not me.machine:
        pytest.skip("no /proc that tells processes apart")
    assert Holder.read(me.text) == me and me.near and not me.ended and Holder.read("nonsense") is None
    assert me._replace(started="0").ended and not me._replace(started="0", machine="elsewhere").ended
    with subprocess.Popen(["sleep", "60"]) as process:
        other = me._replace(pid=process.pid, started=Path(f"/proc/{process.pid}/stat").read_text().split()[21])
        assert not other.ended
        process.kill()
        while not other.ended:  # a zombie
            time.sleep(0.001)
    assert other.ended


def test_killed_again_and_again_nothing_but_the_last_samples_is_learned_again(tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "kill.py"
    spec = importlib.util.spec_from_file_location("kill", path)
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    command = [*COMMAND, "--state-dim", "1"]
    report = bench.from_stdin(tmp_path, command, samples=3000, kills=3, every=50, seed=1)
    assert report.as_promised and report.estimates == 3000, report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "killed", "log"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path, stream_here: Stream) -> None:
    for name in (".c.abc.tmp", ".other.abc.tmp", ".c.txt"):
        (tmp_path / name).touch()
    assert stream_here("--state-dim", 1, "--checkpoint", tmp_path / "c", text="[1]").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [".c.txt", ".other.abc.tmp", "c"]


def test_nothing_learned_nothing_saved(tmp_path: Path, stream_here: Stream) -> None:
    for text in ("", "\n\n", "y\n", "{\n"):
        result = stream_here("--state-dim", 1, "--checkpoint", tmp_path / "c", text=text)
        assert (result.returncode, result.stdout) == (0, "") and "0 sample(s) learned" in result.stderr
    assert not list(tmp_path.iterdir())


def test_an_absurd_number_is_reported_and_does_not_reach_the_checkpoint(stream_here: Stream, tmp_path: Path) -> None:
    """Estimates, forecasts and the file stay finite, and what was not believed is counted."""
    values = [f"{0.1 * (t % 7):.1f}" for t in range(60)]
    values[30] = "1e300"
    path = tmp_path / "live.gpssm"
    choices = ("--outputs", "y", "--state-dim", 1, "--forecast", 2, "--checkpoint", path)
    found = stream_here(*choices, text="\n".join(["y", *values, ""]))
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(lines) == 60 and "taken as missing" in lines[30]["refused"]
    assert [line["line"] for line in lines if "refused" in line] == [32]
    assert "line 32: y[0]: 1e+300" in found.stderr
    assert "60 sample(s) learned (1 of them not wholly believed), 0 skipped" in found.stderr
    assert all(None not in line["state"]["mean"] + line["forecast"]["mean"][0] for line in lines[5:])
    assert gpssm.load(path).refused == 1
