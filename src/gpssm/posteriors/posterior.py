"""What the fit of a GP or neural state-space model returns, in the user's units."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.datasets.series import Series
from gpssm.filters import FILTERS, ensemble, smoother
from gpssm.filters.stepwise import Filter, Moments, Stretch, advance
from gpssm.models.gpssm import GPSSM
from gpssm.models.noise import num_draws
from gpssm.models.scaling import Scaling
from gpssm.numerics.lags import newest, with_past
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.compilation import jit
from gpssm.plumbing.contents import NonNegative, Positive, shape
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors import stretches
from gpssm.posteriors.calibration import Calibration
from gpssm.posteriors.check import Check
from gpssm.posteriors.fitted import Fitted, Pair
from gpssm.posteriors.history import History
from gpssm.posteriors.states import NO_RECORDING, States
from gpssm.posteriors.summary import Summary, summarise

NDArray = np.ndarray


@saved
@dataclass(frozen=True, eq=False, repr=False)
class Posterior(Fitted):
    """A fitted GP or neural state-space model: what `EnVI(...).fit(...)` returns. Its calls are those of `Fitted`.

    >>> from gpssm import EnVI, Schedule
    >>> y = np.sin(0.5 * np.arange(20))[:, None]
    >>> fitted = EnVI(1, 5, schedule=Schedule(max_steps=2)).fit(y)
    >>> fitted
    <EnVI posterior: 1 state(s), 1 output(s), 0 input(s), 5 inducing points>
    >>> fitted.filter(y, filter="extended").std.shape, fitted.forecast(5, num_paths=10).samples.shape
    ((20, 1), (10, 5, 1))
    """

    model: GPSSM
    """Standardised."""
    scaling: Scaling
    settings: ensemble.FilterSettings
    """Members of the ensemble, and how they are updated."""
    fixed: tuple[str, ...]
    """Names of the parameters that were not learned."""
    history: History
    method: str
    final_members: Float[NDArray, "n dx"]
    """Standardised ensemble at the end of the (last) recording."""
    recording: Series = NO_RECORDING
    num_samples: NonNegative[int] | None = None
    input_lags: Annotated[Positive[int], shape("lags")] = 1
    recent_inputs: Float[NDArray, "lags-1 dc"] | None = None
    """(lags - 1, dc) inputs at the end of the (last) recording, newest first, if there are several."""
    check: Check | None = None
    calibration: Calibration | None = None
    filters: ClassVar[tuple[str, ...]] = tuple(FILTERS)

    @property
    def state_dim(self) -> int:
        return self.model.state_dim

    @property
    def _kind(self) -> str:
        return f"{self.model.num_inducing} inducing points"

    def _end(self) -> States:
        members = self.scaling.states(np.asarray(self.final_members, float))
        cov = np.cov(members, rowvar=False).reshape(1, self.state_dim, self.state_dim)
        return States(members.mean(axis=0, keepdims=True), cov, 0.0, members, self.recent_inputs)

    def _summary(self) -> Summary:
        return summarise(self.model, self.scaling, self.fixed, self.history, self.method)

    @double_precision
    def filtered_at(self, outputs: NDArray, inputs: NDArray, index: int, *, seed: int = 0) -> States:
        """The state after one sample of a checked recording, to forecast from; what comes later is not read.

        Args:
            outputs: (T, dy) the recording, NaN where a value is missing.
            inputs: (T, dc) of it.
            index: of the sample, from 0.
            seed: of the draws.
        """
        y, c = outputs[: index + 1], with_past(inputs[: index + 1], self.input_lags)
        members, found = self._run(y, c, seed)
        return self._states(y[:0], c, found.mean[-1:], found.cov[-1:], np.zeros(0), members)

    @double_precision
    def _f(self, x: NDArray) -> Pair:
        return _transition(self.model, jnp.asarray(x, self._dtype))

    @double_precision
    def _filtered(self, y: NDArray, c: NDArray, state: States | None, filter: str, seed: int) -> States:
        members, found = self._run(y, c, seed, state, filter)
        return self._states(y, c, *found, members)

    @double_precision
    def _smoothed(self, y: NDArray, c: NDArray, seed: int) -> States:
        """Ensemble Rauch-Tung-Striebel; members are computed again on the way back, so that few are kept."""
        outputs, inputs, key = self._standardised(y, c, seed)
        states, found = self._forwards(outputs, inputs, key, self._start(None, "ensemble", key))
        last: Array = states[-1][1]
        retreat = partial(_retreat, self.model, key, settings=self.settings)
        mean, cov = stretches.backwards(retreat, states, smoother.Backwards(last, last), outputs, inputs)
        return self._states(y, c, mean, cov, found.log_likelihood, last)

    @double_precision
    def _predicted(self, y: NDArray, c: NDArray, state: States | None, seed: int) -> Pair:
        outputs, inputs, key = self._standardised(y, c, seed)
        start = self._start(state, "ensemble", key)
        mean, variance = self._forwards(outputs, inputs, key, start, keep=_outputs)[1]
        return mean, variance

    @double_precision
    def _begun(self, state: States | None, num_paths: int, seed: int) -> Any:
        members = self.final_members if state is None else self.scaling.standardise_states(state.members)
        return begin_paths(self.model, jnp.asarray(members, self._dtype), jax.random.key(seed), num_paths=num_paths)

    @double_precision
    def _continued(self, now: Any, c: NDArray, first: int) -> tuple[Any, Pair]:
        now, (states, outputs) = continue_paths(self.model, now, jnp.asarray(c, self._dtype), np.int32(first))
        return now, (np.asarray(states, float), np.asarray(outputs, float))

    @double_precision
    def _facts(self, ys: list[NDArray], cs: list[NDArray], seed: int) -> dict[str, Any]:
        members, _ = self._run(ys[-1], cs[-1], seed)
        return {"final_members": np.asarray(members), "recent_inputs": newest(cs[-1][-1], self.input_lags)}

    @property
    def _dtype(self) -> Any:
        return np.asarray(self.model.obs_noise.variance).dtype

    def _run(
        self, y: NDArray, c: NDArray, seed: int, state: States | None = None, filter: str = "ensemble"
    ) -> tuple[Array, Moments]:
        """Members after the last sample, and moments at all, by a filter of `gpssm.filters.FILTERS`."""
        outputs, inputs, key = self._standardised(y, c, seed)
        states, found = self._forwards(outputs, inputs, key, self._start(state, filter, key), filter)
        return states[-1][1], found

    def _standardised(self, y: NDArray, c: NDArray, seed: int) -> tuple[NDArray, NDArray, Array]:
        outputs, inputs = self.scaling.standardise_outputs(y), self.scaling.standardise_inputs(c)
        return outputs.astype(self._dtype), inputs.astype(self._dtype), jax.random.key(seed)

    def _start(self, state: States | None, filter: str, key: Array) -> Any:
        members = None if state is None else self.scaling.standardise_states(state.members).astype(self._dtype)
        return _start(self.model, members, key, settings=self.settings, filter=filter)

    def _forwards(
        self,
        outputs: NDArray,
        inputs: NDArray,
        key: Array,
        start: Any,
        filter: str = "ensemble",
        keep: "_Keep | None" = None,
    ) -> tuple[list[Any], Any]:
        """States of the filter, each with its members, and what is kept of every sample; the moments by default."""
        how: Any = {"settings": self.settings, "filter": filter, "keep": keep or _moments}
        return stretches.forwards(partial(_advance, self.model, key, **how), start, outputs, inputs)

    def _states(self, y: NDArray, c: NDArray, mean: Any, cov: Any, log_likelihood: Any, members: Any) -> States:
        return States(
            self.scaling.states(np.asarray(mean, float)),
            self.scaling.state_cov(np.asarray(cov, float)),
            float(np.sum(log_likelihood)) - self.scaling.log_volume(y),
            self.scaling.states(np.asarray(members, float)),
            newest(c[-1], self.input_lags),
        )


@jax.jit
def _transition(model: GPSSM, x: Array) -> tuple[Array, Array]:
    mean, noise = model.transition.marginal()(x)
    return mean, noise.variance


_Keep = Callable[[GPSSM, Any], Any]


def _moments(model: GPSSM, found: Any) -> Moments:
    return Moments.of(found)


def _outputs(model: GPSSM, found: ensemble.Trace) -> tuple[Array, Array]:
    """Mean and variance (dy,) of the sample, as predicted."""
    observed = ensemble.observe(model.emission, found.predicted)
    return model.obs_noise.moments(observed.mean, jnp.diagonal(observed.cov))


def _filter_of(model: GPSSM, filter: str, settings: ensemble.FilterSettings) -> Filter:
    found: Filter = importlib.import_module(FILTERS[filter]).filter_of(model, settings)
    return found


# Keys: 0 starts a filter, 1 moves it, 2 draws members of where it is.


@partial(jit, static_argnames=("settings", "filter"))
def _start(
    model: GPSSM, members: Array | None, key: Array, *, settings: ensemble.FilterSettings, filter: str
) -> tuple[Any, Array]:
    own, keys = _filter_of(model, filter, settings), jax.random.split(key, 3)
    state = own.start(members, keys[0])
    return state, own.members(state, keys[2])


@partial(jit, static_argnames=("settings", "filter", "keep"))
def _advance(
    model: GPSSM,
    key: Array,
    state: tuple[Any, Array],
    stretch: Stretch,
    *,
    settings: ensemble.FilterSettings,
    filter: str,
    keep: _Keep,
) -> tuple[tuple[Any, Array], Any]:
    """The filter over a stretch: its state with members of that, and what is kept of every row."""
    own, keys = _filter_of(model, filter, settings), jax.random.split(key, 3)
    moved, kept = advance(own.step, state[0], stretch, keys[1], partial(keep, model))
    return (moved, own.members(moved, keys[2])), kept


@partial(jit, static_argnames=("settings",))
def _retreat(
    model: GPSSM,
    key: Array,
    ahead: smoother.Backwards,
    state: tuple[Array, Array],
    stretch: Stretch,
    last: Array,
    *,
    settings: ensemble.FilterSettings,
) -> tuple[smoother.Backwards, tuple[Array, Array]]:
    """The smoother over a stretch that was filtered from `state` on."""

    def members(found: ensemble.Trace) -> tuple[Array, Array]:
        return found.filtered.members, found.predicted.members

    own, keys = ensemble.filter_of(model, settings), jax.random.split(key, 3)
    filtered, predicted = advance(own.step, state[0], stretch, keys[1], members)[1]
    return smoother.smooth(filtered, predicted, ahead, last)


class Paths(NamedTuple):
    """Where sample paths have come to."""

    states: Float[Array, "p dx"]
    weights: Float[Array, "p dx m"]
    """Of f, which every path has drawn for itself."""
    key: Array


@partial(jit, static_argnames=("num_paths",))
def begin_paths(model: GPSSM, members: Array, key: Array, *, num_paths: int) -> Paths:
    """Each from any of the members (n, dx), standardised, and with its own f."""
    key_u, key_start, key_steps = jax.random.split(key, 3)
    prior = model.transition.prior()
    eps = jax.random.normal(key_u, (num_paths, model.state_dim, model.num_inducing), members.dtype)
    first = members[jax.random.randint(key_start, (num_paths,), 0, members.shape[0])]
    return Paths(first, jax.vmap(lambda e: model.transition.draw(prior, e))(eps), key_steps)


@jit
def continue_paths(model: GPSSM, now: Paths, inputs: Array, first: Array) -> tuple[Paths, tuple[Array, Array]]:
    """States (paths, steps, dx) and outputs (paths, steps, dy) of the next steps, one for every row of `inputs`.

    `first` is the number of the first of them; every step has a key of its own, made from its number.
    """
    (x, weights, key), prior = now, model.transition.prior()
    num_paths, state_dim = x.shape
    given = jax.eval_shape(lambda w, at: prior.given(w)(at)[1], weights[0], ensemble.with_inputs(x[:1], inputs[0]))
    kinds = num_draws(given, model.process_noise)

    def one(weights: Array, x: Array, c: Array, eps: Array) -> Array:
        f_mean, f_noise = prior.given(weights)(jnp.concatenate([x, c])[None])
        return ensemble.move(f_mean, f_noise, model.process_noise, eps)[0]

    def body(x: Array, now: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        c, key = now
        key_x, key_y = jax.random.split(key)
        # In single precision: seven digits of a random number are enough.
        eps = jax.random.normal(key_x, (num_paths, kinds, 1, state_dim), jnp.float32).astype(x.dtype)
        x = jax.vmap(one, in_axes=(0, 0, None, 0))(weights, x, c, eps)
        return x, (x, model.obs_noise.sample(key_y, model.emission(x)))

    keys = jax.vmap(partial(jax.random.fold_in, key))(first + jnp.arange(len(inputs)))
    x, found = jax.lax.scan(body, x, (inputs, keys))
    states, outputs = (jnp.swapaxes(part, 0, 1) for part in found)
    return Paths(x, weights, key), (states, outputs)


def sample_paths(model: GPSSM, members: Array, inputs: Array, key: Array, *, num_paths: int) -> tuple[Array, Array]:
    """States (paths, horizon, dx) and outputs (paths, horizon, dy), standardised, from any of the members on."""
    begun = begin_paths(model, members, key, num_paths=num_paths)
    return continue_paths(model, begun, inputs, jnp.zeros((), jnp.int32))[1]
