"""Ctrl-C during a fit: stop after the present step and keep what has been learned.

While a fit runs, a first interrupt is only noted; a second one, or one that comes before there is
anything to keep, is the usual KeyboardInterrupt. Handlers of an application's own are left alone.
"""

import signal
import threading
from types import FrameType
from typing import Any


class Interruption:
    """A context in which an interrupt is a request."""

    def __init__(self) -> None:
        self.requested = False
        self.something_to_keep = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is signal.default_int_handler:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self.something_to_keep:
            raise KeyboardInterrupt
        self.requested = True
