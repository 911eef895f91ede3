"""A linear state-space model from one regression and one singular value decomposition.

    x_t = [y_t, h_t],    x_t ~ A x_{t-1} + B c_t + b

The hidden part h_t is what the past says about the future beyond the present output. A long
autoregression y_t ~ sum_i Phi_i y_{t-i} + Psi_i c_{t-i+1} gives the prediction of the next
`horizon` outputs from the past alone (the predictor Markov parameters of subspace
identification, PBSID); its leading principal components, with the present output projected
out, are the states.
"""

from typing import NamedTuple

import numpy as np

NDArray = np.ndarray

_RIDGE = 1e-3  # relative to the variance of standardised data
_MAX_LAGS = 20


class Subspace(NamedTuple):
    """States (T, dx) of every recording, the outputs first, and the linear map between them."""

    weight: NDArray  # (dx, dx + dc): A and B
    bias: NDArray  # (dx,)
    states: list[NDArray]


def identify(outputs: list[NDArray], inputs: list[NDArray], state_dim: int) -> Subspace:
    """Fit to standardised recordings; missing outputs are interpolated. Needs state_dim >= output_dim."""
    filled = [fill(y) for y in outputs]
    dy, dc = filled[0].shape[1], inputs[0].shape[1]
    rows = sum(map(len, filled))
    lags = int(np.clip(rows // (6 * (dy + dc)), 1, _MAX_LAGS))
    pasts = [_lagged(y, c, lags) for y, c in zip(filled, inputs, strict=True)]
    hidden = _hidden(filled, inputs, pasts, lags, state_dim - dy)
    states = [np.hstack([y, h]) for y, h in zip(filled, hidden, strict=True)]
    weight, bias = one_step(states, inputs)
    return Subspace(weight, bias, states)


def differences(outputs: list[NDArray], inputs: list[NDArray], state_dim: int) -> Subspace:
    """The same, with differences of the outputs, of growing order and unit variance, as hidden states.

    For outputs that hardly move from one sample to the next: what the past says of the future is in differences so
    small that the ridge of `identify` takes them for nothing.
    """
    filled = [fill(y) for y in outputs]
    states = [y.copy() for y in filled]
    latest = filled
    while states[0].shape[1] < state_dim:
        latest = [np.diff(x, axis=0, prepend=2 * x[:1] - x[1:2]) for x in latest]
        scale = np.concatenate(latest).std(axis=0)
        latest = [x / np.where(scale > 0, scale, 1.0) for x in latest]
        states = [np.hstack([x, more])[:, :state_dim] for x, more in zip(states, latest, strict=True)]
    before, after = _steps(states, inputs)
    weight = np.linalg.lstsq(before, after, rcond=None)[0].T
    return Subspace(weight[:, :-1], weight[:, -1], states)


def one_step(states: list[NDArray], inputs: list[NDArray]) -> tuple[NDArray, NDArray]:
    """`x_t ~ A x_{t-1} + B c_t + b` by ridge regression, on the rows without a gap."""
    dx, dc = states[0].shape[1], inputs[0].shape[1]
    before, after = _steps(states, inputs)
    complete = ~(np.isnan(before).any(axis=1) | np.isnan(after).any(axis=1))
    weight = np.eye(dx, dx + dc + 1)
    if complete.sum() > dx + dc + 1:
        # The ridge pulls towards "stay where you are".
        weight = weight + _regress(before[complete], after[complete] - before[complete] @ weight.T)
    return weight[:, :-1], weight[:, -1]


def _steps(states: list[NDArray], inputs: list[NDArray]) -> tuple[NDArray, NDArray]:
    """Rows `[x_{t-1}, c_t, 1]` of all single steps, and where they lead."""
    pairs = zip(states, inputs, strict=True)
    before = [np.hstack([x[:-1], c[1:], np.ones((len(x) - 1, 1))]) for x, c in pairs]
    return np.concatenate(before), np.concatenate([x[1:] for x in states])


def residuals(weight: NDArray, bias: NDArray, states: list[NDArray], inputs: list[NDArray]) -> NDArray:
    """Errors (n, dx) of all single steps `A x_{t-1} + B c_t + b` between states (T_i, dx)."""
    steps = zip(states, inputs, strict=True)
    return np.concatenate([x[1:] - np.hstack([x[:-1], c[1 : len(x)]]) @ weight.T - bias for x, c in steps])


def fill(y: NDArray) -> NDArray:
    """Missing values by linear interpolation; a channel that is missing throughout becomes zero."""
    filled = np.array(y, float)
    time = np.arange(len(y))
    for column in filled.T:
        seen = ~np.isnan(column)
        column[~seen] = np.interp(time[~seen], time[seen], column[seen]) if seen.any() else 0.0
    return filled


def _lagged(y: NDArray, c: NDArray, lags: int) -> NDArray:
    """Rows `[y_t, c_t, y_{t-1}, c_{t-1}, ...]` (T, lags (dy + dc)), zero before the start."""
    both = np.pad(np.hstack([y, c]), ((lags - 1, 0), (0, 0)))
    return np.hstack([both[lags - 1 - i : len(both) - i] for i in range(lags)])


def _hidden(
    outputs: list[NDArray], inputs: list[NDArray], pasts: list[NDArray], lags: int, count: int
) -> list[NDArray]:
    """The `count` directions of the past that say most about the future, with unit variance."""
    if count == 0:
        return [np.zeros((len(y), 0)) for y in outputs]
    (dy, dc), width = (outputs[0].shape[1], inputs[0].shape[1]), pasts[0].shape[1]
    # y_t from [y_{t-1}, c_{t-1}, ...] and c_t
    design = np.concatenate(
        [np.hstack([p[:-1], c[1:], np.ones((len(p) - 1, 1))]) for p, c in zip(pasts, inputs, strict=True)]
    )
    markov = _regress(design, np.concatenate([y[1:] for y in outputs]))[:, :width]
    # Row j: what the past up to t contributes to y_{t+1+j}, everything after t being given.
    shifts = [np.pad(markov[:, j * (dy + dc) :], ((0, 0), (0, j * (dy + dc)))) for j in range(lags)]
    predictions = [p @ np.concatenate(shifts).T for p in pasts]
    stacked, present = np.concatenate(predictions), np.concatenate(outputs)
    shown = _regress(present, stacked)
    directions = np.linalg.svd(stacked - present @ shown.T, full_matrices=False)[2]
    chosen = directions[:count]
    hidden = [(s - y @ shown.T) @ chosen.T for s, y in zip(predictions, outputs, strict=True)]
    if len(chosen) < count:  # fewer directions than asked for: the rest starts empty
        hidden = [np.pad(h, ((0, 0), (0, count - len(chosen)))) for h in hidden]
    scale = np.concatenate(hidden).std(axis=0)
    return [h / np.where(scale > 1e-9, scale, 1.0) for h in hidden]


def _regress(design: NDArray, target: NDArray) -> NDArray:
    gram = design.T @ design + _RIDGE * len(design) * np.eye(design.shape[1])
    return np.linalg.solve(gram, design.T @ target).T
