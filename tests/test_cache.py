"""Compiled programs that are kept between runs."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import gpssm
from gpssm.errors import InvalidInput
from gpssm.parallel import runtime
from gpssm.plumbing import cache as home

NAMES = ("GPSSM_CACHE", "TF_CPP_MIN_LOG_LEVEL", "JAX_COMPILATION_CACHE_DIR")

COUNTED = """
import json, sys
from collections import Counter
import jax.monitoring
import numpy as np
import gpssm
from gpssm import evaluation

events = Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event.rpartition("/")[2]]))
def stage(name):
    found[name] = [events["cache_hits"], events["cache_misses"]]
    events.clear()
found = {}
"""

WORK = """
y = gpssm.datasets.kink(length=200, seed=0).outputs
fitted = gpssm.EnVI(1, 10, num_members=30, schedule=gpssm.Schedule(max_steps=25)).fit(y, seed=0)
stage("fit")
fitted.forecast(10, num_paths=20)
stage("forecast")
evaluation.blocks(fitted, y, length=20, num_paths=20)
stage("evaluate")
stream = gpssm.OEnVI(1, 15, num_members=10, trial=0).start()
for value in y[:30]:
    stream.learn_one(value)
stream.forecast(5)
stage("stream")
print(json.dumps(found))
"""

LATE = """
import jax
assert jax.numpy.ones(2).sum() == 2
stage("before")
first = gpssm.cache(sys.argv[1])
assert jax.numpy.ones(3).sum() == 3
stage("first")
second = gpssm.cache(sys.argv[2])
assert jax.numpy.ones(4).sum() == 4
stage("second")
print(json.dumps(found))
"""


def run(code: str, *arguments: object, **environment: str) -> dict[str, tuple[int, int]]:
    """Hits and misses of every stage, in a process of its own, which says nothing else."""
    rest = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [sys.executable, "-c", COUNTED + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=rest | environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {name: tuple(numbers) for name, numbers in json.loads(done.stdout).items()}


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable that concerns the cache; and afterwards the cache that was used before."""
    before = {name: getattr(jax.config, name) for name in (home._DIRECTORY, *home._KEEP_ALL)}
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    for name in (*NAMES, *(name.upper() for name in home._KEEP_ALL)):
        monkeypatch.setenv(name, "")  # so that what the test sets is forgotten, too
        monkeypatch.delenv(name)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_a_second_process_compiles_nothing() -> None:
    # In the directory of all tests, of sizes as in test_fit and test_online_methods: most of it has been compiled for
    # them. Hashes of strings differ.
    run(WORK, GPSSM_CACHE="1", PYTHONHASHSEED="1")
    found = run(WORK, GPSSM_CACHE="1", PYTHONHASHSEED="2")
    assert set(found) == {"fit", "forecast", "evaluate", "stream"}
    assert all(hits > 0 and misses == 0 for hits, misses in found.values()), found


def test_it_can_be_chosen_and_changed_after_jax_has_started(tmp_path: Path) -> None:
    found = run(LATE, tmp_path / "first", tmp_path / "second")
    assert found["before"] == (0, 0)  # no cache unless it is asked for
    assert found["first"][1] > 0 and found["second"][1] > 0
    for name in ("first", "second"):
        assert len(list((tmp_path / name).glob("*/*-cache"))) == found[name][1]  # all of them, small as they are


def test_what_was_not_used_for_longest_is_deleted(tmp_path: Path, settings: None) -> None:
    directory = gpssm.cache(tmp_path)
    other, foreign = tmp_path / f"{0:016x}", tmp_path / "another program"
    for place in (other, foreign, directory / "x-cache"):
        place.mkdir()
    (foreign / "y-cache").write_bytes(bytes(1000))
    files = [directory / "a-cache", other / "b-cache", directory / "c-cache", directory / "not mine"]
    for age, file in zip((30, 20, 10, 40), files, strict=True):
        file.write_bytes(bytes(100))
        os.utime(file, (1e9 - age, 1e9 - 100))
    assert gpssm.cache(tmp_path, max_bytes=300) == directory and all(file.exists() for file in files)
    gpssm.cache(tmp_path, max_bytes=250)
    assert [file.exists() for file in files] == [False, True, True, True]
    gpssm.cache(tmp_path, max_bytes=150)
    assert [file.exists() for file in files] == [False, False, True, True]
    assert (foreign / "y-cache").exists() and (directory / "x-cache").is_dir()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path, settings: None) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InvalidInput, match=r"^path: cannot keep programs in '.*file' \(Not a directory\); expected a "):
        gpssm.cache(file)
    with pytest.raises(InvalidInput, match=r"^max_bytes: expected a positive number of bytes, got 0\.$"):
        gpssm.cache(tmp_path, max_bytes=0)
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


@pytest.mark.parametrize(
    ("variable", "of_library", "of_command"),
    [
        (None, None, "xdg/gpssm/compiled"),
        ("", None, "xdg/gpssm/compiled"),
        ("0", None, None),
        ("1", "xdg/gpssm/compiled", "xdg/gpssm/compiled"),
        ("mine", "mine", "mine"),
    ],
)
def test_the_variable_decides(
    variable: str | None,
    of_library: str | None,
    of_command: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if variable is not None:
        monkeypatch.setenv("GPSSM_CACHE", variable)
    for decide, expected in ((lambda: home.of_environment(default="0"), of_library), (runtime.prepare, of_command)):
        decide()
        chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
        assert (chosen and Path(chosen).parent) == (expected and tmp_path / expected)


def test_a_variable_that_cannot_be_used_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: None
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("GPSSM_CACHE", str(file))
    with pytest.warns(UserWarning, match=r"^GPSSM_CACHE: cannot keep programs in "):
        runtime.prepare()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_directory_given_to_jax_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: None) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "given"))
    monkeypatch.setenv("GPSSM_CACHE", "1")
    runtime.prepare()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "given")
    assert float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]) == 0


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch, settings: None) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.prepare()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    with pytest.raises(InvalidInput, match=r"^path: there is no home directory"):
        gpssm.cache()
