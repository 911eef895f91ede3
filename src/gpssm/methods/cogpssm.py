"""CO-GPSSM: vGPSSM learned by constrained optimisation (Lin et al. 2023).

The bound of `vgpssm` trades the reconstruction of the outputs against the divergence of q from the
model, one nat for one nat. Here the reconstruction is a constraint instead,

    minimise  KL(x) + KL(u) + KL(x_0)    subject to    e := E (y_t - g(x_t))^2 <= tolerance,

solved by its Lagrangian with the multiplier lambda on the likelihood,

    maximise  lambda sum_t E[log N(y_t | g(x_t), R)] - KL(x) - KL(u) - KL(x_0),

where lambda follows the constraint (GECO; Rezende & Viola 2018, "Taming VAEs"): with v a moving
average of e / tolerance - 1,

    v <- a v + (1 - a) (e / tolerance - 1),    lambda <- lambda exp(rate v).

lambda = 1 is vGPSSM. Where the paper leaves room:

- the tolerance is R where R is held fixed: under the exact posterior of the true model the expected
  error is R. Where R is learned it is the variance of what a linear model of the same order cannot
  say one step ahead: an upper bound of the observation noise, unless a linear model is too small;
- lambda stays within fixed limits, so that a constraint that cannot be met, or that is always met,
  does not take one of the two parts away.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.methods.base import Learner
from gpssm.methods.vgpssm import VGPSSM, terms
from gpssm.training import subspace
from gpssm.training.optimiser import Objective
from gpssm.training.problem import Initialisation, Problem
from gpssm.training.windows import Windows

_AVERAGE = 0.9  # a
_RATE = 0.02
_LIMITS = (0.1, 10.0)


class COGPSSMSettings(NamedTuple):
    """What `lagrangian` is compiled for."""

    num_samples: int
    learned: bool  # whether the multiplier follows the constraint


class Constraint(NamedTuple):
    """What is known of the constraint on the way; carried from step to step."""

    multiplier: Float[Array, ""]  # lambda
    violation: Float[Array, ""]  # v
    tolerance: Float[Array, ""]

    def after(self, error: Float[Array, ""]) -> "Constraint":
        """Once `error` was seen. No step moves the multiplier by more than one of twice the tolerance does."""
        now = jnp.minimum(error / self.tolerance - 1.0, 1.0)
        violation = _AVERAGE * self.violation + (1.0 - _AVERAGE) * now
        return Constraint(jnp.clip(self.multiplier * jnp.exp(_RATE * violation), *_LIMITS), violation, self.tolerance)


def lagrangian(
    learner: Learner, carry: Constraint, windows: Windows, key: Array, settings: COGPSSMSettings
) -> tuple[Float[Array, ""], tuple[Constraint, dict[str, Array]]]:
    """What to maximise with a fixed multiplier; with a learned one, something that has its gradient."""
    parts = terms(learner.model, learner.states(windows), windows, key, settings.num_samples)
    value = parts.bound + (carry.multiplier - 1.0) * parts.log_density
    if not settings.learned:
        return value, (carry, parts.named())
    # The Lagrangian of one step cannot be compared with that of another, whose multiplier differs.
    # The bound can, and lies below the evidence whatever the multiplier: it decides which of the
    # models on the way is the best, while the gradient is that of the Lagrangian.
    comparable = jax.lax.stop_gradient(parts.bound) + (value - jax.lax.stop_gradient(value))
    reported = parts.named() | {"error / tolerance": parts.error / carry.tolerance, "multiplier": carry.multiplier}
    return comparable, (jax.lax.stop_gradient(carry.after(parts.error)), reported)


@dataclass(frozen=True)
class COGPSSM(VGPSSM):
    """CO-GPSSM with everything a user may want to choose.

    Args:
        multiplier: weight of the likelihood; learned by default.
        tolerance: largest mean squared error of the reconstructed outputs, relative to their
            variances. By default R where that is fixed, else from a linear fit.

    >>> import gpssm
    >>> gpssm.COGPSSM(state_dim=4, tolerance=0.01).name
    'CO-GPSSM'
    """

    multiplier: float | None = field(default=None, kw_only=True)
    tolerance: float | None = field(default=None, kw_only=True)
    name: str = field(default="CO-GPSSM", kw_only=True)

    objective: ClassVar[Objective] = staticmethod(lagrangian)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.likelihood != "gaussian":
            raise InvalidInput(
                f"likelihood: {self.name} bounds a squared error; expected 'gaussian', got {self.likelihood!r}."
            )
        for argument in ("multiplier", "tolerance"):
            value = getattr(self, argument)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < np.inf):
                raise InvalidInput(f"{argument}: expected a positive number or None, got {value!r}.")

    def learner(self, problem: Problem, key: Array) -> tuple[Learner, Any]:
        learner, _ = super().learner(problem, key)
        if self.tolerance is not None:
            tolerance = float(self.tolerance)
        elif "obs_noise.variance" in problem.held:
            tolerance = float(np.mean(np.asarray(problem.model.obs_noise.variance)))
        else:
            standard = problem.scaling.standardise(problem.outputs, problem.inputs)
            tolerance = unpredicted(*standard, self.state_dim)
        multiplier = 1.0 if self.multiplier is None else float(self.multiplier)
        return learner, Constraint(jnp.asarray(multiplier), jnp.zeros(()), jnp.asarray(tolerance))

    def settings(self, initial: Initialisation) -> COGPSSMSettings:
        return COGPSSMSettings(self.num_samples, self.multiplier is None)


def unpredicted(outputs: list[np.ndarray], inputs: list[np.ndarray], state_dim: int) -> float:
    """Mean squared error, one step ahead, of a linear state-space model of standardised recordings."""
    dy = outputs[0].shape[1]
    errors = subspace.residuals(*subspace.identify(outputs, inputs, max(state_dim, dy)), inputs)[:, :dy]
    seen = ~np.isnan(np.concatenate([y[1:] for y in outputs]))
    return float(np.clip(np.mean(errors[seen] ** 2), 1e-6, 1.0)) if seen.any() else 1.0
