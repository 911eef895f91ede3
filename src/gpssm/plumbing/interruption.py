"""Ctrl-C during a fit: stop after the present step and keep what has been learned.

While a fit runs, a first interrupt is only noted; a second one, or one that comes before there is
anything to keep, is the usual KeyboardInterrupt. Handlers of an application's own are left alone.

Python acts on a signal between two of its own instructions, and a compilation is one that can take half a minute. So
a thread listens meanwhile, and says at once that the interrupt was heard. In a command (`listening(end=True)`) it also
ends the process if a second one changes nothing.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

from gpssm.plumbing.messages import say, write_error

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130
"""Exit code: 128 + SIGINT, as shells have it."""

# Seconds that the main thread has to act by itself: until it is said that this takes a while, and until it is ended.
_PATIENCE, _LAST_PATIENCE = 0.3, 1.0

_listening = False


class Interruption:
    """A context in which an interrupt sets `signalled`, once the work has set `something_to_keep`.

    Work also ends when `max_seconds` are over, of which `share` may be used up at first.
    """

    def __init__(self, max_seconds: float | None = None) -> None:
        self.signalled = False
        self.something_to_keep = False
        self.max_seconds, self.share = max_seconds, 1.0
        self._started = time.monotonic()
        self._previous: dict[signal.Signals, Any] = {}
        self._listener = ExitStack()

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in SIGNALS:
                if signal.getsignal(number) is signal.default_int_handler:
                    self._previous[number] = signal.signal(number, self._handle)
        if self._previous:
            self._listener.enter_context(listening(end=False))
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._listener.close()

    @property
    def seconds(self) -> float:
        """Since the work started."""
        return time.monotonic() - self._started

    @property
    def out_of_time(self) -> bool:
        """Whether the time that there is now is over."""
        return self.max_seconds is not None and self.seconds > self.share * self.max_seconds

    @property
    def requested(self) -> bool:
        """Whether the work should end with what it has."""
        return self.signalled or self.out_of_time

    def check(self) -> None:
        """Between two parts of the work: raise KeyboardInterrupt if there was a signal with nothing to keep yet."""
        if self.signalled and not self.something_to_keep:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Noted in any case: what is raised inside a callback of the garbage collector, say, goes no further.
        again, self.signalled = self.signalled, True
        if again or not self.something_to_keep:
            raise KeyboardInterrupt


@contextmanager
def listening(end: bool) -> Iterator[None]:
    """Say that an interrupt was heard, if the main thread is too busy to act on it; `end` the process at a second one.

    One such thread is enough: inside another one, and outside of the main thread, this does nothing.
    """
    global _listening
    if _listening or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # The operating system's handler itself writes the number of every signal there, whatever Python is doing.
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    over = threading.Event()
    thread = threading.Thread(target=_listen, args=(reader, previous, over, end), daemon=True)
    thread.start()
    _listening = True
    try:
        yield
    finally:
        _listening = False
        signal.set_wakeup_fd(previous)
        over.set()
        os.write(writer, b"\0")
        thread.join()
        os.close(reader)
        os.close(writer)


def _listen(reader: int, previous: int, over: threading.Event, end: bool) -> None:
    heard = 0
    while number := os.read(reader, 1)[0]:
        if previous != -1:
            with suppress(OSError):  # whoever listened before is full or gone, as it would be without us
                os.write(previous, bytes([number]))
        if number not in SIGNALS:
            continue
        heard += 1
        if over.wait(_PATIENCE if heard == 1 else _LAST_PATIENCE):
            return
        if heard == 1:
            again = "end at once" if end else "raise KeyboardInterrupt"
            say(f"stopping after the present step; press Ctrl-C again to {again}.")
        elif end:
            write_error("\x1b[?25h" if sys.stderr.isatty() else "")  # a progress bar has hidden the cursor
            os._exit(INTERRUPTED)
