"""Beginnings that run side by side until the likelihood of their predictions tells which is right.

What is seen as steps of the state may be dynamics, or observation noise on slow dynamics: a stream cannot
know when it starts, and one that has begun wrongly needs long to find back.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.online.stream import Info
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Carried, Stacked


class Beginning(NamedTuple):
    """Start values, relative to the spread of the states and the size of their steps."""

    lengthscale: float
    amplitude: float
    process_noise: float
    linear: float


# What is seen as steps of the state is dynamics; or most of it is observation noise on slow, nearly linear dynamics.
ROUGH, NOISE = Beginning(1.0, 2.0, 0.25, 1.0), Beginning(3.0, 0.05, 0.05, 0.1)
# With the past in the state, dynamics may be nearly linear. (Without it the evidence of a hundred noisy samples of a
# kink prefers this one, wrongly, in one of five cases.)
SMOOTH = Beginning(3.0, 0.5, 0.25, 1.0)


def beginnings(with_past: bool) -> tuple[Beginning, ...]:
    """Those that are worth a trial, for states with or without their past."""
    return (ROUGH, SMOOTH, NOISE) if with_past else (ROUGH, NOISE)


@saved
class Trial(eqx.Module):
    """The states of all beginnings, stacked, and the log-likelihood of what each has predicted."""

    states: Annotated[Any, Carried, Stacked("b")]
    evidence: Float[Array, " b"]

    @classmethod
    def of(cls, beginnings: list[Any]) -> "Trial":
        """All with the same chances."""
        return cls(jax.tree.map(lambda *leaves: jnp.stack(leaves), *beginnings), jnp.zeros(len(beginnings)))

    def best(self) -> Any:
        """The state of the one that has predicted best so far."""
        leader = jnp.argmax(self.evidence)
        return jax.tree.map(lambda leaf: leaf[leader], self.states)


def leading(state: Any) -> Any:
    """The state itself, or that of the best beginning of a trial."""
    return state.best() if isinstance(state, Trial) else state


def step(one: Callable[..., tuple[Any, Info]], key: Array, trial: Trial, y: Array, u: Array) -> tuple[Trial, Info]:
    """The step `one` for every beginning; their estimates are averaged by the likelihood of what they predicted."""
    states, infos = jax.vmap(one, in_axes=(None, 0, None, None))(key, trial.states, y, u)
    before = jax.nn.softmax(trial.evidence)
    scores = jnp.where(jnp.isfinite(infos.log_score), infos.log_score, -1e30)
    evidence = trial.evidence + scores
    evidence = evidence - jnp.max(evidence)
    mean, cov = _mixture(jax.nn.softmax(evidence), infos.state_mean, infos.state_cov)
    predicted, variance = _mixture(before, infos.predicted_mean, jax.vmap(jnp.diag)(infos.predicted_std**2))
    score = jax.scipy.special.logsumexp(scores, b=before)
    return Trial(states, evidence), Info(mean, cov, predicted, jnp.sqrt(jnp.diagonal(variance)), score)


def _mixture(weights: Array, means: Array, covs: Array) -> tuple[Array, Array]:
    """Mean and covariance of a mixture of Gaussians."""
    mean = weights @ means
    deviations = means - mean
    return mean, jnp.einsum("k,kij->ij", weights, covs + deviations[:, :, None] * deviations[:, None, :])
