"""What methods share that carry an augmented state, one Gaussian over the state and the weights of f.

For a while several hypotheses run side by side, until the likelihood of their predictions tells which is right;
forecasts and f are those of the one that leads. What is seen as steps of the state may be dynamics, or observation
noise on slow dynamics: a stream cannot know when it starts, and one that starts from the wrong values needs long to
find back.
"""

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.filters import augmented, sensitivity
from gpssm.filters.augmented import AugmentedState, Innovation, Predicted
from gpssm.filters.sensitivity import NoiseGradient, Sensitivity
from gpssm.gp.basis import Basis, Expansion
from gpssm.gp.kernels import Stationary
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.numerics.linalg import symmetric_root
from gpssm.online import paths
from gpssm.online.base import Info, OnlineStateSpace, Units, host, running_spread
from gpssm.online.outliers import Verdict, judge
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Carried, NonNegative, Stacked

NDArray = np.ndarray

_FAR = 4.0  # standard deviations of all states so far, beyond which f is not extrapolated


class Tracked(eqx.Module):
    """All that is carried from one sample to the next; what is learned by gradient is the method's own."""

    augmented: AugmentedState
    basis: Basis
    sensitivity: Sensitivity
    count: NonNegative[Float[Array, ""]]
    rejected: NonNegative[Float[Array, ""]]
    """Outliers in a row."""
    spread: tuple[Float[Array, " dx"], NonNegative[Float[Array, " dx"]]]
    """Running mean and variance of the states: where length scales make sense."""
    emission: LinearEmission | FunctionEmission
    points: Float[Array, "n dx"]
    """Members of the ensemble, standardised."""
    hyper: eqx.AbstractVar[Any]
    """Logarithms of what is learned by gradient,"""
    adam: eqx.AbstractVar[Any]
    """and the moments of that gradient."""

    @property
    @abstractmethod
    def obs_noise(self) -> Float[Array, " dy"]:
        """Variances R of the observation noise."""

    @property
    @abstractmethod
    def kind(self) -> type[Stationary]:
        """The class of the kernel of f."""

    @classmethod
    def start(
        cls,
        state: AugmentedState,
        basis: Basis,
        emission: Any,
        points: NDArray,
        *,
        hyper: Any,
        count: float = 0.0,
        **own: Any,
    ) -> Self:
        """After `count` samples, with gradients that have no past yet; `own` are further fields of the method."""
        dx, rows, dy = points.shape[1], len(hyper.amplitude), len(hyper[-1])
        p, zero = 2 * rows + dy, jax.tree.map(np.zeros_like, hyper)
        fields = {
            "augmented": state,
            "basis": basis,
            "sensitivity": Sensitivity(host.zeros((p, dx)), host.zeros((p, dx, dx))),
            "count": count,
            "rejected": 0.0,
            "spread": (basis.shift[:dx], basis.scale[:dx] ** 2),
            "emission": emission,
            "points": points,
            "hyper": hyper,
            "adam": (zero, zero),
        }
        return cls(**jax.tree.map(np.asarray, fields), **own)

    @property
    def process_noise(self) -> Float[Array, " k"]:
        """Variances Q of the process noise."""
        return jnp.exp(self.hyper.process_noise)

    @property
    def state_dim(self) -> int:
        """Number of states, their past included."""
        return self.points.shape[-1]

    @property
    def f(self) -> Expansion:
        """What f is made of, besides the weights."""
        return Expansion.learned(self.basis, self.kind, self.hyper.lengthscale, self.hyper.amplitude)

    def placed(self, c: Float[Array, " dc"], f: Expansion, least: Array | float) -> tuple[AugmentedState, Expansion]:
        """With an inducing input where the stream is now, if a share of more than `least` of f is open there."""
        dx, state = self.state_dim, self.augmented
        # Not where the state is only guessed, as in the middle of a long gap.
        sure = jnp.all(jnp.diagonal(state.cov)[:dx] < jnp.exp(2 * self.hyper.lengthscale[:dx]))
        here = jnp.concatenate([state.mean[:dx], c])
        return f.placed(state, here, least, sure, lambda new: augmented.insert(state, dx, new, f.amplitude))

    def moved(
        self, found: "Assimilated", state: AugmentedState, basis: Basis, hyper: Any, adam: Any
    ) -> tuple[Self, Info]:
        """What is carried on, and what is reported, after a sample."""
        dx = self.state_dim
        new = replace(
            self,
            augmented=state,
            basis=basis,
            hyper=hyper,
            adam=adam,
            sensitivity=found.sensitivity,
            count=self.count + jnp.where(found.verdict.seen, 1.0, 0.0),
            rejected=found.verdict.rejected,
            spread=running_spread(self.spread, state.mean[:dx], self.count, found.verdict.seen),
        )
        return new, Info(state.mean[:dx], state.cov[:dx, :dx], *found.prediction)


class Assimilated(NamedTuple):
    """What a sample has made of the augmented state, and what it says of the noises."""

    state: AugmentedState
    update: Innovation
    verdict: Verdict
    gradient: NoiseGradient
    sensitivity: Sensitivity
    prediction: tuple[Float[Array, " dy"], Float[Array, " dy"], Float[Array, ""]]
    """Mean and standard deviation of the sample before it was seen, and its log-density."""


def assimilate(
    state: Tracked, current: AugmentedState, predicted: Predicted, y: Float[Array, " dy"], learn_obs_noise: bool
) -> Assimilated:
    """Condition the augmented state on a sample, as far as that is believed."""
    amplitude = jnp.exp(state.hyper.amplitude)
    seen = augmented.observe(state.emission, predicted, y, state.obs_noise, state.points)
    innovation = augmented.innovate(predicted, seen)
    verdict = judge(innovation.distance, jnp.sum(seen.precision > 0), state.rejected)
    trusted = seen._replace(precision=seen.precision / verdict.doubt)
    free = predicted._replace(cov=predicted.cov * verdict.freedom)
    update = augmented.innovate(free, trusted)
    missing = jnp.any(jnp.isnan(y))
    updated = augmented.confine(augmented.update(current, free, update), state.spread, state.basis.scale, missing)

    carried = sensitivity.predict(state.sensitivity, predicted, amplitude, state.process_noise)
    gradient = sensitivity.gradient(carried, len(amplitude), seen, innovation)
    if not learn_obs_noise:
        gradient = gradient._replace(obs_noise=jnp.zeros_like(gradient.obs_noise))
    after = sensitivity.confine(sensitivity.update(carried, trusted, update), state.spread[1], missing)
    variance = jnp.sum((seen.matrix @ predicted.cov) * seen.matrix, axis=1) + seen.variance
    prediction = seen.expected, jnp.sqrt(variance), innovation.log_density
    return Assimilated(updated, update, verdict, gradient, after, prediction)


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
        return cls(jax.tree.map(lambda *leaves: np.stack(leaves), *states), host.zeros(len(states)))

    def best(self) -> Any:
        """The state of the one that has predicted best so far."""
        leader = jnp.argmax(self.evidence)
        return jax.tree.map(lambda leaf: leaf[leader], self.states)


def leading(state: Any) -> Any:
    """The state itself, or that of the best of several hypotheses."""
    return state.best() if isinstance(state, Hypotheses) else state


@dataclass(frozen=True)
class AugmentedMethod(OnlineStateSpace):
    """An online method whose state is a `Tracked`, or several of them during the first `trial` samples.

    Args:
        num_inducing: budget M of inducing inputs, shared by all state dimensions.
        trial: samples during which several hypotheses run side by side; 0 for the first hypothesis alone.
    """

    num_inducing: int = 40
    _: KW_ONLY
    trial: int = 100

    staying: ClassVar[bool]
    """Whether paths of a forecast that leave the range of all states so far give way to others."""

    counts: ClassVar = {"num_inducing": 1, "trial": 0}

    @abstractmethod
    def hypothesis(self, units: Units, of: Hypothesis) -> Any:
        """The state to start from if `of` is right."""

    @classmethod
    def state_type(cls) -> Any:
        """Of one hypothesis."""
        return get_type_hints(cls.hypothesis)["return"]

    def initial_state(self, outputs: NDArray, inputs: NDArray) -> Any:
        """Some hypotheses; nothing but the units of the first samples is known."""
        units = self.units(outputs, inputs)
        found = [self.hypothesis(units, of) for of in plausible(len(units.steps) < self.state_dim)]
        return Hypotheses.of(found) if self.trial else found[0]

    def prior(
        self, units: Units, of: Hypothesis, num_inducing: int, num_points: int
    ) -> tuple[AugmentedState, Basis, Any, NDArray]:
        """What `Tracked.start` starts from before the first sample: no inducing input is in use, x may be anywhere."""
        dx, shift, scale = self.state_dim, units.shift, units.scale
        linear = np.pad(units.linear_prior(dx, of.linear_std), (num_inducing, 0))
        weights = np.kron(np.diag(units.steps), linear)
        # 100 times the spread: where the state was before the first sample is not known.
        cov = host.zeros((dx + len(weights), dx + len(weights)))
        cov[:dx, :dx], cov[dx:, dx:] = np.diag(100 * scale[:dx] ** 2), weights
        state = AugmentedState(host.pad(shift[:dx], (0, len(weights))), cov)
        return state, Basis.empty(num_inducing, shift, scale), units.emission, augmented.members(num_points, dx)

    def settled(self, state: Any) -> Any:
        """The state of the hypothesis that has predicted best."""
        leader = int(np.argmax(state.evidence))
        return jax.tree.map(lambda leaf: np.asarray(leaf)[leader], state.states)

    @classmethod
    def paths(cls, key: Array, state: Any, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """Each path has its own draw of the state and of f. Far from all states, f is that of the nearest place."""
        of: Tracked = leading(state)
        f, (mean, cov), process_noise, dx = of.f, of.augmented, of.process_noise, of.state_dim
        key_start, *keys = jax.random.split(key, 4)
        drawn = mean + jax.random.normal(key_start, (num_paths, len(mean)), inputs.dtype) @ symmetric_root(cov)
        weights = drawn[:, dx:].reshape(num_paths, len(process_noise), -1)
        centre, far = of.spread[0], _FAR * jnp.sqrt(of.spread[1])
        low, high = jnp.minimum(centre, mean[:dx]) - far, jnp.maximum(centre, mean[:dx]) + far

        def move(x: Array, c: Array, key: Array) -> Array:
            x = jnp.clip(x, low, high)
            return augmented.with_past(paths.step(f, weights, process_noise, x, c, key), x)

        within = (low, high) if cls.staying else None
        return paths.sample(keys, drawn[:, :dx], inputs, move, of.emission, of.obs_noise, within)

    @staticmethod
    def transition(state: Any, x: Array) -> tuple[Array, Array]:
        """f with W integrated out."""
        of: Tracked = leading(state)
        return of.f.moments(x, *augmented.rows_of(of.augmented, of.state_dim, len(of.process_noise)))

    @staticmethod
    def process_noise(state: Any) -> Array:
        """Variances (k,) as learned so far."""
        of: Tracked = leading(state)
        return of.process_noise
