"""The same jobs on a Dask cluster. A worker that dies there loses nothing: the scheduler gives its job to another."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from gpssm.errors import InvalidInput
from gpssm.parallel import runtime
from gpssm.parallel.pool import Event

CLAIM = "gpssm-core"
"""What the name begins with under which a worker claims a core."""

_held: list[socket.socket] = []


def run(
    address: str, function: Callable[[Any], Any], jobs: Sequence[Any], patience: float = 1.0, poll: float = 0.1
) -> Iterator[Event]:
    """As `pool.run`, on the workers of the scheduler at `address`."""
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise InvalidInput("dask: the package is not installed here; pip install 'gpssm[dask]'.") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"dask: there is no scheduler at {address!r} ({error}); start one with `dask scheduler --host 127.0.0.1`."
        ) from None
    with client:
        crowded = [worker for worker, threads in client.nthreads().items() if threads > 1]
        if crowded:
            raise InvalidInput(
                f"dask: {crowded[0]} has several threads; start workers with `dask worker --nthreads 1`."
            )
        call = partial(_call, function)
        futures = {
            place: client.submit(call, job, pure=False, priority=len(jobs) - place) for place, job in enumerate(jobs)
        }
        places = {future.key: place for place, future in futures.items()}
        started: set[int] = set()
        quiet = looked = time.monotonic()
        while futures:
            for place in [place for place, future in futures.items() if future.done()]:
                future = futures.pop(place)
                quiet = time.monotonic()
                if future.status == "finished":
                    yield Event("done", place, future.result())
                elif future.status == "error":  # its worker has died several times over it, or cannot run it at all
                    yield Event("died", place, f"{type(future.exception()).__name__}: {future.exception()}")
                else:
                    raise InvalidInput(f"dask: the scheduler at {address!r} has gone; start it, and this again.")
            if time.monotonic() - looked > patience:
                looked = time.monotonic()
                at_work = {places[key] for keys in client.processing().values() for key in keys if key in places}
                for place in sorted((at_work & set(futures)) - started):
                    started.add(place)
                    yield Event("started", place)
            if time.monotonic() - quiet > patience:
                quiet = time.monotonic()
                yield Event("waiting")
            time.sleep(poll)


def _call(function: Callable[[Any], Any], job: Any) -> Any:
    _settle()
    return function(job)


def _settle() -> None:
    """Pin a worker, at its first job, to a core that no other worker of this machine has taken."""
    if _held or not hasattr(os, "sched_setaffinity"):
        return
    for core in sorted(os.sched_getaffinity(0)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            # A name that is no file, of which a machine has one, until this process ends.
            claim.bind(f"\0{CLAIM}-{core}")
        except OSError:
            claim.close()
            continue
        _held.append(claim)
        os.sched_setaffinity(0, {core})
        break
    runtime.prepare()
