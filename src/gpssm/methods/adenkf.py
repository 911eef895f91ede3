"""AD-EnKF: autodifferentiable ensemble Kalman filters (Chen, Sanz-Alonso and Willett, SIMODS 2022).

    x_t = f(x_{t-1}, c_t) + v_t,   f(x, c) = A [x, c] + b + MLP([x, c]),   v_t ~ N(0, Q)

    maximise  sum_t log N(y_t | C mbar_t, C Pbar_t C^T + R)

over the weights of f, Q and R, differentiated through the filter: EnVI's likelihood, with a network in
place of the GP and no divergence to pay for it. Nothing is said of how uncertain f is, and nothing asks
for stable free runs: where a system nearly integrates its input, long forecasts may drift.

The paper truncates back-propagation after some steps, which here is `window`: windows are filtered side
by side, and what each starts from, its left neighbour's last ensemble, is not differentiated. Where
the paper leaves room, what is best for the method: the linear part of f, started from least squares as
EnVI's mean is; moments and update of the filter, start values and optimiser are those of EnVI; q(x_0) of
a recording is learned, without its divergence in the objective; the best of several restarts is kept.
"""

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.filters import ensemble
from gpssm.gp.means import Linear
from gpssm.methods import envi
from gpssm.methods.base import StateSpaceMethod, default_update
from gpssm.models.gpssm import GPSSM
from gpssm.models.neural import ResidualTransition
from gpssm.training import initialisation, subspace
from gpssm.training.problem import Initialisation, Problem, RoughStates
from gpssm.training.windows import Windows


def log_likelihood(
    model: GPSSM, carry: Float[Array, "b n dx"], windows: Windows, key: Array, settings: envi.EnVISettings
) -> tuple[Float[Array, ""], tuple[Float[Array, "b n dx"], dict[str, Array]]]:
    """That of the ensemble Kalman filter: what EnVI's bound is before divergences are subtracted."""
    _, (carry, terms) = envi.elbo(model, carry, envi.Data(windows), key, settings)
    return terms["likelihood"], (carry, {"likelihood": terms["likelihood"]})


@dataclass(frozen=True)
class ADEnKF(StateSpaceMethod):
    """AD-EnKF with everything a user may want to choose.

    Args:
        num_members: size of the ensemble; by default 50, or 16 where states are hidden.
        width: units of the network's hidden layer; by default 16, or 8 where states are hidden: the
            likelihood alone does not keep a wide network from learning a short recording by heart.

    >>> import gpssm
    >>> gpssm.ADEnKF(state_dim=4, num_members=32).name
    'AD-EnKF'
    """

    num_members: int | None = field(default=None, kw_only=True)
    width: int | None = field(default=None, kw_only=True)
    name: str = field(default="AD-EnKF", kw_only=True)

    _COUNTS = StateSpaceMethod._COUNTS | {"num_members": 3, "width": 1}
    fills_up = True
    objective = staticmethod(log_likelihood)

    def transition(self, rough: RoughStates, seed: int) -> ResidualTransition:
        mean = Linear(*subspace.one_step(rough.states, rough.inputs))
        hidden = self.state_dim > len(rough.scaling.output_shift)
        return ResidualTransition.start(jax.random.key(seed), mean, self.width or (8 if hidden else 16))

    def learner(self, problem: Problem, key: Array) -> tuple[GPSSM, Any]:
        key_network, key_carry = jax.random.split(key)
        members = problem.settings.num_members
        carry = initialisation.ensembles(problem, members, key_carry, jnp.dtype(self.dtype))
        # Every restart has its own weights: with the same ones they would end much alike.
        old = problem.model.transition
        drawn = ResidualTransition.start(key_network, old.mean, len(old.network.layers[0].bias))
        return eqx.tree_at(lambda m: m.transition, problem.model, drawn), carry

    def settings(self, initial: Initialisation) -> envi.EnVISettings:
        options = ensemble.Options(update=default_update(initial))
        return envi.EnVISettings(self.num_members or (16 if initial.hidden else 50), 1, options, None, 0)

    def default_restarts(self, problem: Problem) -> int:
        return 3
