"""Whether a process that has left its number somewhere is still running."""

import os
from pathlib import Path
from typing import NamedTuple


class Seen(NamedTuple):
    """What the system says about a process."""

    state: str
    """`Z` or `X` if it has ended and nobody has asked how."""
    started: str
    """Tells processes apart that had the same number one after the other."""


def look(pid: int) -> Seen | None:
    """The process `pid`; None if there is none, it is hidden from us, or the system does not say (other than Linux)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return Seen(fields[0], fields[19])


def started(pid: int) -> str:
    """When the process `pid` was started, in ticks since the boot; empty where that is not known."""
    seen = look(pid)
    return seen.started if seen else ""


def exists(pid: int) -> bool:
    """Whether there is a process `pid`, also one that is hidden from us."""
    if os.name != "posix":  # there, asking would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
