"""Every sensor of a fleet learns what a stream on its own learns, to the last digit, from one program."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpssm
from gpssm.datasets import kink
from gpssm.errors import InvalidInput
from gpssm.methods import registry
from gpssm.online.base import OnlineMethod
from gpssm.online.stream import Stream
from gpssm.plumbing.compilation import CompileClock
from test_learn_many import assert_same, start, told
from test_stream_robustness import BrittleMethod

NDArray = np.ndarray
N = 3


@pytest.fixture(scope="module", params=list(registry.ONLINE))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fleet_of(name: str, state_dim: int = 1, **choices: Any) -> gpssm.Fleet:
    return gpssm.Fleet(start(name, state_dim, **choices).method, N, seed=3)


def recordings(seed: int, length: int = 120) -> NDArray:
    """(length, N, 1), of different systems on different scales."""
    return np.stack([(10.0**i) * kink(length, 0.0025, 0.008, seed=seed + i).outputs for i in range(N)], axis=1)


def alone(method: OnlineMethod, ys: NDArray, us: NDArray | None = None) -> list[Any]:
    """What each sensor's stream tells on its own."""
    found = []
    for i in range(ys.shape[1]):
        stream = method.start(3 + i)
        rows = [stream.learn_one(y, None if us is None else us[t, i]) for t, y in enumerate(ys[:, i])]
        found.append(told(stream, [tuple(row) for row in rows]))
    return found


def ticks(fleet: gpssm.Fleet, ys: NDArray, us: NDArray | None = None) -> list[Any]:
    """The same of a fleet, by `learn_one`."""
    found = [list(zip(*fleet.learn_one(y, None if us is None else us[t]), strict=True)) for t, y in enumerate(ys)]
    return [told(fleet[i], [row[i] for row in found]) for i in range(len(fleet))]


@settings(max_examples=4, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(
        st.tuples(st.integers(0, 119), st.integers(0, N - 1), st.sampled_from([np.nan, 30.0, -3e6, 1e200])), max_size=12
    ),
)
def test_every_member_is_a_stream_on_its_own(name: str, seed: int, faults: list[tuple[int, int, float]]) -> None:
    """With gaps, of which one may be where others report, outliers and absurd numbers."""
    ys = recordings(seed)
    for at, sensor, value in faults:
        ys[at : at + (15 if np.isnan(value) else 1), sensor] = value
    fleet, expected = fleet_of(name), alone(start(name).method, ys)
    for a, b in zip(ticks(fleet, ys), expected, strict=True):
        assert_same(a, b)
    many = fleet_of(name)
    found = [many.learn_many(part) for part in np.split(ys, [60])]
    for i, each in enumerate(expected):
        rows = [row for part in found for row in zip(*part[i], strict=True)]
        assert_same(told(many[i], rows), each)


def test_inputs_that_act_late_and_one_that_cannot_be_believed(name: str) -> None:
    """The sample is left out, of that sensor alone."""
    rng = np.random.default_rng(1)
    us = rng.normal(size=(120, N, 1))
    ys = np.cumsum(us, axis=0) * 0.1 + 0.01 * rng.normal(size=(120, N, 1))
    fleet, expected = fleet_of(name, 2, input_lags=2), alone(start(name, 2, input_lags=2).method, ys[:100], us[:100])
    for a, b in zip(ticks(fleet, ys[:100], us[:100]), expected, strict=True):
        assert_same(a, b)
    us[100, 1] = 1e30
    row = fleet.learn_one(ys[100], us[100])
    assert "u[0]: 1e+30" in row.refused[1] and "left out" in row.refused[1] and np.isnan(row.state_mean[1]).all()
    assert np.isfinite(row.state_mean[[0, 2]]).all() and [fleet[i].count for i in range(N)] == [101, 100, 101]
    us[101, 1] = 1e30
    many = fleet.learn_many(ys[101:], us[101:])
    assert fleet[1].refused == 2 and "left out" in many[1].refused[0] and fleet[1].count == 118


def test_members_that_fail_fail_alone() -> None:
    """A state that is infinite after a sample, or that cannot be moved any more."""
    ys = np.random.default_rng(0).integers(0, 6, size=(80, N, 1)).astype(float)
    ys[[30, 50], 0] = 7.0
    ys[60, 1] = 9.0
    fleet = gpssm.Fleet(BrittleMethod(), N, seed=3)
    for a, b in zip(ticks(fleet, ys), alone(BrittleMethod(), ys), strict=True):
        assert_same(a, b)
    assert fleet[0].refused == 2 and fleet[1].given_up > 50 and fleet[2].refused == 0


def test_one_program_for_all(name: str) -> None:
    """Nothing is compiled after the first tick: not at the end of the trial, by a restart, or by one that restarts."""
    ys = recordings(5, 200)
    ys[:15, 0] *= 1e-5
    fleet = fleet_of(name, num_inducing=7)
    fleet.learn_one(ys[0])
    clock = CompileClock()
    for y in ys[1:]:
        fleet.learn_one(y)
    fleet.learn_many(ys)
    assert clock.count == 0 and fleet[0].unit_samples > 15


def test_a_member_is_saved_and_goes_on(tmp_path: Path) -> None:
    ys = recordings(7)
    fleet, whole = (gpssm.Fleet(start("VJF").method, ["a", "b", "c"], seed=3) for _ in range(2))
    expected = ticks(whole, ys)
    ticks(fleet, ys[:70])
    fleet["b"].save(tmp_path / "b.gpssm")
    loaded = gpssm.load(tmp_path / "b.gpssm")
    assert isinstance(loaded, Stream)
    fleet["b"] = loaded
    clock = CompileClock()
    for i, each in enumerate(ticks(fleet, ys[70:])):
        assert_same(each, expected[i]._replace(returned=expected[i].returned[70:]))
    assert fleet["b"] is loaded and clock.count == 0
    loaded.learn_one([0.5])  # by itself
    fleet.learn_one(ys[0])
    assert loaded.count == 122 and fleet[2].count == 121 and len(fleet) == 3


def test_threads_take_turns() -> None:
    """One has the fleet tick, another has one of its streams learn: no sample is lost."""
    fleet, ys = fleet_of("VJF"), recordings(2, 60)
    fleet.learn_many(ys)
    other = threading.Thread(target=lambda: [fleet[1].learn_one(y) for y in ys[:, 1]])
    other.start()
    for y in ys:
        fleet.learn_one(y)
    other.join()
    assert [fleet[i].count for i in range(N)] == [120, 180, 120]


def test_what_cannot_be_used_is_refused() -> None:
    method = registry.build_online("VJF", state_dim=1, num_inducing=2)
    fleet = gpssm.Fleet(method, 2)
    for ys, us, message in [
        (np.zeros((3, 1)), None, r"ys: shape \(3, 1\); expected \(2, channels\)"),
        ([0.0, 1.0], None, r"ys: shape \(2,\)"),
        ([["a"], ["b"]], None, "ys: expected numbers"),
        ([[np.inf], [0.0]], None, "ys: infinite"),
        (np.zeros((2, 0)), None, "ys: shape"),
        (np.zeros((2, 2)), None, "emission: 2 outputs"),
        (np.zeros((2, 1)), np.zeros((3, 1)), "us: shape"),
        (np.zeros((2, 1)), [[0.0], [np.nan]], "NaN"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            fleet.learn_one(ys, us)
    assert fleet[0].output_dim is None and fleet[1].count == 0
    fleet.learn_one([[0.0], [1.0]])
    for ys, us, message in [
        (np.zeros((4, 2)), None, r"\(T, 2, 1\)"),
        (np.zeros((4, 2, 1)), np.zeros((3, 2, 1)), "us: "),
    ]:
        with pytest.raises(InvalidInput, match=message):
            fleet.learn_many(ys, us)
    for names in ([], ["a", "a"], [1, 2], 0):
        with pytest.raises(InvalidInput, match="names: "):
            gpssm.Fleet(method, names)  # type: ignore[arg-type]
    for sensor in ("x", 2, 0.5):
        with pytest.raises(InvalidInput, match=r"sensor: .*one of 1, 2"):
            fleet[sensor]  # type: ignore[index]
    for stream in (gpssm.OEnVI(1).start(), gpssm.VJF(2, num_inducing=2).start(), fleet[1]):
        with pytest.raises(InvalidInput, match="stream: "):
            fleet[0] = stream
    fleet[0] = fleet[0]
