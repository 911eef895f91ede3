"""OEnVI: learning live, one sample at a time, in constant memory.

The paper's Algorithm 2 moves an ensemble one step, scores the sample, conditions on it, and takes a
gradient step on q(u) and the parameters. Here the ensemble carries only what is nonlinear, the
state; q(u) is updated in closed form together with it, so that the posterior after one sample is
the prior of the next and the prior counts once. `OEnVI.paper` is the paper's objective.

Nothing is known beforehand. The first samples give units; inducing inputs are placed where the
stream goes, and moved when it goes elsewhere; and for a while several hypotheses run side by side,
some that take the steps seen for dynamics and one that takes them for noise, until the likelihood of
their predictions tells which is right.

A sample: place an inducing input, predict, condition the state and q(u) on it in closed form (`filters.augmented`),
let older samples count a little less, then one step of Adam for what has no closed form:

    maximise  log N(y_t | C m_t, C P_t C^T + R)  +  E_q[log p(u)] / t.

The gradient of the noise variances goes through time (`filters.sensitivity`).
"""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.filters import augmented
from gpssm.filters.augmented import Predicted
from gpssm.gp.basis import Expansion, novel
from gpssm.gp.kernels import KERNELS, RBF, Stationary
from gpssm.models.emission import FunctionEmission
from gpssm.online import reading
from gpssm.online.adam import ascend, decay
from gpssm.online.augmented import AugmentedMethod, Hypothesis, assimilate, leading
from gpssm.online.base import Info, Units, bounded_lengthscale
from gpssm.online.oenvi.paper import PaperOEnVI
from gpssm.online.oenvi.state import OEnVIHyper, OEnVISettings, OEnVIState
from gpssm.online.stream import Stream
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import renamed
from gpssm.plumbing.precision import double_precision
from gpssm.posteriors.posterior import Posterior

# Of Adam, for the fields of `OEnVIHyper`. Noise variances must travel far; length scales change f everywhere.
_RATES = (0.01, 0.06, 0.08, 0.03, 0.01)
_LENGTHSCALE_EVERY = 2  # samples between two gradients of the length scales, the one costly part
# What was learned of f while the state was hardly known is worth less: at sample t, that of sample s counts as s / t,
# with this number added to both, so that the first samples do not forget each other.
_FORGET_FROM = 20.0


@saved
@dataclass(frozen=True)
class OEnVI(AugmentedMethod):
    """OEnVI with everything a user may want to choose. `OEnVI(state_dim).start()` is ready to learn.

    Args:
        kernel: `RBF()`, which is the default, `Matern32()` or `Matern52()`; its length scales and variances start
            from those of the first samples.
        num_members: number N of members of the ensemble.

    >>> import gpssm
    >>> gpssm.OEnVI(2, kernel=gpssm.Matern52(), input_lags=3).start()
    <OEnVI stream: 0 sample(s), 2 state(s)>
    """

    kernel: Annotated[Stationary, renamed(d="any")] = RBF()
    _: KW_ONLY
    num_members: int = 20
    name: str = "OEnVI"

    staying = True

    counts: ClassVar = {"num_inducing": 1, "trial": 0, "num_members": 4}

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.kernel).__name__ not in KERNELS:
            raise InvalidInput(f"kernel: expected {', '.join(KERNELS)}, got {self.kernel!r}.")

    @classmethod
    def paper(cls, state_dim: int, num_inducing: int = 15, **changes: Any) -> PaperOEnVI:
        """Algorithm 2 with the objective that the paper writes, for comparison.

        Args:
            state_dim: dimension of the state.
            num_inducing: inducing points of each state dimension's GP.
            changes: further arguments of `gpssm.online.oenvi.paper.PaperOEnVI`.

        >>> import gpssm
        >>> gpssm.OEnVI.paper(1, objective="alternative").start()
        <OEnVI (paper) stream: 0 sample(s), 1 state(s)>
        """
        return PaperOEnVI(state_dim, num_inducing, **changes)

    @classmethod
    @double_precision
    def continuing(cls, posterior: Posterior, num_inducing: int = 40, num_members: int = 20, seed: int = 0) -> Stream:
        """Learn from the archive, then go live: a stream that starts where the recording of a fit ended.

        Args:
            posterior: what `EnVI(...).fit(...)` has returned.
            num_inducing: budget of inducing inputs; the model's own are among them.
            num_members: size of the ensemble.
            seed: of the stream.

        >>> import gpssm
        >>> gpssm.OEnVI.continuing(gpssm.EnVI(1).fit(outputs))  # doctest: +SKIP
        <OEnVI stream: 0 sample(s), 1 state(s), 1 output(s), 0 input(s)>
        """
        if not isinstance(posterior, Posterior):
            raise InvalidInput(
                f"posterior: a {type(posterior).__name__} cannot go live; expected a model fitted by EnVI."
            )
        state = OEnVIState.continuing(posterior, num_inducing, num_members)
        method = cls(
            posterior.state_dim,
            num_inducing,
            kernel=state.kind(),
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
        lengthscale = of.lengthscale * float(np.mean(self.kernel.lengthscale))
        return OEnVIState.new(
            self.prior(units, of, self.num_inducing, self.num_members),
            (lengthscale * units.scale, of.amplitude * units.steps, of.process_noise * units.steps),
            units.obs_noise,
            np.sqrt(units.steps),
            OEnVISettings(type(self.kernel).__name__, self.obs_noise is None),
        )

    @staticmethod
    def step(key: Array, state: OEnVIState, y: Float[Array, " dy"], c: Float[Array, " dc"]) -> tuple[OEnVIState, Info]:
        """One sample: place an inducing input, predict, condition, learn. Deterministic: `key` is not used."""
        dx, hyper, process_noise, now = state.state_dim, state.hyper, state.process_noise, state.f
        current, now = state.placed(c, now, novel(process_noise, now.amplitude))
        basis, amplitude, factor = now.basis, now.amplitude, augmented.state_factor(current, dx)

        def predict(f: Expansion) -> Predicted:
            return augmented.predict(current, factor, f, process_noise, c, state.points)

        found = assimilate(state, current, predict(now), y, state.settings.learn_obs_noise)
        updated, update, verdict = found.state, found.update, found.verdict
        if len(amplitude) == dx:  # Not where a state is the past of another: that was seen, as good as the present.
            of_inducing = jnp.broadcast_to(amplitude[:, None], (len(amplitude), len(basis.used)))
            prior = jnp.concatenate([of_inducing, state.linear_prior], axis=1).ravel()
            share = jnp.where(verdict.seen, 1.0 / (state.count + _FORGET_FROM), 0.0)
            updated = augmented.forget(updated, prior, share)

        prior_share = 1.0 / (state.count + 10.0)
        moment = augmented.second_moment(current, dx, len(amplitude), len(basis.used))
        surprise = jnp.sum(moment * now.inverse, axis=(1, 2)) / amplitude
        at_lengthscale = state.count % _LENGTHSCALE_EVERY == 0

        def bound(log_lengthscale: Array) -> Array:
            """What a change of the length scales does to the log-density of y_t and to E[log p(u)]."""
            f = Expansion.learned(basis, state.kind, log_lengthscale, hyper.amplitude)
            moved = predict(f)
            log_det = len(amplitude) * jnp.sum(basis.used * jnp.log(jnp.diagonal(f.chol)))
            prior = -0.5 * jnp.sum(jnp.sum(moment * f.inverse, axis=(1, 2)) / amplitude) - log_det
            pull, curvature = update.pull, update.curvature
            fit = pull @ moved.mean + 0.5 * jnp.sum((jnp.outer(pull, pull) - curvature) * moved.cov)
            return fit + prior_share * prior

        of_obs = found.gradient.obs_noise
        gradient = OEnVIHyper(
            jax.lax.cond(at_lengthscale, jax.grad(bound), jnp.zeros_like, hyper.lengthscale),
            found.gradient.amplitude + prior_share * 0.5 * (surprise - jnp.sum(basis.used)),
            found.gradient.process_noise,
            jnp.sum(of_obs),
            of_obs,
        )
        # The length scales have a clock of their own.
        clock = OEnVIHyper(jnp.floor(state.count / _LENGTHSCALE_EVERY), *[state.count] * 4)
        active = OEnVIHyper(at_lengthscale & verdict.usual, *[verdict.seen] * 4)
        rates = OEnVIHyper(*(decay(state.count) * rate for rate in _RATES))
        hyper, adam = ascend(hyper, gradient, state.adam, clock=clock, rates=rates, active=active)
        new, info = state.moved(found, updated, basis, hyper, adam)
        return replace(new, hyper=_bounded(new)), info

    @staticmethod
    def posterior(state: Any) -> Posterior:
        """An ordinary fitted model whose recording ends here; what is lost on the way says `online.reading`."""
        return reading.posterior(leading(state), "OEnVI")


def _bounded(state: OEnVIState) -> OEnVIHyper:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity."""
    hyper, step_size = state.hyper, 2 * jnp.log(state.unit)
    return OEnVIHyper(
        bounded_lengthscale(hyper.lengthscale, state.spread[1], state.basis.scale),
        jnp.clip(hyper.amplitude, step_size - 10.0, step_size + 8.0),
        jnp.clip(hyper.process_noise, step_size - 12.0, step_size + 4.0),
        jnp.clip(hyper.obs_level, state.obs_unit - 12.0, state.obs_unit + 10.0),
        jnp.clip(hyper.obs_shape, -8.0, 8.0),
    )
