"""A stream fed by a Redis Stream: every message is learned from exactly once, whatever is killed when.

For every message, in the order of their ids:

    learn  ->  publish  ->  checkpoint  ->  acknowledge
                 (these two every so many messages, or after a second without any)

Redis keeps what was read and not acknowledged, and gives it out again. The checkpoint knows the id of the last
message in it (`Stream.position`), so that older ones are acknowledged and not learned from again. An estimate is
published under the id of its message: Redis takes no id twice. So a process that is killed

    before the checkpoint       finds the messages again, learns from them again, from the same state as before,
                                and is refused when it publishes the same estimates again;
    before the acknowledgement  finds the messages again, and sees that they are in the checkpoint.

All of this holds for one learner per group: of two, each would miss what the other one gets.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from gpssm.errors import InvalidInput
from gpssm.live.checkpoint import Checkpoint
from gpssm.live.learner import Learner
from gpssm.live.records import Names, from_fields
from gpssm.live.signals import Stop

BATCH = 100
"""Messages that are read, or acknowledged, at once."""
IDLE = 1.0
"""Seconds without a message after which what was learned is saved."""
_BLOCK = 250  # milliseconds that Redis waits for a message; a signal is noticed after them
_TIMEOUT = 5.0  # seconds after which a server that says nothing counts as lost
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 10.0  # seconds between two tries to connect
_ID_EXISTS = "equal or smaller than the target stream top item"

Message = tuple[bytes, Mapping[bytes, bytes]]


class Route(NamedTuple):
    """Where messages come from and estimates go to."""

    url: str
    source: str
    target: str
    group: str
    consumer: str


class Consumer:
    """The loop: reads, learns, publishes, saves, acknowledges."""

    def __init__(
        self,
        route: Route,
        names: Names,
        learner: Learner,
        checkpoint: Checkpoint,
        stop: Stop,
        say: Callable[[str], None],
    ) -> None:
        """Refuses at once what cannot work."""
        self._route, self._names, self._learner = route, names, learner
        self._checkpoint, self._stop, self._say = checkpoint, stop, say
        self._position = _number(learner.stream.position or "0-0")
        self._unpublished: tuple[bytes, str] | None = None
        self._unacknowledged: set[bytes] = set()
        self._quiet_since = time.monotonic()
        self._refusal_said = False
        self._redis = _connect(route)

    def run(self) -> bool:
        """Go on until asked to end; whether everything that was learned is then on disk."""
        delay = _FIRST_DELAY
        while not self._stop.requested:
            try:
                for messages in self._messages():
                    self._handle(messages)
                    if delay > _FIRST_DELAY:
                        self._say("redis: it works again.")
                        delay = _FIRST_DELAY
            except RedisError as error:
                if delay == _FIRST_DELAY:
                    self._say(f"redis: {_sentence(error)}; trying again until it works.")
                self._stop.wait(seconds=delay)
                delay = min(2 * delay, _LONGEST_DELAY)
        return self._finish()

    def _messages(self) -> Iterator[Sequence[Message]]:
        """First what was given out before and not acknowledged, then what is new; nothing when nothing came."""
        route = self._route
        _make_group(self._redis, route)
        cursor = b"0-0"
        while not self._stop.requested:
            # Of all consumers, this one included, in the order of the ids.
            cursor, claimed, *_ = self._redis.xautoclaim(
                route.source, route.group, route.consumer, min_idle_time=0, start_id=cursor, count=BATCH
            )
            yield [message for message in claimed if message[0] is not None]  # None: deleted meanwhile
            if cursor == b"0-0":
                break
        while not self._stop.requested:
            reply = self._redis.xreadgroup(route.group, route.consumer, {route.source: ">"}, count=BATCH, block=_BLOCK)
            yield reply[0][1] if reply else []

    def _handle(self, messages: Sequence[Message]) -> None:
        self._publish()  # what was left when the connection was lost
        for message_id, fields in messages:
            if self._stop.requested:
                return
            self._unacknowledged.add(message_id)
            self._quiet_since = time.monotonic()
            if _number(message_id.decode()) > self._position:
                self._learn(message_id, fields)
                self._publish()
            self._checkpoint_if(self._checkpoint.due)
        idle = time.monotonic() - self._quiet_since >= IDLE
        self._checkpoint_if(bool(self._unacknowledged) and (idle or not self._checkpoint.unsaved))

    def _learn(self, message_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        place = message_id.decode()
        line = self._learner.line(lambda: from_fields(fields, self._names), "id", place)
        if line is not None:
            self._unpublished = message_id, line
        self._learner.stream.position, self._position = place, _number(place)
        self._checkpoint.unsaved += 1

    def _publish(self) -> None:
        if self._unpublished is None:
            return
        message_id, line = self._unpublished
        try:
            self._redis.xadd(self._route.target, {"estimate": line}, id=message_id)
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
        if self._checkpoint.save(self._learner.stream):
            self._acknowledge()

    def _acknowledge(self) -> None:
        while self._unacknowledged:
            ids = list(islice(self._unacknowledged, BATCH))
            self._redis.xack(self._route.source, self._route.group, *ids)
            self._unacknowledged.difference_update(ids)

    def _finish(self) -> bool:
        """A last checkpoint, and what belongs to it."""
        try:
            self._publish()
        except RedisError as error:
            self._say(f"redis: {_sentence(error)}; messages after the last checkpoint are left for the next start.")
            return False
        if not self._checkpoint.save(self._learner.stream):
            return False
        try:
            self._acknowledge()
        except RedisError as error:
            self._say(f"redis: {_sentence(error)}; the next start will acknowledge what is in the checkpoint.")
        return True


def _connect(route: Route) -> Any:
    """A client whose server is there and has what is needed. (Any: its types allow for coroutines everywhere.)"""
    try:
        # A command must not be repeated behind our back: messages whose delivery was cut off would be overtaken by
        # those that the repetition gets, and then look as if they had been learned from.
        client: Any = Redis.from_url(
            route.url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
        )
        kind = client.type(route.target)
        _make_group(client, route)
    except (RedisError, ValueError, TypeError) as error:  # the latter two for an address that is none
        raise InvalidInput(f"redis: {_sentence(error)}; check the address, and that the server runs.") from error
    if kind not in (b"none", b"stream"):
        raise InvalidInput(f"out: {route.target!r} is a {kind.decode()} in Redis; expected the name of a stream.")
    return client


def _make_group(client: Any, route: Route) -> None:
    try:
        client.xgroup_create(route.source, route.group, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):  # it exists
            raise


def _number(message_id: str) -> tuple[int, int]:
    """Ids are pairs of numbers, milliseconds and a counter; as text 9-0 would come after 10-0."""
    milliseconds, _, counter = message_id.partition("-")
    if not (milliseconds.isdecimal() and counter.isdecimal()):
        raise InvalidInput(f"checkpoint: its position {message_id!r} is not of a Redis stream; use another file.")
    return int(milliseconds), int(counter)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
