"""`gpssm --verbose`: what the library logs, as lines on standard error."""

import logging

from gpssm.plumbing.messages import write_error

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
"""By how often --verbose was given."""


class _ToStandardError(logging.Handler):
    """To whatever standard error is then: a bar of progress puts itself in front of it, and moves on below the line."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write_error(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def show(verbosity: int) -> None:
    """Show what is logged from now on; nothing for 0."""
    if not verbosity:
        return
    handler = _ToStandardError()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("gpssm")
    logger.setLevel(LEVELS[min(verbosity, len(LEVELS) - 1)])
    logger.addHandler(handler)
