"""`gpssm plot`: what a model makes of a recording, in one picture."""

from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.backend_bases import FigureCanvasBase

from gpssm import metrics, plots
from gpssm.cli.files import check_target, load_model, read_recording, reading, say_gap
from gpssm.cli.options import PlotOptions
from gpssm.cli.output import print_json, print_line, save_figure, working
from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import Forecast, States

NDArray = np.ndarray

MAX_OUTPUTS, MAX_STATES = 4, 4
"""How many are drawn of each."""


class View(NamedTuple):
    """What is drawn: T samples filtered, and h steps forecast after the `past`."""

    title: str
    forecast_title: str
    states: States
    paths: Forecast
    past: NDArray
    """Outputs (n, dy) before the forecast."""
    future: NDArray
    """Outputs (h, dy) that were observed since."""
    observed: tuple[str, ...]
    """Names of the outputs of which there is a number."""
    residuals: NDArray
    """Of these, one step ahead (T, observed), over their predicted standard deviation."""


def run(options: PlotOptions) -> None:
    """Draw the states, forecast and residuals of a recording, with one picture as the result."""
    plt.switch_backend("Agg")
    data = options.data
    picture = options.out or options.model.with_suffix(".png")
    kinds = FigureCanvasBase.filetypes
    if picture.suffix.removeprefix(".").lower() not in kinds:
        raise InvalidInput(f"out: {str(picture)!r} ends in {picture.suffix!r}; expected one of {', '.join(kinds)}.")
    check_target(picture, options.model, data)
    fitted = load_model(options.model)
    with working("drawing", options.quiet):
        test = None
        if data is not None:
            test = read_recording(data, fitted, (options.outputs, options.inputs), reading(options))
            say_gap(fitted.end.times, test, data, "the picture is right only if nothing has happened in between")
        view = _view(fitted, test, "" if data is None else _literal(data.name))
        _draw(fitted, view, picture)
    if options.as_json:
        print_json({"picture": str(picture), "training_samples": data is None, **_numbers(view)})
    else:
        print_line(f"picture: {picture}")


def _view(fitted: Fitted, test: Series | None, name: str) -> View:
    """A test, which continues the training data; or the end of these, of which the last quarter is forecast."""
    recording = fitted.recording if test is None else test
    y, c = recording.outputs, recording.inputs
    if test is None:
        if (kept := len(y)) < 2:
            raise InvalidInput(f"data: missing, and the model holds {kept} sample(s) of its training; expected a file.")
        cut = len(y) - max(1, len(y) // 4)
        past, future = recording.rows(slice(None, cut)), recording.rows(slice(cut, None))
        before, now = None, fitted.filter(past.outputs, past.inputs)
        title = f"on the last {len(y)} training samples"
        forecast_title = "Free run over the last quarter of these training samples"
    else:
        past, future, before, now = fitted.recording, test, fitted.end, fitted.end
        title, forecast_title = f"on {name}", f"Free run over {name}, from the end of the training data"
    if np.isnan(y).all() or np.isnan(future.outputs).all():
        raise InvalidInput("data: holds no number to compare with; expected at least one.")
    mean, sd = fitted.one_step(y, c, state=before)
    residuals = (y - mean) / sd
    seen = ~np.isnan(residuals).all(axis=0)
    observed = tuple(_literal(fitted.output_names[i]) for i in np.flatnonzero(seen))
    horizon = len(future.outputs)
    shown = past.outputs[-min(len(past.outputs), max(20, horizon // 3)) :]
    states, paths = fitted.filter(y, c, state=before), fitted.forecast(horizon, future.inputs, state=now)
    return View(
        f"{fitted.method} {title}", forecast_title, states, paths, shown, future.outputs, observed, residuals[:, seen]
    )


def _draw(fitted: Fitted, view: View, picture: Path) -> None:
    names = tuple(map(_literal, fitted.output_names))
    num_outputs, num_states = min(fitted.output_dim, MAX_OUTPUTS), min(fitted.state_dim, MAX_STATES)
    heights = [2.6] * num_outputs + [1.8] * ((num_states + 1) // 2) + [3.2]
    with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}):
        figure = plt.figure(figsize=(12, sum(heights)), layout="constrained")
        grid = figure.add_gridspec(len(heights), 6, height_ratios=heights)
        for i in range(num_outputs):
            ax = figure.add_subplot(grid[i, :])
            plots.forecast(view.paths, past=view.past, future=view.future, channel=i, ax=ax)
            _finish(ax, view.forecast_title, names[i], first=i == 0, last=i == num_outputs - 1)
        for i in range(num_states):
            row, half = num_outputs + i // 2, i % 2
            alone = half == 0 and i == num_states - 1
            ax = figure.add_subplot(grid[row, :] if alone else grid[row, 3 * half : 3 * half + 3])
            plots.states(view.states, dimension=i, ax=ax)
            _finish(ax, "States, filtered", f"$x_{{{i + 1}}}$", first=i == 0, last=row == len(heights) - 2)
        _draw_diagnostics(view, [figure.add_subplot(grid[-1, j : j + 2]) for j in (0, 2, 4)])
        counts = (("output", fitted.output_dim, num_outputs), ("state", fitted.state_dim, num_states))
        left_out = [f"{total - shown} more {what}(s) not shown" for what, total, shown in counts if total > shown]
        figure.suptitle(", ".join([view.title, *left_out]), fontsize=12)
        save_figure(figure, picture, 120)
        plt.close(figure)


def _draw_diagnostics(view: View, axes: list[Any]) -> None:
    plots.residuals(view.residuals, names=view.observed, ax=axes[0]).set_title("Residuals one step ahead")
    plots.autocorrelation(view.residuals, names=view.observed, ax=axes[1]).set_title("Their autocorrelation")
    pits = {
        "one step ahead": np.vectorize(NormalDist().cdf)(view.residuals),
        "free run": metrics.pit(view.paths.samples, view.future),
    }
    plots.calibration(pits, ax=axes[2]).set_title("What the bands promise and hold")


def _finish(ax: Any, title: str, ylabel: str, *, first: bool, last: bool) -> None:
    """One title and one legend for all panels of a kind, above the first; the time axis named below the last."""
    ax.set_ylabel(ylabel)
    if first:
        ax.set_title(title, loc="left")
        ax.legend(frameon=False, fontsize=8, ncols=5, loc="lower right", bbox_to_anchor=(1, 1))
    else:
        ax.get_legend().remove()
    if not last:
        ax.set_xlabel("")


def _literal(text: str) -> str:
    """A user's words may hold a dollar sign, which would start a formula."""
    return text.replace("$", r"\$")


def _numbers(view: View) -> dict[str, object]:
    """What the picture shows, in a few numbers."""
    inside = np.abs(view.residuals[~np.isnan(view.residuals)]) <= NormalDist().inv_cdf(0.95)
    return {
        "samples": len(view.residuals),
        "horizon": len(view.future),
        "one_step_coverage90": float(np.mean(inside)),
        "free_run_coverage90": metrics.coverage(view.paths.samples, view.future, 0.9),
        "lag1_autocorrelation": metrics.autocorrelation(view.residuals, 1)[1].tolist(),
    }
