"""Files that are whole or absent."""

import errno
import glob
import os
import secrets
import stat
from functools import partial
from pathlib import Path


def write_atomically(target: Path, data: bytes) -> None:
    """Replace `target` by `data`, or leave everything as it was. An `OSError` names the file.

    A symbolic link is followed. A file that is replaced leaves its mode and, where that is possible, its owner to the
    new one; any other gets those of a new file.
    """
    try:
        place = followed(target)
        _write(place, _replaced(place), data)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


def followed(path: Path) -> Path:
    """Where something written to `path` goes: what a symbolic link points to, or the path itself."""
    if not path.is_symlink():
        return path
    try:
        return Path(os.path.realpath(path, strict=True))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a symbolic link that leads back to itself", str(path)) from error
        if error.errno == errno.ENOENT:
            reason = f"a symbolic link to {str(path.readlink())!r}, which does not exist"
            raise FileNotFoundError(errno.ENOENT, reason, str(path)) from error
        raise


def remove_leftovers(path: Path) -> None:
    """Delete what processes that were killed while writing to `path` have left beside it."""
    place = followed(path)
    for found in place.parent.glob(f".{glob.escape(place.name)}.*.tmp"):
        # What has further dots is of a file with a longer name.
        if "." not in found.name[len(place.name) + 2 : -len(".tmp")] and found.is_file():
            found.unlink(missing_ok=True)


def _replaced(place: Path) -> os.stat_result | None:
    """What is known of the file that is to be replaced, if there is one."""
    try:
        known = place.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(known.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a directory, not a file", str(place))
    if not stat.S_ISREG(known.st_mode):
        raise OSError(errno.EINVAL, "not a regular file, which could be replaced", str(place))
    return known


def _write(place: Path, replaced: os.stat_result | None, data: bytes) -> None:
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")
    # Never more open than the file that it replaces, not even for a moment.
    mode = 0o666 if replaced is None else stat.S_IMODE(replaced.st_mode) & 0o600
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as stream:
            if replaced is not None:
                _take_over(stream.fileno(), replaced)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(place)
        _sync(place.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _take_over(handle: int, replaced: os.stat_result) -> None:
    """Give a new file the owner and the mode of another."""
    if os.name != "posix":
        return
    mode, new = stat.S_IMODE(replaced.st_mode), os.fstat(handle)
    if (new.st_uid, new.st_gid) != (replaced.st_uid, replaced.st_gid):
        try:
            os.fchown(handle, replaced.st_uid, replaced.st_gid)
        except PermissionError:
            mode &= 0o777  # it belongs to somebody else now, as whom nobody should run it
    os.fchmod(handle, mode)


def _sync(directory: Path) -> None:
    """Have the new name on disk, too: what a file holds survives a power cut before how it is called does."""
    if os.name == "posix":  # elsewhere a directory cannot be opened
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
