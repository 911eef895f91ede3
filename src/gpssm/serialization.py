"""Saved models: one line of JSON, then arrays.

The header describes the object tree by class names of this package; arrays follow as NumPy
`.npy` blocks. Nothing is executed on loading, no pickle is read, and a checksum tells a damaged
file from a good one. Functions of the user's cannot be stored: `load` asks for them again.
"""

import dataclasses
import hashlib
import importlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gpssm.atomic import write_atomically as write_atomically
from gpssm.errors import InvalidInput
from gpssm.methods.registry import ONLINE

FORMAT_VERSION = 2
_MAGIC = "gpssm-model"

# Modules whose classes may appear in a file.
_MODULES = (
    "gpssm.posterior",
    "gpssm.linear_posterior",
    "gpssm.stream",
    "gpssm.gate",
    "gpssm.methods.trial",
    "gpssm.methods.oenvi_core",
    "gpssm.methods.oenvi_paper",
    "gpssm.scaling",
    "gpssm.datasets.series",
    "gpssm.filters.ensemble",
    "gpssm.filters.kalman",
    "gpssm.filters.joint",
    "gpssm.filters.sensitivity",
    "gpssm.history",
    "gpssm.models.gpssm",
    "gpssm.models.neural",
    "gpssm.models.emission",
    "gpssm.networks",
    "gpssm.gp.sparse",
    "gpssm.gp.means",
    "gpssm.gp.kernels",
    *dict.fromkeys(entry.module for entry in ONLINE.values()),
)


class InvalidFile(InvalidInput):
    """A file that is not a model this version can read."""


def write(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` to `path`: to a temporary name first, then renamed, so that a file is whole or absent."""
    arrays: list[np.ndarray] = []
    tree = _encode(value, arrays, ())
    body = io.BytesIO()
    for array in arrays:
        np.lib.format.write_array(body, array, allow_pickle=False)
    payload = body.getvalue()
    header = {
        "format": _MAGIC,
        "version": FORMAT_VERSION,
        "sha256": hashlib.sha256(payload).hexdigest(),
        "arrays": len(arrays),
        "tree": tree,
    }
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path: the directory {str(target.parent)!r} does not exist; create it first.")
    write_atomically(target, json.dumps(header).encode() + b"\n" + payload)


def load(path: str | os.PathLike[str], functions: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """Read a saved model.

    Args:
        path: a file written by `save`.
        functions: `{"emission": g}`, `{"mean": m}` or both, if the model was built with functions.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"path: there is no file {str(source)!r}.")
    with source.open("rb") as stream:
        first = stream.readline(1 << 26)
        try:
            header = json.loads(first)
        except ValueError as error:
            raise InvalidFile(f"path: {str(source)!r} is not a gpssm model.") from error
        if not isinstance(header, dict) or header.get("format") != _MAGIC:
            raise InvalidFile(f"path: {str(source)!r} is not a gpssm model.")
        if header.get("version") != FORMAT_VERSION:
            raise InvalidFile(
                f"path: {str(source)!r} has format version {header.get('version')}, this gpssm reads version "
                f"{FORMAT_VERSION}; load it with the version that wrote it, or fit again."
            )
        payload = stream.read()
    if hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise InvalidFile(f"path: {str(source)!r} is damaged or incomplete (checksum differs); use another copy.")
    body = io.BytesIO(payload)
    arrays = [np.lib.format.read_array(body, allow_pickle=False) for _ in range(header["arrays"])]
    return _decode(header["tree"], arrays, dict(functions or {}))


def _encode(value: Any, arrays: list[np.ndarray], path: tuple[str, ...]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, jax.Array)):
        arrays.append(np.asarray(value))
        return {"array": len(arrays) - 1}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _encode_object(value, value._fields, arrays, path)
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [_encode(item, arrays, path) for item in value]}
    if isinstance(value, dict):
        return {"dict": {key: _encode(item, arrays, path) for key, item in value.items()}}
    if dataclasses.is_dataclass(value):
        return _encode_object(value, [f.name for f in dataclasses.fields(value)], arrays, path)
    if callable(value):
        # The field that it belongs to, "emission" or "mean"; a module of ours holds it as its `function`.
        return {"function": path[-2] if path[-1] == "function" else path[-1]}
    raise TypeError(f"cannot save a {type(value).__name__}")


def _encode_object(value: Any, names: Iterable[str], arrays: list[np.ndarray], path: tuple[str, ...]) -> Any:
    kind = type(value).__name__
    if _find_class(kind) is not type(value):
        raise InvalidInput(f"save: the model contains your class {kind!r}; only classes of gpssm can be stored.")
    fields = {name: _encode(getattr(value, name), arrays, (*path, name)) for name in names}
    return {"class": kind, "fields": fields}


def _decode(node: Any, arrays: list[np.ndarray], functions: dict[str, Callable[..., Any]]) -> Any:
    if not isinstance(node, dict):
        return node
    if "array" in node:
        return arrays[node["array"]]
    if "tuple" in node:
        return tuple(_decode(item, arrays, functions) for item in node["tuple"])
    if "list" in node:
        return [_decode(item, arrays, functions) for item in node["list"]]
    if "dict" in node:
        return {key: _decode(item, arrays, functions) for key, item in node["dict"].items()}
    if "function" in node:
        name = node["function"]
        if name not in functions:
            raise InvalidFile(f"functions: the model has a function of yours; expected functions={{{name!r}: ...}}.")
        return functions[name]
    fields = {name: _decode(item, arrays, functions) for name, item in node["fields"].items()}
    return _class(node["class"])(**fields)


def _class(name: str) -> Any:
    found = _find_class(name)
    if found is None:
        raise InvalidFile(f"path: the model contains {name!r}, which this gpssm does not know.")
    return found


def _find_class(name: str) -> type | None:
    for module_name in _MODULES:
        found = getattr(importlib.import_module(module_name), name, None)
        if isinstance(found, type) and found.__module__ == module_name:
            return found
    return None
