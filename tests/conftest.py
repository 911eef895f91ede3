"""Settings of the whole test process, made before JAX starts; and helpers shared by the files."""

import os
import signal
import sys
from pathlib import Path

# One core per worker: XLA sizes its thread pool by the cores it may use, and a pool that shares
# its cores with other workers is far slower than a single thread.
if hasattr(os, "sched_setaffinity"):
    # Workers inherit the affinity of the process that started them, which has pinned itself already.
    _cores = os.environ.setdefault("GPSSM_TEST_CORES", ",".join(map(str, sorted(os.sched_getaffinity(0))))).split(",")
    _worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {int(_cores[_worker % len(_cores)])})

# What a shell starts in the background is deaf to interrupts, and so is what that starts; tests send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Compiling is most of the work, and most of that is optimisation, which programs that run for milliseconds do not need.
# What the package compiles says for itself how (`gpssm.plumbing.compilation`): tests run that as users do.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

# What one worker, a command that a test starts or an earlier run has compiled is
# taken from the cache of the command line.
from gpssm.parallel import runtime

runtime.prepare()

import jaxtyping

# The shapes of all arrays are checked at every call, in every package.
sys.path.insert(0, str(Path(__file__).parent))
jaxtyping.install_import_hook("gpssm", "shapes.of_arrays")

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from gpssm.plumbing.compilation import CompileClock

jax.config.update("jax_enable_x64", True)

# A worker takes a file at a time. The long ones come first: one that began last would keep one worker alone.
LONGEST = (
    "test_fit",
    "test_competitors",
    "test_oenvi",
    "test_online_methods",
    "test_posterior",
    "test_stream_redis",
    "test_cli",
    "test_stream_cli",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


clock = CompileClock()
compiled: Counter[str] = Counter()
"""Seconds of tracing, lowering and compiling by file, in all workers; not in processes that tests start."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """A report carries what was compiled since the last one, also from a worker to the process that prints."""
    global clock
    report = yield
    report.user_properties.append(("compile_seconds", clock.seconds))
    clock = CompileClock()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    compiled[report.nodeid.partition("::")[0]] += dict(report.user_properties).get("compile_seconds", 0.0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("most seconds of compilation")
    for file, seconds in compiled.most_common(10):
        terminalreporter.write_line(f"{seconds:8.1f} s {file}")


@pytest.fixture(scope="module", autouse=True)
def few_programs_at_once() -> Iterator[None]:
    """Forget what was compiled for a file when it ends: XLA crashes in a process that holds thousands of programs."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def central_differences() -> Callable[..., np.ndarray]:
    """Gradient of a scalar function of a tree of arrays, by central differences, as one flat array."""

    def gradient(function: Callable[[Any], Any], tree: Any, step: float = 1e-6) -> np.ndarray:
        leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: np.array(leaf, dtype=float), tree))
        result = []
        for leaf in leaves:
            for index in np.ndindex(leaf.shape):
                centre = leaf[index]
                h = step * max(1.0, abs(centre))
                values = []
                for shifted in (centre + h, centre - h):
                    leaf[index] = shifted
                    values.append(float(function(jax.tree.unflatten(structure, [a.copy() for a in leaves]))))
                leaf[index] = centre
                result.append((values[0] - values[1]) / (2 * h))
        return np.array(result)

    return gradient


@pytest.fixture(scope="session")
def installed_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment of its own, into which the wheel was installed with all extras; for slow tests.

    Call what is in it with `env=stranger.environment()`, from a directory that is not the project's.
    """
    import stranger

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # one for all workers
    (shared / "wheel").mkdir(exist_ok=True)
    return stranger.install(shared / "wheel")


@pytest.fixture
def stream_here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`gpssm stream` with the method of local_level.py, in this process.

    For tests of what is read, printed and saved, to which a process of its own would only add the import of JAX.
    """
    from gpssm.cli import learning
    from gpssm.cli.main import main
    from gpssm.methods import registry

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    from local_level_cli import ENTRY, with_method

    monkeypatch.setitem(registry.ONLINE, "LocalLevel", ENTRY)

    def run(*arguments: object, text: str | bytes = "") -> subprocess.CompletedProcess[str]:
        file = tmp_path_factory.mktemp("stdin") / "text"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        command = with_method(["gpssm", "stream", *map(str, arguments)])
        capfd.readouterr()
        with file.open("rb") as stdin, monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
            patched.setattr(learning, "STDIN", stdin.fileno())
            patched.setattr(sys, "argv", command)
            main()
        return subprocess.CompletedProcess(command, ended.value.code, *capfd.readouterr())

    return run
