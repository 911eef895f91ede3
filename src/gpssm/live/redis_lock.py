"""One learner at a time on a group of a Redis Stream: a key that runs out, and a fence around every command.

The holder renews the key while it runs. If it is killed, the next process on the same machine sees that it has ended
and takes over at once; one on another machine waits for the key to run out.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from gpssm.errors import InvalidInput
from gpssm.live.locks import Holder
from gpssm.live.signals import Stop

LIFE = 10.0
"""Seconds after which the key of a holder that does not renew it runs out."""
_MILLISECONDS = int(1000 * LIFE)
_RENEWED = LIFE / 4  # seconds between two renewals
_LOOK = 0.25  # seconds between two looks at a key that somebody else holds


class TakenOver(Exception):
    """Another process holds the key now: not a word to Redis any more."""


# Commands are run only by the holder, all of them or none, at one moment in the server's time: a process that was
# paused cannot read, publish or acknowledge anything after another one has taken over.
_FENCED = """
local holder = redis.call('get', KEYS[1])
if not holder then return redis.error_reply('UNHELD') end
if holder ~= ARGV[1] then return redis.error_reply('HELD ' .. holder) end
local replies, i = {}, 2
while i <= #ARGV do
  local words = tonumber(ARGV[i])
  local reply = redis.pcall(unpack(ARGV, i + 1, i + words))
  if type(reply) == 'table' and reply.err then return reply end
  replies[#replies + 1] = reply
  i = i + 1 + words
end
return replies
"""


class GroupLock:
    """A key beside a Redis Stream; only its holder reads, publishes and acknowledges."""

    def __init__(self, client: Any, source: str, target: str, group: str) -> None:
        self._redis = client
        self._what = f"group {group!r} of {source!r}"
        self._key = f"gpssm:lock:{{{source}}}:{group}"
        self._keys = (self._key, source, target)
        self._me = Holder.this().text
        self._fenced = client.register_script(_FENCED)
        self._ended = threading.Event()
        self._renewer = threading.Thread(target=self._keep, daemon=True)

    def acquire(self, stop: Stop, say: Callable[[str], None]) -> None:
        """Hold it; wait for one that nobody renews to run out, refuse if somebody does."""
        seen, last, waited_until = None, -1, 0.0
        while not self._take() and not stop.requested:
            value, left = self._look()
            holder = Holder.read(value) if value else None
            if value and holder is not None and holder.ended:
                say(f"redis: taking {self._what} over from {holder}, which has ended.")
                with contextlib.suppress(ResponseError):  # somebody else was faster
                    self._run_as(value, ("SET", self._key, self._me, "PX", _MILLISECONDS))
            elif value and value == seen:
                if left > last or time.monotonic() > waited_until:
                    raise self._refusal(holder)
                last = left
                stop.wait(seconds=_LOOK)
            elif value:
                if holder is not None and holder.near:
                    raise self._refusal(holder)
                seen, last, waited_until = value, left, time.monotonic() + LIFE + 1
                waiting = f"waiting up to {LIFE:g} s, in case that has ended"
                say(f"redis: {self._what} is held by {_named(holder)}; {waiting}.")
                stop.wait(seconds=_LOOK)
        if not self._renewer.is_alive() and not stop.requested:
            # A thread: the first samples are compiled for longer than the key lives.
            self._renewer.start()

    def hold_on(self) -> None:
        """Take the key again if it has run out, as when the server was away or this process was paused."""
        if not self._take():
            self.run()

    def run(self, *commands: Sequence[Any]) -> list[Any]:
        """Replies to commands; `TakenOver` and none of them if another process holds the key."""
        try:
            return self._run_as(self._me, *commands)
        except ResponseError as error:
            said, _, value = str(error).partition(" ")
            if said == "UNHELD":
                raise ResponseError(f"the lock on {self._what} has run out") from error
            if said != "HELD":
                raise
            raise TakenOver(
                f"{self._what} was taken over by {_named(Holder.read(value))} while this process was paused"
            ) from error

    def release(self) -> None:
        """Let the next process have it at once."""
        self._ended.set()
        if self._renewer.is_alive():
            self._renewer.join()
        with contextlib.suppress(RedisError, TakenOver):  # then it runs out, or is somebody else's
            self.run(("DEL", self._key))

    def _run_as(self, holder: str, *commands: Sequence[Any]) -> list[Any]:
        words = [word for command in commands for word in (len(command), *command)]
        return self._fenced(keys=self._keys, args=[holder, *words])

    def _take(self) -> bool:
        """Whether it was free, or is ours already."""
        taken = self._redis.set(self._key, self._me, nx=True, px=_MILLISECONDS)
        return bool(taken) or self._redis.get(self._key) == self._me.encode()

    def _look(self) -> tuple[str, int]:
        """Who holds it, and for how many milliseconds more unless it is renewed."""
        with self._redis.pipeline(transaction=True) as together:
            value, left = together.get(self._key).pttl(self._key).execute()
        return (value or b"").decode(errors="replace"), left

    def _keep(self) -> None:
        while not self._ended.wait(_RENEWED):
            with contextlib.suppress(RedisError, TakenOver):  # reported by those who need the server
                self.run(("PEXPIRE", self._key, _MILLISECONDS))

    def _refusal(self, holder: Holder | None) -> InvalidInput:
        return InvalidInput(
            f"redis: {self._what} is in use by {_named(holder)}; wait for its end, or use another --group."
        )


def _named(holder: Holder | None) -> str:
    return "another program" if holder is None else str(holder)
