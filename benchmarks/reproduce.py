"""How much faster a plan is with two processes, and with two workers of a Dask cluster, than with one process.

    python benchmarks/reproduce.py [--only kink:EnVI] [--seeds 6]
    python benchmarks/reproduce.py --paper          # the whole fast version, in at most a quarter of an hour

Seconds of the whole command, from its start to its report, with compiled programs in the cache. At most 0.6 and 0.7
of the time of one process are expected. Needs two cores that have nothing else to do, and `gpssm[dask]`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GPSSM = (sys.executable, "-m", "gpssm", "reproduce", "all", "--fast", "--json")


def seconds(plan: list[str], directory: Path, *options: str) -> float:
    """Of one run in a directory without results."""
    began = time.perf_counter()
    command = [*GPSSM, *plan, "--out", str(directory), *options]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    if found["done"] != found["total"]:
        sys.exit(f"{found['failed']} fit(s) failed; see {found['report']}")
    return time.perf_counter() - began


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """A scheduler and two workers on this machine; its address."""
    file = directory / "scheduler.json"
    log = (directory / "log").open("wb")

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)

    processes = [start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))]
    try:
        while not file.is_file():
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        processes += [start("worker", address, "--nthreads", "1", "--host", "127.0.0.1") for _ in range(2)]
        while (directory / "log").read_text().count("Registered to") < 2:
            time.sleep(0.1)
        yield address
    finally:
        for process in processes[::-1]:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="kink:EnVI")
    parser.add_argument("--seeds", default="6")
    parser.add_argument("--paper", action="store_true")
    arguments = parser.parse_args()
    if arguments.paper:
        with tempfile.TemporaryDirectory() as name:
            whole = seconds([], Path(name), "--processes", "2")
        print(f"the whole fast version {whole / 60:.1f} min (at most 15)")
        sys.exit("slower than expected" if whole > 900 else 0)
    plan = ["--only", arguments.only, "--seeds", arguments.seeds]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        seconds(plan, place / "warm", "--processes", "2")
        one = seconds(plan, place / "one", "--processes", "1")
        two = seconds(plan, place / "two", "--processes", "2")
        with cluster(place) as address:
            dask = seconds(plan, place / "dask", "--dask", address)
    print(f"one process   {one:6.1f} s")
    print(f"two processes {two:6.1f} s, {two / one:.2f} of it (at most 0.60)")
    print(f"two workers   {dask:6.1f} s, {dask / one:.2f} of it (at most 0.70)")
    if two > 0.6 * one or dask > 0.7 * one:
        sys.exit("slower than expected")


if __name__ == "__main__":
    main()
