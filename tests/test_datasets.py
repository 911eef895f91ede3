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

from gpssm.datasets import SOURCES, Series, benchmark, kink, load, registry, where
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


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def change(monkeypatch: pytest.MonkeyPatch, name: str, **fields: object) -> None:
    """Other fields for every original of a data set."""
    source = SOURCES[name]
    originals = tuple(original._replace(**fields) for original in source.originals)
    monkeypatch.setitem(registry.SOURCES, name, source._replace(originals=originals))


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
        change(monkeypatch, name, sha256=sha256(content))
    return tmp_path / "caches" / "gpssm"


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as running:
        for name in SOURCES:
            change(monkeypatch, name, folder=f"http://127.0.0.1:{running.server_port}/data/")
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
    assert sha256(text.encode()) == SOURCES[name].originals[0].csv_sha256


# name -> samples to learn from; those of every test part, with its run-in; inputs and outputs.
SPLITS = {
    "actuator": (512, {"test": (512, 0)}, (1, 1)),
    "ballbeam": (500, {"test": (500, 0)}, (1, 1)),
    "drive": (250, {"test": (250, 0)}, (1, 1)),
    "dryer": (500, {"test": (500, 0)}, (1, 1)),
    "gas_furnace": (148, {"test": (148, 0)}, (1, 1)),
    "cascaded_tanks": (1024, {"test": (1024, 50)}, (1, 1)),
    "coupled_drives_1": (400, {"test": (100, 0)}, (1, 1)),
    "coupled_drives_2": (400, {"test": (100, 0)}, (1, 1)),
    "heating": (400, {"test": (401, 0)}, (1, 1)),
    "robot_arm": (512, {"test": (512, 0)}, (1, 1)),
    "flutter": (512, {"test": (512, 0)}, (1, 1)),
    "thermic_wall": (840, {"test": (840, 0)}, (2, 1)),
    "exchanger": (2000, {"test": (1000, 0)}, (1, 1)),
    "tank": (1250, {"test": (1250, 0)}, (1, 2)),
    "winding": (1250, {"test": (1250, 0)}, (5, 2)),
    "glass_furnace": (623, {"test": (624, 0)}, (3, 6)),
    "silverbox": (65062, {"multisine": (21688, 0), "arrow": (40475, 50)}, (1, 1)),
    "wiener_hammerstein": (100000, {"test": (78800, 0)}, (1, 1)),
    "emps": (24841, {"test": (24841, 50)}, (1, 1)),
}


@needs_published
@pytest.mark.parametrize("name", SPLITS)
def test_every_recording_knows_its_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPSSM_DATA", str(PUBLISHED))
    learn, tests, (inputs, outputs) = SPLITS[name]
    found, source, whole = benchmark(name), SOURCES[name], load(name)
    assert found.name == name and len(found.train.outputs) == source.learn.length == learn
    assert {test.name: (len(test.series.outputs), test.run_in) for test in found.tests} == tests
    assert found.test is found.tests[0]
    for part in (whole, found.train, *(test.series for test in found.tests)):
        assert part.inputs is not None and part.inputs.dtype == part.outputs.dtype == np.float64
        assert part.inputs.shape[1] == inputs == len(part.input_names) == len(set(part.input_names))
        assert part.outputs.shape[1] == outputs == len(part.output_names) == len(set(part.output_names))
        assert np.isfinite(part.inputs).all() and np.isfinite(part.outputs).all()
    assert len(whole.outputs) == source.length
    # Where there is no run-in, the test part begins where learning ends.
    if not found.test.run_in:
        cut = source.learn.start + learn
        np.testing.assert_array_equal(found.test.series.outputs[0], whole.outputs[cut])
        np.testing.assert_array_equal(found.train.outputs[-1], whole.outputs[cut - 1])
    # What the copies hold, read by another reader.
    for original, rows in zip(source.originals, (source.learn, source.tests[0]), strict=False):
        table = np.genfromtxt(PUBLISHED / f"{original.copy}.csv", delimiter=",", names=True)
        names = table.dtype.names or ()
        part = found.train if rows is source.learn else found.test.series
        assert len(table) == original.length and len(names) == inputs + outputs
        for j, column in enumerate(names):
            assert column[0] == ("u" if j < inputs else "y")
            assert part.inputs is not None
            channel = part.inputs[:, j] if j < inputs else part.outputs[:, j - inputs]
            np.testing.assert_array_equal(channel, table[column][rows.start : rows.stop])


@needs_published
def test_the_checksums_are_those_of_the_copies() -> None:
    listed = dict(line.split()[::-1] for line in (PUBLISHED / "SHA256SUMS").read_text().splitlines())
    ours = {f"{o.copy}.csv": o.csv_sha256 for source in SOURCES.values() for o in source.originals}
    assert ours == listed
    told = (PUBLISHED / "README.md").read_text()
    for source in SOURCES.values():
        for original in source.originals:
            owner, repository, commit, *path = original.url.removeprefix("https://raw.githubusercontent.com/").split(
                "/"
            )
            assert f"{owner}/{repository}" in told and commit in told and original.sha256 in told
            assert path[-1] == original.file


# Each original in its own format: what stands in it, and the inputs and outputs of its first two samples.
ORIGINALS = {
    "tank": (mat(u=[[1.0], [2.0], [9.0]], y=[[3.0, 4.0, 9.0], [5.0, 6.0, 9.0]]), [[1], [2]], [[3, 5], [4, 6]]),
    "coupled_drives_2": (mat(u11=[[7.0]] * 3, u12=[[1.0], [2.0], [9.0]], z12=[3.0, 4.0, 9.0]), [[1], [2]], [[3], [4]]),
    "heating": (b"   0.00   9.000  129.320\r\n   2.00   8.000  129.330\r\n", [[9], [8]], [[129.32], [129.33]]),
    "thermic_wall": (b" 1.5e+01\t 1.9e+01\t 3.5e-01\t\n 1.6e+01\t 1.8e+01\t 2.5e-01\t\n", [[15, 19], [16, 18]],
                     [[0.35], [0.25]]),
    "winding": (b" 1e+000 2 3 4 5 6 7\n" * 2, [[1, 2, 3, 4, 5]] * 2, [[6, 7]] * 2),
    "glass_furnace": (b"1 2 3 4 5 6 7 8 9 10\n" * 2, [[2, 3, 4]] * 2, [[5, 6, 7, 8, 9, 10]] * 2),
    "silverbox": (b'"V1","V2",\n0.005,0.009,\n0.006,0.012,\n', [[0.005], [0.006]], [[0.009], [0.012]]),
    "emps": (mat(t=[[0.0], [1.0]], vir=[[1.0], [2.0]], qm=[[3.0], [4.0]]), [[1], [2]], [[3], [4]]),
}  # fmt: skip


@pytest.mark.parametrize("name", ORIGINALS)
def test_originals(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, inputs, outputs = ORIGINALS[name]
    change(monkeypatch, name, sha256=sha256(content))
    (tmp_path / SOURCES[name].originals[0].file).write_bytes(content)
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path))
    data = load(name)
    assert data.inputs is not None
    np.testing.assert_array_equal(data.inputs[:2], np.array(inputs, float))
    np.testing.assert_array_equal(data.outputs[:2], np.array(outputs, float))


def test_two_recordings_of_one_file_are_downloaded_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    content = mat(uEst=[[1.0], [2.0]], yEst=[[3.0], [4.0]], uVal=[[5.0], [6.0]], yVal=[[7.0], [8.0]])
    change(monkeypatch, "cascaded_tanks", sha256=sha256(content))
    server.files["dataBenchmark.mat"] = content
    found = benchmark("cascaded_tanks")
    np.testing.assert_array_equal(found.train.outputs, [[3.0], [4.0]])
    np.testing.assert_array_equal(found.test.series.outputs, [[7.0], [8.0]])
    np.testing.assert_array_equal(load("cascaded_tanks").outputs, found.train.outputs)
    assert server.requests == ["dataBenchmark.mat"]


@needs_published
def test_a_damaged_test_recording_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "test"):
        copy = (PUBLISHED / f"cascaded_tanks_{part}.csv").read_bytes()
        (tmp_path / f"cascaded_tanks_{part}.csv").write_bytes(copy if part == "train" else copy[:-1])
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path))
    assert len(load("cascaded_tanks").outputs) == 1024  # which does not need it
    assert where("cascaded_tanks") is None
    with pytest.raises(InvalidInput, match=r"cascaded_tanks_test\.csv' differs from the published data"):
        benchmark("cascaded_tanks")


def test_every_source_says_where_it_comes_from() -> None:
    assert list(SOURCES) == list(SPLITS)
    originals = [original for source in SOURCES.values() for original in source.originals]
    assert len(originals) == len({original.csv_sha256 for original in originals}) == 21
    assert len({original.sha256 for original in originals}) == 19  # two pairs share a file
    assert all(len(digest) == 64 for original in originals for digest in (original.sha256, original.csv_sha256))
    assert all(source.citation and source.description for source in SOURCES.values())
    assert SOURCES["drive"].url == (
        "https://raw.githubusercontent.com/zhenwendai/RGP/be679607d3457a1038a2fe39b36b816ea380ea39/"
        "datasets/system_identification/drive.mat"
    )


@pytest.mark.parametrize("name", ["nonsense", "Drive", "../drive", ""])
def test_unknown_name(name: str) -> None:
    expected = f"name: there is no data set {name!r}; expected one of {', '.join(SPLITS)}."
    for function in (load, benchmark, where):
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
    assert server.requests == ["drive.mat"] and SOURCES["drive"].url in one_sentence(caught.value)
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
    change(monkeypatch, "drive", folder=address)
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
    change(monkeypatch, "drive", csv_sha256=sha256(copy))
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
        [sys.executable, "-m", "gpssm", "datasets", *arguments],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"GPSSM_DATA": str(data)},
    )  # fmt: skip


def test_command_lists_what_there_is(tmp_path: Path) -> None:
    result = command("--json", data=tmp_path)
    assert result.returncode == 0 and result.stderr == ""
    listed = json.loads(result.stdout)
    assert set(listed) == {"datasets"}
    assert [(d["name"], d["learn"], {t["name"]: (t["length"], t["run_in"]) for t in d["tests"]})
            for d in listed["datasets"]] == [(name, *SPLITS[name][:2]) for name in SPLITS]  # fmt: skip
    assert {d["local"] for d in listed["datasets"]} == {None}
    drive = listed["datasets"][2]
    assert set(drive) == {
        "name", "length", "inputs", "outputs", "interval", "learn", "tests", "description", "source", "local",
    }  # fmt: skip
    assert (drive["length"], drive["interval"]) == (500, 0.02)
    assert drive["inputs"] == ["motor voltage"] and drive["outputs"] == ["pulley speed"]
    assert drive["description"] == "coupled electric drives: motor voltage -> pulley speed, every 0.02 s"
    table = command(data=tmp_path)
    assert table.returncode == 0 and table.stderr == ""
    assert "gas rate -> CO2, every 9 s" in table.stdout and all(name in table.stdout for name in SPLITS)


@needs_published
def test_command_says_where_the_files_are(tmp_path: Path) -> None:
    (tmp_path / "dryer.csv").write_bytes((PUBLISHED / "dryer.csv").read_bytes())
    (tmp_path / "drive.csv").write_text("u,y\n1.0,2.0\n")  # not the published one
    local = {d["name"]: d["local"] for d in json.loads(command("--json", data=tmp_path).stdout)["datasets"]}
    assert local == dict.fromkeys(SOURCES) | {"dryer": str(tmp_path / "dryer.csv")}
