"""Many samples at once are the same as one after the other, to the last digit; and nothing is compiled between two."""

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpssm
from gpssm.datasets import kink
from gpssm.errors import InvalidInput
from gpssm.filters.particle import weighted_moments
from gpssm.methods import registry
from gpssm.online import core
from gpssm.online.augmented import Hypotheses
from gpssm.online.stream import Stream
from gpssm.plumbing.compilation import CompileClock
from gpssm.plumbing.precision import double_precision
from test_stream_robustness import BrittleMethod

NDArray = np.ndarray


@pytest.fixture(scope="module", params=list(registry.ONLINE))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def start(name: str, state_dim: int = 1, **choices: Any) -> Stream:
    """Of a kind of which all tests here need one program."""
    small = {"num_inducing": 8, "num_members": 10, "num_particles": 30, "trial": 50}
    chosen = registry.applicable(name, state_dim=state_dim, **small | choices)
    stream: Stream = registry.build_online(name, **chosen).start(seed=3)
    return stream


class Told(NamedTuple):
    """All that is returned by a stream, a row for every sample, and all that it carries on."""

    returned: list[Any]
    carried: list[Any]


def told(stream: Stream, rows: list[Any]) -> Told:
    bands, gates = stream.bands or (), stream.gates or ((), ())
    carried = [
        *jax.tree.leaves(stream.state),
        *(part for group in (bands, *gates) for part in group),
        stream.recent,
        *(part for sample in stream.early for part in sample),
        (stream.count, stream.refused, stream.given_up, stream.unit_samples, len(stream.early)),
    ]
    return Told(rows, carried)


def one_by_one(stream: Stream, outputs: NDArray, inputs: NDArray | None = None) -> Told:
    rows = [stream.learn_one(y, None if inputs is None else inputs[t]) for t, y in enumerate(outputs)]
    return told(stream, [tuple(row) for row in rows])


def together(stream: Stream, outputs: NDArray, inputs: NDArray | None, ends: list[int]) -> Told:
    rows: list[Any] = []
    for first, last in zip([0, *ends], [*ends, len(outputs)], strict=True):
        found = stream.learn_many(outputs[first:last], None if inputs is None else inputs[first:last])
        rows += zip(*found, strict=True)
    return told(stream, rows)


def assert_same(left: Told, right: Told) -> None:
    for a, b in zip(left.returned, right.returned, strict=True):
        assert a[-1] == b[-1]
        assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a[:-1], b[:-1], strict=True))
    for a, b in zip(left.carried, right.carried, strict=True):
        assert (a is None and b is None) or np.array_equal(a, b, equal_nan=True)


@settings(max_examples=5, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.integers(0, 260), max_size=4).map(sorted),
    st.lists(st.tuples(st.integers(0, 259), st.sampled_from([np.nan, 30.0, -3e4, 1e12, 1e200])), max_size=12),
)
def test_the_same_digits(name: str, seed: int, ends: list[int], faults: list[tuple[int, float]]) -> None:
    """Wherever the samples are cut: in the warm-up, the trial, a gap; with outliers, spikes and absurd numbers."""
    outputs = kink(260, 0.0025, 0.008, seed=seed).outputs.copy()
    for at, value in faults:
        outputs[at : at + (3 if np.isnan(value) else 1)] = value
    assert_same(one_by_one(start(name), outputs), together(start(name), outputs, None, ends))


def test_the_same_digits_with_inputs_and_a_system_at_rest(name: str) -> None:
    """The stream begins again when the system moves, from the middle of a block; an input acts late."""
    rng = np.random.default_rng(1)
    inputs = np.where(np.arange(300) < 15, 1e-4, 1.0)[:, None] * rng.normal(size=(300, 1))
    level = np.convolve(inputs[:, 0], [0.5, 1.0, 0.3])[:300]
    outputs = level[:, None] + 1e-5 * rng.normal(size=(300, 1))
    streams = [start(name, 2, input_lags=2) for _ in range(2)]
    assert_same(one_by_one(streams[0], outputs, inputs), together(streams[1], outputs, inputs, [100]))
    assert streams[0].unit_samples > 10


def test_the_same_digits_while_a_forecast_is_followed(name: str) -> None:
    outputs = kink(160, 0.0025, 0.008, seed=5).outputs
    streams = [start(name), start(name)]
    for stream in streams:
        stream.learn_many(outputs[:100])
        stream.forecast(20, num_paths=20, follow=True)
    assert_same(one_by_one(streams[0], outputs[100:]), together(streams[1], outputs[100:], None, []))


def test_a_core_that_fails_fails_the_same() -> None:
    """A state that is infinite after a sample, or that cannot be moved any more: in the middle of a block."""
    outputs = np.random.default_rng(0).integers(0, 6, size=(200, 1)).astype(float)
    outputs[[30, 77, 120], 0] = 7.0
    outputs[[60, 150], 0] = 9.0
    left, right = BrittleMethod().start(), BrittleMethod().start()
    assert_same(one_by_one(left, outputs), together(right, outputs, None, [10, 140]))
    assert right.given_up > 150 and right.refused == 3 + 2


def test_nothing_is_learned_of_samples_that_cannot_be_used() -> None:
    stream = start("VJF")
    for outputs, inputs, message in [
        ([[1.0], [np.inf]], None, "outputs: infinite"),
        (["a"], None, "outputs: expected numbers"),
        (np.zeros((3, 1)), np.zeros((2, 1)), "inputs: 2 row"),
        (np.zeros((3, 1)), [[0.0], [np.nan], [0.0]], "NaN"),
        (np.zeros((2, 2)), None, "emission: 2 outputs"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            stream.learn_many(outputs, inputs)
    assert stream.count == 0 and stream.output_dim is None
    none = stream.learn_many(np.zeros((0, 1)))
    assert none.state_mean.shape == (0, 1) and none.state_cov.shape == (0, 1, 1) and none.refused == ()


def test_an_input_that_cannot_be_believed_ends_it() -> None:
    """What came before it is learned, and the rest may follow without that sample."""
    rng = np.random.default_rng(2)
    outputs, inputs = rng.normal(size=(90, 1)), rng.normal(size=(90, 1))
    inputs[70] = 1e30
    stream, other = start("VJF"), start("VJF")
    with pytest.raises(InvalidInput, match=r"u\[0\]: 1e\+30 .*left out"):
        stream.learn_many(outputs, inputs)
    assert stream.count == 70 and stream.refused == 1
    stream.learn_many(outputs[71:], inputs[71:])
    other.learn_many(np.delete(outputs, 70, axis=0), np.delete(inputs, 70, axis=0))
    for a, b in zip(jax.tree.leaves(stream.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_is_compiled_between_two_samples(name: str) -> None:
    """Neither when the warm-up ends, nor when the trial does, nor when the stream begins again; nor by a second one."""
    outputs = kink(200, 0.0025, 0.008, seed=3).outputs.copy()
    outputs[:15] = 1e-5 * outputs[:15]
    stream = start(name, num_inducing=7)
    stream.learn_one(outputs[0])
    clock = CompileClock()
    for y in outputs[1:]:
        stream.learn_one(y)
    assert stream.unit_samples > 15
    again = start(name, num_inducing=7)
    again.learn_many(outputs)
    assert clock.count == 0


def test_no_forecast_waits_for_a_program(name: str) -> None:
    """Of one horizon after every sample: in the trial, after it, of a stream that begins again; nor of one near it."""
    outputs = kink(120, 0.0025, 0.008, seed=3).outputs.copy()
    outputs[:15] = 1e-5 * outputs[:15]
    stream = start(name, num_inducing=7)
    with pytest.raises(InvalidInput, match="prepare: "):
        stream.prepare(9)
    stream.learn_one(outputs[0])
    stream.prepare(9, num_paths=20)
    clock = CompileClock()
    for y in outputs[1:]:
        stream.learn_one(y)
        if stream.ready:
            found = stream.forecast(9, num_paths=20, follow=True)
    assert found.samples.shape == (20, 9, 1) and found.states.shape == (20, 9, 1)
    longer = stream.forecast(10, num_paths=20, calibrated=False)
    np.testing.assert_array_equal(stream.forecast(9, num_paths=20, calibrated=False).samples, longer.samples[:, :9])
    assert clock.count == 0 and stream.unit_samples > 15


@double_precision
def test_hypotheses_are_weighed_by_what_they_have_predicted() -> None:
    """Against moments of the mixture, the state after the sample and the prediction before."""
    rng = np.random.default_rng(4)
    dx, dy, evidence = 2, 3, np.array([-1.0, 0.0, -0.3])
    reports = rng.normal(size=(3, dx + dx * dx + 2 * dy + 2))
    root = rng.normal(size=(3, dx, dx))
    covs = root @ np.swapaxes(root, 1, 2)
    reports[:, dx : dx + dx * dx], reports[:, -1] = covs.reshape(3, -1), 0.0
    std = reports[:, -2 - dy : -2] = np.abs(reports[:, -2 - dy : -2])
    scores = reports[:, -2]
    after, found = core._weighed(evidence, reports, dx)
    np.testing.assert_allclose(after, evidence + scores - np.max(evidence + scores))
    shares = (jax.nn.softmax(jnp.asarray(part)) for part in (evidence + scores, evidence))
    late, early = shares
    mean, cov = weighted_moments(jnp.asarray(reports[:, :dx]), late, jnp.asarray(covs))
    predicted = jnp.asarray(reports[:, dx + dx * dx : -2 - dy])
    expected, spread = weighted_moments(predicted, early, jax.vmap(jnp.diag)(jnp.asarray(std**2)))
    score = np.log(np.sum(np.asarray(early) * np.exp(scores)))
    numbers = [mean, np.ravel(cov), expected, np.sqrt(np.diagonal(spread)), [score, 0.0]]
    np.testing.assert_allclose(found, np.concatenate(numbers), rtol=1e-12)
    # One that cannot follow a sample, while others can, is refuted; if none can, they are as good as before.
    reports[1, -1] = 1.0
    assert np.argsort(core._weighed(evidence, reports, dx)[0])[0] == 1
    reports[:, -1], reports[:, -2] = 1.0, 0.0
    after, found = core._weighed(evidence, reports, dx)
    np.testing.assert_allclose(after, evidence)
    assert found[-1] == 1.0 and abs(found[-2]) < 1e-12


def test_each_hypothesis_goes_its_own_way() -> None:
    """During the trial the states are those of streams that have one hypothesis from the start."""
    outputs = kink(40, 0.0025, 0.008, seed=2).outputs
    on_trial, alone = gpssm.OEnVI(1, 8, trial=50).start(), gpssm.OEnVI(1, 8, trial=0).start()
    on_trial.learn_many(outputs)
    alone.learn_many(outputs)
    assert isinstance(on_trial.state, Hypotheses)
    first = jax.tree.map(lambda leaf: leaf[0], on_trial.state.states)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(alone.state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_row_that_is_kept_does_not_keep_the_block() -> None:
    stream = start("VJF")
    estimate = [stream.learn_one(y) for y in kink(20, 0.0025, 0.008, seed=2).outputs][-1]
    base = estimate.state_mean.base
    assert base is None or sys.getsizeof(base) < 1000
