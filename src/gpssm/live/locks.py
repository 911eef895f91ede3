"""One learner at a time on a checkpoint: a lock file beside it, and who holds it.

The operating system forgets the lock when its holder ends, however it ends. Two learners on one file would each miss
what the other one gets.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpssm.errors import InvalidInput
from gpssm.plumbing import processes


class Holder(NamedTuple):
    """A process that holds a lock, on this machine or another."""

    pid: int
    host: str
    machine: str
    """The same where a process id means the same process; empty if that cannot be known."""
    started: str
    """Distinguishes processes that had the same id one after the other."""
    nonce: str

    @classmethod
    def this(cls) -> "Holder":
        """This process; every call returns another `nonce`."""
        pid = os.getpid()
        return cls(pid, socket.gethostname(), _machine(), processes.started(pid), secrets.token_hex(8))

    @classmethod
    def read(cls, text: str) -> "Holder | None":
        """The holder that wrote `text`; None if that is something else."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):  # of another program, or not written yet
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def text(self) -> str:
        """As JSON, for `read`."""
        return json.dumps(self._asdict())

    @property
    def near(self) -> bool:
        """Whether it can be known if it runs."""
        return bool(self.machine) and self.machine == _machine()

    @property
    def ended(self) -> bool:
        """Whether it is known not to run any more."""
        if not self.near:
            return False
        found = processes.look(self.pid)
        if found is None:
            return not processes.exists(self.pid)
        return found.state in ("Z", "X") or found.started != self.started


def _machine() -> str:
    """This boot of this machine, and the names that its processes go by: containers have their own."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


@contextlib.contextmanager
def locked(checkpoint: Path) -> Iterator[None]:
    """Hold the lock file of a checkpoint, beside it, and remove it afterwards."""
    target = checkpoint.resolve()
    path = target.with_name(f".{target.name}.lock")
    handle = _open_locked(path, checkpoint)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, Holder.this().text.encode(), 0)
        yield
    finally:
        # While it is held: whoever has opened it meanwhile sees that it is gone, and makes another one.
        with contextlib.suppress(OSError):
            if _is_at(handle, path):
                path.unlink()
        os.close(handle)


def _open_locked(path: Path, checkpoint: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(handle, path):
                return handle
        except BlockingIOError as error:
            holder = Holder.read(os.pread(handle, 1 << 12, 0).decode(errors="replace")) or "another process"
            os.close(handle)
            raise InvalidInput(
                f"checkpoint: {str(checkpoint)!r} is in use by {holder}; wait for its end, or use another file."
            ) from error
        except OSError as error:
            os.close(handle)
            raise InvalidInput(
                f"checkpoint: {str(path)!r} cannot be locked ({error.strerror}); expected a file on another disk."
            ) from error
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file still has this name: its last holder may have removed it after we opened it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
