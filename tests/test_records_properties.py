"""Records of anything at all: a sample, nothing, or a sentence; and numbers that are sent arrive as they were."""

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gpssm.errors import InvalidInput
from gpssm.live.records import BadRecord, Lines, Names, Sample, from_fields

quickly = settings(deadline=None, max_examples=200, derandomize=True)
NAMES = (Names(["y"]), Names(["y"], ["u"]), Names(["0"]), Names(["a", "y"], ["1"]))
names_of = st.sampled_from(NAMES)
number = st.floats(allow_infinity=False)  # NaN is a value that is missing
missing = st.sampled_from(["", "NaN", "null", "n/a"])

# What has ended a stream before, in pieces that are put together at random; and bytes that mean nothing.
pieces = st.sampled_from(
    [
        b"y", b"u", b"t", b",", b";", b"\t", b"\r", b'"', b"\0", b"#", b" ", b"1", b"-2.5", b"1e999", b"_", b"nan",
        b"\x85", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80", b'"\\ud800"', b"{", b"}", b"[", b"]", b":",
        b'{"y": ', b'"u": ', b"[" * 990, b"]" * 990, b'{"y": ' * 330, b"9" * 5000, b"true", b"null", b"Infinity",
    ]
)  # fmt: skip
junk = st.one_of(st.binary(max_size=60), st.lists(pieces, max_size=12).map(b"".join))
line = junk.map(lambda data: data.replace(b"\n", b""))
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["y", "u", "a"]), inner, max_size=3),
    max_leaves=12,
)
nested = st.tuples(st.sampled_from(["[]", '{"y":}']), st.integers(1, 1100)).map(
    lambda choice: f'{{"y": {choice[0][:-1] * choice[1]}1{choice[0][-1] * choice[1]}, "u": 1}}'.encode()
)
json_line = st.one_of(nested, st.dictionaries(st.sampled_from(["y", "u"]), json_value).map(json.dumps).map(str.encode))


def is_sample(sample: Sample) -> bool:
    values = [*sample.outputs, *sample.inputs]
    return isinstance(sample, Sample) and all(type(v) is float and not math.isinf(v) for v in values)


def is_sentence(error: Exception) -> bool:
    return "\n" not in str(error) and 5 < len(str(error)) < 2000


def read_all(names: Names, lines: list[bytes]) -> list[Sample | None]:
    """As `gpssm stream` does: bad lines are skipped, and columns that are not there end it."""
    reader, found = Lines(names), list[Sample | None]()
    for data in lines:
        try:
            found.append(reader.read(data))
        except BadRecord as error:
            assert is_sentence(error)
        except InvalidInput as error:
            assert is_sentence(error) and not any(found), "only a first row can be wrong for good"
            break
    return found


@quickly
@given(names_of, st.lists(st.one_of(line, json_line), min_size=1, max_size=5))
def test_any_lines(names: Names, lines: list[bytes]) -> None:
    assert all(sample is None or is_sample(sample) for sample in read_all(names, lines))


@quickly
@given(names_of, st.sampled_from([b"t,u,y,a", b"1;2;3", b'{"y": 1}', b"[1]"]), st.lists(line, max_size=5))
def test_any_lines_after_a_good_one(names: Names, first: bytes, lines: list[bytes]) -> None:
    """Then nothing at all ends it."""
    reader = Lines(names)
    try:
        reader.read(first)
    except BadRecord:
        pass
    except InvalidInput:
        return
    for data in lines:
        try:
            sample = reader.read(data)
        except BadRecord as error:
            assert is_sentence(error)
        else:
            assert sample is None or is_sample(sample)


@quickly
@given(names_of, st.dictionaries(st.one_of(st.sampled_from([b"y", b"u", b"a", b"0", b"1"]), junk), junk, max_size=5))
def test_any_message(names: Names, fields: dict[bytes, bytes]) -> None:
    try:
        sample = from_fields(fields, names)
    except BadRecord as error:
        assert is_sentence(error)
    else:
        assert is_sample(sample)


def same(found: list[float], sent: list[float]) -> bool:
    """To the last bit, minus zero included."""
    return list(map(float.hex, found)) == list(map(float.hex, sent))


@quickly
@given(
    st.lists(st.tuples(number, st.floats(allow_infinity=False, allow_nan=False)), min_size=1, max_size=5),
    st.sampled_from(",;\t"),
    st.booleans(),
    st.sampled_from(["", "\r"]),
    missing,
)
def test_a_table_arrives_as_it_was_sent(
    rows: list[tuple[float, float]], separator: str, quoted: bool, end: str, gap: str
) -> None:
    def cell(value: float | str) -> str:
        text = value if isinstance(value, str) else gap if math.isnan(value) else repr(value)
        return f'"{text}"' if quoted else text

    reader = Lines(Names(["y"], ["u"]))
    assert reader.read(separator.join(map(cell, ("y", "note", "u"))).encode() + end.encode()) is None
    for y, u in rows:
        sample = reader.read((separator.join((cell(y), cell("x"), cell(u))) + end).encode())
        assert sample is not None and same(sample.outputs, [y]) and same(sample.inputs, [u])


@quickly
@given(st.lists(st.lists(number, min_size=1, max_size=4), min_size=1, max_size=4), st.booleans())
def test_json_arrives_as_it_was_sent(rows: list[list[float]], bare: bool) -> None:
    reader = Lines(Names(["y"]))
    for row in rows:
        values = [None if math.isnan(value) else value for value in row]
        sample = reader.read(json.dumps(values if bare else {"t": "x", "y": values}).encode())
        assert sample is not None and same(sample.outputs, row) and sample.inputs == []


@quickly
@given(number, st.lists(number, min_size=1, max_size=4), missing)
def test_a_message_arrives_as_it_was_sent(y: float, u: list[float], gap: str) -> None:
    listed = json.dumps([None if math.isnan(value) else value for value in u])
    fields = {b"u": listed.encode(), b"y": (gap if math.isnan(y) else repr(y)).encode(), b"t": b"\xff"}
    sample = from_fields(fields, Names(["y"], ["u"]))
    assert same(sample.outputs, [y]) and same(sample.inputs, u)
