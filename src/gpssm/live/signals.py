"""SIGTERM and SIGINT as requests, noticed between two samples and while waiting for one."""

import os
import select
import signal
from types import FrameType
from typing import Any


class Stop:
    """A context in which a signal does not interrupt anything, but is remembered and ends every wait."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The first signal that came."""

    @property
    def requested(self) -> bool:
        """Whether a signal has asked for the end."""
        return self.number is not None

    def __enter__(self) -> "Stop":
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # Written to by the operating system's handler itself: Python's would run too late for a signal
        # that arrives just before `select` begins to wait. The byte is never read: once asked, always asked.
        self._previous_descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._previous: dict[int, Any] = {
            number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_descriptor)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, *, reading: int | None = None, writing: int | None = None, seconds: float | None = None) -> bool:
        """Whether a file became ready, rather than that time passed or an end was asked for."""
        readers = [self._reader] if reading is None else [self._reader, reading]
        readable, writable, _ = select.select(readers, [] if writing is None else [writing], [], seconds)
        return reading in readable or writing in writable

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
