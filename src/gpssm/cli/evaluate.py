"""`gpssm evaluate`: how well a model forecasts a recording that it has not seen."""

import math
from typing import Any

import numpy as np
from rich.table import Table

from gpssm import evaluation, metrics
from gpssm.cli.files import load_model, read_recording, reading, say_gap
from gpssm.cli.options import EvaluateOptions
from gpssm.cli.output import print_json, report_divergence, table_console, working
from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import States, first_not_finite


def run(options: EvaluateOptions) -> None:
    """Score forecasts of a recording against it, and print a table or JSON."""
    data, history, block = options.data, options.history, options.block
    columns = options.outputs, options.inputs
    if options.fresh and history is not None:
        raise InvalidInput("fresh: given with a history; expected one of them, a new experiment has no past.")
    fitted = load_model(options.model)
    how = reading(options)
    test = read_recording(data, fitted, columns, how)
    past = None if history is None else read_recording(history, fitted, columns, how, "history")
    if options.fresh:
        if len(test.outputs) <= block:
            raise InvalidInput(
                f"block: {block} samples to start from, but {str(data)!r} has {len(test.outputs)}; expected fewer."
            )
        past, test = test.rows(slice(None, block)), test.rows(slice(block, None))
    else:
        say_gap(fitted.end.times if past is None else past.end, test, data, GAP)
    if np.isnan(test.outputs).all():
        raise InvalidInput(f"data: {str(data)!r} holds no number to score; expected at least one.")
    with working("evaluating", options.quiet):
        state = fitted.end if past is None else fitted.filter(past.outputs, past.inputs)
        result = _scores(fitted, test, state, block)
    if options.as_json:
        print_json(result)
    else:
        _print(result, fitted.method)
    for name, step in (result["diverged"] or {}).items():
        report_divergence(f"in {name}, from sample {step} on,")


GAP = "--history gives the samples in between, --fresh takes it as a new experiment"
"""What to do where the test does not follow what was seen before."""
DIVERGED = {"rmse": math.inf, "nlpd": math.inf, "crps": math.inf, "coverage90": math.nan}
"""Scores of paths that have diverged."""


def _scores(fitted: Fitted, test: Series, state: States, block: int) -> dict[str, Any]:
    y, c = test.outputs, test.inputs
    paths = {
        "free_run": evaluation.free_run(fitted, len(y), c, state=state),
        f"blocks{block}": evaluation.blocks(fitted, y, c, length=block, state=state),
    }
    # The first sample, from 1, at which there is no error: paths are infinite, or their squares are.
    first = {name: first_not_finite(np.square(found).sum(axis=0)) for name, found in paths.items()}
    diverged = {name: step for name, step in first.items() if step is not None}
    scores = {
        name: DIVERGED if name in diverged else evaluation.score(found, y).as_dict() for name, found in paths.items()
    }
    numbers = int(np.sum(~np.isnan(y)))
    mean = np.broadcast_to(fitted.scaling.output_shift, y.shape)
    return {
        "samples": len(y),
        "numbers": numbers,
        **scores,
        "one_step": {"log_likelihood": fitted.filter(y, c, state=state).log_likelihood / numbers},
        "training_mean": {"rmse": metrics.rmse(mean, y)},
        "diverged": diverged or None,
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
