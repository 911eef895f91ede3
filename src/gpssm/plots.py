"""Plots of a fitted model. Every function draws on an `ax` and returns it."""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from gpssm.posterior import Forecast, Posterior, States

NDArray = np.ndarray

BLUE, ORANGE, GREY = "#1f5fa8", "#d9700a", "#6b7280"


def transition(
    posterior: Posterior,
    *,
    truth: Callable[[NDArray], NDArray] | None = None,
    span: tuple[float, float] | None = None,
    states: NDArray | None = None,
    ax: Any = None,
) -> Any:
    """The learned f of a one-dimensional system, its 95% band and its inducing points.

    Args:
        posterior: with one state and no inputs.
        truth: the true f, where it is known.
        span: range of x; that of the inducing points by default.
        states: consecutive states to show as pairs.
        ax: where to draw; the current axes by default.
    """
    if posterior.state_dim != 1 or posterior.input_dim != 0:
        raise ValueError("posterior: expected one state and no inputs; plot slices of `posterior.transition` instead.")
    ax = plt.gca() if ax is None else ax
    z = np.sort(inducing_inputs(posterior)[:, 0])
    low, high = (z[0], z[-1]) if span is None else span
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
    ax.plot(
        inside,
        posterior.transition(inside[:, None])[0][:, 0],
        "o",
        ms=4,
        color=BLUE,
        mec="white",
        mew=0.6,
        label="inducing points",
    )
    ax.set(xlabel="$x_{t-1}$", ylabel="$x_t$", xlim=(low, high))
    ax.legend(frameon=False, fontsize=8)
    return ax


def forecast(
    paths: Forecast, *, past: NDArray | None = None, future: NDArray | None = None, channel: int = 0, ax: Any = None
) -> Any:
    """A forecast with its 50% and 90% bands, after the end of the past."""
    ax = plt.gca() if ax is None else ax
    h = np.arange(1, paths.samples.shape[1] + 1)
    for low, high, alpha, label in ((0.05, 0.95, 0.18, "90% band"), (0.25, 0.75, 0.3, "50% band")):
        lower, upper = paths.quantile([low, high])[:, :, channel]
        ax.fill_between(h, lower, upper, color=BLUE, alpha=alpha, lw=0, label=label)
    ax.plot(h, paths.mean[:, channel], color=BLUE, lw=1.8, label="forecast")
    if past is not None:
        ax.plot(np.arange(-len(past) + 1, 1), past[:, channel], ".-", color=GREY, ms=3, lw=0.7, label="past")
    if future is not None:
        ax.plot(h[: len(future)], future[: len(h), channel], ".", color=ORANGE, ms=5, label="what came")
    ax.axvline(0.5, color=GREY, lw=0.8, ls=":")
    ax.set(xlabel="steps ahead", ylabel=f"output {channel}")
    ax.legend(frameon=False, fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    return ax


def states(estimate: States, *, truth: NDArray | None = None, dimension: int = 0, ax: Any = None) -> Any:
    """Filtered or smoothed states with their 95% band."""
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


def inducing_inputs(posterior: Posterior, dimension: int = 0) -> NDArray:
    """Inducing inputs (M, dx + dc) of one state dimension, in the user's units."""
    z = np.asarray(posterior.model.transition.gp.inducing_inputs)[dimension]
    return posterior.scaling.argument_shift + posterior.scaling.argument_scale * z
