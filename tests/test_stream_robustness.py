"""No sample, thread or fork may damage a stream, and what is not believed is counted and reported."""

import copy
import multiprocessing
import pickle
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gpssm
from gpssm.datasets import kink
from gpssm.errors import InvalidInput
from gpssm.methods import registry
from gpssm.online.base import Info, OnlineMethod
from gpssm.online.gate import FAR, LARGEST, Gate
from gpssm.online.stream import Stream

NDArray = np.ndarray
SMALL = {"num_inducing": 15, "num_members": 10, "num_particles": 30, "trial": 0}  # as in test_online_methods
ABSURD = (1e7, 1e20, 1e40, 1e59, 1e61, 1e154, 1e200, float(np.finfo(float).max))
ANYTHING = st.one_of(
    st.floats(allow_nan=True, allow_infinity=False),
    st.sampled_from([0.0, 1.0, -1.0, 1e-300, 5e-324, 1e60, -1e60, 1e59, 1e6, -1e5]),
)


@pytest.fixture(scope="module", params=list(registry.ONLINE))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def data() -> NDArray:
    return kink(300, 0.0025, 0.008, seed=3).outputs


def start(name: str, **changes: Any) -> Stream:
    """As tests of all online methods have it, so that nothing is compiled for these."""
    chosen = registry.applicable(name, state_dim=1, **SMALL | changes)
    stream: Stream = registry.build_online(name, **chosen).start()
    return stream


def finite(stream: Stream) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(stream.state))


@pytest.mark.parametrize("at", [3, 150])
def test_one_absurd_sample_is_as_good_as_a_missing_one(name: str, data: NDArray, at: int) -> None:
    """During the warm-up and after, of any size; and the stream says so."""
    missing = start(name)
    expected = [missing.learn_one(None if t == at else y) for t, y in enumerate(data)]
    for value in ABSURD:
        stream = start(name)
        found = [stream.learn_one([value] if t == at else y) for t, y in enumerate(data)]
        assert finite(stream) and stream.count == len(data)
        assert all(
            np.array_equal(a.state_mean, b.state_mean, equal_nan=True)
            for a, b in zip(found[20:], expected[20:], strict=True)
        )
        if at == 150 or value > LARGEST:
            assert stream.refused == 1 and "y[0]" in found[at].refused and "missing" in found[at].refused
        assert not any(e.refused for t, e in enumerate(found) if t != at)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(samples=st.lists(ANYTHING, max_size=60), first=st.integers(0, 40))
@example(samples=[1.0] * 9 + [1e60], first=0)
@example(samples=[1e60, -1e60] * 10, first=0)
@example(samples=[1e-200, 2e-200] * 10, first=0)
@example(samples=[5e-324] * 60, first=0)
@example(samples=[float(np.finfo(float).max)] * 30, first=12)
@example(samples=[10.0**k for k in range(60)], first=20)
def test_a_stream_stays_finite_whatever_it_is_fed(name: str, data: NDArray, samples: list[float], first: int) -> None:
    stream = start(name)
    for y in data[:first]:
        stream.learn_one(y)
    for value in samples:
        estimate = stream.learn_one([value])
        if stream.ready:
            assert finite(stream)
            assert np.isfinite(estimate.state_mean).all() and np.isfinite(estimate.state_cov).all()
    # And it is alive: it goes on to learn.
    for y in data[:30]:
        estimate = stream.learn_one(y)
    assert np.isfinite(estimate.predicted_mean).all()
    assert np.isfinite(stream.forecast(3, num_paths=4).samples).all()


def test_an_absurd_input_is_refused_and_changes_nothing(data: NDArray) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(80, 1))
    one, other = start("OEnVI"), start("OEnVI")
    for t, (y, u) in enumerate(zip(data[:80], inputs, strict=True)):
        if t in (4, 60):
            for value in (1e200, 1e61) if t == 4 else ABSURD:
                with pytest.raises(InvalidInput, match=r"u\[0\].*left out"):
                    one.learn_one(y, [value])
        a, b = one.learn_one(y, u), other.learn_one(y, u)
    assert np.array_equal(a.state_mean, b.state_mean)
    assert one.refused == 2 + len(ABSURD) and one.count == 80


def test_a_fault_among_the_first_samples_is_left_behind(data: NDArray) -> None:
    """Units of a broken sensor are those of nothing: the stream looks back, and begins again."""
    stream = start("OEnVI")
    for t, y in enumerate(data):
        estimate = stream.learn_one([1e30 * (-1) ** t] if t < 12 else y)
    assert np.abs(estimate.predicted_mean - data[-1]) < 5 * data.std()


def test_counts_and_ranges_are_saved(data: NDArray, tmp_path: Path) -> None:
    stream = start("OEnVI")
    for y in [*data[:40], [1e30], *data[40:50]]:
        stream.learn_one(y)
    stream.save(tmp_path / "stream.gpssm")
    resumed = gpssm.load(tmp_path / "stream.gpssm")
    assert resumed.refused == 1
    assert resumed.learn_one([1e30]).refused == stream.learn_one([1e30]).refused != ""


def test_a_stream_without_ranges_finds_them_by_what_it_predicts(data: NDArray) -> None:
    """As one that goes on from a fitted model, or was saved before there were ranges."""
    stream = start("OEnVI")
    for y in data[:200]:
        stream.learn_one(y)
    stream.gates = None
    assert "taken as missing" in stream.learn_one([1e30]).refused
    assert not stream.learn_one(data[201]).refused


def test_a_state_that_is_not_finite_is_never_saved(data: NDArray, tmp_path: Path) -> None:
    stream = start("OEnVI")
    for y in data[:20]:
        stream.learn_one(y)
    path = tmp_path / "stream.gpssm"
    stream.save(path)
    before = path.read_bytes()
    stream.state = jax.tree.map(lambda leaf: np.nan * np.asarray(leaf, float), stream.state)
    with pytest.raises(InvalidInput, match="finite"):
        stream.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


class Brittle(NamedTuple):
    level: Any
    broken: Any


@dataclass(frozen=True)
class BrittleMethod(OnlineMethod):
    """Its state is infinite after a seven, and cannot be moved any more after a nine."""

    state_dim: int = 1
    name: str = "brittle"
    warm_up: int = 3

    def initial_state(self, outputs: NDArray, inputs: NDArray) -> Brittle:
        return Brittle(np.zeros(1), np.zeros(()))

    @staticmethod
    def paths(key: Any, state: Brittle, inputs: Any, num_paths: int) -> Any:
        raise NotImplementedError

    @staticmethod
    def step(key: Any, state: Brittle, y: Any, c: Any) -> tuple[Brittle, Info]:
        level = jnp.where(jnp.isnan(y), state.level, y)
        level = jnp.where((y == 7.0) | (state.broken > 0), jnp.inf, level)
        info = Info(level, jnp.ones((1, 1)), level, jnp.ones(1), jnp.zeros(()))
        return Brittle(level, jnp.where(jnp.any(y == 9.0), 1.0, state.broken)), info


def test_a_core_that_fails_does_not_take_the_stream_with_it() -> None:
    stream = Stream(BrittleMethod())
    for y in (1.0, 2.0, 3.0, 4.0):
        assert not stream.learn_one([y]).refused
    found = stream.learn_one([7.0])
    assert "no finite state" in found.refused and found.state_mean == [4.0] and stream.refused == 1
    assert stream.learn_one([5.0]).state_mean == [5.0]
    stream.learn_one([9.0])
    found = stream.learn_one([5.0])
    assert "started again" in found.refused and not stream.ready and stream.count == 8
    for y in (1.0, 2.0):
        stream.learn_one([y])
    assert stream.ready and float(stream.state.level[0]) == 2.0 and stream.refused == 2


def test_threads_take_turns(data: NDArray) -> None:
    """Four of them on one stream: every sample is learned from once, and nothing is torn."""
    stream = start("OEnVI")
    for y in data[:20]:
        stream.learn_one(y)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for y in data[:50]:
                stream.learn_one(y)
                stream.forecast(2, num_paths=4)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and stream.count == 220 and finite(stream)


def test_copies_and_pickles_go_on_alike(data: NDArray) -> None:
    stream = start("OEnVI")
    for y in data[:40]:
        stream.learn_one(y)
    copies = [copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))]
    expected = stream.learn_one(data[40])
    for other in copies:
        found = other.learn_one(data[40])
        assert np.array_equal(found.state_mean, expected.state_mean)


def _in_child(queue: Any, stream: Stream) -> None:
    try:
        stream.learn_one([1.0])
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")
    else:
        queue.put("learned")


@pytest.fixture
def no_fork_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.skipif(not hasattr(multiprocessing, "get_context"), reason="needs fork")
def test_a_forked_child_says_so_and_does_not_hang(data: NDArray, no_fork_warning: None) -> None:
    stream = start("OEnVI")
    for y in data[:20]:
        stream.learn_one(y)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(queue, stream))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert "spawn" in queue.get()


# --- ranges ---------------------------------------------------------------------------------

ROWS = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=40)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(rows=ROWS, scale=st.sampled_from([1e-30, 1.0, 1e30]))
def test_ordinary_samples_are_admitted(rows: list[float], scale: float) -> None:
    """Whatever a channel has done, it may do again."""
    values = scale * np.array(rows)[:, None]
    gate = Gate.of(values)
    believed = ~gate.outside(values)
    for value in values[believed[:, 0]]:
        outside, gate = gate.admit(value)
        assert not outside.any()
        assert np.isfinite(gate.centre).all() and (gate.reach >= gate.least).all()


@settings(deadline=None, max_examples=200, derandomize=True)
@given(values=st.lists(ANYTHING, max_size=100))
def test_a_range_is_always_finite(values: list[float]) -> None:
    gate = Gate.of(np.random.default_rng(0).normal(size=(10, 1)))
    for value in values:
        outside, gate = gate.admit(np.array([value]))
        assert np.isfinite([*gate.centre, *gate.reach]).all() and gate.reach > 0
        assert outside[0] or not abs(value) > LARGEST


def test_many_outliers_make_no_room_for_worse_ones() -> None:
    """One in a thousand, just inside the range, for a million samples: the range stays where the others are."""
    gate = Gate.of(np.random.default_rng(0).normal(size=(10, 1)))
    for _ in range(1000):
        gate = gate.admit(gate.centre + 0.99 * FAR * gate.reach)[1]
        for value in (-1.0, 1.0) * 50:
            gate = gate.admit(np.array([value]))[1]
    assert gate.reach < 10.0 and abs(gate.centre[0]) < 10.0


def test_a_channel_that_rests_may_move_again() -> None:
    rows = np.random.default_rng(0).normal(size=(10, 1))
    gate = Gate.of(rows)
    for _ in range(100_000):
        gate = gate.admit(np.array([0.5]))[1]
    assert not gate.admit(np.array([1e4]))[0].any()


def test_the_first_spike_does_not_decide_the_units() -> None:
    rows = np.array([[0.1], [0.3], [90.0], [0.2], [-0.1], [0.2], [0.4], [0.1], [0.0], [0.3]])
    assert np.flatnonzero(Gate.of(rows).outside(rows)).tolist() == [2]
    steps = np.array([[0.0], [0.01], [0.02], [0.0], [0.01], [0.0], [5.0], [20.0], [40.0], [60.0]])
    assert not Gate.of(steps).outside(steps).any()
