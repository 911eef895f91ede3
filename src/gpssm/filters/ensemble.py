"""The ensemble Kalman filter, as pure functions of arrays.

One step is `predict` (Eq. 8-9 of the paper), `observe` and `update` (Eq. 10-12). All of it is
differentiable, and a missing observation is a NaN: that channel is left out of the update and
of the likelihood, and a sample without any channel is a pure prediction.

Two ways to form the predicted moments:

- `"sampled"`: from the members after noise was added, as the paper writes it;
- `"exact_noise"`: `cov(f(x^n)) + mean(Var f) + Q`. The same limit, but the noise that is known
  in closed form is not estimated from N draws of it. With N = 50 the sampled variance alone is
  off by 20% (one standard deviation) at every time step.

Three ways to update the members:

- `"perturbed"`: every member sees the observation with its own perturbation (Eq. 12);
- `"sqrt"`: no perturbations; the anomalies are multiplied by Andrews' square root, which gives
  the members the Kalman covariance exactly;
- `"mixture"`: as perturbed, then shifted and stretched to the posterior mean and covariance of the
  Gaussian mixture `1/N sum_n N(f(x^n), Var f + Q)`, which is what the prediction really is. Where f is
  steep that posterior is far from the Kalman one: on the kink system with the true f this closes
  most of the gap between the EnKF's log-likelihood and a particle filter's. Where too few members
  carry the weight the Kalman moments take over. Needs a linear emission.
"""

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.filters.stepwise import Filter
from gpssm.models.emission import Emission
from gpssm.models.gpssm import GPSSM
from gpssm.models.noise import Likelihood, Noise, num_draws
from gpssm.numerics.linalg import cholesky, gaussian_log_density, solve_lower, solve_lower_transposed
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Positive, shape

Moments = Literal["sampled", "exact_noise"]
Update = Literal["perturbed", "sqrt", "mixture"]

# Share of members that must carry the weight for the mixture moments to be trusted fully.
_TRUSTED_SHARE = 0.3


class Predicted(NamedTuple):
    """Members that have moved, and the moments the update will use."""

    members: Float[Array, "n dx"]
    mean: Float[Array, " dx"]
    cov: Float[Array, "dx dx"]
    centres: Float[Array, "n dx"]
    """Where each member went before noise was added."""
    spread: Float[Array, "dx dx"]
    """Covariance of what was added, averaged over the members."""


class Observed(NamedTuple):
    """What the predicted members say about the next observation, before its noise."""

    members: Float[Array, "n dy"]
    mean: Float[Array, " dy"]
    cross: Float[Array, "dx dy"]
    cov: Float[Array, "dy dy"]
    state_cov: Float[Array, "dx dx"]
    """The state covariance that `cross` and `cov` belong to."""


class Filtered(NamedTuple):
    """Members after the update, their moments, and the score of the observation."""

    members: Float[Array, "n dx"]
    mean: Float[Array, " dx"]
    cov: Float[Array, "dx dx"]
    log_likelihood: Float[Array, ""]


def sample_moments(members: Float[Array, "n dx"]) -> tuple[Float[Array, " dx"], Float[Array, "dx dx"]]:
    """Mean (dx,) and unbiased covariance (dx, dx) of the members. Cost O(n dx^2)."""
    mean = jnp.mean(members, axis=0)
    anomalies = members - mean
    return mean, anomalies.T @ anomalies / (members.shape[0] - 1)


def predict(
    f_mean: Float[Array, "n dx"],
    f_noise: Noise,
    process_noise: Noise,
    eps: Float[Array, "k n dx"],
    *,
    moments: Moments = "exact_noise",
    inflation: float = 1.0,
) -> Predicted:
    """Move the members: `x^n ~ N(f_mean^n, Var f^n + Q)`.

    Args:
        f_mean: mean of `f` at every member.
        f_noise: what is not known of `f` there, one noise for every member.
        process_noise: `N(0, Q)`.
        eps: standard normal draws, as many as `num_draws` says of the two noises.
        moments: how the predicted mean and covariance are formed; see the module.
        inflation: factor on the anomalies.
    """
    members, centres = move(f_mean, f_noise, process_noise, eps), f_mean
    spread = process_noise.covariance + f_noise.covariance
    if moments == "sampled":
        mean, cov = sample_moments(members)
    else:
        mean, cov = sample_moments(f_mean)
        cov = cov + spread
    if inflation != 1.0:
        members = mean + inflation * (members - mean)
        centres = mean + inflation * (centres - mean)
        cov, spread = inflation**2 * cov, inflation**2 * spread
    return Predicted(members, mean, cov, centres, spread)


def move(
    f_mean: Float[Array, "n dx"], f_noise: Noise, process_noise: Noise, eps: Float[Array, "k n dx"]
) -> Float[Array, "n dx"]:
    """Draws of `N(f_mean^n, Var f^n + Q)`; arguments as in `predict`."""
    if num_draws(f_noise, process_noise) == 1:
        return f_mean + jnp.sqrt(f_noise.variance + process_noise.variance) * eps[0]
    return f_mean + f_noise.draws(eps[0]) + process_noise.draws(eps[1])


def observe(emission: Emission, predicted: Predicted, taper: Float[Array, "dx dx"] | None = None) -> Observed:
    """Predicted observation and its covariances: exact for a linear g, from the members otherwise.

    `taper` (dx, dx) multiplies the state covariance element by element (localisation).
    """
    members = emission(predicted.members)
    if emission.matrix is not None:
        cov = predicted.cov if taper is None else predicted.cov * taper
        cross = cov @ emission.matrix.T
        return Observed(members, emission(predicted.mean[None])[0], cross, emission.matrix @ cross, cov)
    if taper is not None:
        raise ValueError("localization: needs a linear emission; a nonlinear one has no distance between x and y.")
    mean, cov = sample_moments(members)
    state_mean, state_cov = sample_moments(predicted.members)
    cross = (predicted.members - state_mean).T @ (members - mean) / (members.shape[0] - 1)
    return Observed(members, mean, cross, cov, state_cov)


class _Seen(NamedTuple):
    """An observation with its missing channels made harmless.

    A missing channel becomes one of unit variance, independent of everything, seen at its mean.
    """

    mask: Array
    y: Float[Array, " dy"]
    noise_sd: Float[Array, " dy"]

    @classmethod
    def of(cls, y: Float[Array, " dy"], variance: Float[Array, " dy"]) -> "_Seen":
        mask = ~jnp.isnan(y)
        return cls(mask, jnp.where(mask, y, 0.0), jnp.sqrt(jnp.where(mask, variance, 1.0)))

    def residual(self, expected: Float[Array, "*n dy"]) -> Float[Array, "*n dy"]:
        return jnp.where(self.mask, self.y - expected, 0.0)

    def factor(self, cov: Float[Array, "dy dy"]) -> Float[Array, "dy dy"]:
        """Cholesky factor of `cov + R` over the channels that were seen."""
        both = self.mask[:, None] & self.mask[None, :]
        return cholesky(jnp.where(both, cov, 0.0) + jnp.diag(self.noise_sd**2))


def update(
    predicted: Predicted,
    observed: Observed,
    y: Float[Array, " dy"],
    variance: Float[Array, " dy"],
    noise: Float[Array, "n dy"] | None = None,
) -> Filtered:
    """Condition the members on `y`. Cost O(n dx dy + dy^3).

    Args:
        predicted, observed: what `predict` and `observe` return.
        y: the sample, with Gaussian noise of this `variance`; a NaN leaves that channel out.
        noise: standard normal draws for perturbed observations; without them the update is by square root.

    >>> from gpssm.models import LinearEmission
    >>> members = jnp.array([[-1.0], [1.0]])
    >>> ahead = Predicted(members, *sample_moments(members), members, jnp.zeros((1, 1)))
    >>> found = update(ahead, observe(LinearEmission([[1.0]], [0.0]), ahead), jnp.array([4.0]), jnp.array([2.0]))
    >>> [round(float(v), 3) for v in (found.mean[0], found.cov[0, 0], found.members.mean())]  # half way
    [2.0, 1.0, 2.0]
    """
    seen = _Seen.of(y, variance)
    chol = seen.factor(observed.cov)
    half_gain_t = solve_lower(chol, jnp.where(seen.mask, observed.cross, 0.0).T)  # S^{-1/2} P_yx
    whitened = solve_lower(chol, seen.residual(observed.mean)[:, None])[:, 0]
    mean = predicted.mean + half_gain_t.T @ whitened
    cov = observed.state_cov - half_gain_t.T @ half_gain_t

    if noise is None:
        # Andrews (1968): A - P_xy S^{-T/2} (S^{1/2} + R^{1/2})^{-1} Y, square roots by Cholesky.
        gain_t = solve_lower_transposed(chol + jnp.diag(seen.noise_sd), half_gain_t)
        anomalies = predicted.members - jnp.mean(predicted.members, axis=0)
        obs_anomalies = observed.members - jnp.mean(observed.members, axis=0)
        members = mean + anomalies - obs_anomalies @ gain_t
    else:
        gain_t = solve_lower_transposed(chol, half_gain_t)
        members = predicted.members + seen.residual(observed.members - seen.noise_sd * noise) @ gain_t
    members = jnp.where(jnp.any(seen.mask), members, predicted.members)
    score = gaussian_log_density(whitened, chol, jnp.sum(seen.mask, dtype=y.dtype))
    return Filtered(members, mean, cov, score)


def correct(
    filtered: Filtered,
    predicted: Predicted,
    emission: Emission,
    y: Float[Array, " dy"],
    variance: Float[Array, " dy"],
) -> Filtered:
    """Give updated members the posterior moments of the predicted Gaussian mixture.

    Component n is `N(centres^n, spread)` with weight `w_n ~ N(y | C centres^n, C spread C^T + R)`
    and posterior mean `centres^n + K (y - C centres^n)`, K the gain of one component. The target
    moments are `share * mixture + (1 - share) * Kalman`, the share set by the effective number of
    members; members are mapped to it by `L_target L_members^{-1}`. Cost O(n dx^2 + dx^3).
    """
    matrix = emission.matrix
    assert matrix is not None
    seen = _Seen.of(y, variance)
    cross = jnp.where(seen.mask, predicted.spread @ matrix.T, 0.0)
    chol = seen.factor(matrix @ cross)
    half_gain_t = solve_lower(chol, cross.T)
    whitened = solve_lower(chol, seen.residual(emission(predicted.centres)).T)
    weights = jax.nn.softmax(-0.5 * jnp.sum(whitened**2, axis=0))
    local = predicted.centres + whitened.T @ half_gain_t
    mean = weights @ local
    deviations = local - mean
    cov = (weights[:, None] * deviations).T @ deviations + predicted.spread - half_gain_t.T @ half_gain_t

    effective = 1.0 / (jnp.sum(weights**2) * weights.shape[0])
    share = jax.lax.stop_gradient(jnp.minimum(1.0, effective / _TRUSTED_SHARE))
    gap = mean - filtered.mean
    mean = filtered.mean + share * gap
    cov = share * cov + (1 - share) * filtered.cov + share * (1 - share) * gap[:, None] * gap
    centre, current = sample_moments(filtered.members)
    stretch_t = solve_lower_transposed(safe_cholesky(current), cholesky(cov).T)
    members = mean + (filtered.members - centre) @ stretch_t
    corrected = Filtered(members, mean, cov, filtered.log_likelihood)
    return jax.tree.map(lambda new, old: jnp.where(jnp.any(seen.mask), new, old), corrected, filtered)


def safe_cholesky(cov: Float[Array, "dx dx"]) -> Float[Array, "dx dx"]:
    """Factor of an ensemble's covariance; the floor keeps it real where the members have collapsed."""
    floor = 1e-10 * (jnp.trace(cov) + 1e-30)
    return cholesky(cov + floor * jnp.eye(cov.shape[0], dtype=cov.dtype))


@saved
class Options(NamedTuple):
    """How the ensemble is moved and updated. Hashable: part of what a compiled loop is built for."""

    moments: Moments = "exact_noise"
    update: Update = "perturbed"
    inflation: float = 1.0


@saved
class FilterSettings(NamedTuple):
    """How a fitted model filters. Hashable."""

    num_members: Positive[int]
    options: Options
    taper: Annotated[tuple[tuple[float, ...], ...] | None, shape("dx dx")] = None


class Trace(NamedTuple):
    """Prediction and filtered state, of one time step or of all."""

    predicted: Predicted
    filtered: Filtered

    @property
    def mean(self) -> Float[Array, "*t dx"]:
        return self.filtered.mean

    @property
    def cov(self) -> Float[Array, "*t dx dx"]:
        return self.filtered.cov

    @property
    def log_likelihood(self) -> Float[Array, "*t"]:
        return self.filtered.log_likelihood


Transition = Callable[[Float[Array, "n d"]], tuple[Float[Array, "n dx"], Noise]]


class Observing(NamedTuple):
    """All of the model that comes after f."""

    process_noise: Noise
    emission: Emission
    obs_noise: Likelihood
    taper: Float[Array, "dx dx"] | None = None

    @classmethod
    def of(cls, model: GPSSM, taper: tuple[tuple[float, ...], ...] | None = None) -> "Observing":
        """That of a model, in single precision if it is."""
        own = None if taper is None else jnp.asarray(taper, model.obs_noise.variance.dtype)
        return cls(model.process_noise, model.emission, model.obs_noise, own)


def assimilate(
    f_mean: Float[Array, "n dx"],
    f_noise: Noise,
    y: Float[Array, " dy"],
    process_draws: Float[Array, "k n dx"],
    obs_draws: Float[Array, "n dy"] | None,
    observing: Observing,
    options: Options,
) -> tuple[Predicted, Filtered]:
    """One time step after f has been evaluated at every member: add noise, score `y`, condition on it."""
    predicted = predict(
        f_mean, f_noise, observing.process_noise, process_draws, moments=options.moments, inflation=options.inflation
    )
    observed = observe(observing.emission, predicted, observing.taper)
    variance, score = observing.obs_noise.match(y, observed.mean, observed.cov)
    filtered = update(predicted, observed, y, variance, obs_draws)
    if score is not None:
        filtered = filtered._replace(log_likelihood=score)
    if options.update == "mixture":
        if observing.taper is not None:
            raise ValueError("localization: the mixture's moments cannot be tapered; use 'perturbed' or 'sqrt'.")
        filtered = correct(filtered, predicted, observing.emission, y, variance)
    return predicted, filtered


def run(
    transition: Transition,
    observing: Observing,
    first: Float[Array, "n dx"],
    outputs: Float[Array, "t dy"],
    inputs: Float[Array, "t dc"],
    key: Array,
    options: Options,
) -> Trace:
    """Filter one recording.

    Args:
        transition: from `[x, c]` (n, dx + dc) to the mean of f and a noise that says what is not known of it.
        observing, options: the rest of the model, and how members are moved and updated.
        first: the members one step before the first sample; an input acts on the way to the output of its row.

    >>> from gpssm.models import DiagonalNoise, LinearEmission
    >>> still = lambda x: (x, DiagonalNoise(jnp.zeros_like(x)))
    >>> seen = Observing(DiagonalNoise([0.1]), LinearEmission([[1.0]], [0.0]), DiagonalNoise([0.1]))
    >>> first, key = jnp.linspace(-1.0, 1.0, 100)[:, None], jax.random.key(1)
    >>> trace = run(still, seen, first, jnp.full((20, 1), 5.0), jnp.zeros((20, 0)), key, Options())
    >>> trace.mean.shape, round(float(trace.mean[-1, 0]), 1)
    ((20, 1), 5.0)
    """
    length, output_dim = outputs.shape
    kinds = moving_draws(transition, with_inputs(first, inputs[0]), observing.process_noise)
    draws = draw_noise(key, length, *first.shape, output_dim, kinds=kinds, options=options, dtype=outputs.dtype)

    def body(members: Array, now: tuple[Array, Array, Array, Array | None]) -> tuple[Array, Trace]:
        y, c, process_draws, obs_draws = now
        f = transition(with_inputs(members, c))
        predicted, filtered = assimilate(*f, y, process_draws, obs_draws, observing, options)
        return filtered.members, Trace(predicted, filtered)

    return jax.lax.scan(body, first, (outputs, inputs, *draws))[1]


def filter_of(model: GPSSM, settings: FilterSettings) -> Filter:
    """The filter as `gpssm.filters.FILTERS` knows it. Its state are the members, and what it finds a step's `Trace`."""
    transition, observing, options = model.transition.marginal(), Observing.of(model, settings.taper), settings.options
    dtype = observing.obs_noise.variance.dtype

    def start(members: Array | None, key: Array) -> Array:
        if members is not None:
            return members
        shape = (settings.num_members, model.state_dim)
        return model.initial_state.prior_members(jax.random.normal(key, shape, dtype))

    def step(members: Array, y: Array, c: Array, key: Array) -> tuple[Array, Trace]:
        f_mean, f_noise = transition(with_inputs(members, c))
        kinds = num_draws(f_noise, observing.process_noise)
        draws = draw_noise(key, 1, *members.shape, len(y), kinds=kinds, options=options, dtype=dtype)
        process_draws, obs_draws = jax.tree.map(lambda a: a[0], draws)
        predicted, filtered = assimilate(f_mean, f_noise, y, process_draws, obs_draws, observing, options)
        return filtered.members, Trace(predicted, filtered)

    return Filter(start, step, lambda members, key: members)


def moving_draws(transition: Callable[..., tuple[Array, Noise]], x: Array, process_noise: Noise) -> int:
    """How many standard normal draws a move takes, from what `transition` says of any rows `x`."""
    return num_draws(jax.eval_shape(transition, x)[1], process_noise)


def with_inputs(members: Float[Array, "*b n dx"], c: Float[Array, "*b dc"]) -> Float[Array, "*b n d"]:
    """The arguments of f: every member with the input of its time step appended."""
    if c.shape[-1] == 0:
        return members
    repeated = jnp.broadcast_to(c[..., None, :], (*members.shape[:-1], c.shape[-1]))
    return jnp.concatenate([members, repeated], axis=-1)


def draw_noise(
    key: Array,
    length: int,
    num_members: int,
    state_dim: int,
    output_dim: int,
    *,
    kinds: int,
    options: Options,
    dtype: jnp.dtype,
) -> tuple[Float[Array, "t k n dx"], Float[Array, "t n dy"] | None]:
    """All standard normal draws that a filter over `length` steps needs, `kinds` of them for every move.

    Drawn in single precision: seven digits of a random number are enough, at half the cost.
    """
    key_x, key_y = jax.random.split(key)
    shape = (length, kinds, num_members, state_dim)
    process = jax.random.normal(key_x, shape, jnp.float32).astype(dtype)
    if options.update == "sqrt":
        return process, None
    return process, jax.random.normal(key_y, (length, num_members, output_dim), jnp.float32).astype(dtype)
