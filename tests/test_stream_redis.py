"""`gpssm stream --redis` against a server that is started here, with the method of local_level.py."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import numpy as np
import pytest

from gpssm.cli.main import main
from gpssm.live.locks import Holder

pytest.importorskip("redis", reason="the Python package redis is not installed: pip install redis")
needs_server = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed: apt-get install redis-server"
)

COMMAND = [sys.executable, str(Path(__file__).with_name("local_level_cli.py")), "stream", "--state-dim", "1"]


StreamHere = Callable[..., subprocess.CompletedProcess[str]]


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

    def wait(self, published: int, seconds: float = 300) -> None:
        """Until there are so many estimates and nothing is left to acknowledge."""
        self.wait_for(lambda: self.client.xlen("estimates") >= published, seconds)
        self.wait_for(lambda: bench.consumed(self.client, "sensors", "g"), seconds)

    def wait_for(self, condition: Any, seconds: float = 300) -> None:
        bench.wait_until(lambda: condition() or self.process.poll() is not None, seconds)
        assert self.process.poll() is None, self.process.communicate()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, list[str]]:
        """Exit code and what was said."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=300)
        assert out == b""
        return self.process.returncode, err.decode().splitlines()


def route(client: Any) -> tuple[object, ...]:
    return ("--state-dim", 1, "--redis", bench.url(client), "--in", "sensors", "--out", "estimates", "--group", "g")


def send(client: Any, values: Any, first: int = 1) -> None:
    for i, value in enumerate(values):
        client.xadd("sensors", {"y": value, "note": "x", "time": f"12:{first + i:02}"}, id=f"{first + i}-0")


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
    text = "".join(f'{{"y": {value!r}, "time": "12:{i + 1:02}"}}\n' for i, value in enumerate(y)).encode()
    lines = subprocess.run([*COMMAND, "--forecast", "2"], input=text, capture_output=True, check=True).stdout
    assert found["7-0"]["time"] == "12:07"
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
@pytest.mark.parametrize("ids", [range(1, 4), range(1, 20), [4, 6, 20]])
def test_a_stream_that_was_filled_again_is_refused(
    redis: Any, tmp_path: Path, stream_here: StreamHere, ids: Sequence[int]
) -> None:
    """Its messages look as if they were in the checkpoint: with fewer of them, more, or without the last id in it.

    With --model what was learned is kept, and all of them are learned from.
    """
    file = tmp_path / "c"
    send(redis, walk(5))
    learner = Learner(redis, file)
    learner.wait(5)
    assert learner.end()[0] == 0
    before = file.read_bytes()
    redis.delete("sensors")
    for i in ids:
        redis.xadd("sensors", {"y": 7}, id=f"{i}-0")
    result = stream_here(*route(redis), "--checkpoint", file)
    assert result.returncode == 2 and result.stderr.count("\n") == 3 and "0 sample(s) learned" in result.stderr
    assert "checkpoint: it is at message 5-0, and 'sensors' " in result.stderr and "filled again" in result.stderr
    assert file.read_bytes() == before and redis.xinfo_groups("sensors") == [] and not redis.keys("gpssm:*")
    redis.delete("estimates")
    learner = Learner(redis, tmp_path / "new", "--model", file, "--method", "LocalLevel")
    learner.wait(len(ids))
    code, said = learner.end()
    assert code == 0 and f"{len(ids)} sample(s) learned" in said[-1]
    assert [line["sample"] for line in estimates(redis).values()] == [6 + i for i in range(len(ids))]


@needs_server
@pytest.mark.parametrize("with_group", [False, True])
def test_a_stream_that_is_filled_again_while_it_is_read(redis: Any, tmp_path: Path, with_group: bool) -> None:
    """What was learned is saved, and nothing of the new stream is acknowledged."""
    learner = Learner(redis, tmp_path / "c")
    send(redis, walk(5), first=1001)
    learner.wait_for(lambda: redis.xlen("estimates") == 5)
    with redis.pipeline() as together:
        together.delete("sensors")
        for i in range(1, 4):
            together.xadd("sensors", {"y": i}, id=f"{i}-0")
        if with_group:
            together.xgroup_create("sensors", "g", id="0")
        together.execute()
    _, err = learner.process.communicate(timeout=300)
    said = err.decode().splitlines()
    assert learner.process.returncode == 2 and "5 sample(s) learned, 0 skipped" in said[-1]
    assert said[-2].startswith("gpssm: checkpoint: it is at message 1005-0, and 'sensors' ")
    assert bench._count(tmp_path / "c") == 5
    groups = redis.xinfo_groups("sensors")
    assert sum(group["pending"] for group in groups) == (3 if with_group else 0)
    assert with_group or not groups


@needs_server
def test_a_stream_that_was_lost_goes_on_with_later_ids(redis: Any, tmp_path: Path) -> None:
    """A server that kept nothing: the ids of a clock come after those in the checkpoint."""
    send(redis, walk(5))
    learner = Learner(redis, tmp_path / "c")
    learner.wait(5)
    learner.end()
    redis.flushall()
    learner = Learner(redis, tmp_path / "c")
    learner.wait_for(lambda: redis.exists("sensors"))
    send(redis, walk(3), first=100)
    learner.wait(3)
    code, said = learner.end()
    assert code == 0 and len(said) == 3 and "3 sample(s) learned" in said[2]
    assert said[1] == "gpssm: redis: 'sensors' is empty; waiting for messages after 5-0, where the checkpoint is."


@needs_server
def test_messages_that_are_trimmed_unread_are_counted(redis: Any, tmp_path: Path) -> None:
    """While nobody reads, and while the reader is busy elsewhere; each is said once."""
    send(redis, walk(10))
    learner = Learner(redis, tmp_path / "c", "--every", 1)
    learner.wait(10)
    learner.end()
    send(redis, walk(30), first=11)
    redis.xtrim("sensors", maxlen=5, approximate=False)
    learner = Learner(redis, tmp_path / "c", "--every", 1)
    learner.wait(15)
    with redis.pipeline() as together:  # all at one moment
        for i in range(41, 50):
            together.xadd("sensors", {"y": i}, id=f"{i}-0", maxlen=4, approximate=False)
        together.xdel("sensors", "48-0")
        together.execute()
    learner.wait(18)
    code, said = learner.end()
    missed = [line for line in said if "deleted or trimmed" in line]
    assert code == 0 and [int(line.split()[2]) for line in missed] == [25, 6] and len(said) == 4
    assert "8 sample(s) learned, 0 skipped" in said[-1]
    assert [line["id"] for line in list(estimates(redis).values())[-8:]] == [
        f"{i}-0" for i in (36, 37, 38, 39, 40, 46, 47, 49)
    ]
    learner = Learner(redis, tmp_path / "c")
    learner.wait_for(lambda: redis.exists("gpssm:lock:{sensors}:g"))
    time.sleep(0.5)
    said = learner.end()[1]
    assert len(said) == 2 and "0 sample(s) learned" in said[1]


@needs_server
@pytest.mark.parametrize("saved", [False, True])
def test_messages_that_are_deleted_while_they_are_pending_are_counted(redis: Any, tmp_path: Path, saved: bool) -> None:
    """Given out to a process that was killed, with and without a checkpoint of it."""
    if saved:
        send(redis, walk(3))
        learner = Learner(redis, tmp_path / "c")
        learner.wait(3)
        learner.end()
    first = redis.xlen("estimates") + 1
    send(redis, walk(10), first=first)
    learner = Learner(redis, tmp_path / "c", "--every", 1000)
    learner.wait_for(lambda: redis.xlen("estimates") == first + 9)
    learner.process.kill()
    learner.process.wait()
    assert redis.xpending("sensors", "g")["pending"] == 10
    redis.xdel("sensors", f"{first + 2}-0", f"{first + 7}-0")
    learner = Learner(redis, tmp_path / "c")
    learner.wait_for(lambda: bench.consumed(redis, "sensors", "g"))
    code, said = learner.end()
    assert code == 0 and "8 sample(s) learned, 0 skipped" in said[-1]
    assert [line for line in said if "deleted or trimmed" in line] == [
        "gpssm: redis: 2 message(s) were deleted or trimmed before they were read; learning goes on without."
    ]


@needs_server
def test_deleted_messages_of_a_group_that_was_made_in_the_middle(redis: Any, tmp_path: Path) -> None:
    """The server cannot say how many it has read: those that were given out and deleted are known all the same."""
    send(redis, walk(20))
    redis.xgroup_create("sensors", "g", id="3-0")
    redis.xreadgroup("g", "other", {"sensors": ">"}, count=5)
    assert redis.xinfo_groups("sensors")[0]["entries-read"] is None
    redis.xdel("sensors", "6-0")
    learner = Learner(redis, tmp_path / "c")
    learner.wait(16)
    code, said = learner.end()
    assert code == 0 and len(said) == 2 and "1 message(s) were deleted or trimmed" in said[0]
    assert "16 sample(s) learned, 0 skipped" in said[1]


@needs_server
def test_an_older_checkpoint_reads_what_was_acknowledged_since(redis: Any, tmp_path: Path) -> None:
    """As one from a backup: what it ends with is what it would have been."""
    for count in (4, 10):
        send(redis, walk(10)[redis.xlen("estimates") : count], first=redis.xlen("estimates") + 1)
        learner = Learner(redis, tmp_path / "c")
        learner.wait(count)
        learner.end()
        shutil.copy(tmp_path / "c", tmp_path / f"after{count}")
    learner = Learner(redis, tmp_path / "after4")
    learner.wait_for(lambda: bench._count(tmp_path / "after4") == 10)
    learner.wait(10)
    code, said = learner.end()
    assert code == 0 and "6 sample(s) learned" in said[-1]
    assert (tmp_path / "after4").read_bytes() == (tmp_path / "after10").read_bytes()


@needs_server
def test_a_second_learner_is_told_who_is_there(redis: Any, tmp_path: Path, stream_here: StreamHere) -> None:
    """On the same checkpoint, and on another one in the same group; the first gets every message."""
    learner = Learner(redis, tmp_path / "c")
    send(redis, walk(200))
    learner.wait_for(lambda: redis.xlen("estimates"))
    for file, what in ((tmp_path / "c", f"checkpoint: {str(tmp_path / 'c')!r}"), (tmp_path / "d", "redis: group 'g'")):
        result = stream_here(*route(redis), "--checkpoint", file)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
        assert result.stderr.startswith(f"gpssm: {what}")
        assert f" in use by process {learner.process.pid} on " in result.stderr
    assert not (tmp_path / "d").exists()
    send(redis, walk(200), first=201)
    learner.wait(400)
    code, said = learner.end()
    assert code == 0 and len(said) == 1 and "400 sample(s) learned, 0 skipped" in said[0]
    assert not redis.keys("gpssm:*") and sorted(path.name for path in tmp_path.iterdir()) == ["c", "server"]


def foreign_lock(client: Any, milliseconds: int) -> None:
    """Of a process on another machine."""
    holder = Holder(77, "elsewhere", "another boot", "1", "x")
    client.set("gpssm:lock:{sensors}:g", holder.text, px=milliseconds)


@needs_server
def test_a_lock_that_nobody_renews_runs_out(redis: Any, tmp_path: Path) -> None:
    send(redis, walk(5))
    foreign_lock(redis, 60_000)
    learner = Learner(redis, tmp_path / "c")
    assert learner.process.stderr is not None
    waiting = learner.process.stderr.readline().decode()
    assert "held by process 77 on elsewhere; waiting up to 10 s" in waiting
    redis.pexpire("gpssm:lock:{sensors}:g", 1)
    learner.wait(5)
    code, said = learner.end()
    assert code == 0 and len(said) == 1 and "5 sample(s) learned" in said[0]


@needs_server
def test_a_lock_that_is_renewed_elsewhere_is_left_alone(redis: Any, tmp_path: Path) -> None:
    send(redis, walk(5))
    foreign_lock(redis, 5000)
    learner = Learner(redis, tmp_path / "c")
    while learner.process.poll() is None:
        time.sleep(0.3)
        foreign_lock(redis, 5000)
    said = learner.end()[1]
    assert learner.process.returncode == 2 and len(said) == 2
    assert said[1] == (
        "gpssm: redis: group 'g' of 'sensors' is in use by process 77 on elsewhere; wait for its end, or use another "
        "--group."
    )
    assert redis.xinfo_groups("sensors") == [] and not (tmp_path / "c").exists()


@needs_server
def test_a_signal_while_waiting_for_a_lock(redis: Any, tmp_path: Path) -> None:
    foreign_lock(redis, 60_000)
    learner = Learner(redis, tmp_path / "c")
    assert learner.process.stderr is not None and b"waiting up to 10 s" in learner.process.stderr.readline()
    code, said = learner.end()
    assert code == 0 and len(said) == 1 and "0 sample(s) learned" in said[0] and not redis.exists("sensors")


@needs_server
@pytest.mark.parametrize("taken", [False, True])
def test_a_paused_learner_whose_lock_runs_out(redis: Any, tmp_path: Path, taken: bool) -> None:
    """If another has taken over it ends, without a word to the server; if not it goes on."""
    learner = Learner(redis, tmp_path / "c", "--every", 1000)
    send(redis, walk(5))
    learner.wait(5)
    learner.process.send_signal(signal.SIGSTOP)
    redis.delete("gpssm:lock:{sensors}:g")
    if not taken:
        send(redis, walk(5), first=6)
        learner.process.send_signal(signal.SIGCONT)
        learner.wait(10)
        code, said = learner.end()
        assert code == 0 and "the lock on group 'g' of 'sensors' has run out; trying again" in said[0]
        assert said[1] == "gpssm: redis: it works again." and "10 sample(s) learned" in said[2]
        return
    other = Learner(redis, tmp_path / "d", "--every", 1000)
    send(redis, walk(5), first=6)
    other.wait_for(lambda: redis.xlen("estimates") == 10)
    pending = redis.xpending("sensors", "g")["pending"]
    before = (tmp_path / "c").read_bytes()
    learner.process.send_signal(signal.SIGCONT)
    send(redis, walk(5), first=11)
    _, err = learner.process.communicate(timeout=300)
    assert learner.process.returncode == 1 and (tmp_path / "c").read_bytes() == before and pending in (0, 5)
    assert f"was taken over by process {other.process.pid} on " in err.decode().splitlines()[0]
    other.wait(15)
    code, said = other.end()
    assert code == 0 and "10 sample(s) learned, 0 skipped" in said[-1]
    assert [line["sample"] for line in list(estimates(redis).values())[5:]] == list(range(1, 11))


SECRETS = ("hunter/2secret", "hunter#2secret", "hunter?2secret", "12/secret", "hunter[2secret", "hunter@2/secret")


@pytest.mark.parametrize("secret", SECRETS)
def test_a_password_is_never_said(tmp_path: Path, stream_here: StreamHere, secret: str) -> None:
    """Neither as it is, which makes no address, nor spelled as it should be."""
    port = bench.free_port()
    quoted = quote(secret, safe="")
    options = ("--in", "a", "--out", "b", "--checkpoint", tmp_path / "c")
    for address in (
        f"redis://user:{secret}@127.0.0.1:{port}", f"redis://:{secret}@127.0.0.1:{port}/0", f"//:{secret}@h",
        f"redis://127.0.0.1:{port}?password={secret}@", f"redis://127.0.0.1:{port}?password={quoted}",
        f"redis://:{quoted}@127.0.0.1:{port}", f"redis://:{quoted}@[127.0.0.1:{port}", f"redis://:{quoted}@127.0.0.1:x",
        f"redis://:{quoted}@127.0.0.1:{port}?db=x", f"redis://:{quoted}@127.0.0.1:{port}?nonsense=1",
        f"redis://:{quoted}@127.0.0.1:{port}?ssl_ca_certs=nowhere",
        f"rediss://:{quoted}@127.0.0.1:{port}?ssl_ca_certs=nowhere",
        f"rediss://:{quoted}@127.0.0.1:{port}?ssl_cert_reqs=x", f"unix://:{quoted}@/nowhere",
    ):  # fmt: skip
        result = stream_here("--state-dim", 1, "--redis", address, *options)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
        assert "secret" not in result.stderr and "hunter" not in result.stderr and ":12" not in result.stderr
        assert result.stderr.startswith("gpssm: redis: ") and "Traceback" not in result.stderr


@needs_server
def test_a_password_in_the_environment(
    redis: Any, tmp_path: Path, stream_here: StreamHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is used for the streams, and not asked for by those who read standard input; a wrong one is not said."""
    send(redis, walk(3))
    redis.config_set("requirepass", "pa/ss#word")
    redis.auth("pa/ss#word")
    options = ("--in", "sensors", "--out", "estimates", "--group", "g", "--checkpoint", str(tmp_path / "c"))
    for password, message in (("wrong/password", "invalid username-password pair"), ("", "Authentication required")):
        monkeypatch.setenv("GPSSM_REDIS_URL", bench.url(redis).replace("//", f"//:{quote(password, safe='')}@"))
        result = stream_here("--state-dim", 1, *options)
        assert result.returncode == 2 and message in result.stderr and "wrong" not in result.stderr
    monkeypatch.setenv("GPSSM_REDIS_URL", bench.url(redis).replace("//", f"//:{quote('pa/ss#word', safe='')}@"))
    assert stream_here("--state-dim", 1, text="[1]").returncode == 0
    process = subprocess.Popen([*COMMAND, *options], stderr=subprocess.PIPE)
    _started.append(process)
    bench.wait_until(lambda: redis.xlen("estimates") == 3, 30)
    process.terminate()
    assert b"3 sample(s) learned" in process.communicate(timeout=300)[1] and process.returncode == 0


@needs_server
@pytest.mark.parametrize(
    "option",
    ["decode_responses=True", "protocol=3", "socket_timeout=0.01", "encoding=latin-1", "max_connections=1"],
)
def test_an_option_that_would_change_what_is_read_is_refused(
    redis: Any, tmp_path: Path, stream_here: StreamHere, option: str
) -> None:
    options = ("--redis", f"{bench.url(redis)}?{option}", "--in", "a", "--out", "b", "--checkpoint", tmp_path / "c")
    result = stream_here("--state-dim", 1, *options)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert f"redis: {option.partition('=')[0]!r} cannot be set in the address; expected none but db," in result.stderr


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
