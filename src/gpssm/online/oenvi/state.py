"""What OEnVI carries from sample to sample, read back as an ordinary fitted model or taken from one."""

from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float

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
from gpssm.online.augmented import Tracked
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative, Positive
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import Posterior
from gpssm.training import initialisation

NDArray = np.ndarray

_NOTHING = 1e-10  # a variance, relative to that of the states, where there is none


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
        variances = jnp.diagonal(state.cov)[-len(unit) * (len(basis.used) + len(basis.scale) + 1) :]
        return cls.start(
            *start,
            hyper=jax.tree.map(jnp.asarray, logs),
            count=count,
            linear_prior=variances.reshape(len(unit), -1)[:, len(basis.used) :],
            unit=jnp.asarray(unit),
            obs_unit=jnp.asarray(level),
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

    def posterior(self) -> Posterior:
        """The state as an ordinary fitted model, in NumPy; what is given up on the way: see `OEnVI.posterior`."""
        dx, rows, (_, _, shift, scale) = self.state_dim, len(self.unit), map(np.asarray, self.basis)
        emission: LinearEmission | FunctionEmission = jax.tree.map(np.asarray, self.emission)
        noise = np.asarray(self.obs_noise)
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

        slots = len(self.basis.used)
        used = np.flatnonzero(np.asarray(self.basis.used) > 0)
        used = used if len(used) else np.array([0])
        z, num = (np.asarray(self.basis.inducing_inputs)[used] - shift) / scale, len(used)
        mean, cov = map(np.asarray, augmented.rows_of(self.augmented, dx, rows))
        lift = np.zeros((num, mean.shape[1]))  # from a row of W to what it says of f at the inducing inputs
        lift[np.arange(num), used] = 1.0
        lift[:, slots:] = np.hstack([z, np.ones((num, 1))])
        lengthscale, amplitude, process_noise = (np.exp(np.asarray(part)) for part in self.hyper[:3])
        at, size = jnp.asarray(z), scale[:rows, None]
        correlations = np.asarray(self.kind(lengthscale / scale, np.ones(()))(at, at))
        chol = np.linalg.cholesky(correlations + jitter_for(jnp.dtype(float)) * np.eye(num))
        inner = np.linalg.solve(chol, lift @ cov @ lift.T / amplitude[:, None, None])
        inner = np.linalg.solve(chol, np.swapaxes(inner, 1, 2))
        # The past is known: a GP that says nothing, and no noise.
        variances, noises = np.full(dx, _NOTHING), np.full(dx, _NOTHING)
        means, chols = np.zeros((dx, num)), np.tile(np.eye(num), (dx, 1, 1))
        variances[:rows], noises[:rows] = amplitude / scale[:rows] ** 2, process_noise / scale[:rows] ** 2
        means[:rows] = np.linalg.solve(chol, (mean[:, used] / np.sqrt(amplitude)[:, None]).T).T
        chols[:rows] = np.linalg.cholesky(0.5 * (inner + np.swapaxes(inner, 1, 2)) + 1e-10 * np.eye(num))
        gp = SparseGP(self.kind(np.tile(lengthscale / scale, (dx, 1)), variances), np.tile(z, (dx, 1, 1)), means, chols)
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
        members = np.asarray(self.augmented.mean[:dx] + self.points @ augmented.state_factor(self.augmented, dx).T)
        return read_back(model, scaling, scaling.standardise_states(members), int(self.count), "OEnVI")


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
