"""OEnVI: learning live, one sample at a time, in constant memory.

The paper's Algorithm 2 moves an ensemble one step, scores the sample, conditions on it, and takes a
gradient step on q(u) and the parameters. Here the ensemble carries only what is nonlinear, the
state; q(u) is updated in closed form together with it, so that the posterior after one sample is
the prior of the next and the prior counts once. `OEnVI.paper` is the paper's objective.

Nothing is known beforehand. The first samples give units; inducing inputs are placed where the
stream goes, and moved when it goes elsewhere; and for a while several beginnings run side by side,
some that take the steps seen for dynamics and one that takes them for noise, until the likelihood of
their predictions tells which is right.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gpssm.errors import InvalidInput
from gpssm.filters import augmented
from gpssm.filters.augmented import Basis, Joint
from gpssm.gp.kernels import KERNELS, RBF, Stationary
from gpssm.models.emission import FunctionEmission
from gpssm.online import hypotheses
from gpssm.online.base import OnlineStateSpace, Units
from gpssm.online.hypotheses import Beginning, Trial, beginnings, leading
from gpssm.online.oenvi import conversion, core
from gpssm.online.oenvi.core import Hyper, Settings, State, correlations
from gpssm.online.oenvi.paper import PaperOEnVI
from gpssm.online.stream import Info, Stream
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import renamed
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors.posterior import Posterior

NDArray = np.ndarray


@saved
@dataclass(frozen=True)
class OEnVI(OnlineStateSpace):
    """OEnVI with everything a user may want to choose. `OEnVI(state_dim).start()` is ready to learn.

    Args, besides those of `OnlineStateSpace`:
        num_inducing: budget M of inducing inputs, shared by all state dimensions.
        kernel: `RBF()`, `Matern32()` or `Matern52()`.
        num_members: size N of the ensemble.
        trial: samples during which several beginnings run side by side.
    """

    num_inducing: int = 40
    kernel: Annotated[Stationary, renamed(d="any")] = RBF()
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
        if not isinstance(posterior, Posterior):
            raise InvalidInput(
                f"posterior: a {type(posterior).__name__} cannot go live; expected a model fitted by EnVI."
            )
        state = conversion.from_posterior(posterior, num_inducing, num_members)
        method = cls(
            posterior.state_dim,
            num_inducing,
            kernel=KERNELS[state.settings.kernel](),
            emission=state.emission.function if isinstance(state.emission, FunctionEmission) else state.emission.weight,
            input_lags=posterior.input_lags,
            num_members=num_members,
            trial=0,
        )
        return Stream(
            method,
            seed=seed,
            stored=state,
            input_dim=posterior.input_dim,
            output_dim=posterior.output_dim,
            recent=posterior.recent_inputs,
        )

    def begin(self, outputs: NDArray, inputs: NDArray) -> State | Trial:
        """Some beginnings; nothing but the units of the first samples is known."""
        units = self.units(outputs, inputs)
        begun = [self._begin(units, one) for one in beginnings(with_past=len(units.steps) < self.state_dim)]
        return Trial.of(begun) if self.trial else begun[0]

    def settled(self, state: State | Trial) -> State:
        """What goes on after the trial."""
        return leading(state)

    def _begin(self, units: Units, beginning: Beginning) -> State:
        dx, num, steps = self.state_dim, self.num_inducing, units.steps
        shift, scale = units.shift, units.scale
        level = float(np.mean(np.log(units.obs_noise)))
        prior = augmented.prior(dx, num, scale, steps, units.linear_prior(dx, beginning.linear))
        lengthscale = beginning.lengthscale * float(np.mean(self.kernel.lengthscale))
        hyper = Hyper(
            jnp.log(lengthscale * scale),
            jnp.log(beginning.amplitude**2 * steps),
            jnp.log(beginning.process_noise * steps),
            jnp.asarray(level),
            jnp.log(units.obs_noise) - level,
        )
        return core.new_state(
            Joint(jnp.concatenate([shift[:dx], np.zeros(len(prior) - dx)]), prior),
            Basis(jnp.zeros((num, len(scale))), jnp.zeros(num), jnp.asarray(shift), jnp.asarray(scale)),
            hyper,
            np.sqrt(steps),
            units.emission,
            Settings(type(self.kernel).__name__, self.obs_noise is None),
            augmented.members(self.num_members, dx),
        )

    @staticmethod
    def step(key: Array, state: State | Trial, y: Array, u: Array) -> tuple[State | Trial, Info]:
        """One sample, of one beginning or of those on trial."""
        return core.step(key, state, y, u) if isinstance(state, State) else hypotheses.step(core.step, key, state, y, u)

    @staticmethod
    def paths(key: Array, state: State | Trial, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """Each path has its own draw of the state and of f."""
        of: State = leading(state)
        amplitude, process_noise = jnp.exp(of.hyper.amplitude), jnp.exp(of.hyper.process_noise)
        obs_noise = jnp.exp(of.hyper.obs_level + of.hyper.obs_shape)
        kernel = correlations(of.settings, of.hyper.lengthscale)
        model = augmented.Model(of.basis, kernel, amplitude, process_noise, of.emission, obs_noise, of.spread)
        return augmented.sample_paths(key, of.joint, model, inputs, num_paths, staying=True)

    @staticmethod
    def transition(state: State | Trial, x: Array) -> tuple[Array, Array]:
        """f with W integrated out."""
        of: State = leading(state)
        kernel = correlations(of.settings, of.hyper.lengthscale)
        return augmented.transition(of.joint, of.basis, kernel, jnp.exp(of.hyper.amplitude), x)

    @staticmethod
    def process_noise(state: State | Trial) -> Array:
        """As learned so far."""
        of: State = leading(state)
        return jnp.pad(jnp.exp(of.hyper.process_noise), (0, of.state_dim - len(of.unit)))

    @staticmethod
    def posterior(state: State | Trial) -> Posterior:
        """An ordinary fitted model whose recording ends here.

        Its states are independent given u and its linear part is known, so that what the stream does not
        know of the linear part goes to u; correlations between state dimensions are lost.
        """
        return conversion.to_posterior(leading(state))
