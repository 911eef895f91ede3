"""The command line, as a person and as a script would call it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpssm


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "gpssm", *arguments],
        capture_output=True, text=True, timeout=900, cwd=cwd, env=environment, check=False,
    )  # fmt: skip


def test_help_is_quick_and_does_not_load_jax() -> None:
    before = os.times().children_user
    result = run("--help")
    assert result.returncode == 0 and "reproduce" in result.stdout and "demo" in result.stdout
    assert os.times().children_user - before < 3  # half a second
    code = "import sys, gpssm.cli.main; assert not {'jax', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_version() -> None:
    assert run("--version").stdout.strip() == f"gpssm {gpssm.__version__}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("reproduce", "kink", "--setting", "nonsense"),
            "setting: expected one of variance, sd or all, got 'nonsense'",
        ),
        (("reproduce", "kink", "--method", "nonsense"), "method: expected one of EnVI"),
        (("reproduce", "kink", "--obs-noise", "-1"), "obs-noise: expected positive"),
        (("demo", "--out", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_reproduce_prints_json_and_nothing_else(tmp_path: Path) -> None:
    """One cell of the table, with its results file and figure."""
    arguments = ("--setting", "sd", "--obs-noise", "0.008", "--seeds", "1", "--method", "envi")
    result = run("reproduce", "kink", *arguments, "--json", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert set(printed) == {"experiment", "rows", "report"} and printed["experiment"] == "kink"
    (row,) = printed["rows"]
    assert set(row) == {
        "method", "setting", "obs_noise", "seeds", "mse", "mse_se", "log_likelihood", "log_likelihood_se",
        "q_learned", "iterations", "fit_seconds", "compile_seconds",
    }  # fmt: skip
    assert (row["method"], row["setting"], row["obs_noise"], row["seeds"]) == ("EnVI", "sd", 0.008, 1)
    assert row["mse"] < 0.0046 and row["log_likelihood"] > 1.106  # what the paper prints
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved["rows"] == printed["rows"] and len(saved["fits"]) == 1
    assert (tmp_path / "kink.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_demo_leaves_a_picture_and_a_model(tmp_path: Path) -> None:
    result = run("demo", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["mse"] < 0.02
    assert (tmp_path / found["picture"]).read_bytes().startswith(b"\x89PNG")
    assert gpssm.load(tmp_path / found["model"]).state_dim == 1


DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded series are not on this machine")
def test_recorded_systems_are_scored_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run reads what the first has left, and prints the same."""
    monkeypatch.setenv("GPSSM_DATA", str(DATA))
    arguments = ("reproduce", "sysid", "--dataset", "gas_furnace", "--method", "ARX(4)", "--seeds", "2", "--json")
    first = run(*arguments, "--out", str(tmp_path))
    assert first.returncode == 0, first.stderr
    (row,) = json.loads(first.stdout)["rows"]
    assert set(row) == {
        "dataset", "method", "seeds", "free_run_rmse", "free_run_rmse_sd", "blocks50_rmse", "nlpd", "crps",
        "coverage90", "fit_seconds",
    }  # fmt: skip
    assert (row["dataset"], row["method"], row["seeds"]) == ("gas_furnace", "ARX(4)", 2)
    assert row["free_run_rmse"] == pytest.approx(1.20, abs=0.05)  # 1.201 by least squares alone
    assert (tmp_path / "sysid.png").read_bytes().startswith(b"\x89PNG")
    kept = sorted(tmp_path.glob("results/sysid/ARX_4/gas_furnace/offline/*.json"))
    assert [path.name[:7] for path in kept] == ["seed-0-", "seed-1-"]
    written = [path.stat().st_mtime_ns for path in kept]
    again = run(*arguments, "--out", str(tmp_path))
    assert again.stdout == first.stdout
    assert [path.stat().st_mtime_ns for path in kept] == written


def test_an_experiment_without_its_data_says_where_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path))
    result = run("reproduce", "sysid", "--dataset", "dryer", "--out", str(tmp_path / "out"))
    assert result.returncode == 2
    assert "dryer.dat" in result.stderr and "GPSSM_DATA" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
