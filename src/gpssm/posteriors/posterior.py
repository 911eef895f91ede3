"""What the fit of a GP or neural state-space model returns, in the user's units."""

import importlib
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.datasets.series import Series
from gpssm.filters import FILTERS, ensemble
from gpssm.models.gpssm import GPSSM
from gpssm.models.scaling import Scaling
from gpssm.numerics.lags import newest, with_past
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative, Positive, shape
from gpssm.plumbing.precision import double_precision
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
    scaling: Scaling
    settings: ensemble.FilterSettings
    fixed: tuple[str, ...]
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
        """The state after one sample of a checked recording, to forecast from; what comes later is not read."""
        c = with_past(inputs, self.input_lags)
        trace = self._run(outputs, c, seed)
        mean, cov, now = trace.filtered.mean, trace.filtered.cov, slice(index, index + 1)
        return self._states(outputs[:0], c[now], mean[now], cov[now], jnp.zeros(()), trace.filtered.members[index])

    @double_precision
    def _f(self, x: NDArray) -> Pair:
        return _transition(self.model, jnp.asarray(x, self._dtype))

    @double_precision
    def _filtered(self, y: NDArray, c: NDArray, state: States | None, filter: str, seed: int) -> States:
        trace = self._run(y, c, seed, state, filter)
        return self._states(y, c, trace.mean, trace.cov, trace.log_likelihood, trace.members)

    @double_precision
    def _smoothed(self, y: NDArray, c: NDArray, seed: int) -> States:
        """Ensemble Rauch-Tung-Striebel."""
        trace = self._run(y, c, seed)
        mean, cov = _smooth(trace)
        return self._states(y, c, mean, cov, trace.filtered.log_likelihood, trace.filtered.members[-1])

    @double_precision
    def _predicted(self, y: NDArray, c: NDArray, state: States | None, seed: int) -> Pair:
        return _one_step(self.model, self._run(y, c, seed, state).predicted)

    @double_precision
    def _paths(self, c: NDArray, state: States | None, num_paths: int, seed: int) -> Pair:
        members = self.final_members if state is None else self.scaling.standardise_states(state.members)
        first, inputs = jnp.asarray(members, self._dtype), jnp.asarray(c, self._dtype)
        return sample_paths(self.model, first, inputs, jax.random.key(seed), num_paths=num_paths)

    @double_precision
    def _facts(self, ys: list[NDArray], cs: list[NDArray], seed: int) -> dict[str, Any]:
        members = self._run(ys[-1], cs[-1], seed).filtered.members[-1]
        return {"final_members": np.asarray(members), "recent_inputs": newest(cs[-1][-1], self.input_lags)}

    @property
    def _dtype(self) -> Any:
        return np.asarray(self.model.obs_noise.variance).dtype

    def _run(self, y: NDArray, c: NDArray, seed: int, state: States | None = None, filter: str = "ensemble") -> Any:
        """What a filter of `gpssm.filters.FILTERS` returns for a recording."""
        return _filter(
            self.model,
            None if state is None else jnp.asarray(self.scaling.standardise_states(state.members), self._dtype),
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
