"""Published recordings: downloaded on first use, or read from the directory that GPSSM_DATA names.

Nothing is resampled, scaled or cut. A file whose checksum differs from the published one is never used.
"""

import hashlib
import importlib
import io
import os
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from gpssm.datasets.series import Series
from gpssm.datasets.sources import SOURCES, Original, Source
from gpssm.errors import InvalidInput

NDArray = np.ndarray
VARIABLE = "GPSSM_DATA"


class Unseen(NamedTuple):
    """A part to test on. Its first `run_in` samples are for finding its initial state, and are not scored.

    >>> Unseen("test", Series(np.zeros((60, 1)), None, None), run_in=50).run_in
    50
    """

    name: str
    """Of the part."""
    series: Series
    """Its outputs (T, dy) and inputs (T, dc), in physical units."""
    run_in: int
    """0 where the part continues the one to learn from: then its state is that at the end of learning."""


class Benchmark(NamedTuple):
    """A recording cut as its published comparisons cut it: one part to learn from, and one or more to test on.

    >>> train, rest = Series(np.zeros((10, 1)), None, None).split(0.6)
    >>> len(Benchmark("zeros", train, (Unseen("test", rest, run_in=0),)).test.series.outputs)
    4
    """

    name: str
    """Of the data set."""
    train: Series
    """Outputs (T, dy) and inputs (T, dc) to learn from, in physical units."""
    tests: tuple[Unseen, ...]
    """What comes after it, or other experiments."""

    @property
    def test(self) -> Unseen:
        """The test part, or the first of them."""
        return self.tests[0]


def load(name: str) -> Series:
    """A published recording; where there are two, the one to learn from.

    Read from the directory that the environment variable GPSSM_DATA names; without it, downloaded once and cached.

    Args:
        name: as `gpssm datasets` lists them, a key of `SOURCES`.

    Returns:
        Outputs (T, dy) and inputs (T, dc) as published, in physical units, with the names of the channels.

    >>> load("gas_oven")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpssm.errors.InvalidInput: name: there is no data set 'gas_oven'; expected one of actuator, ballbeam, ...
    """
    source = _source(name)
    return _read(source, source.originals[0])


def benchmark(name: str) -> Benchmark:
    """A published recording, as the part to learn from and the parts to test on.

    Args:
        name: as `gpssm datasets` lists them, a key of `SOURCES`.

    Returns:
        The parts as published comparisons cut them: `train`, and `tests`, of which `test` is the first.

    >>> data = benchmark("gas_furnace")  # doctest: +SKIP
    >>> len(data.train.outputs), len(data.test.series.outputs), data.test.run_in  # doctest: +SKIP
    (148, 148, 0)
    """
    source = _source(name)
    recordings = [_read(source, original) for original in source.originals]
    train = recordings[source.learn.original].rows(slice(source.learn.start, source.learn.stop))
    tests = (
        Unseen(rows.name, recordings[rows.original].rows(slice(rows.start, rows.stop)), rows.run_in)
        for rows in source.tests
    )
    return Benchmark(name, train, tuple(tests))


def where(name: str) -> Path | None:
    """The file that `load` of that `name` would read without a download; None unless all of its files are here, intact.

    >>> path = where("gas_furnace")
    >>> path is None or path.is_file()
    True
    """
    found = [(original, _file(original)) for original in _source(name).originals]
    intact = all(path is not None and _is_published(original, path.read_bytes()) for original, path in found)
    return found[0][1] if intact else None


def _read(source: Source, original: Original) -> Series:
    directory = _own_directory()
    path = _download(source, original) if directory is None else _own_file(original, directory)
    data = path.read_bytes()
    if not _is_published(original, data):
        raise InvalidInput(
            f"{VARIABLE}: {str(path)!r} differs from the published data (checksum); "
            f"get the original from {original.url}, or unset {VARIABLE} to download it."
        )
    table, width = _columns(original, path.suffix.lower(), data), len(source.input_names)
    return Series(table[:, width:], table[:, :width], None, source.output_names, source.input_names)


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise InvalidInput(f"name: there is no data set {name!r}; expected one of {', '.join(SOURCES)}.")
    return SOURCES[name]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_published(original: Original, data: bytes) -> bool:
    return _digest(data) in (original.sha256, original.csv_sha256)


def _own_directory() -> Path | None:
    value = os.environ.get(VARIABLE)
    return Path(value).expanduser() if value else None


def _own_file(original: Original, directory: Path) -> Path:
    if path := _file(original):
        return path
    names = " or ".join(dict.fromkeys((f"{original.copy}.csv", original.file)))
    place = f"no {names} in {str(directory)!r}" if directory.is_dir() else f"no directory {str(directory)!r}"
    raise FileNotFoundError(
        f"{VARIABLE}: there is {place}; get {original.file} from {original.url}, or unset {VARIABLE} to download it."
    )


def _file(original: Original) -> Path | None:
    """The file on this machine with a recording: in the user's own directory, the csv copy first, or in the cache."""
    if (directory := _own_directory()) is not None:
        candidates = [directory / f"{original.copy}.csv", directory / original.file]
    else:
        candidates = [_cache(pooch) / original.file] if (pooch := _pooch()) else []
    return next((path for path in candidates if path.is_file()), None)


def _cache(pooch: ModuleType) -> Path:
    return Path(pooch.os_cache("gpssm"))


def _pooch() -> ModuleType | None:
    try:
        return importlib.import_module("pooch")
    except ImportError:
        return None


def _download(source: Source, original: Original) -> Path:
    """The original in the cache: verified, or refused and removed."""
    by_hand = f"get {original.file} from {original.url} and set {VARIABLE} to its directory"
    pooch = _pooch()
    if pooch is None:
        raise InvalidInput(
            f"name: downloading {source.name!r} needs pooch; run pip install 'gpssm[data]', or {by_hand}."
        )
    cache, cached = _cache(pooch), _file(original)
    # Removed first, so that a damaged file does not stay behind when there is no network either.
    if cached is not None and not _is_published(original, cached.read_bytes()):
        cached.unlink(missing_ok=True)
    try:
        return Path(pooch.retrieve(original.url, known_hash=original.sha256, fname=original.file, path=cache))
    except OSError as error:  # every failure of the network is one
        raise OSError(
            f"name: {source.name!r} could not be downloaded to {str(cache)!r} ({_reason(error)}); {by_hand}."
        ) from error
    except ValueError as error:  # pooch has removed what it had fetched
        raise InvalidInput(
            f"name: the file from {original.url} differs from the published data (checksum) and was removed; try again."
        ) from error


def _reason(error: OSError) -> str:
    """A few words: the messages of the network's layers are nested paragraphs."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"the server answered {status}" if status else error.strerror or type(error).__name__


def _columns(original: Original, suffix: str, data: bytes) -> NDArray:
    """Inputs and outputs (T, dc + dy) of a file with the content `data`."""
    if _digest(data) == original.csv_sha256:
        return np.loadtxt(io.BytesIO(data), delimiter=",", skiprows=1)
    if suffix == ".mat":
        content = importlib.import_module("scipy.io").loadmat(io.BytesIO(data), variable_names=original.channels)
        return np.hstack([_upright(content[str(name)]) for name in original.channels])
    # Every .csv has one line of names. Only the columns that are asked for are read: others may be empty.
    csv, columns = suffix == ".csv", [int(column) for column in original.channels]
    return np.loadtxt(io.BytesIO(data), delimiter="," if csv else None, skiprows=1 if csv else 0, usecols=columns)


def _upright(variable: NDArray) -> NDArray:
    """Samples in rows (T, d): some files have them in columns."""
    values = np.asarray(variable, dtype=float)
    return values.T if values.shape[0] < values.shape[1] else values
