"""Damaged and arbitrary inputs, by the thousand: each is used or refused in one sentence, and nothing else.

    python benchmarks/fuzz.py [--inputs 20000] [--seed 0] [--kind files csv records streams]

Prints a table of outcomes, and exits with 1 if there was a wrong exception, a silent difference or a NaN state:

    accepted            used as it is
    refused             with a sentence (`InvalidInput`, or of the kind that belongs to the reader)
    wrong exceptions    of any other kind; one from every place is printed
    silent differences  a damaged file that loads with another content; a cell of a table that nobody touched but that
                        reads differently. A record has no untouched part, and a file that was rewritten with a
                        checksum that is right may mean what it says: there they are not counted.
    NaN states          of a stream: its state or its estimate is not finite, or it had to start again

A kind is a function `(rng, folder) -> trial`, and a trial is a function that makes one input and says what came of it.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import hashlib
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

import gpssm
from gpssm.datasets import from_csv
from gpssm.errors import InvalidInput
from gpssm.live.records import BadRecord, Lines, Names, Sample, from_fields, from_json
from gpssm.methods import registry
from gpssm.methods.arx import ARX
from gpssm.online.stream import Stream
from gpssm.plumbing.serialization import InvalidFile

NDArray = np.ndarray
Trial = Callable[[], str]

ACCEPTED, REFUSED = "accepted", "refused"
WRONG, SILENT, LOST = "wrong exceptions", "silent differences", "NaN states"
SHOWN = 5  # silent differences that are told of each kind


# Mutations ------------------------------------------------------------------------------------


def flip(rng: np.random.Generator, data: bytes) -> bytes:
    """One bit, or a few."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncate(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: rng.integers(len(data))]


def splice(rng: np.random.Generator, data: bytes) -> bytes:
    """A part of it moved to another place, repeated or left out."""
    start, end, at = (int(rng.integers(len(data) + 1)) for _ in range(3))
    return data[:at] + data[min(start, end) : max(start, end)][:1000] + data[at + int(rng.integers(3)) :]


def insert(rng: np.random.Generator, data: bytes) -> bytes:
    """A few bytes, arbitrary or such that mean something."""
    at = int(rng.integers(len(data) + 1))
    special = (b"\x00", b"\n", b"\r", b'"', b",", b";", b"\t", b"NaN", b"inf", b"1e400", b"\xff\xfe", b"[", b"{", b"-")
    piece = special[rng.integers(len(special))] if rng.random() < 0.7 else rng.bytes(int(rng.integers(1, 9)))
    return data[:at] + piece + data[at:]


def scramble(rng: np.random.Generator, data: bytes) -> bytes:
    """Nothing of it."""
    return rng.bytes(int(rng.integers(0, 300)))


MUTATIONS = (flip, truncate, splice, insert, scramble)


def mutated(rng: np.random.Generator, data: bytes) -> bytes:
    return MUTATIONS[rng.integers(len(MUTATIONS))](rng, data)


# Kinds ----------------------------------------------------------------------------------------


def files(rng: np.random.Generator, folder: Path) -> Trial:
    """Saved models and streams."""
    y, u = rng.standard_normal((2, 60, 1))
    young, old = gpssm.OEnVI(1, 3, num_members=4).start(), gpssm.OEnVI(1, 3, num_members=4, trial=0).start()
    for t in range(30):
        old.learn_one(y[t], u[t])
        if t < 5:
            young.learn_one(y[t], u[t])
    path = folder / "file.gpssm"
    originals = []
    for value in (ARX(order=2).fit(y, u), young, old, old.posterior()):
        value.save(path)
        originals.append(path.read_bytes())

    def trial() -> str:
        original = originals[rng.integers(len(originals))]
        sealed = rng.random() < 0.3
        path.write_bytes(rewritten(rng, original) if sealed else mutated(rng, original))
        try:
            found = gpssm.load(path)
        except InvalidFile:
            return REFUSED
        found.save(path)
        return ACCEPTED if sealed or path.read_bytes() in originals else SILENT

    return trial


def rewritten(rng: np.random.Generator, data: bytes) -> bytes:
    """A saved file with another entry in its description, or another number, and a checksum that is right."""
    _, line, arrays = data.split(b"\n", 2)
    if rng.random() < 0.7:
        header = json.loads(line)
        places = [
            (node, key) for node in walk(header) for key in (node if isinstance(node, dict) else range(len(node)))
        ]
        node, key = places[rng.integers(len(places))]
        node[key] = json.loads(ODD[rng.integers(len(ODD))])
        line = json.dumps(header).encode()
    else:
        arrays = MUTATIONS[rng.integers(4)](rng, arrays)
    body = line + b"\n" + arrays
    return f"gpssm-model 4 {hashlib.sha256(body).hexdigest()}\n".encode() + body


ODD = (
    "null", "true", "-1", "0", "1.5", "NaN", "-Infinity", "1" + 30 * "0", '"x"', "[]", "{}", '{"array": 0}',
    '{"array": 99}', '{"tuple": []}', '{"list": [1]}', '{"dict": {"a": 1}}', '{"function": "mean"}',
    '{"class": "GPSSM", "fields": {}}', '{"class": "Zero", "fields": {"state_dim": 1}}',
    '{"class": "RBF", "fields": {}}',
)  # fmt: skip


def walk(node: object) -> Iterator[dict | list]:
    """All lists and dictionaries in a tree of them."""
    if isinstance(node, (dict, list)):
        yield node
        for item in node.values() if isinstance(node, dict) else node:
            yield from walk(item)


def csv(rng: np.random.Generator, folder: Path) -> Trial:
    """Tables: half of the time one cell is replaced, otherwise bytes anywhere, of which nothing need be left."""
    path = folder / "table.csv"
    names = ["a", "b", "c"]

    def cell() -> bytes:
        odd = (
            b"",
            b"nan",
            b"x",
            b"1e400",
            b"-",
            b"1_0",
            b"0x1",
            b"1.5.2",
            b"\xb5",
            b" 7 ",
            b"+.5",
            b"#",
            b"'",
            b"\x0c",
        )
        return odd[rng.integers(len(odd))] if rng.random() < 0.5 else rng.bytes(int(rng.integers(1, 5)))

    def trial() -> str:
        y = np.round(rng.standard_normal((6, 3)) * 10.0 ** rng.integers(-5, 6), 8)
        y[rng.random(y.shape) < 0.1] = np.nan
        separator = [b",", b";", b"\t"][rng.integers(3)]
        lines = [[str(value).encode() for value in row] for row in y]
        untouched = np.ones(y.shape, bool)
        if one_cell := rng.random() < 0.5:
            row, column = rng.integers(6), rng.integers(3)
            new = cell()
            one_cell = not set(new) & set(b'\r\n",;\t\x00\x1c\x1d\x1e\x85')  # or it would be more than one cell
            lines[row][column], untouched[row, column] = new, False
        data = b"".join(separator.join(line) + b"\n" for line in [[n.encode() for n in names], *lines])
        path.write_bytes(data if not untouched.all() else mutated(rng, data))
        try:
            found = from_csv(path, names)
        except InvalidInput:
            return REFUSED
        if found.outputs.ndim != 2 or found.outputs.shape[1] != 3 or np.isinf(found.outputs).any():
            return SILENT
        if one_cell and not (
            found.outputs.shape == y.shape and np.array_equal(found.outputs[untouched], y[untouched], equal_nan=True)
        ):
            return SILENT
        return ACCEPTED

    return trial


def records(rng: np.random.Generator, folder: Path) -> Trial:
    """Lines of CSV and JSON, and messages of Redis."""
    names = Names(["y"], ["u"])
    tables = [b"u,y\n0.3,1.2\n-1,\n", b"t;u;y\n0;0,3;1,2\n1;5;\n", b"u\ty\n1\t2\n3\tnan\n"]
    objects = [b'{"u": 0.3, "y": 1.2}', b'{"y": [1.2, null], "u": 3}', b"[1.2, 0.7]", b'{"y": null, "u": [1]}']
    fields = [{b"u": b"0.3", b"y": b"1.2"}, {b"u": b"[1, 2]", b"y": b"nan"}]

    def check(sample: Sample | None) -> None:
        if sample is None:
            return
        numbers = [*sample.outputs, *sample.inputs]
        assert isinstance(sample, Sample) and all(type(number) is float for number in numbers), sample
        assert not np.isinf(numbers).any(), sample

    def read_all(reader: Lines, lines: list[bytes]) -> str:
        outcome = ACCEPTED
        for line in lines:
            try:
                check(reader.read(line))
            except BadRecord:  # the next may be good
                outcome = REFUSED
        return outcome

    def trial() -> str:
        way = rng.integers(3)
        try:
            if way == 0:
                source = tables[rng.integers(3)] if rng.random() < 0.8 else b"\n".join(objects)
                return read_all(Lines(names), mutated(rng, source).split(b"\n"))
            if way == 1:
                text = mutated(rng, objects[rng.integers(len(objects))]).decode("utf-8", "replace")
                check(from_json(text, names if rng.random() < 0.5 else Names(["y"])))
            else:
                message = {
                    mutated(rng, name) if rng.random() < 0.2 else name: mutated(rng, value)
                    for name, value in fields[rng.integers(len(fields))].items()
                }
                check(from_fields(message, names))
        except InvalidInput:
            return REFUSED
        return ACCEPTED

    return trial


def streams(rng: np.random.Generator, folder: Path) -> Trial:
    """Any number, anything else, a gap or a frozen sensor, among usual samples of streams of every online method."""
    small = {"num_inducing": 4, "num_members": 6, "num_particles": 8, "hidden": 3, "trial": 25}
    methods = [
        registry.build_online(name, **registry.applicable(name, state_dim=dx, input_lags=lags, **small))
        for name in registry.ONLINE
        for dx, lags in ((1, 1), (2, 2))
    ]
    running = [method.start() for method in methods]
    odd: tuple[object, ...] = (None, "x", [], [[1.0]], [1.0, 2.0], np.inf, -np.inf, 1j, {}, b"1", True, 10**400)

    def number() -> float:
        way = rng.integers(4)
        if way == 0:  # any pattern of bits
            return float(np.frombuffer(rng.bytes(8))[0])
        if way == 1:
            return float(rng.choice([-1, 1]) * 10.0 ** rng.uniform(-320, 308))
        if way == 2:
            return float(rng.choice([0.0, -0.0, 1e60, 1.1e60, 5e-324, 1.7e308, 1e6, -1e6, np.nan]))
        return float(rng.standard_normal() * 10.0 ** rng.uniform(-3, 9))

    def fed(stream: Stream, y: object, u: object) -> str:
        try:
            estimate = stream.learn_one(y, u)
        except InvalidInput:
            return REFUSED
        if not stream.ready:
            return LOST if stream.given_up else ACCEPTED
        leaves = [*jax.tree.leaves(stream.state), *estimate[:4]]
        finite = all(np.isfinite(leaf).all() for leaf in leaves)
        return (REFUSED if estimate.refused else ACCEPTED) if finite and not stream.given_up else LOST

    def trial() -> str:
        at = int(rng.integers(len(methods)))
        if running[at].given_up or rng.random() < 0.02:  # what comes first matters most
            running[at] = methods[at].start(seed=int(rng.integers(100)))
        stream = running[at]
        y: object = number() if rng.random() < 0.8 else odd[rng.integers(len(odd))]
        u: object = rng.standard_normal() if rng.random() < 0.8 else number()
        outcomes = [fed(stream, y, u) for _ in range(int(rng.choice([1, 2, 5, 20], p=[0.85, 0.08, 0.05, 0.02])))]
        outcomes += [fed(stream, np.sin(0.3 * stream.count) + 0.1 * rng.standard_normal(), rng.standard_normal())]
        return LOST if LOST in outcomes else outcomes[0]

    return trial


KINDS: dict[str, Callable[[np.random.Generator, Path], Trial]] = {
    "files": files,
    "csv": csv,
    "records": records,
    "streams": streams,
}


# The run --------------------------------------------------------------------------------------


def run(kind: str, inputs: int, seed: int) -> Counter[str]:
    """How often each outcome was seen. Wrong exceptions are printed, one from every place."""
    outcomes: Counter[str] = Counter()
    places: set[tuple[str, int | None]] = set()
    rng = np.random.default_rng([seed, *kind.encode()])
    with tempfile.TemporaryDirectory() as folder:
        trial = KINDS[kind](rng, Path(folder))
        for i in range(inputs):
            try:
                outcome = trial()
            except Exception as error:
                outcome = WRONG
                where = traceback.extract_tb(error.__traceback__)[-1]
                if (where.filename, where.lineno) not in places:  # once for each place
                    places.add((where.filename, where.lineno))
                    sys.stderr.write(f"{kind}, input {i}:\n{traceback.format_exc()}\n")
            outcomes[outcome] += 1
            if outcome in (SILENT, LOST) and outcomes[outcome] <= SHOWN:
                sys.stderr.write(f"{kind}, input {i}: {outcome}\n")
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    columns = (ACCEPTED, REFUSED, WRONG, SILENT, LOST)
    found = {}
    if not options.json:
        print(f"{'':10}" + "".join(f"{name:>20}" for name in columns) + f"{'seconds':>10}")
    for kind in options.kind:
        started = time.perf_counter()
        found[kind] = run(kind, options.inputs, options.seed)
        seconds = time.perf_counter() - started
        if not options.json:
            print(
                f"{kind:10}" + "".join(f"{found[kind][name]:>20}" for name in columns) + f"{seconds:>10.1f}", flush=True
            )
    if options.json:
        print(json.dumps({kind: {name: outcomes[name] for name in columns} for kind, outcomes in found.items()}))
    sys.exit(any(outcomes[name] for outcomes in found.values() for name in (WRONG, SILENT, LOST)))


if __name__ == "__main__":
    main()
