"""Files that are whole or absent."""

import os
import tempfile
from pathlib import Path


def write_atomically(target: Path, data: bytes) -> None:
    """Replace `target` by `data`, or leave everything as it was."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes private files; a model gets the permissions any other new file would.
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
        _sync(target.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sync(directory: Path) -> None:
    """Have the new name on disk, too: what a file holds survives a power cut before how it is called does."""
    if os.name == "posix":  # elsewhere a directory cannot be opened
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
