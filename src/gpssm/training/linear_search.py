"""Linear models as skeletons: by the error of their simulation or of single steps, and how many states are enough."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpssm.training import subspace
from gpssm.training.candidates import PROCESS_NOISE, Candidate, Recordings, fit_all, rated
from gpssm.training.skeleton import FURTHEST, Skeleton, SkeletonFit, SkeletonProblem

NDArray = np.ndarray

AUTO: Any = "auto"
"""A `state_dim` that the fit is to choose."""

_CALLS = 2
_WIDTH = 10.0  # of the priors, in standard deviations of states and inputs
# More states are worth it for an error that is smaller than this, by this factor, and not as good as zero anyway.
_GOOD, _CLEARLY, _EXACT = 0.6, 1.2, 0.01
_LARGEST, STABLE = 0.995, 1.0  # modulus of an eigenvalue at the start, and in the end


def linear_models(data: Recordings, orders: Sequence[int]) -> list[Candidate]:
    """Linear models, one of every order, fitted to the error of their simulation; all in one program.

    Each starts from a subspace fit. A smaller order is a larger one with states that are held at zero.
    """
    problems = []
    for order in orders:
        near = subspace.differences(*data.early(), order) if data.slow else subspace.identify(*data.early(), order)
        linear = np.column_stack([_stable_for(data, near.weight), near.bias])
        guess = _without_gp(linear, np.array([states[0] for states in near.states]))
        width = _without_gp(np.full_like(linear, _WIDTH), np.full_like(guess.initial, _WIDTH))
        problems.append(SkeletonProblem(*(_resized(part, max(orders)) for part in (guess, guess, width))))
    found = [rated(p, fit, data, "linear") for p, fit in zip(problems, fit_all(problems, data, _CALLS), strict=True)]
    return [stabilised(resized(f, order), data) for f, order in zip(found, orders, strict=True)]


def stabilised(candidate: Candidate, data: Recordings) -> Candidate:
    """Made stable: a linear model that is not may follow a recording to its end, and explodes soon after."""
    fitted = candidate.fit.skeleton
    if np.array_equal(fitted.linear, stable(fitted.linear, STABLE)):
        return candidate
    linear = _stable_for(data, fitted.linear)
    states = np.stack([_continued(linear, x[None], c) for x, c in zip(fitted.initial, data.inputs, strict=True)])[:, 1:]
    fit = candidate.fit._replace(skeleton=fitted._replace(linear=linear), states=states)
    return rated(candidate.problem, fit, data, "linear")


def _continued(linear: NDArray, states: NDArray, inputs: NDArray) -> NDArray:
    """States (t, dx) of a linear model that are known, and those that the inputs after them lead to."""
    known = len(states)
    states = np.concatenate([states, np.zeros((len(inputs), states.shape[1]))])
    for t, c in enumerate(inputs, start=known):
        moved = linear[:, :-1] @ np.concatenate([states[t - 1], c]) + linear[:, -1]
        states[t] = np.clip(moved, -FURTHEST, FURTHEST)
    return states


def one_step_model(data: Recordings, order: int) -> Candidate:
    """A subspace fit: ahead of the others where what is not explained is noise in the process."""
    outputs, inputs = data.early()
    found = subspace.identify(outputs, inputs, order)
    weight = stable(found.weight, STABLE)
    linear = np.column_stack([weight, found.bias])
    variance = np.mean(subspace.residuals(weight, found.bias, found.states, inputs) ** 2, axis=0)
    pairs = zip(found.states, data.inputs, strict=True)
    stacked = np.stack([_continued(linear, known, c[len(known) :]) for known, c in pairs])
    guess = _without_gp(linear, stacked[:, 0])
    fit = SkeletonFit(guess, np.asarray(1e-2), np.asarray(np.inf), stacked, np.zeros((order, 0, 0)))
    dy = data.output_dim
    error = data.error(stacked) if data.holds_back else float(np.sqrt(variance[:dy].mean()))
    process = np.maximum(variance, PROCESS_NOISE)
    return Candidate(SkeletonProblem(guess, guess, guess), fit, error, 0.1 * variance[:dy], process, "one step")


def _without_gp(linear: NDArray, initial: NDArray) -> Skeleton:
    dx, d = len(linear), linear.shape[1] - 1
    return Skeleton(linear, np.zeros((dx, 0)), np.zeros((0, d)), np.zeros((dx, d)), np.zeros(dx), initial)


def _resized_states(states: NDArray, dx: int) -> NDArray:
    """States (..., n) of which there are `dx`: the first ones, or all of them and zeros."""
    kept = states[..., :dx]
    return np.pad(kept, [(0, 0)] * (kept.ndim - 1) + [(0, dx - kept.shape[-1])])


def _resized(of: Skeleton, dx: int) -> Skeleton:
    """A linear model of which `dx` states are the first ones, or all of them and zeros."""
    n = len(of.linear)
    linear = np.hstack([_resized_states(of.linear[:, :n], dx), of.linear[:, n:]])
    return _without_gp(_resized_states(linear.T, dx).T, _resized_states(of.initial, dx))


def resized(candidate: Candidate, dx: int) -> Candidate:
    """A linear model without its last states, or with further ones, which move nothing."""
    if candidate.order == dx:
        return candidate
    fit, more = candidate.fit, max(0, dx - candidate.order)
    return candidate._replace(
        problem=SkeletonProblem(*(_resized(part, dx) for part in candidate.problem)),
        fit=fit._replace(
            skeleton=_resized(fit.skeleton, dx), states=_resized_states(fit.states, dx), precision=np.zeros((dx, 0, 0))
        ),
        process=np.pad(candidate.process[:dx], (0, more), constant_values=PROCESS_NOISE),
    )


def _best_of_each_kind(found: Iterable[Candidate], state_dim: int) -> list[Candidate]:
    """Of those with `state_dim` states or fewer, all made to have as many."""
    best: dict[str, Candidate] = {}
    for c in found:
        if c.order <= state_dim and (c.kind not in best or c.error < best[c.kind].error):
            best[c.kind] = c
    return [resized(c, state_dim) for c in best.values()]


def enough_states(data: Recordings) -> tuple[list[Candidate], str]:
    """The best linear model of every kind: with 4 states or two more than outputs, all with the same number.

    With more, where that forecasts what was held back far better. And why, in a sentence.
    """
    dy = data.output_dim
    enough = max(4, dy + 2)
    found = linear_models(data, (enough, enough + 1, enough + 2, enough + 4))
    found += [one_step_model(data, order) for order in range(dy, enough + 5)]
    best, small = best_order(found, enough), min((c for c in found if c.order <= enough), key=lambda c: c.error)
    if best.order > enough:
        why = (
            f"a line with so many forecasts the end better: error {best.error:.2g} sd, with {enough} {small.error:.2g}"
        )
    else:
        why = f"lines with up to {enough + 4} do not forecast the end of the recording clearly better"
    count = max(enough, best.order)
    return _best_of_each_kind(found, count), f"{count} states: {why}"


def best_linear_models(data: Recordings, state_dim: int) -> list[Candidate]:
    """The best linear model of every kind, all with `state_dim` states."""
    orders = range(max(data.output_dim, state_dim - 3), state_dim + 1)
    found = linear_models(data, orders)
    return _best_of_each_kind([*found, *(one_step_model(data, order) for order in orders)], state_dim)


def best_order(found: Iterable[Candidate], enough: int) -> Candidate:
    """The model with the smallest error, if it is good and clearly ahead of all with `enough` states or fewer.

    Where no linear model is good, their errors are luck, and it is not states that are missing.
    """
    ranked = sorted(found, key=lambda c: c.error)
    small = next(c for c in ranked if c.order <= enough)
    best = ranked[0]
    return best if best.error < _GOOD and _CLEARLY * max(best.error, _EXACT) < small.error else small


def stable(weight: NDArray, largest: float = _LARGEST) -> NDArray:
    """[A, ...] (dx, dx + n), or a fraction of A in its place: no eigenvalue has a modulus above `largest`."""
    a, others = np.split(weight, [len(weight)], axis=1)
    factor = min(1.0, largest / max(float(np.max(np.abs(np.linalg.eigvals(a)))), 1e-12))
    return np.column_stack([a * factor, others])


def _stable_for(data: Recordings, weight: NDArray) -> NDArray:
    return integrating(weight) if data.slow else stable(weight)


def integrating(weight: NDArray) -> NDArray:
    """[A, ...] (dx, dx + n), eigenvalues of A beyond the unit circle moved onto it, each by itself.

    For outputs that hardly move from one sample to the next: a position that follows a force is an integral, and a
    fraction of all of A, as `stable` takes it, would forget it within few of its samples.
    """
    a, others = np.split(weight, [len(weight)], axis=1)
    values, vectors = np.linalg.eig(a)
    moved = (vectors * (values / np.maximum(1.0, np.abs(values)))) @ np.linalg.pinv(vectors)
    return np.column_stack([moved.real, others])
