"""OEnVI: learning live, one sample at a time, in constant memory.

The paper's Algorithm 2 moves an ensemble one step, scores the sample, conditions on it, and takes a
gradient step on q(u) and the parameters. Here the ensemble carries only what is nonlinear, the
state; q(u) is updated in closed form together with it, so that the posterior after one sample is
the prior of the next and the prior counts once. `OEnVI.paper` is the paper's objective.

Nothing is known beforehand. The first samples give units; inducing inputs are placed where the
stream goes, and moved when it goes elsewhere; and for a while two beginnings run side by side, one
that takes the steps seen for dynamics and one that takes them for noise, until the likelihood of
their predictions tells which is right.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gpssm.errors import InvalidInput
from gpssm.filters import ensemble, joint
from gpssm.filters.joint import Basis, Joint
from gpssm.gp.kernels import RBF, Stationary
from gpssm.methods import oenvi_core as core
from gpssm.methods import oenvi_models
from gpssm.methods.oenvi_core import KERNELS, Hyper, Settings, State, Trial, correlations
from gpssm.methods.oenvi_paper import PaperOEnVI
from gpssm.methods.online import OnlineStateSpace, Units
from gpssm.models.emission import FunctionEmission
from gpssm.posterior import Posterior
from gpssm.precision import double_precision
from gpssm.stream import Info, Stream

NDArray = np.ndarray


class Beginning(NamedTuple):
    """Start values, relative to the spread of the states and the size of their steps."""

    lengthscale: float
    amplitude: float
    process_noise: float
    linear: float


# What is seen as steps of the state is dynamics; or most of it is observation noise on slow, nearly linear dynamics.
_BEGINNINGS = (Beginning(1.0, 2.0, 0.25, 1.0), Beginning(3.0, 0.05, 0.05, 0.1))


@dataclass(frozen=True)
class OEnVI(OnlineStateSpace):
    """OEnVI with everything a user may want to choose. `OEnVI(state_dim).start()` is ready to learn.

    Args, besides those of `OnlineStateSpace`:
        num_inducing: budget M of inducing inputs, shared by all state dimensions.
        kernel: `RBF()`, `Matern32()` or `Matern52()`.
        num_members: size N of the ensemble.
        trial: samples during which two beginnings run side by side.
    """

    num_inducing: int = 40
    kernel: Stationary = RBF()
    _: KW_ONLY
    num_members: int = 20
    trial: int = 100
    name: str = "OEnVI"

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        return (("num_inducing", 1), ("num_members", 4), ("trial", 0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.kernel).__name__ not in KERNELS:
            raise InvalidInput(f"kernel: expected {', '.join(KERNELS)}, got {self.kernel!r}.")

    @classmethod
    def paper(cls, state_dim: int, num_inducing: int = 15, **changes: Any) -> PaperOEnVI:
        """Algorithm 2 with the objective that the paper writes, for comparison."""
        return PaperOEnVI(state_dim, num_inducing, **changes)

    @classmethod
    @double_precision
    def continuing(cls, posterior: Posterior, num_inducing: int = 40, num_members: int = 20, seed: int = 0) -> Stream:
        """Learn from the archive, then go live: a stream that starts where the recording of a fit ended."""
        state = oenvi_models.from_posterior(posterior, num_inducing, num_members)
        method = cls(
            posterior.state_dim,
            num_inducing,
            kernel=KERNELS[state.settings.kernel](),
            emission=state.emission.function if isinstance(state.emission, FunctionEmission) else state.emission.weight,
            num_members=num_members,
            trial=0,
        )
        return Stream(method, seed=seed, stored=state, input_dim=posterior.input_dim, output_dim=posterior.output_dim)

    def begin(self, outputs: NDArray, inputs: NDArray) -> State | Trial:
        """Two beginnings; nothing but the units of the first samples is known."""
        units = self.units(outputs, inputs)
        beginnings = [self._begin(units, beginning) for beginning in _BEGINNINGS]
        if not self.trial:
            return beginnings[0]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *beginnings)
        return Trial(stacked, jnp.zeros(len(beginnings)))

    def settled(self, state: State | Trial) -> State:
        """What goes on after the trial."""
        return _leading(state)

    def _begin(self, units: Units, beginning: Beginning) -> State:
        dx, num, steps = self.state_dim, self.num_inducing, units.steps
        shift, scale = units.shift, units.scale
        level = float(np.mean(np.log(units.obs_noise)))
        width = num + len(scale) + 1
        prior = np.concatenate([np.zeros(num), np.full(width - num, beginning.linear**2)])
        # 100 times the spread: where the state was before the first sample is not known.
        diagonal = np.concatenate([100 * scale[:dx] ** 2, np.outer(steps, prior).ravel()])
        lengthscale = beginning.lengthscale * float(np.mean(self.kernel.lengthscale))
        hyper = Hyper(
            jnp.log(lengthscale * scale),
            jnp.log(beginning.amplitude**2 * steps),
            jnp.log(beginning.process_noise * steps),
            jnp.asarray(level),
            jnp.log(units.obs_noise) - level,
        )
        return core.new_state(
            Joint(jnp.concatenate([shift[:dx], np.zeros(len(steps) * width)]), jnp.diag(diagonal)),
            Basis(jnp.zeros((num, len(scale))), jnp.zeros(num), jnp.asarray(shift), jnp.asarray(scale)),
            hyper,
            np.sqrt(steps),
            units.emission,
            Settings(type(self.kernel).__name__, self.obs_noise is None),
            joint.members(self.num_members, dx),
        )

    @staticmethod
    def step(key: Array, state: State | Trial, y: Array, u: Array) -> tuple[State | Trial, Info]:
        """One sample, of one beginning or of those on trial."""
        return core.step(key, state, y, u) if isinstance(state, State) else core.trial_step(key, state, y, u)

    @staticmethod
    def paths(key: Array, state: State | Trial, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """Each path has its own draw of the state and of f."""
        state = _leading(state)
        dx, rows, dtype = state.state_dim, len(state.unit), inputs.dtype
        key_start, key_x, key_y = jax.random.split(key, 3)
        values, vectors = jnp.linalg.eigh(state.joint.cov)
        eps = jax.random.normal(key_start, (num_paths, len(values)), dtype)
        drawn = state.joint.mean + (eps * jnp.sqrt(jnp.maximum(values, 0.0))) @ vectors.T
        weights = drawn[:, dx:].reshape(num_paths, rows, -1)
        kernel = correlations(state.settings, state.hyper.lengthscale)
        whitening = joint.whiten(state.basis, kernel)
        amplitude, process_noise = jnp.exp(state.hyper.amplitude), jnp.exp(state.hyper.process_noise)

        def body(x: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            c, own = now
            h, open_share = joint.features(state.basis, kernel, whitening, ensemble.with_inputs(x, c))
            std = jnp.sqrt(open_share[:, None] * amplitude + process_noise)
            noise = std * jax.random.normal(own, std.shape, dtype)
            x = joint.with_past(x[:, :rows] + jnp.einsum("nf,ndf->nd", h, weights) + noise, x)
            return x, x

        keys = jax.random.split(key_x, len(inputs))
        _, states = jax.lax.scan(body, drawn[:, :dx], (inputs, keys))
        clean = jax.vmap(state.emission)(states)
        obs_std = jnp.exp(0.5 * (state.hyper.obs_level + state.hyper.obs_shape))
        outputs = clean + obs_std * jax.random.normal(key_y, clean.shape, dtype)
        return jnp.swapaxes(states, 0, 1), jnp.swapaxes(outputs, 0, 1)

    @staticmethod
    def transition(state: State | Trial, x: Array) -> tuple[Array, Array]:
        """f with W integrated out."""
        state = _leading(state)
        dx, rows = state.state_dim, len(state.unit)
        kernel = correlations(state.settings, state.hyper.lengthscale)
        h, open_share = joint.features(state.basis, kernel, joint.whiten(state.basis, kernel), x)
        width = h.shape[1]
        cov = state.joint.cov[dx:, dx:].reshape(rows, width, rows, width)
        known = jnp.einsum("nf,dfdg,ng->nd", h, cov, h)
        mean = x[:, :rows] + h @ state.joint.mean[dx:].reshape(rows, width).T
        variance = known + open_share[:, None] * jnp.exp(state.hyper.amplitude)
        return joint.with_past(mean, x[:, :dx]), jnp.pad(variance, ((0, 0), (0, dx - rows)))

    @staticmethod
    def process_noise(state: State | Trial) -> Array:
        """As learned so far."""
        state = _leading(state)
        return jnp.pad(jnp.exp(state.hyper.process_noise), (0, state.state_dim - len(state.unit)))

    @staticmethod
    def posterior(state: State | Trial) -> Posterior:
        """An ordinary fitted model whose recording ends here.

        Its states are independent given u and its linear part is known, so that what the stream does not
        know of the linear part goes to u; correlations between state dimensions are lost.
        """
        return oenvi_models.to_posterior(_leading(state))


def _leading(state: State | Trial) -> State:
    """The state itself, or that of the beginning which has predicted best so far."""
    return state.best() if isinstance(state, Trial) else state
