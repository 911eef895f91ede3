"""Where a stream stands in a Redis Stream: enough to tell whether that is still the same one."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from gpssm.errors import InvalidInput

Id = tuple[int, int]
_COUNTERS = 1 << 64  # of one millisecond


class Bookmark(NamedTuple):
    """The last message that a stream has learned from; as text it is kept in `Stream.position`."""

    place: Id
    passed: int | None = None
    """Messages that were ever added up to it, if the server counts them; what was trimmed is missing from the count."""
    digest: str = ""
    """Of its fields: a stream that was deleted and filled again may have another message of the same id."""

    @classmethod
    def read(cls, position: str) -> "Bookmark":
        """The bookmark that `str` has written; of an earlier version, that is the id alone."""
        try:
            place, passed, digest, *_ = *position.split(" "), "?", ""
            return cls(number(place), None if passed == "?" else int(passed), digest)
        except ValueError as error:
            raise InvalidInput(
                f"checkpoint: its position {position!r} is not of a Redis stream; use another file."
            ) from error

    def __str__(self) -> str:
        return f"{name(self.place)} {'?' if self.passed is None else self.passed} {self.digest}"

    def after(self, place: Id, fields: Sequence[bytes]) -> "Bookmark":
        """When one more message was learned from."""
        return Bookmark(place, None if self.passed is None else self.passed + 1, digest(fields))


def number(message_id: str | bytes) -> Id:
    """Ids are pairs of numbers, milliseconds and a counter; as text 9-0 would come after 10-0."""
    text = message_id if isinstance(message_id, str) else message_id.decode()
    milliseconds, _, counter = text.partition("-")
    return int(milliseconds), int(counter)


def name(place: Id) -> str:
    """An id as Redis writes it, `milliseconds-counter`."""
    return f"{place[0]}-{place[1]}"


def before(place: Id) -> Id:
    """The largest id that is smaller; the first id is its own."""
    milliseconds, counter = place
    return (milliseconds, counter - 1) if counter else (milliseconds - 1, _COUNTERS - 1) if milliseconds else (0, 0)


def digest(fields: Sequence[bytes]) -> str:
    """Of names and values as they were sent."""
    hashed = hashlib.sha256()
    for part in fields:
        hashed.update(b"%d " % len(part) + part)
    return hashed.hexdigest()[:16]
