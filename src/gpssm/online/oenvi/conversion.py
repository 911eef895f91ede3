"""A stream read back as an ordinary fitted model, and a fitted model handed to a stream."""

import jax
import jax.numpy as jnp
import numpy as np

from gpssm.errors import InvalidInput
from gpssm.filters import augmented, ensemble
from gpssm.filters.augmented import AugmentedState
from gpssm.gp.basis import Basis
from gpssm.gp.kernels import KERNELS, Stationary
from gpssm.gp.means import Identity, Linear, Zero
from gpssm.gp.sparse import SparseGP, jitter_for
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.noise import DiagonalNoise
from gpssm.models.scaling import Scaling
from gpssm.online.augmented import fresh
from gpssm.online.oenvi.core import OEnVIHyper, OEnVISettings, OEnVIState, new_state
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import Posterior
from gpssm.training import initialisation

NDArray = np.ndarray

_NOTHING = 1e-10  # a variance, relative to that of the states, where there is none


def to_posterior(state: OEnVIState) -> Posterior:
    """See `OEnVI.posterior`."""
    dx, rows, (_, _, shift, scale) = state.state_dim, len(state.unit), map(np.asarray, state.basis)
    emission: LinearEmission | FunctionEmission = jax.tree.map(np.asarray, state.emission)
    noise = np.exp(np.asarray(state.hyper.obs_level + state.hyper.obs_shape))
    if isinstance(emission, LinearEmission):
        output_shift = emission.weight @ shift[:dx] + emission.bias
        output_scale = np.sqrt((emission.weight**2) @ scale[:dx] ** 2 + noise)
        own: LinearEmission | FunctionEmission = LinearEmission(
            emission.weight * scale[:dx] / output_scale[:, None], np.zeros(len(output_shift))
        )
    else:
        output_shift = np.asarray(emission(jnp.asarray(shift[None, :dx])))[0]
        output_scale = np.maximum(np.sqrt(noise), np.abs(output_shift))
        own = FunctionEmission(emission.function, shift[:dx], scale[:dx], output_shift, output_scale)
    scaling = Scaling(shift[:dx], scale[:dx], output_shift, output_scale, shift[dx:], scale[dx:])

    used = np.flatnonzero(np.asarray(state.basis.used) > 0)
    used = used if len(used) else np.array([0])
    z = (np.asarray(state.basis.inducing_inputs)[used] - shift) / scale
    width = state.basis.inducing_inputs.shape[0] + len(scale) + 1
    mean = np.asarray(state.augmented.mean)[dx:].reshape(rows, width)
    cov = np.asarray(state.augmented.cov)[dx:, dx:].reshape(rows, width, rows, width)
    linear = slice(len(state.basis.used), width)
    lift = np.zeros((len(used), width))  # from a row of W to what it says of f at the inducing inputs
    lift[np.arange(len(used)), used] = 1.0
    lift[:, linear] = np.hstack([z, np.ones((len(z), 1))])
    amplitude, lengthscale = (np.exp(np.asarray(v)) for v in (state.hyper.amplitude, state.hyper.lengthscale))
    kind, num, at = KERNELS[state.settings.kernel], len(z), jnp.asarray(z)
    correlations = np.asarray(kind(lengthscale / scale, np.ones(()))(at, at))
    chol = np.linalg.cholesky(correlations + jitter_for(jnp.dtype(float)) * np.eye(num))
    # The past is known: a GP that says nothing.
    variances, means, chols = np.full(dx, _NOTHING), np.zeros((dx, num)), np.tile(np.eye(num), (dx, 1, 1))
    variances[:rows] = amplitude / scale[:rows] ** 2
    for d in range(rows):
        inner = np.linalg.solve(chol, lift @ cov[d, :, d] @ lift.T / amplitude[d])
        inner = np.linalg.solve(chol, inner.T)
        means[d] = np.linalg.solve(chol, mean[d, used] / np.sqrt(amplitude[d]))
        chols[d] = np.linalg.cholesky(0.5 * (inner + inner.T) + 1e-10 * np.eye(num))
    kernel = kind(np.tile(lengthscale / scale, (dx, 1)), variances)
    gp = SparseGP(kernel, np.tile(z, (dx, 1, 1)), means, chols)
    weight = np.eye(dx, len(scale), -rows if rows < dx else 0) * (scale[:, None] / scale[:dx]).T
    weight[:rows] = np.eye(rows, len(scale)) + mean[:, linear][:, :-1] / scale[:rows, None]
    bias = np.concatenate([mean[:, -1] / scale[:rows], (shift[: dx - rows] - shift[rows:dx]) / scale[rows:dx]])
    noise_shares = np.full(dx, _NOTHING)
    noise_shares[:rows] = np.exp(np.asarray(state.hyper.process_noise)) / scale[:rows] ** 2
    eye = np.eye(dx)
    model = GPSSM(
        Transition(Linear(weight, bias), gp),
        DiagonalNoise(noise_shares),
        own,
        DiagonalNoise(noise / output_scale**2),
        InitialState(np.zeros((1, dx)), eye[None], np.zeros(dx), eye),
    )
    members = np.asarray(state.augmented.mean[:dx] + state.points @ augmented.state_factor(state.augmented, dx).T)
    update: ensemble.Update = "mixture" if isinstance(own, LinearEmission) else "perturbed"
    return Posterior(
        model=model,
        scaling=scaling,
        settings=ensemble.FilterSettings(4 * len(state.points), ensemble.Options(update=update), None),
        fixed=(),
        history=History(),
        method="OEnVI",
        final_members=scaling.standardise_states(members),
        num_samples=int(state.count),
    )


def from_posterior(posterior: Posterior, num_inducing: int, num_members: int) -> OEnVIState:
    """The state of a stream that goes on where the recording of `posterior` ended.

    A stream's inducing inputs and length scales are common to its state dimensions: the inputs are
    chosen among those of all dimensions, and what the model says of f there becomes q(u).
    """
    model, scaling = posterior.model, posterior.scaling
    if not isinstance(model.transition, Transition):
        raise InvalidInput(f"posterior: the f of {posterior.method} is a network, which cannot go live; fit EnVI.")
    if model.transition.mixing is not None:
        raise InvalidInput("mixed: a stream needs GPs that are independent of each other; fit again without it.")
    gp, dx = model.transition.gp, posterior.state_dim
    kernel, kind = gp.kernel, type(gp.kernel).__name__
    if not isinstance(kernel, Stationary):
        raise InvalidInput(f"kernel: a stream needs {', '.join(KERNELS)}; this model has {kind}.")
    if not isinstance(model.process_noise, DiagonalNoise):
        raise InvalidInput("full_process_noise: a stream needs a diagonal one; fit again without it.")
    if not isinstance(model.obs_noise, DiagonalNoise):
        raise InvalidInput("likelihood: a stream needs a Gaussian one; fit again with 'gaussian'.")
    shift, scale = scaling.argument_shift, scaling.argument_scale
    states = scaling.state_scale
    z = initialisation.farthest(np.concatenate(np.asarray(gp.inducing_inputs)), num_inducing)
    num, width = len(z), num_inducing + len(scale) + 1
    mean, cov = np.zeros((dx, width)), np.zeros((dx, width, dx, width))
    for d in range(dx):
        one = jax.tree.map(lambda leaf, d=d: jnp.asarray(leaf[d]), gp)
        at, cov_at = _at(one, jnp.asarray(z))
        mean[d, :num], cov[d, :num, d, :num] = at * states[d], cov_at * states[d] ** 2
        index = np.arange(num_inducing, width)
        # Learned from a whole recording: nearly known.
        cov[d, index, d, index] = (1e-3 * states[d]) ** 2
    weight, bias = _linear(posterior)
    mean[:, num_inducing:-1] = (weight - np.eye(dx, len(scale))) * states[:, None]
    mean[:, -1] = bias * states
    members = scaling.states(np.asarray(posterior.final_members))
    size = dx * width
    full = np.zeros((dx + size, dx + size))
    full[:dx, :dx] = np.cov(members, rowvar=False).reshape(dx, dx)
    full[dx:, dx:] = cov.reshape(size, size)
    emission = model.emission
    if isinstance(emission, LinearEmission):
        own = np.asarray(emission.weight) * scaling.output_scale[:, None] / states
        bias = scaling.outputs(np.asarray(emission.bias)) - own @ scaling.state_shift
        emission = LinearEmission(own, bias)
    else:
        emission = FunctionEmission.unscaled(emission.function, dx, len(scaling.output_shift))
    noise = np.log(np.asarray(model.obs_noise.variance) * scaling.output_scale**2)
    used = np.concatenate([np.ones(num), np.zeros(num_inducing - num)])
    inputs = np.zeros((num_inducing, len(scale)))
    inputs[:num] = shift + scale * z
    lengthscale = np.mean(np.log(np.broadcast_to(kernel.lengthscale, (dx, len(scale)))), axis=0)
    hyper = OEnVIHyper(
        jnp.asarray(lengthscale + np.log(scale)),
        jnp.asarray(np.log(np.asarray(kernel.variance) * states**2)),
        jnp.asarray(np.log(np.asarray(model.process_noise.variance) * states**2)),
        jnp.asarray(np.mean(noise)),
        jnp.asarray(noise - np.mean(noise)),
    )
    fields = fresh(
        AugmentedState(jnp.concatenate([members.mean(axis=0), mean.ravel()]), jnp.asarray(full)),
        Basis(jnp.asarray(inputs), jnp.asarray(used), jnp.asarray(shift), jnp.asarray(scale)),
        emission,
        augmented.members(num_members, dx),
        noise,
        float(len(posterior.recording.outputs) if posterior.num_samples is None else posterior.num_samples),
    )
    return new_state(fields, hyper, states, OEnVISettings(kind, "obs_noise.variance" not in posterior.fixed))


def _at(gp: SparseGP, z: jax.Array) -> tuple[NDArray, NDArray]:
    """Mean and full covariance of a GP's posterior at the rows of `z`."""
    marginal = gp.marginal()
    k = marginal.cross(z)
    assert marginal.uncertain is not None
    known, learned = marginal.whitener @ k, marginal.uncertain @ k
    cov = np.asarray(gp.kernel(z, z) - known.T @ known + learned.T @ learned)
    floor = jitter_for(jnp.dtype(float)) * np.mean(np.asarray(gp.kernel.diag(z)))
    return np.asarray(marginal.alpha @ k), 0.5 * (cov + cov.T) + floor * np.eye(len(z))


def _linear(posterior: Posterior) -> tuple[NDArray, NDArray]:
    """The mean function as a matrix and a bias, standardised."""
    mean, dx, width = posterior.model.transition.mean, posterior.state_dim, len(posterior.scaling.argument_shift)
    if isinstance(mean, Linear):
        return np.asarray(mean.weight), np.asarray(mean.bias)
    if isinstance(mean, (Identity, Zero)):
        return (np.eye(dx, width) if isinstance(mean, Identity) else np.zeros((dx, width))), np.zeros(dx)
    raise InvalidInput(
        "mean: a model with a mean function of yours cannot go live; use 'linear', 'identity' or 'zero'."
    )
