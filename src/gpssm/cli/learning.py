"""What `gpssm stream` does: start or resume a stream, learn until the end, save, sum up."""

import contextlib
import importlib.util
import os
import select
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gpssm.cli.files import check_target, load_saved, split
from gpssm.cli.options import StreamOptions
from gpssm.errors import InvalidInput
from gpssm.live.address import VARIABLE, Address, Route
from gpssm.live.checkpoint import Checkpoint
from gpssm.live.learner import Learner, StoppedLearning
from gpssm.live.locks import locked
from gpssm.live.records import LONGEST, Lines, Names
from gpssm.live.signals import Stop
from gpssm.methods import registry
from gpssm.online.base import OnlineMethod
from gpssm.online.stream import Stream
from gpssm.plumbing.atomic import remove_leftovers
from gpssm.plumbing.interruption import INTERRUPTED
from gpssm.plumbing.messages import say
from gpssm.posteriors.posterior import Posterior

DEFAULT_METHOD = "OEnVI"
STDIN, STDOUT = 0, 1
NOT_SAVED, REFUSED = 1, 2
OUTPUTS = ("y",)
"""Names that are looked for if neither the user nor a model says any."""


def learn(options: StreamOptions, stop: Stop) -> int:
    """Learn from all samples until the input ends or `stop` is requested; returns the exit code of the command."""
    route = _route(options)
    with contextlib.ExitStack() as stack:
        if options.checkpoint is not None:
            check_target(options.checkpoint, argument="checkpoint")
            stack.enter_context(locked(options.checkpoint))
            remove_leftovers(options.checkpoint)
        started = time.perf_counter()
        if options.method is not None:
            registry.online_method(options.method)  # a file may hold objects of its module, whoever has written that
        model = None if options.model is None else load_saved("model", options.model)
        stream = _checkpoint(options) or _new(options, model)
        names = _names(options, model, stream)
        stream.names = tuple(names.outputs), tuple(names.inputs)
        learner = Learner(stream, options.forecast, say, not options.uncalibrated)
        checkpoint = Checkpoint(options.checkpoint, options.every, say)
        try:
            if route is None:
                saved = _learn_from_lines(names, learner, checkpoint, stop)
            else:
                from gpssm.live.redis_stream import Consumer

                saved = Consumer(route, names, learner, checkpoint, stop).run()
            code = INTERRUPTED if stop.number == signal.SIGINT else 0 if saved else NOT_SAVED
        except StoppedLearning as error:
            say(str(error))
            code = REFUSED
        seconds = time.perf_counter() - started
        doubted = f" ({learner.doubted} of them not wholly believed)" if learner.doubted else ""
        summary = f"{learner.learned} sample(s) learned{doubted}, {learner.skipped} skipped, {seconds:.1f} s."
        say(f"{summary} {learner.delays}".rstrip())
    return code


def _learn_from_lines(names: Names, learner: Learner, checkpoint: Checkpoint, stop: Stop) -> bool:
    """A line out for every good line in; whether everything learned is on disk, if it is to be."""
    lines = Lines(names, partial(_check_width, learner.stream))
    try:
        for number, text in _lines(stop):
            estimate = learner.line(partial(lines.read, text), "line", number)
            if estimate is not None:
                checkpoint.unsaved += 1
                _write(f"{estimate}\n".encode(), stop)
                if checkpoint.due:
                    checkpoint.save(learner.stream)
    except BrokenPipeError:
        pass  # nobody reads on: an end like any other
    finally:
        saved = checkpoint.save(learner.stream)
    return saved


def _lines(stop: Stop) -> Iterator[tuple[int, bytes]]:
    """Lines of standard input and their numbers, as soon as they are there, until it ends or we are asked to."""
    number, rest, more = 0, b"", True
    while more and stop.wait(reading=STDIN) and not stop.requested:
        chunk = os.read(STDIN, 1 << 16)
        more = bool(chunk)
        if len(rest) > LONGEST and b"\n" not in chunk:
            chunk = b""  # of a line that is too long already
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[: LONGEST + 1]
        if rest and not more:
            lines.append(rest)
        for line in lines:
            if stop.requested:
                return
            number += 1
            yield number, line


def _write(data: bytes, stop: Stop) -> None:
    """Write at once, but do not wait for a reader that does not read when asked to end."""
    while data and stop.wait(writing=STDOUT):
        data = data[os.write(STDOUT, data[: select.PIPE_BUF]) :]  # as much as cannot block


def _route(options: StreamOptions) -> Route | None:
    """The server and the streams to be used, if any are."""
    streams = {"in": options.source, "out": options.target}
    # Streams without an address have that of the environment; without streams that is meant for somebody else.
    url = options.redis or (os.environ.get(VARIABLE) if any(streams.values()) else None)
    if not url:
        for name, value in streams.items():
            if value is not None:
                raise InvalidInput(
                    f"{name}: {value!r} given without --redis; expected the address of a server, too, there or in the "
                    f"environment variable {VARIABLE}."
                )
        return None
    if options.source is None or options.target is None or options.source == options.target:
        raise InvalidInput("redis: expected the names of two streams, --in for samples and --out for estimates.")
    if options.checkpoint is None:
        raise InvalidInput("redis: expected --checkpoint, the file that knows which messages were learned from.")
    if importlib.util.find_spec("redis") is None:
        raise InvalidInput("redis: the Python package redis is not installed; run pip install 'gpssm[live]'.")
    return Route(Address(url), options.source, options.target, options.group, options.consumer)


def _check_width(stream: Stream, outputs: int, inputs: int) -> None:
    """Refuse columns that no row can make right."""
    if stream.output_dim is None:
        stream.method.check(outputs, inputs)
    elif (outputs, inputs) != (stream.output_dim, stream.input_dim):
        raise InvalidInput(
            f"outputs, inputs: {outputs} and {inputs} column(s); the stream has learned from {stream.output_dim} and "
            f"{stream.input_dim}, expected as many."
        )


def _checkpoint(options: StreamOptions) -> Stream | None:
    """The stream in the checkpoint, if there is one."""
    path = options.checkpoint
    if path is None or not path.exists():
        return None
    stream = load_saved("checkpoint", path)
    if not isinstance(stream, Stream):
        other = type(stream).__name__
        raise InvalidInput(f"checkpoint: {str(path)!r} holds a {other}, not a stream; expected another name.")
    _check_method(options, path, stream)
    say(f"going on from {str(path)!r}, after {stream.count} sample(s).")
    return stream


def _new(options: StreamOptions, model: Any) -> Stream:
    """A stream that goes on from a model, or a new one."""
    name, seed = options.method or DEFAULT_METHOD, options.seed
    if model is None:
        sizes = {"num_inducing": options.num_inducing, "input_lags": options.input_lags}
        method: OnlineMethod = registry.build_online(
            name, state_dim=options.state_dim, **registry.applicable(name, **sizes)
        )
        return method.start(seed=seed)
    if isinstance(model, Posterior):
        kind: type[OnlineMethod] = registry.online_method(name)
        return kind.continuing(model, options.num_inducing, seed=seed)
    if isinstance(model, Stream):
        _check_method(options, options.model, model)
        model.position = ""  # where it has been reading is not where it will read now
        return model
    raise InvalidInput(
        f"model: {str(options.model)!r} holds a {type(model).__name__}, which cannot go on learning; "
        "expected a stream, or a model fitted by EnVI."
    )


def _check_method(options: StreamOptions, path: Path | None, stream: Stream) -> None:
    """Refuse a stream of another method than the one that was asked for."""
    if options.method is not None and not isinstance(stream.method, registry.online_method(options.method)):
        raise InvalidInput(
            f"method: {str(path)!r} holds a stream of {stream.method.name}; expected no --method, or another file."
        )


def _names(options: StreamOptions, model: Any, stream: Stream) -> Names:
    """Those given, or else those of the model, also when going on from a checkpoint; or else those of the stream."""
    default = Names(stream.names[0] or OUTPUTS, stream.names[1])
    if isinstance(model, Posterior):
        default = Names(model.recording.output_names, model.recording.input_names)
    inputs = split(options.inputs) or default.inputs
    return Names(split(options.outputs) or default.outputs, inputs, options.time)
