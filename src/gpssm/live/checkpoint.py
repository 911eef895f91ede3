"""The file from which a stream goes on after whatever happened to its process."""

from collections.abc import Callable
from pathlib import Path

from gpssm.errors import InvalidInput
from gpssm.online.stream import Stream


class Checkpoint:
    """Saves a stream every so many records; a failure is reported once, and saving tried again."""

    def __init__(self, path: Path | None, every: int, say: Callable[[str], None]) -> None:
        """Without a path nothing is ever saved."""
        self.unsaved = 0
        """Records that changed the stream since it was last saved."""
        self._path = path
        self._every = every
        self._say = say
        self._failing = False

    @property
    def due(self) -> bool:
        """Whether it is time to save. After a failure it is time again as many records later."""
        return self._path is not None and self.unsaved > 0 and self.unsaved % self._every == 0

    def save(self, stream: Stream) -> bool:
        """Whether everything is now on disk, if it is to be."""
        if self._path is None or not self.unsaved:
            return True
        try:
            stream.save(self._path)
        except (OSError, InvalidInput) as error:  # the latter for a state that is no state to go on from
            if not self._failing:
                reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
                self._say(f"checkpoint: cannot write {str(self._path)!r} ({reason}); going on, and trying again later.")
            self._failing = True
            return False
        if self._failing:
            self._say(f"checkpoint: {str(self._path)!r} could be written again.")
        self._failing = False
        self.unsaved = 0
        return True
