"""OEnVI: learning live, one sample at a time, in constant memory.

The paper's Algorithm 2 moves an ensemble one step, scores the sample, conditions on it, and takes a
gradient step on q(u) and the parameters. Here the ensemble carries only what is nonlinear, the
state; q(u) is updated in closed form together with it, so that the posterior after one sample is
the prior of the next and the prior counts once. `OEnVI.paper` is the paper's objective.

Nothing is known beforehand. The first samples give units; inducing inputs are placed where the
stream goes, and moved when it goes elsewhere; and for a while several hypotheses run side by side,
some that take the steps seen for dynamics and one that takes them for noise, until the likelihood of
their predictions tells which is right.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import numpy as np

from gpssm.errors import InvalidInput
from gpssm.gp.kernels import KERNELS, RBF, Stationary
from gpssm.models.emission import FunctionEmission
from gpssm.online.augmented import AugmentedMethod
from gpssm.online.hypotheses import Hypothesis, leading
from gpssm.online.oenvi import conversion, core
from gpssm.online.oenvi.core import OEnVIHyper, OEnVISettings, OEnVIState
from gpssm.online.oenvi.paper import PaperOEnVI
from gpssm.online.stream import Stream
from gpssm.online.units import Units
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import renamed
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors.posterior import Posterior


@saved
@dataclass(frozen=True)
class OEnVI(AugmentedMethod):
    """OEnVI with everything a user may want to choose. `OEnVI(state_dim).start()` is ready to learn.

    Args, besides those of `OnlineStateSpace`:
        num_inducing: budget M of inducing inputs, shared by all state dimensions.
        kernel: `RBF()`, `Matern32()` or `Matern52()`.
        num_members: size N of the ensemble.
        trial: samples during which several hypotheses run side by side.
    """

    kernel: Annotated[Stationary, renamed(d="any")] = RBF()
    _: KW_ONLY
    num_members: int = 20
    name: str = "OEnVI"

    staying = True
    one_step = staticmethod(core.step)

    counts: ClassVar = {"num_inducing": 1, "trial": 0, "num_members": 4}

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

    def hypothesis(self, units: Units, of: Hypothesis) -> OEnVIState:
        """The state to start from if `of` is right."""
        level = float(np.mean(np.log(units.obs_noise)))
        lengthscale = of.lengthscale * float(np.mean(self.kernel.lengthscale))
        hyper = OEnVIHyper(
            jnp.log(lengthscale * units.scale),
            jnp.log(of.amplitude * units.steps),
            jnp.log(of.process_noise * units.steps),
            jnp.asarray(level),
            jnp.log(units.obs_noise) - level,
        )
        fields = self.prior(units, of, self.num_inducing, self.num_members)
        settings = OEnVISettings(type(self.kernel).__name__, self.obs_noise is None)
        return core.new_state(fields, hyper, np.sqrt(units.steps), settings)

    @staticmethod
    def posterior(state: Any) -> Posterior:
        """An ordinary fitted model whose recording ends here.

        Its states are independent given u and its linear part is known, so that what the stream does not
        know of the linear part goes to u; correlations between state dimensions are lost.
        """
        return conversion.to_posterior(leading(state))
