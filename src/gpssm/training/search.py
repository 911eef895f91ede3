"""Starts for hidden states: skeletons of the recordings, linear ones among them, ranked on samples they did not see.

The last quarter of every recording is held back while starts are compared: the error of a simulation that runs on
into it goes with the error on later data far better than the loss does, which rewards learning by heart. What was
chosen then learns from everything.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gpssm.gp.kernels import RBF
from gpssm.gp.means import Linear
from gpssm.gp.sparse import SparseGP
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.noise import DiagonalNoise, FullNoise
from gpssm.models.scaling import moments
from gpssm.numerics.parameters import parameters, with_values
from gpssm.training import initialisation, skeleton, subspace
from gpssm.training.skeleton import FURTHEST, Fit, Problem, Skeleton

NDArray = np.ndarray

AUTO: Any = "auto"
"""A `state_dim` that the fit is to choose."""

_HELD = 0.25  # share of every recording that is held back
_LEAST_HELD = 20  # samples; with fewer nothing can be learned from holding them back
_LEAST_LEARNED = 40

_MOST = 24  # starts of the GP; the first is at the line
_EFFORT = 2.2e8  # samples times squares of parameters that all groups of starts may add up to
_SIDE_BY_SIDE = 4  # of them at a time: what they need stays in the cache of the processor
_ITERATIONS = 10  # in one compiled call
# Calls: for all starts, for the best of them, for lines, and when the held-back samples have joined.
_FIRST, _THEN, _LINES, _REFINED = 2, 4, 2, 2
_TRIALS, _BEHIND = 3, 2.0  # starts that are tried, and times the least error with which one is
_MANY = 320  # parameters, from which on half of the calls must do

# Start values and widths of the priors, in standard deviations of states and inputs.
_LENGTHSCALE, _SCALE = 2.0, 0.3
_WIDTHS = Skeleton(1.0, 1.0, 1.0, 0.7, 1.0, 2.0)
_LINE_WIDTHS = Skeleton(10.0, 0.0, 0.0, 0.0, 0.0, 10.0)
# More states are worth it for an error that is smaller than this, by this factor, and not as good as zero anyway.
_GOOD, _CLEARLY, _EXACT = 0.6, 1.2, 0.01
_LARGEST, _STABLE = 0.995, 1.0  # modulus of an eigenvalue at the start, and in the end
_NO_GP = -12.0  # logarithm of a scale that is none


class Data(NamedTuple):
    """Standardised recordings, continued to one length: missing outputs, zero inputs."""

    outputs: NDArray
    inputs: NDArray
    lengths: tuple[int, ...]
    cuts: tuple[int, ...]
    """How much of every recording is learned from; what comes after is held back."""

    @classmethod
    def of(cls, outputs: list[NDArray], inputs: list[NDArray], *, hold_back: bool) -> "Data":
        lengths = tuple(map(len, outputs))
        longest = max(lengths)
        cuts = lengths
        if hold_back:
            cuts = tuple(n - held if (held := int(_HELD * n)) >= 2 else n for n in lengths)
            if sum(lengths) - sum(cuts) < _LEAST_HELD or sum(cuts) < _LEAST_LEARNED:
                cuts = lengths
        return cls(stack(outputs, longest, np.nan), stack(inputs, longest, 0.0), lengths, cuts)

    @property
    def holds_back(self) -> bool:
        return self.cuts != self.lengths

    def early(self) -> tuple[list[NDArray], list[NDArray]]:
        """Outputs and inputs without what is held back."""
        return (
            [y[:cut] for y, cut in zip(self.outputs, self.cuts, strict=True)],
            [c[:cut] for c, cut in zip(self.inputs, self.cuts, strict=True)],
        )

    def learned(self) -> NDArray:
        """Outputs of which those held back are missing."""
        after = np.arange(self.outputs.shape[1]) >= np.asarray(self.cuts)[:, None]
        return np.where(after[:, :, None], np.nan, self.outputs)

    def error(self, states: NDArray, *, held: bool) -> float:
        """Root mean square error of simulated states (s, t, dx), on what was held back or on what was learned."""
        truth = self.learned()
        truth = np.where(np.isnan(truth), self.outputs, np.nan) if held else truth
        error = states[..., : truth.shape[2]] - truth
        return float(np.sqrt(np.nanmean(error**2))) if not np.isnan(error).all() else np.inf


def stack(arrays: list[NDArray], length: int, value: float) -> NDArray:
    """Recordings (s, length, n), each continued with `value`."""
    return np.stack([np.pad(a, ((0, length - len(a)), (0, 0)), constant_values=value) for a in arrays])


def standardised(ys: list[NDArray], cs: list[NDArray], *, hold_back: bool = True) -> Data:
    """Recordings in the user's units, for a search."""
    (y_shift, y_scale), (c_shift, c_scale) = moments(ys), moments(cs)
    return Data.of([(y - y_shift) / y_scale for y in ys], [(c - c_shift) / c_scale for c in cs], hold_back=hold_back)


class Found(NamedTuple):
    """A start that was found: all of it as NumPy arrays."""

    problem: Problem
    fit: Fit
    error: float
    """Of its simulation, over what was held back; over everything if nothing was."""
    obs: NDArray
    """Variance of the observation noise to begin with, by output."""
    process: NDArray
    """Variance of the process noise to begin with, by state."""
    kind: Literal["gp", "line", "one step"] = "gp"
    """A skeleton with a GP; a line whose simulation is close; a line whose steps are."""

    @property
    def order(self) -> int:
        return len(self.fit.skeleton.log_scale)


# --- lines --------------------------------------------------------------------------------


def lines(data: Data, orders: Sequence[int]) -> list[Found]:
    """Linear models, one of every order, fitted to the error of their simulation; all in one program.

    Each starts from a subspace fit. A smaller order is a larger one with states that are held at zero.
    """
    dx, dc = max(orders), data.inputs.shape[2]
    problems = []
    for order in orders:
        near = subspace.identify(*data.early(), order)
        linear = np.zeros((dx, dx + dc + 1))
        linear[:order, :order] = stable(near.weight[:, :order])
        linear[:order, dx:] = np.column_stack([near.weight[:, order:], near.bias])
        initial = np.zeros((len(data.lengths), dx))
        initial[:, :order] = [states[0] for states in near.states]
        begin = _without_gp(linear, initial)
        used = np.arange(dx) < order
        columns = np.concatenate([used, np.ones(dc + 1, bool)])
        free = Skeleton(used[:, None] & columns, False, False, False, False, np.broadcast_to(used, initial.shape))
        widths = [
            np.where(np.broadcast_to(on, np.shape(part)), width, 0.0)
            for on, part, width in zip(free, begin, _LINE_WIDTHS, strict=True)
        ]
        problems.append(Problem(begin, begin, Skeleton(*widths)))
    fits = _run(problems, data, _LINES)
    found = _found(problems, fits, data, "line")
    return [_stabilised(_smaller(f, order), data) for f, order in zip(found, orders, strict=True)]


def _stabilised(found: Found, data: Data) -> Found:
    """A line that is not stable may follow a recording to its end, and explodes soon after: it is made stable."""
    fitted, dx = found.fit.skeleton, found.order
    a = fitted.linear[:, :dx]
    if np.array_equal(a, stable(a, _STABLE)):
        return found
    linear = np.column_stack([stable(a), fitted.linear[:, dx:]])
    states = np.stack([_continued(linear, x[None], c) for x, c in zip(fitted.initial, data.inputs, strict=True)])[:, 1:]
    fit = found.fit._replace(skeleton=fitted._replace(linear=linear), states=states)
    return _found([found.problem], [fit], data, "line")[0]


def _continued(linear: NDArray, states: NDArray, inputs: NDArray) -> NDArray:
    """States (t, dx) of a line that are known, and those that the inputs after them lead to."""
    known = len(states)
    states = np.concatenate([states, np.zeros((len(inputs), states.shape[1]))])
    for t, c in enumerate(inputs, start=known):
        moved = linear[:, :-1] @ np.concatenate([states[t - 1], c]) + linear[:, -1]
        states[t] = np.clip(moved, -FURTHEST, FURTHEST)
    return states


def one_step_lines(data: Data, orders: Sequence[int]) -> list[Found]:
    """Subspace fits: ahead of the others where what is not explained is noise in the process."""
    return [_one_step_line(data, order) for order in orders]


def _one_step_line(data: Data, order: int) -> Found:
    outputs, inputs = data.early()
    found = subspace.identify(outputs, inputs, order)
    weight = np.column_stack([stable(found.weight[:, :order], _STABLE), found.weight[:, order:]])
    linear = np.column_stack([weight, found.bias])
    states, residuals = [], []
    for known, c in zip(found.states, data.inputs, strict=True):
        residuals.append(known[1:] - np.hstack([known[:-1], c[1 : len(known)]]) @ weight.T - found.bias)
        states.append(_continued(linear, known, c[len(known) :]))
    variance = np.mean(np.concatenate(residuals) ** 2, axis=0)
    stacked = np.stack(states)
    begin = _without_gp(linear, stacked[:, 0])
    fit = Fit(begin, np.asarray(1e-2), np.asarray(np.inf), stacked, np.ones((order, 1, 1)))
    dy = data.outputs.shape[2]
    error = data.error(stacked, held=data.holds_back) if data.holds_back else float(np.sqrt(variance[:dy].mean()))
    process = np.maximum(variance, _PROCESS_NOISE)
    return Found(Problem(begin, begin, begin), fit, error, 0.1 * variance[:dy], process, "one step")


def _without_gp(linear: NDArray, initial: NDArray) -> Skeleton:
    dx, d = len(linear), linear.shape[1] - 1
    return Skeleton(linear, np.zeros((dx, 1)), np.zeros((1, d)), np.zeros((dx, d)), np.full(dx, _NO_GP), initial)


def _smaller(found: Found, order: int) -> Found:
    """Without the states that were held at zero."""
    dx = found.order

    def cut(part: Skeleton) -> Skeleton:
        keep = np.concatenate([np.arange(order), np.arange(dx, part.linear.shape[1])])
        return Skeleton(
            part.linear[:order][:, keep], part.whitened[:order], part.inducing_inputs[:, keep[:-1]],
            part.log_lengthscale[:order][:, keep[:-1]], part.log_scale[:order], part.initial[:, :order],
        )  # fmt: skip

    fit = found.fit._replace(
        skeleton=cut(found.fit.skeleton), states=found.fit.states[..., :order], precision=found.fit.precision[:order]
    )
    return found._replace(problem=Problem(*map(cut, found.problem)), fit=fit, process=found.process[:order])


def larger(found: Found, dx: int) -> Found:
    """A line with further states, which move nothing."""
    if found.order == dx:
        return found
    more, old = dx - found.order, found.order

    def padded(part: Skeleton, fill: float) -> Skeleton:
        linear = np.insert(part.linear, [old] * more, 0.0, axis=1)
        linear = np.pad(linear, ((0, more), (0, 0)))
        return Skeleton(
            linear, np.pad(part.whitened, ((0, more), (0, 0))), np.insert(part.inducing_inputs, [old] * more, 0.0, 1),
            np.pad(np.insert(part.log_lengthscale, [old] * more, 0.0, 1), ((0, more), (0, 0))),
            np.pad(part.log_scale, (0, more), constant_values=fill), np.pad(part.initial, ((0, 0), (0, more))),
        )  # fmt: skip

    begin, centre = padded(found.problem.start, _NO_GP), padded(found.problem.centre, _NO_GP)
    fit = found.fit._replace(
        skeleton=padded(found.fit.skeleton, _NO_GP),
        states=np.pad(found.fit.states, ((0, 0), (0, 0), (0, more))),
        precision=np.pad(found.fit.precision, ((0, more), (0, 0), (0, 0)), constant_values=1.0),
    )
    process = np.pad(found.process, (0, more), constant_values=_PROCESS_NOISE)
    return found._replace(problem=Problem(begin, centre, padded(found.problem.width, 0.0)), fit=fit, process=process)


class Lines(NamedTuple):
    """The best line of every kind, all with as many states."""

    state_dim: int
    found: list[Found]

    @classmethod
    def of(cls, candidates: Iterable[Found], state_dim: int) -> "Lines":
        best: dict[str, Found] = {}
        for f in candidates:
            if f.order <= state_dim and f.error < best.get(f.kind, f._replace(error=np.inf)).error:
                best[f.kind] = f
        return cls(state_dim, [larger(f, state_dim) for f in best.values()])


def enough_states(data: Data) -> Lines:
    """Lines with 4 states or two more than outputs; with more, where that forecasts what was held back far better."""
    dy = data.outputs.shape[2]
    enough = max(4, dy + 2)
    found = [*lines(data, (enough, enough + 1, enough + 2, enough + 4)), *one_step_lines(data, range(dy, enough + 5))]
    return Lines.of(found, max(enough, best_order(found, enough).order))


def best_lines(data: Data, state_dim: int) -> Lines:
    """Lines with a number of states that is given."""
    orders = range(max(data.outputs.shape[2], state_dim - 3), state_dim + 1)
    return Lines.of([*lines(data, orders), *one_step_lines(data, orders)], state_dim)


def best_order(found: Iterable[Found], enough: int) -> Found:
    """The line with the smallest error, if it is good and clearly ahead of all with `enough` states or fewer.

    Where no line is good, their errors are luck, and it is not states that are missing.
    """
    ranked = sorted(found, key=lambda f: f.error)
    small = next(f for f in ranked if f.order <= enough)
    best = ranked[0]
    return best if best.error < _GOOD and _CLEARLY * max(best.error, _EXACT) < small.error else small


# --- skeletons ----------------------------------------------------------------------------


def skeletons(
    begun: initialisation.Start, held: set[str], data: Data, line: Found, seed: int, tell: Callable[[int, int], None]
) -> list[Found]:
    """Skeletons with a GP from one start at the line and several at random, the best first."""
    problems = gp_problems(begun, held, data, line, seed, _affordable(begun, data))
    groups = [problems[i : i + _SIDE_BY_SIDE] for i in range(0, len(problems), _SIDE_BY_SIDE)]
    fits: list[Fit] = []
    for number, group in enumerate(groups):
        fits += _run(group, data, _FIRST)
        tell(number + 1, len(groups) + 1)
    best = np.argsort([fit.loss for fit in fits])[:_SIDE_BY_SIDE]
    kept = [problems[i] for i in best]
    fits = _run(kept, data, _THEN, [fits[i] for i in best])
    tell(len(groups) + 1, len(groups) + 1)
    return sorted(_found(kept, fits, data, "gp"), key=lambda f: f.error)


def _affordable(begun: initialisation.Start, data: Data) -> int:
    """How many starts: as many as take about the same time whatever the recording is."""
    transition = begun.model.transition
    (dx, m), d = np.shape(transition.gp.q_mean), np.shape(transition.gp.inducing_inputs)[2]
    parameters = dx * (d + 1) + dx * m + m * d + dx * d + 2 * dx
    cost = data.inputs.shape[0] * data.inputs.shape[1] * parameters**2
    return int(np.clip(_EFFORT / cost, 1, _MOST / _SIDE_BY_SIDE)) * _SIDE_BY_SIDE


def gp_problems(
    begun: initialisation.Start, held: set[str], data: Data, line: Found, seed: int, count: int
) -> list[Problem]:
    """Where the GPs begin. Parameters that the user holds stay where the model has them."""
    transition, initial = begun.model.transition, np.asarray(begun.model.initial_state.mean)
    dx, m, d = transition.state_dim, transition.num_inducing, np.shape(transition.gp.inducing_inputs)[2]
    dy, rng = data.outputs.shape[2], np.random.default_rng(seed)
    kernel = transition.gp.kernel
    lengthscale, scale = np.log(np.asarray(kernel.lengthscale)), 0.5 * np.log(np.asarray(kernel.variance))
    holds = {
        "linear": "transition.mean.weight" in held or "transition.mean.bias" in held,
        "whitened": "transition.gp.q_mean" in held,
        "inducing_inputs": "transition.gp.inducing_inputs" in held,
        "log_lengthscale": "transition.gp.kernel.lengthscale" in held,
        "log_scale": "transition.gp.kernel.variance" in held,
        "initial": "initial_state.mean" in held,
    }
    if not holds["log_lengthscale"]:
        lengthscale = lengthscale + np.log(_LENGTHSCALE)
    if not holds["log_scale"]:
        scale = scale + np.log(_SCALE)
    given = np.column_stack([np.asarray(transition.mean.weight), np.asarray(transition.mean.bias)])
    seen_y = np.concatenate([subspace.fill(y[:n]) for y, n in zip(data.outputs, data.cuts, strict=True)])
    seen_c = np.concatenate([c[:n] for c, n in zip(data.inputs, data.cuts, strict=True)])
    first = np.zeros_like(initial)
    first[:, :dy] = [subspace.fill(y[:n])[0] for y, n in zip(data.outputs, data.cuts, strict=True)]
    problems = []
    for number in range(count):
        rows = rng.integers(0, len(seen_y), m)
        z = np.column_stack([seen_y[rows], rng.standard_normal((m, dx - dy)), seen_c[rows]])
        whitened = 0.3 * rng.standard_normal((dx, m))
        if number == 0:
            linear, x0 = line.fit.skeleton.linear, line.fit.skeleton.initial
            spread = np.maximum(np.std(line.fit.states.reshape(-1, dx), axis=0)[dy:], 0.1)
            z[:, dy:dx] = z[:, dy:dx] * spread
        else:
            linear, x0 = _random_linear(given, dy, rng), first
        values = Skeleton(
            given if holds["linear"] else linear,
            np.asarray(transition.gp.q_mean) if holds["whitened"] else whitened,
            np.asarray(transition.gp.inducing_inputs)[0] if holds["inducing_inputs"] else z,
            lengthscale,
            scale,
            initial if holds["initial"] else x0,
        )
        centre = values if holds["whitened"] else values._replace(whitened=np.zeros((dx, m)))
        widths = [
            np.full(np.shape(value), 0.0 if holds[name] else width)
            for name, value, width in zip(Skeleton._fields, values, _WIDTHS, strict=True)
        ]
        problems.append(Problem(values, centre, Skeleton(*widths)))
    assert problems[0].start.inducing_inputs.shape == (m, d)
    return problems


def _random_linear(given: NDArray, dy: int, rng: np.random.Generator) -> NDArray:
    """Least squares for what is seen; hidden states that forget slowly and are driven at random."""
    dx = len(given)
    linear = given.copy()
    linear[dy:], linear[:, dy:dx] = 0.0, 0.0
    linear[np.arange(dy, dx), np.arange(dy, dx)] = 0.8
    linear[:, :dx] += 0.1 * rng.standard_normal((dx, dx))
    linear[dy:, dx:-1] += 0.1 * rng.standard_normal(linear[dy:, dx:-1].shape)
    linear[:, :dx] = stable(linear[:, :dx], 0.98)
    return linear


def stable(a: NDArray, largest: float = _LARGEST) -> NDArray:
    """A, or a fraction of it: no eigenvalue has a modulus above `largest`."""
    return a * min(1.0, largest / max(float(np.max(np.abs(np.linalg.eigvals(a)))), 1e-12))


def worth_a_trial(skeletons: list[Found], lines: Lines) -> list[Found]:
    """The best skeleton and the best line, and what else is not far behind the better one of them; the best first."""
    by_error = sorted(lines.found, key=lambda f: f.error)
    first = [skeletons[0], by_error[0]]
    limit = _BEHIND * min(f.error for f in first)
    others = sorted([*skeletons[1:], *by_error[1:]], key=lambda f: f.error)
    chosen = [*first, *(f for f in others[: _TRIALS - len(first)] if f.error <= limit)]
    return sorted(chosen, key=lambda f: f.error)


def refined(found: Found, data: Data) -> Found:
    """The same skeleton, learned from everything."""
    if not data.holds_back:
        return found
    everything = data._replace(cuts=data.lengths)
    if found.kind == "one step":
        order = int(np.sum(np.any(found.fit.states != 0, axis=(0, 1))))
        return larger(_one_step_line(everything, order), found.order)
    fits = _run([found.problem], everything, _REFINED, [found.fit])
    (more,) = _found([found.problem], fits, everything, found.kind)
    return more if found.kind == "gp" else _stabilised(more, everything)


def _run(problems: list[Problem], data: Data, calls: int, fits: list[Fit] | None = None) -> list[Fit]:
    """Iterations of all problems side by side; from where `fits` ended, if they are given."""
    count = len(problems)
    if sum(part.size for part in problems[0].start) > _MANY:
        calls = -(-calls // 2)
    # As many as every other call has: another number would be compiled for itself.
    padded = [*problems, *[problems[-1]] * (-count % _SIDE_BY_SIDE)]
    ends = None if fits is None else [*fits, *[fits[-1]] * (len(padded) - count)]
    outputs, inputs = jnp.asarray(data.learned()), jnp.asarray(data.inputs)
    stacked = jax.tree.map(lambda *parts: jnp.asarray(np.stack(parts)), *padded)
    # From NumPy: a weakly typed array would be compiled for itself.
    damping = jnp.asarray(np.array([1e-2 if ends is None else float(ends[i].damping) for i in range(len(padded))]))
    if ends is not None:
        stacked = stacked._replace(start=jax.tree.map(lambda *p: jnp.asarray(np.stack(p)), *[f.skeleton for f in ends]))
    for _ in range(calls):
        now = skeleton.fit(stacked, damping, outputs, inputs, iterations=_ITERATIONS)
        stacked, damping = stacked._replace(start=now.skeleton), now.damping
    arrays = jax.tree.map(np.asarray, now)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], arrays) for i in range(count)]


def _found(
    problems: list[Problem], fits: list[Fit], data: Data, kind: Literal["gp", "line", "one step"]
) -> list[Found]:
    result = []
    for problem, fit in zip(problems, fits, strict=True):
        error = fit.states[..., : data.outputs.shape[2]] - data.learned()
        residual = np.nanmean(error**2, axis=(0, 1))
        process = np.full(fit.states.shape[2], _PROCESS_NOISE)
        error = data.error(fit.states, held=data.holds_back)
        result.append(Found(problem, fit, error, 0.5 * residual, process, kind))
    return result


# --- what a method starts from ------------------------------------------------------------

_PROCESS_NOISE = 1e-3
_LEAST_OBS_NOISE = 1e-5
_INITIAL_WIDTH = 0.1
_SUREST = 1e8  # precision of a whitened inducing output


def applies(begun: initialisation.Start, hidden: bool) -> bool:
    """Whether the first states are the outputs, the others hidden, and f has a learned linear part."""
    model = begun.model
    if not hidden or not isinstance(model.emission, LinearEmission):
        return False
    dy, dx = np.shape(model.emission.weight)
    observed = np.allclose(model.emission.weight, np.eye(dy, dx)) and np.allclose(model.emission.bias, 0.0)
    return observed and isinstance(model.transition.mean, Linear)


def has_gp(begun: initialisation.Start) -> bool:
    """Whether f has GPs whose skeleton can be found."""
    return isinstance(begun.model.transition, Transition) and type(begun.model.transition.gp.kernel) is RBF


def informed(
    begun: initialisation.Start, found: Found, data: Data, *, keep_noise: tuple[bool, bool], held: Iterable[str] = ()
) -> initialisation.Start:
    """`begun`, started from a skeleton; not Q and R where the user has given them, and nothing that is `held`."""
    model, fit = begun.model, found.fit
    fitted, dx = fit.skeleton, model.state_dim
    d = fitted.inducing_inputs.shape[1]
    transition = eqx.tree_at(
        lambda t: t.mean, model.transition, Linear(fitted.linear[:, :d].copy(), fitted.linear[:, d].copy())
    )
    if has_gp(begun):
        transition = eqx.tree_at(lambda t: t.gp, transition, _sparse(begun, found, data))
    initial = model.initial_state
    if "initial_state.mean" not in begun.fixed:
        chol = np.tile(_INITIAL_WIDTH * np.eye(dx), (len(fitted.initial), 1, 1))
        initial = InitialState(fitted.initial.copy(), chol, initial.prior_mean, initial.prior_chol)
    q, r = model.process_noise, model.obs_noise
    if not keep_noise[0]:
        q = DiagonalNoise(found.process) if isinstance(q, DiagonalNoise) else FullNoise(np.diag(found.process**0.5))
    if not keep_noise[1]:
        r = eqx.tree_at(lambda likelihood: likelihood.variance, r, np.maximum(found.obs, _LEAST_OBS_NOISE))
    model = eqx.tree_at(
        lambda m: (m.transition, m.initial_state, m.process_noise, m.obs_noise), model, (transition, initial, q, r)
    )
    model = with_values(model, {p.name: p.value for p in parameters(begun.model) if p.name in set(held)})
    states = [x[:n] for x, n in zip(fit.states, data.lengths, strict=True)]
    return begun._replace(model=model, states=states, informed=True, rates=_RATES[found.kind])


# Adam moves every number by its rate, whatever that does; a pole at 0.98 does not survive many large steps, nor does
# q(u), whose widths are a hundredth. What was fitted to single steps has further to go.
_RATES = {
    "gp": tuple((word, 0.05) for word in ("mean", "q_mean", "q_chol", "inducing_inputs", "kernel")),
    "line": (("mean", 0.1),),
    "one step": (("mean", 0.3),),
}


def stable_mean(model: GPSSM) -> GPSSM:
    """A model that was started from a line, its linear part made stable: what the GP adds to it is too small to be."""
    weight, dx = np.asarray(model.transition.mean.weight), model.state_dim
    moved = np.column_stack([stable(weight[:, :dx], _STABLE), weight[:, dx:]]).astype(weight.dtype)
    return eqx.tree_at(lambda m: m.transition.mean.weight, model, moved)


def _sparse(begun: initialisation.Start, found: Found, data: Data) -> SparseGP:
    """q(u) at the skeleton's weights, as wide as the curvature of its loss allows; at zero on a line."""
    fitted, old = found.fit.skeleton, begun.model.transition.gp
    dx, m = np.shape(old.q_mean)
    if found.kind == "gp":
        kernel = RBF(np.exp(fitted.log_lengthscale), np.exp(2.0 * fitted.log_scale))
        values, vectors = np.linalg.eigh(found.fit.precision)
        values = np.clip(values, 1.0, _SUREST)[:, None, :]  # the prior's is one
        width = np.linalg.cholesky(vectors / values @ np.swapaxes(vectors, 1, 2))
        return SparseGP(kernel, np.tile(fitted.inducing_inputs, (dx, 1, 1)), fitted.whitened.copy(), width)
    # Small and smooth: what u leaves open is noise, and on a line there should be little of it.
    inputs = [c[:n] for c, n in zip(data.inputs, data.lengths, strict=True)]
    states = [x[:n] for x, n in zip(found.fit.states, data.lengths, strict=True)]
    z = initialisation.inducing_inputs(states, inputs, dx, m)
    scale = float(np.clip(np.sqrt(np.mean(found.obs)), 0.02, 0.3))
    kernel = RBF(np.full((dx, z.shape[2]), 2.0 * _LENGTHSCALE), np.full(dx, scale**2))
    return SparseGP(kernel, z, np.zeros((dx, m)), np.tile(0.1 * np.eye(m), (dx, 1, 1)))
