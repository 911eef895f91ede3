"""Several methods on one recording, by what each forecasts from several of its samples: a rolling-origin backtest."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.datasets.series import Series, SeriesList
from gpssm.errors import InvalidInput
from gpssm.methods import registry
from gpssm.parallel import pool
from gpssm.plumbing.validation import positive_int
from gpssm.posteriors.check import AHEAD, LINES, MEAN, Score
from gpssm.posteriors.states import Forecast

NDArray = np.ndarray

METHODS = ("EnVI", "LinearGaussian", "ARX", "LastValue", MEAN)
"""What is compared by default: a method of this package, and those that it has to beat."""
ORIGINS = 4
_PATHS = 300
_TENTH = 1.1
_LEAST_LEARNED = 20  # samples before the first origin


@dataclass(frozen=True)
class Backtest:
    """What a backtest has found. Print it, or take `rows` or `to_dataframe`.

    >>> import gpssm
    >>> y = np.sin(0.3 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> found = gpssm.backtest(["ARX", "TrainingMean"], gpssm.datasets.Series(y[:, None], None, None))
    >>> found.best, found.origins, found.horizon
    ('ARX', (136, 152, 168, 184), 16)
    >>> sorted(found.rows[0])
    ['coverage90', 'crps', 'fit_percent', 'horizon', 'method', 'origin', 'output', 'rmse', 'seconds']
    >>> print(found.verdict)  # doctest: +ELLIPSIS
    Use ARX.
    """

    data: Series
    """The recording that was forecast."""
    origins: tuple[int, ...]
    """The samples, from 0, that forecasts start with."""
    horizon: int
    """Steps of every forecast; the last one may have fewer."""
    paths: dict[str, list[Float[NDArray, "p h dy"]]]
    """Of every method that has not failed, the sample paths from every origin."""
    failures: dict[str, str]
    """Of every method that has failed, why."""
    seconds: dict[str, float]
    """That a method took, compilation included."""
    recordings: int = 1
    """How many there were; the others were learned from."""

    @cached_property
    def scores(self) -> tuple[Score, ...]:
        """Of every method, over all origins; the smallest error first."""
        found = [Score.of(name, list(zip(paths, self._truths(), strict=True))) for name, paths in self.paths.items()]
        return tuple(sorted(found, key=lambda score: score.nrmse))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for every method, origin and output: tidy, ready for `pandas.DataFrame`."""
        starts = self.data.times.text(len(self.data.outputs)) if self.data.times is not None else None
        found = []
        for name, paths in self.paths.items():
            for origin, samples, truth in zip(self.origins, paths, self._truths(), strict=True):
                score = Score.of(name, [(samples, truth)])
                about = {"method": name, "origin": origin if starts is None else starts[origin], "horizon": len(truth)}
                for j, output in enumerate(self.data.output_names):
                    numbers = {"rmse": score.rmse, "fit_percent": score.fit, "coverage90": score.coverage90}
                    values = {key: float(v[j]) for key, v in (numbers | {"crps": score.crps}).items()}
                    found.append(about | {"output": output} | values | {"seconds": self.seconds[name]})
        return found

    def to_dataframe(self) -> Any:
        """`rows` as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.rows)

    def forecast(self, method: str) -> Forecast:
        """Of the `method` of that name, all its forecasts one after the other."""
        samples = np.concatenate(self.paths[method], axis=1)
        times = None if self.data.times is None else self.data.times.later(self.origins[0])
        return Forecast(samples, samples[:, :, :0], times, self.data.output_names)

    @property
    def best(self) -> str:
        """The method to use: a line where that is surely as good as what is not a line."""
        return self._choice[0]

    @property
    def verdict(self) -> str:
        """One sentence: which method to use, and whether a line is enough."""
        return self._choice[1]

    def __str__(self) -> str:
        names = self.data.output_names
        heads = [*names, "all outputs"] if len(names) > 1 else list(names)
        width = max(len("method"), *(len(name) for name in (*self.paths, *self.failures)))
        lines = [f"  {'method':<{width}}" + "".join(f"  {name[-16:]:>16}" for name in heads) + "  in 90% band  seconds"]
        lines.append(f"  {'':<{width}}" + f"  {'RMSE   fit %':>16}" * len(heads))
        for score in self.scores:
            cells = [f"{e:.4g} {f:>7.1f}" for e, f in zip(score.rmse, score.fit, strict=True)]
            cells += [f"{score.pooled_fit:>7.1f}"] if len(names) > 1 else []
            row = f"  {score.method:<{width}}" + "".join(f"  {cell:>16}" for cell in cells)
            lines.append(f"{row}  {score.pooled_coverage90:>11.2f}  {self.seconds[score.method]:>7.0f}")
        lines += [f"  {name:<{width}}  failed: {why}" for name, why in self.failures.items()]
        of = f" of the longest of {self.recordings} recordings" if self.recordings > 1 else ""
        count = f"{len(self.origins)} forecast(s) of {self.horizon} step(s){of}, each from all samples before it:"
        return "\n".join([count, *lines, self.verdict])

    def _truths(self) -> list[NDArray]:
        return [self.data.outputs[start : start + self.horizon] for start in self.origins]

    @cached_property
    def _choice(self) -> tuple[str, str]:
        """The method to use, and why.

        Few forecasts are little evidence. A simpler method is named where it is surely not worse by more than a tenth,
        surely: by a standard error over the origins. In doubt it is the other, which has seen a part of the recording
        only, gains more from the rest, and can become a line itself.
        """
        ranked = [score for score in self.scores if np.isfinite(score.nrmse)]
        if not ranked:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.failures.items()) or "their forecasts diverge"
            raise InvalidInput(f"methods: none can forecast this recording ({why}).")
        simple = [score for score in ranked if score.method in registry.BASELINES]
        line = next((score for score in simple if score.method in LINES), None)
        naive = next((score for score in simple if score.method not in LINES), None)
        other = next((score for score in ranked if score.method not in registry.BASELINES), None)
        best, sentence = other or line or naive or ranked[0], ""
        if other is not None and line is not None:
            if self._not_worse(line.method, other.method):
                beside = f"{other.method} has {other.nrmse / line.nrmse:.2f} times its error"
                best, sentence = line, f"Use {line.method}: a line is enough ({beside})."
            else:
                beside = f"{line.method} has {line.nrmse / other.nrmse:.2f} times its error"
                worse = line.nrmse > AHEAD * other.nrmse
                told = "is not enough" if worse else "may be enough, these forecasts do not tell"
                sentence = f"Use {other.method}: a line {told} ({beside})."
        if (
            naive is not None
            and naive is not best
            and naive.nrmse < best.nrmse
            and self._not_worse(naive.method, best.method)
        ):
            return naive.method, f"Use {naive.method}: nothing here forecasts better."
        return best.method, sentence or f"Use {best.method}."

    def _not_worse(self, simple: str, other: str) -> bool:
        """Whether the error of a simple method is surely not larger by more than a tenth."""
        errors = [
            [
                Score.of(name, [(paths, truth)]).nrmse
                for paths, truth in zip(self.paths[name], self._truths(), strict=True)
            ]
            for name in (simple, other)
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(errors[0]) - np.log(errors[1])
        doubt = ratio.std(ddof=1) / np.sqrt(len(ratio)) if len(ratio) > 1 else 0.0
        return bool(ratio.mean() + doubt <= np.log(_TENTH))


class _Job(NamedTuple):
    """What a process is asked for: the forecasts of one method from some of the origins, after one fit."""

    name: str
    method: Any
    places: tuple[int, ...]
    """Which of the origins."""


def backtest(
    methods: Sequence[Any] | Mapping[str, Any],
    data: Series | SeriesList,
    *,
    horizon: int | None = None,
    origins: int = ORIGINS,
    refit: bool = False,
    max_seconds: float | None = None,
    seed: int = 0,
    processes: int | None = None,
    watch: Callable[[str, int, int], None] | None = None,
) -> Backtest:
    """Forecast a recording with several methods from several of its samples, each given all samples before it.

    Call it from under `if __name__ == "__main__":` in a script: every process that it starts imports the script.

    Args:
        methods: names of methods, such as `"EnVI"` and `"ARX"`, with their defaults and as many states as they find
            that they need; or methods, `gpssm.EnVI(2)`; or methods by what to call them.
        data: a recording, from `from_csv` for example. Of several, the longest is forecast and the others are learned
            from, too.
        horizon: steps of every forecast; by default all origins together forecast the last third of the recording.
        origins: how many forecasts, one after the other, up to the end of the recording.
        refit: learn again from all samples before every origin; otherwise every method learns once, from those before
            the first, and only its state follows. Methods that learn live do that in any case.
        max_seconds: that all fits may take together, roughly; where it is not enough, the best models so far forecast.
        seed: all randomness.
        processes: how many at once; one per core by default.
        watch: called with a line of text, how many fits are done, and how many there are.

    Returns:
        Scores, a tidy table and a sentence: `rows`, `scores`, `best`, `verdict`.

    >>> import gpssm
    >>> data = gpssm.datasets.Series(np.sin(0.3 * np.arange(120))[:, None], None, None)
    >>> found = gpssm.backtest({"line": gpssm.ARX(order=2), "mean": "TrainingMean"}, data, horizon=5, origins=3)
    >>> [score.method for score in found.scores], found.origins
    (['line', 'mean'], (105, 110, 115))
    """
    chosen = _by_name(methods)
    recording, others = _longest(data)
    starts, steps = _origins(len(recording.outputs), positive_int("origins", origins), horizon)
    built = {name: _built(method, recording.outputs.shape[1]) for name, method in chosen.items()}
    places = tuple(range(len(starts)))
    jobs = [
        _Job(name, method, part)
        for name, method in built.items()
        for part in ([(place,) for place in places] if refit and hasattr(method, "fit") else [places])
    ]
    limit = None if max_seconds is None else max_seconds * (processes or len(pool.cores())) / max(1, len(jobs))
    run = partial(_forecasts, recording, others, starts, steps, limit, seed)
    paths: dict[str, dict[int, NDArray]] = {name: {} for name in built}
    failures: dict[str, str] = {}
    seconds = dict.fromkeys(built, 0.0)
    done = 0
    for event in pool.run(run, jobs, processes):
        name = jobs[event.place].name
        if event.kind == "done":
            found, error, took = event.value
            paths[name] |= found
            seconds[name] += took
            if error:
                failures.setdefault(name, error)
        elif event.kind == "died":
            failures.setdefault(name, event.value)
        done += event.kind in ("done", "died")
        if watch is not None and event.kind != "waiting":
            watch(name, done, len(jobs))
    whole = {name: [found[place] for place in places] for name, found in paths.items() if name not in failures}
    return Backtest(recording, starts, steps, whole, failures, seconds, 1 + len(others))


def _by_name(methods: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(methods, Mapping):
        return dict(methods)
    if isinstance(methods, str) or not isinstance(methods, Sequence) or not methods:
        raise InvalidInput(f"methods: expected a list of names or of methods, got {methods!r}.")
    named = {method if isinstance(method, str) else getattr(method, "name", repr(method)): method for method in methods}
    if len(named) < len(methods):
        raise InvalidInput(
            "methods: two have the same name; expected every one once, or a mapping from names to methods."
        )
    return named


def _built(method: Any, output_dim: int) -> Any:
    """A method by its name, or itself."""
    if not isinstance(method, str):
        if not (hasattr(method, "fit") or hasattr(method, "start")):
            raise InvalidInput(f"methods: expected names or methods such as gpssm.EnVI(4), got {method!r}.")
        return method
    known = registry.canonical(method)
    if known in registry.ONLINE:
        return registry.build_online(known, state_dim=max(4, output_dim + 2), input_lags=4)
    return registry.build(known, **registry.applicable(known, state_dim="auto"))


def _longest(data: Series | SeriesList) -> tuple[Series, list[tuple[NDArray, NDArray | None]]]:
    """The recording that is forecast, and the outputs and inputs of all others."""
    if isinstance(data, Series):
        named = data if data.output_names else data.numbered()
        return named, []
    if not isinstance(data, SeriesList):
        kind = type(data).__name__
        raise InvalidInput(
            f"data: expected a recording (gpssm.datasets.Series), from from_csv for example, got {kind}."
        )
    i = max(range(len(data.outputs)), key=lambda k: len(data.outputs[k]))
    inputs: Sequence[NDArray | None] = [None] * len(data.outputs) if data.inputs is None else data.inputs
    times = data.times[i] if data.times else None
    longest = Series(data.outputs[i], inputs[i], None, data.output_names, data.input_names, times)
    return longest, [(y, c) for k, (y, c) in enumerate(zip(data.outputs, inputs, strict=True)) if k != i]


def _origins(length: int, count: int, horizon: int | None) -> tuple[tuple[int, ...], int]:
    """Where forecasts start, and how long they are: one after the other, up to the end."""
    steps = length // (3 * count) if horizon is None else positive_int("horizon", horizon)
    first = length - count * steps
    least = max(steps, 1)
    if steps < 1 or first < _LEAST_LEARNED:
        raise InvalidInput(
            f"origins: {count} forecast(s) of {least} step(s) leave {max(length - count * least, 0)} of "
            f"{length} sample(s) to learn from; expected at least {_LEAST_LEARNED}. Record more, or ask for less."
        )
    return tuple(range(first, length, steps)), steps


def _forecasts(
    data: Series,
    others: list[tuple[NDArray, NDArray | None]],
    starts: tuple[int, ...],
    horizon: int,
    max_seconds: float | None,
    seed: int,
    job: _Job,
) -> tuple[dict[int, NDArray], str, float]:
    """In the process of a worker: paths by origin, what went wrong, and the seconds that it took."""
    began = time.perf_counter()
    found: dict[int, NDArray] = {}
    try:
        learned, seen = None, 0
        for place in job.places:
            start = starts[place]
            if learned is None:
                learned = _learned(job.method, data.rows(slice(None, start)), others, max_seconds, seed)
            elif start > seen:
                learned = learned.advanced(data.rows(slice(seen, start)))
            seen = start
            found[place] = learned.paths(data.rows(slice(start, start + horizon)), seed + place)
        error = ""
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    return found, error, time.perf_counter() - began


class _Learned(NamedTuple):
    """A fitted model and its state, or a stream."""

    model: Any
    state: Any = None

    def advanced(self, data: Series) -> "_Learned":
        """After further samples."""
        if hasattr(self.model, "learn_one"):
            self.model.learn_many(data.outputs, data.inputs)
            return self
        return self._replace(state=self.model.filter(data.outputs, data.inputs, state=self.state or self.model.end))

    def paths(self, data: Series, seed: int) -> NDArray:
        """Of the outputs of these samples, before they are seen."""
        state = {} if self.state is None else {"state": self.state}
        forecast = self.model.forecast(len(data.outputs), data.inputs, num_paths=_PATHS, seed=seed, **state)
        return np.asarray(forecast.samples)


def _learned(
    method: Any, data: Series, others: list[tuple[NDArray, NDArray | None]], max_seconds: float | None, seed: int
) -> _Learned:
    if not hasattr(method, "fit"):
        stream = method.start(seed=seed)
        stream.learn_many(data.outputs, data.inputs)
        return _Learned(stream)
    ys = [*(y for y, _ in others), data.outputs]
    cs = None if data.inputs is None else [*(c for _, c in others), data.inputs]
    return _Learned(method.fit(ys, cs, seed=seed, max_seconds=max_seconds))
