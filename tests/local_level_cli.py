"""The command line with the method of local_level.py, registered: `python tests/local_level_cli.py stream ...`.

JAX is imported by the command, when it needs the method, and not before: what signals do until then is tested, too.
"""

import sys

from gpssm.methods.registry import ONLINE, Entry

ENTRY = Entry("local_level", "LocalLevel")


def with_method(arguments: list[str]) -> list[str]:
    """With `--method LocalLevel`, where neither a model nor the user tells the method."""
    return arguments if {"--model", "--method"} & {*arguments} else [*arguments, "--method", "LocalLevel"]


def main() -> None:
    from gpssm.cli.main import main

    ONLINE["LocalLevel"] = ENTRY
    sys.argv = with_method(sys.argv)
    main()


if __name__ == "__main__":
    main()
