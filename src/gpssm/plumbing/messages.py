"""What is said on standard error."""

import inspect
import sys
import warnings
from contextlib import suppress


def say(text: str) -> None:
    """Write `text` as one line on standard error, as a message of gpssm."""
    write_error(f"gpssm: {text}\n")


def write_error(text: str) -> None:
    """Write `text` to standard error as it is; whoever reads it may be gone, as in `gpssm stream 2>&1 | head`."""
    with suppress(OSError, ValueError):  # then nobody misses it
        sys.stderr.write(text)
        sys.stderr.flush()


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line that called the package, however deep this is."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("gpssm."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
