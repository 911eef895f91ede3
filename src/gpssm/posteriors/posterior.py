"""What a fit returns: the learned model, in the user's units.

Every method here is a pure function of the posterior, its arguments and a seed.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.filters import FILTERS, ensemble
from gpssm.models.gpssm import GPSSM
from gpssm.models.scaling import Scaling
from gpssm.numerics.lags import newest, with_past
from gpssm.plumbing import serialization
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative, Positive, shape
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import arguments, model_inputs, positive_int, series
from gpssm.posteriors.history import History
from gpssm.posteriors.summary import Summary, summarise

NDArray = np.ndarray

KEPT_SAMPLES = 2000
"""How much of a recording is kept with a model, so that a saved model can be plotted."""
NO_RECORDING = Series(np.zeros((0, 0)), None, None)


class States(NamedTuple):
    """Hidden states given observations, in the user's units."""

    mean: Float[NDArray, "t dx"]
    cov: Float[NDArray, "t dx dx"]
    log_likelihood: float
    members: Float[NDArray, "n dx"]
    """The ensemble after the last sample: where a forecast continues from."""
    recent_inputs: Float[NDArray, "past dc"] | None = None
    """The inputs that still act, newest first, of a model with `input_lags`."""

    @property
    def std(self) -> Float[NDArray, "t dx"]:
        """Standard deviation of every state."""
        return np.sqrt(np.maximum(np.diagonal(self.cov, axis1=1, axis2=2), 0.0))


class Forecast(NamedTuple):
    """Sample paths of future outputs, observation noise included, in the user's units.

    A path of an unstable model that has passed the largest number there is stays at the infinity where it left.
    """

    samples: Float[NDArray, "p h dy"]
    states: Float[NDArray, "p h dx"]

    @property
    def diverged(self) -> int | None:
        """The first step, from 1, at which a path is not a finite number; None if all are."""
        return first_not_finite(self.samples.transpose(1, 0, 2))

    @property
    def mean(self) -> Float[NDArray, "h dy"]:
        """Mean over the paths; NaN where some are at infinity and others at minus infinity."""
        return _over_paths(lambda paths: paths.mean(axis=0), self.samples)

    @property
    def std(self) -> Float[NDArray, "h dy"]:
        """Standard deviation over the paths; infinite where one of them is."""
        std = _over_paths(lambda paths: paths.std(axis=0, ddof=1), self.samples)
        return np.where(np.isinf(self.samples).any(axis=0), np.inf, std)

    def quantile(self, q: float | list[float]) -> NDArray:
        """Quantile(s) over the paths: (h, dy), or (len(q), h, dy)."""
        if np.any(np.asarray(q) < 0) or np.any(np.asarray(q) > 1):
            raise InvalidInput(f"q: expected probabilities in [0, 1], got {q!r}.")
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.quantile(self.samples, q, axis=0)
        if np.isfinite(self.samples).all() and np.isfinite(found).all():
            return found
        # Towards infinity there is nothing to interpolate.
        below = np.sort(self.samples, axis=0)[np.floor(np.multiply(q, len(self.samples) - 1)).astype(int)]
        lost = ~np.isfinite(self.samples).all(axis=0) | ~np.isfinite(found).reshape(-1, *found.shape[-2:]).all(axis=0)
        return np.where(lost, below, found)


def first_not_finite(values: NDArray) -> int | None:
    """The first row, from 1, that holds a number which is not finite."""
    lost = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    return int(lost.argmax()) + 1 if lost.any() else None


def held(paths: Float[NDArray, "p h d"]) -> Float[NDArray, "p h d"]:
    """Paths that have left the numbers there are, at the infinity where they left; arithmetic makes NaN of it."""
    lost = ~np.isfinite(paths)
    if not lost.any():
        return paths
    first = lost.argmax(axis=1, keepdims=True)
    at, before = (np.take_along_axis(paths, np.maximum(first - back, 0), axis=1) for back in (0, 1))
    left = np.where(np.isnan(at), before, at)
    return np.where(np.logical_or.accumulate(lost, axis=1), np.where(left < 0, -np.inf, np.inf), paths)


def _over_paths(moment: Callable[[NDArray], NDArray], paths: NDArray) -> NDArray:
    """A moment of order one, which itself is a number where all paths are, also if their sum or squares are not."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = moment(paths)
        if np.isfinite(found).all():
            return found
        largest = np.max(np.abs(paths), axis=0)
        largest = np.where(np.isfinite(largest), np.maximum(largest, 1.0), 1.0)
        return np.where(np.isfinite(found), found, moment(paths / largest) * largest)


@saved
@dataclass(frozen=True, eq=False)
class Posterior:
    """A fitted GP state-space model."""

    model: GPSSM
    scaling: Scaling
    settings: ensemble.FilterSettings
    fixed: tuple[str, ...]
    history: History
    method: str
    final_members: Float[NDArray, "n dx"]
    """Standardised ensemble at the end of the (last) recording."""
    recording: Series = NO_RECORDING
    """The end of the (last) recording, at most `KEPT_SAMPLES` of it, with the names of its channels."""
    num_samples: NonNegative[int] | None = None
    """Samples learned from, of all recordings; None in files that do not know it."""
    input_lags: Annotated[Positive[int], shape("lags")] = 1
    """How many of the last inputs act on f."""
    recent_inputs: Float[NDArray, "lags-1 dc"] | None = None
    """(lags - 1, dc) inputs at the end of the (last) recording, newest first, if there are several."""

    @property
    def state_dim(self) -> int:
        return self.model.state_dim

    @property
    def output_dim(self) -> int:
        return len(self.scaling.output_shift)

    @property
    def input_dim(self) -> int:
        return len(self.scaling.input_shift) // self.input_lags

    def __repr__(self) -> str:
        return (
            f"<{self.method} posterior: {self.state_dim} state(s), {self.output_dim} output(s), "
            f"{self.input_dim} input(s), {self.model.num_inducing} inducing points>"
        )

    @double_precision
    def transition(self, x: Any) -> tuple[Float[NDArray, "n dx"], Float[NDArray, "n dx"]]:
        """Mean and variance of the learned f at `x` (n, state_dim + input_lags * input_dim)."""
        x = arguments(x, self.state_dim + self.input_lags * self.input_dim)
        mean, var = _transition(self.model, jnp.asarray(self.scaling.standardise_arguments(x), self._dtype))
        return self.scaling.states(np.asarray(mean, float)), np.asarray(var, float) * self.scaling.state_scale**2

    @property
    def end(self) -> States:
        """The state at the end of the (last) training recording."""
        members = self.scaling.states(np.asarray(self.final_members, float))
        cov = np.cov(members, rowvar=False).reshape(1, self.state_dim, self.state_dim)
        return States(members.mean(axis=0, keepdims=True), cov, 0.0, members, self.recent_inputs)

    @double_precision
    def filter(
        self,
        outputs: Any,
        inputs: Any = None,
        *,
        filter: str = "ensemble",
        state: States | None = None,
        seed: int = 0,
    ) -> States:
        """The state at every time given the samples up to it.

        `outputs` (T, dy) may contain NaN; `inputs` (T, dc) are needed if the model has them. The
        recording continues from `state`, what `filter` returned for the samples before it, or
        `end`. Without one it starts anywhere: the state before its first sample has the prior
        p(x_0); q(x_0) belongs to training recordings.

        `filter` is an `"ensemble"` Kalman filter, as models are learned with; a bootstrap
        `"particle"` filter, right also where states are far from Gaussian, as long as they are
        few; or the `"extended"` Kalman filter, the fastest, for an f that is nearly linear.
        """
        if filter not in FILTERS:
            raise InvalidInput(f"filter: expected one of {', '.join(FILTERS)}, got {filter!r}.")
        members = self._members(state)
        y, c = self._recording(outputs, inputs, state)
        trace = self._run(y, c, seed, members, filter)
        return self._states(y, c, trace.mean, trace.cov, trace.log_likelihood, trace.members)

    @double_precision
    def filtered_at(self, outputs: NDArray, inputs: NDArray, index: int, *, seed: int = 0) -> States:
        """The state after one sample of a checked recording, to forecast from; what comes later is not read."""
        c = with_past(inputs, self.input_lags)
        trace = self._run(outputs, c, seed)
        mean, cov, now = trace.filtered.mean, trace.filtered.cov, slice(index, index + 1)
        return self._states(outputs[:0], c[now], mean[now], cov[now], jnp.zeros(()), trace.filtered.members[index])

    @double_precision
    def smooth(self, outputs: Any, inputs: Any = None, *, seed: int = 0) -> States:
        """The state at every time given all samples (ensemble Rauch-Tung-Striebel)."""
        y, c = self._recording(outputs, inputs)
        trace = self._run(y, c, seed)
        mean, cov = _smooth(trace)
        return self._states(y, c, mean, cov, trace.filtered.log_likelihood, trace.filtered.members[-1])

    @double_precision
    def one_step(
        self, outputs: Any, inputs: Any = None, *, state: States | None = None, seed: int = 0
    ) -> tuple[Float[NDArray, "t dy"], Float[NDArray, "t dy"]]:
        """Mean and standard deviation of every sample, predicted from those before it; as in `filter`."""
        members = self._members(state)
        y, c = self._recording(outputs, inputs, state)
        trace = self._run(y, c, seed, members)
        mean, var = (np.asarray(part, float) for part in _one_step(self.model, trace.predicted))
        return self.scaling.outputs(mean), np.sqrt(var) * self.scaling.output_scale

    def log_likelihood(self, outputs: Any, inputs: Any = None, *, filter: str = "ensemble", seed: int = 0) -> float:
        """`sum_t log p(y_t | y_{1:t-1})` of a recording, by a filter, in the user's units."""
        return self.filter(outputs, inputs, filter=filter, seed=seed).log_likelihood

    @double_precision
    def forecast(
        self, horizon: int, inputs: Any = None, *, state: States | None = None, num_paths: int = 500, seed: int = 0
    ) -> Forecast:
        """Sample paths of the next `horizon` outputs.

        Each path has its own draw of u, so that what is not known of f is in the spread.

        Args:
            horizon: number of steps.
            inputs: (horizon, dc) future inputs, if the model has any.
            state: result of `filter` to start from, after its last sample; the end of the (last)
                training recording by default.
            num_paths: number of paths.
            seed: of the draws.
        """
        positive_int("horizon", horizon)
        positive_int("num_paths", num_paths, 2)
        members = self._members(state)
        ahead = model_inputs(inputs, horizon, self.input_dim)
        recent = self.recent_inputs if state is None else state.recent_inputs
        c = self.scaling.standardise_inputs(with_past(ahead, self.input_lags, recent))
        states, samples = sample_paths(
            self.model,
            jnp.asarray(self.final_members if members is None else members, self._dtype),
            jnp.asarray(c, self._dtype),
            jax.random.key(seed),
            num_paths=num_paths,
        )
        with np.errstate(over="ignore", invalid="ignore"):
            samples = self.scaling.outputs(np.asarray(samples, float))
            return Forecast(held(samples), held(self.scaling.states(np.asarray(states, float))))

    def summary(self) -> Summary:
        """What was learned and what was held fixed, in the user's units. Print it."""
        return summarise(self.model, self.scaling, self.fixed, self.history, self.method)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole posterior to one file; an interrupted save leaves the old file as it was."""
        serialization.write(path, self)

    def continued_from(self, outputs: NDArray, inputs: NDArray, *, seed: int) -> "Posterior":
        """This posterior, with forecasts starting where the given recording ends."""
        c = with_past(inputs, self.input_lags)
        trace = self._run(outputs, c, seed)
        return replace(
            self,
            final_members=np.asarray(trace.filtered.members[-1]),
            recording=kept_recording(outputs, inputs),
            recent_inputs=newest(c[-1], self.input_lags),
        )

    def named(self, output_names: tuple[str, ...], input_names: tuple[str, ...]) -> "Posterior":
        """This posterior, with names for its channels."""
        return replace(self, recording=self.recording.named(output_names, input_names))

    @property
    def _dtype(self) -> Any:
        return np.asarray(self.model.obs_noise.variance).dtype

    def _recording(self, outputs: Any, inputs: Any, state: States | None = None) -> tuple[NDArray, NDArray]:
        """A checked recording, every row of inputs with those before it that still act."""
        y, c = series(outputs, inputs, self.output_dim, self.input_dim)
        return y, with_past(c, self.input_lags, None if state is None else state.recent_inputs)

    def _members(self, state: States | None) -> NDArray | None:
        """The standardised ensemble of `state`, checked."""
        if state is None:
            return None
        check_state(state, self.state_dim)
        return self.scaling.standardise_states(state.members)

    def _run(self, y: NDArray, c: NDArray, seed: int, members: NDArray | None = None, filter: str = "ensemble") -> Any:
        """What a filter of `gpssm.filters.FILTERS` returns for a recording in the user's units."""
        return _filter(
            self.model,
            None if members is None else jnp.asarray(members, self._dtype),
            jnp.asarray(self.scaling.standardise_outputs(y), self._dtype),
            jnp.asarray(self.scaling.standardise_inputs(c), self._dtype),
            jax.random.key(seed),
            settings=self.settings,
            filter=filter,
        )

    def _states(self, y: NDArray, c: NDArray, mean: Array, cov: Array, log_likelihood: Array, members: Array) -> States:
        return States(
            self.scaling.states(np.asarray(mean, float)),
            self.scaling.state_cov(np.asarray(cov, float)),
            float(jnp.sum(log_likelihood)) - self.scaling.log_volume(y),
            self.scaling.states(np.asarray(members, float)),
            newest(c[-1], self.input_lags),
        )


def kept_recording(outputs: NDArray, inputs: NDArray) -> Series:
    """The end of a checked recording, with numbered names, to be kept with a model."""
    given = inputs[-KEPT_SAMPLES:] if inputs.shape[1] else None
    return Series(outputs[-KEPT_SAMPLES:], given, None).numbered()


def check_state(state: Any, state_dim: int) -> None:
    """Refuse what is not the result of `filter` of a model with as many states."""
    if not isinstance(state, States):
        raise InvalidInput(
            f"state: expected what `filter` returns, got {type(state).__name__}; "
            "to start after sample t, pass filter(outputs[:t])."
        )
    if state.members.shape[1] != state_dim:
        raise InvalidInput(f"state: has {state.members.shape[1]} dimension(s); expected {state_dim}.")


@jax.jit
def _transition(model: GPSSM, x: Array) -> tuple[Array, Array]:
    mean, noise = model.transition.marginal()(x)
    return mean, noise.variance


@partial(jax.jit, static_argnames=("settings", "filter"))
def _filter(model: GPSSM, *recording: Array | None, settings: ensemble.FilterSettings, filter: str) -> Any:
    return importlib.import_module(FILTERS[filter]).filter_recording(model, *recording, settings)


_smooth = jax.jit(ensemble.smooth)


@jax.jit
def _one_step(model: GPSSM, predicted: ensemble.Predicted) -> tuple[Array, Array]:
    def one(at: ensemble.Predicted) -> tuple[Array, Array]:
        observed = ensemble.observe(model.emission, at)
        return model.obs_noise.moments(observed.mean, jnp.diagonal(observed.cov))

    return jax.vmap(one)(predicted)


@partial(jax.jit, static_argnames="num_paths")
def sample_paths(model: GPSSM, members: Array, inputs: Array, key: Array, *, num_paths: int) -> tuple[Array, Array]:
    """States (paths, horizon, dx) and outputs (paths, horizon, dy), standardised, from any of the members on."""
    horizon, dtype = inputs.shape[0], members.dtype
    state_dim = model.state_dim
    key_u, key_start, key_x, key_y = jax.random.split(key, 4)
    prior = model.transition.prior()
    eps = jax.random.normal(key_u, (num_paths, state_dim, model.num_inducing), dtype)
    alphas = jax.vmap(lambda e: model.transition.draw(prior, e))(eps)
    first = members[jax.random.randint(key_start, (num_paths,), 0, members.shape[0])]
    noise = jax.random.normal(key_x, (horizon, num_paths, 2, 1, state_dim), dtype)

    def one(alpha: Array, x: Array, c: Array, eps: Array) -> Array:
        f_mean, f_noise = prior.given(alpha)(jnp.concatenate([x, c])[None])
        return ensemble.move(f_mean, f_noise, model.process_noise, eps)[0]

    def body(x: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        c, eps = now
        x = jax.vmap(one, in_axes=(0, 0, None, 0))(alphas, x, c, eps)
        return x, x

    _, states = jax.lax.scan(body, first, (inputs, noise))
    samples = model.obs_noise.sample(key_y, jax.vmap(model.emission)(states))
    return jnp.swapaxes(states, 0, 1), jnp.swapaxes(samples, 0, 1)
