"""`gpssm reproduce`: parses, for an experiment or all of the paper. What is done then is in `gpssm.cli.experiments`.

An experiment is a command by its line in `gpssm.experiments.EXPERIMENTS`. The options that restrict its plan are in
its own file, which is imported when the command is called, and not for the help of others: that would start JAX.
"""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.main import get_command

from gpssm.cli.options import AsJson, Quiet
from gpssm.experiments import EXPERIMENTS

app = typer.Typer(no_args_is_help=True, help="Run an experiment of the paper and set it beside the paper's numbers.")

Processes = Annotated[
    int | None, typer.Option(min=1, help="How many fits at once on this machine; one per core by default.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try failed fits again.")]
Directory = Annotated[Path, typer.Argument(help="Where `gpssm reproduce` works.", show_default=False)]


def _add(name: str) -> None:
    """The command of an experiment passes on all that it is given."""

    @app.command(
        name,
        help=EXPERIMENTS[name].summary,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def call(context: typer.Context) -> Any:
        return _command(name)(args=context.args, prog_name=context.command_path, standalone_mode=False)


for _name in EXPERIMENTS:
    _add(_name)


def _command(name: str) -> Callable[..., Any]:
    """The command line of an experiment: the arguments of its `select` as options, and those of `_run`."""
    from gpssm.cli.experiments import select
    from gpssm.reproduction.plan import experiment

    found = experiment(EXPERIMENTS[name].module)
    chosen = getattr(found, "select", partial(select, found.cells(False)))
    own = []
    for option in inspect.signature(chosen).parameters.values():
        type_, help_ = get_args(option.annotation)
        own.append(option.replace(annotation=Annotated[type_, typer.Option(help=help_)], kind=option.KEYWORD_ONLY))
    common = list(inspect.signature(_run).parameters.values())[2:]

    def call(**given: Any) -> None:
        cells = chosen(**{option.name: given.pop(option.name) for option in own})
        _run(name, cells, **given)

    signature = inspect.Signature([*own, *common])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in signature.parameters.values()}
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command(help=EXPERIMENTS[name].summary)(call)
    return get_command(command)


def _run(
    name: str,
    cells: Any,
    *,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of repetitions, seeds 0, 1, ...; by default as the table needs.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="What `gpssm reproduce all --fast` has of it.")] = False,
    processes: Processes = None,
    retry_failed: RetryFailed = False,
    json_: AsJson = False,
    quiet: Quiet = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory for results, figures and report; fits found there are not repeated."),
    ] = None,
) -> None:
    from gpssm.cli.experiments import run

    run(name, cells, seeds, fast, processes, retry_failed, json_, quiet, out)


@app.command("all")
def all_(
    out: Annotated[
        Path, typer.Option("--out", help="Directory for results and report; fits found there are not repeated.")
    ] = Path("results/paper"),
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of repetitions; by default 3 to 20, as each table needs.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PARTS", help="Parts like kink or sysid:EnVI, with commas between them.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="One seed, fewer methods and data: a quarter of an hour on two cores.")
    ] = False,
    processes: Processes = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the Dask cluster of this scheduler instead.")
    ] = None,
    retry_failed: RetryFailed = False,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Every table and figure of the paper, with every method, and a report. Stop it and start it as you like.

    `gpssm reproduce status` tells from another terminal how far it is.
    """
    from gpssm.cli.experiments import run_all

    run_all(out, seeds, only, fast, processes, dask, retry_failed, json_, quiet)


@app.command()
def status(directory: Directory, json_: AsJson = False) -> None:
    """How many fits of `gpssm reproduce` are done, running and failed, and the time left."""
    from gpssm.cli.experiments import status

    status(directory, json_)


@app.command()
def report(directory: Directory, json_: AsJson = False) -> None:
    """Write the report of `gpssm reproduce` anew, from the results that there are."""
    from gpssm.cli.experiments import report

    report(directory, json_)


@app.command()
def readme(
    directory: Directory,
    write: Annotated[Path, typer.Option(help="File with the two markers.", exists=True, dir_okay=False)],
) -> None:
    """Put the brief tables of a report between two lines of a file.

    The lines are `<!-- results: begin -->` and `<!-- results: end -->`.
    """
    from gpssm.cli.experiments import readme

    readme(directory, write)
