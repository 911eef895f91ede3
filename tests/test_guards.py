"""Data that are plausible but wrong: said once, with the column and what to do; ordinary data are left in peace."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpssm
from gpssm import datasets, evaluation
from gpssm.errors import DataWarning, InvalidInput
from gpssm.models.scaling import moments
from gpssm.plumbing import guards
from gpssm.plumbing.validation import training_data

DATA = Path(__file__).parents[1].parent / "shared" / "data"
QUICK = gpssm.Schedule(max_steps=2, chunk=1)


def warned(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if w.category is DataWarning]


def driven(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(rows, 2))
    y = np.zeros(rows)
    for t in range(1, rows):
        y[t] = 0.8 * y[t - 1] + u[t, 0] + 0.5 * u[t, 1] + 0.1 * rng.normal()
    return pd.DataFrame({"level": 20 + y, "valve": u[:, 0], "pump": u[:, 1]})


def model_of(frame: pd.DataFrame) -> gpssm.Fitted:
    return gpssm.ARX(order=1).fit(frame["level"], frame[["valve", "pump"]])


# --- channels first -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 500), (3, 500), (64, 100), (2, 3)])
def test_channels_first_are_refused_before_anything_is_learned(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    for given_ in (values, pd.DataFrame(values), [values]):
        with pytest.raises(InvalidInput, match=rf"^outputs: {shape[1]} channels of {shape[0]} sample.*pass outputs\.T"):
            gpssm.EnVI(2).fit(given_)
    with pytest.raises(InvalidInput, match=rf"^inputs: {shape[1]} channels of {shape[0]} sample.*pass inputs\.T"):
        gpssm.EnVI(2).fit(values[0], values)


def test_channels_first_for_a_fitted_model() -> None:
    frame = driven()
    model = model_of(frame)
    with pytest.raises(InvalidInput, match=r"^outputs: expected 1 column\(s\), got shape \(1, 300\); pass outputs\.T"):
        model.filter(frame[["level"]].to_numpy().T, frame[["valve", "pump"]])
    with pytest.raises(InvalidInput, match=r"^inputs: expected 2 column\(s\), got shape \(2, 300\); pass inputs\.T"):
        model.filter(frame["level"], frame[["valve", "pump"]].to_numpy().T)


def test_short_recordings_of_many_channels_are_fine_if_they_are_many() -> None:
    recordings = list(np.random.default_rng(0).normal(size=(100, 5, 6)))
    assert len(training_data(recordings, None).outputs) == 100


# --- outliers -------------------------------------------------------------------------------------


@given(
    rows=st.integers(2, 400),
    shift=st.floats(-1e6, 1e6),
    scale=st.floats(1e-3, 1e6),
    seed=st.integers(0, 10**6),
    gaps=st.floats(0, 0.5),
)
def test_gaussian_data_never_warn(rows: int, shift: float, scale: float, seed: int, gaps: float) -> None:
    rng = np.random.default_rng(seed)
    y, c = shift + scale * rng.normal(size=(2, rows, 2))
    holes = np.where(rng.random(y.shape) < gaps, np.nan, y)
    holes[:2] = y[:2]
    assert warned(lambda: training_data(holes, c)) == []
    if rows >= 10:  # two samples may lie next to each other
        trained = guards.Range.of(*moments([holes]), holes)
        assert guards.elsewhere("outputs", ("a", "b"), shift + scale * rng.normal(size=(50, 2)), trained) == []


@given(
    rows=st.integers(20, 400),
    size=st.floats(1e4, 1e30),
    shift=st.floats(-1e3, 1e3),
    seed=st.integers(0, 10**6),
    sign=st.sampled_from([-1, 1]),
)
def test_a_fault_is_found_where_it_is(rows: int, size: float, shift: float, seed: int, sign: int) -> None:
    rng = np.random.default_rng(seed)
    y = shift + rng.normal(size=(rows, 2))
    row, column = int(rng.integers(rows)), int(rng.integers(2))
    y[row, column] += sign * size
    (sentence,) = guards.outliers("outputs", ("a", "b"), [y])
    assert sentence.startswith(f"outputs: {'ab'[column]!r} is ") and f"at row {row} " in sentence
    assert sentence.endswith("if that is a fault, set it to NaN.")
    y[row, column] = np.nan
    assert guards.outliers("outputs", ("a", "b"), [y]) == []


def test_several_faults_in_one_of_several_recordings() -> None:
    y = np.random.default_rng(0).normal(size=(2, 500, 1))
    y[1, [7, 300, 301], 0] = 1e6, -2e6, 5e5
    (sentence,) = guards.outliers("inputs", ("u1",), list(y))
    assert "is 1e+06 at row 7 of recording 1, and 2 more are as far," in sentence and "set it to NaN" not in sentence


ORDINARY = {
    "an impulse": np.eye(1, 300, 50)[0],
    "a step": np.repeat([0.0, 5.0], 150),
    "random binary": np.sign(np.random.default_rng(0).normal(size=300)),
    "rare pulses": np.where(np.arange(300) % 60 == 0, 7.0, 0.0),
    "pulses at the edge of rounding": 0.1 * 3 - 0.3 * (np.arange(300) % 2) + 0.0 * np.arange(300),
    "a fast decay": 1e3 * np.exp(-np.arange(300.0)),
    "heavy tails": np.random.default_rng(1).standard_t(2, size=20_000),
    "lognormal": np.exp(2.0 * np.random.default_rng(2).normal(size=20_000)),
    "at rest, then moving": np.where(
        np.arange(1000) < 700, 1e-5 * np.random.default_rng(3).normal(size=1000), np.sin(np.arange(1000))
    ),
    "exponential growth": np.exp(0.1 * np.arange(300)),
    "few values": np.array([0.0, 1e-9, 1.0, 1e6]),
}


@pytest.mark.parametrize("case", ORDINARY)
def test_what_is_far_but_ordinary(case: str) -> None:
    assert guards.outliers("outputs", ("a",), [ORDINARY[case][:, None]]) == []


def test_a_fit_warns_once_at_the_line_of_the_user() -> None:
    code = (
        "import warnings, numpy as np, gpssm\n"
        "y = np.sin(np.arange(200.0)); y[50] = 1e6\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    gpssm.EnVI(2, 5, schedule=gpssm.Schedule(max_steps=2)).fit(y, restarts=2)\n"
        "for w in caught: print(w.category.__name__, w.filename, w.lineno, w.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("DataWarning")]
    assert line.startswith("DataWarning <string> 5 outputs: 'y1' is 1e+06 at row 50 ")


def test_a_checked_fit_warns_once() -> None:
    """Of the whole recording; not once more of what is held back, nor of the methods that it is compared with."""
    frame = driven().assign(pump=3.5)
    frame.loc[280, "level"] = 1e6
    found = warned(lambda: gpssm.ARX(order=1).fit(frame["level"], frame[["valve", "pump"]], holdout=0.2))
    assert [sentence.split(" ")[:2] for sentence in found] == [["outputs:", "'level'"], ["inputs:", "'pump'"]]


# --- too little, too still ------------------------------------------------------------------------


def test_fewer_numbers_than_f_has_to_learn() -> None:
    y = np.sin(np.arange(30.0))
    learned = 2 * (2 + 1 + 20)
    (sentence,) = warned(lambda: gpssm.EnVI(2, schedule=QUICK).fit(y, restarts=1))
    assert f"30 number(s) were observed, fewer than the {learned} " in sentence and "num_inducing" in sentence
    assert guards.too_few(learned, 2, 2, 20) == [] and guards.too_few(learned - 1, 2, 2, 20) != []


def test_an_input_that_never_moves() -> None:
    frame = driven().assign(pump=3.5)
    (sentence,) = warned(lambda: model_of(frame))
    assert sentence == ("inputs: 'pump' never moves in the training data (3.5): its effect cannot be learned; drop it.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        model = model_of(frame)
    ahead = frame[["valve", "pump"]].iloc[:5]
    assert warned(lambda: model.forecast(5, ahead)) == []
    (sentence,) = warned(lambda: model.forecast(5, ahead.assign(pump=[3.5, 3.5, 4.0, 4.0, 4.0])))
    assert sentence.startswith("inputs: 'pump' is 4 at row 2, but never moved in the training data (3.5)")


# --- other units ----------------------------------------------------------------------------------

CALLS = {
    "filter": lambda model, y, c: model.filter(y, c),
    "smooth": lambda model, y, c: model.smooth(y, c),
    "one_step": lambda model, y, c: model.one_step(y, c),
    "log_likelihood": lambda model, y, c: model.log_likelihood(y, c),
    "blocks": lambda model, y, c: evaluation.blocks(model, y, c, length=20, num_paths=5),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_recording_in_other_units(call: str) -> None:
    frame, inputs = driven(), ["valve", "pump"]
    model, later = model_of(frame.iloc[:200]), driven(100, seed=1)
    run = CALLS[call]
    assert warned(lambda: run(model, later["level"], later[inputs])) == []
    (sentence,) = warned(lambda: run(model, later["level"] + 273.15, later[inputs]))
    assert sentence.startswith("outputs: 'level' is 29") and sentence.endswith("check its unit.")
    (sentence,) = warned(lambda: run(model, later["level"], later[inputs].assign(pump=1000 * later["pump"])))
    assert sentence.startswith("inputs: 'pump' is ")


def test_future_inputs_in_other_units() -> None:
    model, later = model_of(driven()), driven(20, seed=1)[["valve", "pump"]]
    assert warned(lambda: model.forecast(20, later)) == []
    (sentence,) = warned(lambda: model.forecast(20, later * [1.0, 1000.0]))
    assert sentence.startswith("inputs: 'pump' is ")


# --- published recordings -------------------------------------------------------------------------


@pytest.mark.skipif(not DATA.is_dir(), reason="the published recordings are not beside the project")
def test_published_recordings_look_right() -> None:
    files = sorted(DATA.glob("*.csv"))
    assert len(files) == 21
    for file in files:
        table = pd.read_csv(file, comment="#").select_dtypes("number")
        values = [table.to_numpy(float)]
        assert guards.outliers("outputs", tuple(table), values) == [], file.name
        assert guards.still_inputs(tuple(table), [np.nan_to_num(values[0])]) == [], file.name


@pytest.mark.skipif(not DATA.is_dir(), reason="the published recordings are not beside the project")
@pytest.mark.parametrize("name", datasets.SOURCES)
def test_published_test_parts_are_where_the_training_parts_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPSSM_DATA", str(DATA))
    parts = datasets.benchmark(name)
    for unseen in parts.tests:
        for train, test in ((parts.train.outputs, unseen.series.outputs), (parts.train.inputs, unseen.series.inputs)):
            if train is None:
                continue
            names = tuple(map(str, range(train.shape[1])))
            shift, scale = moments([train])
            trained = guards.Range.of(shift, scale, train[-2000:])
            assert guards.elsewhere("outputs", names, test, trained) == []
            spread = np.nanmax(test, axis=0) - np.nanmin(test, axis=0)
            for other in (1000 * (test + spread), test + 100 * scale):
                assert len(guards.elsewhere("outputs", names, other, trained)) == len(names)
