"""What is said on standard error."""

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Write `text` as one line on standard error, as a message of gpssm."""
    write_error(f"gpssm: {text}\n")


def write_error(text: str) -> None:
    """Write `text` to standard error as it is; whoever reads it may be gone, as in `gpssm stream 2>&1 | head`."""
    with suppress(OSError, ValueError):  # then nobody misses it
        sys.stderr.write(text)
        sys.stderr.flush()
