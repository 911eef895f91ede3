"""Learning live: one sample at a time, in constant memory.

A `Stream` is what the user holds. Below it is the pure core of an online method (`gpssm.online.base`),

    step(key, state, y, c) -> (state, info)

compiled once (`gpssm.online.core`). The first few samples only tell where the data live and on what scale; then they go
through the core like all others. A system that was at rest outgrows these units: then the stream restarts, from all it
has seen (`gpssm.online.gate`). Everything here is in the user's units.

No sample can make the state infinite: numbers far outside the range of all others are taken as missing
(`gpssm.online.gate`), and so is a sample that the core cannot digest. Both are counted and reported.
"""

import os
import threading
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gpssm.errors import InvalidInput
from gpssm.numerics.lags import newest, with_past
from gpssm.online import core, gate
from gpssm.online.bands import Bands
from gpssm.online.base import OnlineMethod
from gpssm.online.core import BLOCK, Core, Moved
from gpssm.online.estimate import RESTARTED, Estimate, Estimates, estimate_of
from gpssm.online.gate import LARGEST, Believed, Gate, look_backs
from gpssm.online.turns import exclusive
from gpssm.plumbing import serialization
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Carried, Gaps, NonNegative, renamed, shape
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import Known, arguments, matrix, model_inputs, positive_int, sample_row
from gpssm.posteriors.posterior import Posterior
from gpssm.posteriors.states import Forecast, kept_recording

NDArray = np.ndarray


@saved
@dataclass(eq=False)
class Stream:
    """A model that learns while it is used. Made by `OEnVI(...).start()` or `OEnVI.continuing(posterior)`.
    Its `method` learns, its `seed` is for all draws; the first sample tells `output_dim` and `input_dim`.

    >>> import gpssm
    >>> stream = gpssm.VJF(1, num_inducing=2).start()
    >>> for y in gpssm.datasets.kink(15, 0.05, 0.08, seed=0).outputs:
    ...     estimate = stream.learn_one(y)
    >>> stream
    <VJF stream: 15 sample(s), 1 state(s), 1 output(s), 0 input(s)>
    >>> stream.forecast(3, num_paths=50).samples.shape
    (50, 3, 1)
    >>> mean, variance = stream.transition([[0.0], [1.0]])
    >>> mean.shape, variance.shape, stream.process_noise.shape
    ((2, 1), (2, 1), (1,))
    """

    method: OnlineMethod
    seed: int = 0
    count: NonNegative[int] = 0
    """Samples seen, missing ones included."""
    stored: Annotated[Any, Carried | None] = None
    """The core's state when the stream was started or saved; `state` is the present one."""
    early: list[tuple[Gaps[Float[NDArray, " dy"]], Float[NDArray, " lags*dc"]]] = field(default_factory=list)
    """The first samples, until the last time that it looks back."""
    unit_samples: NonNegative[int] = 0
    """How many of them the units come from."""
    position: str = ""
    """A reader's bookmark: where the last sample came from. Saved with the rest."""
    input_dim: Annotated[int | None, shape("dc")] = None
    output_dim: Annotated[int | None, shape("dy")] = None
    recent: Float[NDArray, "lags-1 dc"] | None = None
    """(lags - 1, dc) the inputs before the next one, newest first; those before the first sample are taken to be it."""
    refused: NonNegative[int] = 0
    """Samples that were refused, or of which something was."""
    gates: tuple[Annotated[Gate, renamed(c="dy")], Annotated[Gate, renamed(c="dc")]] | None = None
    """Range of the outputs and of the inputs; None as long as nothing is known of it."""
    given_up: NonNegative[int] = 0
    """Samples seen before the present state was started, if an earlier one had to be given up."""
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """What the user calls the outputs and the inputs."""
    bands: Bands | None = None
    """What the spread of forecasts is multiplied by."""

    @double_precision
    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._core: Core | None = None
        self._prepared = False
        self.state = self.stored

    def check_fields(self) -> None:
        """Refuse a state that another method has left in a file, and one of which it is not known what it was fed."""
        state, known = getattr(self.stored, "states", self.stored), self.method.state_type()
        if self.stored is not None and (not isinstance(state, known) or None in (self.input_dim, self.output_dim)):
            raise InvalidInput(f"stored: a {type(state).__name__} of unknown width; expected a state of {self.method}.")

    @property
    @exclusive
    def state(self) -> Any:
        """Of the core; None during the warm-up."""
        return None if self._core is None else jax.tree.map(jnp.asarray, self._core.state)

    @state.setter
    @exclusive
    def state(self, value: Any) -> None:
        self._core = None if value is None else Core.of(self.method, value)

    @property
    def state_dim(self) -> int:
        """Dimension of the state, that of the method."""
        return self.method.state_dim

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the channels: those in `names` if there are as many, or else y1, y2, ..."""
        return _as_many(self.names[0], self.output_dim, "y")

    @property
    def input_names(self) -> tuple[str, ...]:
        """Of the channels: those in `names` if there are as many, or else u1, u2, ..."""
        return _as_many(self.names[1], self.input_dim, "u")

    @property
    def readable(self) -> bool:
        """Whether its method has a `posterior`, to which all calls of a fitted model can be made."""
        return type(self.method).posterior is not OnlineMethod.posterior

    @property
    def ready(self) -> bool:
        """Whether the warm-up is over: only then it can forecast."""
        return self._core is not None

    def __repr__(self) -> str:
        size = "" if self.output_dim is None else f", {self.output_dim} output(s), {self.input_dim} input(s)"
        return f"<{self.method.name} stream: {self.count} sample(s), {self.method.state_dim} state(s){size}>"

    @exclusive
    def learn_one(self, y: Any, u: Any = None) -> Estimate:
        """Predict the next sample, look at it, learn from it.

        The first call compiles all that later ones need, which takes seconds; none of them waits for that again.

        Args:
            y: (dy,) outputs; NaN (or None) where a value is missing.
            u: (dc,) the control input that acted on the way to this sample, if there are any.

        Returns:
            The filtered state and the prediction that was made of the sample. During the warm-up these are rough.

        Raises:
            InvalidInput: the sample cannot be used, and the stream is as it was before.

        >>> import gpssm
        >>> gpssm.OEnVI(1).start().learn_one([0.5]).state_mean
        array([0.5])
        """
        outputs, inputs = self._sample(y, u)
        return self._learn(outputs[None], inputs[None])[0]

    @exclusive
    def learn_many(self, outputs: Any, inputs: Any = None) -> Estimates:
        """Learn from all samples that have come, in order: the same as `learn_one` for every row, to the last digit.

        Args:
            outputs: (T, dy), NaN where a value is missing.
            inputs: (T, dc) the control inputs that acted on the way to these samples, if there are any.

        Returns:
            What `learn_one` returns of every sample, stacked.

        Raises:
            InvalidInput: the samples cannot be used, and the stream is as it was before; or one of the inputs cannot be
                believed, and the stream has learned from those before it: `count` says from how many.

        >>> import gpssm
        >>> stream = gpssm.VJF(1, num_inducing=2).start()
        >>> estimates = stream.learn_many(gpssm.datasets.kink(30, 0.05, 0.08, seed=0).outputs)
        >>> estimates.state_mean.shape, estimates.state_cov.shape, estimates.log_score.shape, stream.count
        ((30, 1), (30, 1, 1), (30,), 30)
        """
        ys, without = matrix("outputs", outputs, self.output_dim), inputs is None and not self.input_dim
        us = np.zeros((len(ys), 0)) if without else matrix("inputs", inputs, self.input_dim)
        if len(us) != len(ys):
            raise InvalidInput(f"inputs: {len(us)} row(s); expected as many as there are outputs, {len(ys)}.")
        self._check_widths(ys.shape[1], us)
        found: list[Estimate] = []
        while len(found) < len(ys):
            few = slice(len(found), len(found) + BLOCK)
            found += self._learn(ys[few], us[few])
        return Estimates.of(found, self.state_dim, ys.shape[1])

    @exclusive
    def forecast(
        self,
        horizon: int,
        inputs: Any = None,
        *,
        num_paths: int = 500,
        seed: int = 0,
        calibrated: bool = True,
        follow: bool = False,
    ) -> Forecast:
        """Sample paths of the next `horizon` outputs. The stream itself is not disturbed, unless it is to `follow`.

        Args:
            horizon: number of steps.
            inputs: (horizon, dc) the control inputs to come, if there are any.
            num_paths: number of paths, each with its own f, state and noise.
            seed: all randomness of the forecast.
            calibrated: spread the outputs by factors that follow how often earlier forecasts held (`online.bands`);
                without, the paths are as the model has them.
            follow: compare this forecast with what comes, for the factors of the next; one at a time is.

        Returns:
            Outputs (num_paths, horizon, dy), observation noise included, and states (num_paths, horizon, dx).
        """
        self._require_state("forecast")
        positive_int("horizon", horizon)
        positive_int("num_paths", num_paths, 2)
        assert self._core is not None and self.input_dim is not None
        c = self._with_recent(model_inputs(inputs, horizon, Known(0, self.input_dim)))
        states, samples = self._core.paths(seed, c, num_paths)
        bands = self.bands or Bands.new(samples.shape[2])
        if follow:
            self.bands = bands.awaiting(samples, c[:, : self.input_dim])
        samples = bands.applied(samples) if calibrated else samples
        return Forecast(samples, states, names=self.output_names)

    @exclusive
    def prepare(self, horizon: int, *, num_paths: int = 500) -> None:
        """Compile what forecasts of `horizon` steps and `num_paths` paths need, after the first sample: none waits.

        >>> import gpssm
        >>> stream = gpssm.VJF(1, num_inducing=2).start()
        >>> estimate = stream.learn_one([0.5])
        >>> stream.prepare(3, num_paths=50)
        """
        if self.output_dim is None or self.input_dim is None:
            raise InvalidInput("prepare: the stream has seen 0 samples; expected one, which tells how wide they are.")
        dc = self.method.input_lags * self.input_dim
        now = self._core or core.rehearse(self.method, None, self.output_dim, dc)
        now.paths(0, np.zeros((positive_int("horizon", horizon), dc)), positive_int("num_paths", num_paths, 2))

    @exclusive
    def transition(self, x: Any) -> tuple[Float[NDArray, "n dx"], Float[NDArray, "n dx"]]:
        """The f learned so far.

        Args:
            x: (n, state_dim + input_lags * input_dim) states, each followed by its inputs, newest first.

        Returns:
            Mean and variance (n, state_dim) of f, without process noise.
        """
        self._require_state("transition")
        assert self.input_dim is not None
        x = arguments(x, self.method.state_dim + self.method.input_lags * self.input_dim)
        mean, var = map(np.asarray, core.transition(type(self.method), self.state, jnp.asarray(x)))
        past = self.state_dim - mean.shape[1]
        return np.concatenate([mean, x[:, :past]], axis=1), np.pad(var, ((0, 0), (0, past)))

    @property
    @exclusive
    def process_noise(self) -> Float[NDArray, " dx"]:
        """Variances (state_dim,) of the process noise as learned so far."""
        self._require_state("process_noise")
        noise = np.asarray(self.method.process_noise(self.state))
        return np.pad(noise, (0, self.state_dim - len(noise)))

    @exclusive
    def posterior(self) -> Posterior:
        """What has been learned so far as an ordinary fitted model: filter, smooth, forecast, summary.

        Streams of OEnVI and RGPSSM can be read that way; `InvalidInput` is raised by others, and during the warm-up.
        Nothing of what was seen is kept: the model has no `recording` but the names.

        >>> import gpssm
        >>> gpssm.OEnVI(1).start().posterior()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gpssm.errors.InvalidInput: posterior: the stream has seen 0 sample(s); expected at least 10, from which ...
        """
        if not self.readable:
            raise InvalidInput(
                f"posterior: a stream of {self.method.name} can be forecast, not filtered: what it has learned is no "
                "ordinary fitted model; expected one of OEnVI or RGPSSM."
            )
        self._require_state("posterior")
        posterior = self.method.posterior(self.state)
        nothing = kept_recording(np.zeros((0, self.output_dim or 0)), np.zeros((0, self.input_dim or 0)))
        posterior = replace(posterior, recording=nothing, input_lags=self.method.input_lags, recent_inputs=self.recent)
        return posterior.named(self.output_names, self.input_names)

    @exclusive
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file at `path`, from which `gpssm.load` resumes bit for bit.

        >>> import gpssm, tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".gpssm") as file:
        ...     gpssm.OEnVI(1).start().save(file.name)
        ...     gpssm.load(file.name)
        <OEnVI stream: 0 sample(s), 1 state(s)>
        """
        self.stored = jax.tree.map(np.asarray, self.state)
        serialization.write(path, self)

    @exclusive
    def __getstate__(self) -> dict[str, Any]:
        """For `pickle` and `copy`: what `save` writes."""
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return kept | {"stored": jax.tree.map(np.asarray, self.state)}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        vars(self).update(kept)
        self.__post_init__()

    def _with_recent(self, inputs: NDArray) -> Float[NDArray, "t lags*dc"]:
        return with_past(inputs, self.method.input_lags, self.recent)

    @property
    def _age(self) -> int:
        """Samples that the present state has seen."""
        return self.count - self.given_up

    def _learn(self, outputs: Float[NDArray, "n dy"], inputs: Float[NDArray, "n dc"]) -> list[Estimate]:
        """Learn from some of the first of up to `BLOCK` samples: until something has to be done between two of them."""
        samples = self._believed(outputs, inputs)
        return self._learned(samples, self._moved(samples))

    def _believed(self, outputs: Float[NDArray, "n dy"], inputs: Float[NDArray, "n dc"]) -> Believed:
        """Those of the samples that can be learned from at once."""
        if not self._prepared:
            core.rehearse(self.method, self._core, outputs.shape[1], self.method.input_lags * inputs.shape[1])
            self._prepared = True
        now, few = self.gates, slice(self._undisturbed())
        if now is None:
            driven = self._with_recent(inputs[:1])
            now = core.first_gates(self._core, self.seed, self._age, outputs.shape[1], inputs[:1], driven)
        try:
            return gate.believed(*now, outputs[few], inputs[few])
        except InvalidInput:
            self.refused += 1
            raise

    def _moved(self, samples: Believed) -> Moved | None:
        """The core after them and what it reports; nothing during the warm-up."""
        if self._core is None:
            return None
        return self._core.through(self.seed, self._age, samples.outputs, self._with_recent(samples.inputs))

    def _learned(self, samples: Believed, moved: Moved | None) -> list[Estimate]:
        """Go on from where the core was `moved` to."""
        driven = self._with_recent(samples.inputs)
        self._core, reports = moved or (None, samples.outputs[:0])
        count = max(len(reports), 1)  # a state that cannot be moved by a later one is for the next call
        self.gates, self.recent = samples.gates[count - 1], newest(driven[count - 1], self.method.input_lags)
        bands, found = self.bands or Bands.new(samples.outputs.shape[1]), []
        for y, c, report, sentence in zip(samples.outputs, samples.inputs, reports, samples.sentences, strict=False):
            estimate = estimate_of(report, self.state_dim, sentence)
            bands = bands.seen(y, estimate.predicted_mean, estimate.predicted_std, c)
            found.append(estimate)
        stuck = self.ready and not found
        if stuck:
            self._give_up()
        elif found:
            self.bands = bands
        if self.early or not self.ready:
            kept = np.where(np.abs(samples.came[:count]) > LARGEST, np.nan, samples.came[:count])
            self.early += zip(kept, driven[:count].copy(), strict=True)
        self.count += count
        if not found:
            found = [self._warm_up()._replace(refused=samples.sentences[0] or (RESTARTED if stuck else ""))]
        elif self.early and self._age in look_backs(self.method.warm_up):
            self._look_back()
        self.refused += sum(bool(estimate.refused) for estimate in found)
        return found

    def _undisturbed(self) -> int:
        """How many samples can be learned from before something else has to be done."""
        if self._core is None or not self.early:
            return 1 if self._core is None else BLOCK
        return min((age - self._age for age in look_backs(self.method.warm_up) if age > self._age), default=BLOCK)

    def _give_up(self) -> None:
        """The state cannot be moved at all: begin again, with nothing."""
        self._core, self.gates, self.early, self.given_up = None, None, [], self.count

    def _warm_up(self) -> Estimate:
        """Before the core can start, the prediction is the mean of what was seen."""
        outputs = gate.believable(self.early, self.method.input_lags)[0]
        prediction = gate.predict(outputs)
        estimate = self._restart() if gate.tells_scale(outputs, self.method.warm_up) else None
        if estimate is not None:
            return Estimate(estimate.state_mean, estimate.state_cov, *prediction)
        mean = self.method.guess(outputs[-1])
        return Estimate(mean, np.full((len(mean), len(mean)), np.nan), *prediction)

    def _restart(self) -> Estimate | None:
        """Take units from all samples so far, and learn from them."""
        outputs, inputs, (of_outputs, of_inputs) = gate.believable(self.early, self.method.input_lags)
        assert self.input_dim is not None
        for y, c in zip(outputs, inputs[:, : self.input_dim], strict=True):
            of_outputs, of_inputs = of_outputs.admit(y)[1], of_inputs.admit(c)[1]
        self.gates = of_outputs, of_inputs
        started = Core.of(self.method, self.method.initial_state(outputs, inputs))
        self.unit_samples = len(outputs)
        self._core, reports = started.through(self.seed, 0, outputs, inputs)
        if len(reports) == len(outputs):
            return estimate_of(reports[-1], self.state_dim)
        self._give_up()
        return None

    def _look_back(self) -> None:
        """Restart if the samples have outgrown the units, or were a fault at first."""
        outputs, inputs, gates = gate.believable(self.early, self.method.input_lags)
        assert self.gates is not None
        if gate.outgrown(outputs, inputs, self.unit_samples, self.gates[0].least, gates[0]):
            self._restart()
        if self._age == look_backs(self.method.warm_up)[-1]:
            self.early = []

    def _sample(self, y: Any, u: Any) -> tuple[NDArray, NDArray]:
        """One checked sample; the first one decides how wide all others must be."""
        outputs = sample_row("y", y, self.output_dim)
        inputs = np.zeros(0) if u is None and not self.input_dim else sample_row("u", u, self.input_dim)
        self._check_widths(len(outputs), inputs)
        return outputs, inputs

    def _check_widths(self, output_dim: int, inputs: NDArray) -> None:
        if np.isnan(inputs).any():
            raise InvalidInput("u: contains NaN; control inputs must be known. Repeat the last one, or fill the gap.")
        if self.output_dim is None:
            self.method.check(output_dim, inputs.shape[-1])
            self.output_dim, self.input_dim = output_dim, inputs.shape[-1]

    def _require_state(self, what: str) -> None:
        if not self.ready:
            raise InvalidInput(
                f"{what}: the stream has seen {self.count} sample(s); expected at least {self.method.warm_up}, "
                "from which it learns where the data live."
            )


def _as_many(names: tuple[str, ...], count: int | None, letter: str) -> tuple[str, ...]:
    return names if len(names) == count else tuple(f"{letter}{i + 1}" for i in range(count or 0))
