"""`gpssm forecast`: the outputs to come."""

from pathlib import Path

import numpy as np

from gpssm.cli.files import Columns, check_target, load_model, read_inputs, read_recording
from gpssm.cli.output import print_columns, print_line, working
from gpssm.errors import InvalidInput
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import Forecast

NDArray = np.ndarray

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def run(
    model: Path, history: Path | None, inputs: Path | None, horizon: int | None, num_paths: int, seed: int,
    columns: Columns, out: Path | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Read, run on from the last sample, write a row for every step."""
    if out is not None:
        check_target(out, model, history, inputs)
    fitted = load_model(model)
    past = None if history is None else read_recording(history, fitted, columns)
    steps, ahead = _future(fitted, inputs, horizon, columns)
    with working("forecasting", quiet):
        state = None if past is None else fitted.filter(past.outputs, past.inputs, seed=seed)
        paths = fitted.forecast(steps, ahead, state=state, num_paths=num_paths, seed=seed)
    about: dict[str, object] = {"model": str(model), "horizon": steps, "paths": num_paths}
    print_columns(_columns(paths, fitted.output_names), out, about, as_json, "step")
    if out is not None and not as_json:
        print_line(f"{steps} steps from {num_paths} paths\nforecast: {out}")


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


def _columns(paths: Forecast, names: tuple[str, ...]) -> dict[str, NDArray]:
    output_dim = paths.samples.shape[2]
    if len(set(names)) < output_dim:  # two of one name would share a column
        names = tuple(f"y{i + 1}" for i in range(output_dim))
    quantiles = zip(QUANTILES, paths.quantile(list(QUANTILES.values())), strict=True)
    values = {"mean": paths.mean, "sd": paths.std, **dict(quantiles)}
    columns = {"step": np.arange(1, len(paths.mean) + 1)}
    return columns | {f"{name}_{kind}": v[:, i] for i, name in enumerate(names) for kind, v in values.items()}
