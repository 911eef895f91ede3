"""A stream fed by a Redis Stream: every message is learned from exactly once, whatever is killed when.

For every message, in the order of their ids:

    learn  ->  publish  ->  checkpoint  ->  acknowledge
                 (these two every so many messages, or after a second without any)

The checkpoint alone knows what was learned: the id of the last message in it (`Stream.position`). At every start the
group is set to that id, so that what comes next is read next, whether it was given out before or not. An estimate is
published under the id of its message: Redis takes no id twice. So a process that is killed

    before the checkpoint       reads the messages again, learns from them again, from the same state as before,
                                and is refused when it publishes the same estimates again;
    before the acknowledgement  finds the messages among those to be acknowledged, and sees that they are in the
                                checkpoint.

All of this holds for one learner per group, which a lock sees to, and for one stream: one that was deleted and filled
again is noticed, because the last message in the checkpoint is not in it. Messages that were trimmed or deleted before
they were read are counted: Redis says how many were ever added, and the checkpoint how many came up to its own.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from gpssm.errors import InvalidInput
from gpssm.live.address import Address, Route
from gpssm.live.bookmark import Bookmark, Id, before, digest, name, number
from gpssm.live.checkpoint import Checkpoint
from gpssm.live.learner import Learner, StoppedLearning
from gpssm.live.records import Names, from_fields
from gpssm.live.redis_lock import GroupLock, TakenOver
from gpssm.live.signals import Stop

BATCH = 100
"""Messages that are read, or acknowledged, at once."""
IDLE = 1.0
"""Seconds without a message after which what was learned is saved."""
_BLOCK = 250  # milliseconds that Redis waits for a message; a signal is noticed after them
_TIMEOUT = 5.0  # seconds after which a server that does not answer counts as away
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 10.0  # seconds between two tries to connect
_ID_EXISTS = "equal or smaller than the target stream top item"
_START = b"0-0"

Message = tuple[bytes, Sequence[bytes]]
"""An id, and names and values in turn."""


class Consumer:
    """The loop: reads, learns, publishes, saves, acknowledges."""

    def __init__(self, route: Route, names: Names, learner: Learner, checkpoint: Checkpoint, stop: Stop) -> None:
        self._route, self._names, self._learner = route, names, learner
        self._checkpoint, self._stop, self._say = checkpoint, stop, learner.say
        position = learner.stream.position
        self._mark = Bookmark.read(position) if position else Bookmark((0, 0))
        self._unpublished: tuple[bytes, str] | None = None
        self._unacknowledged: set[bytes] = set()
        self._quiet_since = time.monotonic()
        self._refusal_said = False

    def run(self) -> bool:
        """Learn until asked to end; returns whether everything that was learned is then on disk.

        Holds the lock on its group meanwhile, and refuses at once what cannot work, before anything is changed.
        """
        with contextlib.ExitStack() as stack:
            if not self._start(stack):
                return True
            try:
                self._loop()
                return self._finish()
            except TakenOver as error:
                self._say(f"redis: {error}; what came after the last checkpoint is left to that one.")
                return False
            except StoppedLearning:
                self._finish()
                raise

    def _start(self, stack: contextlib.ExitStack) -> bool:
        """Connect, and take the lock, which `stack` releases; False if asked to end while waiting for that."""
        route = self._route
        try:
            self._redis = _connect(route.address)
            kind = self._redis.type(route.target)
            if kind not in (b"none", b"stream"):
                raise InvalidInput(
                    f"out: {route.target!r} is a {kind.decode()} in Redis; expected the name of a stream."
                )
            self._lock = GroupLock(self._redis, route.source, route.target, route.group)
            self._lock.acquire(self._stop, self._say)
            stack.callback(self._lock.release)
            if self._stop.requested:
                return False
            self._open()
        except RedisError as error:
            raise InvalidInput(f"redis: {self._sentence(error)}; check what the server allows.") from error
        except TakenOver as error:
            raise InvalidInput(f"redis: {error}; use another --group.") from error
        return True

    def _loop(self) -> None:
        delay, opened = _FIRST_DELAY, True
        while not self._stop.requested:
            try:
                if not opened:
                    self._open()
                    opened = True
                for messages in self._messages():
                    self._handle(messages)
                    if delay > _FIRST_DELAY:
                        self._say("redis: it works again.")
                        delay = _FIRST_DELAY
            except RedisError as error:
                opened = False
                if delay == _FIRST_DELAY:
                    self._say(f"redis: {self._sentence(error)}; trying again until it works.")
                self._stop.wait(seconds=delay)
                delay = min(2 * delay, _LONGEST_DELAY)

    def _open(self) -> None:
        """Set the group to where the checkpoint stands. Changes nothing before it is known to be the same stream."""
        route = self._route
        self._lock.hold_on()
        info = self._info()
        resumed = bool(self._learner.stream.position)
        if resumed:
            self._check_same(info)
        self._make_group()
        group = self._group()
        delivered = number(group["last-delivered-id"])
        if not resumed:
            self._mark = self._first_mark(group)
        elif delivered < self._mark.place and _is_first_at_most(info, self._mark.place):
            self._say(
                f"redis: group {route.group!r} stands at {name(delivered)}, before the checkpoint; messages up to "
                f"{name(self._mark.place)} are in that, and not read again."
            )
        self._claim()
        self._count_missed(self._info())
        if delivered != self._mark.place or self._mark.passed not in (None, group.get("entries-read")):
            self._set_group(name(self._mark.place), self._mark.passed)

    def _check_same(self, info: Mapping[str, Any]) -> None:
        """Refuse a stream that holds messages which look as if they had been learned from, and were not."""
        place, source = self._mark.place, self._route.source
        last = number(info["last-generated-id"])
        if last == number(_START):
            self._say(f"redis: {source!r} is empty; waiting for messages after {name(place)}, where the checkpoint is.")
        elif last < place:
            raise self._wrong_stream(f"{source!r} ends before that, at {name(last)}")
        elif _is_first_at_most(info, place):
            (found,) = self._lock.run(("XRANGE", source, name(place), name(place)))
            if not found:
                # What comes before a message is trimmed with it. If it was deleted alone, Redis remembers that.
                deleted = info.get("max-deleted-entry-id")
                if deleted is not None and number(deleted) < place:
                    raise self._wrong_stream(f"{source!r} has older ones, but not that")
            elif self._mark.digest not in ("", digest(found[0][1])):
                raise self._wrong_stream(f"{source!r} has another one of that id")

    def _wrong_stream(self, why: str) -> StoppedLearning:
        self._unacknowledged.clear()  # of the old stream; the new one may have the same ids
        return StoppedLearning(
            f"checkpoint: it is at message {name(self._mark.place)}, and {why}; was the stream deleted and filled "
            "again, or is it another one? Use another --checkpoint; --model with this one keeps what was learned."
        )

    def _first_mark(self, group: Mapping[str, Any]) -> Bookmark:
        """Where a stream without a checkpoint starts: before what was given out and not acknowledged."""
        count, first, *_ = self._lock.run(("XPENDING", self._route.source, self._route.group))[0]
        read = group.get("entries-read")
        place = before(number(first)) if count else number(group["last-delivered-id"])
        return Bookmark(place, None if read is None else read - count)

    def _claim(self) -> None:
        """Take over what was given out, to whomever: to be acknowledged if the checkpoint has it, else read again."""
        route, cursor, gone = self._route, _START, 0
        while True:
            command = ("XAUTOCLAIM", route.source, route.group, route.consumer, 0, cursor, "COUNT", BATCH)
            ((cursor, claimed, *deleted),) = self._lock.run(command)
            ids = [entry[0] for entry in claimed if entry is not None]  # None: deleted, for servers before version 7
            self._unacknowledged.update(one for one in ids if number(one) <= self._mark.place)
            gone += sum(number(one) > self._mark.place for part in deleted for one in part)
            if cursor == _START:
                break
        self._miss(gone)

    def _messages(self) -> Iterator[Sequence[Message]]:
        """What comes after the last message; nothing when nothing came."""
        route = self._route
        read = ("XREADGROUP", "GROUP", route.group, route.consumer, "COUNT", BATCH, "STREAMS", route.source, ">")
        while not self._stop.requested:
            info, reply = self._lock.run(("XINFO", "STREAM", route.source), read)
            messages = reply[0][1] if reply else []
            if self._count_missed(_pairs(info)) and self._mark.passed is not None:
                last = messages[-1][0] if messages else name(self._mark.place)
                self._set_group(last, self._mark.passed + len(messages))  # or its lag would count them for ever
            if not messages:  # a command that waits cannot be fenced, so it reads nothing: it only waits
                self._redis.xread({route.source: name(self._mark.place)}, count=1, block=_BLOCK)
            yield messages

    def _count_missed(self, info: Mapping[str, Any]) -> bool:
        """Compare how many messages came up to here, by the server's count, with how many were read: is one missing?"""
        added, length = info.get("entries-added"), info["length"]
        if added is None:  # before version 7
            return False
        if not _is_first_at_most(info, self._mark.place):
            passed = added - length
        elif number(info["last-generated-id"]) == self._mark.place:
            passed = added
        else:
            return False  # between messages that were read and others that were not: when they are read
        missed = 0 if self._mark.passed is None else passed - self._mark.passed
        self._miss(missed)
        self._mark = self._mark._replace(passed=passed)  # less than before if the stream was made again
        return missed > 0

    def _miss(self, count: int) -> None:
        if count <= 0:
            return
        self._say(f"redis: {count} message(s) were deleted or trimmed before they were read; learning goes on without.")
        if self._mark.passed is not None:
            self._mark = self._mark._replace(passed=self._mark.passed + count)
        if self._learner.stream.position:  # so that the next start does not report it again
            self._learner.stream.position = str(self._mark)
            self._checkpoint.unsaved += 1

    def _handle(self, messages: Sequence[Message]) -> None:
        self._publish()  # if the connection broke before that
        for message_id, fields in messages:
            if self._stop.requested:
                return
            if number(message_id) <= self._mark.place:  # the group was set to give out what comes after
                raise self._wrong_stream(f"{self._route.source!r} now gives out {message_id.decode()}")
            self._unacknowledged.add(message_id)
            self._quiet_since = time.monotonic()
            self._learn(message_id, fields)
            self._publish()
            self._checkpoint_if(self._checkpoint.due)
        idle = time.monotonic() - self._quiet_since >= IDLE
        self._checkpoint_if(bool(self._unacknowledged) and (idle or not self._checkpoint.unsaved))

    def _learn(self, message_id: bytes, fields: Sequence[bytes]) -> None:
        sent = dict(zip(fields[::2], fields[1::2], strict=True))
        line = self._learner.line(lambda: from_fields(sent, self._names), "id", message_id.decode())
        if line is not None:
            self._unpublished = message_id, line
        self._mark = self._mark.after(number(message_id), fields)
        self._learner.stream.position = str(self._mark)
        self._checkpoint.unsaved += 1

    def _publish(self) -> None:
        if self._unpublished is None:
            return
        message_id, line = self._unpublished
        try:
            self._lock.run(("XADD", self._route.target, message_id, "estimate", line))
        except ResponseError as error:
            if _ID_EXISTS not in str(error):
                raise
            self._explain_refusal(message_id)
        self._unpublished = None

    def _explain_refusal(self, message_id: bytes) -> None:
        """Usual after a kill: the estimate is there already. If it is not, somebody should know, once."""
        target = self._route.target
        if self._refusal_said or self._redis.xrange(target, message_id, message_id):
            return
        self._refusal_said = True
        self._say(f"redis: {target!r} has later entries, and takes no estimate of message {message_id.decode()}.")

    def _checkpoint_if(self, due: bool) -> None:
        if not due:
            return
        self._quiet_since = time.monotonic()
        self._lock.run()  # or another process may already have written the file
        if self._checkpoint.save(self._learner.stream):
            self._acknowledge()

    def _acknowledge(self) -> None:
        while self._unacknowledged:
            ids = list(islice(self._unacknowledged, BATCH))
            self._lock.run(("XACK", self._route.source, self._route.group, *ids))
            self._unacknowledged.difference_update(ids)

    def _finish(self) -> bool:
        """A last checkpoint, and what belongs to it."""
        try:
            self._publish()
        except RedisError as error:
            self._say(
                f"redis: {self._sentence(error)}; messages since the last checkpoint are left for the next start."
            )
            return False
        with contextlib.suppress(RedisError):  # a server that is away cannot say who holds the lock
            self._lock.run()
        if not self._checkpoint.save(self._learner.stream):
            return False
        try:
            self._acknowledge()
        except RedisError as error:
            self._say(f"redis: {self._sentence(error)}; the next start will acknowledge what is in the checkpoint.")
        return True

    def _info(self) -> Mapping[str, Any]:
        """Of the stream; as of an empty one if there is none."""
        try:
            return _pairs(self._lock.run(("XINFO", "STREAM", self._route.source))[0])
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return {"length": 0, "last-generated-id": _START}

    def _group(self) -> Mapping[str, Any]:
        groups = map(_pairs, self._lock.run(("XINFO", "GROUPS", self._route.source))[0])
        return next(group for group in groups if group["name"] == self._route.group.encode())

    def _set_group(self, last: str | bytes, passed: int | None) -> None:
        """Have it give out what comes after a message next."""
        counted = () if passed is None else ("ENTRIESREAD", passed)
        self._lock.run(("XGROUP", "SETID", self._route.source, self._route.group, last, *counted))

    def _make_group(self) -> None:
        try:
            self._lock.run(("XGROUP", "CREATE", self._route.source, self._route.group, _START, "MKSTREAM"))
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):  # it exists
                raise

    def _sentence(self, error: Exception) -> str:
        return self._route.address.sentence(error)


def _connect(address: Address) -> Any:
    """A client whose server is there. (Any: its types allow for coroutines everywhere.)"""
    try:
        # A command must not be repeated behind our back: messages whose delivery was cut off would be overtaken by
        # those that the repetition gets, and then look as if they had been learned from.
        client = Redis.from_url(
            address.url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
        )
        client.ping()
    except (RedisError, OSError, ValueError, TypeError) as error:  # but the first for what is in the address
        said = address.sentence(error)
        raise InvalidInput(f"redis: {said}; check the address, and that the server runs.") from None
    return client


def _pairs(reply: Sequence[Any]) -> dict[str, Any]:
    """Names and values in turn, as a mapping."""
    return {key.decode(): value for key, value in zip(reply[::2], reply[1::2], strict=True)}


def _is_first_at_most(info: Mapping[str, Any], place: Id) -> bool:
    """Whether a stream holds anything up to a place."""
    first = info.get("first-entry")
    return first is not None and number(first[0]) <= place
