"""The particles of SVMC: where each of them goes, what a sample says of that, and what the step teaches it of f."""

from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.filters.ensemble import with_inputs
from gpssm.gp.basis import Basis, Expansion, Joining, novel
from gpssm.gp.kernels import RBF
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.numerics.linalg import cholesky, solve_lower, solve_lower_transposed
from gpssm.numerics.networks import MLP
from gpssm.online.outliers import Verdict
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance, NonNegative, Positive, renamed

LINEAR = 1.0
"""Standard deviation of the weights of the linear function at first, in steps of the state."""
_DIFFUSION = 1e-8  # of the weights, relative to their prior: rounding must not make them certain
_CHANGED = 1e-2  # the same when the system has changed
_UNHEARD = 5.0  # standard deviations of all states so far: a function is not asked there
_FARTHEST, _WIDEST = 3.0, 1.0  # that the network may move the proposal, and stretch it (logarithm)


@saved
class Particles(NamedTuple):
    """Paths, each reduced to what the future needs of it. F = M + d + 1 weights in a row of W, P = k + dy.

    The first k states have a transition that is learned, the others are their past.
    """

    x: Float[Array, "n dx"]
    log_weight: Float[Array, " n"]
    mean: Float[Array, "n k m+d+1"]
    """Of the rows of W, given the path."""
    cov: Covariance[Float[Array, "n k m+d+1 m+d+1"]]
    x_slope: Float[Array, "n k+dy dx"]
    """Derivatives of x and of the logarithm of the weight in log Q and log R, with the random numbers as drawn."""
    weight_slope: Float[Array, "n k+dy"]


@saved
class KernelParameters(NamedTuple):
    """Logarithms; the amplitude is a variance."""

    lengthscale: Float[Array, " d"]
    amplitude: Float[Array, " k"]

    def expand(self, basis: Basis) -> Expansion:
        """What f is made of, besides the weights."""
        return Expansion.learned(basis, RBF, self.lengthscale, self.amplitude)


@saved
class NoiseParameters(NamedTuple):
    """Logarithms of the variances Q and R."""

    process: Float[Array, " k"]
    obs: Float[Array, " dy"]


@saved
class Adapted(NamedTuple):
    """What is learned by gradient."""

    kernel: KernelParameters
    noise: NoiseParameters
    proposal: MLP


@saved
class SVMCState(eqx.Module):
    """All that is carried from one sample to the next."""

    particles: Particles
    basis: Basis
    learned: Adapted
    adam: tuple[Adapted, NonNegative[Adapted]]
    count: NonNegative[Float[Array, ""]]
    rejected: NonNegative[Float[Array, ""]]
    """Outliers in a row."""
    loose: NonNegative[Float[Array, " k"]]
    """Variance of the state before anything was seen."""
    spread: tuple[Float[Array, " dx"], NonNegative[Float[Array, " dx"]]]
    """Running mean and variance of the states: where length scales make sense."""
    unit: Positive[Float[Array, " k"]]
    """Mean square of a step of the state as first seen."""
    obs_unit: Positive[Float[Array, " dy"]]
    emission: Annotated[LinearEmission | FunctionEmission, renamed(dx="k")]
    """Of the first k states."""
    learn_obs_noise: bool = eqx.field(static=True)

    def check_fields(self) -> None:
        """Refuse networks of a file that do not fit the rest."""
        d, k = len(self.basis.scale), len(self.unit)
        self.learned.proposal.check_ends(d + k, 2 * k)
        for moments in self.adam:
            if moments.proposal.sizes != self.learned.proposal.sizes:
                raise InvalidInput(f"adam: sizes {moments.proposal.sizes}; expected {self.learned.proposal.sizes}.")


class Moved(NamedTuple):
    """Predictions of x_t, one of every particle, with W integrated out."""

    mean: Float[Array, "n k"]
    variance: Float[Array, "n k"]
    mean_slope: Float[Array, "n p k"]
    """In log Q and log R, as those of the particles."""
    variance_slope: Float[Array, "n p k"]
    gain: Float[Array, "n k f"]
    """Covariance with W."""
    features: Float[Array, "n f"]


class Conditioned(NamedTuple):
    """What y_t makes of the predictions, with g linear around their means."""

    centre: Float[Array, "n k"]
    chol: Float[Array, "n k k"]
    """Of the precision of x_t, given y_t."""
    score: Float[Array, "n k"]
    """What y_t says, in the coordinates in which that precision is I."""
    distance: Float[Array, " n"]
    log_density: Float[Array, " n"]
    """Of y_t."""
    expected: Float[Array, "n dy"]
    spread: Float[Array, "n dy dy"]


def place(state: SVMCState, f: Expansion, c: Array) -> tuple[Particles, Expansion]:
    """A new inducing input where the stream is now, if the others do not explain f there."""
    particles = state.particles
    weight = jax.nn.softmax(particles.log_weight)
    x = weight @ particles.x
    # Not where the state is only guessed, as in the middle of a long gap.
    known = weight @ (particles.x - x) ** 2 < jnp.exp(2 * state.learned.kernel.lengthscale[: len(x)])
    sure = jnp.all(known) & jnp.all(state.loose == 0)
    least = novel(jnp.exp(state.learned.noise.process), f.amplitude)
    return f.placed(particles, jnp.concatenate([x, c]), least, sure, lambda new: _insert(particles, new, f.amplitude))


def _insert(particles: Particles, joining: Joining, amplitude: Float[Array, " k"]) -> Particles:
    """With a new inducing output in every row of W, as in `augmented.insert`."""
    slot, phi, open_share = joining
    num, mean, cov = len(phi), particles.mean, particles.cov
    cross = jnp.einsum("f,nkfg->nkg", phi, cov[:, :, :num])
    corner = cross[..., :num] @ phi + amplitude * open_share
    cov = cov.at[..., slot, :].set(cross).at[..., slot].set(cross).at[..., slot, slot].set(corner)
    return particles._replace(mean=mean.at[..., slot].set(mean[..., :num] @ phi), cov=cov)


def move(particles: Particles, f: Expansion, noise: NoiseParameters, c: Float[Array, " dc"]) -> Moved:
    """Predict x_t. Cost O(N k F^2)."""
    rows, dx = len(f.amplitude), particles.x.shape[1]
    process_noise = jnp.exp(noise.process)
    h, open_share = f.features(with_inputs(particles.x, c))
    gain = jnp.einsum("nkfg,ng->nkf", particles.cov, h)
    known = jnp.maximum(jnp.einsum("nkf,nf->nk", gain, h), 0.0)

    def around(x: Array) -> tuple[Array, Array]:
        """Mean and variance near the particles; the variance up to a constant, without reading the covariance again."""
        h, open_share = f.features(with_inputs(x, c))
        mean = x[:, :rows] + jnp.einsum("nkf,nf->nk", particles.mean, h)
        return mean, 2 * jnp.einsum("nkf,nf->nk", gain, h) + open_share[:, None] * f.amplitude

    def along(direction: Array) -> tuple[Array, Array]:
        return jax.jvp(around, (particles.x,), (jnp.broadcast_to(direction, particles.x.shape),))[1]

    jacobians = jax.vmap(along)(jnp.eye(dx, dtype=h.dtype))
    mean_slope, variance_slope = (jnp.einsum("npj,jnk->npk", particles.x_slope, jacobian) for jacobian in jacobians)
    direct = jnp.pad(jnp.diag(process_noise), ((0, len(noise.obs)), (0, 0)))
    return Moved(
        particles.x[:, :rows] + jnp.einsum("nkf,nf->nk", particles.mean, h),
        known + open_share[:, None] * f.amplitude + process_noise,
        mean_slope,
        variance_slope + direct,
        gain,
        h,
    )


def heard(state: SVMCState, x: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """The states, not far from all that was seen if g is a function, which may overflow there."""
    if state.emission.matrix is not None:
        return x
    centre, far = state.spread[0], _UNHEARD * jnp.sqrt(state.spread[1])
    return jnp.clip(x, centre - far, centre + far)


def condition(state: SVMCState, moved: Moved, log_obs_noise: Array, y: Array) -> Conditioned:
    """Condition every particle's prediction on what was seen of the sample."""
    seen = ~jnp.isnan(y)
    precision = jnp.where(seen, jnp.exp(-log_obs_noise), 0.0)

    def one(mean: Array, variance: Array) -> Conditioned:
        def g(x: Array) -> Array:
            return state.emission(heard(state, x[None]))[0]

        exact = state.emission.matrix
        expected, matrix = g(mean), jax.jacfwd(g)(mean) if exact is None else exact
        residual = jnp.where(seen, y - expected, 0.0)
        chol = cholesky(jnp.diag(1.0 / variance) + (matrix.T * precision) @ matrix)
        score = solve_lower(chol, (matrix.T @ (precision * residual))[:, None])[:, 0]
        centre = mean + solve_lower_transposed(chol, score[:, None])[:, 0]
        distance = jnp.sum(precision * residual**2) - score @ score
        log_det = jnp.sum(jnp.log(variance)) + 2 * jnp.sum(jnp.log(jnp.diagonal(chol)))
        constants = jnp.sum(jnp.where(seen, log_obs_noise + jnp.log(2 * jnp.pi), 0.0))
        log_density = -0.5 * (distance + log_det + constants)
        return Conditioned(centre, chol, score, distance, log_density, expected, (matrix * variance) @ matrix.T)

    return jax.vmap(one)(moved.mean, moved.variance)


def readable(state: SVMCState, s: Float[Array, "n d"], of: Conditioned) -> Float[Array, "n d+k"]:
    """What the network sees of a particle: where it comes from, and what the sample says; in no unit."""
    mean, variance = state.spread
    dx = len(mean)
    origin = (s[:, :dx] - mean) / jnp.sqrt(variance)
    control = (s[:, dx:] - state.basis.shift[dx:]) / state.basis.scale[dx:]
    return jnp.clip(jnp.concatenate([origin, control, of.score], axis=1), -5.0, 5.0)


def displacement(network: MLP, read: Float[Array, "n r"]) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
    """How far the proposal is moved, and the logarithm of its stretch."""
    shift, stretch = jnp.split(jnp.tanh(network(read)), 2, axis=1)
    return _FARTHEST * shift, _WIDEST * stretch


def propose(
    network: MLP, read: Float[Array, "n r"], of: Conditioned, eps: Float[Array, "n k"]
) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
    """Draws of x_t, and the same in coordinates in which the linearised posterior is N(0, I)."""
    shift, stretch = displacement(network, read)
    z = shift + jnp.exp(stretch) * eps

    def one(centre: Array, chol: Array, z: Array) -> Array:
        return centre + solve_lower_transposed(chol, z[:, None])[:, 0]

    return jax.vmap(one)(of.centre, of.chol, z), z


def log_proposal(network: MLP, read: Float[Array, "n r"], z: Float[Array, "n k"]) -> Float[Array, " n"]:
    """Log-density of z, relative to N(0, I) at its centre."""
    shift, stretch = displacement(network, read)
    return jnp.sum(-0.5 * ((z - shift) / jnp.exp(stretch)) ** 2 - stretch, axis=1)


def regress(
    particles: Particles,
    ancestors: Array,
    origin: Moved,
    new: Float[Array, "n k"],
    prior: Float[Array, "k f f"],
    verdict: Verdict,
) -> tuple[Float[Array, "n k f"], Float[Array, "n k f f"]]:
    """Condition W on the step that the particle has taken. Cost O(N k F^2), in one pass over the covariances."""
    share = jnp.where(verdict.seen, 1.0 / origin.variance, 0.0)
    mean = particles.mean[ancestors] + origin.gain * (share * (new - origin.mean))[..., None]
    pace = jnp.where(verdict.seen, jnp.where(verdict.jump, _CHANGED, _DIFFUSION), 0.0)
    scaled = origin.gain * jnp.sqrt(share)[..., None]
    return mean, particles.cov[ancestors] - scaled[..., :, None] * scaled[..., None, :] + pace * prior


def prior(state: SVMCState, f: Expansion) -> Float[Array, "k f f"]:
    """Covariance of every row of W before anything was learned."""
    basis = f.basis
    gram = f.kernel(basis.inducing_inputs, basis.inducing_inputs) * basis.used[:, None] * basis.used
    linear = LINEAR**2 * jnp.eye(len(basis.scale) + 1, dtype=gram.dtype)

    def row(amplitude: Array, unit: Array) -> Array:
        return jax.scipy.linalg.block_diag(amplitude * gram, unit * linear)

    return jax.vmap(row)(f.amplitude, state.unit)
