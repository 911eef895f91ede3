"""Small neural networks whose weights are named parameters, for transitions and recognition models."""

from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.numerics.parameters import Leaf, parameter
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import shape


@saved
class Dense(eqx.Module):
    """`W x + b`. Parameters: `weight` (out, in), `bias` (out,)."""

    weight: Annotated[Leaf, shape("o i")] = parameter("real")
    bias: Annotated[Leaf, shape("o")] = parameter("real")

    @classmethod
    def start(cls, key: Array, inputs: int, outputs: int, scale: float = 1.0) -> "Dense":
        """Random weights of variance `scale^2 / inputs`."""
        weight = jax.random.normal(key, (outputs, inputs), jnp.float32) * scale / max(inputs, 1) ** 0.5
        return cls(np.asarray(weight, float), np.zeros(outputs))

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        return x @ self.weight.T + self.bias


@saved
class MLP(eqx.Module):
    """Dense layers with `tanh` between them: rows of `sizes[0]` numbers to rows of `sizes[-1]`."""

    layers: tuple[Dense, ...]

    @classmethod
    def start(cls, key: Array, sizes: tuple[int, ...], last: float = 1.0) -> "MLP":
        """`sizes` from input to output; the weights of the last layer are multiplied by `last`."""
        keys = jax.random.split(key, len(sizes) - 1)
        scales = [1.0] * (len(sizes) - 2) + [last]
        return cls(tuple(Dense.start(*each) for each in zip(keys, sizes[:-1], sizes[1:], scales, strict=True)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """From input to output, as `start` takes them."""
        first = self.layers[0].weight.shape[-1]
        return first, *(layer.weight.shape[-2] for layer in self.layers)

    def check_fields(self) -> None:
        """Refuse layers of a file that do not follow each other."""
        read = tuple(layer.weight.shape[-1] for layer in self.layers)
        if not self.layers or read != self.sizes[:-1]:
            raise InvalidInput(f"layers: they read {read} numbers; expected as many as the layer before each writes.")

    def check_ends(self, first: int, last: int) -> None:
        """Refuse a network of a file that reads or writes other numbers than it should."""
        if (self.sizes[0], self.sizes[-1]) != (first, last):
            raise InvalidInput(f"network: layers of sizes {self.sizes}; expected {first} to {last}.")

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        for layer in self.layers[:-1]:
            x = jnp.tanh(layer(x))
        return self.layers[-1](x)


@saved
class GRU(eqx.Module):
    """Gated recurrent unit (Cho et al. 2014): sequences (b, t, inputs) to states (b, t, width), from zero."""

    gates: Dense  # reset and update
    candidate: Dense

    @classmethod
    def start(cls, key: Array, inputs: int, width: int) -> "GRU":
        """Random weights."""
        key_gates, key_candidate = jax.random.split(key)
        return cls(Dense.start(key_gates, inputs + width, 2 * width), Dense.start(key_candidate, inputs + width, width))

    def __call__(self, x: Float[Array, "b t i"], *, reverse: bool = False) -> Float[Array, "b t h"]:
        """The state after each sample; with `reverse`, from the last to the first."""
        width = self.candidate.weight.shape[0]

        def step(h: Array, now: Array) -> tuple[Array, Array]:
            reset, update = jnp.split(jax.nn.sigmoid(self.gates(jnp.concatenate([now, h], axis=-1))), 2, axis=-1)
            proposed = jnp.tanh(self.candidate(jnp.concatenate([now, reset * h], axis=-1)))
            h = update * h + (1.0 - update) * proposed
            return h, h

        first = jnp.zeros((x.shape[0], width), x.dtype)
        return jnp.swapaxes(jax.lax.scan(step, first, jnp.swapaxes(x, 0, 1), reverse=reverse)[1], 0, 1)


@saved
class BidirectionalGRU(eqx.Module):
    """One unit that reads forwards, one backwards; their states side by side."""

    forwards: GRU
    backwards: GRU

    @classmethod
    def start(cls, key: Array, inputs: int, width: int) -> "BidirectionalGRU":
        """Random weights; `width` numbers in each direction."""
        key_forwards, key_backwards = jax.random.split(key)
        return cls(GRU.start(key_forwards, inputs, width), GRU.start(key_backwards, inputs, width))

    def __call__(self, x: Float[Array, "b t i"]) -> Float[Array, "b t h2"]:
        return jnp.concatenate([self.forwards(x), self.backwards(x, reverse=True)], axis=-1)


def readable(outputs: Any, inputs: Any) -> Float[Array, "b t i"]:
    """Windows without NaN, for a network: outputs (zero where missing), 1 where they are observed or 0, and inputs."""
    y, c = jnp.asarray(outputs), jnp.asarray(inputs)
    seen = ~jnp.isnan(y)
    return jnp.concatenate([jnp.where(seen, y, 0.0), seen.astype(y.dtype), c], axis=-1)


def readable_width(output_dim: int, input_dim: int) -> int:
    """Numbers per sample of `readable`."""
    return 2 * output_dim + input_dim
