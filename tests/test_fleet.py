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
N = 6  # more than go through programs of their own
LENGTH = 120
SENSORS = [f"sensor {i}" for i in range(N)]


# The others go through the same code; what differs is compiled for long.
QUICK = ("OEnVI", "VJF")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in registry.ONLINE],
)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fleet_of(name: str, state_dim: int = 1, **choices: Any) -> gpssm.Fleet:
    return gpssm.Fleet(start(name, state_dim, **choices).method, seed=3)


def recordings(seed: int, length: int = LENGTH) -> NDArray:
    """(length, N, 1), of different systems on different scales."""
    return np.stack([(10.0**i) * kink(length, 0.0025, 0.008, seed=seed + i).outputs for i in range(N)], axis=1)


def in_turn(ys: NDArray) -> NDArray:
    """The order in which samples (t, sensor) come if all sensors report at once: pairs, a row each."""
    return np.stack(np.meshgrid(range(len(ys)), range(ys.shape[1]), indexing="ij"), axis=-1).reshape(-1, 2)


def alone(method: OnlineMethod, seeds: list[int], ys: NDArray, us: NDArray | None = None) -> list[Any]:
    """What each sensor's stream tells on its own."""
    found = []
    for i, seed in enumerate(seeds):
        stream = method.start(seed)
        rows = [stream.learn_one(y, None if us is None else us[t, i]) for t, y in enumerate(ys[:, i])]
        found.append(told(stream, [tuple(row) for row in rows]))
    return found


def learned(
    fleet: gpssm.Fleet, ys: NDArray, us: NDArray | None, order: NDArray, ends: list[int] | None = None
) -> list[Any]:
    """What the streams of a fleet tell that is given samples in an order, cut at some ends."""
    rows: list[list[Any]] = [[] for _ in range(N)]
    for part in np.split(order, ends or []):
        t, sensor = part.T
        found = fleet.learn_many([SENSORS[i] for i in sensor], ys[t, sensor], None if us is None else us[t, sensor])
        for i, row in zip(sensor, zip(*found, strict=True), strict=True):
            rows[i].append(row)
    return [told(fleet[each], of) for each, of in zip(SENSORS, rows, strict=True)]


def ticks(ys: NDArray) -> list[int]:
    return [N * t for t in range(1, len(ys))]


@settings(max_examples=4, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(
        st.tuples(st.integers(0, LENGTH - 1), st.integers(0, N - 1), st.sampled_from([np.nan, 30.0, -3e6, 1e200])),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
    st.lists(st.integers(0, LENGTH * N), max_size=6).map(sorted),
)
def test_every_sensor_is_a_stream_on_its_own(
    name: str, seed: int, faults: list[tuple[int, int, float]], random: Any, ends: list[int]
) -> None:
    """With gaps, outliers and absurd numbers, in whatever order sensors report, wherever that is cut."""
    ys = recordings(seed)
    for at, sensor, value in faults:
        ys[at : at + (15 if np.isnan(value) else 1), sensor] = value
    turns = np.repeat(np.arange(N), LENGTH).tolist()
    random.shuffle(turns)
    counts = dict.fromkeys(range(N), 0)
    order = []
    for sensor in turns:
        order.append((counts[sensor], sensor))
        counts[sensor] += 1
    fleet = fleet_of(name)
    found = learned(fleet, ys, None, np.array(order), ends)
    for a, b in zip(found, alone(fleet.method, [fleet[each].seed for each in SENSORS], ys), strict=True):
        assert_same(a, b)


def test_inputs_that_act_late_and_one_that_cannot_be_believed(name: str) -> None:
    """The sample is left out, of that sensor alone."""
    rng = np.random.default_rng(1)
    us = rng.normal(size=(LENGTH, N, 1))
    ys = np.cumsum(us, axis=0) * 0.1 + 0.01 * rng.normal(size=(LENGTH, N, 1))
    fleet = fleet_of(name, 2, input_lags=2)
    order = in_turn(ys[:100])
    found = learned(fleet, ys, us, order, ticks(ys[:100]))
    seeds = [fleet[each].seed for each in SENSORS]
    for a, b in zip(found, alone(fleet.method, seeds, ys[:100], us[:100]), strict=True):
        assert_same(a, b)
    us[[100, 105], 1] = 1e30
    rest = np.array([100, 0]) + in_turn(ys[100:])
    after = learned(fleet, ys, us, rest)
    refused = [row[-1] for row in after[1].returned]
    assert [i for i, said in enumerate(refused) if "u[0]: 1e+30" in said and "left out" in said] == [0, 5]
    assert np.isnan(after[1].returned[5][0]).all() and np.isfinite(after[1].returned[6][0]).all()
    assert [fleet[each].count for each in SENSORS] == [120, 118, 120, 120, 120, 120]
    assert [fleet[each].refused for each in SENSORS] == [0, 2, 0, 0, 0, 0]


def test_sensors_that_fail_fail_alone() -> None:
    """A state that is infinite after a sample, or that cannot be moved any more."""
    ys = np.random.default_rng(0).integers(0, 6, size=(80, N, 1)).astype(float)
    ys[[30, 50], 0] = 7.0
    ys[60, 1] = 9.0
    fleet = gpssm.Fleet(BrittleMethod(), seed=3)
    found = learned(fleet, ys, None, in_turn(ys), [N * 20, N * 41])
    for a, b in zip(found, alone(fleet.method, [fleet[each].seed for each in SENSORS], ys), strict=True):
        assert_same(a, b)
    assert (fleet[SENSORS[0]].refused, fleet[SENSORS[2]].refused) == (2, 0) and fleet[SENSORS[1]].given_up > 50


def test_one_program_for_all(name: str) -> None:
    """Nothing is compiled after the first samples: not by who joins, at the end of the trial, or by a restart."""
    ys = recordings(5, 200)
    ys[:15, 0] *= 1e-5
    fleet = fleet_of(name, num_inducing=7)
    fleet.learn_many(SENSORS, ys[0])
    clock = CompileClock()
    for y in ys[1:]:
        fleet.learn_many(SENSORS, y)
    fleet.learn_many(SENSORS * 200, ys.reshape(-1, 1))
    fleet.learn_many(["one more"] * 30, ys[:30, 2])
    assert clock.count == 0 and fleet[SENSORS[0]].unit_samples > 15


def test_sensors_join_and_leave_and_disturb_nobody(tmp_path: Path) -> None:
    """Saved, forgotten and back again; what the others are called and when they come changes nothing."""
    ys = recordings(7)
    whole, fleet = fleet_of("VJF"), fleet_of("VJF")
    expected = learned(whole, ys, None, in_turn(ys), ticks(ys))
    fleet.learn_many(["somebody else"] * 30, ys[:30, 3])
    order = in_turn(ys)
    before, after = order[order[:, 0] < 70], order[order[:, 0] >= 70]
    learned(fleet, ys, None, before[::-1][np.argsort(before[::-1, 0], kind="stable")])
    fleet[SENSORS[1]].save(tmp_path / "1.gpssm")
    del fleet[SENSORS[1]], fleet["somebody else"]
    assert SENSORS[1] not in fleet and len(fleet) == N - 1 and SENSORS[1] not in list(fleet)
    loaded = gpssm.load(tmp_path / "1.gpssm")
    assert isinstance(loaded, Stream)
    fleet[SENSORS[1]] = loaded
    clock = CompileClock()
    for a, b in zip(learned(fleet, ys, None, after), expected, strict=True):
        assert_same(a, b._replace(returned=b.returned[70:]))
    assert fleet[SENSORS[1]] is loaded and clock.count == 0
    loaded.learn_one([0.5])  # by itself
    assert fleet[SENSORS[1]].count == 121
    assert np.array_equal(
        fleet.forecast(SENSORS[2], 5, num_paths=20).samples, whole[SENSORS[2]].forecast(5, num_paths=20).samples
    )


def test_streams_that_were_put_in_go_side_by_side() -> None:
    """As many as those that join by a sample."""
    ys, fleet, other = recordings(4, 80), fleet_of("VJF"), fleet_of("VJF")
    expected = learned(fleet, ys, None, in_turn(ys), ticks(ys))
    for each in SENSORS:
        other[each] = other.method.start(fleet[each].seed)
    for a, b in zip(learned(other, ys, None, in_turn(ys), ticks(ys)), expected, strict=True):
        assert_same(a, b)
    assert other._abreast is not None


def test_seeds_are_those_of_names() -> None:
    fleet, other = (gpssm.Fleet(gpssm.VJF(1, num_inducing=2), seed=seed) for seed in (0, 1))
    for each in (fleet, other):
        each.learn_many(["a", "b", 7, np.int64(8)], np.arange(4.0))
    assert (
        list(fleet) == ["a", "b", "7", "8"]
        and 7 in fleet
        and "9" not in fleet
        and len({fleet[each].seed for each in fleet}) == 4
    )
    assert all(fleet[each].seed != other[each].seed for each in fleet)
    assert repr(fleet) == "<Fleet of 4 VJF stream(s)>"


def test_nothing_has_come() -> None:
    fleet = gpssm.Fleet(gpssm.VJF(1, num_inducing=2))
    fleet.learn_one("a", [0.5])
    empty = fleet.learn_many([], np.zeros((0, 1)))
    assert empty.state_mean.shape == (0, 1) and empty.refused == () and list(fleet) == ["a"]


def test_threads_take_turns() -> None:
    """One has the fleet learn, another has one of its streams learn: no sample is lost."""
    fleet, ys = fleet_of("VJF"), recordings(2, 60)
    learned(fleet, ys, None, in_turn(ys))
    other = threading.Thread(target=lambda: [fleet[SENSORS[1]].learn_one(y) for y in ys[:, 1]])
    other.start()
    learned(fleet, ys, None, in_turn(ys), ticks(ys))
    other.join()
    assert [fleet[each].count for each in SENSORS] == [120, 180, 120, 120, 120, 120]


def test_what_cannot_be_used_is_refused_and_changes_nothing() -> None:
    method = registry.build_online("VJF", state_dim=1, num_inducing=2)
    fleet = gpssm.Fleet(method)
    two = ["a", "b"]
    for sensors, ys, us, message in [
        (two, np.zeros((3, 1)), None, "sensors: 2 of them; expected as many as there are rows of outputs, 3"),
        (two, [["a"], ["b"]], None, "outputs: expected numbers"),
        (two, [[np.inf], [0.0]], None, "outputs: infinite"),
        (two, np.zeros((2, 0)), None, "outputs: "),
        (two, np.zeros((2, 2)), None, "emission: 2 outputs"),
        (two, np.zeros((2, 1)), np.zeros((3, 1)), "inputs: 3 of them"),
        (two, np.zeros((2, 1)), [[0.0], [np.nan]], "inputs: contain NaN"),
        ("ab", np.zeros((2, 1)), None, "sensors: 'ab'; expected a list"),
        (["a", ""], np.zeros((2, 1)), None, "sensor: ''; expected what it is called"),
        (["a", None], np.zeros((2, 1)), None, "sensor: None"),
        (["a", 1.5], np.zeros((2, 1)), None, "sensor: 1.5"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            fleet.learn_many(sensors, ys, us)
    with pytest.raises(InvalidInput, match="emission: 2 outputs"):
        fleet.learn_one("a", [0.0, 1.0])
    assert len(fleet) == 0
    fleet.learn_many(two, [[0.0], [1.0]])
    with pytest.raises(InvalidInput, match="outputs: "):
        fleet.learn_many(["c", "d"], np.zeros((2, 2)))
    with pytest.raises(InvalidInput, match="u: "):
        fleet.learn_one("c", [0.0], [1.0])
    with pytest.raises(InvalidInput, match="sensor: 'x' has not joined; expected one of 'a', 'b'"):
        fleet.forecast("x", 3)
    with pytest.raises(InvalidInput, match="'x' has not joined"):
        del fleet["x"]
    driven = gpssm.VJF(1, num_inducing=2).start()
    driven.learn_one([0.0], [1.0])
    for stream in (gpssm.OEnVI(1).start(), gpssm.VJF(2, num_inducing=2).start(), driven, fleet["b"]):
        with pytest.raises(InvalidInput, match="stream: "):
            fleet["a"] = stream
    assert list(fleet) == two
    fleet["a"] = fleet["a"]
