"""Options of the commands on a user's own files and models: fit, filter, forecast, evaluate, plot."""

from pathlib import Path
from typing import Annotated

import typer

from gpssm.methods.registry import METHODS

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not tell on standard error how it is going.")]
Model = Annotated[Path, typer.Argument(help="A model that `gpssm fit` has saved.", show_default=False)]
OUTPUTS, INPUTS = (f"Columns of the {what}; those of the model by default." for what in ("outputs", "inputs"))
OutputColumns = Annotated[list[str] | None, typer.Option("--outputs", metavar="COLUMNS", help=OUTPUTS)]
InputColumns = Annotated[list[str] | None, typer.Option("--inputs", metavar="COLUMNS", help=INPUTS)]


def fit(
    data: Annotated[list[Path], typer.Argument(help="CSV files, each its own recording.", show_default=False)],
    outputs: Annotated[
        list[str],
        typer.Option(metavar="COLUMNS", help="Names or numbers (from 0) of columns, with commas between them."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to save the model.")],
    inputs: Annotated[
        list[str] | None, typer.Option(metavar="COLUMNS", help="Columns of control inputs, likewise.")
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Column that tells recordings in one file apart.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "EnVI",
    state_dim: Annotated[
        int | None, typer.Option(min=1, help="Dimension of the state, of methods that have one; 4 by default.")
    ] = None,
    num_inducing: Annotated[
        int | None, typer.Option(min=1, help="Inducing points of every state, where f is a GP; 20 by default.")
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(min=1, help="Starts of which the best is kept; 3 by default where states are hidden."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Learn a model from your recordings. Ctrl-C stops early and keeps the best model so far."""
    from gpssm.cli.files import Columns
    from gpssm.cli.fit import Choices, run

    choices = Choices(method, state_dim, num_inducing, restarts, seed)
    run(data, Columns.given(outputs, inputs), id_, choices, out, json_, quiet)


def filter_(
    model: Model,
    data: Annotated[Path, typer.Argument(help="CSV file with a recording.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file for the states.")],
    smooth: Annotated[bool, typer.Option("--smooth", help="Use later samples, too.")] = False,
    filter_: Annotated[
        str | None,
        typer.Option("--filter", help="ensemble (the default), particle, extended; or kalman, of a line."),
    ] = None,
    outputs: OutputColumns = None,
    inputs: InputColumns = None,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """The hidden state at every sample of a recording, with its standard deviation."""
    from gpssm.cli.files import Columns
    from gpssm.cli.filter import run

    run(model, data, out, smooth, filter_, Columns.given(outputs, inputs), json_, quiet)


def forecast(
    model: Model,
    history: Annotated[
        Path | None, typer.Option(help="CSV file to forecast from the end of; that of the training data by default.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="CSV file with the future inputs, one row a step, if the model has inputs.")
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Number of steps; every row of the future inputs by default.")
    ] = None,
    paths: Annotated[int, typer.Option(min=2, help="Number of sample paths.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the paths.")] = 0,
    output_columns: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help=OUTPUTS)] = None,
    input_columns: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help=INPUTS)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file for the forecast; printed by default.")
    ] = None,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """The outputs to come: mean, standard deviation and quantiles of every step."""
    from gpssm.cli.files import Columns
    from gpssm.cli.forecast import run

    columns = Columns.given(output_columns, input_columns)
    run(model, history, inputs, horizon, paths, seed, columns, out, json_, quiet)


def evaluate(
    model: Model,
    data: Annotated[Path, typer.Argument(help="CSV file that the model has not seen.", show_default=False)],
    history: Annotated[
        Path | None, typer.Option(help="CSV file that the test continues; the training data by default.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="The test is a new experiment: its first block is seen, not scored.")
    ] = False,
    block: Annotated[int, typer.Option(min=1, help="Samples in a block that is forecast at once.")] = 50,
    outputs: OutputColumns = None,
    inputs: InputColumns = None,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """How well a model forecasts a recording that it has not seen."""
    from gpssm.cli.evaluate import run
    from gpssm.cli.files import Columns

    run(model, data, history, fresh, block, Columns.given(outputs, inputs), json_, quiet)


def plot(
    model: Model,
    data: Annotated[
        Path | None, typer.Option(help="CSV file that continues the training data; the end of that by default.")
    ] = None,
    outputs: OutputColumns = None,
    inputs: InputColumns = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Picture; next to the model by default.", show_default=False)
    ] = None,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """One picture: states, forecast, residuals of one-step predictions, and whether the bands hold."""
    from gpssm.cli.files import Columns
    from gpssm.cli.plot import run

    run(model, data, Columns.given(outputs, inputs), out, json_, quiet)
