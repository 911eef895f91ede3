"""`kill -9` at random moments, again and again, of a learner that is fed by a Redis Stream.

    python benchmarks/redis_kill.py [--kills 100] [--samples 20000] [--every 50] [--seed 0]

The same samples are learned from twice: by a process that is left alone, and by one that is killed and started again.
Then the two files must be equal byte for byte, and the two streams of estimates must hold the same entries, one for
every sample. Needs redis-server, and starts its own on a free port.
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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import ConnectionError

from gpssm.datasets import kink

COMMAND = (sys.executable, "-m", "gpssm.cli.main", "stream", "--state-dim", "1", "--num-inducing", "15")
EARLY, LATEST_EARLY = 0.1, 4.0
"""One kill in ten comes at most so many seconds after a start, whatever goes on then; the others amid the learning."""


class Report(NamedTuple):
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
    def exactly_once(self) -> bool:
        return self.same_file and self.same_estimates and self.estimates == self.samples and not self.unacknowledged


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


def experiment(
    client: Any, directory: Path, command: Sequence[str], samples: int, kills: int, every: int, seed: int
) -> Report:
    """Learn with and without kills, and compare."""
    rng = random.Random(seed)
    started = time.perf_counter()
    *messages, last = enumerate(kink(samples, 0.05, 0.008, seed=seed).outputs[:, 0].tolist(), start=1)
    _send(client, "alone", [*messages, last])
    _send(client, "killed", messages)
    _finish(client, "alone", _start(client, directory, command, "alone", every))

    learned_again = 0
    for place in sorted(rng.sample(range(samples - 1), kills)):
        process = _start(client, directory, command, "killed", every)
        if rng.random() < EARLY:
            time.sleep(rng.uniform(0, LATEST_EARLY))
        else:
            wait_until(lambda place=place: client.xlen("killed-estimates") > place, 600)
            time.sleep(rng.uniform(0, 0.02))
        process.kill()
        assert process.wait() == -signal.SIGKILL, (directory / "log").read_text()
        learned_again += client.xlen("killed-estimates") - _count(directory / "killed")
    # Samples go on coming in, and the process that gets the last one is not killed.
    _send(client, "killed", [last])
    _finish(client, "killed", _start(client, directory, command, "killed", every))

    expected, found = (client.xrange(f"{name}-estimates") for name in ("alone", "killed"))
    same_file = (directory / "alone").read_bytes() == (directory / "killed").read_bytes()
    pending = client.xpending("killed", "g")["pending"]
    seconds = time.perf_counter() - started
    return Report(samples, kills, learned_again, len(found), found == expected, same_file, pending, seconds)


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
    """Samples in a checkpoint, from the line of JSON after its checksum."""
    if not checkpoint.exists():
        return 0
    with checkpoint.open("rb") as file:
        file.readline()
        return int(json.loads(file.readline())["tree"]["fields"]["count"])


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except ConnectionError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("kills", 100), ("samples", 20_000), ("every", 50), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, server(Path(directory)) as client:
        report = experiment(
            client, Path(directory), COMMAND, arguments.samples, arguments.kills, arguments.every, arguments.seed
        )
    for name, value in report._asdict().items():
        shown = f"{value:.0f}" if name == "seconds" else str(value)
        print(f"{name.replace('_', ' '):<16}{shown:>10}")
    print("every sample learned from exactly once" if report.exactly_once else "SAMPLES LOST OR LEARNED FROM TWICE")
    sys.exit(not report.exactly_once)


if __name__ == "__main__":
    main()
