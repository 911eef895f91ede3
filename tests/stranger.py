"""What a stranger has: the wheel, installed into an environment of its own, and none of our settings."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Of this process or the shell that has started it; that of a stranger has none of them. Of a registry it may know.
_OURS = ("GPSSM_", "JAX_", "XLA_", "TF_", "PYTEST_", "PYTHON", "VIRTUAL_ENV", "COLUMNS")


def environment(**more: str) -> dict[str, str]:
    """The environment of a stranger's shell."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)} | more


def build(directory: Path) -> Path:
    """The wheel of the sources as they are here, built as anybody builds it."""
    _pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(directory), str(ROOT))
    (wheel,) = directory.glob("gpssm-*.whl")
    return wheel


def install(shared: Path) -> Path:
    """The `bin` of an environment below `shared` that has the wheel, made by whichever worker comes first.

    The wheel lies in `shared / "dist"`.
    """
    done, environment_of = shared / "installed", shared / "environment"
    with (shared / "installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            wheel = build(shared / "dist")
            subprocess.run([sys.executable, "-m", "venv", str(environment_of)], check=True, env=environment())
            _pip(str(environment_of / "bin" / "python"), "install", f"{wheel}[all]")
            done.touch()
    return environment_of / "bin"


def _pip(python: str, *arguments: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, env=environment())
    assert ended.returncode == 0, ended.stdout + ended.stderr
