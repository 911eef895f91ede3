"""Saved models: a line that vouches for the rest, one line of JSON, then arrays.

    gpssm-model 4 <SHA-256 of all that follows>
    {"arrays": 2, "tree": {"class": "gpssm.posteriors.posterior.Posterior", "fields": ...}}
    two NumPy `.npy` blocks

The JSON describes the object tree by the full names of classes (`plumbing.catalogue`). Nothing is executed on loading
and no pickle is read. Any change of a file, be it of one bit, is found by its checksum; and because a file can be
written by anybody, its content is also compared with what the classes say of their fields (`plumbing.contents`).
Functions of the user's cannot be stored: `load` asks for them again. Files of version 3, with bare names of classes,
are read, too, and so are those of version 2, in which the checksum is part of the JSON and covers only the arrays.
"""

import hashlib
import io
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from gpssm.errors import InvalidInput
from gpssm.plumbing import catalogue, contents
from gpssm.plumbing.atomic import write_atomically
from gpssm.plumbing.contents import Parsed

FORMAT_VERSION = 4
_BARE_NAMES = "3"  # the version before, which named classes without their modules
_MAGIC = "gpssm-model"
_PREVIOUS = b'{"format": "gpssm-model", '  # how files of version 2 begin
_LONGEST_LINE = 1 << 26  # bytes of JSON; the largest models have less than a hundredth of it
_DEPTH = 50  # of nested objects: far more than any model has, and far less than Python can bear

# What NumPy writes before the numbers of an array.
_ARRAY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>|](?:f[248]|[iu][1248]|b1))', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18},? ?)*)\), \} *\n",
    re.DOTALL,
)


class InvalidFile(InvalidInput):
    """A file that is not a model this version can read."""


class _Foreign(InvalidInput):
    """A file that no version has written, or one that this version does not read; the text follows its name."""


class _Content(NamedTuple):
    """What is in a file."""

    tree: Any
    arrays: list[np.ndarray]
    bare_names: bool = False
    """Classes are named as in versions 2 and 3."""


def write(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value`, an object of a class that is `saved`, to a file; it is whole or absent, whatever happens."""
    arrays: list[np.ndarray] = []
    tree = _encode(value, arrays, ())
    try:
        # A file that cannot be read is of no use. Any function will do here: none is called.
        contents.check(_parse(_Content(tree, arrays), defaultdict(lambda: len)))
    except InvalidInput as error:
        raise InvalidInput(f"save: {error}") from error
    body = io.BytesIO()
    body.write(json.dumps({"arrays": len(arrays), "tree": tree}).encode() + b"\n")
    for array in arrays:
        np.lib.format.write_array(body, array, version=(1, 0), allow_pickle=False)
    data = body.getvalue()
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path: the directory {str(target.parent)!r} does not exist; create it first.")
    write_atomically(target, _first_line(data) + data)


def load(path: str | os.PathLike[str], functions: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """Read a saved model.

    Args:
        path: a file written by `save`.
        functions: `{"emission": g}`, `{"mean": m}` or both, if the model was built with functions.

    Returns:
        The model, as it was when it was saved: a `Posterior`, a `LinearPosterior` or a `Stream`.

    >>> import gpssm, tempfile
    >>> model = gpssm.LastValue().fit(np.sin(np.arange(30.0)))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     model.save(f"{directory}/model.gpssm")
    ...     again = load(f"{directory}/model.gpssm")
    >>> bool((again.forecast(3).mean == model.forecast(3).mean).all())
    True
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"path: there is no file {str(source)!r}.")
    try:
        parsed = _parse(_read(source), dict(functions or {}))
        if not isinstance(parsed, Parsed) or not hasattr(parsed.kind, "save"):
            raise _Foreign("holds no model")
        contents.check(parsed)
        return _build(parsed)
    except _MissingFunction:
        raise
    except _Foreign as error:
        raise InvalidFile(f"path: {str(source)!r} {error}.") from error
    except InvalidInput as error:
        reason = str(error).removesuffix(".")
        raise InvalidFile(f"path: {str(source)!r} is damaged ({reason}); use another copy.") from error


def _first_line(data: bytes, version: str = str(FORMAT_VERSION)) -> bytes:
    """What vouches for `data`."""
    return f"{_MAGIC} {version} {hashlib.sha256(data).hexdigest()}\n".encode()


def _read(source: Path) -> _Content:
    """The content of a file of this version or the one before, whose checksum is right."""
    with source.open("rb") as stream:
        first = stream.read(len(_first_line(b"")))
        if first.startswith(_PREVIOUS):
            stream.seek(0)
            return _read_previous(stream.readline(_LONGEST_LINE), stream.read())
        if not first.startswith(_MAGIC.encode() + b" "):
            raise _Foreign("is not a gpssm model")
        version = first.split(b" ")[1].decode("latin-1")
        if version not in (str(FORMAT_VERSION), _BARE_NAMES):
            raise _other_version(version)
        data = stream.read()
    if first != _first_line(data, version):
        raise _Foreign("is damaged or incomplete (checksum differs); use another copy")
    line, _, rest = data.partition(b"\n")
    header = _header(line, {"arrays", "tree"})
    return _Content(header["tree"], _arrays(rest, header["arrays"]), version == _BARE_NAMES)


def _read_previous(line: bytes, payload: bytes) -> _Content:
    header = _header(line, {"format", "version", "sha256", "arrays", "tree"})
    if header["version"] != 2:
        raise _other_version(header["version"])
    if hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise _Foreign("is damaged or incomplete (checksum differs); use another copy")
    return _Content(header["tree"], _arrays(payload, header["arrays"]), bare_names=True)


def _other_version(version: Any) -> _Foreign:
    return _Foreign(
        f"has format version {ascii(version)[:20]}, this gpssm reads versions 2 to {FORMAT_VERSION}; "
        "load it with the version that wrote it, or fit again"
    )


def _header(line: bytes, keys: set[str]) -> dict[str, Any]:
    try:
        header = json.loads(line.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput("its description is not JSON that can be read") from error
    if not isinstance(header, dict) or header.keys() != keys:
        raise _Foreign("is not a gpssm model")
    return header


def _arrays(data: bytes, count: Any) -> list[np.ndarray]:
    """All arrays; what they claim to hold is compared with what is there before anything is made of it."""
    arrays: list[np.ndarray] = []
    position = 0
    while position < len(data):
        found = _ARRAY.match(data, position)
        if found is None:
            raise InvalidInput(f"what follows its {len(arrays)} array(s) is none")
        kind, shape = np.dtype(found[1].decode()), tuple(map(int, re.findall(rb"\d+", found[3])))
        begin, size = found.end(), math.prod(shape) * kind.itemsize
        position = begin + size
        if position > len(data) or len(shape) > 32:
            raise InvalidInput(f"array {len(arrays)} claims more numbers than there are")
        # A copy, which can be written to, in the byte order of this machine.
        numbers = np.frombuffer(data, kind, math.prod(shape), begin).astype(kind.newbyteorder("="))
        arrays.append(numbers.reshape(shape, order="F" if found[2] == b"True" else "C"))
    if type(count) is not int or count != len(arrays):
        raise InvalidInput(f"it holds {len(arrays)} array(s); expected {str(count)[:20]}")
    return arrays


def _encode(value: Any, arrays: list[np.ndarray], path: tuple[str, ...]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, jax.Array)):
        arrays.append(np.asarray(value))
        return {"array": len(arrays) - 1}
    if contents.has_fields(type(value)):
        return _encode_object(value, arrays, path)
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [_encode(item, arrays, path) for item in value]}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("cannot save a dictionary whose keys are not text")
        return {"dict": {key: _encode(item, arrays, path) for key, item in value.items()}}
    if callable(value):
        # The field that it belongs to, "emission" or "mean"; a module of ours holds it as its `function`.
        return {"function": path[-2] if path[-1] == "function" else path[-1]}
    raise TypeError(f"cannot save a {type(value).__name__}")


def _encode_object(value: Any, arrays: list[np.ndarray], path: tuple[str, ...]) -> Any:
    kind = catalogue.name_of(type(value))
    if kind is None:
        raise InvalidInput(
            f"save: the model contains your class {type(value).__name__!r}; only classes of gpssm, and others that are "
            "decorated with gpssm.saved, can be stored."
        )
    names = contents.field_names(type(value))
    return {"class": kind, "fields": {name: _encode(getattr(value, name), arrays, (*path, name)) for name in names}}


class _MissingFunction(InvalidFile):
    """A file that is good, but needs a function of the user's."""


def _parse(content: _Content, functions: Mapping[str, Callable[..., Any]]) -> Any:
    """Objects that are not made yet; every array belongs to exactly one of their fields."""
    used: list[int] = []

    def parse(node: Any, depth: int) -> Any:
        if depth > _DEPTH:
            raise InvalidInput(f"it is nested more than {_DEPTH} deep")
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        kind, inner = next(iter(node.items())) if isinstance(node, dict) and node else ("", None)
        if kind == "class" and list(node) == ["class", "fields"] and isinstance(node["fields"], dict):
            fields = {name: parse(item, depth + 1) for name, item in node["fields"].items()}
            return _parsed(inner, fields, content.bare_names)
        if kind == "array" and type(inner) is int and 0 <= inner < len(content.arrays):
            used.append(inner)
            result: Any = content.arrays[inner]
        elif kind == "tuple" and isinstance(inner, list):
            result = tuple(parse(item, depth + 1) for item in inner)
        elif kind == "list" and isinstance(inner, list):
            result = [parse(item, depth + 1) for item in inner]
        elif kind == "dict" and isinstance(inner, dict):
            result = {key: parse(item, depth + 1) for key, item in inner.items()}
        elif kind == "function" and isinstance(inner, str):
            result = _function(inner, functions)
        else:
            raise InvalidInput(f"its description has an unknown entry {kind[:40]!r}")
        if len(node) != 1:
            raise InvalidInput(f"its description has more in an entry {kind!r} than belongs there")
        return result

    tree = parse(content.tree, 0)
    if sorted(used) != list(range(len(content.arrays))):
        raise InvalidInput("not every one of its arrays belongs to one field")
    return tree


def _function(name: str, functions: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    try:
        return functions[name]
    except KeyError:
        expected = f"expected functions={{{name!r}: ...}}"
        raise _MissingFunction(f"functions: the model has a function of yours; {expected}.") from None


def _build(value: Any) -> Any:
    """Make the objects."""
    if isinstance(value, Parsed):
        made = value.kind(**{name: _build(item) for name, item in value.fields.items()})
        if hasattr(made, "check_fields"):
            made.check_fields()
        return made
    if isinstance(value, dict):
        return {key: _build(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(_build, value))
    return value


def _parsed(name: Any, fields: dict[str, Any], bare_names: bool) -> Parsed:
    known = name if isinstance(name, str) else ""
    if bare_names:
        known, fields = catalogue.present(known, fields)
    found = catalogue.find(known)
    if found is None or not contents.has_fields(found):
        raise InvalidInput(f"it contains {str(name)[:60]!r}, which this gpssm does not know")
    return Parsed(found, fields)
