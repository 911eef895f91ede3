"""Jobs on this machine: spawned processes, one per core and pinned to it, that are handed one job at a time.

A process that dies takes its job with it and nothing else: it is replaced. Workers write nothing; what they found
comes back through a pipe, so that stopping them at any moment leaves nothing half done.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle, islice
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from gpssm.errors import InvalidInput
from gpssm.parallel import runtime
from gpssm.plumbing import threads

# Programs that JAX has compiled are never given back; after so many jobs a new process begins without them.
JOBS_PER_PROCESS = 40


class Event(NamedTuple):
    """What has happened to the job at `place` in the list: started, done (`value` is its result), or its process died
    (`value` is the reason, as text). "waiting" if nothing has happened for a while.
    """

    kind: Literal["started", "done", "died", "waiting"]
    place: int = -1
    value: Any = None


def cores() -> list[int | None]:
    """Cores that this process may use; None for each where processes cannot be pinned."""
    if hasattr(os, "sched_getaffinity"):
        return list(threads.cores or sorted(os.sched_getaffinity(0)))
    return [None] * (os.cpu_count() or 1)


def run(
    function: Callable[[Any], Any], jobs: Sequence[Any], processes: int | None = None, patience: float = 1.0
) -> Iterator[Event]:
    """Call `function` with each of the jobs, in their order; an event for everything, "waiting" if there was none.

    Both must be picklable. What `function` raises ends the run: errors of a job are for it to catch.
    """
    available = cores()
    left = list(enumerate(jobs))[::-1]
    count = min(processes or len(available), len(jobs))
    workers = [_Worker(function, core) for core in islice(cycle(available), count)]
    try:
        while any(worker.busy for worker in workers) or left:
            for number, worker in enumerate(workers):
                if not worker.busy and left:
                    if worker.finished >= JOBS_PER_PROCESS:
                        worker.stop()
                        worker = workers[number] = _Worker(function, worker.core)
                    place, job = left.pop()
                    worker.give(place, job)
                    yield Event("started", place)
            ready = multiprocessing.connection.wait([w.pipe for w in workers if w.busy], patience)
            for number, worker in enumerate(workers):
                if worker.pipe in ready:
                    event = worker.take()
                    if event.kind == "died":
                        worker.stop()
                        workers[number] = _Worker(function, worker.core)
                    yield event
            if not ready:
                yield Event("waiting")
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process and what it is doing."""

    def __init__(self, function: Callable[[Any], Any], core: int | None) -> None:
        self.core, self.finished, self.place = core, 0, -1
        self.started = False
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, function, core), daemon=True)
        with runtime.quiet():
            self.process.start()
        theirs.close()  # so that its end is seen here

    @property
    def busy(self) -> bool:
        return self.place >= 0

    def give(self, place: int, job: Any) -> None:
        self.place = place
        with suppress(BrokenPipeError):  # it has died since its last job; `take` will say so
            self.pipe.send(job)

    def take(self) -> Event:
        place = self.place
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            if not self.started:
                raise InvalidInput(
                    "a worker could not start; in a script, call from under `if __name__ == '__main__':`, since every "
                    "worker imports the script."
                ) from None
            reason = ": killed, perhaps for want of memory" if self.process.exitcode == -9 else ""
            return Event("died", place, f"its process ended with code {self.process.exitcode}{reason}")
        if answer is None:
            self.started = True
            return Event("waiting")
        value, error = answer
        if error is not None:
            raise error
        self.place = -1
        self.finished += 1
        return Event("done", place, value)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(pipe: Connection, function: Callable[[Any], Any], core: int | None) -> None:
    """The life of a worker: job in, value out, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the first one decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if core is not None:
        os.sched_setaffinity(0, {core})
    runtime.prepare()
    pipe.send(None)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        answer: tuple[Any, Exception | None]
        try:
            answer = function(job), None
        except Exception as error:
            answer = None, error
        pipe.send(answer)


def _end_with_parent() -> None:
    """A fit must not outlive, for minutes, the command that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
