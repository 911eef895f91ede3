"""What the fit of a linear Gaussian method returns, in the user's units.

    x_t = A x_{t-1} + B c_t + b + v_t,  v_t ~ N(0, Q)        y_t = C x_t + d + e_t,  e_t ~ N(0, R)

All is exact: the Kalman filter conditions on what was seen, and forecasts are drawn from the Gaussian it leaves.
Q and R may be singular, as long as C Q C^T + R is not.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gpssm.datasets.series import Series
from gpssm.filters import kalman
from gpssm.filters.kalman import Gaussian, System
from gpssm.models.scaling import Scaling
from gpssm.numerics.linalg import symmetric_root
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative, Unbounded
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors.calibration import Calibration
from gpssm.posteriors.check import Check
from gpssm.posteriors.fitted import Fitted, Pair
from gpssm.posteriors.history import History
from gpssm.posteriors.states import NO_RECORDING, States
from gpssm.posteriors.summary import Summary, summarise_linear

NDArray = np.ndarray

NOISE_FLOOR = 1e-10
"""Smallest variance of a fitted noise, relative to that of the outputs: a perfect fit has a density, too."""

_NUM_MEMBERS = 200


@saved
@dataclass(frozen=True, eq=False, repr=False)
class LinearPosterior(Fitted):
    """A fitted linear Gaussian system, in standardised units inside. Its calls are those of `Fitted`.

    >>> from gpssm import LastValue
    >>> LastValue().fit([[1.0], [2.0], [4.0]]).transition([[7.0]])  # f(x) = x, known
    (array([[7.]]), array([[0.]]))
    """

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
    num_samples: NonNegative[int] | None = None
    fixed: tuple[str, ...] = ()
    """Names of the parameters in `summary` that the method does not learn."""
    training_log_likelihood: Unbounded[float] | None = None
    """`log_likelihood` of all training recordings; None in files that do not know it."""
    check: Check | None = None
    calibration: Calibration | None = None
    filters: ClassVar[tuple[str, ...]] = ("kalman",)

    @property
    def _kind(self) -> str:
        return "linear"

    @property
    def state_dim(self) -> int:
        return len(self.bias)

    def _end(self) -> States:
        mean, cov = (np.asarray(part)[None] for part in self.final)
        return self._states(mean, cov, 0.0, 0)

    def _summary(self) -> Summary:
        a, process_cov, emission, emission_bias, obs_cov = map(np.asarray, self.system)
        values = {
            "transition.weight": np.column_stack([a, self.input_weight]),
            "transition.bias": self.bias,
            "process_noise.cov": process_cov,
            "emission.weight": emission,
            "emission.bias": emission_bias,
            "obs_noise.cov": obs_cov,
            "initial_state.prior_mean": np.asarray(self.prior.mean),
        }
        value = math.nan if self.training_log_likelihood is None else self.training_log_likelihood
        return summarise_linear(values, self.scaling, self.fixed, self.history, self.method, value)

    def _f(self, x: NDArray) -> Pair:
        a = np.asarray(self.system.transition)
        mean = x[:, : self.state_dim] @ a.T + self._offsets(x[:, self.state_dim :])
        return mean, np.zeros_like(mean)

    @double_precision
    def _filtered(self, y: NDArray, c: NDArray, state: States | None, filter: str, seed: int) -> States:
        trace = self._run(y, c, state)
        return self._states(*trace.filtered, self._log_likelihood(y, trace), seed)

    @double_precision
    def _smoothed(self, y: NDArray, c: NDArray, seed: int) -> States:
        trace = self._run(y, c)
        mean, cov = _smooth(self.system, trace, jnp.asarray(self.scaling.standardise_outputs(y)))
        return self._states(mean, cov, self._log_likelihood(y, trace), seed)

    @double_precision
    def _predicted(self, y: NDArray, c: NDArray, state: States | None, seed: int) -> Pair:
        mean, cov = map(np.asarray, self._run(y, c, state).predicted)
        _, _, emission, emission_bias, obs_cov = map(np.asarray, self.system)
        var = np.diagonal(emission @ cov @ emission.T + obs_cov, axis1=1, axis2=2)
        return mean @ emission.T + emission_bias, var

    def _paths(self, c: NDArray, state: States | None, num_paths: int, seed: int) -> Pair:
        """From draws of the last mean and covariance, so that their law does not depend on the draws in `members`."""
        a, process_cov, emission, emission_bias, obs_cov = map(np.asarray, self.system)
        mean, cov = map(np.asarray, self.final) if state is None else self._last(state)
        offsets, rng = self._offsets(c), np.random.default_rng(seed)
        states = np.empty((num_paths, len(c), self.state_dim))
        x = mean + rng.standard_normal((num_paths, self.state_dim)) @ symmetric_root(cov).T
        process_root, obs_root = symmetric_root(process_cov), symmetric_root(obs_cov)
        for t in range(len(c)):
            x = x @ a.T + offsets[t] + rng.standard_normal(x.shape) @ process_root.T
            states[:, t] = x
        noise = rng.standard_normal((num_paths, len(c), self.output_dim)) @ obs_root.T
        return states, states @ emission.T + emission_bias + noise

    @double_precision
    def _facts(self, ys: list[NDArray], cs: list[NDArray], seed: int) -> dict[str, Any]:
        traces = [self._run(y, c) for y, c in zip(ys, cs, strict=True)]
        return {
            "final": jax.tree.map(lambda a: np.asarray(a[-1]), traces[-1].filtered),
            "training_log_likelihood": sum(map(self._log_likelihood, ys, traces)),
        }

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
        members = mean[-1] + eps @ symmetric_root(cov[-1]).T
        return States(
            self.scaling.states(mean), self.scaling.state_cov(cov), log_likelihood, self.scaling.states(members)
        )

    def _last(self, state: States) -> tuple[NDArray, NDArray]:
        """Standardised mean and covariance after the last sample of what `filter` returned."""
        scale = self.scaling.state_scale
        return self.scaling.standardise_states(state.mean[-1]), state.cov[-1] / (scale[:, None] * scale)


_filter, _smooth = jax.jit(kalman.filter), jax.jit(kalman.smooth)
