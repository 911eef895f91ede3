"""Compiled programs, kept between runs: the same for the commands and for programs that use the library."""

import hashlib
import logging
import os
import platform
import stat
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpssm.errors import InvalidInput

logger = logging.getLogger(__name__)

_VARIABLE = "GPSSM_CACHE"  # a directory, `1` for the default one, `0` for no cache, also of the commands

QUIET = "TF_CPP_MIN_LOG_LEVEL", "3"
"""The loader of compiled programs reports pseudo-features of the processor as errors."""

_DIRECTORY = "jax_compilation_cache_dir"
_MARK = 16  # characters of the name of a directory for one kind of processor
# All programs are kept: a fit has hundreds that compile quickly.
_KEEP_ALL = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1}


def cache(path: str | os.PathLike[str] | None = None, max_bytes: int = 1_000_000_000) -> Path:
    """Keep compiled programs on disk from now on, so that the next process need not compile them again.

    `path` is a directory of your choice; by default it is the one of the `gpssm` command, `~/.cache/gpssm/compiled`
    (or below `XDG_CACHE_HOME`). Programs that were not used for longest are deleted until `max_bytes` bytes are left,
    now, and when the next process begins. Returns the directory that is used, one for every kind of processor, below
    `path`. Call it at the start of a program, or set the environment variable `GPSSM_CACHE` to `1` or to a directory.

    >>> import gpssm
    >>> directory = gpssm.cache()
    >>> directory.is_dir()
    True
    """
    if not max_bytes > 0:
        raise InvalidInput(f"max_bytes: expected a positive number of bytes, got {max_bytes}.")
    base = _default() if path is None else Path(path).expanduser().absolute()
    directory = _usable(base)
    _evict(base, max_bytes)
    logger.info("compiled programs are kept in %s", directory)
    settings = {_DIRECTORY: str(directory), **_KEEP_ALL}
    # For JAX where it has not started yet, and for processes that are started from here.
    os.environ.setdefault(*QUIET)
    os.environ.update({name.upper(): str(value) for name, value in settings.items()})
    if "jax" in sys.modules:
        _tell_jax(settings)
    return directory


def of_environment(default: str) -> None:
    """Do as `GPSSM_CACHE` says, or as `default` where it is not set; a directory that JAX was given goes first.

    A directory that cannot be used is a warning: everything works without it.
    """
    chosen = os.environ.get(_VARIABLE) or default
    if chosen == "0":
        return
    if _DIRECTORY.upper() in os.environ:
        for name, value in _KEEP_ALL.items():
            os.environ.setdefault(name.upper(), str(value))
        logger.info("compiled programs are kept in %s, as JAX was told", os.environ[_DIRECTORY.upper()])
        return
    try:
        cache(None if chosen == "1" else chosen)
    except InvalidInput as error:
        if os.environ.get(_VARIABLE):
            warnings.warn(f"{_VARIABLE}: {str(error).removeprefix('path: ')}", stacklevel=2)


def _tell_jax(settings: dict[str, Any]) -> None:
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # or a directory that is in use would stay
    level = jax.config.values["jax_logging_level"]
    if level in (None, "NOTSET"):
        jax.config.update("jax_logging_level", "CRITICAL")  # as QUIET, and for Python; the next is for Python alone
        jax.config.update("jax_logging_level", level)


def _default() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(chosen) if chosen else Path.home() / ".cache") / "gpssm" / "compiled"
    except RuntimeError:  # as in many containers
        raise InvalidInput("path: there is no home directory to keep programs in; name a directory.") from None


def _usable(base: Path) -> Path:
    """The directory for this kind of processor: a compiled program may not run on another."""
    directory = base / hashlib.sha256(_processor().encode()).hexdigest()[:_MARK]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(directory, os.W_OK | os.X_OK) else "not writable"
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise InvalidInput(f"path: cannot keep programs in {str(base)!r} ({reason}); expected a directory to write to.")
    return directory


def _evict(base: Path, max_bytes: int) -> None:
    """Delete what was not used for longest, of all kinds of processors.

    JAX can do so itself, but needs another package for it, and looks at all files whenever it adds one.
    """
    found = []
    for file in base.glob(f"{'[0-9a-f]' * _MARK}/*-cache"):  # directories of ours, whatever else is there
        try:
            status = file.stat()
        except OSError:  # another process was faster
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        # Some file systems do not note when a file was read: there the oldest go first.
        found.append((max(status.st_atime, status.st_mtime), status.st_size, file))
    excess = sum(size for _, size, _ in found) - max_bytes
    for _, size, file in sorted(found):
        if excess <= 0:
            break
        with suppress(OSError):  # that of another user, of whom we may not delete anything
            file.unlink(missing_ok=True)
            logger.debug("deleted %s, which was not used for longest", file)
            excess -= size


def _processor() -> str:
    return (
        "\n".join(sorted(set(cpuinfo("model name", "flags", "Features")))) or platform.processor() or platform.machine()
    )


def cpuinfo(*fields: str) -> list[str]:
    """What Linux says of these fields of every core, as `field : value`; nothing elsewhere."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    return [line for line in lines if line.startswith(fields)]
