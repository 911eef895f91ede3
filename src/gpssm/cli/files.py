"""Files of the user's: models, recordings by the names that a model knows, and places to write to."""

import secrets
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpssm.datasets.csv_files import from_csv
from gpssm.datasets.series import Series, SeriesList
from gpssm.errors import DataWarning, InvalidInput
from gpssm.online.stream import Stream
from gpssm.plumbing.atomic import followed
from gpssm.plumbing.messages import say
from gpssm.plumbing.serialization import InvalidFile, load
from gpssm.plumbing.times import Times
from gpssm.posteriors.fitted import Fitted

Columns = tuple[list[str] | None, list[str] | None]
"""What the user calls the outputs and the inputs in a file; nothing where the model's names hold."""


def load_saved(argument: str, path: Path) -> Any:
    """The object in a file that `save` has written; `argument` names the option in the error if it cannot be read."""
    try:
        return load(path)
    except InvalidFile as error:
        if str(error).startswith("functions:"):
            raise InvalidInput(
                f"{argument}: {str(path)!r} was made with functions of yours, which a file cannot hold; "
                "use it in Python, with gpssm.load(path, functions=...)."
            ) from error
        raise


def load_forecaster(path: Path) -> Fitted | Stream:
    """The fitted model in a file that `gpssm fit` has written, or the checkpoint of `gpssm stream`; nothing else."""
    model = load_saved("model", path)
    if not isinstance(model, Fitted | Stream):
        raise InvalidInput(f"model: {str(path)!r} holds a {type(model).__name__}; expected a fitted model.")
    return model


def load_model(path: Path) -> Fitted:
    """The same as a fitted model, which a checkpoint of some methods can be read as; others are refused."""
    return as_fitted(load_forecaster(path))


def as_fitted(model: Fitted | Stream) -> Fitted:
    """A stream as it is now, as a fitted model."""
    return model.posterior() if isinstance(model, Stream) else model


def method_of(model: Fitted | Stream) -> str:
    """What the method is called."""
    return model.method.name if isinstance(model, Stream) else model.method


def end_of(model: Fitted | Stream) -> Times | None:
    """The time of the last sample learned from, if it is known; a stream does not keep it."""
    return None if isinstance(model, Stream) else model.recording.end


def split(columns: list[str] | None) -> list[str]:
    """Columns that were given with commas between them, or one at a time, or both."""
    return [name.strip() for item in columns or [] for name in item.split(",") if name.strip()]


def reading(options: Any) -> dict[str, Any]:
    """What a command's options say about csv files, for `from_csv`."""
    return {
        "time": split(options.time) or None,
        "resample": options.resample,
        "na": split(options.na),
        "delimiter": options.delimiter,
    }


@contextmanager
def saying_data_warnings() -> Iterator[None]:
    """What looks wrong in data, or was changed in them, is a line on standard error."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def say_or_show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, DataWarning):
                say(str(message))
            else:
                show(message, category, *place, **more)

        warnings.simplefilter("always", DataWarning)
        warnings.showwarning = say_or_show
        yield


def read_recordings(options: Any) -> SeriesList:
    """All recordings in the files of a command, by the columns that its options name."""
    with saying_data_warnings():
        names = split(options.outputs), split(options.inputs)
        return from_csv(options.data, *names, id=options.id_column, **reading(options))


def read_recording(
    path: Path, model: Fitted | Stream, columns: Columns, how: dict[str, Any], argument: str = "data"
) -> Series:
    """The channels of `model` in a file: under the names it was fitted with, or in the columns given.

    Times, if there are any, must have the step of those that it was fitted to; `argument` names the file in the error.
    """
    outputs = _names("outputs", split(columns[0]) or model.output_names, model.output_dim or 0)
    return _read(path, model, outputs, _inputs(model, columns), how, argument)


def read_inputs(path: Path, model: Fitted | Stream, columns: Columns, how: dict[str, Any]) -> Series:
    """The inputs of `model` (T, dc) in a file that need not hold outputs: the result has none."""
    return _read(path, model, (), _inputs(model, columns), how, "inputs")


def say_gap(before: Times | None, data: Series, path: Path, advice: str) -> None:
    """Say it if times show that `data` do not follow the sample `before` them, of which the state is used."""
    steps = None if before is None or data.times is None else before.steps_until(data.times)
    if before is None or data.times is None or steps is None or round(steps) == 1:
        return
    start, end = data.times.text(1)[0], before.text(1)[0]
    where = f"{steps:.6g} steps after" if steps > 1 else "not after"
    say(f"{str(path)!r} starts at {start}, {where} {end}, whose state it is taken to follow; {advice}.")


def _read(
    path: Path,
    model: Fitted | Stream,
    outputs: Sequence[str],
    inputs: Sequence[str],
    how: dict[str, Any],
    argument: str,
) -> Series:
    with saying_data_warnings():
        data = from_csv(path, outputs, inputs, **how)
    learned = end_of(model)
    if data.times is not None and learned is not None and not data.times.same_step(learned):
        raise InvalidInput(
            f"{argument}: {str(path)!r} has a step of {data.times.step_text}, the model learned from one of "
            f"{learned.step_text}; expected the same, also after --resample {learned.step_text.replace(' ', '')}."
        )
    return data


def check_target(out: Path, *read: Path | None, argument: str = "out") -> None:
    """Refuse, before any work is done, a place that cannot be written to and a file that is read."""
    if not out.parent.is_dir():
        raise InvalidInput(f"{argument}: the directory {str(out.parent)!r} does not exist; create it first.")
    if out.exists() and not out.is_file():
        raise InvalidInput(f"{argument}: {str(out)!r} is not a file; expected the name of one.")
    if any(path is not None and path.exists() and out.exists() and out.samefile(path) for path in read):
        raise InvalidInput(f"{argument}: {str(out)!r} is a file that is read; expected another one.")
    try:
        place = followed(out)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}.", suffix=".tmp"):
            pass
    except OSError as error:
        reason = f"cannot write {str(out)!r} ({error.strerror}); choose another place."
        raise InvalidInput(f"{argument}: {reason}") from error


def save_somewhere(model: Fitted, out: Path) -> tuple[Path, list[str]]:
    """Save a model at `out` or else, because a fit takes long, at another place; returns which, and what failed."""
    failures: list[str] = []
    for place in (out, *_elsewhere(out)):
        try:
            model.save(place)
        except OSError as error:
            failures.append(f"{str(place)!r} ({error.strerror or error})")
        else:
            return place, failures
    raise OSError(f"cannot write {', nor '.join(failures)}; the model is lost.")


def _elsewhere(out: Path) -> Iterator[Path]:
    """New files in other directories that everybody can write to."""
    name = f"{out.stem}-{secrets.token_hex(4)}{out.suffix}"
    for directory in (Path.cwd, lambda: Path(tempfile.gettempdir())):
        try:
            found = directory()
        except OSError:  # it was removed, or there is none
            continue
        if not (out.parent.is_dir() and found.samefile(out.parent)):
            yield found / name


def _inputs(model: Fitted | Stream, columns: Columns) -> Sequence[str]:
    return _names("inputs", split(columns[1]) or model.input_names, model.input_dim or 0)


def _names(argument: str, names: Sequence[str], count: int) -> Sequence[str]:
    if len(names) != count:
        raise InvalidInput(f"{argument}: {len(names)} column(s) ({', '.join(names)}); the model expects {count}.")
    return names
