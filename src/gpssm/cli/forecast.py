"""`gpssm forecast`: the outputs to come."""

from pathlib import Path
from typing import Any

import numpy as np

from gpssm.cli.files import (
    Columns,
    as_fitted,
    check_target,
    end_of,
    load_forecaster,
    read_inputs,
    read_recording,
    reading,
)
from gpssm.cli.options import ForecastOptions
from gpssm.cli.output import print_columns, print_line, with_times, working
from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.online.stream import Stream
from gpssm.plumbing.messages import say
from gpssm.plumbing.times import Times
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import Forecast, ForecastSummary

NDArray = np.ndarray

QUANTILES = (0.05, 0.5, 0.95)
"""What is written of every step, besides mean and standard deviation."""


def run(options: ForecastOptions) -> None:
    """Read, run on from the last sample, write a row for every step."""
    history, out, seed = options.history, options.out, options.seed
    if out is not None:
        check_target(out, options.model, history, options.inputs)
    model = load_forecaster(options.model)
    columns, how = (options.output_columns, options.input_columns), reading(options)
    past = None if history is None else read_recording(history, model, columns, how, "history")
    steps, ahead = _future(model, options, columns, end_of(model) if past is None else past.end)
    draws: dict[str, Any] = {"num_paths": options.paths, "seed": seed, "calibrated": not options.uncalibrated}
    paths: Forecast | ForecastSummary
    with working("forecasting", options.quiet):
        if past is None and isinstance(model, Stream):
            paths = model.forecast(steps, ahead, **draws)
        else:
            fitted, state = as_fitted(model), None
            if past is not None:
                state = fitted.filter(past.outputs, past.inputs, seed=seed)._replace(times=past.times)
            if not options.whole_path:  # then no path is needed, and any horizon fits into the memory
                draws["quantiles"] = QUANTILES
            paths = fitted.forecast(steps, ahead, state=state, **draws)
    about: dict[str, object] = {"model": str(options.model), "horizon": steps, "paths": options.paths}
    print_columns(with_times(paths.times, _columns(paths, options.whole_path)), out, about, options.as_json, "step")
    if out is not None and not options.as_json:
        print_line(f"{steps} steps from {options.paths} paths\nforecast: {out}")


def _future(
    model: Fitted | Stream, options: ForecastOptions, columns: Columns, end: Times | None
) -> tuple[int, NDArray | None]:
    """Number of steps, and the inputs (steps, dc) on the way from the sample at the time `end`, if that is known."""
    inputs, horizon = options.inputs, options.horizon
    if not model.input_dim:
        if inputs is not None:
            raise InvalidInput(f"inputs: got {str(inputs)!r}; the model was fitted without inputs and expects none.")
        if horizon is None:
            raise InvalidInput("horizon: missing; expected the number of steps to forecast.")
        return horizon, None
    if inputs is None:
        names = ", ".join(model.input_names)
        raise InvalidInput(f"inputs: missing; the model has the input(s) {names}, expected a file with their future.")
    ahead = _after(end, read_inputs(inputs, model, columns, reading(options)), inputs)
    steps = len(ahead) if horizon is None else horizon
    if steps > len(ahead):
        raise InvalidInput(f"horizon: {steps} steps, but {str(inputs)!r} has {len(ahead)} row(s); expected no more.")
    return steps, ahead[:steps]


def _after(end: Times | None, future: Series, path: Path) -> NDArray:
    """The inputs (T, dc) of a file from one step after `end` on; all of them if times do not tell."""
    inputs = future.inputs
    assert inputs is not None, "they were asked for"
    steps = None if end is None or future.times is None else end.steps_until(future.times)
    if end is None or future.times is None or steps is None or round(steps) == 1:
        return inputs
    before, expected = 1 - round(steps), end.later(1).text(1)[0]
    if not 0 < before < len(inputs):
        raise InvalidInput(
            f"inputs: {str(path)!r} has the times from {future.times.text(1)[0]} to "
            f"{future.times.later(len(inputs) - 1).text(1)[0]}; expected {expected} to be the first, one step after "
            "the last sample that is known."
        )
    say(f"the first {before} row(s) of {str(path)!r} are left out: the forecast begins at {expected}.")
    return inputs[before:]


def _columns(paths: Forecast | ForecastSummary, whole_path: bool) -> dict[str, NDArray]:
    columns = {"step": np.arange(1, len(paths.mean) + 1)} | paths.columns(QUANTILES)
    return columns | paths.path_columns() if whole_path and isinstance(paths, Forecast) else columns
