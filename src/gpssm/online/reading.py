"""A stream read back as an ordinary fitted model."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gpssm.filters import augmented, ensemble
from gpssm.gp.means import Linear
from gpssm.gp.sparse import SparseGP, jitter_for
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.noise import DiagonalNoise
from gpssm.models.scaling import Scaling
from gpssm.online.augmented import Tracked
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import Posterior

NDArray = np.ndarray

_NOTHING = 1e-10  # a variance, relative to that of the states, where there is none


def posterior(state: Tracked, method: str) -> Posterior:
    """An ordinary fitted model of NumPy arrays, called `method`, whose recording ends here.

    Its states are independent given u and its linear part is known, so that what the stream does not
    know of the linear part goes to u; correlations between state dimensions are lost.
    """
    dx, rows, (_, _, shift, scale) = state.state_dim, len(state.hyper.amplitude), map(np.asarray, state.basis)
    emission: LinearEmission | FunctionEmission = jax.tree.map(np.asarray, state.emission)
    noise = np.asarray(state.obs_noise)
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

    slots = len(state.basis.used)
    used = np.flatnonzero(np.asarray(state.basis.used) > 0)
    used = used if len(used) else np.array([0])
    z, num = (np.asarray(state.basis.inducing_inputs)[used] - shift) / scale, len(used)
    mean, cov = map(np.asarray, augmented.rows_of(state.augmented, dx, rows))
    lift = np.zeros((num, mean.shape[1]))  # from a row of W to what it says of f at the inducing inputs
    lift[np.arange(num), used] = 1.0
    lift[:, slots:] = np.hstack([z, np.ones((num, 1))])
    lengthscale, amplitude, process_noise = (np.exp(np.asarray(part)) for part in state.hyper[:3])
    at, size = jnp.asarray(z), scale[:rows, None]
    correlations = np.asarray(state.kind(lengthscale / scale, np.ones(()))(at, at))
    chol = np.linalg.cholesky(correlations + jitter_for(jnp.dtype(float)) * np.eye(num))
    inner = np.linalg.solve(chol, lift @ cov @ lift.T / amplitude[:, None, None])
    inner = np.linalg.solve(chol, np.swapaxes(inner, 1, 2))
    # The past is known: a GP that says nothing, and no noise.
    variances, noises = np.full(dx, _NOTHING), np.full(dx, _NOTHING)
    means, chols = np.zeros((dx, num)), np.tile(np.eye(num), (dx, 1, 1))
    variances[:rows], noises[:rows] = amplitude / scale[:rows] ** 2, process_noise / scale[:rows] ** 2
    means[:rows] = np.linalg.solve(chol, (mean[:, used] / np.sqrt(amplitude)[:, None]).T).T
    chols[:rows] = np.linalg.cholesky(0.5 * (inner + np.swapaxes(inner, 1, 2)) + 1e-10 * np.eye(num))
    gp = SparseGP(state.kind(np.tile(lengthscale / scale, (dx, 1)), variances), np.tile(z, (dx, 1, 1)), means, chols)
    weight = np.eye(dx, len(scale), -rows if rows < dx else 0) * (scale[:, None] / scale[:dx]).T
    weight[:rows] = np.eye(rows, len(scale)) + mean[:, slots:-1] / size
    bias = np.concatenate([mean[:, -1] / scale[:rows], (shift[: dx - rows] - shift[rows:dx]) / scale[rows:dx]])
    eye = np.eye(dx)
    model = GPSSM(
        Transition(Linear(weight, bias), gp),
        DiagonalNoise(noises),
        own,
        DiagonalNoise(noise / output_scale**2),
        InitialState(np.zeros((1, dx)), eye[None], np.zeros(dx), eye),
    )
    members = np.asarray(state.augmented.mean[:dx] + state.points @ augmented.state_factor(state.augmented, dx).T)
    return read_back(model, scaling, scaling.standardise_states(members), int(state.count), method)


def read_back(
    model: GPSSM, scaling: Scaling, members: Float[NDArray, "n dx"], num_samples: int, method: str
) -> Posterior:
    """A fitted model whose recording, of `num_samples`, ends with these standardised members of an ensemble."""
    linear = isinstance(model.emission, LinearEmission)
    options = ensemble.Options(update="mixture" if linear else "perturbed")
    return Posterior(
        model=model,
        scaling=scaling,
        settings=ensemble.FilterSettings(4 * len(members), options, None),
        fixed=(),
        history=History(),
        method=method,
        final_members=members,
        num_samples=num_samples,
    )
