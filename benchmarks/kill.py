"""`kill -9` at random moments, again and again, of a learner that is fed by a Redis Stream or by a pipe.

    python benchmarks/kill.py [--source redis|stdin] [--kills 100] [--samples 20000] [--every 50] [--seed 0]

The same samples are learned from twice: by a process that is left alone, and by one that is killed and started again.
Then the two files must be equal byte for byte, and every estimate must be that of the process that was left alone.

With Redis there is one estimate of every sample, whoever was killed when. Needs redis-server, and starts its own on a
free port. A pipe does not give anything again: there the samples since the last checkpoint are lost, and those in the
pipe, unless whoever writes to it starts again after as many as the checkpoint has. This is what is done here, and how
many had to be sent again is counted.
"""

import argparse
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import ConnectionError

from gpssm.datasets import kink

COMMAND = (sys.executable, "-m", "gpssm", "stream", "--state-dim", "1", "--num-inducing", "15")
EARLY, LATEST_EARLY = 0.1, 4.0
"""One kill in ten comes at most so many seconds after a start, whatever goes on then; the others amid the learning."""


class RedisReport(NamedTuple):
    samples: int
    kills: int
    learned_again: int
    """Samples that were not yet in the checkpoint at a kill, over all kills."""
    estimates: int
    same_estimates: bool
    same_file: bool
    unacknowledged: int
    seconds: float

    @property
    def as_promised(self) -> bool:
        """Every sample was learned from exactly once."""
        return self.same_file and self.same_estimates and self.estimates == self.samples and not self.unacknowledged


class PipeReport(NamedTuple):
    samples: int
    kills: int
    every: int
    learned_again: int
    """Samples with an estimate that were not in the checkpoint at a kill, over all kills."""
    most_learned_again: int
    """The same at one kill."""
    most_in_pipe: int
    """Samples that had been sent and had no estimate, at one kill."""
    estimates: int
    """Samples with at least one."""
    same_estimates: bool
    same_file: bool
    seconds: float

    @property
    def as_promised(self) -> bool:
        """Not more is lost than was learned since the last checkpoint, the one that was being written included."""
        bounded = self.most_learned_again <= self.every
        return self.same_file and self.same_estimates and self.estimates == self.samples and bounded


@contextmanager
def server(directory: Path, port: int | None = None) -> Iterator[Any]:
    """A Redis server of our own, and a client of it. It finds again what it held when it ended."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is not installed; on Debian: apt-get install redis-server")
    port = free_port() if port is None else port
    options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--appendonly", "yes", "--save", "")
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    client = Redis(port=port)
    try:
        wait_until(lambda: _answers(client), 10)
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def url(client: Any) -> str:
    return f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}"


def wait_until(condition: Callable[[], Any], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.001)


def consumed(client: Any, source: str, group: str) -> bool:
    """Whether every message was read and acknowledged."""
    return any(
        found["name"] == group.encode() and found["pending"] == found["lag"] == 0
        for found in client.xinfo_groups(source)
    )


def from_redis(
    client: Any, directory: Path, command: Sequence[str], samples: int, kills: int, every: int, seed: int
) -> RedisReport:
    """Learn with and without kills, and compare."""
    rng = random.Random(seed)
    started = time.perf_counter()
    *messages, last = enumerate(_values(samples, seed), start=1)
    _send(client, "alone", [*messages, last])
    _send(client, "killed", messages)
    _finish(client, "alone", _start(client, directory, command, "alone", every))

    learned_again = 0
    for place in sorted(rng.sample(range(samples - 1), kills)):
        process = _start(client, directory, command, "killed", every)
        _wait_for_kill(rng, lambda place=place: client.xlen("killed-estimates") > place)
        process.kill()
        assert process.wait() == -signal.SIGKILL, (directory / "log").read_text()
        learned_again += client.xlen("killed-estimates") - _count(directory / "killed")
    # Samples go on coming in, and the process that gets the last one is not killed.
    _send(client, "killed", [last])
    _finish(client, "killed", _start(client, directory, command, "killed", every))

    expected, found = (client.xrange(f"{name}-estimates") for name in ("alone", "killed"))
    pending = client.xpending("killed", "g")["pending"]
    seconds = time.perf_counter() - started
    same_file = _same_file(directory)
    return RedisReport(samples, kills, learned_again, len(found), found == expected, same_file, pending, seconds)


def from_stdin(directory: Path, command: Sequence[str], samples: int, kills: int, every: int, seed: int) -> PipeReport:
    """The same through a pipe, into which samples are sent again from where the checkpoint stands."""
    rng = random.Random(seed)
    started = time.perf_counter()
    lines = [f'{{"y": {value!r}}}\n'.encode() for value in _values(samples, seed)]
    alone = _Piped(directory, command, "alone", every, lines)
    alone.end()
    expected = alone.estimates()

    again, in_pipe, found, same = [0], [0], dict[int, Any](), True
    for place in sorted(rng.sample(range(samples), kills)):
        piped = _Piped(directory, command, "killed", every, lines)
        # What is early may come before the place where it left off.
        _wait_for_kill(rng, lambda piped=piped, place=place: piped.seen > place or piped.ended)
        piped.kill()
        again.append(piped.seen - _count(directory / "killed"))
        in_pipe.append(piped.sent - piped.seen)
        same = same and all(expected[sample] == estimate for sample, estimate in piped.estimates().items())
        found |= piped.estimates()
    last = _Piped(directory, command, "killed", every, lines)
    last.end()
    found |= last.estimates()
    seconds = time.perf_counter() - started
    return PipeReport(
        samples, kills, every, sum(again), max(again), max(in_pipe), len(found), same and found == expected,
        _same_file(directory), seconds,
    )  # fmt: skip


class _Piped:
    """A process that is sent all samples that are not in its checkpoint."""

    def __init__(self, directory: Path, command: Sequence[str], name: str, every: int, lines: Sequence[bytes]) -> None:
        file = directory / name
        self.sent = self._first = _count(file)
        self._printed: list[bytes] = []
        self._log = directory / "log"
        with self._log.open("ab") as log:
            self.process: Any = subprocess.Popen(
                [*command, "--checkpoint", str(file), "--every", str(every)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0,
            )  # fmt: skip
        self._threads = [threading.Thread(target=self._send, args=(lines,)), threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    @property
    def seen(self) -> int:
        """Samples that there is an estimate of, or that were in the checkpoint."""
        return self._first + len(self._printed)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self._join()
        assert self.process.returncode in (-signal.SIGKILL, 0), self._log.read_text()

    def end(self) -> None:
        """Let it learn from all there is."""
        self._join()
        assert self.process.returncode == 0, self._log.read_text()

    def estimates(self) -> dict[int, Any]:
        """By the number of the sample; lines are counted anew at every start."""
        return {(estimate := json.loads(line) | {"line": 0})["sample"]: estimate for line in self._printed}

    def _join(self) -> None:
        self.process.wait()
        for thread in self._threads:
            thread.join()

    def _send(self, lines: Sequence[bytes]) -> None:
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            for line in lines[self._first :]:
                pipe.write(line)
                self.sent += 1

    def _read(self) -> None:
        rest = b""
        with self.process.stdout as pipe:
            while chunk := pipe.read(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                self._printed += lines


def _values(samples: int, seed: int) -> list[float]:
    return kink(samples, 0.05, 0.008, seed=seed).outputs[:, 0].tolist()


def _wait_for_kill(rng: random.Random, reached: Callable[[], Any]) -> None:
    if rng.random() < EARLY:
        time.sleep(rng.uniform(0, LATEST_EARLY))
    else:
        wait_until(reached, 600)
        time.sleep(rng.uniform(0, 0.02))


def _same_file(directory: Path) -> bool:
    return (directory / "alone").read_bytes() == (directory / "killed").read_bytes()


def _send(client: Any, name: str, messages: Sequence[tuple[int, float]]) -> None:
    for number, y in messages:
        client.xadd(name, {"y": repr(y)}, id=f"{number}-0")


def _start(client: Any, directory: Path, command: Sequence[str], name: str, every: int) -> subprocess.Popen[bytes]:
    options = ("--redis", url(client), "--in", name, "--out", f"{name}-estimates", "--group", "g")
    file = ("--checkpoint", str(directory / name), "--every", str(every))
    with (directory / "log").open("ab") as log:
        return subprocess.Popen([*command, *options, *file], stderr=log)


def _finish(client: Any, name: str, process: subprocess.Popen[bytes]) -> None:
    """Let it learn from all there is, and end it."""
    wait_until(lambda: process.poll() is not None or consumed(client, name, "g"), 3600)
    process.terminate()
    assert process.wait() == 0


def _count(checkpoint: Path) -> int:
    """Samples in a checkpoint, from the line of JSON that it begins with."""
    if not checkpoint.exists():
        return 0
    with checkpoint.open("rb") as file:
        file.readline()  # what vouches for the rest
        return int(json.loads(file.readline())["tree"]["fields"]["count"])


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except ConnectionError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--source", choices=("redis", "stdin"), default="redis")
    for name, default in (("kills", 100), ("samples", 20_000), ("every", 50), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    numbers = (arguments.samples, arguments.kills, arguments.every, arguments.seed)
    report: RedisReport | PipeReport
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if arguments.source == "stdin":
            report = from_stdin(directory, COMMAND, *numbers)
        else:
            with server(directory) as client:
                report = from_redis(client, directory, COMMAND, *numbers)
    for key, value in report._asdict().items():
        shown = f"{value:.0f}" if key == "seconds" else str(value)
        print(f"{key.replace('_', ' '):<20}{shown:>10}")
    print("as promised" if report.as_promised else "SAMPLES LOST OR LEARNED FROM TWICE")
    sys.exit(not report.as_promised)


if __name__ == "__main__":
    main()
