"""What OEnVI carries from sample to sample, or takes from an ordinary fitted model."""

from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.filters import augmented
from gpssm.filters.augmented import AugmentedState
from gpssm.gp.basis import Basis
from gpssm.gp.kernels import KERNELS, Stationary
from gpssm.gp.means import Identity, Linear, Zero
from gpssm.gp.sparse import SparseGP, jitter_for
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.models.gpssm import Transition
from gpssm.models.noise import DiagonalNoise
from gpssm.online.augmented import Tracked
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative, Positive
from gpssm.posteriors.posterior import Posterior
from gpssm.training import initialisation

NDArray = np.ndarray


@saved
class OEnVIHyper(NamedTuple):
    """Logarithms of what is learned by gradient, or one such number for each of them."""

    lengthscale: Float[Array, " d"]
    amplitude: Float[Array, " k"]  # variance of f_d
    process_noise: Float[Array, " k"]
    obs_level: Float[Array, ""]  # common to all channels
    obs_shape: Float[Array, " dy"]  # of each, relative to it


@saved
class OEnVISettings(NamedTuple):
    """What the compiled step is built for."""

    kernel: Annotated[str, Literal[tuple(KERNELS)]]
    learn_obs_noise: bool


@saved
class OEnVIState(Tracked):
    """All that is carried from one sample to the next."""

    hyper: OEnVIHyper
    adam: tuple[OEnVIHyper, NonNegative[OEnVIHyper]]
    linear_prior: NonNegative[Float[Array, "k d+1"]]
    """Variances of the weights of the linear function before anything was seen."""
    unit: Positive[Float[Array, " k"]]
    """Size of one step, as first seen, of the states whose f is learned; the others are their past."""
    obs_unit: Float[Array, ""]
    settings: OEnVISettings = eqx.field(static=True)

    @property
    def obs_noise(self) -> Float[Array, " dy"]:
        """Variances R of the observation noise."""
        return jnp.exp(self.hyper.obs_level + self.hyper.obs_shape)

    @property
    def kind(self) -> type[Stationary]:
        """The class of the kernel of f."""
        return KERNELS[self.settings.kernel]

    @classmethod
    def new(
        cls,
        start: tuple[AugmentedState, Basis, Any, NDArray],
        hyper: tuple[Any, Any, Any],
        obs_noise: Float[NDArray, " dy"],
        unit: Float[NDArray, " k"],
        settings: OEnVISettings,
        count: float = 0.0,
    ) -> "OEnVIState":
        """A state whose gradients have no past yet.

        Args:
            start: what `Tracked.start` starts from.
            hyper: length scales, amplitudes and process noise, the last two variances, as `obs_noise`.
            unit: size of one step of the states whose f is learned.
            settings: what the step is compiled for.
            count: samples that it has seen.
        """
        state, basis, *_ = start
        log_noise = np.log(obs_noise)
        level = np.mean(log_noise)
        logs = OEnVIHyper._make([*(np.log(part) for part in hyper), level, log_noise - level])
        variances = np.diagonal(state.cov)[-len(unit) * (len(basis.used) + len(basis.scale) + 1) :]
        return cls.start(
            *start,
            hyper=jax.tree.map(np.asarray, logs),
            count=count,
            linear_prior=variances.reshape(len(unit), -1)[:, len(basis.used) :],
            unit=np.asarray(unit),
            obs_unit=np.asarray(level),
            settings=settings,
        )

    @classmethod
    def continuing(cls, posterior: Posterior, num_inducing: int, num_members: int) -> "OEnVIState":
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
        shift, scale, unit = scaling.argument_shift, scaling.argument_scale, scaling.state_scale
        z = initialisation.farthest(np.concatenate(np.asarray(gp.inducing_inputs)), num_inducing)
        num, width = len(z), num_inducing + len(scale) + 1
        linear = np.arange(num_inducing, width)
        mean, cov = np.zeros((dx, width)), np.zeros((dx, width, width))
        gps = jax.tree.map(jnp.asarray, gp)
        mean[:, :num], cov[:, :num, :num] = jax.vmap(_at, in_axes=(0, None))(gps, jnp.asarray(z))
        cov[:, linear, linear] = 1e-3**2  # learned from a whole recording: nearly known
        weight, mean[:, -1] = _linear(posterior)
        mean[:, num_inducing:-1] = weight - np.eye(dx, len(scale))
        members = scaling.states(np.asarray(posterior.final_members))
        state = AugmentedState(
            jnp.concatenate([members.mean(axis=0), (mean * unit[:, None]).ravel()]),
            block_diag(np.cov(members, rowvar=False).reshape(dx, dx), *(cov * unit[:, None, None] ** 2)),
        )
        emission = model.emission
        if isinstance(emission, LinearEmission):
            own = np.asarray(emission.weight) * scaling.output_scale[:, None] / unit
            emission = LinearEmission(own, scaling.outputs(np.asarray(emission.bias)) - own @ scaling.state_shift)
        else:
            emission = FunctionEmission.unscaled(emission.function, dx, len(scaling.output_shift))
        inputs = np.pad(shift + scale * z, ((0, num_inducing - num), (0, 0)))
        used = np.where(np.arange(num_inducing) < num, 1.0, 0.0)
        lengthscale = np.exp(np.mean(np.log(np.broadcast_to(kernel.lengthscale, (dx, len(scale)))), axis=0))
        basis = Basis(*map(jnp.asarray, (inputs, used, shift, scale)))
        return cls.new(
            (state, basis, emission, augmented.members(num_members, dx)),
            (lengthscale * scale, np.asarray(kernel.variance) * unit**2, model.process_noise.variance * unit**2),
            np.asarray(model.obs_noise.variance) * scaling.output_scale**2,
            unit,
            OEnVISettings(kind, "obs_noise.variance" not in posterior.fixed),
            float(len(posterior.recording.outputs) if posterior.num_samples is None else posterior.num_samples),
        )


def _at(gp: SparseGP, z: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, "m m"]]:
    """Mean and full covariance of a GP's posterior at the rows of `z`."""
    marginal = gp.marginal()
    k = marginal.cross(z)
    assert marginal.uncertain is not None
    known, learned = marginal.whitener @ k, marginal.uncertain @ k
    cov = gp.kernel(z, z) - known.T @ known + learned.T @ learned
    floor = jitter_for(jnp.dtype(float)) * jnp.mean(gp.kernel.diag(z))
    return marginal.alpha @ k, 0.5 * (cov + cov.T) + floor * jnp.eye(len(z))


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
