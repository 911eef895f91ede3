"""`gpssm` and `python -m gpssm`: the command line, or what to install to have it."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from gpssm.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.stderr.write("gpssm: the command line is not installed; run pip install 'gpssm[cli]'.\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
