"""VJF, variational joint filtering (Zhao and Park 2020): one network recognises the state, another moves it.

    x_t = x_{t-1} + W phi(x_{t-1}, c_t) + B c_t + v_t,    y_t = g(x_t) + e_t,    q(x_t) = N(mean, diag)

One step of Adam per sample on the filtering bound

    E_q(x_t)[ log p(y_t | x_t) ]  -  KL[ q(x_t) || p(x_t | y_{1:t-1}) ]

for recognition network, noises, centres and widths together; W and B in closed form by recursive
least squares, as in the authors' released code. Where paper and code leave a choice:

- p(x_t | y_{1:t-1}) is the Gaussian with the moments of q(x_{t-1}) sent through f: tighter than the
  paper's average over q(x_{t-1}), equal to log p(y_t | y_{1:t-1}) if q is exact, and Q is not inflated;
- the network reads y_t as its difference from the prediction, and tells what y_t says of x_t as a
  Gaussian factor (Lambda, eta); q(x_t) is its product with the prediction. A missing sample then is
  a prediction. It starts as the least-squares inverse of the emission;
- least squares weighs a sample by what the network knows of it, so that a state which was only
  predicted does not confirm W;
- phi is normalised, so that a weight is the step near its centre; centres are placed where the
  stream goes, closest ones make room when there are none left and widths grow, and both are learned;
- no linear term A x: forecasts explode.
"""

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.filters.augmented import stay, with_past
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.numerics.linalg import cholesky, gaussian_log_density, solve_lower
from gpssm.numerics.networks import MLP
from gpssm.online.base import OnlineStateSpace
from gpssm.online.stream import Info
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance, NonNegative, Positive

NDArray = np.ndarray

# Adam: noise variances must travel far, centres and widths change f everywhere.
_RATE = {"recognition": 0.003, "process_noise": 0.06, "obs_noise": 0.06, "centres": 0.003, "log_width": 0.01}
_BETA1, _BETA2 = 0.9, 0.99
_CLIP = 5.0
_HALF = 1000.0  # samples after which the rates fall like one over the root of their number
_SLOWEST = 0.2  # share of their first rate that those of the noises fall to
_WIDTH = 0.25  # of a basis function at first, in spreads of the warm-up
_NOVEL = 1.0  # distance in widths from which on a place deserves a centre of its own
_NOVEL_AT_FIRST = 0.5  # the same while there are some left
_WIDER = 0.012  # growth of the widths when a centre had to make room, for each dimension: more of them are emptier
_AMPLITUDE = 2.0  # prior standard deviation of W, in steps of the state
_FOLLOW = 0.05  # where R cannot be told from Q yet, the state follows the outputs: share of the guess to start with
_FORGET = 1e-4  # share of the prior that comes back with every sample
_MOST = 5.0  # standard deviations by which a sample may contradict the prediction
_BEYOND = 1.0  # spreads of the warm-up around all centres: no forecast goes farther
_OUTLIER = 16.0  # squared innovation per channel; beyond it a sample is trusted less
_BELIEVED = 3  # outliers in a row: then it is the system that has changed
_RAISED = 2.0  # and process noise may grow by this (logarithm) at once


@saved
class Recognition(eqx.Module):
    """What a sample says of the state: a factor exp(eta x - Lambda x^2 / 2) per dimension, about the prediction."""

    network: MLP
    gain: Float[Array, "k dy"]
    """Linear path from the innovation to the displacement."""
    log_precision: Float[Array, " k"]


@saved
class Learned(NamedTuple):
    """What is learned by gradient."""

    recognition: Recognition
    process_noise: Float[Array, " k"]  # logarithms, as the next
    obs_noise: Float[Array, " dy"]
    centres: Float[Array, "m d"]
    log_width: Float[Array, " d"]


@saved
class Weights(NamedTuple):
    """q(W, B): one Gaussian for each of the k states that are learned, over num_inducing + dc features."""

    mean: Float[Array, "k m+d-dx"]
    cov: Covariance[Float[Array, "k m+d-dx m+d-dx"]]


@saved
class Scales(NamedTuple):
    """Units of the warm-up; inside, states and inputs are standardised by them."""

    shift: Float[Array, " d"]
    scale: Positive[Float[Array, " d"]]
    step: Positive[Float[Array, " k"]]  # size of one step of the (standardised) state
    output: Positive[Float[Array, " dy"]]  # of an innovation
    site: Positive[Float[Array, " k"]]  # of the displacement that it causes


@saved
class VJFState(eqx.Module):
    """All that is carried from one sample to the next."""

    mean: Float[Array, " dx"]
    var: NonNegative[Float[Array, " dx"]]
    weights: Weights
    used: NonNegative[Float[Array, " m"]]
    learned: Learned
    adam: tuple[Float[Array, " p"], NonNegative[Float[Array, " p"]]]
    """Moments of the gradient of `learned`, as one vector."""
    count: NonNegative[Float[Array, ""]]
    rejected: NonNegative[Float[Array, ""]]
    scales: Scales
    emission: LinearEmission | FunctionEmission
    learn_obs_noise: bool = eqx.field(static=True)

    def check_fields(self) -> None:
        """Refuse a network of a file that does not fit the rest, and moments of other parameters."""
        d, k, dy = len(self.scales.scale), len(self.scales.step), len(self.scales.output)
        self.learned.recognition.network.check_ends(dy + d + k, 2 * k)
        count = sum(np.size(leaf) for leaf in jax.tree.leaves(self.learned))
        if len(self.adam[0]) != count:
            raise InvalidInput(f"adam: moments of {len(self.adam[0])} parameters; expected {count}.")


class Prediction(NamedTuple):
    """Of the state and of the sample, before it is seen."""

    features: Float[Array, " f"]
    mean: Float[Array, " dx"]
    known: Float[Array, "dx dx"]  # covariance if W were known
    cov: Float[Array, "dx dx"]
    output: Float[Array, " dy"]
    output_cov: Float[Array, "dy dy"]  # without R


class Site(NamedTuple):
    """What the network has recognised."""

    precision: Float[Array, " k"]
    pull: Float[Array, " k"]


@saved
@dataclass(frozen=True)
class VJF(OnlineStateSpace):
    """Variational joint filtering. `VJF(state_dim).start()` is ready to learn.

    Args, besides those of `OnlineStateSpace`:
        num_inducing: number of radial basis functions, shared by all state dimensions.
        hidden: width of the recognition network.
    """

    num_inducing: int = 40
    _: KW_ONLY
    hidden: int = 20
    name: str = "VJF"

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        return (("num_inducing", 1), ("hidden", 1))

    def begin(self, outputs: NDArray, inputs: NDArray) -> VJFState:
        """Nothing but the units of the first samples is known."""
        units = self.units(outputs, inputs)
        dx, dy, dc = self.state_dim, outputs.shape[1], inputs.shape[1]
        k, num, d = len(units.steps), self.num_inducing, dx + dc
        step = np.sqrt(units.steps) / units.scale[:k]
        # The network starts as the least-squares inverse of the emission, from innovations in standard deviations.
        slope = units.emission.matrix
        if slope is None:
            slope = jax.jacobian(lambda x: units.emission(x[None])[0])(jnp.asarray(units.shift[:dx]))
        output = np.sqrt(units.obs_noise)
        gain = (np.linalg.pinv(np.asarray(slope)) * output)[:k] / units.scale[:k, None]
        site = np.linalg.norm(gain, axis=1)
        shown = site > 1e-6 * np.max(site)
        site = np.where(shown, site, step)
        # A state that no output shows starts as a weak memory of innovations, as a velocity would.
        gain = np.where(shown[:, None], gain / site[:, None], dy**-0.5)
        network = MLP.start(jax.random.key(0), (dy + dx + k + dc, self.hidden, 2 * k), last=0.1)
        learned = Learned(
            Recognition(jax.tree.map(jnp.asarray, network), jnp.asarray(gain), jnp.where(shown, 0.0, -2.0)),
            jnp.log(0.25 * step**2),
            jnp.log(units.obs_noise * (_FOLLOW if self.obs_noise is None and dy <= k else 1.0)),
            jnp.zeros((num, d)),
            jnp.full(d, np.log(_WIDTH)),
        )
        still = jnp.zeros_like(ravel_pytree(learned)[0])
        scales = Scales(*(jnp.asarray(part) for part in (units.shift, units.scale, step, output, site)))
        return VJFState(
            mean=jnp.zeros(dx),
            # Where the state was before the first sample is not known; one that no output shows may start anywhere.
            var=jnp.where(shown, 100.0, 1.0)[np.arange(dx) % k],
            weights=Weights(jnp.zeros((k, num + dc)), _prior(scales.step, num + dc)),
            used=jnp.zeros(num),
            learned=learned,
            adam=(still, still),
            count=jnp.zeros(()),
            rejected=jnp.zeros(()),
            scales=scales,
            emission=jax.tree.map(jnp.asarray, units.emission),
            learn_obs_noise=self.obs_noise is None,
        )

    @staticmethod
    def step(key: Array, state: VJFState, y: Array, u: Array) -> tuple[VJFState, Info]:
        """One sample. Deterministic: moments are taken by cubature, `key` is not used."""
        dx = len(state.mean)
        scales = state.scales
        c = (u - scales.shift[dx:]) / scales.scale[dx:]
        state = place(state, c)
        seen = ~jnp.isnan(y)
        predicted = predict(state, state.learned, c)
        score, distance = _score(predicted, jnp.exp(state.learned.obs_noise), y)

        # An outlier is trusted less, the more so the farther out it is. After some in a row it is the state that
        # has jumped: it may go where it likes, and f is not blamed.
        excess = jnp.maximum(distance / jnp.maximum(jnp.sum(seen), 1) / _OUTLIER, 1.0)
        outlier = (excess > 1.0) & (state.rejected < _BELIEVED)
        jump = (excess > 1.0) & ~outlier
        free = predicted._replace(cov=predicted.cov * jnp.where(jump, excess**2, 1.0))
        site = recognise(state, state.learned, free, y, c)
        trusted = Site(*(part / jnp.where(outlier, excess**2, 1.0) for part in site))
        mean, var = product(free.mean, free.cov, trusted)
        weights = least_squares(state.weights, predicted, site)
        regular = jnp.any(seen) & (excess == 1.0)
        prior = _prior(scales.step, weights.mean.shape[1])
        weights = weights._replace(cov=weights.cov + _FORGET * (prior - weights.cov))
        weights = jax.tree.map(lambda new, old: jnp.where(regular, new, old), weights, state.weights)

        gradient = jax.grad(lambda learned: bound(state, learned, y, c))(state.learned)
        learned, adam = _climb(state, gradient, jnp.any(seen), excess == 1.0)
        # Where the system has changed, f is wrong: what is wrong with it is noise until it is learned.
        raised = learned.process_noise + jnp.where(jump, jnp.minimum(jnp.log(excess), _RAISED), 0.0)
        learned = _bounded(state, learned._replace(process_noise=raised))
        new = eqx.tree_at(
            lambda s: (s.mean, s.var, s.weights, s.learned, s.adam, s.count, s.rejected),
            state,
            (
                mean,
                var,
                weights,
                learned,
                adam,
                state.count + jnp.where(jnp.any(seen), 1.0, 0.0),
                jnp.where(outlier, state.rejected + 1.0, jnp.where(jnp.any(seen), 0.0, state.rejected)),
            ),
        )
        output_var = jnp.diagonal(predicted.output_cov) + jnp.exp(state.learned.obs_noise)
        scale = scales.scale[:dx]
        info = Info(
            scales.shift[:dx] + scale * mean, jnp.diag(scale**2 * var), predicted.output, jnp.sqrt(output_var), score
        )
        return new, info

    @staticmethod
    def paths(key: Array, state: VJFState, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """Each path has its own draw of the state and of W."""
        dx, k, dtype, scales = len(state.mean), len(state.scales.step), inputs.dtype, state.scales
        key_start, key_w, key_x, key_y, key_stay = jax.random.split(key, 5)
        values, vectors = jnp.linalg.eigh(state.weights.cov)
        factor = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[:, None, :]
        eps = jax.random.normal(key_w, (num_paths, *state.weights.mean.shape), dtype)
        weights = state.weights.mean + jnp.einsum("dfg,ndg->ndf", factor, eps)
        start = state.mean + jnp.sqrt(state.var) * jax.random.normal(key_start, (num_paths, dx), dtype)
        std = jnp.exp(0.5 * state.learned.process_noise)
        # Beyond all centres f is a constant step for ever: paths stay where the stream has been.
        used, centres = state.used[:, None] > 0, state.learned.centres[:, :k]
        low = jnp.minimum(jnp.min(jnp.where(used, centres, jnp.inf), axis=0), state.mean[:k]) - _BEYOND
        high = jnp.maximum(jnp.max(jnp.where(used, centres, -jnp.inf), axis=0), state.mean[:k]) + _BEYOND
        low, high = (edge[np.arange(dx) % k] for edge in (low, high))  # of centres, the past is in differences

        def body(x: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            c, own = now
            x = jnp.clip(x, low, high)
            h = _features(state, state.learned, x, c)
            new = x[:, :k] + jnp.einsum("nf,ndf->nd", h, weights) + std * jax.random.normal(own, (num_paths, k), dtype)
            x = with_past(new, x)
            return x, x

        c = (inputs - scales.shift[dx:]) / scales.scale[dx:]
        _, states = jax.lax.scan(body, start, (c, jax.random.split(key_x, len(inputs))))
        states = states[:, stay(key_stay, states, low, high)]
        states = jnp.swapaxes(scales.shift[:dx] + scales.scale[:dx] * states, 0, 1)
        clean = jax.vmap(state.emission)(states)
        obs_std = jnp.exp(0.5 * state.learned.obs_noise)
        return states, clean + obs_std * jax.random.normal(key_y, clean.shape, dtype)

    @staticmethod
    def transition(state: VJFState, x: Array) -> tuple[Array, Array]:
        """f with W integrated out."""
        dx, k, scales = len(state.mean), len(state.scales.step), state.scales
        z = (x - scales.shift) / scales.scale
        h = jax.vmap(lambda row: _features(state, state.learned, row[None, :dx], row[dx:])[0])(z)
        mean = with_past(x[:, :k] + scales.scale[:k] * (h @ state.weights.mean.T), x[:, :dx])
        var = scales.scale[:k] ** 2 * jnp.einsum("nf,dfg,ng->nd", h, state.weights.cov, h)
        return mean, jnp.pad(var, ((0, 0), (0, dx - k)))

    @staticmethod
    def process_noise(state: VJFState) -> Array:
        """As learned so far; the past has none."""
        k = len(state.scales.step)
        return jnp.pad(state.scales.scale[:k] ** 2 * jnp.exp(state.learned.process_noise), (0, len(state.mean) - k))


def predict(state: VJFState, learned: Learned, c: Float[Array, " dc"]) -> Prediction:
    """Moments of x_t and y_t before y_t is seen: q(x_{t-1}) through f, and the result through g, by cubature."""
    dx, k = len(state.mean), len(state.scales.step)
    points = state.mean + _cubature(dx) * jnp.sqrt(state.var)
    h = _features(state, learned, points, c)
    moved = with_past(points[:, :k] + h @ state.weights.mean.T, points)
    features, mean = jnp.mean(h, axis=0), jnp.mean(moved, axis=0)
    spread = (moved - mean).T @ (moved - mean) / len(moved)
    # The past is as uncertain as it was; what rounding may leave of that is not to be factorised.
    known = spread + jnp.diag(jnp.pad(jnp.exp(learned.process_noise), (0, dx - k)) + 1e-9 * jnp.diagonal(spread))
    unknown = jnp.mean(jnp.einsum("nf,dfg,ng->nd", h, state.weights.cov, h), axis=0)
    cov = known + jnp.diag(jnp.pad(unknown, (0, dx - k)))
    outputs = _emit(state, mean + _cubature(dx) @ cholesky(cov).T)
    output = jnp.mean(outputs, axis=0)
    return Prediction(features, mean, known, cov, output, (outputs - output).T @ (outputs - output) / len(outputs))


def recognise(
    state: VJFState, learned: Learned, predicted: Prediction, y: Float[Array, " dy"], c: Float[Array, " dc"]
) -> Site:
    """The network. A missing channel is filled by its prediction, and its share of the precision is left out."""
    net, scales = learned.recognition, state.scales
    seen = ~jnp.isnan(y)
    innovation = jnp.where(seen, y - predicted.output, 0.0)
    std = jnp.sqrt(jnp.diagonal(predicted.output_cov) + jnp.exp(learned.obs_noise))
    # A network is not asked about numbers it has never seen.
    read = jnp.concatenate([jnp.clip(innovation / std, -5.0, 5.0), jnp.clip(predicted.mean, -10.0, 10.0)])
    variance = jnp.diagonal(predicted.cov)[: len(scales.step)]
    spread = jnp.clip(0.5 * jnp.log(variance) - jnp.log(scales.step), -5.0, 5.0)
    told = net.network(jnp.concatenate([read, spread, jnp.clip(c, -10.0, 10.0)]))
    shift, log_factor = jnp.split(told, 2)
    noise = jnp.exp(learned.obs_noise) / scales.output**2
    # The noise that the linear path lets through is the unit of the precision: it follows what is learned of R.
    of_channel = net.gain**2 * noise + 1e-30
    let_through = jnp.sum(of_channel, axis=1)
    share = jnp.sum(jnp.where(seen, of_channel, 0.0), axis=1) / let_through
    precision = jnp.exp(net.log_precision + log_factor) / (let_through * scales.site**2)
    pull = precision * scales.site * (net.gain @ (innovation / scales.output) + share * shift)
    known = share * precision
    # No sample says more than this; behind a curved emission the linear path might.
    most = _MOST * jnp.sqrt(known**2 * variance + known)
    return Site(known, jnp.clip(pull, -most, most))


def product(
    mean: Float[Array, " dx"], cov: Float[Array, "dx dx"], site: Site
) -> tuple[Float[Array, " dx"], Float[Array, " dx"]]:
    """Mean and variances of N(mean, cov) times the site, which says nothing of the past."""
    precision, pull = (jnp.pad(part, (0, len(mean) - len(part))) for part in site)
    # (cov^-1 + Lambda)^-1 without the inverse of either
    after = jnp.linalg.solve(jnp.eye(len(mean), dtype=mean.dtype) + cov * precision, cov)
    return mean + after @ pull, jnp.diagonal(after)


def bound(state: VJFState, learned: Learned, y: Float[Array, " dy"], c: Float[Array, " dc"]) -> Float[Array, ""]:
    """Filtering bound on log p(y_t | y_{1:t-1}): of the states that are new, the past is what it was."""
    predicted = predict(state, learned, c)
    mean, var = product(predicted.mean, predicted.cov, recognise(state, learned, predicted, y, c))
    seen = ~jnp.isnan(y)
    outputs = _emit(state, mean + _cubature(len(mean)) * jnp.sqrt(var))
    error = jnp.mean(jnp.where(seen, y - outputs, 0.0) ** 2, axis=0)
    log_noise = learned.obs_noise
    fit = -0.5 * jnp.sum(jnp.where(seen, error / jnp.exp(log_noise) + log_noise + jnp.log(2 * jnp.pi), 0.0))
    k = len(state.scales.step)
    chol = cholesky(predicted.cov[:k, :k])
    whitened = solve_lower(chol, jnp.column_stack([(mean - predicted.mean)[:k], jnp.diag(jnp.sqrt(var[:k]))]))
    log_ratio = jnp.sum(jnp.log(jnp.diagonal(chol))) - 0.5 * jnp.sum(jnp.log(var[:k]))
    return fit - (0.5 * (jnp.sum(whitened**2) - k) + log_ratio)


def least_squares(weights: Weights, predicted: Prediction, site: Site) -> Weights:
    """q(W) after one more row of the regression of x_t - x_{t-1} on phi, weighted by what was recognised."""
    h = predicted.features
    gain = weights.cov @ h
    # The site sees x_t with variance 1 / Lambda, displaced by eta / Lambda; multiplied by Lambda, which may be zero.
    total = 1.0 + site.precision * (gain @ h + jnp.diagonal(predicted.known)[: len(gain)])
    mean = weights.mean + gain * (site.pull / total)[:, None]
    return Weights(mean, weights.cov - gain[:, :, None] * gain[:, None, :] * (site.precision / total)[:, None, None])


def _prior(step: Array, width: int) -> Array:
    """Covariance of W before anything was seen."""
    return (_AMPLITUDE * step)[:, None, None] ** 2 * jnp.eye(width, dtype=step.dtype)


def _emit(state: VJFState, z: Float[Array, "n dx"]) -> Float[Array, "n dy"]:
    dx = z.shape[1]
    return state.emission(state.scales.shift[:dx] + state.scales.scale[:dx] * z)


def _cubature(dx: int) -> NDArray:
    """Points of the spherical rule for a standard normal, exact up to third order."""
    return np.sqrt(dx) * np.concatenate([np.eye(dx), -np.eye(dx)])


def _features(
    state: VJFState, learned: Learned, x: Float[Array, "n dx"], c: Float[Array, " dc"]
) -> Float[Array, "n f"]:
    """Normalised radial basis functions, and the inputs."""
    inputs = jnp.broadcast_to(c, (len(x), len(c)))
    at = jnp.concatenate([_steps_back(state, x), inputs], axis=1) / jnp.exp(learned.log_width)
    centres = learned.centres / jnp.exp(learned.log_width)
    squares = jnp.sum((at[:, None, :] - centres) ** 2, axis=2)
    phi = jax.nn.softmax(jnp.where(state.used > 0, -0.5 * squares, -jnp.inf), axis=1)
    return jnp.concatenate([phi, inputs], axis=1)


def _steps_back(state: VJFState, x: Float[Array, "n dx"]) -> Float[Array, "n dx"]:
    """The past as differences in steps: as it is, it would hardly tell one place from another."""
    k = len(state.scales.step)
    steps = (x[:, :-k] - x[:, k:]) / jnp.resize(state.scales.step, (x.shape[1] - k,))
    return jnp.concatenate([x[:, :k], steps], axis=1)


def _score(predicted: Prediction, noise: Array, y: Array) -> tuple[Array, Array]:
    """Log-density of what was seen under the prediction, and its squared distance."""
    seen = ~jnp.isnan(y)
    both = seen[:, None] & seen
    chol = cholesky(jnp.where(both, predicted.output_cov + jnp.diag(noise), jnp.eye(len(y), dtype=noise.dtype)))
    whitened = solve_lower(chol, jnp.where(seen, y - predicted.output, 0.0)[:, None])[:, 0]
    return gaussian_log_density(whitened, chol, jnp.sum(seen)), jnp.sum(whitened**2)


def place(state: VJFState, c: Array) -> VJFState:
    """A centre where the stream is now, if there is none nearby."""
    learned, weights, dx = state.learned, state.weights, len(state.mean)
    here = jnp.concatenate([_steps_back(state, state.mean[None])[0], c])
    # In widths, or in what is known of the state if that is less: no place is new in the middle of a long gap.
    k = len(state.scales.step)
    var = jnp.concatenate(
        [state.var[:k], (state.var[:-k] + state.var[k:]) / jnp.resize(state.scales.step, (dx - k,)) ** 2]
    )
    blurred = jnp.exp(2 * learned.log_width) + jnp.concatenate([var, jnp.zeros_like(c)])
    far = jnp.where(state.used > 0, jnp.sum((here - learned.centres) ** 2 / blurred, axis=1), jnp.inf)
    between = jnp.sum((learned.centres[:, None] - learned.centres) ** 2 / blurred, axis=2)
    pairs = (state.used[:, None] * state.used > 0) & ~jnp.eye(len(between), dtype=bool)
    nearest = jnp.min(jnp.where(pairs, between, jnp.inf), axis=1)
    full = jnp.all(state.used > 0)
    slot = jnp.where(full, jnp.argmin(nearest), jnp.argmin(state.used))
    wanted = jnp.min(far) > jnp.where(full, jnp.maximum(_NOVEL**2, nearest[slot]), _NOVEL_AT_FIRST**2)

    one = jnp.arange(weights.mean.shape[1]) == slot
    num = len(state.used)
    h = _features(state, learned, state.mean[None], c)[0, :num]
    value = jnp.where(jnp.any(state.used > 0), jnp.where(jnp.isnan(h), 0.0, h) @ weights.mean[:, :num].T, 0.0)
    prior = _prior(state.scales.step, len(one))
    mean = jnp.where(one & wanted, value[:, None], weights.mean)
    cov = jnp.where((one[:, None] | one) & wanted, prior, weights.cov)
    index = jnp.arange(len(state.used))
    centres = jnp.where(((index == slot) & wanted)[:, None], here, learned.centres)
    log_width = learned.log_width + jnp.where(wanted & full, _WIDER * len(here), 0.0)
    return eqx.tree_at(
        lambda s: (s.weights, s.used, s.learned),
        state,
        (
            Weights(mean, cov),
            jnp.where((index == slot) & wanted, 1.0, state.used),
            learned._replace(centres=centres, log_width=log_width),
        ),
    )


def _climb(state: VJFState, gradient: Learned, learns: Array, regular: Array) -> tuple[Learned, tuple[Array, Array]]:
    """One step of Adam, where a sample has something to say. An outlier speaks of the noises only."""
    later = (1.0 + state.count / _HALF) ** -0.5

    def rate_of(name: str) -> Array:
        if name == "obs_noise" and not state.learn_obs_noise:
            return jnp.zeros(())
        # Noises go on to be learned, at a pace that finds back after a fault. Centres do not: for ever, they run into
        # each other while W follows behind.
        if name.endswith("noise"):
            decay = jnp.maximum(later, _SLOWEST)
        else:
            decay = later**3 if name in ("centres", "log_width") else later
        return jnp.where(learns if name.endswith("noise") else learns & regular, decay * _RATE[name], 0.0)

    values, restore = ravel_pytree(state.learned)
    sizes = [ravel_pytree(part)[0].size for part in state.learned]
    rate = jnp.concatenate([jnp.full(n, rate_of(name)) for name, n in zip(Learned._fields, sizes, strict=True)])
    active = rate > 0
    # Clipped: one outlier must not count for hundreds of samples, but many must be able to raise the noise.
    g = jnp.clip(jnp.nan_to_num(ravel_pytree(gradient)[0]), -_CLIP, _CLIP)
    m, v = state.adam
    m = m + active * (1 - _BETA1) * (g - m)
    v = v + active * (1 - _BETA2) * (g * g - v)
    clock = state.count + 1.0
    direction = m / (1 - _BETA1**clock) / (jnp.sqrt(v / (1 - _BETA2**clock)) + 1e-4)
    return restore(values + rate * direction), (m, v)


def _bounded(state: VJFState, learned: Learned) -> Learned:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity."""
    step, output = 2 * jnp.log(state.scales.step), 2 * jnp.log(state.scales.output)
    return learned._replace(
        process_noise=jnp.clip(learned.process_noise, step - 12.0, step + 4.0),
        obs_noise=jnp.clip(learned.obs_noise, output - 12.0, output + 10.0),
        log_width=jnp.clip(learned.log_width, -3.0, 20.0),
    )
