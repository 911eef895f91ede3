"""Plots of a fitted model. Every function draws on `ax`, the current axes by default, and returns it (matplotlib).

All numbers are in the units of the data that the model was fitted to.

>>> import gpssm
>>> y = np.sin(0.3 * np.arange(100))[:, None]
>>> ax = forecast(gpssm.ARX(order=2).fit(y).forecast(30), past=y[-50:])
>>> ax.get_xlabel()
'steps ahead'
>>> plt.close()
"""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

try:
    import matplotlib.pyplot as plt
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "gpssm.plots needs matplotlib; run pip install 'gpssm[plot]'.", name="matplotlib"
    ) from error
import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from gpssm import metrics
from gpssm.online.stream import Stream
from gpssm.plumbing.times import Times
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.posterior import Posterior
from gpssm.posteriors.states import Forecast, ForecastSummary, States

NDArray = np.ndarray

BLUE, ORANGE, GREY = "#1f5fa8", "#d9700a", "#6b7280"
EDGE, GREEN = "#173f70", "#2f855a"
CHANNELS = (BLUE, ORANGE, GREEN, "#8b3a8b", GREY, "#0aa5a5")
"""Colours of channels that share an axes; a seventh has the first again."""
MANY = 300
"""Samples from which on single points are no longer told apart."""


def transition(
    posterior: Fitted | Stream,
    *,
    truth: Callable[[NDArray], NDArray] | None = None,
    span: tuple[float, float] | None = None,
    states: NDArray | None = None,
    ax: Any = None,
) -> Any:
    """The learned f of a one-dimensional system, its 95% band and its inducing points, if it has any.

    Args:
        posterior: a fitted model or a stream, with one state and no inputs.
        truth: the true f, where it is known: from an array (n,) to another.
        span: range of x; that of the inducing points by default, or two standard deviations of the data. A stream
            has no default.
        states: (T, 1) consecutive states to show as pairs.
        ax: where to draw.

    >>> import gpssm
    >>> ax = transition(gpssm.LastValue().fit([3.0, 5.0, 4.0]), truth=lambda x: x)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('$x_{t-1}$', '$x_t$')
    >>> plt.close()
    """
    if posterior.state_dim != 1 or posterior.input_dim != 0:
        raise ValueError("posterior: expected one state and no inputs; plot slices of `posterior.transition` instead.")
    ax = plt.gca() if ax is None else ax
    z = np.sort(inducing_inputs(posterior)[:, 0]) if isinstance(posterior, Posterior) else np.zeros(0)
    if span is None:
        if isinstance(posterior, Stream):
            raise ValueError("span: expected the range (low, high) of x to draw the f of a stream on.")
        centre, unit = posterior.scaling.state_shift[0], posterior.scaling.state_scale[0]
        span = (z[0], z[-1]) if len(z) else (centre - 2 * unit, centre + 2 * unit)
    low, high = span
    x = np.linspace(low, high, 300)
    mean, var = (a[:, 0] for a in posterior.transition(x[:, None]))
    band = 1.96 * np.sqrt(var)
    if states is not None:
        ax.scatter(states[:-1, 0], states[1:, 0], s=5, color=GREY, alpha=0.35, lw=0, label="states")
    ax.fill_between(x, mean - band, mean + band, color=BLUE, alpha=0.22, lw=0, label="95% band of f")
    ax.plot(x, mean, color=BLUE, lw=2, label="learned f")
    if truth is not None:
        ax.plot(x, truth(x), color=ORANGE, lw=1.5, ls="--", label="true f")
    inside = z[(z >= low) & (z <= high)]
    if len(inside):
        at = posterior.transition(inside[:, None])[0][:, 0]
        ax.plot(inside, at, "o", ms=4, color=BLUE, mec="white", mew=0.6, label="inducing points")
    ax.set(xlabel="$x_{t-1}$", ylabel="$x_t$", xlim=(low, high))
    ax.legend(frameon=False, fontsize=8)
    return ax


EDGES = (0.05, 0.95, 0.25, 0.75)
"""Quantiles that `forecast` draws: those of the outer band, then those of the inner."""


def forecast(
    paths: Forecast | ForecastSummary,
    *,
    past: NDArray | None = None,
    future: NDArray | None = None,
    channel: int = 0,
    times: Times | None = None,
    ax: Any = None,
) -> Any:
    """A forecast of one output with its 50% and 90% bands, between what was observed before and since.

    Where the bands run away from the data by many times their range, as those of an unstable model do, the axis ends.

    Args:
        paths: what `forecast` of a model or a stream returned; one with quantiles has those that are drawn, `EDGES`.
        past: (T, dy) the outputs before it.
        future: (h, dy) the outputs observed since, of as many steps as there are.
        channel: index of the output, from 0.
        times: of the steps; those that the forecast knows by default. Without any, steps are counted.
        ax: where to draw.

    >>> ax = forecast(Forecast(np.random.default_rng(0).normal(size=(50, 7, 1)), np.zeros((50, 7, 1))))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('steps ahead', 'output 0')
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    times = paths.times if times is None else times
    horizon, before = len(paths.mean), 0 if past is None else len(past)
    observed = np.full(before + horizon, np.nan)
    for rows, start in ((past, 0), (future, before)):
        if rows is not None:
            values = rows[:horizon, channel] if start else rows[:, channel]
            observed[start : start + len(values)] = values
    bands = paths.quantile(list(EDGES))[:, :, channel]
    low, high, runs_away = _limits(observed, bands)
    at, (lower, upper, *inner) = _places(times, horizon), np.clip(bands, low, high)
    ax.fill_between(at, lower, upper, color=BLUE, alpha=0.2, lw=0, zorder=2, label="90% band")
    ax.fill_between(at, *inner, color=BLUE, alpha=0.3, lw=0, zorder=2, label="50% band")
    thin = _thinner(len(observed))
    for edge in (lower, upper):  # above the points, which hide the band where there are many
        ax.plot(at, edge, color=EDGE, lw=max(0.3, 0.9 * thin), zorder=4)
    mean = np.clip(paths.mean[:, channel], low, high)
    ax.plot(at, mean, color=BLUE, lw=max(0.5, 1.6 * thin), zorder=3.5, label="forecast")
    if past is not None:
        earlier = _places(None if times is None else times.later(-before), before, 1 - before)
        ax.plot(
            earlier,
            observed[:before],
            ".-",
            color=GREY,
            ms=4 * thin,
            mew=0,
            lw=max(0.4, 0.7 * thin),
            zorder=3,
            label="past",
        )
    if future is not None:
        size = max(3.0, 6 * thin)
        ax.plot(at, observed[before:], ".", color=ORANGE, ms=size, mew=0, zorder=3.7, label="observed")
    ax.axvline(border(times), color=GREY, lw=0.8, ls=":")
    if runs_away:
        ax.set_ylim(*runs_away)
    _name_time(ax, times, "steps ahead")
    ax.set_ylabel(literal(paths.names[channel]) if paths.names else f"output {channel}")
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 5}
    ax.legend(frameon=False, fontsize=8, ncols=5, markerscale=1 / thin, **below)
    return ax


def inputs(
    values: NDArray, *, names: tuple[str, ...] = (), times: Times | None = None, first: int = 1, ax: Any = None
) -> Any:
    """Control inputs over time: one in its own units, several below each other, each over its own range.

    Args:
        values: (T, dc) the inputs.
        names: of the channels.
        times: of the samples. Without any, steps are counted,
        first: from this one on: 1 is the first step of a forecast.
        ax: where to draw.

    >>> ax = inputs(np.array([[0.0, 5.0], [1.0, 7.0], [0.0, 6.0]]), names=("valve", "load"))
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['valve: 0 to 1', 'load: 5 to 7']
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    at, count = _places(times, len(values), first), values.shape[1]
    labels = [literal(name) for name in names or [f"input {i}" for i in range(count)]]
    style: dict[str, Any] = {"lw": max(0.3, 0.9 * _thinner(len(values))), "drawstyle": "steps-mid"}
    if count == 1:
        ax.plot(at, values[:, 0], color=GREEN, label=labels[0], **style)
        ax.set_ylabel(labels[0])
    else:
        lowest, highest = values.min(axis=0), values.max(axis=0)
        span = np.where(highest > lowest, highest - lowest, 1.0)
        lanes = 1.3 * np.arange(count)[::-1]
        for i, label in enumerate(labels):
            ax.plot(at, lanes[i] + (values[:, i] - lowest[i]) / span[i], color=GREEN, label=label, **style)
        ranges = [f"{low:.4g} to {high:.4g}" for low, high in zip(lowest, highest, strict=True)]
        ax.set_yticks(lanes + 0.5, [f"{label}: {text}" for label, text in zip(labels, ranges, strict=True)])
        ax.tick_params(axis="y", length=0, labelsize=7)
    _name_time(ax, times, "steps ahead")
    return ax


def states(
    estimate: States,
    *,
    truth: NDArray | None = None,
    dimension: int = 0,
    times: Times | None = None,
    ax: Any = None,
) -> Any:
    """One filtered or smoothed state with its 95% band.

    Args:
        estimate: what `filter` or `smooth` of a model returned, of T samples.
        truth: (T, dx) the true states, where they are known.
        dimension: index of the state, from 0.
        times: of the samples; those that the estimate knows by default. Without any, samples are counted.
        ax: where to draw.

    >>> ax = states(States(np.zeros((3, 1)), np.ones((3, 1, 1)), 0.0, np.zeros((9, 1))), truth=np.zeros((3, 1)))
    >>> ax.get_ylabel()
    'state 0'
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    times = estimate.times if times is None else times
    t = _places(times, len(estimate.mean))
    mean, band = estimate.mean[:, dimension], 1.96 * estimate.std[:, dimension]
    ax.fill_between(t, mean - band, mean + band, color=BLUE, alpha=0.22, lw=0, label="95% band")
    ax.plot(t, mean, color=BLUE, lw=max(0.6, 1.2 * _thinner(len(t))), label="estimate")
    if truth is not None:
        ax.plot(t, truth[:, dimension], color=ORANGE, lw=0.9, ls="--", label="truth")
    _name_time(ax, times, "t")
    ax.set_ylabel(f"state {dimension}")
    ax.legend(frameon=False, fontsize=8)
    return ax


FARTHEST = 6.0
"""Predicted standard deviations, beyond which a residual is drawn at the border."""


def residuals(standardised: NDArray, *, names: tuple[str, ...] = (), times: Times | None = None, ax: Any = None) -> Any:
    """Residuals in units of their predicted standard deviation: 19 of 20 belong between the lines.

    Those beyond six standard deviations are triangles at the border, and their number is said.

    Args:
        standardised: (T, dy) observed minus predicted, over the predicted standard deviation; NaN where missing.
        names: of the channels.
        times: of the samples. Without any, samples are counted.
        ax: where to draw.

    >>> ax = residuals(np.array([[0.1], [-1.2], [70.0]]), names=("level",))
    >>> ax.get_lines()[-1].get_label(), ax.texts[0].get_text()
    ('level', '1 of 3 beyond 6 sd')
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    t = _places(times, len(standardised))
    beyond = np.abs(standardised) > FARTHEST
    ax.axhspan(-2, 2, color=GREY, alpha=0.12, lw=0)
    ax.axhline(0, color=GREY, lw=0.8)
    size = max(2.0, 4 * _thinner(len(t)))
    for channel, name, colour in _channels(standardised, names):
        values, far = standardised[:, channel], beyond[:, channel]
        for marker, side in (("^", far & (values > 0)), ("v", far & (values < 0))):
            place = np.where(values[side] > 0, FARTHEST, -FARTHEST)
            ax.plot(t[side], place, marker, ms=5, mew=0, color=colour, clip_on=False)
        inside = np.where(far, np.nan, values)
        ax.plot(t, inside, ".", ms=size, alpha=0.8, mew=0, color=colour, label=name)
    if beyond.any():
        said = f"{beyond.sum()} of {np.sum(~np.isnan(standardised))} beyond {FARTHEST:.0f} sd"
        ax.set_ylim(-FARTHEST, FARTHEST)
        box = {"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 1.5}
        ax.text(0.02, 0.03, said, transform=ax.transAxes, fontsize=8, color=GREY, bbox=box, zorder=5)
    _name_time(ax, times, "t")
    ax.set_ylabel("residual / predicted sd")
    _legend_of_several(ax, standardised, 8 / size)
    return ax


def autocorrelation(residuals: NDArray, *, lags: int | None = None, names: tuple[str, ...] = (), ax: Any = None) -> Any:
    """Autocorrelation of residuals (T, dy), with the band +-2/sqrt(T) that white noise stays in 19 times of 20.

    Args:
        residuals: (T, dy), NaN where a sample is missing.
        lags: largest lag; 30 by default, or a quarter of T if that is less.
        names: of the channels.
        ax: where to draw.

    >>> ax = autocorrelation(np.random.default_rng(0).normal(size=(40, 1)))
    >>> len(ax.get_lines()[-1].get_xdata())
    10
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    largest = max(1, min(30, len(residuals) // 4)) if lags is None else lags
    values = metrics.autocorrelation(residuals, largest)[1:]
    # The channel with most gaps has the widest band.
    band = 2 / np.sqrt(np.min(np.sum(~np.isnan(residuals), axis=0)))
    ax.axhspan(-band, band, color=GREY, alpha=0.18, lw=0)
    ax.axhline(0, color=GREY, lw=0.8)
    shift = 0.5 / residuals.shape[1]
    for channel, name, colour in _channels(residuals, names):
        lag = np.arange(1, largest + 1) + shift * (channel - 0.5 * (residuals.shape[1] - 1))
        ax.vlines(lag, 0, values[:, channel], color=colour, lw=1.2)
        ax.plot(lag, values[:, channel], "o", ms=3, color=colour, label=name)
    limit = max(0.3, 1.15 * float(np.nanmax(np.abs(values), initial=band)))
    ax.set(xlabel="lag", ylabel="autocorrelation", ylim=(-limit, limit))
    _legend_of_several(ax, residuals)
    return ax


def calibration(pits: Mapping[str, NDArray], *, names: tuple[str, ...] = (), ax: Any = None) -> Any:
    """The share of numbers inside the central bands against the share promised: below the diagonal they are too narrow.

    A line for every output and every kind of forecast: outputs have their colours, kinds are solid, dashed, dotted.

    Args:
        pits: `metrics.pit` (h, dy) of forecasts, by what they are called. Around the diagonal is the band in which an
            output of the first stays at a level 19 times of 20, if its numbers are independent and its bands hold.
        names: of the channels.
        ax: where to draw.

    >>> ax = calibration({"one step ahead": np.array([[0.1], [0.4], [0.7], [0.9]])})
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('share promised', 'share held')
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    level = np.linspace(0, 1, 101)
    first = next(iter(pits.values()))
    spread = 2 * np.sqrt(level * (1 - level) / np.min(np.sum(~np.isnan(first), axis=0)))
    ax.fill_between(level, level - spread, level + spread, color=GREY, alpha=0.18, lw=0)
    ax.plot(level, level, color=GREY, lw=0.8, ls="--")
    several = first.shape[1] > 1
    for (kind, pit), style in zip(pits.items(), cycle(("-", (0, (4, 2)), ":")), strict=False):
        for channel, name, colour in _channels(pit, names):
            distance = np.abs(2 * pit[~np.isnan(pit[:, channel]), channel] - 1)
            held = np.mean(distance[:, None] <= level, axis=0)
            label = f"{kind}: {name}" if several else kind
            ax.plot(level, held, color=colour, ls=style, lw=1.2 if several else 1.8, label=label)
        if several:
            ax.plot([], [], color=GREY, ls=style, label=kind)
    handles = {line.get_label(): line for line in ax.get_lines() if line.get_label() in pits}
    if several:
        of_first = zip(_channels(first, names), ax.get_lines()[1:], strict=False)
        handles = {name: line for (_, name, _), line in of_first} | handles
    ax.set(xlabel="share promised", ylabel="share held", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.legend(handles.values(), handles.keys(), frameon=False, fontsize=7, loc="best", labelspacing=0.3)
    return ax


def literal(text: str) -> str:
    """A user's words, `text`, as matplotlib draws them as they are: a dollar sign would start a formula.

    >>> len(literal("price [$]")) - len("price [$]")
    1
    """
    return text.replace("$", r"\$")


def _channels(values: NDArray, names: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Index, name and colour of every column."""
    labels = tuple(map(literal, names)) or tuple(f"output {i}" for i in range(values.shape[1]))
    return list(zip(range(values.shape[1]), labels, cycle(CHANNELS), strict=False))


def _legend_of_several(ax: Any, values: NDArray, markerscale: float = 1.5) -> None:
    if values.shape[1] > 1:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.12 * (high - low))  # room for the legend
        ax.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", markerscale=markerscale)


def inducing_inputs(posterior: Posterior, dimension: int = 0) -> NDArray:
    """Inducing inputs of one state dimension, in the user's units.

    Args:
        posterior: a fitted model.
        dimension: index of the state that the GP predicts, from 0.

    Returns:
        (M, dx + dc), states before inputs; M = 0 where f is a network.

    >>> inducing_inputs(gpssm.EnVI(1, num_inducing=15).fit(y)).shape  # doctest: +SKIP
    (15, 1)
    """
    if not posterior.model.num_inducing:
        return np.zeros((0, posterior.state_dim + posterior.input_lags * posterior.input_dim))
    z = np.asarray(posterior.model.transition.gp.inducing_inputs)[dimension]
    return posterior.scaling.argument_shift + posterior.scaling.argument_scale * z


def _places(times: Times | None, length: int, first: int = 1) -> Any:
    """Where samples are on the axis: at their times, or at their numbers from `first` on."""
    return np.arange(first, first + length) if times is None else times.values(length)


def border(times: Times | None, step: int = 0) -> Any:
    """On the axis of a forecast, which has these `times`, between what comes before `step`, from 0, and that.

    >>> border(None), float(border(Times(10.0, 2.0), 3))
    (0.5, 15.0)
    """
    before, after = (step, step + 1) if times is None else times.later(step - 1).values(2)
    return before + (after - before) / 2


def _name_time(ax: Any, times: Times | None, counted: str) -> None:
    """What the axis shows: dates, times in their unit, or what is `counted`."""
    if times is None:
        ax.set_xlabel(counted)
        return
    if times.dated:
        most = max(5, int(ax.get_window_extent().width / ax.figure.dpi))  # one an inch
        locator = AutoDateLocator(minticks=(most - 1) // 2, maxticks=most)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    about = times.zone if times.dated else times.unit
    ax.set_xlabel(literal(f"{times.name} [{about}]" if about else times.name))


def _thinner(count: int) -> float:
    """Factor of the widths of lines where `count` samples are side by side: there is no room for more."""
    return float(np.clip(MANY / max(count, 1), 0.2, 1.0) ** 0.7)


def _limits(observed: NDArray, band: NDArray) -> tuple[float, float, tuple[float, float] | None]:
    """Least and largest number that is drawn, and the ends of the axis if a band runs away from what was observed."""
    seen = observed[~np.isnan(observed)]
    if not len(seen):
        return -np.inf, np.inf, None
    low, high = float(seen.min()), float(seen.max())
    span = high - low or abs(high) or 1.0
    inside = (band >= low - _AWAY * span) & (band <= high + _AWAY * span)
    if inside.all():
        return -np.inf, np.inf, None
    return low - _AWAY * span, high + _AWAY * span, (low - span, high + span)


_AWAY = 10.0  # ranges of the data, beyond which a band runs away from them
