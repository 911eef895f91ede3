"""The model before training: scaling, a linear fit, inducing inputs from the data, large noise."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpssm.errors import InvalidInput
from gpssm.gp.kernels import Kernel
from gpssm.gp.means import Function, Identity, Linear, Mean, Zero
from gpssm.gp.sparse import SparseGP
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.scaling import Scaling, moments
from gpssm.numerics.parameters import parameters
from gpssm.plumbing.validation import matrix, variances
from gpssm.training import subspace
from gpssm.training.problem import EmissionLike, Initialisation, MeanLike, Problem, RoughStates, Specification

_OBS_NOISE = 0.1  # standardised
_Q_WIDTH = 0.1  # of q(u), relative to the prior


def initialise(
    chosen: Specification, outputs: list[np.ndarray], inputs: list[np.ndarray], seed: int = 0
) -> Initialisation:
    """The model that was chosen, initialised for recordings (T_i, dy) and (T_i, dc) in the user's units.

    `seed` is that of weights drawn at random.
    """
    dx, dy = chosen.state_dim, outputs[0].shape[1]
    output_shift, output_scale = moments(outputs)
    input_shift, input_scale = moments(inputs)
    matrix_c, bias_d, fixed = _emission_matrix(chosen.emission, dx, dy)
    known_initial = _known_initial(chosen.initial_state, dx)
    state_shift, state_scale = _state_units(matrix_c, bias_d, outputs, dx, known_initial)
    scaling = Scaling(state_shift, state_scale, output_shift, output_scale, input_shift, input_scale)

    emission: LinearEmission | FunctionEmission
    if matrix_c is None:
        assert callable(chosen.emission)
        _try_function("emission", chosen.emission, dx, dy)
        emission = FunctionEmission(chosen.emission, state_shift, state_scale, output_shift, output_scale)
    else:
        weight = matrix_c * state_scale / output_scale[:, None]
        bias = (matrix_c @ state_shift + bias_d - output_shift) / output_scale
        emission = LinearEmission(weight, bias)

    controls = [scaling.standardise_inputs(c) for c in inputs]
    # Rough states: zero where no output shows them.
    states = [np.zeros((len(y), dx)) for y in outputs]
    if isinstance(emission, LinearEmission):
        inverse = np.linalg.pinv(np.asarray(emission.weight))
        filled = [subspace.fill(scaling.standardise_outputs(y)) for y in outputs]
        states = [(y - np.asarray(emission.bias)) @ inverse.T for y in filled]
    transition = chosen.transition(RoughStates(scaling, states, controls), seed)
    r = np.full(dy, _OBS_NOISE)
    if chosen.obs_noise is not None:
        r = variances("obs_noise", chosen.obs_noise, dy) / output_scale**2
    likelihood = chosen.initial_likelihood(r)
    q = np.full(dx, likelihood.initial_process_noise)
    if chosen.process_noise is not None:
        q = variances("process_noise", chosen.process_noise, dx) / state_scale**2
    centre, chol = np.zeros(dx), np.eye(dx)
    if known_initial is not None:
        fixed |= {"initial_state.mean", "initial_state.chol"}
        centre = scaling.standardise_states(known_initial[0])
        chol = np.linalg.cholesky(known_initial[1] / (state_scale[:, None] * state_scale))
    initial = InitialState(np.tile(centre, (len(outputs), 1)), np.tile(chol, (len(outputs), 1, 1)), centre, chol)
    model = GPSSM(transition, chosen.initial_process_noise(q), emission, likelihood, initial)
    return Initialisation(model, scaling, frozenset(fixed), states)


def gp_transition(rough: RoughStates, num_inducing: int, kernel: Kernel, mean: MeanLike, mixed: bool) -> Transition:
    """A mean function, and GPs that are nearly zero, with inducing inputs from the data."""
    dx, dc = rough.states[0].shape[1], rough.inputs[0].shape[1]
    mean_function = _mean(mean, rough, dx, dc)
    z = inducing_inputs(rough.states, rough.inputs, dx, num_inducing)
    expanded = _expanded(kernel, dx + dc)
    batched = jax.tree.map(lambda leaf: np.broadcast_to(np.asarray(leaf), (dx, *np.shape(leaf))).copy(), expanded)
    width = np.tile(_Q_WIDTH * np.eye(num_inducing), (dx, 1, 1))
    gp = SparseGP(batched, z, np.zeros((dx, num_inducing)), width)
    return Transition(mean_function, gp, np.eye(dx) if mixed else None)


def ensembles(problem: Problem, num_members: int, key: jax.Array, dtype: Any) -> jax.Array:
    """Ensembles (b, n, dx) around rough states for the windows to start from, before any filter has run."""
    spread, dx = 0.1 if problem.informed else 0.3, problem.dims[0]
    starts = zip(problem.windows.sequence, problem.windows.position, strict=True)
    means = np.stack([problem.states[i][position - 1] if position > 0 else np.zeros(dx) for i, position in starts])
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return jnp.asarray(means[:, None] + spread * rng.standard_normal((len(means), num_members, dx)), dtype)


def _emission_matrix(choice: EmissionLike | None, dx: int, dy: int) -> tuple[np.ndarray | None, np.ndarray, set[str]]:
    """C and d in the user's units (None for a function), and which of their names are fixed."""
    known = {"emission.weight", "emission.bias"}
    if choice is None:
        choice = "observed" if dx >= dy else "learned"
    if isinstance(choice, str):
        if choice == "observed":
            if dx < dy:
                raise InvalidInput(
                    f"emission: 'observed' needs a state for each of {dy} outputs, got state_dim={dx}; use 'learned'."
                )
            return np.eye(dy, dx), np.zeros(dy), known
        if choice == "learned":
            return np.eye(dy, dx), np.zeros(dy), set()
        raise InvalidInput(
            f"emission: expected 'observed', 'learned', a matrix C ({dy}, {dx}) or a function, got {choice!r}."
        )
    if isinstance(choice, LinearEmission):
        weight, bias = np.asarray(choice.weight), np.asarray(choice.bias)
        fixed: set[str] = set()
    elif callable(choice):
        return None, np.zeros(dy), set()
    else:
        weight, bias, fixed = matrix("emission", np.atleast_2d(np.asarray(choice))), np.zeros(dy), known
        if np.isnan(weight).any():
            raise InvalidInput("emission: the matrix C contains NaN; expected numbers.")
    if weight.shape != (dy, dx):
        raise InvalidInput(f"emission: expected C of shape (outputs, states) = ({dy}, {dx}), got {weight.shape}.")
    if bias.shape != (dy,):
        raise InvalidInput(f"emission: expected a bias of shape ({dy},), got {bias.shape}.")
    rank = int(np.linalg.matrix_rank(weight))
    if fixed and rank < dx:
        raise InvalidInput(
            f"emission: the known C has rank {rank}, so only {rank} of the {dx} states can be identified from it; "
            f"expected state_dim={rank}, or emission='observed' or 'learned' for hidden states."
        )
    return weight, bias, fixed


def _state_units(
    weight: np.ndarray | None,
    bias: np.ndarray,
    outputs: list[np.ndarray],
    dx: int,
    initial: tuple[np.ndarray, np.ndarray] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Where the states live: at the least-squares image of the outputs for a linear emission.

    A hidden state, seen by no output, has no unit. Behind a function only a known initial state
    says where states live.
    """
    shift, scale = np.zeros(dx), np.ones(dx)
    if weight is None:
        if initial is not None:
            shift, scale = initial[0], np.sqrt(np.diag(initial[1]))
        return shift, scale
    rows = np.concatenate(outputs)
    complete = rows[~np.isnan(rows).any(axis=1)]
    inverse = np.linalg.pinv(weight)
    if len(complete) >= max(10, len(rows) // 2):
        column_shift, column_scale = moments([(complete - bias) @ inverse.T])
    else:  # too few samples have every channel: as if channels were independent
        output_shift, output_scale = moments(outputs)
        column_shift, column_scale = inverse @ (output_shift - bias), np.sqrt(inverse**2 @ output_scale**2)
    seen = np.linalg.norm(weight, axis=0) > 0
    return np.where(seen, column_shift, shift), np.where(seen, column_scale, scale)


def _mean(choice: MeanLike, rough: RoughStates, dx: int, dc: int) -> Mean:
    if isinstance(choice, str):
        if choice == "zero":
            return Zero(dx)
        if choice == "identity":
            return Identity(dx)
        if choice == "linear":
            return Linear(*subspace.one_step(rough.states, rough.inputs))
        raise InvalidInput(f"mean: expected 'linear', 'identity', 'zero' or a function, got {choice!r}.")
    if callable(choice):
        _try_function("mean", choice, dx + dc, dx)
        if isinstance(choice, Mean):
            return choice
        scaling = rough.scaling
        return Function(
            choice, scaling.argument_shift, scaling.argument_scale, scaling.state_shift, scaling.state_scale
        )
    raise InvalidInput(f"mean: expected 'linear', 'identity', 'zero' or a function, got {type(choice).__name__}.")


def inducing_inputs(states: list[np.ndarray], controls: list[np.ndarray], dx: int, count: int) -> np.ndarray:
    """(dx, M, dx + dc): a grid over the range of one input, farthest points of the data otherwise."""
    rows = np.concatenate([np.hstack([x[:-1], c[1:]]) for x, c in zip(states, controls, strict=True)])
    rows = rows[~np.isnan(rows).any(axis=1)]
    rng = np.random.default_rng(0)
    if len(rows) == 0:
        rows = rng.standard_normal((count, dx + controls[0].shape[1]))
    hidden = np.ptp(rows, axis=0) < 1e-9
    rows = np.where(hidden, rng.standard_normal(rows.shape), rows)
    if rows.shape[1] == 1:
        low, high = np.quantile(rows, [0.005, 0.995])
        z = np.linspace(low, high, count)[:, None]
    else:
        pool = rows + 1e-3 * rng.standard_normal(rows.shape)
        if len(pool) < count:
            more = pool[rng.integers(0, len(pool), count)] + 0.1 * rng.standard_normal((count, pool.shape[1]))
            pool = np.concatenate([pool, more])
        z = farthest(pool, count)
    return np.tile(z, (dx, 1, 1))


def farthest(pool: np.ndarray, count: int) -> np.ndarray:
    """Up to `count` rows of `pool`, each as far from those before it as can be; no two alike.

    k-means++ without the randomness.
    """
    chosen = [int(np.argmin(np.sum((pool - pool.mean(axis=0)) ** 2, axis=1)))]
    distance = np.sum((pool - pool[chosen[0]]) ** 2, axis=1)
    while len(chosen) < count and distance.max() > 0:
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.sum((pool - pool[chosen[-1]]) ** 2, axis=1))
    return pool[chosen]


def _known_initial(known: tuple[Any, Any] | None, dx: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean and covariance of a known x_0, checked."""
    if known is None:
        return None
    try:
        mean, cov = (np.asarray(part, dtype=float) for part in known)
    except (TypeError, ValueError) as error:
        raise InvalidInput("initial_state: expected (mean, covariance) of x_0.") from error
    if mean.shape not in ((), (dx,)) or not np.isfinite(mean).all():
        raise InvalidInput(f"initial_state: expected a mean of {dx} finite number(s), got {mean.tolist()!r}.")
    cov = cov * np.eye(dx) if cov.ndim == 0 else cov
    if cov.shape != (dx, dx) or not np.allclose(cov, cov.T) or np.linalg.eigvalsh(cov).min() <= 0:
        raise InvalidInput(f"initial_state: expected a positive-definite covariance ({dx}, {dx}), got {cov.shape}.")
    return np.broadcast_to(mean, (dx,)), cov


def _expanded(kernel: Kernel, input_dim: int) -> Kernel:
    """The kernel with a length scale for every input of f; refused if it does not fit."""
    try:
        kernel = kernel.expand(input_dim)
    except ValueError as error:
        raise InvalidInput(f"kernel: expected one length scale or {input_dim} of them (states and inputs).") from error
    for p in parameters(kernel):
        if p.constraint == "positive" and not (np.asarray(p.value) > 0).all():
            raise InvalidInput(f"kernel: expected a positive {p.name}, got {np.asarray(p.value).tolist()!r}.")
    return kernel


def _try_function(name: str, function: Callable[[Any], Any], inputs: int, outputs: int) -> None:
    """Ask a function of the user's for its output shape, without compiling or running it."""
    try:
        shape = jax.eval_shape(function, jax.ShapeDtypeStruct((2, inputs), jnp.float64)).shape
    except jax.errors.TracerArrayConversionError as error:
        raise InvalidInput(f"{name}: the function uses NumPy; expected operations of jax.numpy.") from error
    if shape != (2, outputs):
        raise InvalidInput(f"{name}: the function maps (2, {inputs}) to {shape}; expected (2, {outputs}).")
