"""What a command sets up before JAX starts. The library itself, when imported, changes nothing."""

import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpssm.plumbing import threads


def prepare() -> None:
    """Pin this process to one core and keep compiled programs between runs."""
    threads.pin()
    os.environ.setdefault(*_QUIET)
    directory = _cache_directory()
    if directory is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(directory))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")


# The loader of compiled programs reports pseudo-features of the processor as errors.
_QUIET = "TF_CPP_MIN_LOG_LEVEL", "3"


@contextmanager
def quiet() -> Iterator[None]:
    """For the start of a process: what it imports first may start JAX before it can `prepare`."""
    before = os.environ.get(_QUIET[0])
    os.environ.setdefault(*_QUIET)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_QUIET[0]]


def _cache_directory() -> Path | None:
    """One directory per kind of processor: a compiled program may not run on another. None if not writable."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(chosen) if chosen else Path.home() / ".cache"
    except RuntimeError:  # a user without a home, as in many containers
        return None
    directory = base / "gpssm" / "compiled" / hashlib.sha256(_processor().encode()).hexdigest()[:16]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return directory if os.access(directory, os.W_OK) else None


def _processor() -> str:
    return (
        "\n".join(sorted(set(cpuinfo("model name", "flags", "Features")))) or platform.processor() or platform.machine()
    )


def cpuinfo(*fields: str) -> list[str]:
    """What Linux says of these fields of every core, as `field : value`; nothing elsewhere."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    return [line for line in lines if line.startswith(fields)]
