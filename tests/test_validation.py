"""Bad input: a ValueError that names the argument and says what is expected, before anything is compiled."""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.filters import ensemble
from gpssm.filters.ensemble import FilterSettings
from gpssm.models.scaling import moments
from gpssm.numerics.parameters import parameters
from gpssm.plumbing.compilation import CompileClock
from gpssm.plumbing.validation import training_data
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import Posterior

T = 30
SIGNAL = np.sin(np.arange(float(T)))
TWO = np.stack([SIGNAL, np.cos(np.arange(float(T)))], axis=1)


def replaced(array, index, value):
    array = np.array(array)
    array[index] = value
    return array


def wide(x):
    """A function of the state with one output too many."""
    return jnp.concatenate([x, x], axis=1)


def half(x):
    return 0.5 * x


def refused(call):
    """The message of the ValueError that `call` raises without compiling anything."""
    jax.clear_caches()
    clock = CompileClock()
    with pytest.raises(ValueError) as error:
        call()
    assert clock.count == 0, f"compiled {clock.count} program(s) before refusing: {error.value}"
    return str(error.value)


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    def train(*args, **kwargs):
        raise AssertionError("training began")

    monkeypatch.setattr("gpssm.methods.base.train", train)


# --- data -----------------------------------------------------------------------------------------

DATA = {
    "three dimensions": (np.zeros((5, 2, 2)), None, "outputs: expected an array (time, channels)", "(5, 2, 2)"),
    "no dimension": (3.0, None, "outputs: expected an array (time, channels)", "()"),
    "nothing": (None, None, "outputs: expected an array (time, channels)", "()"),
    "empty": ([], None, "outputs: 0 sample(s)", "expected at least 2"),
    "one sample": (np.ones((1, 1)), None, "outputs: 1 sample(s)", "expected at least 2"),
    "no channels": (np.zeros((10, 0)), None, "outputs: 0 channels", "expected at least one"),
    "infinity": (replaced(TWO, (3, 1), np.inf), None, "outputs: infinite value at row 3, column 1", "NaN"),
    "minus infinity": (replaced(SIGNAL, 7, -np.inf), None, "outputs: infinite value at row 7, column 0", "NaN"),
    "channel of NaN": (replaced(TWO, (slice(None), 1), np.nan), None, "outputs: channel 1 is NaN", "expected"),
    "constant channel": (
        replaced(TWO, (slice(None), 0), 4.5),
        None,
        "outputs: channel 0 is constant (4.5)",
        "expected",
    ),
    "constant but for gaps": (replaced(np.ones(T), 4, np.nan), None, "outputs: channel 0 is constant (1)", "expected"),
    "one value": (replaced(np.full(T, np.nan), 4, 2.0), None, "outputs: channel 0 is constant (2)", "expected"),
    "text": (["a", "b", "c"], None, "outputs: expected numbers", "'a'"),
    "text in an array": (np.array([["1", "x"]] * 5), None, "outputs: expected numbers", "x"),
    "objects": ([object(), object()], None, "outputs: expected numbers", "object"),
    "a dictionary": ({"y": [1, 2, 3]}, None, "outputs: expected numbers", "dict"),
    "ragged rows": ([[1.0, 2.0], [3.0]], None, "outputs: expected numbers", "3.0"),
    "short inputs": (SIGNAL, np.ones((T - 1, 1)), f"inputs: {T - 1} rows, but {T} are needed", "expected"),
    "NaN in inputs": (SIGNAL, replaced(TWO, (2, 1), np.nan), "inputs: NaN at row 2, column 1", "must be known"),
    "infinite input": (SIGNAL, replaced(TWO, (2, 1), np.inf), "inputs: infinite value at row 2, column 1", ""),
    "inputs of three dimensions": (SIGNAL, np.ones((T, 1, 1)), "inputs: expected an array", f"({T}, 1, 1)"),
    "inputs of text": (SIGNAL, ["a"] * T, "inputs: expected numbers", "'a'"),
    "array for a list": ([SIGNAL, SIGNAL], SIGNAL, "inputs: expected a list of as many sequences", ""),
    "list for an array": (SIGNAL, [SIGNAL], "inputs: expected a list of as many sequences", ""),
    "too few input sequences": ([SIGNAL, SIGNAL], [SIGNAL], "inputs: got 1 sequences, outputs has 2", "expected"),
    "different channels": ([SIGNAL, TWO], None, "outputs: sequences have [1, 2] channels", "expected the same"),
    "different inputs": (
        [SIGNAL, SIGNAL],
        [SIGNAL, TWO],
        "inputs: sequences have [1, 2] channels",
        "expected the same",
    ),
    "one short sequence": ([SIGNAL, np.ones(1)], None, "outputs[1]: 1 sample(s)", "expected at least 2"),
    "infinity in a sequence": (
        [SIGNAL, replaced(SIGNAL, 5, np.inf)],
        None,
        "outputs[1]: infinite value at row 5",
        "NaN",
    ),
    "short inputs in a list": (
        [SIGNAL, SIGNAL],
        [SIGNAL, SIGNAL[:9]],
        "inputs[1]: 9 rows, but 30 are needed",
        "expected",
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_data_is_refused(case):
    outputs, inputs, beginning, more = DATA[case]
    message = refused(lambda: gpssm.EnVI(1).fit(outputs, inputs))
    assert message.startswith(beginning)
    assert more in message


def test_good_data_is_accepted():
    """What is left of a sequence is what was handed in, and a vector is one channel."""
    ys, cs, *_ = training_data([SIGNAL, replaced(SIGNAL[:9], 3, np.nan)], [TWO, TWO[:9]])
    assert [y.shape for y in ys] == [(T, 1), (9, 1)]
    assert [c.shape for c in cs] == [(T, 2), (9, 2)]
    np.testing.assert_array_equal(ys[0][:, 0], SIGNAL)
    np.testing.assert_array_equal(cs[1], TWO[:9])
    (y,), (c,), *_ = training_data(TWO.tolist(), None)
    np.testing.assert_array_equal(y, TWO)
    assert c.shape == (T, 0)
    all_missing_here = training_data([SIGNAL, np.full(5, np.nan)], None)[0]
    assert np.isnan(all_missing_here[1]).all()


def test_rows_collected_in_a_loop_are_one_recording():
    """Many short vectors are rows, a few long ones recordings; nested lists of rows are recordings."""
    (y,), *_ = training_data(list(TWO), None)
    np.testing.assert_array_equal(y, TWO)
    assert [len(y) for y in training_data([SIGNAL, SIGNAL[:20]], None)[0]] == [T, 20]
    assert [y.shape for y in training_data([TWO.tolist(), TWO[:9].tolist()], None)[0]] == [(T, 2), (9, 2)]


def test_small_and_large_units_are_not_constant():
    """A spread that rounding still resolves is a signal, whatever the unit."""
    for y in (1e6 + 1e-4 * SIGNAL, 1e-200 * SIGNAL):
        _, scale = moments(training_data(y, None)[0])
        np.testing.assert_allclose(scale, np.std(y / np.abs(y).max()) * np.abs(y).max(), rtol=1e-6)


def test_inputs_that_are_known_for_longer_than_the_outputs():
    """As in `filter`, the rows without an output are not used; whatever happens must be about `inputs`."""
    try:
        ys, cs, *_ = training_data(SIGNAL[:20], TWO)
    except ValueError as error:
        assert str(error).startswith("inputs: ")
    else:
        assert len(cs[0]) == len(ys[0]) == 20


# --- the choices of a method ----------------------------------------------------------------------

CHOICES = {
    "no state": ({"state_dim": 0}, "state_dim: expected a whole number of at least 1", "0"),
    "half a state": ({"state_dim": 1.5}, "state_dim: expected a whole number of at least 1", "1.5"),
    "state as text": ({"state_dim": "two"}, "state_dim: expected a whole number", "'two'"),
    "no inducing points": ({"num_inducing": 0}, "num_inducing: expected a whole number of at least 1", "0"),
    "two members": ({"num_members": 2}, "num_members: expected a whole number of at least 3", "2"),
    "members below zero": ({"num_members": -5}, "num_members: expected a whole number of at least 3", "-5"),
    "members of a fraction": ({"num_members": 10.0}, "num_members: expected a whole number", "10.0"),
    "true members": ({"num_members": True}, "num_members: expected a whole number", "True"),
    "no members": ({"num_members": 2.5}, "num_members: expected a whole number", "2.5"),
    "no samples": ({"num_samples": 0}, "num_samples: expected a whole number of at least 1", "0"),
    "window": ({"window": -1}, "window: expected a whole number of at least 0", "-1"),
    "gap length": ({"gap_length": 0}, "gap_length: expected a whole number of at least 1", "0"),
    "gap fraction": ({"gap_fraction": 1.0}, "gap_fraction: expected a share in [0, 1)", "1.0"),
    "negative gap fraction": ({"gap_fraction": -0.1}, "gap_fraction: expected a share in [0, 1)", "-0.1"),
    "update": ({"update": "smooth"}, "update: expected one of", "'smooth'"),
    "moments": ({"moments": "all"}, "moments: expected one of", "'all'"),
    "dtype": ({"dtype": "float16"}, "dtype: expected one of", "'float16'"),
    "deflation": ({"inflation": 0.9}, "inflation: expected a factor of at least 1", "0.9"),
    "no inflation": ({"inflation": float("nan")}, "inflation: expected a factor of at least 1", "nan"),
    "localization": ({"localization": 0.0}, "localization: expected a positive radius", "0.0"),
    "fixed as text": ({"fixed": "obs_noise"}, "fixed: expected names in a tuple", "('obs_noise',)"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_a_choice_is_refused_at_once(case):
    """Without data: an argument that can never be right is refused where it is made."""
    choice, beginning, more = CHOICES[case]
    message = refused(lambda: gpssm.EnVI(**({"state_dim": 1} | choice)))
    assert message.startswith(beginning)
    assert more in message


WITH_DATA = {
    "negative process noise": ({"process_noise": -1}, SIGNAL, "process_noise: expected positive", "-1"),
    "process noise of zero": ({"process_noise": 0.0}, SIGNAL, "process_noise: expected positive", "0.0"),
    "negative obs noise": ({"obs_noise": -1}, SIGNAL, "obs_noise: expected positive", "-1"),
    "obs noise NaN": ({"obs_noise": float("nan")}, SIGNAL, "obs_noise: expected positive, finite", "nan"),
    "three variances": (
        {"process_noise": [1, 2, 3]},
        SIGNAL,
        "process_noise: expected a variance or 1 of them",
        "(3,)",
    ),
    "obs noise matrix": ({"obs_noise": np.eye(1)}, SIGNAL, "obs_noise: expected a variance or 1 of them", "(1, 1)"),
    "obs noise as text": ({"obs_noise": "small"}, SIGNAL, "obs_noise: expected a variance or 1 of them", "'small'"),
    "unknown name in fixed": (
        {"fixed": ("noise",)},
        SIGNAL,
        "fixed: no parameter is called 'noise'",
        "obs_noise.variance",
    ),
    "known C of wrong shape": (
        {"state_dim": 2, "emission": np.eye(2)},
        SIGNAL,
        "emission: expected C of shape (outputs, states) = (1, 2)",
        "(2, 2)",
    ),
    "known C as a list": (
        {"state_dim": 2, "emission": [[1.0, 0.0, 0.0]]},
        SIGNAL,
        "emission: expected C of shape (outputs, states)",
        "(1, 3)",
    ),
    "known C of low rank": (
        {"state_dim": 2, "emission": np.ones((1, 2))},
        SIGNAL,
        "emission: the known C has rank 1",
        "expected state_dim=1",
    ),
    "repeated rows of C": (
        {"state_dim": 2, "emission": np.ones((2, 2))},
        TWO,
        "emission: the known C has rank 1",
        "expected state_dim=1",
    ),
    "NaN in C": ({"emission": np.array([[np.nan]])}, SIGNAL, "emission: the matrix C contains NaN", "expected numbers"),
    "C of text": ({"emission": np.array([["a"]])}, SIGNAL, "emission: expected numbers", "a"),
    "unknown emission": ({"emission": "quadratic"}, SIGNAL, "emission: expected 'observed', 'learned'", "'quadratic'"),
    "more outputs than states": (
        {"emission": "observed"},
        TWO,
        "emission: 'observed' needs a state for each of",
        "learned",
    ),
    "emission with too many outputs": (
        {"emission": wide},
        SIGNAL,
        "emission: the function maps (2, 1) to (2, 2)",
        "expected (2, 1)",
    ),
    "emission with too few outputs": (
        {"emission": half},
        TWO,
        "emission: the function maps (2, 1) to (2, 1)",
        "expected (2, 2)",
    ),
    "start value of wrong shape": (
        {"emission": gpssm.LinearEmission(np.eye(2), np.zeros(2))},
        SIGNAL,
        "emission: expected C of shape",
        "(2, 2)",
    ),
    "bias of wrong shape": (
        {"emission": gpssm.LinearEmission(np.eye(1), np.zeros(3))},
        SIGNAL,
        "emission: ",
        "expected",
    ),
    "unknown mean": ({"mean": "quadratic"}, SIGNAL, "mean: expected 'linear', 'identity', 'zero'", "'quadratic'"),
    "a number as mean": ({"mean": 3.0}, SIGNAL, "mean: expected 'linear', 'identity', 'zero'", "float"),
    "mean function of wrong shape": ({"mean": wide}, SIGNAL, "mean: ", "expected (2, 1)"),
    "kernel by name": ({"kernel": "rbf"}, SIGNAL, "kernel: ", "'rbf'"),
    "kernel with too many length scales": ({"kernel": gpssm.RBF([1.0, 2.0])}, SIGNAL, "kernel: ", "expected"),
    "kernel with a negative variance": ({"kernel": gpssm.RBF(1.0, -1.0)}, SIGNAL, "kernel: ", "expected"),
    "initial state without covariance": (
        {"initial_state": 1.0},
        SIGNAL,
        "initial_state: expected (mean, covariance)",
        "",
    ),
    "initial covariance below zero": (
        {"initial_state": (0.0, -1.0)},
        SIGNAL,
        "initial_state: expected a positive-definite",
        "",
    ),
    "initial covariance of wrong shape": (
        {"initial_state": (0.0, np.eye(2))},
        SIGNAL,
        "initial_state: expected",
        "(2, 2)",
    ),
    "initial mean of wrong shape": ({"initial_state": (np.zeros(3), 1.0)}, SIGNAL, "initial_state: ", "expected"),
    "initial mean NaN": ({"initial_state": (np.nan, 1.0)}, SIGNAL, "initial_state: ", "expected"),
    "mixture with a function": ({"emission": half, "update": "mixture"}, SIGNAL, "update: 'mixture'", "expected"),
    "localization with a function": (
        {"emission": half, "localization": 1.0},
        SIGNAL,
        "localization: ",
        "linear emission",
    ),
}


@pytest.mark.parametrize("case", WITH_DATA)
def test_a_choice_that_does_not_fit_the_data_is_refused(case):
    choice, outputs, beginning, more = WITH_DATA[case]
    message = refused(lambda: gpssm.EnVI(**({"state_dim": 1} | choice)).fit(outputs))
    assert message.startswith(beginning)
    assert more in message


# --- a fitted model -------------------------------------------------------------------------------


def untrained(emission=None, num_members=8):
    """A posterior with the start values of a fit: two states, one output, one input."""
    method = gpssm.EnVI(1 if emission else 2, num_inducing=4, emission=emission)
    problem = method.problem([SIGNAL[:, None]], [TWO[:, :1]])
    return Posterior(
        model=problem.model,
        scaling=problem.scaling,
        settings=FilterSettings(num_members, ensemble.Options()),
        fixed=("emission.weight",),
        history=History(step=[25], elbo=[-3.5], terms={"likelihood": [-1.0]}),
        method="EnVI",
        final_members=np.arange(16.0).reshape(-1, method.state_dim),
    )


CALLS = {
    "two channels": (lambda p: p.filter(TWO, SIGNAL), "outputs: expected 1 column(s)", f"({T}, 2)"),
    "no samples": (lambda p: p.filter(np.zeros((0, 1)), np.zeros((0, 1))), "outputs: 0 samples", "expected at least 1"),
    "no inputs": (lambda p: p.filter(SIGNAL), "inputs: missing", f"expected ({T}, 1)"),
    "short inputs": (lambda p: p.smooth(SIGNAL, SIGNAL[:5]), "inputs: 5 rows, but 30 are needed", "expected"),
    "NaN in inputs": (lambda p: p.smooth(SIGNAL, replaced(SIGNAL, 2, np.nan)), "inputs: NaN at row 2", "must be known"),
    "two inputs": (lambda p: p.log_likelihood(SIGNAL, TWO), "inputs: expected 1 column(s)", f"({T}, 2)"),
    "no horizon": (lambda p: p.forecast(0), "horizon: expected a whole number of at least 1", "0"),
    "one path": (
        lambda p: p.forecast(3, np.ones(3), num_paths=1),
        "num_paths: expected a whole number of at least 2",
        "1",
    ),
    "no future inputs": (lambda p: p.forecast(3), "inputs: missing", "expected (3, 1)"),
    "states without inputs": (lambda p: p.transition(np.zeros((4, 2))), "x: expected 3 column(s)", "(4, 2)"),
    "NaN in a state": (lambda p: p.transition([[np.nan, 0, 0]]), "x: contains NaN", "expected"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_of_a_fitted_model_is_refused(case):
    call, beginning, more = CALLS[case]
    posterior = untrained()
    message = refused(lambda: call(posterior))
    assert message.startswith(beginning)
    assert more in message


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gpssm"


@pytest.fixture
def saved(path):
    untrained().save(path)
    return path.read_bytes()


def test_what_is_loaded_is_what_was_saved(path, saved):
    """Oracle: the posterior that was saved, array by array."""
    original, loaded = untrained(), gpssm.load(path)
    assert [p.name for p in parameters(loaded.model)] == [p.name for p in parameters(original.model)]
    for a, b in zip(parameters(loaded.model), parameters(original.model), strict=True):
        np.testing.assert_array_equal(a.value, b.value)
    for a, b in zip(loaded.scaling, original.scaling, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(loaded.final_members, original.final_members)
    assert (loaded.settings, loaded.fixed, loaded.method) == (original.settings, original.fixed, original.method)
    assert loaded.history == original.history
    assert jax.tree.structure(loaded.model) == jax.tree.structure(original.model)


@pytest.mark.parametrize("kind", [int, np.int64])
def test_settings_can_still_be_hashed_after_loading(path, kind):
    """They are part of what a filter is compiled for, and a NumPy integer is an accepted number of members."""
    untrained(num_members=kind(8)).save(path)
    assert hash(gpssm.load(path).settings) == hash(untrained().settings)


def test_a_missing_file(path):
    with pytest.raises(FileNotFoundError, match="path: there is no file") as error:
        gpssm.load(path)
    assert path.name in str(error.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"time,y\n0,1.5\n", b"\x93NUMPY\x01\x00" + bytes(200), b"[1, 2]\n", b'{"format": "zip"}\n', b"3"],
)
def test_a_file_that_is_not_a_model(path, content):
    path.write_bytes(content)
    message = refused(lambda: gpssm.load(path))
    assert message.startswith("path: ")
    assert f"{path.name}' is not a gpssm model" in message


def test_a_truncated_model_at_any_length(path, saved):
    header = saved.index(b"\n")
    for length in (1, header // 2, header, header + 1, header + 60, len(saved) // 2 + header // 2, len(saved) - 1):
        path.write_bytes(saved[:length])
        message = refused(lambda: gpssm.load(path))
        assert "is not a gpssm model" in message or "is damaged or incomplete" in message


def test_a_model_with_one_wrong_byte(path, saved):
    at = saved.index(b"\n") + 500
    path.write_bytes(saved[:at] + bytes([saved[at] ^ 1]) + saved[at + 1 :])
    assert "is damaged or incomplete" in refused(lambda: gpssm.load(path))


def rewrite(path, saved, **changes):
    """With a checksum that is right."""
    _, header, payload = saved.split(b"\n", 2)
    data = json.dumps(json.loads(header) | changes).encode() + b"\n" + payload
    path.write_bytes(f"gpssm-model 4 {hashlib.sha256(data).hexdigest()}\n".encode() + data)


def test_a_model_of_another_format_version(path, saved):
    old = b'{"format": "gpssm-model", "version": 999, "sha256": "", "arrays": 0, "tree": null}\n'
    for content in (saved.replace(b"gpssm-model 4 ", b"gpssm-model 999 "), old):
        path.write_bytes(content)
        message = refused(lambda: gpssm.load(path))
        assert message.startswith("path: ")
        assert "has format version" in message and "999" in message
        assert "reads versions 2 to 4" in message


def test_a_model_with_an_unknown_part(path, saved):
    """Nothing outside the package is ever looked up, whatever a file says."""
    for name in ("Teapot", "Path", "system", "os.system", "gpssm.Teapot", "gpssm.errors.InvalidInput", "gpssm..x.Y"):
        rewrite(path, saved, tree={"class": name, "fields": {}})
        assert f"contains {name!r}, which this gpssm does not know" in refused(lambda: gpssm.load(path))


def test_a_function_must_be_handed_in_again(path):
    untrained(half).save(path)
    message = refused(lambda: gpssm.load(path))
    assert message.startswith("functions: the model has a function of yours") and "'emission'" in message
    assert gpssm.load(path, functions={"emission": half}).model.emission.function is half


def test_a_directory_that_does_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path: the directory .*nowhere"):
        untrained().save(tmp_path / "nowhere" / "model.gpssm")


def test_a_save_that_fails_leaves_the_old_file(path, saved, monkeypatch):
    def full(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        untrained(num_members=99).save(path)
    assert path.read_bytes() == saved
    assert list(path.parent.iterdir()) == [path]
