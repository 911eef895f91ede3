"""vGPSSM: identification of GP state-space models by mean field (Eleftheriadis et al., NeurIPS 2017).

    q(x_{0:T}, f) = q(f) q(x_0) prod_t q(x_t | x_{t-1}),    q(x_t | x_{t-1}) = N(A_t x_{t-1} + b_t, L_t L_t^T)

The states are independent of f; A_t, b_t and L_t are read from the recording by a bidirectional
recurrent network. With f integrated out at every x_{t-1}, f(x) ~ N(m(x), V(x)), the bound is

    sum_t E[log N(y_t | g(x_t), R)] - KL[q(x_0) || p(x_0)] - KL[q(u) || p(u)]
      - sum_t E{ KL[q(x_t | x_{t-1}) || N(m(x_{t-1}), Q)] + 1/2 tr(Q^{-1} V(x_{t-1})) }.

The last line is the entropy of q and the expected log-density of the transition, in closed form
given x_{t-1}; the expectations left are over sampled paths of the linear chain, and f is evaluated
at all of their states at once.

Where the paper leaves room, what is best for the method:

- the network reads a long recording in windows, with some samples of their neighbours, but the
  chain is not cut: a window starts where its left neighbour ends, so that this is the bound of the
  whole recording, with one x_0;
- q is initialised at the least-squares state of y_t where there is one, and what is not seen decays; what
  the network adds to this is small at first;
- where states are hidden, the linear mean function is kept a contraction (`base.contracted`): the bound
  looks one step ahead;
- the mean function itself, start values and optimiser are those of EnVI, and a fitted model is
  filtered by the ensemble Kalman filter, so that a forecast starts from a state that has seen the data.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.methods.base import GPMethod, Learner
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState
from gpssm.numerics.networks import BidirectionalGRU, Dense, readable, readable_width
from gpssm.numerics.parameters import Leaf, parameter
from gpssm.training.optimiser import Objective
from gpssm.training.problem import Initialisation, Problem
from gpssm.training.windows import Windows, by_time, expected_log_density

_CONTEXT = 10  # samples of either neighbour that the network reads
_DECAY = 0.5  # of what is not seen
_SPREAD = 0.3  # of q(x_t | x_{t-1}), standardised
_HEAD = 0.1  # of the network's first corrections


class Chain(eqx.Module):
    """`q(x_t | x_{t-1}) = N(A_t x_{t-1} + b_t, L_t L_t^T)` for every sample of every window."""

    weight: Float[Array, "b w dx dx"]
    offset: Float[Array, "b w dx"]
    chol: Float[Array, "b w dx dx"]

    def paths(
        self, initial: InitialState, windows: Windows, key: Array, num_samples: int
    ) -> tuple[Float[Array, "b w n dx"], Float[Array, "b w n dx"]]:
        """Sampled states before and after every step. Padding leaves a state where it is.

        A state in a window is an affine function of the one that the window starts from: all windows
        find theirs side by side, then the starts follow one from the other, in as many steps as
        there are windows. Windows are in the order in which `windows.cut` makes them.
        """
        num_windows, length, dx = self.offset.shape
        key_start, key_noise = jax.random.split(key)
        dtype = self.offset.dtype
        on = jnp.asarray(windows.active)[..., None, None] > 0
        eps = jax.random.normal(key_noise, (num_windows, length, num_samples, dx), dtype)
        pushes = jnp.where(on, self.offset[:, :, None] + jnp.einsum("bwij,bwnj->bwni", self.chol, eps), 0.0)
        weights = jnp.where(on, self.weight, jnp.eye(dx, dtype=dtype))

        def within(affine: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[Any, Any]:
            slope, rest = affine
            weight, push = now
            moved = (weight @ slope, jnp.einsum("bij,bnj->bni", weight, rest) + push)
            return moved, moved

        first = (
            jnp.broadcast_to(jnp.eye(dx, dtype=dtype), (num_windows, dx, dx)),
            jnp.zeros((num_windows, num_samples, dx), dtype),
        )
        _, (slopes, rests) = jax.lax.scan(within, first, (by_time(weights), by_time(pushes)))

        fresh = initial.draw(key_start, num_samples)[windows.sequence]

        def between(end: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
            left, fresh, slope, rest = now
            start = jnp.where(left < 0, fresh, end)
            return start @ slope.T + rest, start

        _, starts = jax.lax.scan(between, fresh[0], (jnp.asarray(windows.left), fresh, slopes[-1], rests[-1]))
        after = jnp.einsum("wbij,bnj->bwni", slopes, starts) + by_time(rests)
        return jnp.concatenate([starts[:, None], after[:, :-1]], axis=1), after


class ChainNetwork(eqx.Module):
    """The chain of every window, from what a recurrent network reads in and around it.

        x_t = z_t + K S_t (y_t - C z_t - d) + dA_t x_{t-1} + db_t + L_t e_t,    z_t = F [x_{t-1}, c_t] + h

    A filter with a constant gain, S_t = diag(1 where an output is seen), and corrections dA_t, db_t and
    L_t from the network. Parameters: those of the network, `gain` K (dx, dy), `weight` F (dx, dx + dc),
    `bias` h (dx,), `emission` C and d. They are its own: q does not depend on the model.
    """

    reader: BidirectionalGRU
    head: Dense
    gain: Leaf = parameter("real")
    weight: Leaf = parameter("real")
    bias: Leaf = parameter("real")
    emission: LinearEmission

    @classmethod
    def start(cls, key: Array, model: GPSSM, dims: tuple[int, int], width: int) -> "ChainNetwork":
        """For so many outputs and inputs: the least-squares state of what is seen, and a decay of the rest.

        Behind an emission that is a function no output shows a state.
        """
        (dy, dc), dx = dims, model.state_dim
        key_reader, key_head = jax.random.split(key)
        reads, known = readable_width(dy, dc), model.emission
        emission = known if isinstance(known, LinearEmission) else LinearEmission(np.zeros((dy, dx)), np.zeros(dy))
        return cls(
            BidirectionalGRU.start(key_reader, reads, width),
            Dense.start(key_head, 2 * width + reads, dx * (2 * dx + 1), scale=_HEAD),
            np.linalg.pinv(np.asarray(emission.weight)),
            _DECAY * np.eye(dx, dx + dc),
            np.zeros(dx),
            emission,
        )

    def __call__(self, windows: Windows) -> Chain:
        dx = self.gain.shape[0]
        read = readable(windows.outputs, windows.inputs) * jnp.asarray(windows.active)[..., None]
        features = jnp.concatenate([self._read(read, windows), read], axis=-1)
        weight, offset, chol = jnp.split(self.head(features), [dx * dx, dx * (dx + 1)], axis=-1)
        weight, chol = (part.reshape(*part.shape[:-1], dx, dx) for part in (weight, chol))
        y, c = jnp.asarray(windows.outputs), jnp.asarray(windows.inputs)
        seen = ~jnp.isnan(y)
        shown = jnp.where(seen, jnp.where(seen, y, 0.0) - self.emission.bias, 0.0) @ self.gain.T
        eye = jnp.eye(dx, dtype=y.dtype)
        kept = eye - (self.gain * seen[..., None, :]) @ self.emission.weight
        drift = c @ self.weight[:, dx:].T + self.bias
        diagonal = _SPREAD * jnp.exp(jnp.diagonal(chol, axis1=-2, axis2=-1))
        return Chain(
            kept @ self.weight[:, :dx] + weight,
            jnp.einsum("bwij,bwj->bwi", kept, drift) + shown + offset,
            jnp.tril(chol, -1) + diagonal[..., None] * eye,
        )

    def _read(self, read: Float[Array, "b w i"], windows: Windows) -> Float[Array, "b w h"]:
        """The reader's states in every window; it has passed some samples of the neighbours on either side."""
        context = min(_CONTEXT, read.shape[1])
        continued = (jnp.asarray(windows.left) >= 0)[:, None, None]
        nothing = jnp.zeros_like(read[:1, :context])
        before = jnp.where(continued, jnp.concatenate([nothing, read[:-1, -context:]]), 0.0)
        behind = jnp.concatenate([jnp.where(continued[1:], read[1:, :context], 0.0), nothing])
        states = self.reader(jnp.concatenate([before, read, behind], axis=1))
        return states[:, context:-context]


class Terms(NamedTuple):
    """What the bound is made of, in nats but for `error`."""

    log_density: Float[Array, ""]
    """`sum_t E[log N(y_t | g(x_t), R)]` of standardised outputs."""
    error: Float[Array, ""]
    """`E (y_t - g(x_t))^2`, standardised, averaged over what was seen."""
    likelihood: Float[Array, ""]
    """`log_density` in the user's units."""
    kl_x: Float[Array, ""]
    kl_u: Float[Array, ""]
    kl_x0: Float[Array, ""]

    @property
    def bound(self) -> Float[Array, ""]:
        """The evidence lower bound of outputs in the user's units."""
        return self.likelihood - self.kl_x - self.kl_u - self.kl_x0

    def named(self) -> dict[str, Array]:
        """The terms by the names that the history of a fit has for them."""
        return {"likelihood": self.likelihood, "KL(x)": self.kl_x, "KL(u)": self.kl_u, "KL(x0)": self.kl_x0}


def terms(model: GPSSM, chain: Chain, windows: Windows, key: Array, num_samples: int) -> Terms:
    """The terms of the bound for a given q of the states, from `num_samples` paths. Cost O(T n dx M^2)."""
    before, after = chain.paths(model.initial_state, windows, key, num_samples)
    y = jnp.asarray(windows.outputs)
    densities = jax.vmap(jax.vmap(lambda x, y: expected_log_density(model, x, y)))(after, y)
    seen = ~jnp.isnan(y)
    residual = jnp.where(seen, y, 0.0)[:, :, None] - jax.vmap(jax.vmap(model.emission))(after)
    squares = jnp.where(seen, jnp.mean(residual**2, axis=2), 0.0)
    active = jnp.asarray(windows.active) > 0
    kl_x = jnp.sum(jnp.where(active, _step_divergences(model, chain, windows, before), 0.0))
    likelihood = jnp.sum(densities)
    return Terms(
        likelihood, jnp.sum(squares) / jnp.maximum(jnp.sum(seen), 1), likelihood - windows.log_volume,
        kl_x, model.transition.kl(), model.initial_state.kl(),
    )  # fmt: skip


def _step_divergences(
    model: GPSSM, chain: Chain, windows: Windows, before: Float[Array, "b w n dx"]
) -> Float[Array, "b w"]:
    """`E{ KL[q(x_t | x_{t-1}) || N(m, Q)] + 1/2 tr(Q^{-1} V) }` over the sampled x_{t-1}."""
    inputs = jnp.asarray(windows.inputs)[:, :, None]
    rows = jnp.concatenate([before, jnp.broadcast_to(inputs, (*before.shape[:-1], inputs.shape[-1]))], axis=-1)
    mean, noise = model.transition.marginal()(rows.reshape(-1, rows.shape[-1]))
    # Only the diagonal of V is needed: Q is diagonal.
    mean, variance = mean.reshape(before.shape), noise.variance.reshape(before.shape)
    q = model.process_noise.variance
    moved = jnp.einsum("bwij,bwnj->bwni", chain.weight, before) + chain.offset[:, :, None]
    squares = jnp.mean((moved - mean) ** 2 + variance, axis=2) + jnp.sum(chain.chol**2, axis=-1)
    log_chol = jnp.log(jnp.diagonal(chain.chol, axis1=-2, axis2=-1))
    return 0.5 * jnp.sum(squares / q - 1.0 + jnp.log(q) - 2.0 * log_chol, axis=-1)


def elbo(
    learner: Learner, carry: Array, windows: Windows, key: Array, num_samples: int
) -> tuple[Float[Array, ""], tuple[Array, dict[str, Array]]]:
    """The bound, from `num_samples` paths of the states; nothing is carried."""
    parts = terms(learner.model, learner.states(windows), windows, key, num_samples)
    return parts.bound, (carry, parts.named())


@dataclass(frozen=True)
class VGPSSM(GPMethod):
    """vGPSSM with everything a user may want to choose.

    Args:
        num_samples: paths of the states at every step.
        width: of the recurrent network, in each direction.

    >>> import gpssm
    >>> gpssm.VGPSSM(state_dim=4, width=8).name
    'vGPSSM'
    """

    num_samples: int = field(default=8, kw_only=True)
    width: int = field(default=16, kw_only=True)
    name: str = field(default="vGPSSM", kw_only=True)

    _COUNTS = GPMethod._COUNTS | {"num_samples": 1, "width": 1}
    objective: ClassVar[Objective] = staticmethod(elbo)

    def learner(self, problem: Problem, key: Array) -> tuple[Learner, Any]:
        states = ChainNetwork.start(key, problem.model, problem.dims[1:], self.width)
        return Learner(problem.model, states), jnp.zeros(())

    def settings(self, initial: Initialisation) -> Any:
        return self.num_samples

    def contracts(self, initial: Initialisation) -> bool:
        return initial.hidden and self.mean == "linear"
