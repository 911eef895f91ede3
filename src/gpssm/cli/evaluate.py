"""`gpssm evaluate`: how well a model forecasts a recording that it has not seen."""

from typing import Any

import numpy as np
from rich.table import Table

from gpssm import evaluation, metrics
from gpssm.cli.files import as_fitted, load_forecaster, method_of
from gpssm.cli.options import EvaluateOptions
from gpssm.cli.output import print_json, report_divergence, table_console, working
from gpssm.cli.trial import read_test, state_after
from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.online.stream import Stream
from gpssm.posteriors.fitted import Fitted


def run(options: EvaluateOptions) -> None:
    """Score forecasts of a recording against it, and print a table or JSON."""
    data, block = options.data, options.block
    model = load_forecaster(options.model)
    past, test = read_test(model, options, data, block)
    if np.isnan(test.outputs).all():
        raise InvalidInput(f"data: {str(data)!r} holds no number to score; expected at least one.")
    with working("evaluating", options.quiet):
        result = _scores(model, test, past, block)
    if options.as_json:
        print_json(result)
    else:
        _print(result, method_of(model))
    for name, step in (result["diverged"] or {}).items():
        report_divergence(f"in {name}, from sample {step} on,")


def _scores(model: Fitted | Stream, test: Series, past: Series | None, block: int) -> dict[str, Any]:
    y, c = test.outputs, test.inputs
    numbers, further = int(np.sum(~np.isnan(y))), {}
    if isinstance(model, Stream) and not model.readable and past is None:
        # It has no filter: what follows its present state can be scored, and nothing that is seen on the way.
        found = {"free_run": evaluation.Scored.of([model.forecast(len(y), c).samples], y)}
    else:
        fitted = as_fitted(model)
        state = state_after(fitted, past)
        found = {
            "free_run": evaluation.score_free_run(fitted, y, c, state=state),
            f"blocks{block}": evaluation.score_blocks(fitted, y, c, length=block, state=state),
        }
        further["one_step"] = {"log_likelihood": fitted.filter(y, c, state=state).log_likelihood / numbers}
    if isinstance(model, Fitted):  # a stream does not know the mean of what it has seen
        mean = np.broadcast_to(model.scaling.output_shift, y.shape)
        further["training_mean"] = {"rmse": metrics.rmse(mean, y)}
    diverged = {name: each.diverged for name, each in found.items() if each.diverged is not None}
    scores = {name: each.scores.as_dict() for name, each in found.items()}
    return {"samples": len(y), "numbers": numbers, **scores, **further, "diverged": diverged or None}


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
    if "one_step" in result:
        value = result["one_step"]["log_likelihood"]
        console.print(f"log-likelihood of a number given all before it: {value:.4g}", highlight=False)


_CAPTION = "RMSE and CRPS in the unit of the outputs; smaller is better, also for NLPD."
