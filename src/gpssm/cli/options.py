"""The arguments of every command, each written once: what `gpssm COMMAND --help` shows and what `run` of its file gets.

A class is a command: its fields are the arguments, its docstring the help, examples included. JAX is not imported here.
"""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import typer

from gpssm.cli.completion import one_of, some_of
from gpssm.filters import FILTERS
from gpssm.methods.registry import METHODS, ONLINE
from gpssm.models import LIKELIHOODS

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not report progress on standard error.")]
Seed = Annotated[int, typer.Option(help="Seed of all random draws.")]
Model = Annotated[
    Path, typer.Argument(help="A model of `gpssm fit`, or a checkpoint of `gpssm stream`.", show_default=False)
]
OUTPUTS, INPUTS = (f"Columns of the {what}; those of the model by default." for what in ("outputs", "inputs"))
OutputColumns = Annotated[list[str] | None, typer.Option("--outputs", metavar="COLUMNS", help=OUTPUTS)]
BLOCK = 50
InputColumns = Annotated[list[str] | None, typer.Option("--inputs", metavar="COLUMNS", help=INPUTS)]
TimeColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--time",
        metavar="COLUMN",
        help="Column of dates or times (date,time if there are two); found by itself, none to count samples instead.",
    ),
]
Resample = Annotated[
    str | None,
    typer.Option(metavar="STEP", help="Mean of the numbers within every step of 2s, 5min, ...; 2s:last for the last."),
]
MissingWords = Annotated[
    list[str] | None, typer.Option("--na", metavar="WORDS", help="Further words that mean a missing value: -999.")
]
Delimiter = Annotated[
    str | None, typer.Option(metavar="CHARACTER", help="Between cells; also tab or space. Found by itself.")
]


Recordings = Annotated[list[Path], typer.Argument(help="CSV files, each its own recording.", show_default=False)]
WantedOutputs = Annotated[
    list[str], typer.Option(metavar="COLUMNS", help="Names or numbers (from 0) of columns, with commas between them.")
]
WantedInputs = Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help="Columns of control inputs, likewise.")]
IdColumn = Annotated[
    str | None, typer.Option("--id", metavar="COLUMN", help="Column that tells recordings in one file apart.")
]


class DemoOptions(NamedTuple):
    """Simulate an unknown system, learn it from 600 noisy numbers, and draw what was found.

    Example:
        gpssm demo --out demo
    """

    out: Annotated[Path, typer.Option(help="Directory for the picture and the model.", file_okay=False)] = Path("demo")
    seed: Seed = 0
    as_json: AsJson = False
    quiet: Quiet = False


class FitOptions(NamedTuple):
    """Learn a model from your recordings. Ctrl-C stops early and keeps the best model so far.

    Example:
        gpssm fit recording.csv --outputs y --inputs u -o model.gpssm
    """

    data: Recordings
    outputs: WantedOutputs
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to save the model.")]
    inputs: WantedInputs = None
    id_column: IdColumn = None
    time: TimeColumn = None
    resample: Resample = None
    na: MissingWords = None
    delimiter: Delimiter = None
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.", autocompletion=one_of(METHODS))] = "EnVI"
    state_dim: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Dimension of the state, of methods that have one. [default: auto]"),
    ] = None
    num_inducing: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Inducing points of every state, where f is a GP. [default: 20, or 40 for more than 8000 samples]",
        ),
    ] = None
    holdout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.5,
            help="Share at the end of every recording that the model is checked with before it learns from it, too; "
            "0 for no check. [default: 0.2]",
        ),
    ] = None
    max_seconds: Annotated[
        float | None, typer.Option(min=0.0, help="End with the best model so far after that; compilation apart.")
    ] = None
    likelihood: Annotated[
        str | None,
        typer.Option(
            help=f"Of the outputs, one of {', '.join(LIKELIHOODS)}; the first by default.",
            autocompletion=one_of(LIKELIHOODS),
        ),
    ] = None
    restarts: Annotated[
        int | None,
        typer.Option(min=1, help="Starts of which the best is kept; 3 by default where states are hidden."),
    ] = None
    seed: Seed = 0
    as_json: AsJson = False
    quiet: Quiet = False


class CompareOptions(NamedTuple):
    """Which method forecasts your recording best, and whether a line is enough: a backtest with a picture.

    Example:
        gpssm compare recording.csv --outputs y --inputs u --methods EnVI,ARX
    """

    data: Recordings
    outputs: WantedOutputs
    inputs: WantedInputs = None
    id_column: IdColumn = None
    time: TimeColumn = None
    resample: Resample = None
    na: MissingWords = None
    delimiter: Delimiter = None
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help=f"Of {', '.join((*METHODS, *ONLINE))}. [default: EnVI and four that it has to beat]",
            autocompletion=some_of((*METHODS, *ONLINE)),
        ),
    ] = None
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of every forecast; by default all together are a third of the recording."),
    ] = None
    origins: Annotated[int, typer.Option(min=1, help="How many forecasts, one after the other, up to the end.")] = 4
    refit: Annotated[
        bool, typer.Option("--refit", help="Learn again before every forecast, not only before the first.")
    ] = False
    max_seconds: Annotated[
        float | None, typer.Option(min=0.0, help="That all fits may take together; compilation apart.")
    ] = None
    processes: Annotated[int | None, typer.Option(min=1, help="How many at once; one per core by default.")] = None
    seed: Seed = 0
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Picture; compare.png by default.", show_default=False)
    ] = None
    as_json: AsJson = False
    quiet: Quiet = False


class FilterOptions(NamedTuple):
    """The hidden state at every sample of a recording, with its standard deviation.

    Example:
        gpssm filter model.gpssm later.csv -o states.csv
    """

    model: Model
    data: Annotated[Path, typer.Argument(help="CSV file with a recording.", show_default=False)]
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file for the states.")]
    smooth: Annotated[bool, typer.Option("--smooth", help="Use later samples, too.")] = False
    filter: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(FILTERS)}; the first by default.", autocompletion=one_of(FILTERS)),
    ] = None
    outputs: OutputColumns = None
    inputs: InputColumns = None
    time: TimeColumn = None
    resample: Resample = None
    na: MissingWords = None
    delimiter: Delimiter = None
    as_json: AsJson = False
    quiet: Quiet = False


class ForecastOptions(NamedTuple):
    """The outputs to come: mean, standard deviation and quantiles of every step.

    Example:
        gpssm forecast model.gpssm --inputs future.csv -o forecast.csv
    """

    model: Model
    history: Annotated[
        Path | None, typer.Option(help="CSV file to forecast from the end of; that of the training data by default.")
    ] = None
    inputs: Annotated[
        Path | None, typer.Option(help="CSV file with the future inputs, one row a step, if the model has inputs.")
    ] = None
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Number of steps; every row of the future inputs by default.")
    ] = None
    paths: Annotated[int, typer.Option(min=2, help="Number of sample paths.")] = 500
    whole_path: Annotated[
        bool, typer.Option("--whole-path", help="Also the band that holds 90% of the paths at all steps at once.")
    ] = False
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="Bands as the model has them, not corrected by its check.")
    ] = False
    seed: Seed = 0
    output_columns: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help=OUTPUTS)] = None
    input_columns: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help=INPUTS)] = None
    time: TimeColumn = None
    resample: Resample = None
    na: MissingWords = None
    delimiter: Delimiter = None
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV file for the forecast; printed by default.")] = (
        None
    )
    as_json: AsJson = False
    quiet: Quiet = False


class EvaluateOptions(NamedTuple):
    """How well a model forecasts a recording that it has not seen.

    Example:
        gpssm evaluate model.gpssm later.csv
    """

    model: Model
    data: Annotated[Path, typer.Argument(help="CSV file that the model has not seen.", show_default=False)]
    history: Annotated[
        Path | None, typer.Option(help="CSV file that the test continues; the training data by default.")
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="The test is a new experiment: its first block is seen, not scored.")
    ] = False
    block: Annotated[int, typer.Option(min=1, help="Samples in a block that is forecast at once.")] = BLOCK
    outputs: OutputColumns = None
    inputs: InputColumns = None
    time: TimeColumn = None
    resample: Resample = None
    na: MissingWords = None
    delimiter: Delimiter = None
    as_json: AsJson = False
    quiet: Quiet = False


class PlotOptions(NamedTuple):
    """One picture: forecast, inputs, states, residuals of one-step predictions, whether bands hold; and a verdict.

    Example:
        gpssm plot model.gpssm --data later.csv -o picture.png
    """

    model: Model
    data: Annotated[
        Path | None, typer.Option(help="CSV file that continues the training data; the end of that by default.")
    ] = None
    history: Annotated[
        Path | None, typer.Option(help="CSV file that the data continue; the training data by default.")
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help=f"The data are a new experiment, of which {BLOCK} samples are seen first.")
    ] = False
    outputs: OutputColumns = None
    inputs: InputColumns = None
    time: TimeColumn = None
    resample: Resample = None
    na: MissingWords = None
    delimiter: Delimiter = None
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Picture; next to the model by default.", show_default=False)
    ] = None
    as_json: AsJson = False
    quiet: Quiet = False


class SummaryOptions(NamedTuple):
    """What a model has learned, and what from.

    Example:
        gpssm summary model.gpssm
    """

    model: Model
    as_json: AsJson = False


class StreamOptions(NamedTuple):
    """Learn while samples come in, as CSV or JSON lines; print an estimate of each as a JSON line.

    With --redis, --in and --out each message is learned from once, also if the process is killed: it is acknowledged
    only when it is in the checkpoint. SIGTERM, Ctrl-C and the end of the input save a last checkpoint. One process at a
    time uses a checkpoint, and a group. A line or message that cannot be used is reported and skipped.

    Example:
        tail -f log.csv | gpssm stream --outputs y --checkpoint live.gpssm
        gpssm stream --redis redis://localhost --in y --out x --checkpoint s.gpssm
    """

    model: Annotated[
        Path | None, typer.Option(help="A model or stream to start from; with a checkpoint only its names are used.")
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            help=f"Online method: {', '.join(ONLINE)}. [default: OEnVI, or that of the file]",
            autocompletion=one_of(ONLINE),
        ),
    ] = None
    state_dim: Annotated[int, typer.Option(min=1, help="States of a new model: outputs and their past.")] = 4
    num_inducing: Annotated[int, typer.Option(min=1, help="Inducing points of every state of a new model.")] = 40
    input_lags: Annotated[int, typer.Option(min=1, help="How many of the last inputs act on a new model.")] = 1
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMNS",
            help="Columns (names, or numbers from 0), keys or fields of the outputs; those of the model, or y.",
        ),
    ] = None
    inputs: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help="Those of the inputs, likewise.")] = None
    time: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="That of the time, which estimates give back; one called time, date, ... by default, none: no time.",
        ),
    ] = None
    forecast: Annotated[
        int | None, typer.Option(min=1, help="Also forecast so many steps; inputs stay what they were last.")
    ] = None
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="Bands as the model has them; else they follow how often they hold.")
    ] = False
    checkpoint: Annotated[
        Path | None, typer.Option(help="File to save the stream in, and to go on from if it exists.")
    ] = None
    every: Annotated[int, typer.Option(min=1, help="Samples between two checkpoints.")] = 100
    seed: Annotated[int, typer.Option(help="Seed of a new stream.")] = 0
    redis: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Read a Redis Stream instead of standard input. An address with a password is better put into the "
            "environment variable GPSSM_REDIS_URL, which is used if only --in and --out are given.",
        ),
    ] = None
    source: Annotated[str | None, typer.Option("--in", help="Redis Stream of the samples.")] = None
    target: Annotated[str | None, typer.Option("--out", help="Redis Stream for the estimates.")] = None
    group: Annotated[str, typer.Option(help="Consumer group, of one process at a time.")] = "gpssm"
    consumer: Annotated[str, typer.Option(help="Name in the group, the same at every start.")] = "gpssm"


class DatasetsOptions(NamedTuple):
    """List the published recordings that can be loaded, and which of them are on this machine.

    Example:
        gpssm datasets --json
    """

    as_json: AsJson = False


COMMANDS = [kind for name, kind in list(globals().items()) if name.endswith("Options")]


class Told(TypedDict):
    """What is told of a command before its options, and after them."""

    help: str
    epilog: str


def told(docstring: str | None) -> Told:
    """A docstring, whose last section is an example, as Typer takes it."""
    text, _, examples = inspect.cleandoc(docstring or "").partition("\n\nExample:\n")
    return {"help": text, "epilog": f"Example:\n{textwrap.dedent(examples)}"}


def with_options(call: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """`call`, which takes keywords, as Typer has to see it: with these parameters, which become its options."""
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return call
