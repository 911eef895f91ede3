"""Transitions that are neural networks: nothing of f is uncertain but its additive noise.

They stand where a GP transition stands (`models.gpssm.Transition`), with no inducing points: a sample
of u has no entries, and a divergence from its prior is zero.
"""

from abc import abstractmethod
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.gp.means import Linear
from gpssm.models.noise import DiagonalNoise, Noise
from gpssm.numerics.networks import MLP, Dense
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import renamed


class NeuralTransition(eqx.Module):
    """`[x, c] -> mean and noise of x_t - v_t`, with a linear part `mean` that any linear system is in reach of."""

    mean: Linear

    def check_fields(self) -> None:
        """Refuse networks of a file that do not fit the linear part."""
        dx, d = np.shape(self.mean.weight)
        for network in vars(self).values():
            if isinstance(network, MLP):
                network.check_ends(d, dx)

    @abstractmethod
    def __call__(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n dx"], Noise]: ...

    @property
    def state_dim(self) -> int:
        return int(self.mean.bias.shape[0])

    @property
    def num_inducing(self) -> int:
        return 0

    def prior(self) -> "NeuralTransition":
        """Itself, as `marginal` is: there is no u to be given or to integrate out."""
        return self

    marginal = prior

    def draw(self, prior: "NeuralTransition", eps: Float[Array, "dx 0"]) -> Float[Array, "dx 0"]:
        """The weights of a sample of u, of which there are none."""
        return eps

    def given(self, alpha: Float[Array, "dx 0"]) -> "NeuralTransition":
        """Itself, for every sample of u."""
        return self

    def side_by_side(
        self, x: Float[Array, "b n d"], alphas: Float[Array, "b dx 0"]
    ) -> tuple[Float[Array, "b n dx"], Noise]:
        """All rows as one batch through the network."""
        b, n, d = x.shape
        return jax.tree.map(lambda leaf: leaf.reshape(b, n, -1), self(x.reshape(b * n, d)))

    def kl(self) -> Float[Array, ""]:
        """Zero: weights are estimated, not inferred."""
        return jnp.zeros((), jnp.result_type(self.mean.bias))


@saved
class ResidualTransition(NeuralTransition):
    """`f(x, c) = A [x, c] + b + MLP([x, c])`, known without uncertainty."""

    network: MLP

    @classmethod
    def start(cls, key: Array, mean: Linear, width: int, last: float = 0.1) -> "ResidualTransition":
        """One hidden layer, initially near the linear part: the network's last layer is multiplied by `last`."""
        dx, d = np.shape(mean.weight)
        return cls(mean, MLP.start(key, (d, width, dx), last))

    def __call__(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n dx"], Noise]:
        mean = self.mean(x) + self.network(x)
        return mean, DiagonalNoise(jnp.zeros_like(mean))


@saved
class GatedTransition(NeuralTransition):
    """The gated transition of deep Kalman filters (Krishnan et al. 2017, Section 5), with z = [x, c].

    g = sigmoid(MLP(z))      h = MLP(z)
    mean = (1 - g) * (W z + b) + g * h
    variance = softplus(V relu(h) + v)
    """

    gate: MLP
    proposal: MLP
    spread: Annotated[Dense, renamed(i="dx", o="dx")]

    @classmethod
    def start(
        cls, key: Array, mean: Linear, width: int, variance: Float[np.ndarray, " dx"], shut: float = 2.0
    ) -> "GatedTransition":
        """Initially near its linear part, all gates at `sigmoid(-shut)`, with the given variances."""
        dx, d = np.shape(mean.weight)
        key_gate, key_proposal, key_spread = jax.random.split(key, 3)
        gate, proposal = MLP.start(key_gate, (d, width, dx), 0.3), MLP.start(key_proposal, (d, width, dx))
        gate = eqx.tree_at(lambda m: m.layers[-1].bias, gate, np.full(dx, -shut))
        weight = Dense.start(key_spread, dx, dx, 0.1).weight
        return cls(mean, gate, proposal, Dense(weight, np.log(np.expm1(variance))))

    def __call__(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n dx"], Noise]:
        g, h = jax.nn.sigmoid(self.gate(x)), self.proposal(x)
        mean = (1.0 - g) * self.mean(x) + g * h
        return mean, DiagonalNoise(jax.nn.softplus(self.spread(jax.nn.relu(h))))
