"""`gpssm forecast`: the outputs to come."""

from pathlib import Path

import numpy as np

from gpssm.cli.files import Columns, check_target, load_model, read_inputs, read_recording
from gpssm.cli.options import ForecastOptions
from gpssm.cli.output import print_columns, print_line, working
from gpssm.errors import InvalidInput
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import Forecast

NDArray = np.ndarray


def run(options: ForecastOptions) -> None:
    """Read, run on from the last sample, write a row for every step."""
    history, out, seed = options.history, options.out, options.seed
    if out is not None:
        check_target(out, options.model, history, options.inputs)
    fitted = load_model(options.model)
    columns = options.output_columns, options.input_columns
    past = None if history is None else read_recording(history, fitted, columns)
    steps, ahead = _future(fitted, options.inputs, options.horizon, columns)
    with working("forecasting", options.quiet):
        state = None if past is None else fitted.filter(past.outputs, past.inputs, seed=seed)
        paths = fitted.forecast(steps, ahead, state=state, num_paths=options.paths, seed=seed)
    about: dict[str, object] = {"model": str(options.model), "horizon": steps, "paths": options.paths}
    print_columns(_columns(paths), out, about, options.as_json, "step")
    if out is not None and not options.as_json:
        print_line(f"{steps} steps from {options.paths} paths\nforecast: {out}")


def _future(fitted: Fitted, inputs: Path | None, horizon: int | None, columns: Columns) -> tuple[int, NDArray | None]:
    """Number of steps, and the inputs (steps, dc) on the way."""
    if not fitted.input_dim:
        if inputs is not None:
            raise InvalidInput(f"inputs: got {str(inputs)!r}; the model was fitted without inputs and expects none.")
        if horizon is None:
            raise InvalidInput("horizon: missing; expected the number of steps to forecast.")
        return horizon, None
    if inputs is None:
        names = ", ".join(fitted.input_names)
        raise InvalidInput(f"inputs: missing; the model has the input(s) {names}, expected a file with their future.")
    ahead = read_inputs(inputs, fitted, columns)
    steps = len(ahead) if horizon is None else horizon
    if steps > len(ahead):
        raise InvalidInput(f"horizon: {steps} steps, but {str(inputs)!r} has {len(ahead)} row(s); expected no more.")
    return steps, ahead[:steps]


def _columns(paths: Forecast) -> dict[str, NDArray]:
    return {"step": np.arange(1, len(paths.mean) + 1)} | paths.columns()
