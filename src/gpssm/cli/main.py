"""The `gpssm` command: parses, calls, prints. JAX is imported by the commands, not here."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpssm import __version__
from gpssm.cli import runtime
from gpssm.errors import InvalidInput

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learn nonlinear dynamical systems from noisy time series, with honest uncertainty.",
)
reproduce = typer.Typer(
    no_args_is_help=True, help="Run an experiment of the paper and set it beside the paper's numbers."
)
app.add_typer(reproduce, name="reproduce")


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    try:
        app()
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"gpssm: {error}\n")
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
) -> None:
    runtime.prepare()


OutDir = Annotated[Path | None, typer.Option("--out", help="Directory for results and figures.", file_okay=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the picture and the model.", file_okay=False)] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the simulation and the fit.")] = 0,
    json_: AsJson = False,
) -> None:
    """Simulate an unknown system, learn it from 600 noisy numbers, and draw what was found."""
    from gpssm.cli.demo import run

    run(out, seed, json_)


@app.command()
def datasets(json_: AsJson = False) -> None:
    """List the published recordings that can be loaded, and which of them are on this machine."""
    from gpssm.cli.datasets import run

    run(json_)


@reproduce.command()
def kink(
    setting: Annotated[
        str, typer.Option(help="Process noise 0.05 as a 'variance' (text) or as 'sd' (code); or 'all'.")
    ] = "all",
    obs_noise: Annotated[
        list[float] | None, typer.Option(help="Observation noise variance; repeat for several.")
    ] = None,
    method: Annotated[str, typer.Option(help="EnVI, 'EnVI (paper)', or all.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Number of repetitions, seeds 0, 1, ...")] = 5,
    json_: AsJson = False,
    out: OutDir = None,
) -> None:
    """Table I: the kink function, beside the paper's row."""
    from gpssm.cli.kink import run

    run(setting, obs_noise, method, seeds, json_, out)


if __name__ == "__main__":
    main()
