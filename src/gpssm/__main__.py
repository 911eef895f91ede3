"""`gpssm` and `python -m gpssm`: the command line, or what to install to have it."""

import os
import sys

from gpssm.plumbing.interruption import INTERRUPTED


def main() -> None:
    """Run the command line."""
    try:
        from gpssm.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.stderr.write("gpssm: the command line is not installed; run pip install 'gpssm[cli]'.\n")
        sys.exit(2)
    try:
        run()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            # Everything is said and saved. The usual way out would wait for what XLA still computes, and crash on it.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


if __name__ == "__main__":
    main()
