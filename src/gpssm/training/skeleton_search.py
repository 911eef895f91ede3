"""Skeletons with a GP from several guesses, ranked on samples that they did not see, and models made of them."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import numpy as np

from gpssm.gp.kernels import RBF
from gpssm.gp.means import Linear
from gpssm.gp.sparse import SparseGP
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.noise import DiagonalNoise, FullNoise
from gpssm.numerics.parameters import parameters, with_values
from gpssm.plumbing.compilation import bucket
from gpssm.training import subspace
from gpssm.training.candidates import SIDE_BY_SIDE, Candidate, Recordings, fit_ahead, fit_all, moves, rated
from gpssm.training.initialisation import inducing_inputs
from gpssm.training.linear_search import STABLE, one_step_model, resized, stabilised, stable
from gpssm.training.problem import Problem
from gpssm.training.skeleton import Skeleton, SkeletonFit, SkeletonProblem, simulate

NDArray = np.ndarray

_MOST = 24  # guesses; the first is at the linear model
_EFFORT = 2.2e8  # samples times squares of parameters that all groups of guesses may add up to
# Calls: for all guesses, for the best of them, and when the held-back samples have joined.
_FIRST, _THEN, _REFINED = 2, 4, 2
_TRIALS, _BEHIND = 3, 2.0  # candidates that are tried, and times the least error with which one is

# Initial values and widths of the priors, in standard deviations of states and inputs.
_LENGTHSCALE, _SCALE = 2.0, 0.3
_WIDTHS = Skeleton(1.0, 1.0, 1.0, 0.7, 1.0, 2.0)
# Parameters of the model that each part of a skeleton is the initial value of.
_NAMES = Skeleton(
    ("transition.mean.weight", "transition.mean.bias"),
    ("transition.gp.q_mean",),
    ("transition.gp.inducing_inputs",),
    ("transition.gp.kernel.lengthscale",),
    ("transition.gp.kernel.variance",),
    ("initial_state.mean",),
)

_LEAST_OBS_NOISE = 1e-5
_INITIAL_WIDTH = 0.1
_SUREST = 1e8  # precision of a whitened inducing output


def applies(problem: Problem) -> bool:
    """Whether the first states are the outputs, the others hidden, and f has a learned linear part."""
    model = problem.model
    if not problem.hidden or not isinstance(model.emission, LinearEmission):
        return False
    dy, dx = np.shape(model.emission.weight)
    observed = np.allclose(model.emission.weight, np.eye(dy, dx)) and np.allclose(model.emission.bias, 0.0)
    return observed and isinstance(model.transition.mean, Linear)


def has_gp(problem: Problem) -> bool:
    """Whether f has GPs whose skeleton can be found."""
    return isinstance(problem.model.transition, Transition) and type(problem.model.transition.gp.kernel) is RBF


def skeletons(
    problem: Problem, data: Recordings, linear: Candidate, seed: int, report: Callable[[int, int], bool]
) -> list[Candidate]:
    """Skeletons with a GP from one guess at the linear model and several at random, the best first.

    `report` is called with how many groups of guesses are done, and how many there are; says whether time is up.
    """
    problems = gp_problems(problem, data, linear, seed, _affordable(problem, data))
    groups = [problems[i : i + SIDE_BY_SIDE] for i in range(0, len(problems), SIDE_BY_SIDE)]
    fits: list[SkeletonFit] = []
    for number, group in enumerate(groups):
        fits += fit_all(group, data, _FIRST)
        if report(number + 1, len(groups) + 1):
            break
    best = np.argsort([fit.loss for fit in fits])[:SIDE_BY_SIDE]
    kept = [problems[i] for i in best]
    fits = fit_all(kept, data, _THEN, [fits[i] for i in best])
    report(len(groups) + 1, len(groups) + 1)
    return sorted((rated(p, fit, data, "gp") for p, fit in zip(kept, fits, strict=True)), key=lambda c: c.error)


def compile_ahead(problem: Problem, data: Recordings) -> None:
    """Compile what `skeletons` will run, while something else runs."""
    gp, (count, dx) = problem.model.transition.gp, (len(data.lengths), problem.model.state_dim)
    (_, m, d), zeros = np.shape(gp.inducing_inputs), np.zeros
    nothing = Skeleton(zeros((dx, d + 1)), zeros((dx, m)), zeros((m, d)), zeros((dx, d)), zeros(dx), zeros((count, dx)))
    fit_ahead(SkeletonProblem(nothing, nothing, nothing), data)


def _affordable(problem: Problem, data: Recordings) -> int:
    """How many guesses: as many as take about the same time whatever the recording is."""
    gp = problem.model.transition.gp
    (dx, m), d = np.shape(gp.q_mean), np.shape(gp.inducing_inputs)[2]
    size = dx * (d + 1) + dx * m + m * d + dx * d + 2 * dx
    cost = data.inputs.shape[0] * data.inputs.shape[1] * size**2
    return int(np.clip(_EFFORT / cost, 1, _MOST / SIDE_BY_SIDE)) * SIDE_BY_SIDE


def gp_problems(problem: Problem, data: Recordings, linear: Candidate, seed: int, count: int) -> list[SkeletonProblem]:
    """Initial guesses of skeletons with GPs. Parameters that the user holds stay where the model has them."""
    transition, gp = problem.model.transition, problem.model.transition.gp
    given = Skeleton(
        np.column_stack([np.asarray(transition.mean.weight), np.asarray(transition.mean.bias)]),
        np.asarray(gp.q_mean),
        np.asarray(gp.inducing_inputs)[0],
        np.log(np.asarray(gp.kernel.lengthscale)),
        0.5 * np.log(np.asarray(gp.kernel.variance)),
        np.asarray(problem.model.initial_state.mean),
    )
    holds = Skeleton(*(not problem.held.isdisjoint(names) for names in _NAMES))
    if not _whole(problem, data):
        given, holds = (
            given._replace(initial=np.zeros((len(data.lengths), len(given.linear)))),
            holds._replace(initial=False),
        )
    parts = zip(given, holds, _WIDTHS, strict=True)
    widths = Skeleton(*(np.full(value.shape, 0.0 if held else width) for value, held, width in parts))
    (dx, m), dy, rng = given.whitened.shape, data.output_dim, np.random.default_rng(seed)
    lengthscale, scale = given.log_lengthscale + np.log(_LENGTHSCALE), given.log_scale + np.log(_SCALE)
    if data.slow:  # what a GP adds to a state is at most as much as that moves, which is little
        scale = scale + np.log(moves(linear.fit.states))
    outputs, inputs = data.early()
    filled = [subspace.fill(y) for y in outputs]
    seen_y, seen_c = np.concatenate(filled), np.concatenate(inputs)
    first = np.zeros_like(given.initial)
    first[:, :dy] = [y[0] for y in filled]
    problems = []
    for number in range(count):
        rows = rng.integers(0, len(seen_y), m)
        z = np.column_stack([seen_y[rows], rng.standard_normal((m, dx - dy)), seen_c[rows]])
        whitened = 0.3 * rng.standard_normal((dx, m))
        if number == 0 or data.slow:
            weight, x0 = linear.fit.skeleton.linear, linear.fit.skeleton.initial
            spread = np.maximum(np.std(linear.fit.states.reshape(-1, dx), axis=0)[dy:], 0.1)
            z[:, dy:dx] = z[:, dy:dx] * spread
        else:
            weight, x0 = _random_linear(given.linear, dy, rng), first
        free = Skeleton(weight, whitened, z, lengthscale, scale, x0)
        guess = Skeleton(*(old if held else new for old, held, new in zip(given, holds, free, strict=True)))
        problems.append(SkeletonProblem(guess, guess, widths))
    return problems


def _whole(problem: Problem, data: Recordings) -> bool:
    """Whether the candidates have seen the recordings themselves, and not pieces of them."""
    return data.lengths == tuple(map(len, problem.outputs))


def _random_linear(given: NDArray, dy: int, rng: np.random.Generator) -> NDArray:
    """Least squares for what is seen; hidden states that forget slowly and are driven at random."""
    dx = len(given)
    linear = given.copy()
    linear[dy:], linear[:, dy:dx] = 0.0, 0.0
    linear[np.arange(dy, dx), np.arange(dy, dx)] = 0.8
    linear[:, :dx] += 0.1 * rng.standard_normal((dx, dx))
    linear[dy:, dx:-1] += 0.1 * rng.standard_normal(linear[dy:, dx:-1].shape)
    return stable(linear, 0.98)


def worth_a_trial(skeletons: list[Candidate], linear: list[Candidate]) -> list[Candidate]:
    """The best skeleton and the best linear model, and what else is not far behind the better of them; best first."""
    by_error = sorted(linear, key=lambda c: c.error)
    first = [skeletons[0], by_error[0]]
    limit = _BEHIND * min(c.error for c in first)
    others = sorted([*skeletons[1:], *by_error[1:]], key=lambda c: c.error)
    chosen = [*first, *(c for c in others[: _TRIALS - len(first)] if c.error <= limit)]
    return sorted(chosen, key=lambda c: c.error)


def refined(candidate: Candidate, data: Recordings) -> Candidate:
    """The same skeleton after further iterations, with the samples that were held back."""
    if not data.holds_back:
        return candidate
    whole = data._replace(cuts=data.lengths)
    if candidate.kind == "one step":
        order = int(np.sum(np.any(candidate.fit.states != 0, axis=(0, 1))))
        return resized(one_step_model(whole, order), candidate.order)
    (fit,) = fit_all([candidate.problem], whole, _REFINED, [candidate.fit])
    more = rated(candidate.problem, fit, whole, candidate.kind)
    return more if candidate.kind == "gp" else stabilised(more, whole)


# --- models initialised from a skeleton ---------------------------------------------------

# Adam moves every number by its rate, whatever that does; a pole at 0.98 does not survive many large steps, nor does
# q(u), whose widths are a hundredth. What was fitted to single steps has further to go.
_RATES = {
    "gp": tuple((word, 0.05) for word in ("mean", "q_mean", "q_chol", "inducing_inputs", "kernel")),
    "linear": (("mean", 0.1),),
    "one step": (("mean", 0.3),),
}


def informed(problem: Problem, candidate: Candidate, data: Recordings, *, keep_noise: tuple[bool, bool]) -> Problem:
    """The problem, initialised from a skeleton; not Q and R where the user has given them, and nothing that is held."""
    model, fit = problem.model, candidate.fit
    fitted, dx = fit.skeleton, model.state_dim
    d = fitted.inducing_inputs.shape[1]
    transition = eqx.tree_at(
        lambda t: t.mean, model.transition, Linear(fitted.linear[:, :d].copy(), fitted.linear[:, d].copy())
    )
    if has_gp(problem):
        transition = eqx.tree_at(lambda t: t.gp, transition, _sparse_gp(problem, candidate, data))
    initial, states = model.initial_state, [x[:n] for x, n in zip(fit.states, data.lengths, strict=True)]
    whole = _whole(problem, data)
    if not whole:
        states = [simulated(fitted, problem.scaling.standardise_inputs(c)) for c in problem.inputs]
    if whole and "initial_state.mean" not in problem.fixed:
        chol = np.tile(_INITIAL_WIDTH * np.eye(dx), (len(fitted.initial), 1, 1))
        initial = InitialState(fitted.initial.copy(), chol, initial.prior_mean, initial.prior_chol)
    q, r, process = model.process_noise, model.obs_noise, candidate.process
    if not keep_noise[0]:
        q = DiagonalNoise(process) if isinstance(q, DiagonalNoise) else FullNoise(np.diag(process**0.5))
    if not keep_noise[1]:
        r = eqx.tree_at(lambda likelihood: likelihood.variance, r, np.maximum(candidate.obs, _LEAST_OBS_NOISE))
    model = eqx.tree_at(
        lambda m: (m.transition, m.initial_state, m.process_noise, m.obs_noise), model, (transition, initial, q, r)
    )
    model = with_values(model, {p.name: p.value for p in parameters(problem.model) if p.name in problem.held})
    rates = dict(_RATES[candidate.kind])
    if data.slow:
        rates["mean"] *= float(moves(fit.states).max())
    return replace(problem, model=model, states=states, informed=True, rates=tuple(rates.items()))


_RUN_IN, _PIECE = 200, 1000  # samples


def simulated(skeleton: Skeleton, inputs: NDArray) -> NDArray:
    """States (T, dx) of a long recording with these inputs (T, dc): its pieces side by side, each after a run-in."""
    dx, count = len(skeleton.linear), bucket(-(-len(inputs) // _PIECE))
    padded = np.pad(inputs, ((_RUN_IN, count * _PIECE - len(inputs)), (0, 0)), mode="edge")
    rows = np.arange(count)[:, None] * _PIECE + np.arange(_RUN_IN + _PIECE)
    states = simulate(skeleton._replace(initial=np.zeros((count, dx))), padded[rows])
    return np.asarray(states)[:, _RUN_IN:].reshape(-1, dx)[: len(inputs)]


def stable_mean(model: GPSSM) -> GPSSM:
    """A model initialised from a linear one, its linear part made stable: what the GP adds to it is too small to be."""
    weight = np.asarray(model.transition.mean.weight)
    return eqx.tree_at(lambda m: m.transition.mean.weight, model, stable(weight, STABLE).astype(weight.dtype))


def _sparse_gp(problem: Problem, candidate: Candidate, data: Recordings) -> SparseGP:
    """q(u) at the skeleton's weights, as wide as the curvature of its loss allows; at zero for a linear model."""
    fitted = candidate.fit.skeleton
    dx, m = np.shape(problem.model.transition.gp.q_mean)
    if candidate.kind == "gp":
        kernel = RBF(np.exp(fitted.log_lengthscale), np.exp(2.0 * fitted.log_scale))
        values, vectors = np.linalg.eigh(candidate.fit.precision)
        values = np.clip(values, 1.0, _SUREST)[:, None, :]  # the prior's is one
        width = np.linalg.cholesky(vectors / values @ np.swapaxes(vectors, 1, 2))
        return SparseGP(kernel, np.tile(fitted.inducing_inputs, (dx, 1, 1)), fitted.whitened.copy(), width)
    # Small and smooth: what u leaves open is noise, and beside a linear model there should be little of it.
    inputs = [c[:n] for c, n in zip(data.inputs, data.lengths, strict=True)]
    states = [x[:n] for x, n in zip(candidate.fit.states, data.lengths, strict=True)]
    z = inducing_inputs(states, inputs, dx, m)
    scale = float(np.clip(np.sqrt(np.mean(candidate.obs)), 0.02, 0.3))
    kernel = RBF(np.full((dx, z.shape[2]), 2.0 * _LENGTHSCALE), np.full(dx, scale**2))
    return SparseGP(kernel, z, np.zeros((dx, m)), np.tile(0.1 * np.eye(m), (dx, 1, 1)))
