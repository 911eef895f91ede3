"""`gpssm stream`: learn while samples come in, from standard input or from a Redis Stream."""

import typer

from gpssm.cli.options import StreamOptions
from gpssm.live.signals import Stop


def run(options: StreamOptions) -> None:
    """Learn until the end of the input or a signal, which are noticed from here on."""
    with Stop() as stop:
        from gpssm.cli.learning import learn  # takes the seconds that it takes to import JAX

        raise typer.Exit(learn(options, stop))
