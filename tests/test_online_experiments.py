"""The online experiments of the paper, as one runs them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpssm.datasets import car as simulate
from gpssm.experiments import car, nascar
from gpssm.experiments.base import Task


def run(*arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "gpssm", "reproduce", *arguments, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_car_scores_are_the_supplements() -> None:
    """All four numbers together, in slots of time."""
    data = simulate(car.LENGTH, seed=0)
    assert data.series.states is not None
    found = car.score(data.series.states + np.array([3.0, 0.0, 4.0, 0.0]), data)
    assert tuple(found) == car.NAMES and len(found) == len(car.PAPER["identity"]["KF"])
    np.testing.assert_allclose(list(found.values()), 5.0)


def test_kalman_filter_of_the_car_is_where_the_paper_has_it() -> None:
    """The two rows that need no learning: the exact filter, and the observations."""
    for method in ("KF", "baseline"):
        runs = [car.run(Task("car", method, "car", "identity", seed)) for seed in range(5)]
        found = np.mean([run["rmse"]["0-1000"] for run in runs])
        printed = car.PAPER["identity"][method][-1]
        assert printed is not None
        np.testing.assert_allclose(found, printed, rtol=0.03)


def test_car_on_the_command_line(tmp_path: Path) -> None:
    found = run("car", "--method", "KF", "--seeds", "2", "--out", str(tmp_path))
    rows = found["rows"]
    assert isinstance(rows, list) and [row["emission"] for row in rows] == ["identity", "random"]
    assert (tmp_path / "car.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_nascar_on_the_command_line(tmp_path: Path) -> None:
    found = run("nascar", "--seeds", "1", "--out", str(tmp_path))
    rows = found["rows"]
    assert isinstance(rows, list) and [row["method"] for row in rows] == list(nascar.METHODS)
    for row in rows:
        assert row["filter_rmse"] < row["least_squares_rmse"]
        assert set(row["forecast_rmse"]) == set(row["oracle_rmse"]) == {"50", "100", "500"}
    assert (tmp_path / "nascar.png").read_bytes().startswith(b"\x89PNG")


def test_nascar_oracle_knows_the_way() -> None:
    """For a few steps it is as good as the process noise allows."""
    start = np.array([0.0, 1.0])
    truth = start + np.arange(1, 11)[:, None] * [0.1, 0.0]
    assert np.abs(nascar.oracle(start, 10, seed=0) - truth).max() < 0.02
