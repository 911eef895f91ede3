"""What the fit of a linear Gaussian method returns, in the user's units.

    x_t = A x_{t-1} + B c_t + b + v_t,  v_t ~ N(0, Q)        y_t = C x_t + d + e_t,  e_t ~ N(0, R)

The same calls as `gpssm.posteriors.posterior.Posterior`, all exact: the Kalman filter conditions on what was
seen, and forecasts are drawn from the Gaussian it leaves. Q and R may be singular, as long as
C Q C^T + R is not.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gpssm.datasets.series import Series
from gpssm.filters import kalman
from gpssm.filters.kalman import Gaussian, System
from gpssm.models.scaling import Scaling
from gpssm.plumbing import serialization
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import model_inputs, positive_int, series
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import NO_RECORDING, Forecast, States, check_state, held, kept_recording

NDArray = np.ndarray

NOISE_FLOOR = 1e-10
"""Smallest variance of a fitted noise, relative to that of the outputs: a perfect fit has a density, too."""

_NUM_MEMBERS = 200


@saved
@dataclass(frozen=True, eq=False)
class LinearPosterior:
    """A fitted linear Gaussian system, in standardised units inside."""

    system: System
    input_weight: Float[NDArray, "dx dc"]
    """B (dx, dc)."""
    bias: Float[NDArray, " dx"]
    """b (dx,)."""
    prior: Gaussian
    """Of the state one step before the first sample of a recording."""
    scaling: Scaling
    history: History
    method: str
    final: Gaussian
    """The state at the end of the (last) recording."""
    recording: Series = NO_RECORDING
    """The end of the (last) recording, with the names of its channels."""

    @property
    def state_dim(self) -> int:
        return len(self.bias)

    @property
    def output_dim(self) -> int:
        return len(self.scaling.output_shift)

    @property
    def input_dim(self) -> int:
        return len(self.scaling.input_shift)

    def __repr__(self) -> str:
        return (
            f"<{self.method} posterior: {self.state_dim} state(s), {self.output_dim} output(s), "
            f"{self.input_dim} input(s), linear>"
        )

    @property
    def end(self) -> States:
        """The state at the end of the (last) training recording."""
        mean, cov = (np.asarray(part)[None] for part in self.final)
        return self._states(mean, cov, 0.0, 0)

    @double_precision
    def filter(self, outputs: Any, inputs: Any = None, *, state: States | None = None, seed: int = 0) -> States:
        """The state at every time given the samples up to it.

        `outputs` (T, dy) may contain NaN; `inputs` (T, dc) are needed if the model has them. The
        recording continues from `state`, what `filter` returned for the samples before it, or
        `end`; without one it starts anywhere. Everything is exact but `members`, which are draws
        from the last state, by `seed`.
        """
        y, c = series(outputs, inputs, self.output_dim, self.input_dim)
        trace = self._run(y, c, state)
        return self._states(*trace.filtered, self._log_likelihood(y, trace), seed)

    @double_precision
    def smooth(self, outputs: Any, inputs: Any = None, *, seed: int = 0) -> States:
        """The state at every time given all samples."""
        y, c = series(outputs, inputs, self.output_dim, self.input_dim)
        trace = self._run(y, c)
        mean, cov = _smooth(self.system, trace, jnp.asarray(self.scaling.standardise_outputs(y)))
        return self._states(mean, cov, self._log_likelihood(y, trace), seed)

    @double_precision
    def one_step(
        self, outputs: Any, inputs: Any = None, *, state: States | None = None, seed: int = 0
    ) -> tuple[Float[NDArray, "t dy"], Float[NDArray, "t dy"]]:
        """Mean and standard deviation of every sample, predicted from those before it; `seed` changes nothing."""
        y, c = series(outputs, inputs, self.output_dim, self.input_dim)
        mean, cov = map(np.asarray, self._run(y, c, state).predicted)
        _, _, emission, emission_bias, obs_cov = map(np.asarray, self.system)
        var = np.diagonal(emission @ cov @ emission.T + obs_cov, axis1=1, axis2=2)
        return self.scaling.outputs(mean @ emission.T + emission_bias), np.sqrt(var) * self.scaling.output_scale

    def log_likelihood(self, outputs: Any, inputs: Any = None, *, seed: int = 0) -> float:
        """`log p(y_{1:T})` of a recording, exact, in the user's units; `seed` changes nothing."""
        return self.filter(outputs, inputs, seed=seed).log_likelihood

    def forecast(
        self, horizon: int, inputs: Any = None, *, state: States | None = None, num_paths: int = 500, seed: int = 0
    ) -> Forecast:
        """Sample paths of the next `horizon` outputs: uncertain state, process and observation noise.

        Args:
            horizon: number of steps.
            inputs: (horizon, dc) future inputs, if the model has any.
            state: result of `filter` to start from, after its last sample; the end of the (last)
                training recording by default. Paths start from draws of the Gaussian with its last
                mean and covariance, so that their law does not depend on the draws in `members`.
            num_paths: number of paths.
            seed: of the draws.
        """
        positive_int("horizon", horizon)
        positive_int("num_paths", num_paths, 2)
        c = self.scaling.standardise_inputs(model_inputs(inputs, horizon, self.input_dim))
        a, process_cov, emission, emission_bias, obs_cov = map(np.asarray, self.system)
        mean, cov = map(np.asarray, self.final) if state is None else self._last(state)
        offsets, rng = self._offsets(c), np.random.default_rng(seed)
        states = np.empty((num_paths, horizon, self.state_dim))
        x = mean + rng.standard_normal((num_paths, self.state_dim)) @ _root(cov).T
        process_root, obs_root = _root(process_cov), _root(obs_cov)
        with np.errstate(over="ignore", invalid="ignore"):  # an unstable line; the forecast says where it diverged
            for t in range(horizon):
                x = x @ a.T + offsets[t] + rng.standard_normal(x.shape) @ process_root.T
                states[:, t] = x
            noise = rng.standard_normal((num_paths, horizon, self.output_dim)) @ obs_root.T
            samples = states @ emission.T + emission_bias + noise
            return Forecast(held(self.scaling.outputs(samples)), held(self.scaling.states(states)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole posterior to one file; an interrupted save leaves the old file as it was."""
        serialization.write(path, self)

    @double_precision
    def continued_from(self, outputs: NDArray, inputs: NDArray) -> "LinearPosterior":
        """This posterior, with forecasts starting where the given recording ends."""
        trace = self._run(outputs, inputs)
        final = jax.tree.map(lambda a: np.asarray(a[-1]), trace.filtered)
        return replace(self, final=final, recording=kept_recording(outputs, inputs))

    def named(self, output_names: tuple[str, ...], input_names: tuple[str, ...]) -> "LinearPosterior":
        """This posterior, with names for its channels."""
        return replace(self, recording=self.recording.named(output_names, input_names))

    def _offsets(self, c: NDArray) -> NDArray:
        return c @ self.input_weight.T + self.bias

    def _run(self, y: NDArray, c: NDArray, state: States | None = None) -> kalman.Trace:
        """The Kalman filter, continued from `state` or from the prior."""
        start = self.prior if state is None else Gaussian(*map(jnp.asarray, self._last(state)))
        # Padded to a power of two, recordings of many lengths share a compiled program; a sample without
        # channels changes nothing before it.
        more = ((0, (1 << (len(y) - 1).bit_length()) - len(y)), (0, 0))
        outputs = np.pad(self.scaling.standardise_outputs(y), more, constant_values=np.nan)
        offsets = np.pad(self._offsets(self.scaling.standardise_inputs(c)), more)
        trace = _filter(self.system, start, jnp.asarray(outputs), jnp.asarray(offsets))
        return jax.tree.map(lambda a: np.asarray(a)[: len(y)], trace)

    def _log_likelihood(self, y: NDArray, trace: kalman.Trace) -> float:
        return float(np.sum(trace.log_likelihood)) - self.scaling.log_volume(y)

    def _states(self, mean: Any, cov: Any, log_likelihood: float, seed: int) -> States:
        """Standardised moments in the user's units, with draws from the last ones."""
        mean, cov = np.asarray(mean), np.asarray(cov)
        eps = np.random.default_rng(seed).standard_normal((_NUM_MEMBERS, self.state_dim))
        members = mean[-1] + eps @ _root(cov[-1]).T
        return States(
            self.scaling.states(mean), self.scaling.state_cov(cov), log_likelihood, self.scaling.states(members)
        )

    def _last(self, state: States) -> tuple[NDArray, NDArray]:
        """Standardised mean and covariance after the last sample of what `filter` returned."""
        check_state(state, self.state_dim)
        scale = self.scaling.state_scale
        return self.scaling.standardise_states(state.mean[-1]), state.cov[-1] / (scale[:, None] * scale)


_filter, _smooth = jax.jit(kalman.filter), jax.jit(kalman.smooth)


def _root(cov: NDArray) -> NDArray:
    """The symmetric root of a covariance that may be singular, and a little indefinite from rounding.

    Eigenvectors alone would be one, too, but rounding decides their signs, and with them all draws.
    """
    values, vectors = np.linalg.eigh(cov)
    return vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
