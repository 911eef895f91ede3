"""`gpssm plot`: what a model makes of a recording, in one picture."""

import math
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from gpssm import metrics, plots
from gpssm.cli.files import as_fitted, check_target, load_forecaster, method_of
from gpssm.cli.options import BLOCK, PlotOptions
from gpssm.cli.output import check_picture, print_json, print_line, report_divergence, save_figure, working
from gpssm.cli.trial import read_test, state_after
from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.evaluation import without_error
from gpssm.online.stream import Stream
from gpssm.plumbing.times import Times
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import Forecast, ForecastSummary, States
from gpssm.posteriors.verdict import words

NDArray = np.ndarray

MAX_OUTPUTS, MAX_INPUTS, MAX_STATES = 4, 6, 4
"""How many are drawn of each."""


class Followed(NamedTuple):
    """T samples, seen one after the other."""

    times: Times | None
    states: States
    residuals: NDArray
    """Of predictions one step ahead (T, dy), over their predicted standard deviation."""


class FreeRun(NamedTuple):
    """A forecast of H steps beside what was observed of them; the paths are not kept."""

    forecast: ForecastSummary
    diverged: int | None
    """The first step, from 1, of which there is no error."""
    pit: NDArray
    """(H, dy) `metrics.pit`; nothing of a run that diverges."""
    inside: NDArray
    """(H, dy) `metrics.inside` of the 90% bands, likewise."""

    @classmethod
    def of(cls, pieces: Iterable[Forecast], truth: NDArray) -> "FreeRun":
        """Of a forecast that is made in pieces, one after the other."""
        diverged: list[int] = []
        pits, inside = [truth[:0]], [truth[:0]]

        def passing() -> Iterator[Forecast]:
            done = 0
            for piece in pieces:
                y = truth[done : done + piece.samples.shape[1]]
                step = without_error(piece.samples)
                diverged.extend([] if step is None else [done + step])
                if not diverged:
                    seen = not np.isnan(y).all()
                    pits.append(metrics.pit(piece.samples, y) if seen else y)
                    inside.append(metrics.inside(piece.samples, y, 0.9) if seen else y)
                done += len(y)
                yield piece

        forecast = ForecastSummary.of(passing(), plots.EDGES)
        return cls(forecast, min(diverged, default=None), np.concatenate(pits), np.concatenate(inside))


class View(NamedTuple):
    """What is drawn."""

    about: str
    """What was forecast, from where."""
    past: Series
    """Samples before the forecast."""
    future: Series
    """Those since, of every step."""
    free_run: FreeRun
    followed: Followed | None
    """Nothing of a stream that cannot be filtered."""


class Scores(NamedTuple):
    """What the picture shows, in a few numbers."""

    fit: NDArray
    """Percent of every output (dy,); NaN where nothing was observed."""
    coverage90: NDArray
    """Of the free run, likewise,"""
    free_run_coverage90: float
    """and of all outputs together."""
    one_step_coverage90: float
    lag1: list[float]
    """Autocorrelation of the residuals of every output that was observed."""
    diverged: int | None
    """The first step of the free run, from 1, of which there is no error."""
    verdict: str


def run(options: PlotOptions) -> None:
    """Draw the forecast, inputs, states and residuals of a recording, with one picture as the result."""
    plt.switch_backend("Agg")
    data, history = options.data, options.history
    picture = options.out or options.model.with_suffix(".png")
    check_picture(picture)
    if data is None and (options.fresh or history is not None):
        raise InvalidInput("data: missing; expected the file that is new (--fresh) or continues the history.")
    check_target(picture, options.model, data, history)
    model = load_forecaster(options.model)
    with working("drawing", options.quiet):
        if data is None:
            view = _of_training(as_fitted(model))
        else:
            past, test = read_test(model, options, data, BLOCK)
            before = f"the end of {history.name}" if history else f"its sample {BLOCK}" if options.fresh else ""
            view = _of_test(model, past, test, data.name, before)
        scores = _scores(view)
        _draw(model, view, scores, options.model.name, picture)
    if options.as_json:
        print_json({"picture": str(picture), "training_samples": data is None, **_numbers(view, scores)})
    else:
        print_line(f"{scores.verdict}\npicture: {picture}")
    if scores.diverged is not None:
        report_divergence(f"in the free run, from sample {scores.diverged} on,")


def _of_training(fitted: Fitted) -> View:
    """The end of the training data, of which the last quarter is forecast."""
    recording = fitted.recording
    if (kept := len(recording.outputs)) < 2:
        raise InvalidInput(f"data: missing, and the model holds {kept} sample(s) of its training; expected a file.")
    cut = kept - max(1, kept // 4)
    past, future = recording.rows(slice(None, cut)), recording.rows(slice(cut, None))
    free_run = _free_run(fitted, future, fitted.filter(past.outputs, past.inputs))
    about = f"free run over the last quarter of {kept} training samples"
    return _view(about, past, future, free_run, _followed(fitted, recording, None))


def _of_test(model: Fitted | Stream, past: Series | None, test: Series, name: str, before: str) -> View:
    """A test, which continues its past or what was learned from."""
    end = "where the stream is" if isinstance(model, Stream) else "the end of the training data"
    about = f"free run over {name}, from {before or end}"
    if isinstance(model, Stream) and not model.readable and past is None:
        paths = model.forecast(len(test.outputs), test.inputs)
        return _view(about, test.rows(slice(0)), test, FreeRun.of([paths], test.outputs), None)
    fitted = as_fitted(model)
    state = state_after(fitted, past)
    free_run = _free_run(fitted, test, state)
    test = test if test.times is not None else test._replace(times=free_run.forecast.times)
    return _view(about, past or fitted.recording, test, free_run, _followed(fitted, test, state))


def _free_run(fitted: Fitted, test: Series, state: States) -> FreeRun:
    c = fitted.future(len(test.outputs), test.inputs, state)
    return FreeRun.of(fitted.pieces(c, state=state), test.outputs)


def _view(about: str, past: Series, future: Series, free_run: FreeRun, followed: Followed | None) -> View:
    if np.isnan(future.outputs).all():
        raise InvalidInput("data: holds no number to compare with; expected at least one.")
    shown = min(len(past.outputs), max(20, len(future.outputs) // 3)) if _follows(past, future) else 0
    return View(about, past.rows(slice(len(past.outputs) - shown, None)), future, free_run, followed)


def _follows(past: Series, future: Series) -> bool:
    """Whether samples can be drawn one after the other: unless times tell otherwise."""
    if past.times is None or future.times is None or past.times.dated != future.times.dated:
        return True
    late = future.times.start - past.times.later(len(past.outputs)).start
    return abs(late) < 0.5 * abs(future.times.step)


def _followed(fitted: Fitted, recording: Series, state: States | None) -> Followed:
    y, c = recording.outputs, recording.inputs
    mean, sd = fitted.one_step(y, c, state=state)
    residuals = (y - mean) / sd
    states = fitted.filter(y, c, state=state)
    return Followed(recording.times, states, np.where(np.isfinite(residuals), residuals, np.nan))


def _scores(view: View) -> Scores:
    y, diverged, inside = view.future.outputs, view.free_run.diverged, view.free_run.inside
    fit = coverage = np.full(y.shape[1], np.nan)
    together = one_step = math.nan
    if diverged is None:
        fit = metrics.fit_percent(view.free_run.forecast.mean, y)
        observed = ~np.isnan(y).all(axis=0)
        coverage = np.array(
            [np.nanmean(each) if seen else math.nan for each, seen in zip(inside.T, observed, strict=True)]
        )
        together = float(np.nanmean(inside))
    lag1: list[float] = []
    if view.followed is not None:
        residuals = view.followed.residuals[:, _observed(view)]
        one_step = float(np.mean(np.abs(residuals[~np.isnan(residuals)]) <= NormalDist().inv_cdf(0.95)))
        lag1 = metrics.autocorrelation(residuals, 1)[1].tolist()
    verdict = words(
        _pooled(fit[~np.isnan(fit)]),
        together,
        lag1=max(lag1, key=abs, default=math.nan),
        numbers=int(np.sum(~np.isnan(y))),
        diverged=diverged,
    )
    return Scores(fit, coverage, together, one_step, lag1, diverged, verdict)


def _pooled(fit: NDArray) -> float:
    """Over all outputs, in percent, from the mean of their squared errors in units of their standard deviations."""
    return 100 * (1 - math.sqrt(np.mean((1 - fit / 100) ** 2))) if len(fit) else math.nan


def _observed(view: View) -> NDArray:
    """Which outputs (dy,) there is a number of."""
    seen = ~np.isnan(view.future.outputs).all(axis=0)
    return seen if view.followed is None else seen & ~np.isnan(view.followed.residuals).all(axis=0)


def _draw(model: Fitted | Stream, view: View, scores: Scores, name: str, picture: Path) -> None:
    shown = {"output": min(len(scores.fit), MAX_OUTPUTS), "input": min(model.input_dim or 0, MAX_INPUTS)}
    total = {"output": len(scores.fit), "input": model.input_dim or 0}
    if view.followed is not None:
        shown["state"], total["state"] = min(model.state_dim, MAX_STATES), model.state_dim
    heights = [2.4 * shown["output"] + (0.9 + 0.3 * shown["input"]) * bool(shown["input"]), 3.3]
    if view.followed is not None:
        heights.insert(1, 1.9 * ((shown["state"] + 1) // 2))
    left_out = [
        f"{total[what] - count} more {what}(s) not shown" for what, count in shown.items() if total[what] > count
    ]
    title = ", ".join([f"{name} ({method_of(model)}): {view.about}", *left_out])
    lines = [line for text in (title, scores.verdict) for line in textwrap.wrap(text, 165)]
    with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}):
        figure = plt.figure(figsize=(12, sum(heights) + 0.25 * len(lines)), layout="constrained")
        figure.suptitle(plots.literal("\n".join(lines)), fontsize=10)
        parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights)
        _draw_forecast(view, scores, parts[0], shown["output"], shown["input"])
        if view.followed is not None:
            _draw_states(view.followed, parts[1], shown["state"])
        _draw_diagnostics(view, scores, parts[-1])
        save_figure(figure, picture, 120)
        plt.close(figure)


def _draw_forecast(view: View, scores: Scores, figure: Any, num_outputs: int, num_inputs: int) -> None:
    """The outputs, and the inputs below them on the same axis of time."""
    future, times, before = view.future, view.future.times, len(view.past.outputs)
    heights = [2.4] * num_outputs + [0.9 + 0.3 * num_inputs] * bool(num_inputs)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for i, ax in enumerate(axes[:num_outputs]):
        past = view.past.outputs if before else None
        plots.forecast(view.free_run.forecast, past=past, future=future.outputs, channel=i, times=times, ax=ax)
        ax.set_title(_title(view.free_run.forecast.names[i], scores, i), loc="left")
        _place_legend(ax, first=i == 0)
    if num_inputs:
        plots.inputs(
            np.concatenate([part.inputs for part in (view.past, future) if part.inputs is not None])[:, :num_inputs],
            names=future.input_names[:num_inputs],
            times=None if times is None else times.later(-before),
            first=1 - before,
            ax=axes[-1],
        )
    for ax in axes[:-1]:
        ax.set_xlabel("")


def _title(name: str, scores: Scores, channel: int) -> str:
    fit, inside = scores.fit[channel], 100 * scores.coverage90[channel]
    if scores.diverged is not None:
        said = f"the free run diverges from step {scores.diverged} on"
    elif math.isnan(inside):
        said = "not observed"
    else:
        said = ", ".join(["constant" if math.isnan(fit) else f"fit {fit:.1f}%", f"{inside:.0f}% inside the 90% band"])
    return plots.literal(f"{name}: {said}")


def _draw_states(followed: Followed, figure: Any, count: int) -> None:
    """Two in a row; a single one is wide."""
    grid = figure.add_gridspec((count + 1) // 2, 2 if count > 1 else 1)
    for i in range(count):
        ax = figure.add_subplot(grid[i // 2, :] if i == count - 1 and i % 2 == 0 else grid[i // 2, i % 2])
        plots.states(followed.states, dimension=i, times=followed.times, ax=ax).set_ylabel(f"$x_{{{i + 1}}}$")
        if i == 0:
            ax.set_title("States, filtered", loc="left")
        _place_legend(ax, first=i == 0)
        if i // 2 < (count - 1) // 2:
            ax.set_xlabel("")


def _place_legend(ax: Any, *, first: bool) -> None:
    """One for all panels of a kind, above the first."""
    ax.get_legend().remove()
    if first:
        ax.legend(frameon=False, fontsize=8, ncols=5, loc="lower right", bbox_to_anchor=(1, 1), markerscale=1.5)


def _draw_diagnostics(view: View, scores: Scores, figure: Any) -> None:
    """Residuals and calibration of the outputs that were observed; of a stream the latter alone."""
    seen = _observed(view)
    names = tuple(name for name, known in zip(view.free_run.forecast.names, seen, strict=True) if known)
    pits, axes = {}, figure.subplots(1, 3)
    if scores.diverged is None:
        pits["free run"] = view.free_run.pit[:, seen]
    if view.followed is not None:
        residuals = view.followed.residuals[:, seen]
        plots.residuals(residuals, names=names, times=view.followed.times, ax=axes[0])
        axes[0].set_title("Residuals one step ahead", loc="left")
        plots.autocorrelation(residuals, names=names, ax=axes[1]).set_title("Their autocorrelation", loc="left")
        pits["one step ahead"] = np.vectorize(NormalDist().cdf)(residuals)
    if pits:
        ax = axes[0 if view.followed is None else 2]
        plots.calibration(pits, names=names, ax=ax).set_title("What the bands promise and hold", loc="left")
    for ax in axes:
        ax.set_visible(ax.has_data())


def _numbers(view: View, scores: Scores) -> dict[str, object]:
    """What the picture shows, ready for JSON."""
    return {
        "samples": len(view.future.outputs) if view.followed is None else len(view.followed.residuals),
        "horizon": len(view.future.outputs),
        "fit_percent": scores.fit.tolist(),
        "one_step_coverage90": scores.one_step_coverage90,
        "free_run_coverage90": scores.free_run_coverage90,
        "lag1_autocorrelation": scores.lag1,
        "diverged": scores.diverged,
        "verdict": scores.verdict,
    }
