"""`gpssm forecast`: the outputs to come."""

from pathlib import Path
from typing import Any

import numpy as np

from gpssm.cli.files import Columns, as_fitted, check_target, load_forecaster, read_inputs, read_recording
from gpssm.cli.options import ForecastOptions
from gpssm.cli.output import print_columns, print_line, working
from gpssm.errors import InvalidInput
from gpssm.online.stream import Stream
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import Forecast

NDArray = np.ndarray

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def run(options: ForecastOptions) -> None:
    """Read, run on from the last sample, write a row for every step."""
    history, out, seed = options.history, options.out, options.seed
    if out is not None:
        check_target(out, options.model, history, options.inputs)
    model = load_forecaster(options.model)
    columns = options.output_columns, options.input_columns
    past = None if history is None else read_recording(history, model, columns)
    steps, ahead = _future(model, options.inputs, options.horizon, columns)
    draws: dict[str, Any] = {"num_paths": options.paths, "seed": seed}
    with working("forecasting", options.quiet):
        if past is None:
            paths = model.forecast(steps, ahead, **draws)
        else:
            fitted = as_fitted(model)
            state = fitted.filter(past.outputs, past.inputs, seed=seed)
            paths = fitted.forecast(steps, ahead, state=state, **draws)
    about: dict[str, object] = {"model": str(options.model), "horizon": steps, "paths": options.paths}
    print_columns(_columns(paths, model.output_names), out, about, options.as_json, "step")
    if out is not None and not options.as_json:
        print_line(f"{steps} steps from {options.paths} paths\nforecast: {out}")


def _future(
    model: Fitted | Stream, inputs: Path | None, horizon: int | None, columns: Columns
) -> tuple[int, NDArray | None]:
    """Number of steps, and the inputs (steps, dc) on the way."""
    if not model.input_dim:
        if inputs is not None:
            raise InvalidInput(f"inputs: got {str(inputs)!r}; the model was fitted without inputs and expects none.")
        if horizon is None:
            raise InvalidInput("horizon: missing; expected the number of steps to forecast.")
        return horizon, None
    if inputs is None:
        names = ", ".join(model.input_names)
        raise InvalidInput(f"inputs: missing; the model has the input(s) {names}, expected a file with their future.")
    ahead = read_inputs(inputs, model, columns)
    steps = len(ahead) if horizon is None else horizon
    if steps > len(ahead):
        raise InvalidInput(f"horizon: {steps} steps, but {str(inputs)!r} has {len(ahead)} row(s); expected no more.")
    return steps, ahead[:steps]


def _columns(paths: Forecast, names: tuple[str, ...]) -> dict[str, NDArray]:
    output_dim = paths.samples.shape[2]
    if len(set(names)) < output_dim:  # two of one name would share a column
        names = tuple(f"y{i + 1}" for i in range(output_dim))
    quantiles = zip(QUANTILES, paths.quantile(list(QUANTILES.values())), strict=True)
    values = {"mean": paths.mean, "sd": paths.std, **dict(quantiles)}
    columns = {"step": np.arange(1, len(paths.mean) + 1)}
    return columns | {f"{name}_{kind}": v[:, i] for i, name in enumerate(names) for kind, v in values.items()}
