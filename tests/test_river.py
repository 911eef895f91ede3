"""OEnVIForecaster: the checks of river by name, and what it says set beside the stream inside it."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from river import compose, datasets, evaluate, metrics
from river.checks import yield_checks

import gpssm
from gpssm.errors import InvalidInput
from gpssm.river import OEnVIForecaster

SMALL = list(OEnVIForecaster._unit_test_params())
CHECKS = {
    f"{check.__name__}-{settings.get('method', 'OEnVI')}": (check, settings)
    for settings in SMALL
    for check in yield_checks(OEnVIForecaster(**settings))
}


@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_river(name: str) -> None:
    check, settings = CHECKS[name]
    check(OEnVIForecaster(**settings))


def small(**changes: Any) -> OEnVIForecaster:
    return OEnVIForecaster(**({"method": "VJF", "state_dim": 1, "num_inducing": 2, "num_paths": 50} | changes))


def heated(length: int, seed: int = 0) -> list[tuple[dict[str, float], float]]:
    """A temperature, and the heater and the window that act on it at once; as river has its data sets."""
    rng, y, samples = np.random.default_rng(seed), 20.0, []
    for _ in range(length):
        x = {"heater": rng.uniform(0, 3), "window": rng.uniform(0, 1)}
        y = 0.7 * y + 3.0 + 2.0 * x["heater"] - 4.0 * x["window"] + 0.05 * rng.normal()
        samples.append((x, y))
    return samples


def rows(samples: list[tuple[dict[str, float], float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([[y] for _, y in samples]), np.array([[x["heater"], x["window"]] for x, _ in samples])


def test_it_is_the_stream_of_gpssm() -> None:
    samples = heated(60)
    model = OEnVIForecaster(state_dim=1, num_inducing=5, num_paths=100, seed=3)
    for x, y in samples[:55]:
        assert model.learn_one(y, x) is None
    outputs, inputs = rows(samples)
    stream = gpssm.OEnVI(1, 5).start(seed=3)
    stream.learn_many(outputs[:55], inputs[:55])
    expected = stream.forecast(5, inputs[55:], num_paths=100, seed=3)
    ahead = [x for x, _ in samples[55:]]
    assert model.forecast(5, ahead) == expected.mean[:, 0].tolist()
    band = model.forecast_interval(5, ahead, coverage=0.5)
    assert [(step.lower, step.upper) for step in band] == list(zip(*(e[:, 0] for e in expected.band(0.5)), strict=True))
    # Which it has learned: the mean of the last five samples has another error.
    errors = np.abs(np.subtract(model.forecast(5, ahead), outputs[55:, 0]))
    assert errors.max() < 0.3 * np.abs(outputs[55:, 0] - outputs[:55].mean()).max()


def test_clones_are_new_and_pickles_go_on_bit_for_bit() -> None:
    samples = heated(40)
    model = small()
    for x, y in samples[:30]:
        model.learn_one(y, x)
    others = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    for x, y in samples[30:]:
        for each in (model, *others):
            each.learn_one(y, x)
    expected = model.forecast(3)
    assert all(each.forecast(3) == expected for each in others)
    new = model.clone()
    assert new.stream.count == 0 and new.forecast(1) == [0.0]
    assert model.clone({"num_paths": 7}).num_paths == 7 and model.stream.count == 40


@pytest.mark.parametrize("settings", SMALL, ids=["OEnVI", "VJF"])
def test_memory_stays_flat(settings: dict[str, Any]) -> None:
    model, samples = OEnVIForecaster(**settings), heated(400)
    sizes = []
    for number, (x, y) in enumerate(samples, 1):
        model.learn_one(y, x)
        if number in (200, 400):  # the first 160 samples are kept
            sizes.append(len(pickle.dumps(model)))
    assert sizes[1] <= sizes[0] + 64


def test_inputs_go_by_name_and_stay_what_they_were() -> None:
    samples = heated(40)
    model, turned, gappy, filled = (small() for _ in range(4))
    for number, (x, y) in enumerate(samples):
        model.learn_one(y, x)
        turned.learn_one(
            y, {"window": x["window"], "date": "today", "new": 3.0, "heater": x["heater"]} if number else x
        )
        absent = number % 7 == 3
        gappy.learn_one(
            y, ({"window": x["window"]}, {"window": x["window"], "heater": math.nan})[number % 2] if absent else x
        )
        filled.learn_one(y, {"heater": samples[number - 1][0]["heater"], "window": x["window"]} if absent else x)
    assert turned.forecast(2) == model.forecast(2)
    assert gappy.forecast(2) == filled.forecast(2) != model.forecast(2)
    last = samples[-1][0]
    assert model.forecast(3) == model.forecast(3, [last] * 3) == model.forecast(3, [{}, last, {}])
    warmer = [{**last, "heater": last["heater"] + 1}, {}, last]
    assert warmer[1] == {} and model.forecast(3, warmer) == model.forecast(3, [warmer[0], warmer[0], last])


def test_missing_samples() -> None:
    values = [math.sin(0.3 * t) for t in range(30)]
    model, stream = small(), gpssm.VJF(1, num_inducing=2).start()
    for t, y in enumerate(values):
        gap = t in (12, 13, 20)
        model.learn_one((None, math.nan)[t % 2] if gap else y)
        stream.learn_one([math.nan if gap else y])
    assert model.forecast(2) == stream.forecast(2, num_paths=50).mean[:, 0].tolist()


def test_before_there_is_a_model_the_mean_is_said() -> None:
    model = small()
    assert model.forecast(2) == [0.0, 0.0]
    seen = [3.0, 5.0, 4.0, 8.0]
    for y in [*seen[:2], None, *seen[2:]]:
        model.learn_one(y)
    assert model.forecast(2) == [5.0, 5.0]
    low = model.forecast_interval(1, coverage=0.9)[0].lower
    # Of one more draw of a normal with unknown mean and variance: Student's t with three degrees of freedom.
    assert low == pytest.approx(5.0 - 2.353363 * np.std(seen, ddof=1) * math.sqrt(1.25), rel=1e-5)
    assert small().forecast_interval(1)[0].width == math.inf
    one = small()
    one.learn_one(7.0)
    assert one.forecast(1) == [7.0] and one.forecast_interval(1)[0].width == math.inf


def test_data_sets_and_pipelines_of_river() -> None:
    data = list(datasets.AirlinePassengers())[:40]  # whose x is a date
    score = evaluate.evaluate(data, small(), metrics.MAE(), horizon=3)
    assert all(0 < step.get() < 100 for step in score.metrics)

    def season(x: dict) -> dict:
        angle = 2 * math.pi * x["month"].month / 12
        return {"sin": math.sin(angle), "cos": math.cos(angle)}

    model = compose.FuncTransformer(season) | small()
    for x, y in data[:30]:
        model.learn_one(x, y)
    assert model["OEnVIForecaster"].stream.input_dim == 2


def test_what_cannot_be_meant_is_said() -> None:
    model = small()
    with pytest.raises(InvalidInput, match=r"xs: 1 dict\(s\); expected one for every step, 2"):
        model.forecast(2, [{}])
    with pytest.raises(InvalidInput, match="horizon: expected a whole number"):
        model.forecast(0)
    with pytest.raises(InvalidInput, match="coverage: expected a probability between 0 and 1, got 90"):
        model.forecast_interval(1, coverage=90)
    with pytest.raises(InvalidInput, match="state_dim: expected None beside a method"):
        OEnVIForecaster(gpssm.OEnVI(2), state_dim=2)
    with pytest.raises(InvalidInput, match="method: expected one of OEnVI"):
        OEnVIForecaster("EnVI")
    for y in (1.0, math.inf, 2.0):
        if math.isinf(y):
            with pytest.raises(InvalidInput, match="infinite"):
                model.learn_one(y)
        else:
            model.learn_one(y)
    assert model.stream.count == 2
