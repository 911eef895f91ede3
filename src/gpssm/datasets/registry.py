"""Published recordings: downloaded on first use, or read from the directory that GPSSM_DATA names.

The five system-identification series of the paper's Table II, one input and one output each, nothing
resampled, scaled or cut. A file whose checksum differs from the published one is never used.
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
from gpssm.errors import InvalidInput

NDArray = np.ndarray
VARIABLE = "GPSSM_DATA"

# The repository has a BSD-3-Clause licence; the data have no separate one.
BASE_URL = (
    "https://raw.githubusercontent.com/zhenwendai/RGP/be679607d3457a1038a2fe39b36b816ea380ea39"
    "/datasets/system_identification/"
)


class Source(NamedTuple):
    """A data set: what it is, who published it, and the checksums of its file.

    `csv_sha256` belongs to a copy `<name>.csv` with the columns u (input) and y (output) and the same values.
    """

    name: str
    length: int
    description: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    interval: float | None  # seconds between samples, where it is known
    file: str
    sha256: str
    csv_sha256: str
    citation: str
    variables: tuple[str, ...] = ()  # input and output in a .mat file; other formats have two columns

    @property
    def url(self) -> str:
        return BASE_URL + self.file


SOURCES = {
    source.name: source
    for source in (
        Source(
            name="actuator",
            length=1024,
            description="hydraulic actuator of a crane",
            input_names=("valve opening",),
            output_names=("oil pressure",),
            interval=None,
            file="actuator.mat",
            sha256="35d1f95176afd856eb4fe0e2f87e3dff39657db8e6fcf7c531078c8f4eb571e4",
            csv_sha256="2ba2bc1a1febda3ef7f93da2d014d6da1c70d9d252c890dc2671e3d8cf54af6a",
            citation="Sjöberg et al., Nonlinear black-box modeling in system identification, Automatica 31(12), 1995",
            variables=("u", "p"),
        ),
        Source(
            name="ballbeam",
            length=1000,
            description="ball on a beam",
            input_names=("beam angle",),
            output_names=("ball position",),
            interval=0.1,
            file="ballbeam.dat",
            sha256="e9c48a4f7474953969d4950b4ef72558084b1995f776792ac0cbc80550e6ff42",
            csv_sha256="07c1ba1f2facdf8045a49d368a99f01e3ff261b12acb1fe3c934917bc2753170",
            citation="DaISy: database for the identification of systems, KU Leuven, 96-004",
        ),
        Source(
            name="drive",
            length=500,
            description="coupled electric drives",
            input_names=("motor voltage",),
            output_names=("pulley speed",),
            interval=0.02,
            file="drive.mat",
            sha256="47d0825678d854d8a1bbcfb0ad1188026b853f69beb2067ea00cfd88d13dc4ca",
            csv_sha256="2965f09adba0b12e026a91e9d42aca93c5e9b0e5282cf5553159614eda161fb6",
            citation="Wigren and Schoukens, Coupled electric drives data set, Uppsala University, 2017",
            variables=("u1", "z1"),
        ),
        Source(
            name="dryer",
            length=1000,
            description="hair dryer",
            input_names=("heater voltage",),
            output_names=("air temperature",),
            interval=0.08,
            file="dryer.dat",
            sha256="adcb2f5a1d9e174d08dd49f7f037626745b5e69cbda0bc1e8dca2a7c687d4538",
            csv_sha256="2db3cf8e7af01a539b0046e9c1f7c26a72c5ffd3fcd8e5dac142116efdc3b465",
            citation="DaISy: database for the identification of systems, KU Leuven, 96-006",
        ),
        Source(
            name="gas_furnace",
            length=296,
            description="gas furnace",
            input_names=("gas rate",),
            output_names=("CO2",),
            interval=9.0,
            file="gas_furnace.csv",
            sha256="ce46e11490a11ac254a959d42d5858f66b3c8013a1b667e553b3d890c67e4d43",
            csv_sha256="18879bb98f59a14ce513211d092f3275bfcc960f5c9be95bd104f0cc62884159",
            citation="Box and Jenkins, Time Series Analysis: Forecasting and Control, 1970, series J",
        ),
    )
}


def load(name: str) -> Series:
    """A published recording by name: actuator, ballbeam, drive, dryer or gas_furnace.

    Read from the directory that the environment variable GPSSM_DATA names; without it, downloaded once and cached.
    """
    source = _source(name)
    directory = _own_directory()
    path = _download(source) if directory is None else _own_file(source, directory)
    data = path.read_bytes()
    if not _is_published(source, data):
        raise InvalidInput(
            f"{VARIABLE}: {str(path)!r} differs from the published data (checksum); "
            f"get the original from {source.url}, or unset {VARIABLE} to download it."
        )
    u, y = _columns(source, path.suffix, data)
    return Series(y[:, None], u[:, None], None, source.output_names, source.input_names)


def where(name: str) -> Path | None:
    """The file that `load(name)` would read without a download, if there is one and it is intact."""
    source = _source(name)
    directory = _own_directory()
    if directory is None:
        pooch = _pooch()
        candidates = [] if pooch is None else [Path(pooch.os_cache("gpssm")) / source.file]
    else:
        candidates = _own_candidates(source, directory)
    path = next((path for path in candidates if path.is_file()), None)
    return path if path is not None and _is_published(source, path.read_bytes()) else None


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise InvalidInput(f"name: there is no data set {name!r}; expected one of {', '.join(SOURCES)}.")
    return SOURCES[name]


def _is_published(source: Source, data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() in (source.sha256, source.csv_sha256)


def _own_directory() -> Path | None:
    value = os.environ.get(VARIABLE)
    return Path(value).expanduser() if value else None


def _own_candidates(source: Source, directory: Path) -> list[Path]:
    return [directory / f"{source.name}.csv", directory / source.file]


def _own_file(source: Source, directory: Path) -> Path:
    candidates = _own_candidates(source, directory)
    for path in candidates:
        if path.is_file():
            return path
    expected = " or ".join(dict.fromkeys(path.name for path in candidates))
    place = f"no {expected} in {str(directory)!r}" if directory.is_dir() else f"no directory {str(directory)!r}"
    raise FileNotFoundError(
        f"{VARIABLE}: there is {place}; get {source.file} from {source.url}, or unset {VARIABLE} to download it."
    )


def _pooch() -> ModuleType | None:
    try:
        return importlib.import_module("pooch")
    except ImportError:
        return None


def _download(source: Source) -> Path:
    """The original in the cache: verified, or refused and removed."""
    by_hand = f"get {source.file} from {source.url} and set {VARIABLE} to its directory"
    pooch = _pooch()
    if pooch is None:
        raise InvalidInput(
            f"name: downloading {source.name!r} needs pooch; run pip install 'gpssm[data]', or {by_hand}."
        )
    cache = Path(pooch.os_cache("gpssm"))
    path = cache / source.file
    # Removed first, so that a damaged file does not stay behind when there is no network either.
    if path.is_file() and not _is_published(source, path.read_bytes()):
        path.unlink(missing_ok=True)
    try:
        return Path(pooch.retrieve(source.url, known_hash=source.sha256, fname=source.file, path=cache))
    except OSError as error:  # every failure of the network is one
        raise OSError(
            f"name: {source.name!r} could not be downloaded to {str(cache)!r} ({_reason(error)}); {by_hand}."
        ) from error
    except ValueError as error:  # pooch has removed what it had fetched
        raise InvalidInput(
            f"name: what came from {source.url} differs from the published data (checksum) and was removed; try again."
        ) from error


def _reason(error: OSError) -> str:
    """A few words: the messages of the network's layers are nested paragraphs."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"the server answered {status}" if status else error.strerror or type(error).__name__


def _columns(source: Source, suffix: str, data: bytes) -> tuple[NDArray, NDArray]:
    """Input and output (T,), from the original or from the copy: every .csv has one line of names."""
    if suffix == ".mat":
        content = importlib.import_module("scipy.io").loadmat(io.BytesIO(data))
        u, y = (np.asarray(content[name], dtype=float).ravel() for name in source.variables)
        return u, y
    csv = suffix == ".csv"
    table = np.loadtxt(io.BytesIO(data), delimiter="," if csv else None, skiprows=1 if csv else 0)
    return table[:, 0], table[:, 1]
