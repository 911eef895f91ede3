"""The linear start of hidden states: exact on linear systems, and never in the way elsewhere."""

import numpy as np
import pytest

from gpssm.training import subspace

LENGTH = 400


def oscillator(length: int = LENGTH, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A driven, damped oscillation of which the position alone is seen; standardised."""
    rng = np.random.default_rng(seed)
    a, b = np.array([[0.9, 0.3], [-0.3, 0.9]]), np.array([0.2, 1.0])
    u, x, y = rng.standard_normal((length, 1)), np.zeros(2), np.empty((length, 1))
    for t in range(length):
        x = a @ x + b * u[t] + noise * rng.standard_normal(2)
        y[t] = x[0]
    return y / y.std(), u


def simulate(found: subspace.Subspace, first: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    x, path = first, []
    for c in inputs:
        x = found.weight @ np.concatenate([x, c]) + found.bias
        path.append(x)
    return np.array(path)


def test_finds_a_linear_system_with_a_hidden_state() -> None:
    """Oracle: the system itself. Its eigenvalues are found, and a free run follows it for 100 steps."""
    y, u = oscillator()
    found = subspace.identify([y[:300]], [u[:300]], 2)
    path = simulate(found, found.states[0][-1], u[300:])
    assert np.sqrt(np.mean((path[:, :1] - y[300:]) ** 2)) < 0.05
    values = np.linalg.eigvals(found.weight[:, :2])
    np.testing.assert_allclose(np.sort_complex(values), [0.9 - 0.3j, 0.9 + 0.3j], atol=0.02)


def test_states_begin_with_the_outputs_and_have_unit_variance() -> None:
    y, u = oscillator(noise=0.1)
    found = subspace.identify([y], [u], 3)
    np.testing.assert_array_equal(found.states[0][:, :1], y)
    np.testing.assert_allclose(found.states[0][:, 1:].std(axis=0), 1.0, rtol=1e-6)


def test_gaps_change_little() -> None:
    """A fifth of the outputs missing: the free run is still that of the system."""
    y, u = oscillator()
    holed = y[:300].copy()
    holed[np.random.default_rng(1).permutation(300)[:60]] = np.nan
    found = subspace.identify([holed], [u[:300]], 2)
    path = simulate(found, subspace.identify([y[:300]], [u[:300]], 2).states[0][-1], u[300:])
    assert np.isfinite(path).all()
    assert np.abs(np.linalg.eigvals(found.weight[:, :2])).max() < 1.0


@pytest.mark.parametrize("length", [2, 3, 10])
def test_short_recordings_are_no_trouble(length: int) -> None:
    y, u = oscillator(length)
    found = subspace.identify([y], [u], 4)
    assert found.states[0].shape == (length, 4)
    assert all(np.isfinite(part).all() for part in (found.weight, found.bias, *found.states))


def test_several_recordings_are_one_system() -> None:
    parts = [oscillator(150, seed=s) for s in range(3)]
    found = subspace.identify([y for y, _ in parts], [u for _, u in parts], 2)
    assert [len(s) for s in found.states] == [150] * 3
    values = np.linalg.eigvals(found.weight[:, :2])
    np.testing.assert_allclose(np.abs(values), np.sqrt(0.9), atol=0.03)


def test_fill_interpolates() -> None:
    y = np.array([[np.nan, np.nan], [1.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    np.testing.assert_array_equal(subspace.fill(y), [[1, 0], [1, 0], [2, 0], [3, 0]])
