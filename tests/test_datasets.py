"""Published recordings: the right values, and nothing that is damaged, half-written or somebody else's."""

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest
import scipy.io

from gpssm.datasets import SOURCES, Series, kink, load, registry, where
from gpssm.errors import InvalidInput

PUBLISHED = Path(__file__).parents[1].parent / "shared" / "data"
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published data are not part of the project")


def mat(**variables: object) -> bytes:
    stream = io.BytesIO()
    scipy.io.savemat(stream, variables)
    return stream.getvalue()


# As in the original: whole numbers for the input, columns, and variables of other experiments.
DRIVE = mat(u1=np.array([[1], [-1], [1]], dtype=np.int16), z1=np.array([[0.1], [0.25], [-3.0]]), u2=np.zeros((7, 1)))
DRYER = b"   6.4100000e+00\t   4.7660989e+00\t\n   3.4100000e+00\t   4.7636589e+00\t\n"
FURNACE = b"InputGasRate,CO2\n-0.109,53.8\n 0.000,53.6\n"


class Server(ThreadingHTTPServer):
    """Serves `files`, promises `missing` bytes more than it sends, and counts."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"drive.mat": DRIVE, "dryer.dat": DRYER, "gas_furnace.csv": FURNACE}
        self.missing = 0
        self.requests: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.removeprefix("/data/")
        self.server.requests.append(name)
        if name not in self.server.files:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.files[name]) + self.server.missing))
        self.end_headers()
        self.wfile.write(self.server.files[name])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the user's, and data sets of a few rows in place of the published ones."""
    monkeypatch.delenv("GPSSM_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "caches" / project)
    for name, content in (("drive", DRIVE), ("dryer", DRYER), ("gas_furnace", FURNACE)):
        small = SOURCES[name]._replace(sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(registry.SOURCES, name, small)
    return tmp_path / "caches" / "gpssm"


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as running:
        monkeypatch.setattr(registry, "BASE_URL", f"http://127.0.0.1:{running.server_port}/data/")
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def one_sentence(error: BaseException) -> str:
    message = str(error)
    assert "\n" not in message and message.endswith(".")
    return message


def check_drive(data: Series) -> None:
    np.testing.assert_array_equal(data.outputs, np.array([[0.1], [0.25], [-3.0]]), strict=True)
    np.testing.assert_array_equal(data.inputs, np.array([[1.0], [-1.0], [1.0]]), strict=True)
    assert data.states is None and data.input_names == ("motor voltage",) and data.output_names == ("pulley speed",)


@needs_published
@pytest.mark.parametrize(
    ("name", "length", "first", "last"),
    [
        ("actuator", 1024, (-0.0068164, -0.00026240399999988284), (0.811055, -2.9190443000000004)),
        ("ballbeam", 1000, (-0.001963499, -0.004885198), (-0.01865322, -0.006106497)),
        ("drive", 500, (1.0, 0.03174603174603163), (-1.0, 1.8778998778998783)),
        ("dryer", 1000, (6.41, 4.7660989), (6.41, 4.6830789)),
        ("gas_furnace", 296, (-0.109, 53.8), (-0.262, 57.0)),
    ],
)
def test_published_series(
    name: str,
    length: int,
    first: tuple[float, float],
    last: tuple[float, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPSSM_DATA", str(PUBLISHED))
    data = load(name)
    assert data.inputs is not None
    assert data.outputs.shape == data.inputs.shape == (length, 1) and SOURCES[name].length == length
    assert data.outputs.dtype == data.inputs.dtype == np.float64
    assert (data.inputs[0, 0], data.outputs[0, 0]) == first
    assert (data.inputs[-1, 0], data.outputs[-1, 0]) == last
    path = PUBLISHED / f"{name}.csv"
    assert where(name) == path
    # The copy holds the shortest decimals that give the same numbers back.
    text = "u,y\n" + "".join(f"{u!r},{y!r}\n" for u, y in np.hstack([data.inputs, data.outputs]).tolist())
    assert hashlib.sha256(text.encode()).hexdigest() == SOURCES[name].csv_sha256


def test_every_source_says_where_it_comes_from() -> None:
    assert list(SOURCES) == ["actuator", "ballbeam", "drive", "dryer", "gas_furnace"]
    digests = [digest for source in SOURCES.values() for digest in (source.sha256, source.csv_sha256)]
    assert len({digest for digest in digests if len(digest) == 64}) == 10
    assert SOURCES["drive"].url == (
        "https://raw.githubusercontent.com/zhenwendai/RGP/be679607d3457a1038a2fe39b36b816ea380ea39/"
        "datasets/system_identification/drive.mat"
    )


@pytest.mark.parametrize("name", ["nonsense", "Drive", "../drive", ""])
def test_unknown_name(name: str) -> None:
    expected = f"name: there is no data set {name!r}; expected one of actuator, ballbeam, drive, dryer, gas_furnace."
    for function in (load, where):
        with pytest.raises(InvalidInput) as caught:
            function(name)
        assert str(caught.value) == expected


def test_download_happens_once(server: Server, cache: Path) -> None:
    assert where("drive") is None and not cache.exists()
    check_drive(load("drive"))
    assert where("drive") == cache / "drive.mat" and files(cache) == ["drive.mat"]
    check_drive(load("drive"))
    assert server.requests == ["drive.mat"]


def test_text_originals(server: Server) -> None:
    dryer, furnace = load("dryer"), load("gas_furnace")
    np.testing.assert_array_equal(dryer.inputs, np.array([[6.41], [3.41]]), strict=True)
    np.testing.assert_array_equal(dryer.outputs, np.array([[4.7660989], [4.7636589]]), strict=True)
    np.testing.assert_array_equal(furnace.inputs, np.array([[-0.109], [0.0]]), strict=True)
    np.testing.assert_array_equal(furnace.outputs, np.array([[53.8], [53.6]]), strict=True)


def test_a_corrupted_download_is_refused_and_removed(server: Server, cache: Path) -> None:
    server.files["drive.mat"] = DRIVE[:-1] + b"!"
    with pytest.raises(InvalidInput, match="differs from the published data") as caught:
        load("drive")
    assert server.requests == ["drive.mat"] and f"{registry.BASE_URL}drive.mat" in one_sentence(caught.value)
    assert files(cache) == [] and where("drive") is None
    server.files["drive.mat"] = DRIVE
    check_drive(load("drive"))
    assert server.requests == ["drive.mat"] * 2


def test_a_download_that_breaks_off_leaves_nothing(server: Server, cache: Path) -> None:
    server.missing = 10
    with pytest.raises(OSError, match="'drive' could not be downloaded") as caught:
        load("drive")
    one_sentence(caught.value)
    assert files(cache) == []
    server.missing = 0
    check_drive(load("drive"))


def test_a_damaged_file_in_the_cache_is_replaced(server: Server, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "drive.mat").write_bytes(DRIVE[:100])
    assert where("drive") is None
    check_drive(load("drive"))
    assert (cache / "drive.mat").read_bytes() == DRIVE and files(cache) == ["drive.mat"]


def test_a_damaged_file_in_the_cache_is_removed_without_a_network_too(server: Server, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "drive.mat").write_bytes(DRIVE[:100])
    del server.files["drive.mat"]
    with pytest.raises(OSError, match="the server answered 404"):
        load("drive")
    assert files(cache) == []


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as stopped:  # its port is free again, and nobody listens
        address = f"http://127.0.0.1:{stopped.server_port}/data/"
    monkeypatch.setattr(registry, "BASE_URL", address)
    with pytest.raises(OSError, match="could not be downloaded") as caught:
        load("drive")
    message = one_sentence(caught.value)
    assert f"get drive.mat from {address}drive.mat and set GPSSM_DATA to its directory" in message
    assert files(cache) == []


def test_without_pooch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InvalidInput, match=r"pip install 'gpssm\[data\]'") as caught:
        load("drive")
    assert "set GPSSM_DATA" in one_sentence(caught.value)
    assert where("drive") is None


def test_own_directory_needs_neither_pooch_nor_network(
    server: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drive.mat").write_bytes(DRIVE)
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pooch", None)
    check_drive(load("drive"))
    assert where("drive") == tmp_path / "drive.mat"
    # The original of this one has the name that a copy would have.
    (tmp_path / "gas_furnace.csv").write_bytes(FURNACE)
    np.testing.assert_array_equal(load("gas_furnace").outputs, [[53.8], [53.6]])
    assert server.requests == [] and not cache.exists()


def test_own_copy_comes_before_the_original(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = b"u,y\n2.0,0.5\n3.0,1.5\n"
    monkeypatch.setitem(
        registry.SOURCES, "drive", registry.SOURCES["drive"]._replace(csv_sha256=hashlib.sha256(copy).hexdigest())
    )
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path))
    (tmp_path / "drive.mat").write_bytes(DRIVE)
    (tmp_path / "drive.csv").write_bytes(copy)
    data = load("drive")
    np.testing.assert_array_equal(data.inputs, [[2.0], [3.0]])
    np.testing.assert_array_equal(data.outputs, [[0.5], [1.5]])
    assert where("drive") == tmp_path / "drive.csv"


@pytest.mark.parametrize(("file", "content"), [("drive.csv", b"u,y\n1.0,2.0\n"), ("drive.mat", DRIVE + b"\0")])
def test_own_file_that_was_modified_is_refused_and_kept(
    file: str, content: bytes, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).write_bytes(content)
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path))
    with pytest.raises(InvalidInput, match="differs from the published data") as caught:
        load("drive")
    message = one_sentence(caught.value)
    assert message.startswith(f"GPSSM_DATA: '{tmp_path / file}' differs") and registry.SOURCES["drive"].url in message
    assert (tmp_path / file).read_bytes() == content
    assert where("drive") is None


def test_own_directory_without_the_file(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path))
    url = registry.SOURCES["drive"].url
    with pytest.raises(FileNotFoundError) as caught:
        load("drive")
    assert one_sentence(caught.value).startswith(
        f"GPSSM_DATA: there is no drive.csv or drive.mat in '{tmp_path}'; get drive.mat from {url}, or"
    )
    with pytest.raises(FileNotFoundError, match=r"there is no gas_furnace\.csv in "):
        load("gas_furnace")
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=f"there is no directory '{tmp_path}/nowhere'"):
        load("drive")
    assert where("drive") is None


def test_an_empty_variable_is_none(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPSSM_DATA", "")
    check_drive(load("drive"))


def test_split() -> None:
    data = kink(length=10, seed=1)._replace(inputs=np.arange(10.0)[:, None], output_names=("y",), input_names=("u",))
    learn, test = data.split(0.35)
    assert data.states is not None and learn.inputs is not None and test.inputs is not None
    np.testing.assert_array_equal(learn.inputs[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(test.inputs[:, 0], [3, 4, 5, 6, 7, 8, 9])
    np.testing.assert_array_equal(learn.outputs, data.outputs[:3])
    np.testing.assert_array_equal(test.outputs, data.outputs[3:])
    assert learn.states is not None and test.states is not None
    np.testing.assert_array_equal(np.vstack([learn.states, test.states]), data.states)
    assert learn.output_names == test.output_names == ("y",) and test.input_names == ("u",)
    bare = Series(np.zeros((4, 1)), None, None).split(0.5)
    assert [(len(part.outputs), part.inputs, part.states) for part in bare] == [(2, None, None)] * 2


@pytest.mark.parametrize("fraction", [0, 1, 0.0, 1.0, -0.5, 1.5, np.nan, "half", None, True])
def test_split_needs_a_fraction(fraction: float) -> None:
    with pytest.raises(InvalidInput, match="fraction: expected a number between 0 and 1"):
        kink(length=10).split(fraction)


@pytest.mark.parametrize(("length", "fraction"), [(10, 0.19), (10, 0.91), (3, 0.5)])
def test_split_leaves_two_rows_on_either_side(length: int, fraction: float) -> None:
    with pytest.raises(InvalidInput, match="expected at least 2 in each"):
        kink(length=length).split(fraction)


def command(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpssm.cli.main", "datasets", *arguments],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"GPSSM_DATA": str(data)},
    )  # fmt: skip


def test_command_lists_what_there_is(tmp_path: Path) -> None:
    result = command("--json", data=tmp_path)
    assert result.returncode == 0 and result.stderr == ""
    listed = json.loads(result.stdout)
    assert set(listed) == {"datasets"}
    assert [(d["name"], d["length"], d["local"]) for d in listed["datasets"]] == [
        ("actuator", 1024, None),
        ("ballbeam", 1000, None),
        ("drive", 500, None),
        ("dryer", 1000, None),
        ("gas_furnace", 296, None),
    ]
    drive = listed["datasets"][2]
    assert set(drive) == {"name", "length", "inputs", "outputs", "description", "source", "local"}
    assert drive["inputs"] == ["motor voltage"] and drive["outputs"] == ["pulley speed"]
    assert drive["description"] == "coupled electric drives: motor voltage -> pulley speed, every 0.02 s"
    table = command(data=tmp_path)
    assert table.returncode == 0 and table.stderr == ""
    assert "motor voltage -> pulley speed, every 0.02 s" in table.stdout and "gas_furnace" in table.stdout


@needs_published
def test_command_says_where_the_files_are(tmp_path: Path) -> None:
    (tmp_path / "dryer.csv").write_bytes((PUBLISHED / "dryer.csv").read_bytes())
    (tmp_path / "drive.csv").write_text("u,y\n1.0,2.0\n")  # not the published one
    local = {d["name"]: d["local"] for d in json.loads(command("--json", data=tmp_path).stdout)["datasets"]}
    assert local == dict.fromkeys(SOURCES) | {"dryer": str(tmp_path / "dryer.csv")}
