"""What the fit of a linear Gaussian method returns, in the user's units.

    x_t = A x_{t-1} + B c_t + b + v_t,  v_t ~ N(0, Q)        y_t = C x_t + d + e_t,  e_t ~ N(0, R)

All is exact: the Kalman filter conditions on what was seen, and forecasts are drawn from the Gaussian it leaves.
Q and R may be singular, as long as C Q C^T + R is not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float

from gpssm.datasets.series import Series
from gpssm.filters import kalman
from gpssm.filters.kalman import Gaussian, System
from gpssm.filters.stepwise import Moments, Stretch, advance
from gpssm.models.scaling import Scaling
from gpssm.numerics.linalg import symmetric_root
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.compilation import jit
from gpssm.plumbing.contents import NonNegative, Unbounded
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors import stretches
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
    """A, C, Q and R, all but what follows."""
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
        found = self._run(y, c, state)
        return self._states(found.mean, found.cov, self._log_likelihood(y, found), seed)

    @double_precision
    def _smoothed(self, y: NDArray, c: NDArray, seed: int) -> States:
        states, found = self._forwards(y, c, None, _filtered)
        nothing = np.zeros(self.state_dim), np.zeros((self.state_dim, self.state_dim))
        retreat = partial(_retreat, self.system)
        mean, cov = stretches.backwards(retreat, states, nothing, *self._standardised(y, c))
        return self._states(mean, cov, self._log_likelihood(y, found), seed)

    @double_precision
    def _predicted(self, y: NDArray, c: NDArray, state: States | None, seed: int) -> Pair:
        mean, cov = self._forwards(y, c, state, _predicted)[1]
        _, _, emission, emission_bias, obs_cov = map(np.asarray, self.system)
        var = np.diagonal(emission @ cov @ emission.T + obs_cov, axis1=1, axis2=2)
        return mean @ emission.T + emission_bias, var

    def _begun(self, state: States | None, num_paths: int, seed: int) -> Any:
        """From draws of the last mean and covariance, so that their law does not depend on the draws in `members`."""
        mean, cov = map(np.asarray, self.final) if state is None else self._last(state)
        start, process, obs = np.random.default_rng(seed).spawn(3)
        return mean + start.standard_normal((num_paths, self.state_dim)) @ symmetric_root(cov).T, process, obs

    def _continued(self, now: Any, c: NDArray, first: int) -> tuple[Any, Pair]:
        x, process, obs = now
        a, process_cov, emission, emission_bias, obs_cov = map(np.asarray, self.system)
        offsets, process_root, obs_root = self._offsets(c), symmetric_root(process_cov), symmetric_root(obs_cov)
        states = np.empty((len(c), *x.shape))
        for t, offset in enumerate(offsets):
            x = x @ a.T + offset + process.standard_normal(x.shape) @ process_root.T
            states[t] = x
        noise = obs.standard_normal((len(c), len(x), self.output_dim)) @ obs_root.T
        outputs = states @ emission.T + emission_bias + noise
        return (x, process, obs), (states.swapaxes(0, 1), outputs.swapaxes(0, 1))

    @double_precision
    def _facts(self, ys: list[NDArray], cs: list[NDArray], seed: int) -> dict[str, Any]:
        found = [self._run(y, c) for y, c in zip(ys, cs, strict=True)]
        return {
            "final": Gaussian(found[-1].mean[-1], found[-1].cov[-1]),
            "training_log_likelihood": sum(map(self._log_likelihood, ys, found)),
        }

    def _offsets(self, c: NDArray) -> NDArray:
        return c @ self.input_weight.T + self.bias

    def _run(self, y: NDArray, c: NDArray, state: States | None = None) -> Moments:
        """The Kalman filter, continued from `state` or from the prior."""
        found: Moments = self._forwards(y, c, state, _filtered)[1]
        return found

    def _forwards(self, y: NDArray, c: NDArray, state: States | None, keep: Callable[[kalman.Trace], Any]) -> Any:
        """States before every stretch of a recording, and what is kept of every sample."""
        start = jax.tree.map(lambda a: np.asarray(a, float), self.prior if state is None else self._last(state))
        return stretches.forwards(partial(_advance, self.system, keep=keep), start, *self._standardised(y, c))

    def _standardised(self, y: NDArray, c: NDArray) -> tuple[NDArray, NDArray]:
        return self.scaling.standardise_outputs(y), self._offsets(self.scaling.standardise_inputs(c))

    def _log_likelihood(self, y: NDArray, found: Moments) -> float:
        return float(np.sum(found.log_likelihood)) - self.scaling.log_volume(y)

    def _states(self, mean: Any, cov: Any, log_likelihood: float, seed: int) -> States:
        """Standardised moments in the user's units, with draws from the last ones."""
        mean, cov = np.asarray(mean), np.asarray(cov)
        eps = np.random.default_rng(seed).standard_normal((_NUM_MEMBERS, self.state_dim))
        members = mean[-1] + eps @ symmetric_root(cov[-1]).T
        return States(
            self.scaling.states(mean), self.scaling.state_cov(cov), log_likelihood, self.scaling.states(members)
        )

    def _last(self, state: States) -> Gaussian:
        """Standardised mean and covariance after the last sample of what `filter` returned."""
        scale = self.scaling.state_scale
        mean: Any = self.scaling.standardise_states(state.mean[-1])
        return Gaussian(mean, state.cov[-1] / (scale[:, None] * scale))


def _filtered(found: kalman.Trace) -> Moments:
    return Moments(*found.filtered, found.log_likelihood)


def _predicted(found: kalman.Trace) -> Gaussian:
    return found.predicted


@partial(jit, static_argnames=("keep",))
def _advance(
    system: System, state: Gaussian, stretch: Stretch, *, keep: Callable[[kalman.Trace], Any]
) -> tuple[Gaussian, Any]:
    """The Kalman filter over a stretch, whose inputs are the offsets."""

    def step(state: Gaussian, y: Array, offset: Array, key: Array) -> tuple[Gaussian, kalman.Trace]:
        return kalman.step(system, state, y, offset)

    moved, kept = advance(step, state, stretch, jax.random.key(0), keep)
    return moved, kept


@jit
def _retreat(
    system: System, ahead: kalman.Score, state: Gaussian, stretch: Stretch, last: Array
) -> tuple[kalman.Score, Gaussian]:
    """The smoother over a stretch that was filtered from `state` on; rows after the `last` say nothing."""
    return kalman.smooth(system, _advance(system, state, stretch, keep=_predicted)[1], stretch.outputs, ahead)
