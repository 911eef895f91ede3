"""The `gpssm` command: parses, calls, prints. JAX is imported by the commands, not here."""

import importlib
import inspect
import sys
from typing import Annotated, Any, NoReturn

import typer

from gpssm import __version__
from gpssm.cli import logs
from gpssm.cli.options import COMMANDS, told, with_options
from gpssm.cli.reproduce import app as reproduce
from gpssm.errors import InvalidInput
from gpssm.parallel import runtime
from gpssm.plumbing.interruption import INTERRUPTED, listening

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    **told(
        """Learn nonlinear dynamical systems from noisy time series, with honest uncertainty.

        Example:
            gpssm compare recording.csv --outputs y --inputs u
            gpssm --verbose fit recording.csv --outputs y --inputs u -o model.gpssm
            gpssm forecast model.gpssm --inputs future.csv -o forecast.csv
        """
    ),
)
app.add_typer(reproduce, name="reproduce")


EXTRAS = {"matplotlib": "plot", "pooch": "data", "redis": "live", "distributed": "dask", "rich": "cli", "jinja2": "cli"}
"""Packages that a command may need, and the extra that brings them."""


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    try:
        with listening(end=True):
            code = app(prog_name="gpssm", standalone_mode=False)
    except (InvalidInput, OSError) as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            raise
        _fail(f"this needs {package}, which is not installed; run pip install 'gpssm[{EXTRAS[package]}]'.")
    except typer.Abort:  # Ctrl-C, in older versions of Typer; newer ones return the code
        code = INTERRUPTED
    except Exception as error:
        # Errors of Typer are those of Click, or of a copy inside newer versions: known by what they can do.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        _fail(explain())
    sys.exit(code)


def _fail(message: str) -> NoReturn:
    if message:  # empty where the help was shown instead
        sys.stderr.write(f"gpssm: {' '.join(message.split())}\n")
    sys.exit(2)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"gpssm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            metavar="",
            help="Say on standard error what is chosen, found and compiled, and why; twice for every step. Before the "
            "command.",
        ),
    ] = 0,
) -> None:
    logs.show(verbose)
    runtime.prepare()


def _add(options: type[Any]) -> None:
    """The command whose arguments are the fields of `options`: `run` of its file, imported when it is called."""
    name = options.__name__.removesuffix("Options").lower()

    def call(**given: Any) -> None:
        importlib.import_module(f"gpssm.cli.{name}").run(options(**given))

    app.command(name, **told(options.__doc__))(with_options(call, inspect.signature(options)))


for _command in COMMANDS:
    _add(_command)
