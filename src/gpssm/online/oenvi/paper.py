"""OEnVI as the paper writes it (Algorithm 2): one Adam step per sample on

    L_t = E_q(u)[ log p(y_t | u, y_{1:t-1}) ] - KL[q(u) || p(u)]                              (Eq. OEnVI_obj)

with the members of the ensemble carried from sample to sample, not differentiated. Proposition 2
writes the first term as a reconstruction minus the distance between filtered and predicted state;
`objective="alternative"` maximises that form. The two are equal, up to rounding.

The whole KL at every sample counts the prior T times: `gpssm.OEnVI` counts it once. This is here for
comparison.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from gpssm.errors import InvalidInput
from gpssm.filters import ensemble
from gpssm.gp.sparse import standard_normal_kl
from gpssm.methods.envi import EnVI
from gpssm.models.gpssm import GPSSM
from gpssm.models.scaling import Scaling
from gpssm.numerics.linalg import cholesky, solve_lower
from gpssm.numerics.parameters import free_values, parameters, with_free_values
from gpssm.online.base import Info, OnlineMethod
from gpssm.online.reading import read_back
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative, shape
from gpssm.plumbing.validation import VariancesLike
from gpssm.posteriors.posterior import Posterior, sample_paths
from gpssm.training.problem import EmissionLike

NDArray = np.ndarray
Objective = Literal["likelihood", "alternative"]

_ADAM = optax.scale_by_adam()


@saved
class PaperSettings(NamedTuple):
    """What the compiled step is built for."""

    names: tuple[str, ...]
    objective: Objective
    learning_rate: float
    options: ensemble.Options = ensemble.Options("sampled", "perturbed")


@saved
class PaperState(eqx.Module):
    """Everything that is carried: model, Adam's moments, members; standardised by the first samples."""

    model: GPSSM
    adam: tuple[Int[Array, ""], dict[str, Array], NonNegative[dict[str, Array]]]
    members: Float[Array, "n dx"]
    scaling: Scaling
    settings: PaperSettings = eqx.field(static=True)

    def check_fields(self) -> None:
        """Refuse moments of a file that belong to other parameters."""
        shapes = {p.name: np.shape(p.value) for p in parameters(self.model) if p.name in self.settings.names}
        for moments in self.adam[1:]:
            if {name: np.shape(value) for name, value in moments.items()} != shapes:
                raise InvalidInput(f"adam: moments of {', '.join(moments)}; expected those of {', '.join(shapes)}.")


def _assimilate(
    model: GPSSM, members: Array, y: Array, c: Array, key: Array, options: ensemble.Options
) -> ensemble.Trace:
    """Lines 2-6 of Algorithm 2, for one sample of u."""
    key_u, key_noise = jax.random.split(key)
    prior = model.transition.prior()
    eps = jax.random.normal(key_u, (model.state_dim, model.num_inducing), members.dtype)
    dynamics = prior.given(model.transition.draw(prior, eps))
    trace = ensemble.run(dynamics, ensemble.Observing.of(model), members, y[None], c[None], key_noise, options)
    return jax.tree.map(lambda leaf: leaf[0], trace)


def objective(step: ensemble.Trace, model: GPSSM, y: Array) -> Array:
    """`log p(y_t | u, y_{1:t-1}) - KL[q(u) || p(u)]` (Eq. OEnVI_obj)."""
    return step.filtered.log_likelihood - model.transition.kl()


def alternative(step: ensemble.Trace, model: GPSSM, y: Array) -> Array:
    """The same by Proposition 2: reconstruction, distance of filtered from predicted state, KL of u. Linear g only."""
    seen = ~jnp.isnan(y)
    assert model.emission.matrix is not None
    matrix = jnp.where(seen[:, None], model.emission.matrix, 0.0)
    variance = jnp.where(seen, model.obs_noise.variance, 1.0)
    mean, cov = step.filtered.mean, step.filtered.cov
    residual = jnp.where(seen, y - model.emission(mean[None])[0], 0.0)
    quadratic = jnp.sum((residual**2 + jnp.sum((matrix @ cov) * matrix, axis=1)) / variance)
    reconstruction = -0.5 * (quadratic + jnp.sum(jnp.where(seen, jnp.log(2 * jnp.pi * variance), 0.0)))
    prior = cholesky(step.predicted.cov)
    whitened = solve_lower(prior, (mean - step.predicted.mean)[:, None])[:, 0]
    distance = standard_normal_kl(whitened, solve_lower(prior, cholesky(cov)))
    return reconstruction - distance - model.transition.kl()


_OBJECTIVES = {"likelihood": objective, "alternative": alternative}


@saved
@dataclass(frozen=True)
class PaperOEnVI(OnlineMethod):
    """Algorithm 2 with the paper's objective.

    The paper does not say where to start: scale, inducing inputs and start values come from the first
    `warm_up` samples, as `EnVI.paper` takes them from a recording.

    Args:
        state_dim: dimension dx of the state.
        num_inducing: inducing points of each state dimension's GP.
        emission: how outputs arise from states; as in `EnVI`, by default `"observed"`.
        obs_noise: start value of the variance(s) of the observation noise, one number or (dy,), in squared units of
            the outputs; by default a tenth of the variances of the first samples.
        fixed: names of parameters to hold fixed; by default none.
        num_members: number N of members of the ensemble.
        learning_rate: of Adam.
        objective: `"likelihood"` (Eq. OEnVI_obj) or `"alternative"` (Proposition 2).
        warm_up: samples looked at before the first one is learned from.
        name: of the method in summaries.
    """

    state_dim: Annotated[int, shape("dx")]
    num_inducing: Annotated[int, shape("m")] = 15
    emission: EmissionLike | list[Any] | tuple[Any, ...] | None = None
    obs_noise: VariancesLike | None = None
    fixed: tuple[str, ...] = ()
    num_members: int = 100
    learning_rate: float = 0.01
    objective: Objective = "likelihood"
    warm_up: int = 20
    name: str = "OEnVI (paper)"

    def initial_state(self, outputs: NDArray, inputs: NDArray) -> PaperState:
        """Start values from the first samples."""
        offline = EnVI.paper(
            self.state_dim, self.num_inducing, emission=self.emission, obs_noise=self.obs_noise, fixed=self.fixed
        )
        problem = offline.problem([outputs], [inputs])
        free = [p.name for p in parameters(problem.model) if p.name not in problem.held]
        names = tuple(name for name in free if not name.startswith("initial_state"))  # q(x_0) lies in the past
        model = jax.tree.map(jnp.asarray, problem.model)
        adam = tuple(_ADAM.init(free_values(model, names)))
        eps = jax.random.normal(jax.random.key(0), (1, self.num_members, self.state_dim))
        settings = PaperSettings(names, self.objective, self.learning_rate)
        return PaperState(model, adam, model.initial_state.members(eps)[0], problem.scaling, settings)

    @staticmethod
    def step(key: Array, state: PaperState, y: Array, c: Array) -> tuple[PaperState, Info]:
        """One iteration of Algorithm 2."""
        scaling, settings = state.scaling, state.settings
        y, c = scaling.standardise_outputs(y), scaling.standardise_inputs(c)

        def loss(free: dict[str, Array]) -> tuple[Array, ensemble.Trace]:
            model = with_free_values(state.model, free)
            step = _assimilate(model, state.members, y, c, key, settings.options)
            return -_OBJECTIVES[settings.objective](step, model, y), step

        free = free_values(state.model, settings.names)
        grad, step = jax.grad(loss, has_aux=True)(free)
        good = jnp.isfinite(optax.tree.norm(grad)) & jnp.any(~jnp.isnan(y))
        direction, adam = _ADAM.update(
            jax.tree.map(lambda g: jnp.where(good, g, 0.0), grad), optax.ScaleByAdamState(*state.adam)
        )
        rate = jnp.where(good, settings.learning_rate, 0.0)
        moved = {name: value - rate * direction[name] for name, value in free.items()}
        observed = ensemble.observe(state.model.emission, step.predicted)
        expected, variance = state.model.obs_noise.moments(observed.mean, jnp.diagonal(observed.cov))
        info = Info(
            scaling.states(step.filtered.mean),
            scaling.state_cov(step.filtered.cov),
            scaling.outputs(expected),
            jnp.sqrt(variance) * scaling.output_scale,
            step.filtered.log_likelihood - jnp.sum(jnp.where(jnp.isnan(y), 0.0, jnp.log(scaling.output_scale))),
        )
        model = with_free_values(state.model, moved)
        return replace(state, model=model, adam=tuple(adam), members=step.filtered.members), info

    @staticmethod
    def paths(key: Array, state: PaperState, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """Each with its own draw of u."""
        scaling = state.scaling
        standardised = scaling.standardise_inputs(inputs)
        states, outputs = sample_paths(state.model, state.members, standardised, key, num_paths=num_paths)
        return scaling.states(states), scaling.outputs(outputs)

    @staticmethod
    def transition(state: PaperState, x: Array) -> tuple[Array, Array]:
        """f with u integrated out."""
        scaling = state.scaling
        dx = state.model.state_dim
        parts = (scaling.standardise_states(x[:, :dx]), scaling.standardise_inputs(x[:, dx:]))
        mean, noise = state.model.transition.marginal()(jnp.concatenate(parts, axis=1))
        return scaling.states(mean), noise.variance * scaling.state_scale**2

    @staticmethod
    def process_noise(state: PaperState) -> Array:
        """Variances (dx,) as learned so far."""
        return jnp.diagonal(state.scaling.state_cov(state.model.process_noise.covariance))

    @staticmethod
    def posterior(state: PaperState) -> Posterior:
        """An ordinary fitted model whose recording ends here."""
        model, scaling, members = jax.tree.map(np.asarray, (state.model, state.scaling, state.members))
        return read_back(model, scaling, members, int(state.adam[0]), "OEnVI (paper)")
