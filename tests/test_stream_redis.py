"""`gpssm stream --redis` against a server that is started here, with the method of local_level.py."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from gpssm.cli.main import main

pytest.importorskip("redis", reason="the Python package redis is not installed: pip install redis")
needs_server = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed: apt-get install redis-server"
)

COMMAND = [sys.executable, str(Path(__file__).with_name("local_level.py")), "stream", "--state-dim", "1"]


def load_benchmark() -> ModuleType:
    """The full experiment, which is here made with fewer kills; and its server."""
    path = Path(__file__).parents[1] / "benchmarks" / "kill.py"
    spec = importlib.util.spec_from_file_location("kill", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench = load_benchmark()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Any]:
    place = tmp_path / "server"
    place.mkdir()
    with bench.server(place) as client:
        yield client


_started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Also after a test that has failed."""
    yield
    while _started:
        with _started.pop() as process:
            process.kill()


class Learner:
    """The command, left running on the streams `sensors` and `estimates`."""

    def __init__(self, client: Any, file: Path, *arguments: object) -> None:
        self.client = client
        options = ("--redis", bench.url(client), "--in", "sensors", "--out", "estimates", "--group", "g")
        self.process = subprocess.Popen(
            [*COMMAND, *options, "--checkpoint", str(file), *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        _started.append(self.process)

    def wait(self, published: int, seconds: float = 30) -> None:
        """Until there are so many estimates and nothing is left to acknowledge."""
        self.wait_for(lambda: self.client.xlen("estimates") >= published, seconds)
        self.wait_for(lambda: bench.consumed(self.client, "sensors", "g"), seconds)

    def wait_for(self, condition: Any, seconds: float = 30) -> None:
        bench.wait_until(lambda: condition() or self.process.poll() is not None, seconds)
        assert self.process.poll() is None, self.process.communicate()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, list[str]]:
        """Exit code and what was said."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        assert out == b""
        return self.process.returncode, err.decode().splitlines()


def send(client: Any, values: Any, first: int = 1) -> None:
    for i, value in enumerate(values):
        client.xadd("sensors", {"y": value, "note": "x"}, id=f"{first + i}-0")


def estimates(client: Any) -> dict[str, Mapping[str, Any]]:
    return {key.decode(): json.loads(fields[b"estimate"]) for key, fields in client.xrange("estimates")}


def walk(length: int) -> list[float]:
    return np.random.default_rng(0).standard_normal(length).cumsum().tolist()


@needs_server
def test_a_message_is_a_line(redis: Any, tmp_path: Path) -> None:
    """The estimates are those of standard input, each under the id of its message."""
    y = walk(30)
    send(redis, y)
    learner = Learner(redis, tmp_path / "c", "--forecast", 2)
    learner.wait(30)
    assert redis.xpending("sensors", "g")["pending"] == 0  # after a second without messages
    code, said = learner.end()
    assert code == 0 and len(said) == 1 and said[0].startswith("gpssm: 30 sample(s) learned, 0 skipped")
    found = estimates(redis)
    assert list(found) == [line["id"] for line in found.values()] == [f"{i + 1}-0" for i in range(30)]
    text = "".join(f"[{value!r}]\n" for value in y).encode()
    lines = subprocess.run([*COMMAND, "--forecast", "2"], input=text, capture_output=True, check=True).stdout
    for line, estimate in zip(map(json.loads, lines.splitlines()), found.values(), strict=True):
        assert {k: v for k, v in line.items() if k != "line"} == {k: v for k, v in estimate.items() if k != "id"}


@needs_server
def test_killed_again_and_again_it_learns_from_every_sample_once(redis: Any, tmp_path: Path) -> None:
    report = bench.from_redis(redis, tmp_path, COMMAND, samples=2000, kills=6, every=50, seed=0)
    assert report.as_promised, report
    assert (report.samples, report.estimates, report.unacknowledged) == (2000, 2000, 0)
    assert report.learned_again > 0, "no kill came between two checkpoints"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "killed", "log", "server"]


@needs_server
def test_bad_messages_are_reported_and_acknowledged(redis: Any, tmp_path: Path) -> None:
    y: list[Any] = [1.0, 2.0, "", 1.5, 2.5]
    bad: list[Any] = ["one", "inf", "[1, 2]", b"\xff\xfe", "{"]
    send(redis, [value for pair in zip(y, bad, strict=True) for value in pair])
    redis.xadd("sensors", {b"\xff": "1"}, id="11-0")
    learner = Learner(redis, tmp_path / "c", "--every", 3)
    learner.wait(5)
    code, said = learner.end()
    places = [2, 4, 6, 8, 10, 11]
    assert code == 0 and "5 sample(s) learned, 6 skipped" in said[-1]
    assert [line.split(" skipped:")[0] for line in said[:-1]] == [f"gpssm: message {i}-0" for i in places]
    assert list(estimates(redis)) == [f"{i}-0" for i in (1, 3, 5, 7, 9)]
    # Only bad ones: they are in the checkpoint, and not said again.
    send(redis, ["bad"], first=12)
    learner = Learner(redis, tmp_path / "c")
    learner.wait_for(lambda: bench.consumed(redis, "sensors", "g"))
    assert len(learner.end()[1]) == 3
    redis.xgroup_setid("sensors", "g", "0")
    learner = Learner(redis, tmp_path / "c")
    learner.wait_for(lambda: bench.consumed(redis, "sensors", "g"))
    assert "0 sample(s) learned, 0 skipped" in learner.end()[1][-1]
    assert redis.xlen("estimates") == 5


@needs_server
def test_what_the_checkpoint_holds_is_not_learned_from_again(redis: Any, tmp_path: Path) -> None:
    """Whether it is pending, as after a kill before the acknowledgement, or new to a group that was made again.

    Ids are numbers: 9-0 comes before 10-0.
    """
    send(redis, walk(10))
    learner = Learner(redis, tmp_path / "c")
    learner.wait(10)
    assert learner.end()[0] == 0
    before = (tmp_path / "c").read_bytes()
    redis.xgroup_destroy("sensors", "g")
    redis.xgroup_create("sensors", "g", id="0")
    redis.xreadgroup("g", "gpssm", {"sensors": ">"}, count=9)
    learner = Learner(redis, tmp_path / "c")
    learner.wait(10)
    code, said = learner.end()
    assert code == 0 and "after 10 sample(s)" in said[0] and "0 sample(s) learned, 0 skipped" in said[2]
    assert said[1].startswith(
        "gpssm: redis: group 'g' stands at 9-0, before the checkpoint; messages up to 10-0 are in"
    )
    assert len(said) == 3 and (tmp_path / "c").read_bytes() == before and redis.xlen("estimates") == 10


@needs_server
def test_messages_of_other_consumers_are_learned_from_in_order(redis: Any, tmp_path: Path) -> None:
    """More than fit into one page."""
    send(redis, walk(450))
    redis.xgroup_create("sensors", "g", id="0")
    for i in range(9):
        redis.xreadgroup("g", f"other{i % 2}", {"sensors": ">"}, count=40)
    learner = Learner(redis, tmp_path / "c", "--consumer", "me")
    learner.wait(450)
    assert learner.end()[0] == 0
    assert [line["sample"] for line in estimates(redis).values()] == list(range(1, 451))
    assert [estimate["id"] for estimate in estimates(redis).values()] == [f"{i + 1}-0" for i in range(450)]


@needs_server
def test_nothing_is_acknowledged_that_is_not_on_disk(redis: Any, tmp_path: Path) -> None:
    place, away = tmp_path / "place", tmp_path / "away"
    place.mkdir()
    learner = Learner(redis, place / "c", "--every", 5)
    send(redis, walk(12))
    learner.wait(12)
    place.rename(away)
    send(redis, walk(250), first=13)
    learner.wait_for(lambda: redis.xlen("estimates") == 262)
    time.sleep(1.5)
    assert redis.xpending("sensors", "g")["pending"] == 250
    away.rename(place)
    learner.wait(262)
    code, said = learner.end()
    assert code == 0 and len(said) == 3
    assert "cannot write" in said[0] and "could be written again" in said[1] and "262 sample(s) learned" in said[2]


@needs_server
def test_a_server_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Said once; nothing is lost, and nothing is learned from twice."""
    place, port = tmp_path / "server", bench.free_port()
    place.mkdir()
    with bench.server(place, port) as client:
        send(client, walk(5))
        learner = Learner(client, tmp_path / "c")
        learner.wait_for(lambda: client.xlen("estimates") == 5)  # learned from, and not acknowledged
    time.sleep(1.0)
    assert learner.process.poll() is None
    with bench.server(place, port) as client:
        learner.client = client
        send(client, walk(5), first=6)
        learner.wait(10)
        code, said = learner.end()
        assert code == 0 and len(said) == 3
        assert said[0].startswith("gpssm: redis: ") and said[0].endswith("; trying again until it works.")
        assert said[1] == "gpssm: redis: it works again." and "10 sample(s) learned, 0 skipped" in said[2]
        assert [line["sample"] for line in estimates(client).values()] == list(range(1, 11))


@needs_server
def test_a_signal_while_the_server_is_away(tmp_path: Path) -> None:
    """What was learned is saved; the next start acknowledges it."""
    place, port = tmp_path / "server", bench.free_port()
    place.mkdir()
    with bench.server(place, port) as client:
        send(client, walk(5))
        learner = Learner(client, tmp_path / "c")
        learner.wait_for(lambda: client.xlen("estimates") == 5)
    time.sleep(0.5)
    code, said = learner.end(signal.SIGINT)
    assert code == 130 and len(said) == 3 and "the next start will acknowledge" in said[1]
    with bench.server(place, port) as client:
        learner = Learner(client, tmp_path / "c")
        learner.wait(5)
        code, said = learner.end()
        assert code == 0 and "after 5 sample(s)" in said[0] and "0 sample(s) learned" in said[-1]
        # The lock could not be given back; unless it has run out, it is taken from the process that has ended.
        assert len(said) == 2 or ("taking group 'g' of 'sensors' over" in said[1] and len(said) == 3)


@needs_server
def test_nothing_is_saved_that_is_not_published(redis: Any, tmp_path: Path) -> None:
    """The server has no memory left for an estimate; without it the sample is not in the checkpoint either."""
    learner = Learner(redis, tmp_path / "c", "--every", 1)
    send(redis, walk(2))
    learner.wait(2)
    with redis.pipeline() as together:
        for i in range(3, 6):
            together.xadd("sensors", {"y": i}, id=f"{i}-0")
        together.config_set("maxmemory", 1)
        together.execute()
    learner.wait_for(lambda: redis.xpending("sensors", "g")["pending"] == 3)
    time.sleep(0.5)
    code, said = learner.end()
    assert code == 1 and "left for the next start" in said[1] and len(said) == 3
    redis.config_set("maxmemory", 0)
    learner = Learner(redis, tmp_path / "c")
    learner.wait(5)
    code, said = learner.end()
    assert code == 0 and "after 2 sample(s)" in said[0] and "3 sample(s) learned" in said[1]
    assert [line["sample"] for line in estimates(redis).values()] == [1, 2, 3, 4, 5]


@needs_server
def test_estimates_that_are_refused_are_said_once(redis: Any, tmp_path: Path) -> None:
    """Somebody else has written to their stream; learning goes on."""
    redis.xadd("estimates", {"other": "x"}, id="3-0")
    send(redis, walk(5))
    learner = Learner(redis, tmp_path / "c")
    learner.wait(3)
    code, said = learner.end()
    assert code == 0 and said[0] == "gpssm: redis: 'estimates' has later entries, and takes no estimate of message 1-0."
    assert len(said) == 2 and "5 sample(s) learned" in said[1] and redis.xlen("estimates") == 3


@needs_server
def test_a_stream_that_is_deleted_and_filled_again(redis: Any, tmp_path: Path) -> None:
    """The group is made again, too."""
    learner = Learner(redis, tmp_path / "c")
    send(redis, walk(3))
    learner.wait(3)
    redis.delete("sensors")
    send(redis, walk(3), first=4)
    learner.wait(6)
    code, said = learner.end()
    assert code == 0 and "6 sample(s) learned, 0 skipped" in said[-1]


@needs_server
def test_a_mistake_is_one_line_and_exit_code_2(
    redis: Any, tmp_path: Path, stream_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    redis.set("text", "x")
    cases = {
        f"redis://127.0.0.1:{bench.free_port()}": "refused",
        "nonsense": "redis: the address does not begin with redis://, rediss:// or unix://",
        "redis://127.0.0.1:port": "redis: the address has a port that is not a number",
        f"{bench.url(redis)}?nonsense=1": "nonsense",
        bench.url(redis): "out: 'text' is a string in Redis; expected the name of a stream",
    }
    for url, message in cases.items():
        options = ("--redis", url, "--in", "sensors", "--out", "text", "--checkpoint", tmp_path / "c")
        result = stream_here("--state-dim", 1, *options)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
        assert message in result.stderr


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--redis", "redis://localhost", "--in", "a", "--out", "b", "--checkpoint", str(tmp_path / "c"))
    monkeypatch.setattr(sys, "argv", ["gpssm", "stream", *options])
    with patch.dict(sys.modules, {"redis": None}), pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 2 and "pip install 'gpssm[live]'" in printed.err and printed.err.count("\n") == 1
