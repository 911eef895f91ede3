"""ARX: the next output as a linear function of past outputs and inputs, by least squares.

    y_t = sum_{i=1..p} A_i y_{t-i} + sum_{i=0..p-1} B_i c_{t-i} + b + v_t,  v_t ~ N(0, Q)

Outputs are vectors, so this is a vector autoregression where there are several. In state-space
form the state holds what the equation looks back on, [y_t, ..., y_{t-p+1}, c_t, ..., c_{t-p+2}],
and there is no observation noise. Before the first sample of a recording that state is unknown;
its prior is the Gaussian with the moments it had during training.

The order, if it is not given, is the one that forecasts best: candidates are fitted to the first
three quarters of every recording and then run freely through the last quarter, in blocks of 50
steps that each start from the samples before them; the smallest root-mean-square error over all
steps, of standardised outputs, wins. The model returned is fitted to everything; an order that is
then unstable loses to any that is not.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from gpssm.errors import InvalidInput
from gpssm.filters.kalman import Gaussian, System
from gpssm.methods.linear import LinearMethod, NDArray, observed_scaling
from gpssm.plumbing.validation import positive_int
from gpssm.posteriors.linear import NOISE_FLOOR, LinearPosterior
from gpssm.training.progress import Watch

_BLOCK = 50
_STABLE = 1.0 + 1e-6  # largest modulus of an eigenvalue; an integrator has 1


@dataclass(frozen=True)
class ARX(LinearMethod):
    """Linear regression on past outputs and inputs; equations that contain a missing value are left out.

    Args:
        order: number p of past outputs and of inputs, the one acting now included; by default the
            one that forecasts the end of the training recordings best.
        max_order: largest order that is tried.

    >>> import gpssm
    >>> posterior = gpssm.ARX(order=1).fit([[0.5**t] for t in range(8)])  # halved in every step
    >>> posterior.forecast(1).mean.round(3).tolist()
    [[0.004]]
    """

    order: int | None = None
    max_order: int = 10
    name: str = "ARX"
    fixed: ClassVar[tuple[str, ...]] = ("emission.weight", "emission.bias", "obs_noise.cov")

    def __post_init__(self) -> None:
        if self.order is not None:
            positive_int("order", self.order)
        positive_int("max_order", self.max_order)

    def learn(self, outputs: list[NDArray], inputs: list[NDArray], progress: bool | Watch) -> LinearPosterior:
        dy = outputs[0].shape[1]
        scaling = observed_scaling(outputs, inputs, dy)
        standard = scaling.standardise(outputs, inputs)
        fitted = _select(*standard, self.max_order) if self.order is None else _regress(*standard, self.order)
        _, _, shift, scale, input_shift, input_scale = scaling
        scaling = scaling._replace(
            state_shift=np.concatenate([np.tile(shift, fitted.order), np.tile(input_shift, fitted.order - 1)]),
            state_scale=np.concatenate([np.tile(scale, fitted.order), np.tile(input_scale, fitted.order - 1)]),
        )
        a, b, bias = fitted.companion()
        dx = len(a)
        process_cov = np.zeros((dx, dx))
        process_cov[:dy, :dy] = fitted.noise_cov
        matrices = (a, process_cov, np.eye(dy, dx), np.zeros(dy), np.zeros((dy, dy)))
        prior = Gaussian(jnp.asarray(fitted.lag_mean), jnp.asarray(fitted.lag_cov))
        return self.posterior(System(*map(jnp.asarray, matrices)), prior, scaling, b, bias)


class _Regression(NamedTuple):
    """Least squares in standardised units, on `[y_{t-1}, ..., y_{t-p}, c_{t-1}, ..., c_{t-p+1}, c_t, 1]`."""

    order: int
    weight: NDArray
    noise_cov: NDArray
    lag_mean: NDArray
    lag_cov: NDArray

    def companion(self) -> tuple[NDArray, NDArray, NDArray]:
        """A, B and b of the state-space form: the regression on top, a shift below."""
        dx, dy = len(self.lag_mean), len(self.weight)
        dc, outputs = self.weight.shape[1] - dx - 1, self.order * dy
        a, b, bias = np.zeros((dx, dx)), np.zeros((dx, dc)), np.zeros(dx)
        a[:dy], b[:dy], bias[:dy] = self.weight[:, :dx], self.weight[:, dx:-1], self.weight[:, -1]
        a[dy:outputs, : outputs - dy] = np.eye(outputs - dy)
        if self.order > 1:
            b[outputs : outputs + dc] = np.eye(dc)
            a[outputs + dc :, outputs : dx - dc] = np.eye(dx - outputs - dc)
        return a, b, bias


def _regress(outputs: list[NDArray], inputs: list[NDArray], order: int) -> _Regression:
    """Fit standardised recordings by least squares, on the equations without a missing value."""
    lags = np.concatenate([_lags(y, c, order)[order:-1] for y, c in zip(outputs, inputs, strict=True)])
    now = np.concatenate([c[order:] for c in inputs])
    target = np.concatenate([y[order:] for y in outputs])
    complete = ~(np.isnan(lags).any(axis=1) | np.isnan(target).any(axis=1))
    lags, target = lags[complete], target[complete]
    design = np.hstack([lags, now[complete], np.ones((len(lags), 1))])
    freedom = len(design) - design.shape[1]
    if freedom < 1:
        raise InvalidInput(
            f"outputs: {len(design)} sample(s) have all of the {order} before them; "
            f"expected more than {design.shape[1]} for order {order}."
        )
    weight = np.linalg.lstsq(design, target, rcond=None)[0].T
    residual = target - design @ weight.T
    noise_cov = residual.T @ residual / freedom + NOISE_FLOOR * np.eye(target.shape[1])
    centred = lags - lags.mean(axis=0)
    return _Regression(order, weight, noise_cov, lags.mean(axis=0), centred.T @ centred / len(lags))


def _lags(y: NDArray, c: NDArray, order: int) -> NDArray:
    """Row t holds `[y_{t-1}, ..., y_{t-p}, c_{t-1}, ..., c_{t-p+1}]` (T + 1 rows), zero before the start."""
    y, c = (np.pad(a, ((order, 0), (0, 0))) for a in (y, c))
    past = [y[order - i : len(y) + 1 - i] for i in range(1, order + 1)]
    return np.hstack(past + [c[order - i : len(c) + 1 - i] for i in range(1, order)])


def _select(outputs: list[NDArray], inputs: list[NDArray], max_order: int) -> _Regression:
    """The order that forecasts the last quarter best, fitted to everything."""
    cuts = [3 * len(y) // 4 for y in outputs]
    early = [y[:cut] for y, cut in zip(outputs, cuts, strict=True)]
    driving = [c[:cut] for c, cut in zip(inputs, cuts, strict=True)]
    scored = []
    for order in range(1, max_order + 1):
        try:
            candidate, whole = _regress(early, driving, order), _regress(outputs, inputs, order)
        except InvalidInput:
            break  # too short for this order, and so for larger ones
        # Remembered inputs add eigenvalues of zero only.
        unstable = bool(np.max(np.abs(np.linalg.eigvals(whole.companion()[0]))) > _STABLE)
        scored.append(((unstable, _free_run_error(candidate, outputs, inputs, cuts)), whole))
    return min(scored, key=lambda pair: pair[0])[1] if scored else _regress(outputs, inputs, 1)


def _free_run_error(fitted: _Regression, outputs: list[NDArray], inputs: list[NDArray], cuts: list[int]) -> float:
    """Mean square error after `cuts`, in blocks that start from what was seen before them."""
    a, b, bias = fitted.companion()
    total, count = 0.0, 0
    for y, c, cut in zip(outputs, inputs, cuts, strict=True):
        starts = np.arange(cut, len(y), _BLOCK)
        # Exact conditioning on gaps is for the filter; to compare orders the last value seen will do.
        x = _lags(_carried_forward(y), c, fitted.order)[starts]
        later_y = np.pad(y, ((0, _BLOCK), (0, 0)), constant_values=np.nan)
        later_c = np.pad(c, ((0, _BLOCK), (0, 0)))
        with np.errstate(over="ignore", invalid="ignore"):
            for step in range(_BLOCK):
                x = x @ a.T + later_c[starts + step] @ b.T + bias
                error = x[:, : y.shape[1]] - later_y[starts + step]
                seen = ~np.isnan(later_y[starts + step])
                total, count = total + float(np.sum(error[seen] ** 2)), count + int(seen.sum())
    return total / count if count and np.isfinite(total) else np.inf


def _carried_forward(y: NDArray) -> NDArray:
    """Missing values replaced by the last one seen; zero, the mean, before the first."""
    padded = np.vstack([np.zeros(y.shape[1]), y])
    rows = np.where(np.isnan(padded), 0, np.arange(len(padded))[:, None])
    return np.take_along_axis(padded, np.maximum.accumulate(rows, axis=0), axis=0)[1:]
