"""`gpssm evaluate`: how well a model forecasts a recording that it has not seen."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from gpssm import evaluation, metrics
from gpssm.cli.files import Model, load_model, read_recording
from gpssm.cli.output import print_json, table_console, working
from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.posterior import States


def run(
    model: Path,
    data: Path,
    history: Path | None,
    fresh: bool,
    block: int,
    outputs: list[str] | None,
    inputs: list[str] | None,
    as_json: bool,
) -> None:
    """Read, forecast, score."""
    if fresh and history is not None:
        raise InvalidInput("fresh: given with a history; expected one of them, a new experiment has no past.")
    fitted = load_model(model)
    test = read_recording(data, fitted, outputs, inputs)
    past = None if history is None else read_recording(history, fitted, outputs, inputs)
    if fresh:
        if len(test.outputs) <= block:
            raise InvalidInput(
                f"block: {block} samples to start from, but {str(data)!r} has {len(test.outputs)}; expected fewer."
            )
        past, test = test.rows(slice(None, block)), test.rows(slice(block, None))
    if np.isnan(test.outputs).all():
        raise InvalidInput(f"data: {str(data)!r} holds no number to score; expected at least one.")
    with working("evaluating", as_json):
        state = fitted.end if past is None else fitted.filter(past.outputs, past.inputs)
        scores = _score(fitted, test, state, block)
    result = {"samples": len(test.outputs), "numbers": int(np.sum(~np.isnan(test.outputs))), **scores}
    if as_json:
        print_json(result)
    else:
        _print(result, fitted.method)


def _score(fitted: Model, test: Series, state: States, block: int) -> dict[str, dict[str, float]]:
    y, c = test.outputs, test.inputs
    free = evaluation.free_run(fitted, len(y), c, state=state)
    blocks = evaluation.blocks(fitted, y, c, length=block, state=state)
    likelihood = fitted.filter(y, c, state=state).log_likelihood
    mean = np.broadcast_to(fitted.scaling.output_shift, y.shape)
    return {
        "free_run": evaluation.score(free, y).as_dict(),
        f"blocks{block}": evaluation.score(blocks, y).as_dict(),
        "one_step": {"log_likelihood": likelihood / int(np.sum(~np.isnan(y)))},
        "training_mean": {"rmse": metrics.rmse(mean, y)},
    }


def _print(result: dict[str, Any], method: str) -> None:
    console = table_console(110)
    table = Table(title=f"{method}, scored on {result['samples']} samples", caption=_CAPTION)
    for column in ("forecast", "RMSE", "NLPD", "CRPS", "coverage of the 90% band"):
        table.add_column(column, justify="left" if column == "forecast" else "right")
    for name, scores in result.items():
        if isinstance(scores, dict) and "rmse" in scores:
            cells = (scores.get(key) for key in ("rmse", "nlpd", "crps", "coverage90"))
            table.add_row(name, *("" if value is None else f"{value:.4g}" for value in cells))
    console.print(table)
    value = result["one_step"]["log_likelihood"]
    console.print(f"log-likelihood of a number given all before it: {value:.4g}", highlight=False)


_CAPTION = "RMSE and CRPS in the unit of the outputs; smaller is better, also for NLPD."
