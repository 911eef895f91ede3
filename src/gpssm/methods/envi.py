"""EnVI: variational learning of a GP state-space model with a differentiable EnKF (Algorithm 1).

    maximise  E_q(u)[ sum_t log N(y_t | C mbar_t, C Pbar_t C^T + R) ] - KL[q(x_0) || p(x_0)] - KL[q(u) || p(u)]

(Proposition 1, with R in the likelihood.) What is added to the paper's algorithm, each for a
measured reason; `EnVI.paper` switches it off:

- windows of a long recording are filtered side by side, each with its own sample of u: the
  expectation of a sum is the sum of expectations, so that the variance of the gradient falls with
  the number of windows. What a window starts from, its left neighbour's last ensemble, is one
  iteration old and not differentiated;
- the process noise enters the predicted moments in closed form, and members are given the posterior
  moments of the predicted mixture (`filters.ensemble`);
- a learned linear mean function, started from least squares;
- where states are hidden, gap training: over random blocks the update is skipped while every y_t
  is still scored, so that the model learns to run freely and not only one step ahead; in two
  phases, from several starts, of which the one with the best bound is kept;
- noise variances start large (the filter follows the data first) and move at a higher rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.compilation import CompileClock
from gpssm.errors import InvalidInput
from gpssm.filters import ensemble
from gpssm.gp.kernels import RBF, Kernel
from gpssm.gp.means import Mean
from gpssm.history import History, Progress
from gpssm.interruption import Interruption
from gpssm.methods import start
from gpssm.methods.training import Schedule, train
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM
from gpssm.parameters import match, parameters
from gpssm.posterior import FilterSettings, Posterior
from gpssm.precision import double_precision
from gpssm.progress import watcher
from gpssm.validation import positive_int, training_data
from gpssm.windows import Windows, cut


class Settings(NamedTuple):
    """What the compiled objective is built for."""

    num_members: int
    num_samples: int
    options: ensemble.Options
    taper: tuple[tuple[float, ...], ...] | None
    gap_length: int  # 0 if the update is never skipped


class Phase(NamedTuple):
    """What changes in the course of a fit."""

    gap_fraction: float | Array = 0.0
    """Share of blocks over which the update is skipped."""
    kl_weight: float | Array = 1.0
    """Weight of KL[q(u) || p(u)]. Without updates the errors of a block are one error seen many times."""
    share: float = 1.0
    """Of the schedule's steps, at most."""


class Data(NamedTuple):
    """What the objective is evaluated on."""

    windows: Windows
    phase: Phase = Phase()


def elbo(
    model: GPSSM, carry: Float[Array, "b n dx"], data: Data, key: Array, settings: Settings
) -> tuple[Float[Array, ""], tuple[Float[Array, "b n dx"], dict[str, Array]]]:
    """The evidence lower bound, from `settings.num_samples` samples of u for every window.

    `carry` holds the ensembles that the windows start from; the new ones come back, with the
    terms of the bound. Cost O(T N dx M^2) for every sample.
    """
    windows = data.windows
    keys = jax.random.split(key, settings.num_samples)
    likelihoods, ends = jax.vmap(lambda k: _window_likelihoods(model, carry, data, k, settings))(keys)
    likelihood = jnp.sum(likelihoods) / settings.num_samples
    kl_u, kl_x0 = model.transition.kl(), model.initial_state.kl()
    likelihood = likelihood - windows.log_volume
    value = likelihood - data.phase.kl_weight * kl_u - kl_x0
    continued = jnp.where((windows.left < 0)[:, None, None], carry, ends[0][windows.left])
    terms = {"likelihood": likelihood, "KL(u)": kl_u, "KL(x0)": kl_x0}
    return value, (jax.lax.stop_gradient(continued), terms)


def _window_likelihoods(
    model: GPSSM, carry: Float[Array, "b n dx"], data: Data, key: Array, settings: Settings
) -> tuple[Float[Array, "w b"], Float[Array, "b n dx"]]:
    windows = data.windows
    num_windows, length, output_dim = windows.outputs.shape
    state_dim, dtype = model.state_dim, carry.dtype
    key_u, key_x0, key_noise, key_gap = jax.random.split(key, 4)

    prior = model.transition.prior()
    eps = jax.random.normal(key_u, (num_windows, state_dim, model.num_inducing), dtype)
    alphas = jax.vmap(lambda e: model.transition.draw(prior, e))(eps)

    first = model.initial_state.members(
        jax.random.normal(key_x0, (model.initial_state.mean.shape[0], settings.num_members, state_dim), dtype)
    )
    starts = jnp.where((windows.left < 0)[:, None, None], first[windows.sequence], carry)
    full = model.process_noise.factor.ndim == 2
    draws = ensemble.draw_noise(
        key_noise, length * num_windows, settings.num_members, state_dim, output_dim,
        full=full, options=settings.options, dtype=dtype,
    )  # fmt: skip
    taper = None if settings.taper is None else jnp.asarray(settings.taper, dtype)
    observing = ensemble.Observing(model.process_noise.factor, model.emission, model.obs_noise.factor, taper)

    def one(
        members: Array, f: tuple[Array, Array], y: Array, active: Array, skip: Array, noise: Array, pert: Array | None
    ) -> tuple[Array, Array]:
        predicted, filtered = ensemble.assimilate(*f, y, noise, pert, observing, settings.options)
        moved = jnp.where(skip, predicted.members, filtered.members) if settings.gap_length else filtered.members
        return jnp.where(active > 0, moved, members), filtered.log_likelihood

    def body(members: Array, now: Any) -> tuple[Array, Array]:
        c, *rest = now
        f = prior.side_by_side(ensemble.with_inputs(members, c), alphas)
        axes = (0, 0, *(None if part is None else 0 for part in rest))
        return jax.vmap(one, in_axes=axes)(members, f, *rest)

    def by_time(array: Array | None) -> Any:
        return None if array is None else array.reshape(length, num_windows, *array.shape[1:])

    skips = _gaps(key_gap, data, settings.gap_length)
    columns = (windows.inputs, windows.outputs, windows.active, skips)
    now = (*(jnp.swapaxes(jnp.asarray(a), 0, 1) for a in columns), *map(by_time, draws))
    # Recomputing a step on the way back is cheaper than writing out everything it needs.
    ends, likelihoods = jax.lax.scan(jax.checkpoint(body), starts, now)
    return likelihoods, ends


def _gaps(key: Array, data: Data, gap_length: int) -> Array:
    """Blocks over which the update is skipped; where they begin changes with every iteration."""
    num_windows, length = data.windows.outputs.shape[:2]
    if not gap_length:
        return jnp.zeros((num_windows, length), bool)
    key_blocks, key_shift = jax.random.split(key)
    blocks = jax.random.uniform(key_blocks, (num_windows, length // gap_length + 2)) < data.phase.gap_fraction
    shift = jax.random.randint(key_shift, (num_windows, 1), 0, gap_length)
    index = (jnp.arange(length)[None] + shift) // gap_length
    return jnp.take_along_axis(blocks, index, axis=1)


# Hidden states start from nothing: long stretches without updates make the model find what it needs to
# run freely; then shorter ones. What is found depends on the random numbers, so there are several starts.
_HIDDEN_PHASES = (Phase(0.7, 1.0, 0.5), Phase(0.3, 2.0, 0.6))
_HIDDEN_RESTARTS = 3
# A square-root update needs few members more than states, and time goes with their number.
_HIDDEN_MEMBERS = 16

EmissionLike = Literal["observed", "learned"] | np.ndarray | LinearEmission | Callable[[Array], Array]
MeanLike = Literal["zero", "identity", "linear"] | Mean | Callable[[Array], Array]


@dataclass(frozen=True)
class EnVI:
    """EnVI with everything a user may want to choose.

    Args:
        state_dim: dimension of the hidden state.
        num_inducing: inducing points of each state dimension's GP.
        kernel: covariance function; given a length scale per input automatically. Its start values
            are relative to the standard deviations of states and inputs.
        mean: mean function of the transition: `"linear"` (learned, started from least squares),
            `"identity"`, `"zero"` (the average of the data), or a function of `[x, c]`
            (n, dx + dc), in your units and made of JAX operations.
        emission: how outputs arise from states: `"observed"` (the first states are the outputs;
            the default where there are at least as many states as outputs), `"learned"` (linear),
            a known matrix C (dy, dx), or a function of x (n, dx) made of JAX operations. For a
            function the scale of the states is that of `initial_state`, or one.
        process_noise: start value of the variance(s) of the process noise, in your units.
        obs_noise: start value of the variance(s) of the observation noise, in your units.
        full_process_noise: learn a full covariance Q instead of a diagonal one.
        initial_state: `(mean, covariance)` of x_0 if it is known, in your units.
        fixed: names of parameters to hold fixed, for example `("obs_noise", "lengthscale")`.
        num_members: size N of the ensemble; by default 50, or 16 where states are hidden.
        num_samples: samples of u for every window and step.
        update: `"mixture"`, `"perturbed"` or `"sqrt"`; see `gpssm.filters.ensemble`. By default the
            first; the last where states are hidden; perturbed observations where the emission is a
            function or localised.
        moments: `"exact_noise"` or `"sampled"`; see `gpssm.filters.ensemble`.
        inflation: factor on the ensemble's anomalies.
        localization: radius of the Gaspari-Cohn taper over the state's index.
        window: steps per window; 0 filters every recording as one. Chosen by default.
        gap_fraction: share of blocks over which the update is skipped. By default none where all
            states are observed; 0.7, then 0.3, where some are hidden.
        gap_length: samples in such a block.
        noise_rate: learning rate of the noise variances, relative to the others.
        inducing_rate: learning rate of the inducing inputs, relative to the others.
        schedule: learning rate, number of steps and when to stop.
        dtype: `"float64"` or `"float32"`.
    """

    state_dim: int
    num_inducing: int = 20
    kernel: Kernel = RBF()
    mean: MeanLike = "linear"
    emission: EmissionLike | None = None
    process_noise: float | Sequence[float] | None = None
    obs_noise: float | Sequence[float] | None = None
    full_process_noise: bool = False
    initial_state: tuple[Any, Any] | None = None
    fixed: tuple[str, ...] = ()
    num_members: int | None = None
    num_samples: int = 1
    update: ensemble.Update | None = None
    moments: ensemble.Moments = "exact_noise"
    inflation: float = 1.0
    localization: float | None = None
    window: int | None = None
    gap_fraction: float | None = None
    gap_length: int = 25
    noise_rate: float = 4.0
    inducing_rate: float = 0.2
    schedule: Schedule = Schedule()
    dtype: Literal["float64", "float32"] = "float64"
    name: str = "EnVI"

    def __post_init__(self) -> None:
        for argument, least in (("state_dim", 1), ("num_inducing", 1), ("num_members", 3), ("num_samples", 1)):
            value = getattr(self, argument)
            if value is not None or argument != "num_members":
                # A NumPy integer would not survive being saved.
                object.__setattr__(self, argument, positive_int(argument, value, least))
        positive_int("gap_length", self.gap_length)
        positive_int("schedule.max_steps", self.schedule.max_steps)
        positive_int("schedule.chunk", self.schedule.chunk)
        if self.window is not None:
            positive_int("window", self.window, 0)
        if not isinstance(self.kernel, Kernel):
            raise InvalidInput(f"kernel: expected a kernel such as gpssm.RBF(), got {self.kernel!r}.")
        for argument, choices in (
            ("update", (None, "perturbed", "sqrt", "mixture")),
            ("moments", ("exact_noise", "sampled")),
            ("dtype", ("float64", "float32")),
        ):
            if getattr(self, argument) not in choices:
                raise InvalidInput(f"{argument}: expected one of {choices}, got {getattr(self, argument)!r}.")
        if not isinstance(self.inflation, (int, float)) or not self.inflation >= 1.0:
            raise InvalidInput(f"inflation: expected a factor of at least 1, got {self.inflation!r}.")
        if self.localization is not None:
            if not isinstance(self.localization, (int, float)) or not self.localization > 0:
                raise InvalidInput(f"localization: expected a positive radius, got {self.localization!r}.")
            if self.update == "mixture":
                raise InvalidInput("update: 'mixture' cannot be localised; expected 'perturbed' or 'sqrt'.")
        if self.gap_fraction is not None and not 0 <= self.gap_fraction < 1:
            raise InvalidInput(f"gap_fraction: expected a share in [0, 1), got {self.gap_fraction!r}.")
        if isinstance(self.fixed, str):
            raise InvalidInput(
                f"fixed: expected names in a tuple, got the string {self.fixed!r}; write ({self.fixed!r},)."
            )

    @classmethod
    def paper(cls, state_dim: int, num_inducing: int = 15, **changes: Any) -> "EnVI":
        """Algorithm 1 as the paper writes it (with the errata), and nothing else.

        Zero mean function, one sample of u for the whole recording, back-propagation through all
        of it, sampled moments, perturbed observations, Adam at one constant rate for a fixed
        number of iterations. The paper does not say where to start or what to do when a step
        fails: standardisation, start values, gradient clipping, rollback and best-so-far are those
        of `EnVI`.
        """
        preset = cls(
            state_dim, num_inducing, mean="zero", num_members=100, update="perturbed", moments="sampled",
            window=0, gap_fraction=0.0, noise_rate=1.0, inducing_rate=1.0, name="EnVI (paper)",
            schedule=Schedule(learning_rate=0.01, max_steps=1000, decay_steps=0, patience=10**9),
        )  # fmt: skip
        return replace(preset, **changes)

    @double_precision
    def fit(
        self,
        outputs: Any,
        inputs: Any = None,
        *,
        seed: int = 0,
        restarts: int | None = None,
        progress: bool | Callable[[Progress], None] = False,
    ) -> Posterior:
        """Learn the model from a recording.

        Args:
            outputs: (T, dy), NaN where a value is missing; or a list of such arrays.
            inputs: (T, dc) known inputs, the row that acts on the way to the same row of
                `outputs`; or a list of such arrays.
            seed: all randomness of the fit.
            restarts: fits from the same data with other random numbers, of which the one with the best
                bound is kept. By default 3 where states are hidden (and `gap_fraction` is not given), 1 otherwise.
            progress: show a progress bar, or call this function after every chunk of steps.
        """
        clock = CompileClock()
        ys, cs = training_data(outputs, inputs)
        hidden = self.state_dim > ys[0].shape[1]
        if restarts is None:
            restarts = _HIDDEN_RESTARTS if len(self._phases(hidden)) > 1 else 1
        positive_int("restarts", restarts)
        begun = start.begin(self, ys, cs)
        fixed = tuple(sorted(self._fixed(begun)))
        with watcher(progress, self.name) as watch, Interruption() as interruption:
            paths = self._learn(begun, ys, cs, jax.random.key(seed), restarts, interruption, watch)
            linear = isinstance(begun.model.emission, LinearEmission)
            settings = self.settings(gaps=False, linear=linear, hidden=hidden)
            posteriors = [
                Posterior(
                    model=jax.tree.map(np.asarray, path.model),
                    scaling=begun.scaling,
                    settings=FilterSettings(4 * settings.num_members, settings.options, settings.taper),
                    fixed=fixed,
                    history=path.history,
                    method=self.name,
                    final_members=np.zeros((0, self.state_dim)),
                )
                for path in paths
            ]
            posterior = _best(posteriors, ys, cs).continued_from(ys[-1], cs[-1], seed=seed)
        posterior.history.compile_seconds = clock.seconds
        return posterior

    def _learn(
        self,
        begun: start.Start,
        ys: list[np.ndarray],
        cs: list[np.ndarray],
        key: Array,
        restarts: int,
        interruption: Interruption,
        watch: Callable[[Progress], None] | None,
    ) -> "list[_Path]":
        """From every start, phase after phase; what goes on is the model and the windows' ensembles."""
        scaling, hidden, dtype = begun.scaling, self.state_dim > ys[0].shape[1], jnp.dtype(self.dtype)
        length = self._window_length(max(map(len, ys)), hidden)
        windows = cut([scaling.standardise_outputs(y) for y in ys], [scaling.standardise_inputs(c) for c in cs], length)
        windows = windows._replace(log_volume=np.asarray(sum(scaling.log_volume(y) for y in ys)))
        names = tuple(p.name for p in parameters(begun.model) if p.name not in self._fixed(begun))
        phases = self._phases(hidden)
        gaps = any(float(phase.gap_fraction) > 0 for phase in phases)
        settings = self.settings(gaps, linear=isinstance(begun.model.emission, LinearEmission), hidden=hidden)

        def run(path: _Path, phase: Phase, label: str = "") -> _Path:
            key, key_phase = jax.random.split(path.key)
            schedule = self.schedule._replace(max_steps=max(1, round(phase.share * self.schedule.max_steps)))
            model, carry, history = train(
                elbo, path.model, path.carry, _cast(Data(windows, phase), dtype), settings=settings, names=names,
                multiples=self._multiples(names), num_observed=windows.num_observed,
                # The rate falls to zero once, in the end.
                schedule=schedule if phase is phases[-1] else schedule._replace(decay_steps=0),
                key=key_phase, interruption=interruption, watch=watch, label=label,
            )  # fmt: skip
            return _Path(model, carry, key, path.history.followed_by(history))

        paths: list[_Path] = []
        for restart in range(restarts):
            own, key_carry = jax.random.split(jax.random.fold_in(key, restart))
            carry = start.ensembles(begun.states, windows, settings.num_members, key_carry, dtype)
            label = f"start {restart + 1} of {restarts}, " if restarts > 1 else ""
            path = _Path(_cast(begun.model, dtype), carry, own, History())
            for phase in phases:
                path = run(path, phase, label)
                if interruption.requested:
                    break
            # Bounds of different phases cannot be compared.
            if phase is phases[-1] or not paths:
                paths.append(path)
            if interruption.requested:
                break
        for path in paths:
            path.history.interrupted = interruption.requested
        return paths

    def _phases(self, hidden: bool) -> tuple[Phase, ...]:
        if self.gap_fraction is not None:
            return (Phase(self.gap_fraction),)
        return _HIDDEN_PHASES if hidden else (Phase(),)

    def _fixed(self, begun: start.Start) -> set[str]:
        return match(tuple(p.name for p in parameters(begun.model)), self.fixed) | begun.fixed

    def _window_length(self, longest: int, hidden: bool) -> int:
        """Short windows where the state is seen: gradients through many steps of a chaotic system explode."""
        preferred = (50 if hidden else 20) if self.window is None else self.window
        return longest if preferred == 0 else min(preferred, longest)

    def settings(self, gaps: bool, linear: bool, hidden: bool) -> Settings:
        """What the objective is compiled for."""
        if not linear or self.localization is not None:
            chosen: ensemble.Update = "perturbed"
        else:
            chosen = "sqrt" if hidden else "mixture"
        num_members = self.num_members or (_HIDDEN_MEMBERS if hidden else 50)
        taper = None
        if self.localization is not None:
            index = np.arange(self.state_dim)
            weights = np.asarray(ensemble.gaspari_cohn(jnp.asarray(index[:, None] - index, float), self.localization))
            taper = tuple(tuple(float(v) for v in row) for row in weights)
        options = ensemble.Options(self.moments, self.update or chosen, self.inflation)
        return Settings(num_members, self.num_samples, options, taper, self.gap_length if gaps else 0)

    def _multiples(self, names: tuple[str, ...]) -> dict[str, float]:
        rates = {"process_noise": self.noise_rate, "obs_noise": self.noise_rate, "inducing_inputs": self.inducing_rate}
        return {n: rate for n in names for group, rate in rates.items() if group in n.split(".")}


_RUN_IN = 25  # samples to find the state from before a free run
_MAX_LOSS = 1.0  # nats per number


def _best(posteriors: list[Posterior], ys: list[np.ndarray], cs: list[np.ndarray]) -> Posterior:
    """The best bound among those whose free run over the longest recording stays with it.

    The bound sees stretches of some ten samples. A model that is just unstable looks good on those, and
    explodes over hundreds.
    """
    longest = max(range(len(ys)), key=lambda i: len(ys[i]))
    y, c = ys[longest], cs[longest]
    if len(posteriors) == 1 or len(y) < 2 * _RUN_IN:
        return max(posteriors, key=lambda posterior: posterior.history.best)
    densities = [_free_run_density(posterior, y, c) for posterior in posteriors]
    stays = [p for p, density in zip(posteriors, densities, strict=True) if density >= max(densities) - _MAX_LOSS]
    return max(stays, key=lambda posterior: posterior.history.best)


def _free_run_density(posterior: Posterior, y: np.ndarray, c: np.ndarray) -> float:
    """Mean log-density of the recording after its first samples, forecast from them alone."""
    inputs = (c[:_RUN_IN], c[_RUN_IN:]) if posterior.input_dim else (None, None)
    state = posterior.filter(y[:_RUN_IN], inputs[0])
    forecast = posterior.forecast(len(y) - _RUN_IN, inputs[1], state=state, num_paths=100)
    with np.errstate(over="ignore", invalid="ignore"):  # where it explodes the density is minus infinity
        z = (y[_RUN_IN:] - forecast.mean) / forecast.std
        density = np.nanmean(-0.5 * z**2 - np.log(forecast.std))
    return float(density) if np.isfinite(density) else -np.inf


class _Path(NamedTuple):
    """A model on its way."""

    model: GPSSM
    carry: Array
    key: Array
    history: History


def _cast(tree: Any, dtype: Any) -> Any:
    """Every float array of `tree` as a JAX array of the given type."""

    def one(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(np.asarray(leaf).dtype, np.floating) else jnp.asarray(leaf)

    return jax.tree.map(one, tree)
