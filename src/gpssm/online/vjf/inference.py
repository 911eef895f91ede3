"""Inference in VJF: what it carries, predict, recognise, multiply; the bound that all is learned by, and how."""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.filters.augmented import with_past
from gpssm.gp.sparse import standard_normal_kl
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.numerics.linalg import cholesky, gaussian_log_density, solve_lower
from gpssm.numerics.networks import MLP
from gpssm.online.adam import ascend, decay
from gpssm.online.outliers import Verdict
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance, NonNegative, Positive

NDArray = np.ndarray

_PRIOR_STD = 2.0  # of W, in steps of the state
_MOST = 5.0  # standard deviations by which a sample may contradict the prediction
# Adam: noise variances must travel far, centres and widths change f everywhere.
_RATE = {"recognition": 0.003, "process_noise": 0.06, "obs_noise": 0.06, "centres": 0.003, "log_width": 0.01}
_SLOWEST = 0.2  # share of their first rate that those of the noises fall to
_NOVEL = 1.0  # distance in widths from which on a place deserves a centre of its own
_NOVEL_AT_FIRST = 0.5  # the same while there are some left
_WIDER = 0.012  # growth of the widths when a centre had to make room, for each dimension: more of them are emptier


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


def prior(step: Float[Array, " k"], width: int) -> Float[Array, "k f f"]:
    """Covariance of W before anything was seen."""
    return (_PRIOR_STD * step)[:, None, None] ** 2 * jnp.eye(width, dtype=step.dtype)


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


def predict(state: VJFState, learned: Learned, c: Float[Array, " dc"]) -> Prediction:
    """Moments of x_t and y_t before y_t is seen: q(x_{t-1}) through f, and the result through g, by cubature."""
    dx, k = len(state.mean), len(state.scales.step)
    points = state.mean + _cubature(dx) * jnp.sqrt(state.var)
    h = features(state, learned, points, c)
    moved = with_past(points[:, :k] + h @ state.weights.mean.T, points)
    mean = jnp.mean(moved, axis=0)
    spread = (moved - mean).T @ (moved - mean) / len(moved)
    # The past is as uncertain as it was; what rounding may leave of that is not to be factorised.
    known = spread + jnp.diag(jnp.pad(jnp.exp(learned.process_noise), (0, dx - k)) + 1e-9 * jnp.diagonal(spread))
    unknown = jnp.mean(jnp.einsum("nf,dfg,ng->nd", h, state.weights.cov, h), axis=0)
    cov = known + jnp.diag(jnp.pad(unknown, (0, dx - k)))
    outputs = emit(state, mean + _cubature(dx) @ cholesky(cov).T)
    output = jnp.mean(outputs, axis=0)
    output_cov = (outputs - output).T @ (outputs - output) / len(outputs)
    return Prediction(jnp.mean(h, axis=0), mean, known, cov, output, output_cov)


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
    shift, log_factor = jnp.split(net.network(jnp.concatenate([read, spread, jnp.clip(c, -10.0, 10.0)])), 2)
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
    outputs = emit(state, mean + _cubature(len(mean)) * jnp.sqrt(var))
    error = jnp.mean(jnp.where(seen, y - outputs, 0.0) ** 2, axis=0)
    log_noise = learned.obs_noise
    fit = -0.5 * jnp.sum(jnp.where(seen, error / jnp.exp(log_noise) + log_noise + jnp.log(2 * jnp.pi), 0.0))
    k = len(state.scales.step)
    whitened = solve_lower(
        cholesky(predicted.cov[:k, :k]), jnp.column_stack([(mean - predicted.mean)[:k], jnp.diag(jnp.sqrt(var[:k]))])
    )
    return fit - standard_normal_kl(whitened[:, 0], whitened[:, 1:])


def least_squares(weights: Weights, predicted: Prediction, site: Site) -> Weights:
    """q(W) after one more row of the regression of x_t - x_{t-1} on phi, weighted by what was recognised."""
    h = predicted.features
    gain = weights.cov @ h
    # The site sees x_t with variance 1 / Lambda, displaced by eta / Lambda; multiplied by Lambda, which may be zero.
    total = 1.0 + site.precision * (gain @ h + jnp.diagonal(predicted.known)[: len(gain)])
    mean = weights.mean + gain * (site.pull / total)[:, None]
    return Weights(mean, weights.cov - gain[:, :, None] * gain[:, None, :] * (site.precision / total)[:, None, None])


def log_score(predicted: Prediction, noise: Array, y: Array) -> tuple[Array, Array]:
    """Log-density of what was seen under the prediction, and its squared distance."""
    seen = ~jnp.isnan(y)
    both = seen[:, None] & seen
    chol = cholesky(jnp.where(both, predicted.output_cov + jnp.diag(noise), jnp.eye(len(y), dtype=noise.dtype)))
    whitened = solve_lower(chol, jnp.where(seen, y - predicted.output, 0.0)[:, None])[:, 0]
    return gaussian_log_density(whitened, chol, jnp.sum(seen)), jnp.sum(whitened**2)


def features(state: VJFState, learned: Learned, x: Float[Array, "n dx"], c: Float[Array, " dc"]) -> Float[Array, "n f"]:
    """Normalised radial basis functions, and the inputs."""
    inputs = jnp.broadcast_to(c, (len(x), len(c)))
    at = jnp.concatenate([steps_back(state, x), inputs], axis=1) / jnp.exp(learned.log_width)
    centres = learned.centres / jnp.exp(learned.log_width)
    squares = jnp.sum((at[:, None, :] - centres) ** 2, axis=2)
    phi = jax.nn.softmax(jnp.where(state.used > 0, -0.5 * squares, -jnp.inf), axis=1)
    return jnp.concatenate([phi, inputs], axis=1)


def steps_back(state: VJFState, x: Float[Array, "n dx"]) -> Float[Array, "n dx"]:
    """The past as differences in steps: as it is, it would hardly tell one place from another."""
    k = len(state.scales.step)
    steps = (x[:, :-k] - x[:, k:]) / jnp.resize(state.scales.step, (x.shape[1] - k,))
    return jnp.concatenate([x[:, :k], steps], axis=1)


def emit(state: VJFState, z: Float[Array, "n dx"]) -> Float[Array, "n dy"]:
    """Outputs of standardised states, without noise."""
    dx = z.shape[1]
    return state.emission(state.scales.shift[:dx] + state.scales.scale[:dx] * z)


def place(state: VJFState, c: Array) -> VJFState:
    """A centre where the stream is now, if there is none nearby."""
    learned, weights, dx = state.learned, state.weights, len(state.mean)
    here = jnp.concatenate([steps_back(state, state.mean[None])[0], c])
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
    h = features(state, learned, state.mean[None], c)[0, :num]
    value = jnp.where(jnp.any(state.used > 0), jnp.where(jnp.isnan(h), 0.0, h) @ weights.mean[:, :num].T, 0.0)
    before = prior(state.scales.step, len(one))
    mean = jnp.where(one & wanted, value[:, None], weights.mean)
    cov = jnp.where((one[:, None] | one) & wanted, before, weights.cov)
    index = jnp.arange(len(state.used))
    centres = jnp.where(((index == slot) & wanted)[:, None], here, learned.centres)
    log_width = learned.log_width + jnp.where(wanted & full, _WIDER * len(here), 0.0)
    return replace(
        state,
        weights=Weights(mean, cov),
        used=jnp.where((index == slot) & wanted, 1.0, state.used),
        learned=learned._replace(centres=centres, log_width=log_width),
    )


def climb(
    state: VJFState, gradient: Learned, verdict: Verdict
) -> tuple[Learned, tuple[Float[Array, " p"], Float[Array, " p"]]]:
    """One step of Adam, where a sample has something to say. An outlier speaks of the noises only."""
    later = decay(state.count)

    def rate_of(name: str) -> Array:
        if name == "obs_noise" and not state.learn_obs_noise:
            return jnp.zeros(())
        # Noises go on to be learned, at a pace that finds back after a fault. Centres do not: for ever, they run into
        # each other while W follows behind.
        if name.endswith("noise"):
            pace = jnp.maximum(later, _SLOWEST)
        else:
            pace = later**3 if name in ("centres", "log_width") else later
        return jnp.where(verdict.seen if name.endswith("noise") else verdict.usual, pace * _RATE[name], 0.0)

    values, restore = ravel_pytree(state.learned)
    sizes = [ravel_pytree(part)[0].size for part in state.learned]
    rates = jnp.concatenate([jnp.full(n, rate_of(name)) for name, n in zip(Learned._fields, sizes, strict=True)])
    slope = jnp.nan_to_num(ravel_pytree(gradient)[0])
    moved, adam = ascend(values, slope, state.adam, clock=state.count, rates=rates, active=rates > 0)
    return restore(moved), adam


def bounded(state: VJFState, learned: Learned) -> Learned:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity."""
    step, output = 2 * jnp.log(state.scales.step), 2 * jnp.log(state.scales.output)
    return learned._replace(
        process_noise=jnp.clip(learned.process_noise, step - 12.0, step + 4.0),
        obs_noise=jnp.clip(learned.obs_noise, output - 12.0, output + 10.0),
        log_width=jnp.clip(learned.log_width, -3.0, 20.0),
    )


def _cubature(dx: int) -> NDArray:
    """Points of the spherical rule for a standard normal, exact up to third order."""
    return np.sqrt(dx) * np.concatenate([np.eye(dx), -np.eye(dx)])
