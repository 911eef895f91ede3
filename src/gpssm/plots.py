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

from gpssm import metrics
from gpssm.online.stream import Stream
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.posterior import Posterior
from gpssm.posteriors.states import Forecast, States

NDArray = np.ndarray

BLUE, ORANGE, GREY = "#1f5fa8", "#d9700a", "#6b7280"
CHANNELS = (BLUE, ORANGE, "#2f855a", "#8b3a8b", GREY)
"""Colours of channels that share an axes; a sixth has the first again."""


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


def forecast(
    paths: Forecast, *, past: NDArray | None = None, future: NDArray | None = None, channel: int = 0, ax: Any = None
) -> Any:
    """A forecast of one output with its 50% and 90% bands, between what was observed before and since.

    Args:
        paths: what `forecast` of a model or a stream returned.
        past: (T, dy) the outputs before it.
        future: (h, dy) the outputs observed since, of as many steps as there are.
        channel: index of the output, from 0.
        ax: where to draw.

    >>> ax = forecast(Forecast(np.random.default_rng(0).normal(size=(50, 7, 1)), np.zeros((50, 7, 1))))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('steps ahead', 'output 0')
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    h = np.arange(1, paths.samples.shape[1] + 1)
    for low, high, alpha, label in ((0.05, 0.95, 0.18, "90% band"), (0.25, 0.75, 0.3, "50% band")):
        lower, upper = paths.quantile([low, high])[:, :, channel]
        ax.fill_between(h, lower, upper, color=BLUE, alpha=alpha, lw=0, label=label)
    ax.plot(h, paths.mean[:, channel], color=BLUE, lw=1.8, label="forecast")
    if past is not None:
        ax.plot(np.arange(-len(past) + 1, 1), past[:, channel], ".-", color=GREY, ms=3, lw=0.7, label="past")
    if future is not None:
        ax.plot(h[: len(future)], future[: len(h), channel], ".", color=ORANGE, ms=5, label="observed")
    ax.axvline(0.5, color=GREY, lw=0.8, ls=":")
    ax.set(xlabel="steps ahead", ylabel=f"output {channel}")
    ax.legend(frameon=False, fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    return ax


def states(estimate: States, *, truth: NDArray | None = None, dimension: int = 0, ax: Any = None) -> Any:
    """One filtered or smoothed state with its 95% band.

    Args:
        estimate: what `filter` or `smooth` of a model returned, of T samples.
        truth: (T, dx) the true states, where they are known.
        dimension: index of the state, from 0.
        ax: where to draw.

    >>> ax = states(States(np.zeros((3, 1)), np.ones((3, 1, 1)), 0.0, np.zeros((9, 1))), truth=np.zeros((3, 1)))
    >>> ax.get_ylabel()
    'state 0'
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    t = np.arange(1, len(estimate.mean) + 1)
    mean, band = estimate.mean[:, dimension], 1.96 * estimate.std[:, dimension]
    ax.fill_between(t, mean - band, mean + band, color=BLUE, alpha=0.22, lw=0, label="95% band")
    ax.plot(t, mean, color=BLUE, lw=1.2, label="estimate")
    if truth is not None:
        ax.plot(t, truth[:, dimension], color=ORANGE, lw=0.9, ls="--", label="truth")
    ax.set(xlabel="t", ylabel=f"state {dimension}")
    ax.legend(frameon=False, fontsize=8)
    return ax


def residuals(standardised: NDArray, *, names: tuple[str, ...] = (), ax: Any = None) -> Any:
    """Residuals in units of their predicted standard deviation: 19 of 20 belong between the lines.

    Args:
        standardised: (T, dy) observed minus predicted, over the predicted standard deviation; NaN where missing.
        names: of the channels.
        ax: where to draw.

    >>> ax = residuals(np.array([[0.1], [-1.2], [0.7]]), names=("level",))
    >>> ax.get_lines()[-1].get_label()
    'level'
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    t = np.arange(1, len(standardised) + 1)
    ax.axhspan(-2, 2, color=GREY, alpha=0.12, lw=0)
    ax.axhline(0, color=GREY, lw=0.8)
    for channel, name, colour in _channels(standardised, names):
        ax.plot(t, standardised[:, channel], ".", ms=4, alpha=0.8, mew=0, color=colour, label=name)
    ax.set(xlabel="t", ylabel="residual / predicted sd")
    _legend_of_several(ax, standardised)
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


def calibration(pits: Mapping[str, NDArray], *, ax: Any = None) -> Any:
    """The share of numbers inside the central bands against the share promised, a line for every kind of forecast.

    Args:
        pits: `metrics.pit` (h, dy) of forecasts, by what they are called. Around the first is the band that
            it stays in at a level 19 times of 20, if its numbers are independent and its bands hold.
        ax: where to draw.

    >>> ax = calibration({"one step ahead": np.array([[0.1], [0.4], [0.7], [0.9]])})
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('share promised', 'share held')
    >>> plt.close()
    """
    ax = plt.gca() if ax is None else ax
    level = np.linspace(0, 1, 101)
    for i, ((name, pit), colour) in enumerate(zip(pits.items(), cycle(CHANNELS), strict=False)):
        distance = np.abs(2 * pit[~np.isnan(pit)] - 1)
        if i == 0:
            spread = 2 * np.sqrt(level * (1 - level) / len(distance))
            ax.fill_between(level, level - spread, level + spread, color=GREY, alpha=0.18, lw=0)
            ax.plot(level, level, color=GREY, lw=0.8, ls="--")
        ax.plot(level, np.mean(distance[:, None] <= level, axis=0), color=colour, lw=1.8, label=name)
    ax.set(xlabel="share promised", ylabel="share held", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return ax


def _channels(values: NDArray, names: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Index, name and colour of every column."""
    labels = names or tuple(f"output {i}" for i in range(values.shape[1]))
    return list(zip(range(values.shape[1]), labels, cycle(CHANNELS), strict=False))


def _legend_of_several(ax: Any, values: NDArray) -> None:
    if values.shape[1] > 1:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.12 * (high - low))  # room for the legend
        ax.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", markerscale=1.5)


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
