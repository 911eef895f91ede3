"""Inference in VJF: what it carries, predict, recognise, multiply, and the bound that all is learned by."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.filters.augmented import with_past
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.numerics.linalg import cholesky, gaussian_log_density, solve_lower
from gpssm.numerics.networks import MLP
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance, NonNegative, Positive

NDArray = np.ndarray

_PRIOR_STD = 2.0  # of W, in steps of the state
_MOST = 5.0  # standard deviations by which a sample may contradict the prediction


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
    outputs = emit(state, mean + _cubature(len(mean)) * jnp.sqrt(var))
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
    dx = z.shape[1]
    return state.emission(state.scales.shift[:dx] + state.scales.scale[:dx] * z)


def _cubature(dx: int) -> NDArray:
    """Points of the spherical rule for a standard normal, exact up to third order."""
    return np.sqrt(dx) * np.concatenate([np.eye(dx), -np.eye(dx)])
