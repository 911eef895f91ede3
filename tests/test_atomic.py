"""Files that are whole or absent, and keep what the user gave them: mode, owner, links."""

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from gpssm.plumbing import atomic
from gpssm.plumbing.atomic import remove_leftovers, write_atomically

posix = pytest.mark.skipif(os.name != "posix", reason="modes and links are those of POSIX")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@posix
@pytest.mark.parametrize("given", [0o600, 0o640, 0o664, 0o444, 0o755])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, given: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(given)
    write_atomically(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", given)


@posix
@pytest.mark.parametrize("given", [0o600, 0o640])
def test_what_is_private_is_never_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    """Not even the temporary file, at any time."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(given)
    seen = []
    take_over = atomic._take_over

    def watch(handle: int, replaced: Any) -> None:
        seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        take_over(handle, replaced)
        seen.append(stat.S_IMODE(os.fstat(handle).st_mode))

    monkeypatch.setattr(atomic, "_take_over", watch)
    write_atomically(path, b"new")
    assert seen and not any(now & ~given for now in seen)


@posix
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_any_other_new_file(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", b"new")
        (tmp_path / "other").write_bytes(b"")
    finally:
        os.umask(before)
    assert mode(tmp_path / "file") == mode(tmp_path / "other") == 0o666 & ~mask


@posix
def test_the_umask_of_the_process_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to all threads."""

    def forbidden(mask: int) -> int:
        raise AssertionError("changed for all threads")

    monkeypatch.setattr(os, "umask", forbidden)
    write_atomically(tmp_path / "file", b"new")
    write_atomically(tmp_path / "file", b"newer")


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (12345, 23456, 0o640)


@posix
def test_a_file_of_somebody_else_is_replaced_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    known = path.stat()
    path.chmod(0o4755)

    def refuse(*arguments: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "fstat", lambda handle: os.stat_result([*known[:4], known.st_uid + 1, *known[5:]]))
    write_atomically(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o755)


@posix
@pytest.mark.parametrize("relative", [True, False])
def test_a_symbolic_link_is_followed(tmp_path: Path, relative: bool) -> None:
    (tmp_path / "there").mkdir()
    real, link, second = tmp_path / "there" / "real", tmp_path / "link", tmp_path / "second"
    real.write_bytes(b"old")
    real.chmod(0o600)
    link.symlink_to(Path("there/real") if relative else real)
    second.symlink_to(link)
    write_atomically(second, b"new")
    assert second.is_symlink() and link.is_symlink() and not real.is_symlink()
    assert (real.read_bytes(), mode(real)) == (b"new", 0o600)


@posix
def test_a_link_that_leads_nowhere_is_a_sentence(tmp_path: Path) -> None:
    dangling, loop, other = tmp_path / "dangling", tmp_path / "loop", tmp_path / "other"
    dangling.symlink_to("nowhere")
    loop.symlink_to(other)
    other.symlink_to(loop)
    with pytest.raises(FileNotFoundError, match=r"a symbolic link to 'nowhere', which does not exist.*dangling"):
        write_atomically(dangling, b"new")
    with pytest.raises(OSError, match=r"leads back to itself.*loop"):
        write_atomically(loop, b"new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling", "loop", "other"]


@posix
def test_only_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError, match="folder"):
        write_atomically(tmp_path / "folder", b"new")
    with pytest.raises(OSError, match=r"not a regular file.*pipe"):
        write_atomically(tmp_path / "pipe", b"new")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_a_failure_names_the_file_and_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*arguments: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path if step == "replace" else os, step, full)
    with pytest.raises(OSError) as found:
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert found.value.errno == errno.ENOSPC and str(path) in str(found.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"old"


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        write_atomically(tmp_path / "absent" / "file", b"new")


@posix
def test_leftovers_are_those_of_this_file_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a[b]").write_bytes(b"")
    (tmp_path / "link").symlink_to("there/a[b]")
    names = [
        ".a[b].0123.tmp",
        ".a[b].x.y.tmp",  # of a file a[b].x
        ".ab.0.tmp",
        "a[b].0.tmp",
        ".a[b].0.tmp.kept",
        ".a[b]c.0.tmp",
        ".a[b].tmp",
    ]
    for name in names:
        (tmp_path / "there" / name).write_bytes(b"")
    remove_leftovers(tmp_path / "link")
    assert sorted(p.name for p in (tmp_path / "there").iterdir()) == sorted(["a[b]", *names[1:]])


def test_a_temporary_name_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the sweepers of checkpoints and of results."""
    found = []
    monkeypatch.setattr(Path, "replace", lambda self, target: found.extend([*tmp_path.glob(".file.*.tmp")]))
    write_atomically(tmp_path / "file", b"new")
    assert len(found) == 1
    remove_leftovers(tmp_path / "file")
    assert not found[0].exists()


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    writers = [threading.Thread(target=write_atomically, args=(path, bytes([i]) * 10_000)) for i in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(set(path.read_bytes())) == 1 and path.stat().st_size == 10_000
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
