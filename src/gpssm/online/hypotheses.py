"""Hypotheses that run side by side until the likelihood of their predictions tells which is right.

What is seen as steps of the state may be dynamics, or observation noise on slow dynamics: a stream cannot
know when it starts, and one that starts from the wrong values needs long to find back.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.filters.particle import weighted_moments
from gpssm.online.base import Info
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Carried, Stacked


class Hypothesis(NamedTuple):
    """Start values, relative to the spread of the states (length scale) and to the mean square of their steps."""

    lengthscale: float
    amplitude: float
    """A variance, as the next."""
    process_noise: float
    linear_std: float
    """Standard deviation of the weights of the linear function, in steps."""


# What is seen as steps of the state is dynamics; or most of it is observation noise on slow, nearly linear dynamics.
ROUGH, NOISE = Hypothesis(1.0, 2.0**2, 0.25, 1.0), Hypothesis(3.0, 0.05**2, 0.05, 0.1)
# With the past in the state, dynamics may be nearly linear. (Without it the evidence of a hundred noisy samples of a
# kink prefers this one, wrongly, in one of five cases.)
SMOOTH = Hypothesis(3.0, 0.5**2, 0.25, 1.0)


def plausible(with_past: bool) -> tuple[Hypothesis, ...]:
    """Those that are worth a trial, for states with or without their past."""
    return (ROUGH, SMOOTH, NOISE) if with_past else (ROUGH, NOISE)


@saved
class Hypotheses(eqx.Module):
    """The states of all hypotheses, stacked, and the log-likelihood of what each has predicted."""

    states: Annotated[Any, Carried, Stacked("b")]
    evidence: Float[Array, " b"]

    @classmethod
    def of(cls, states: list[Any]) -> "Hypotheses":
        """All with the same chances."""
        return cls(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), jnp.zeros(len(states)))

    def best(self) -> Any:
        """The state of the one that has predicted best so far."""
        leader = jnp.argmax(self.evidence)
        return jax.tree.map(lambda leaf: leaf[leader], self.states)


def leading(state: Any) -> Any:
    """The state itself, or that of the best of several hypotheses."""
    return state.best() if isinstance(state, Hypotheses) else state


def step(
    one: Callable[..., tuple[Any, Info]], key: Array, state: Hypotheses, y: Array, c: Array
) -> tuple[Hypotheses, Info]:
    """The step `one` for every hypothesis; their estimates are averaged by the likelihood of what they predicted."""
    states, infos = jax.vmap(one, in_axes=(None, 0, None, None))(key, state.states, y, c)
    before = jax.nn.softmax(state.evidence)
    scores = jnp.where(jnp.isfinite(infos.log_score), infos.log_score, -1e30)
    evidence = state.evidence + scores
    evidence = evidence - jnp.max(evidence)
    mean, cov = weighted_moments(infos.state_mean, jax.nn.softmax(evidence), infos.state_cov)
    predicted, variance = weighted_moments(infos.predicted_mean, before, jax.vmap(jnp.diag)(infos.predicted_std**2))
    score = jax.scipy.special.logsumexp(scores, b=before)
    return Hypotheses(states, evidence), Info(mean, cov, predicted, jnp.sqrt(jnp.diagonal(variance)), score)
