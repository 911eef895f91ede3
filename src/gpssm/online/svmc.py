"""SVMC: streaming variational Monte Carlo (Zhao, Nassar, Jordan, Bugallo and Park 2022).

    x_t = x_{t-1} + W h(s_t) + r_t + v_t,   s_t = [x_{t-1}, c_t],   y_t = g(x_t) + e_t     (`filters.joint`)

Particles hold x_t and, in closed form, what their own path has taught them of f: given a path the
rows of W are independent Gaussians, updated by one step of Bayesian linear regression and
integrated out where the next state is weighed. The next state comes from a proposal r(x_t | x_{t-1},
y_t) with a network in it, which climbs the filtering bound log sum_i w_i, one step a sample.

What the paper leaves open, or was chosen otherwise:

- The network moves and stretches the Gaussian p(x_t | x_{t-1}, y_t) of a linearised g, in its own
  coordinates, and starts at no change. Behind a linear g nothing is left for it to learn. Its gradient is
  the doubly reparameterised one (Tucker et al. 2019), which does not fade with many particles.
- Ancestors are drawn systematically, when fewer than half of the particles count, and with the sample
  known: the same Gaussian tells how well each particle has predicted it (Pitt and Shephard 1999).
- What the authors give by hand is learned. Q and R climb the log-density of the samples, whose gradient
  goes through time: the derivatives of x and of the weight are carried by every particle. Length scales and
  amplitude climb the same with the past as it is.
- Inducing inputs are placed where the stream goes, as by OEnVI. f has a linear part.
- The weights diffuse, as in the paper, but hardly, unless the system is seen to change.
- A sample that is missing teaches nothing of f. An outlier is trusted less; several in a row are a jump.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gpssm.errors import InvalidInput
from gpssm.filters import augmented
from gpssm.filters.augmented import Basis, Whitening
from gpssm.filters.ensemble import with_inputs
from gpssm.gp.kernels import RBF
from gpssm.gp.sparse import jitter_for
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.numerics.linalg import cholesky, solve_lower, solve_lower_transposed
from gpssm.numerics.networks import MLP
from gpssm.online.base import OnlineStateSpace
from gpssm.online.stream import Info
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance, NonNegative, Positive, renamed
from gpssm.plumbing.precision import double_precision

NDArray = np.ndarray

# Start values in units of the states' spread (length scale) and of their steps.
_LENGTHSCALE, _AMPLITUDE, _PROCESS_NOISE, _LINEAR = 1.0, 4.0, 0.05, 1.0
_HIDDEN = 16  # units of the network
_FARTHEST, _WIDEST = 3.0, 1.0  # that the network may move the proposal, and stretch it (logarithm)
# Adam. Noise variances must travel far; length scales change f everywhere.
_KERNEL_RATES = (0.01, 0.06)  # of the length scales and of the amplitude
_NOISE_RATE, _PROPOSAL_RATE = 0.03, 0.003
_BETA1, _BETA2, _CLIP = 0.9, 0.99, 5.0
# Gradients far below this are followed in proportion, not in steps of fixed size, which near the optimum would be
# driven by rounding alone; and behind a linear g the network begins at its optimum.
_SMALL, _PROPOSAL_SMALL = 1e-3, 0.1
_HALF = 1000.0  # samples after which the rates fall like one over the root of their number
_KERNEL_EVERY = 4  # samples between two gradients of the kernel
_DIFFUSION = 1e-8  # of the weights, relative to their prior: rounding must not make them certain
_CHANGED = 1e-2  # the same when the system has changed
_UNHEARD = 5.0  # standard deviations of all states so far: a function is not asked there
_FAR = 10.0  # standard deviations of all states so far: no forecast goes farther
_RESAMPLE = 0.5  # share of the particles that must count
# An inducing input is worth its place if the error it removes is not lost in the process noise.
_WORTH, _NOVEL = 0.3, (1e-3, 0.3)
_OUTLIER = 16.0  # squared innovation per channel; beyond it a sample is trusted less
_BELIEVED = 3  # outliers in a row: then it is the system that has changed
_STEEP = 100.0  # that the derivative of a log-weight is at most
_JUMP = 1.0  # that the logarithm of Q grows at most by then


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


class Counts(NamedTuple):
    """What a sample may be learned from."""

    seen: Bool[Array, ""]
    """Something of it was seen."""
    usual: Bool[Array, ""]
    """And it is no outlier."""
    jump: Float[Array, ""]
    """By how much the logarithm of Q grows, if the system has changed."""


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


@saved
@dataclass(frozen=True)
class SVMC(OnlineStateSpace):
    """SVMC with everything a user may want to choose. `SVMC(state_dim).start()` is ready to learn.

    Args, besides those of `OnlineStateSpace`:
        num_inducing: budget M of inducing inputs, shared by all state dimensions.
        num_particles: number N of particles.
    """

    num_inducing: int = 40
    _: KW_ONLY
    num_particles: int = 100
    name: str = "SVMC"

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        return (("num_inducing", 1), ("num_particles", 4))

    @double_precision
    def begin(self, outputs: NDArray, inputs: NDArray) -> SVMCState:
        """All particles alike; nothing but the units of the first samples is known."""
        units = self.units(outputs, inputs)
        steps, shift, scale = (jnp.asarray(part) for part in (units.steps, units.shift, units.scale))
        num, dx, rows, dy = self.num_particles, self.state_dim, len(steps), outputs.shape[1]
        width = self.num_inducing + len(scale) + 1
        linear = jnp.where(jnp.arange(width) < self.num_inducing, 0.0, _LINEAR**2)
        sizes = (dx + inputs.shape[1] + rows, _HIDDEN, 2 * rows)
        learned = Adapted(
            KernelParameters(jnp.log(_LENGTHSCALE * scale), jnp.log(_AMPLITUDE * steps)),
            NoiseParameters(jnp.log(_PROCESS_NOISE * steps), jnp.log(units.obs_noise)),
            jax.tree.map(jnp.asarray, MLP.start(jax.random.key(0), sizes, last=0.0)),
        )
        emission = units.emission
        if isinstance(emission, LinearEmission):
            emission = LinearEmission(emission.weight[:, :rows], emission.bias)
        return SVMCState(
            particles=Particles(
                jnp.tile(shift[:dx], (num, 1)),
                jnp.full(num, -np.log(num)),
                jnp.zeros((num, rows, width)),
                jnp.tile(steps[:, None, None] * jnp.diag(linear), (num, 1, 1, 1)),
                jnp.zeros((num, rows + dy, dx)),
                jnp.zeros((num, rows + dy)),
            ),
            basis=Basis(jnp.zeros((self.num_inducing, len(scale))), jnp.zeros(self.num_inducing), shift, scale),
            learned=learned,
            adam=(jax.tree.map(jnp.zeros_like, learned), jax.tree.map(jnp.zeros_like, learned)),
            count=jnp.zeros(()),
            rejected=jnp.zeros(()),
            # Where the state was before the first sample is not known.
            loose=100.0 * scale[:rows] ** 2,
            spread=(shift[:dx], scale[:dx] ** 2),
            unit=steps,
            obs_unit=jnp.asarray(units.obs_noise),
            emission=jax.tree.map(jnp.asarray, emission),
            learn_obs_noise=self.obs_noise is None,
        )

    @staticmethod
    def step(key: Array, state: SVMCState, y: Float[Array, " dy"], u: Float[Array, " dc"]) -> tuple[SVMCState, Info]:
        """One sample: place an inducing input, predict, choose ancestors, propose, weigh, learn."""
        key_ancestors, key_x = jax.random.split(key)
        seen = ~jnp.isnan(y)
        learns = jnp.any(seen)
        kernel, amplitude = _correlations(state.learned.kernel), jnp.exp(state.learned.kernel.amplitude)
        noise = state.learned.noise
        particles, basis, whitening = _place(state, kernel, amplitude, u)
        moved = _move(particles, basis, kernel, whitening, amplitude, noise, u)
        loosened = moved._replace(variance=moved.variance + state.loose)

        conditioned = _condition(state, loosened, noise.obs, y)
        weight = jax.nn.softmax(particles.log_weight)
        predicted, predicted_cov = _mixture(weight, conditioned.expected, conditioned.spread)
        predicted_cov = predicted_cov + jnp.diag(jnp.exp(noise.obs))
        log_score = jnp.where(learns, jax.nn.logsumexp(particles.log_weight + conditioned.log_density), 0.0)

        # An outlier is trusted less, the more so the farther out it is. After some in a row it is the state that
        # has jumped: it may go where it likes, and f is not blamed.
        excess = jnp.clip(_distance(y - predicted, predicted_cov, seen) / _OUTLIER, 1.0, 1e4)
        outlier = (excess > 1.0) & (state.rejected < _BELIEVED)
        jump = (excess > 1.0) & ~outlier
        usual = learns & (excess == 1.0)
        counts = Counts(learns, usual, jnp.where(jump, jnp.minimum(jnp.log(excess), _JUMP), 0.0))
        doubt = jnp.where(outlier, 2 * jnp.log(excess), 0.0)
        freedom = jnp.where(jump, excess**2, 1.0)
        free = moved._replace(variance=(moved.variance + jnp.where(learns, state.loose, 0.0)) * freedom)
        conditioned = _condition(state, free, noise.obs + doubt, y)
        log_weight = jax.nn.log_softmax(particles.log_weight + conditioned.log_density)
        ancestors, log_weight = _ancestors(key_ancestors, log_weight)
        origin, of = jax.tree.map(lambda leaf: leaf[ancestors], (free, conditioned))
        read = _readable(state, with_inputs(particles.x[ancestors], u), of)
        eps = jax.random.normal(key_x, origin.mean.shape, y.dtype)

        def bound(network: MLP) -> tuple[Array, tuple[Array, Array]]:
            """The bound, through the draws only: that is what makes its gradient the doubly reparameterised one."""
            x, z = _propose(network, read, of, eps)
            misfit = jnp.where(seen, y - state.emission(_heard(state, x)), 0.0) ** 2 / jnp.exp(noise.obs + doubt)
            target = jnp.sum(misfit, axis=1) + jnp.sum((x - origin.mean) ** 2 / origin.variance, axis=1)
            # Relative to what the choice of the ancestor has counted already; zero behind a linear g.
            log_ratio = 0.5 * (of.distance - target) - _log_proposal(state.learned.proposal, read, z)
            weights = jax.lax.stop_gradient(jax.nn.softmax(log_weight + log_ratio))
            return len(x) * jnp.sum(weights**2 * log_ratio), (x, log_ratio)

        proposal_gradient, (new, log_ratio) = jax.grad(bound, has_aux=True)(state.learned.proposal)
        log_weight, new = jax.nn.log_softmax(log_weight + log_ratio), _heard(state, new)

        noise_gradient, weight_slope = _noise_gradient(state, particles, loosened, y, usual)

        def draw(origin: Moved, obs_noise: Array) -> Array:
            return _propose(state.learned.proposal, read, _condition(state, origin, obs_noise, y), eps)[0]

        slope = _push(draw, origin, noise.obs + doubt)
        # Before the first sample there was no past: it is taken to have been the same.
        past = jnp.where(jnp.any(state.loose > 0) & learns, _tiled(new, particles.x.shape[1]), particles.x[ancestors])
        past_slope = particles.x_slope[ancestors]
        x = augmented.with_past(new, past)
        x_slope = jax.vmap(augmented.with_past, in_axes=1, out_axes=1)(slope, past_slope)
        limit = 10.0 * jnp.sqrt(state.spread[1])
        mean, cov = _regress(particles, ancestors, origin, new, _prior(state, basis, kernel), counts)
        weight = jnp.exp(log_weight)
        weight_slope = weight_slope[ancestors]
        moved_particles = Particles(
            x,
            log_weight,
            mean,
            cov,
            jnp.clip(x_slope, -limit, limit),
            jnp.clip(weight_slope - weight @ weight_slope, -_STEEP, _STEEP),
        )

        learned, adam = _learn(
            state,
            noise_gradient,
            proposal_gradient,
            lambda: _kernel_gradient(state, particles, basis, free, y, u),
            counts,
        )
        state_mean, state_cov = _mixture(weight, x, jnp.zeros((len(x), x.shape[1], x.shape[1]), x.dtype))
        spread = _running_spread(state, state_mean, learns)
        updated = eqx.tree_at(
            lambda s: (s.particles, s.basis, s.learned, s.adam, s.count, s.rejected, s.loose, s.spread),
            state,
            (
                moved_particles,
                basis,
                _bounded(state, learned, spread[1]),
                adam,
                state.count + jnp.where(learns, 1.0, 0.0),
                jnp.where(outlier, state.rejected + 1.0, 0.0),
                jnp.where(learns, 0.0, state.loose),
                spread,
            ),
        )
        return updated, Info(state_mean, state_cov, predicted, jnp.sqrt(jnp.diagonal(predicted_cov)), log_score)

    @staticmethod
    def paths(key: Array, state: SVMCState, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """Each path follows a particle, with a draw of its W."""
        key_start, key_w, key_x, key_y, key_stay = jax.random.split(key, 5)
        particles, rows, dtype = state.particles, len(state.unit), inputs.dtype
        chosen = systematic(key_start, jax.nn.softmax(particles.log_weight), num_paths)
        values, vectors = jnp.linalg.eigh(particles.cov)
        factor = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]
        eps = jax.random.normal(key_w, (num_paths, *particles.mean.shape[1:]), dtype)
        weights = particles.mean[chosen] + jnp.einsum("nkfg,nkg->nkf", factor[chosen], eps)
        kernel, amplitude = _correlations(state.learned.kernel), jnp.exp(state.learned.kernel.amplitude)
        whitening, process_noise = augmented.whiten(state.basis, kernel), jnp.exp(state.learned.noise.process)
        # Far from all that was seen the linear part knows nothing, and some draws of it are unstable.
        centre, far = state.spread[0][:rows], _FAR * jnp.sqrt(state.spread[1][:rows])
        low, high = centre - far, centre + far

        def body(x: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            c, own = now
            h, open_share = augmented.features(state.basis, kernel, whitening, with_inputs(x, c))
            std = jnp.sqrt(open_share[:, None] * amplitude + process_noise)
            noise = std * jax.random.normal(own, std.shape, dtype)
            moved = jnp.clip(x[:, :rows] + jnp.einsum("nf,nkf->nk", h, weights) + noise, low, high)
            x = augmented.with_past(moved, x)
            return x, x

        _, states = jax.lax.scan(body, particles.x[chosen], (inputs, jax.random.split(key_x, len(inputs))))
        states = states[:, augmented.stay(key_stay, states[..., :rows], low, high)]
        clean = jax.vmap(state.emission)(states[..., :rows])
        obs_std = jnp.exp(0.5 * state.learned.noise.obs)
        outputs = clean + obs_std * jax.random.normal(key_y, clean.shape, dtype)
        return jnp.swapaxes(states, 0, 1), jnp.swapaxes(outputs, 0, 1)

    @staticmethod
    def transition(state: SVMCState, x: Array) -> tuple[Array, Array]:
        """f with W integrated out, averaged over the particles."""
        kernel, particles, rows = _correlations(state.learned.kernel), state.particles, len(state.unit)
        h, open_share = augmented.features(state.basis, kernel, augmented.whiten(state.basis, kernel), x)
        weight, dx = jax.nn.softmax(particles.log_weight), particles.x.shape[1]
        mean = jnp.einsum("n,nkf->kf", weight, particles.mean)
        apart = particles.mean - mean
        cov = jnp.einsum("n,nkfg->kfg", weight, particles.cov) + jnp.einsum("n,nkf,nkg->kfg", weight, apart, apart)
        variance = jnp.einsum("nf,kfg,ng->nk", h, cov, h) + open_share[:, None] * jnp.exp(
            state.learned.kernel.amplitude
        )
        return augmented.with_past(x[:, :rows] + h @ mean.T, x[:, :dx]), jnp.pad(variance, ((0, 0), (0, dx - rows)))

    @staticmethod
    def process_noise(state: SVMCState) -> Array:
        """As learned so far; the past has none."""
        return jnp.pad(jnp.exp(state.learned.noise.process), (0, state.particles.x.shape[1] - len(state.unit)))


# --- prediction -----------------------------------------------------------------------------


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
    open_share: Float[Array, " n"]


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


def _correlations(kernel: KernelParameters) -> RBF:
    """The variances are the amplitudes."""
    return RBF(jnp.exp(kernel.lengthscale), jnp.ones((), kernel.lengthscale.dtype))


def _move(
    particles: Particles,
    basis: Basis,
    kernel: RBF,
    whitening: Whitening,
    amplitude: Array,
    noise: NoiseParameters,
    u: Array,
) -> Moved:
    """Predict x_t. Cost O(N k F^2)."""
    rows, dx = len(amplitude), particles.x.shape[1]
    process_noise = jnp.exp(noise.process)
    h, open_share = augmented.features(basis, kernel, whitening, with_inputs(particles.x, u))
    gain = jnp.einsum("nkfg,ng->nkf", particles.cov, h)
    known = jnp.maximum(jnp.einsum("nkf,nf->nk", gain, h), 0.0)

    def around(x: Array) -> tuple[Array, Array]:
        """Mean and variance near the particles; the variance up to a constant, without reading the covariance again."""
        h, open_share = augmented.features(basis, kernel, whitening, with_inputs(x, u))
        mean = x[:, :rows] + jnp.einsum("nkf,nf->nk", particles.mean, h)
        return mean, 2 * jnp.einsum("nkf,nf->nk", gain, h) + open_share[:, None] * amplitude

    def along(direction: Array) -> tuple[Array, Array]:
        return jax.jvp(around, (particles.x,), (jnp.broadcast_to(direction, particles.x.shape),))[1]

    jacobians = jax.vmap(along)(jnp.eye(dx, dtype=h.dtype))
    mean_slope, variance_slope = (jnp.einsum("npj,jnk->npk", particles.x_slope, jacobian) for jacobian in jacobians)
    direct = jnp.pad(jnp.diag(process_noise), ((0, len(noise.obs)), (0, 0)))
    return Moved(
        particles.x[:, :rows] + jnp.einsum("nkf,nf->nk", particles.mean, h),
        known + open_share[:, None] * amplitude + process_noise,
        mean_slope,
        variance_slope + direct,
        gain,
        h,
        open_share,
    )


def _heard(state: SVMCState, x: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """The states, not far from all that was seen if g is a function, which may overflow there."""
    if state.emission.matrix is not None:
        return x
    centre, far = state.spread[0], _UNHEARD * jnp.sqrt(state.spread[1])
    return jnp.clip(x, centre - far, centre + far)


def _condition(state: SVMCState, moved: Moved, log_obs_noise: Array, y: Array) -> Conditioned:
    """Condition every particle's prediction on what was seen of the sample."""
    seen = ~jnp.isnan(y)
    precision = jnp.where(seen, jnp.exp(-log_obs_noise), 0.0)

    def one(mean: Array, variance: Array) -> Conditioned:
        def g(x: Array) -> Array:
            return state.emission(_heard(state, x[None]))[0]

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


def _mixture(weight: Array, means: Array, covs: Array) -> tuple[Array, Array]:
    """Mean and covariance of a mixture."""
    mean = weight @ means
    apart = means - mean
    return mean, jnp.tensordot(weight, covs, 1) + (apart.T * weight) @ apart


def _distance(residual: Array, cov: Array, seen: Array) -> Array:
    """Squared Mahalanobis length of what was seen, per channel."""
    std = jnp.sqrt(jnp.diagonal(cov))
    both = seen[:, None] & seen
    correlation = jnp.where(both, cov / std[:, None] / std, jnp.eye(len(std), dtype=cov.dtype))
    scaled = jnp.where(seen, residual / std, 0.0)
    return scaled @ jnp.linalg.solve(correlation, scaled) / jnp.maximum(jnp.sum(seen), 1)


# --- particles ------------------------------------------------------------------------------


def systematic(key: Array, weight: Float[Array, " n"], num: int) -> Int[Array, " num"]:
    """Indices that hold each particle `num * weight` times, rounded up or down."""
    positions = (jnp.arange(num) + jax.random.uniform(key, (), weight.dtype)) / num
    total = jnp.cumsum(weight)
    return jnp.minimum(jnp.searchsorted(total / total[-1], positions, side="right"), len(weight) - 1)


def _ancestors(key: Array, log_weight: Array) -> tuple[Array, Array]:
    """Drawn anew where too few particles count; else everyone is its own."""
    num, weight = len(log_weight), jnp.exp(log_weight)
    again = jnp.sum(weight**2) * num * _RESAMPLE > 1.0
    ancestors = jnp.where(again, systematic(key, weight, num), jnp.arange(num))
    return ancestors, jnp.where(again, -jnp.log(1.0 * num), log_weight)


def _readable(state: SVMCState, s: Array, of: Conditioned) -> Array:
    """What the network sees of a particle: where it comes from, and what the sample says; in no unit."""
    mean, variance = state.spread
    dx = len(mean)
    origin = (s[:, :dx] - mean) / jnp.sqrt(variance)
    control = (s[:, dx:] - state.basis.shift[dx:]) / state.basis.scale[dx:]
    return jnp.clip(jnp.concatenate([origin, control, of.score], axis=1), -5.0, 5.0)


def _proposal(network: MLP, read: Array) -> tuple[Array, Array]:
    """How far the proposal is moved, and the logarithm of its stretch."""
    shift, stretch = jnp.split(jnp.tanh(network(read)), 2, axis=1)
    return _FARTHEST * shift, _WIDEST * stretch


def _propose(network: MLP, read: Array, of: Conditioned, eps: Array) -> tuple[Array, Array]:
    """Draws of x_t, and the same in coordinates in which the linearised posterior is N(0, I)."""
    shift, stretch = _proposal(network, read)
    z = shift + jnp.exp(stretch) * eps

    def one(centre: Array, chol: Array, z: Array) -> Array:
        return centre + solve_lower_transposed(chol, z[:, None])[:, 0]

    return jax.vmap(one)(of.centre, of.chol, z), z


def _log_proposal(network: MLP, read: Array, z: Array) -> Array:
    """Log-density of z, relative to N(0, I) at its centre."""
    shift, stretch = _proposal(network, read)
    return jnp.sum(-0.5 * ((z - shift) / jnp.exp(stretch)) ** 2 - stretch, axis=1)


def _regress(
    particles: Particles,
    ancestors: Array,
    origin: Moved,
    new: Float[Array, "n k"],
    prior: Float[Array, "k f f"],
    counts: Counts,
) -> tuple[Float[Array, "n k f"], Float[Array, "n k f f"]]:
    """Condition W on the step that the particle has taken. Cost O(N k F^2), in one pass over the covariances."""
    share = jnp.where(counts.seen, 1.0 / origin.variance, 0.0)
    mean = particles.mean[ancestors] + origin.gain * (share * (new - origin.mean))[..., None]
    pace = jnp.where(counts.seen, jnp.where(counts.jump > 0, _CHANGED, _DIFFUSION), 0.0)
    scaled = origin.gain * jnp.sqrt(share)[..., None]
    return mean, particles.cov[ancestors] - scaled[..., :, None] * scaled[..., None, :] + pace * prior


def _prior(state: SVMCState, basis: Basis, kernel: RBF) -> Float[Array, "k f f"]:
    """Covariance of every row of W before anything was learned."""
    gram = kernel(basis.inducing_inputs, basis.inducing_inputs) * basis.used[:, None] * basis.used
    linear = _LINEAR**2 * jnp.eye(len(basis.scale) + 1, dtype=gram.dtype)

    def row(amplitude: Array, unit: Array) -> Array:
        return jax.scipy.linalg.block_diag(amplitude * gram, unit * linear)

    return jax.vmap(row)(jnp.exp(state.learned.kernel.amplitude), state.unit)


def _tiled(new: Float[Array, "n k"], dx: int) -> Float[Array, "n dx"]:
    return jnp.tile(new, (1, -(-dx // new.shape[1])))[:, :dx]


def _place(state: SVMCState, kernel: RBF, amplitude: Array, u: Array) -> tuple[Particles, Basis, Whitening]:
    """A new inducing input where the stream is now, if the others do not explain f there."""
    particles, basis = state.particles, state.basis
    weight = jax.nn.softmax(particles.log_weight)
    x = weight @ particles.x
    here = jnp.concatenate([x, u])
    whitening = augmented.whiten(basis, kernel)
    k = kernel(here[None], basis.inducing_inputs)[0] * basis.used
    novelty = 1.0 - k @ whitening.inverse @ k
    # Conditional variance of each given the others; a free slot goes first.
    worth = jnp.where(basis.used > 0, 1.0 / jnp.diagonal(whitening.inverse), 0.0)
    slot = jnp.argmin(worth)
    enough = jnp.clip(_WORTH * jnp.min(jnp.exp(state.learned.noise.process) / amplitude), *_NOVEL)
    # Not where the state is only guessed, as in the middle of a long gap.
    known = weight @ (particles.x - x) ** 2 < jnp.exp(2 * state.learned.kernel.lengthscale[: len(x)])

    def insert(_: None) -> tuple[Particles, Basis, Whitening]:
        mean, cov = _insert(particles, basis, kernel, amplitude, slot, here)
        inputs, used = basis.inducing_inputs.at[slot].set(here), basis.used.at[slot].set(1.0)
        wider = basis._replace(inducing_inputs=inputs, used=used)
        return particles._replace(mean=mean, cov=cov), wider, augmented.whiten(wider, kernel)

    wanted = (novelty > enough) & (novelty > 2.0 * worth[slot]) & jnp.all(known) & jnp.all(state.loose == 0)
    return jax.lax.cond(wanted, insert, lambda _: (particles, basis, whitening), None)


def _insert(
    particles: Particles, basis: Basis, kernel: RBF, amplitude: Array, slot: Array, s: Array
) -> tuple[Float[Array, "n k f"], Float[Array, "n k f f"]]:
    """Every row of W with the inducing input `s` in a slot: the old u is marginalised, the new one joins with its
    conditional prior given the others, as in `joint.insert`.
    """
    num, mean, cov = len(basis.used), particles.mean, particles.cov
    others = basis._replace(used=basis.used.at[slot].set(0.0))
    k = kernel(s[None], basis.inducing_inputs)[0] * others.used
    phi = augmented.whiten(others, kernel).inverse @ k
    jitter = jitter_for(phi.dtype)
    cross = jnp.einsum("f,nkfg->nkg", phi, cov[:, :, :num])
    corner = cross[..., :num] @ phi + amplitude * jnp.maximum(1.0 + jitter - phi @ k, jitter)
    cov = cov.at[..., slot, :].set(cross).at[..., slot].set(cross).at[..., slot, slot].set(corner)
    return mean.at[..., slot].set(mean[..., :num] @ phi), cov


# --- what has no closed form ----------------------------------------------------------------


def _push(function: Callable[[Moved, Array], Array], moved: Moved, log_obs_noise: Array) -> Array:
    """Derivatives (n, p, ...) in log Q and log R of what a function makes of predictions and of log R."""
    dy = len(log_obs_noise)

    def of(mean: Array, variance: Array, log_obs_noise: Array) -> Array:
        return function(moved._replace(mean=mean, variance=variance), log_obs_noise)

    def along(mean: Array, variance: Array, own: Array) -> Array:
        return jax.jvp(of, (moved.mean, moved.variance, log_obs_noise), (mean, variance, own))[1]

    own = jnp.eye(moved.mean_slope.shape[1], dtype=log_obs_noise.dtype)[:, -dy:]
    return jax.vmap(along, in_axes=(1, 1, 0), out_axes=1)(moved.mean_slope, moved.variance_slope, own)


def _noise_gradient(
    state: SVMCState, particles: Particles, moved: Moved, y: Array, counts: Array
) -> tuple[NoiseParameters, Float[Array, "n p"]]:
    """Gradient of log sum_i w_i p(y_t | particle i) in log Q and log R, through the past; and of log w_i."""

    def density(moved: Moved, log_obs_noise: Array) -> Array:
        return _condition(state, moved, log_obs_noise, y).log_density

    at = density(moved, state.learned.noise.obs)
    own = _push(density, moved, state.learned.noise.obs)
    before = jax.nn.softmax(particles.log_weight)
    after = jax.nn.softmax(particles.log_weight + at)
    slope = after @ (particles.weight_slope + own) - before @ particles.weight_slope
    process, obs = jnp.split(slope, [len(state.unit)])
    if not state.learn_obs_noise:
        obs = jnp.zeros_like(obs)
    return NoiseParameters(process, obs), particles.weight_slope + jnp.where(counts, own, 0.0)


def _kernel_gradient(
    state: SVMCState, particles: Particles, basis: Basis, moved: Moved, y: Array, u: Array
) -> KernelParameters:
    """Gradient of log sum_i w_i p(y_t | particle i) + E[log p(u)] / t, with the past as it is."""
    num, weight = len(basis.used), jax.nn.softmax(particles.log_weight)
    mean, cov = particles.mean[..., :num], particles.cov[..., :num, :num]
    moment = jnp.einsum("n,nkf,nkg->kfg", weight, mean, mean) + jnp.einsum("n,nkfg->kfg", weight, cov)
    s = with_inputs(particles.x, u)

    def bound(kernel: KernelParameters) -> Array:
        amplitude, correlations = jnp.exp(kernel.amplitude), _correlations(kernel)
        whitening = augmented.whiten(basis, correlations)
        h, open_share = augmented.features(basis, correlations, whitening, s)
        change = h - moved.features
        open_variance = open_share[:, None] * amplitude
        means = moved.mean + jnp.einsum("nkf,nf->nk", particles.mean, change)
        # Only the slope counts: the covariance need not be read again.
        variances = moved.variance + 2 * jnp.einsum("nkf,nf->nk", moved.gain, change)
        variances = variances + open_variance - jax.lax.stop_gradient(open_variance)
        there = _condition(state, moved._replace(mean=means, variance=variances), state.learned.noise.obs, y)
        fit = jax.nn.logsumexp(particles.log_weight + there.log_density)
        log_det = 2 * jnp.sum(basis.used * jnp.log(jnp.diagonal(whitening.chol)))
        surprise = jnp.sum(moment * whitening.inverse, axis=(1, 2)) / amplitude
        prior = -0.5 * jnp.sum(surprise + log_det + jnp.sum(basis.used) * kernel.amplitude)
        return fit + prior / (state.count + 10.0)

    return jax.grad(bound)(state.learned.kernel)


def _learn(
    state: SVMCState, gradient: NoiseParameters, proposal: MLP, kernel: Callable[[], KernelParameters], counts: Counts
) -> tuple[Adapted, tuple[Adapted, Adapted]]:
    """A step of Adam for everything. The kernel's gradient, which is costly, is taken now and then.

    A jump widens Q at once: the units of the first samples may be too small.
    """
    (first, second), learned, count = state.adam, state.learned, state.count

    def kernel_step(_: None) -> Any:
        moments, rates = (first.kernel, second.kernel), KernelParameters(*map(jnp.asarray, _KERNEL_RATES))
        return _adam(learned.kernel, kernel(), moments, count / _KERNEL_EVERY, rates, counts.usual)

    def wait(_: None) -> Any:
        return learned.kernel, (first.kernel, second.kernel)

    noise_rates = jax.tree.map(lambda _: _NOISE_RATE, learned.noise)
    proposal_rates = jax.tree.map(lambda _: _PROPOSAL_RATE, learned.proposal)
    steps = (
        jax.lax.cond(count % _KERNEL_EVERY == 0, kernel_step, wait, None),
        _adam(learned.noise, gradient, (first.noise, second.noise), count, noise_rates, counts.usual),
        _adam(
            learned.proposal,
            proposal,
            (first.proposal, second.proposal),
            count,
            proposal_rates,
            counts.usual,
            _PROPOSAL_SMALL,
        ),
    )
    values, moments = zip(*steps, strict=True)
    moved = Adapted(*values)
    moved = moved._replace(noise=moved.noise._replace(process=moved.noise.process + counts.jump))
    return moved, (Adapted(*(m for m, _ in moments)), Adapted(*(v for _, v in moments)))


def _adam(
    value: Any, gradient: Any, moments: tuple[Any, Any], count: Array, rates: Any, counts: Array, small: float = _SMALL
) -> Any:
    """One step uphill, where a sample has something to say."""
    active, clock = jnp.where(counts, 1.0, 0.0), jnp.floor(count) + 1.0
    decay = active * (1.0 + count / _HALF) ** -0.5
    # Clipped: one outlier must not count for hundreds of samples, but many must be able to raise the noise.
    gradient = jax.tree.map(lambda g: jnp.clip(jnp.where(jnp.isfinite(g), g, 0.0), -_CLIP, _CLIP), gradient)
    first = jax.tree.map(lambda m, g: m + active * (1 - _BETA1) * (g - m), moments[0], gradient)
    second = jax.tree.map(lambda v, g: v + active * (1 - _BETA2) * (g * g - v), moments[1], gradient)

    def moved(x: Array, m: Array, v: Array, rate: Array | float) -> Array:
        return x + decay * rate * m / (1 - _BETA1**clock) / (jnp.sqrt(v / (1 - _BETA2**clock)) + small)

    return jax.tree.map(moved, value, first, second, rates), (first, second)


def _running_spread(state: SVMCState, x: Array, counts: Array) -> tuple[Array, Array]:
    """Mean and variance of the states so far; an outlier moves them by ten standard deviations at most."""
    mean, variance = state.spread
    share = jnp.where(counts, 1.0 / (state.count + 10.0), 0.0)
    deviation = jnp.clip(x - mean, -10 * jnp.sqrt(variance), 10 * jnp.sqrt(variance))
    return mean + share * deviation, (1 - share) * (variance + share * deviation**2)


def _bounded(state: SVMCState, learned: Adapted, variance: Array) -> Adapted:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity."""
    kernel, noise, step_size, scale = learned.kernel, learned.noise, jnp.log(state.unit), jnp.log(state.basis.scale)
    dx, obs_size = len(variance), jnp.log(state.obs_unit)
    span = jnp.concatenate([jnp.maximum(0.5 * jnp.log(variance), scale[:dx]), scale[dx:]])
    # The first samples may have been at rest.
    size = jnp.maximum(step_size, jnp.log(variance[: len(step_size)]))
    kernel = KernelParameters(
        jnp.clip(kernel.lengthscale, span - 1.5, span + 3.0), jnp.clip(kernel.amplitude, step_size - 10.0, size + 5.0)
    )
    noise = NoiseParameters(
        jnp.clip(noise.process, step_size - 12.0, size + 2.0),
        jnp.clip(noise.obs, obs_size - 12.0, obs_size + 10.0),
    )
    return Adapted(kernel, noise, learned.proposal)
