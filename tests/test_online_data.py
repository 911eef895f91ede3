"""The simulated systems of the online experiments."""

import numpy as np
import pytest

from gpssm.datasets import car, nascar, nascar_function
from gpssm.datasets.car import OBS_NOISE, PROCESS_NOISE, TRANSITION
from gpssm.datasets.nascar import OBS_NOISE as NASCAR_OBS_NOISE
from gpssm.datasets.nascar import PROCESS_NOISE as NASCAR_PROCESS_NOISE


def test_car_is_the_discretised_wiener_velocity_model() -> None:
    """Q = int_0^dt expm(F s) L q L^T expm(F s)^T ds, by quadrature; here expm(F s) = I + F s."""
    flow = np.eye(4, k=2)
    s = (np.arange(2000) + 0.5) / 2000 * 0.1
    columns = (np.eye(4) + flow * s[:, None, None])[:, :, 2:]
    np.testing.assert_allclose(PROCESS_NOISE, 0.1 * np.mean(columns @ columns.transpose(0, 2, 1), axis=0), rtol=1e-6)


def test_car_has_the_noise_it_says() -> None:
    data = car(20_000, random_emission=True, seed=3)
    states = data.series.states
    assert states is not None
    steps = states[1:] - states[:-1] @ TRANSITION.T
    np.testing.assert_allclose(np.cov(steps.T), PROCESS_NOISE, atol=0.03 * PROCESS_NOISE.max())
    errors = data.series.outputs - states @ data.emission.T
    np.testing.assert_allclose(np.cov(errors.T), OBS_NOISE * np.eye(4), atol=0.02)
    assert np.array_equal(car(50).emission, np.eye(4))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        # On the straights the car only moves along x_1: to the right above, to the left below.
        ([0.0, 1.0], [0.1, 1.0]),
        ([0.0, -1.0], [-0.35, -1.0]),
        # In the turns it keeps its distance from the centre.
        ([5.0, 1.0], None),
        ([-5.0, -1.0], None),
    ],
)
def test_nascar_track(x: list[float], expected: list[float] | None) -> None:
    (after,) = nascar_function(np.array([x]))
    if expected is not None:
        np.testing.assert_allclose(after, expected, atol=1e-12)
    else:
        centre = np.array([2.0 * np.sign(x[0]), 0.0])
        np.testing.assert_allclose(np.linalg.norm(after - centre), np.linalg.norm(np.array(x) - centre))
        assert np.linalg.norm(after - np.array(x)) > 0.1


def test_nascar_has_the_noise_it_says_and_repeats() -> None:
    data = nascar(4000, seed=1)
    states = data.series.states
    assert states is not None
    steps = states[1:] - nascar_function(states[:-1])
    np.testing.assert_allclose(np.var(steps, axis=0), NASCAR_PROCESS_NOISE, rtol=0.1)
    errors = data.series.outputs - states @ data.emission.T
    np.testing.assert_allclose(np.var(errors, axis=0), NASCAR_OBS_NOISE, rtol=0.1)
    assert np.array_equal(nascar(4000, seed=1).series.outputs, data.series.outputs)
    assert not np.array_equal(nascar(4000, seed=2).emission, data.emission)
