"""CSV files as people have them: every file is written out here, and so is what must come of it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpssm
from gpssm.datasets import Series, SeriesList, columns, from_csv, to_csv
from gpssm.errors import InvalidInput

nan = np.nan
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(content: str | bytes, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return file


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found, np.array(expected, dtype=float), strict=True)


def refused(match: str, *arguments: Any, error: type[Exception] = InvalidInput, **keywords: Any) -> str:
    with pytest.raises(error) as caught:
        from_csv(*arguments, **keywords)
    message = str(caught.value)
    assert match in message
    assert "\n" not in message and message.endswith(".")
    return message


def test_columns_by_name_and_the_others_are_ignored(write: Write) -> None:
    path = write("time,u,y 1,y2,note\n2024-01-01 00:00,1,2.5,3e2,ok\n2024-01-01 00:01,-1,.5,+4,\n")
    data = from_csv(path, ["y2", "y 1"], "u")
    assert isinstance(data, Series)
    same(data.outputs, [[300, 2.5], [4, 0.5]])
    same(data.inputs, [[1], [-1]])
    assert data.states is None
    assert data.output_names == ("y2", "y 1") and data.input_names == ("u",)
    assert columns(path) == ["time", "u", "y 1", "y2", "note"]


@pytest.mark.parametrize("wanted", [2, "2", [2], ("2",), np.array([2])])
def test_columns_by_index(write: Write, wanted: Any) -> None:
    same(from_csv(write("a,b,c\n1,2,3\n4,5,6\n"), wanted).outputs, [[3], [6]])
    path = write("1,2,3\n4,5,6\n")
    data = from_csv(path, wanted, [0])
    same(data.outputs, [[3], [6]])
    same(data.inputs, [[1], [4]])
    assert data.output_names == ("2",) and data.input_names == ("0",)
    assert columns(path) == ["0", "1", "2"]


def test_a_name_that_is_a_number_comes_before_an_index(write: Write) -> None:
    path = write("y,2,0\n1,5,7\n2,6,8\n")
    same(from_csv(path, "2", "0").outputs, [[5], [6]])
    same(from_csv(path, "2", "0").inputs, [[7], [8]])
    same(from_csv(path, 0).outputs, [[1], [2]])
    refused("ask for '2' if that is one", path, 1)


def test_without_inputs_there_are_none(write: Write) -> None:
    assert from_csv(write("y,u\n1,2\n3,4\n"), "y").inputs is None


@pytest.mark.parametrize("word", ["", " ", '""', "NaN", "NA", "N/A", "n/a", "null", "None", "-", "?", "#N/A"])
def test_missing_cells_are_nan(write: Write, word: str) -> None:
    data = from_csv(write(f"y,u\n1,2\n{word},3\n4,{word}\n"), "y", "u")
    same(data.outputs, [[1], [nan], [4]])
    same(data.inputs, [[2], [3], [nan]])


def test_a_first_row_of_numbers_and_gaps_is_data(write: Write) -> None:
    same(from_csv(write(",2\n3,NA\n"), [0, 1]).outputs, [[nan, 2], [3, nan]])


def test_a_column_without_a_name_has_its_index(write: Write) -> None:
    path = write(",u,y\n0,1,2\n1,3,4\n")
    assert columns(path) == ["0", "u", "y"]
    same(from_csv(path, "y", "0").inputs, [[0], [1]])


def test_names_that_look_like_gaps_are_names_beside_text(write: Write) -> None:
    path = write("NA,K\n1,2\n3,4\n")
    same(from_csv(path, "NA").outputs, [[1], [3]])
    same(from_csv(path, 0).outputs, [[1], [3]])


def test_blank_lines_are_ignored_and_rows_of_gaps_are_not(write: Write) -> None:
    data = from_csv(write("\n# made by\n# a logger, v1\n\ny,u\n\n1,2\n   \n,\n3,4\n\n\n"), ["y", "u"])
    same(data.outputs, [[1, 2], [nan, nan], [3, 4]])
    same(from_csv(write("y\n1\n\n2\n\n"), "y").outputs, [[1], [2]])
    same(from_csv(write("y\tu\n1\t2\n\t\n3\t4\n"), ["y", "u"]).outputs, [[1, 2], [nan, nan], [3, 4]])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends(write: Write, end: str, last: bool) -> None:
    text = end.join(["y,u", "1,2", "3,4"]) + (end if last else "")
    same(from_csv(write(text.encode()), ["y", "u"]).outputs, [[1, 2], [3, 4]])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_encodings(write: Write, encoding: str) -> None:
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    path = write(mark + "Höhe,u\n1,2\n3,4\n".encode(encoding))
    assert columns(path) == ["Höhe", "u"]
    same(from_csv(path, "Höhe", "u").outputs, [[1], [3]])


@pytest.mark.parametrize(
    "text",
    [
        "t;y;u\n0;1,5;-2\n1;,25;3,5e1\n",
        "t\ty\tu\n0\t1,5\t-2\n1\t,25\t3,5e1\n",
        "t;y;u\n0;1.5;-2\n1;.25;3.5e1\n",
        "t,y,u\n0,1.5,-2\n1,.25,3.5e1\n",
        '"t";"y";"u"\n"0";"1,5";"-2"\n"1";",25";"3,5e1"\n',
        't, "y", "u"\n0, "1.5", -2\n1, .25, 3.5e1\n',
    ],
)
def test_separators_and_decimal_commas(write: Write, text: str) -> None:
    data = from_csv(write(text), "y", "u")
    same(data.outputs, [[1.5], [0.25]])
    same(data.inputs, [[-2], [35]])


def test_decimal_commas_without_names(write: Write) -> None:
    same(from_csv(write("1,5;2,5\n3,5;4,5\n"), [0, 1]).outputs, [[1.5, 2.5], [3.5, 4.5]])


def test_separators_within_quotes_do_not_separate(write: Write) -> None:
    path = write('"force, in N",y,"a ""note"""\n1,2,"x\ny, z"\n3,4,\n5,six,\n')
    assert columns(path) == ["force, in N", "y", 'a "note"']
    same(from_csv(path, "force, in N").outputs, [[1], [3], [5]])
    refused("line 5, column 'y': 'six' is not a number", path, "y")  # a quoted cell takes two lines


def test_thousands_are_not_guessed(write: Write) -> None:
    refused("line 3, column 'y': '1,234' is not a number", write("y;u\n0.5;1\n1,234;2\n"), "y")
    refused("line 2, column 'y': '1.234,5' is not a number", write("y;u\n1.234,5;1\n"), "y")


@pytest.mark.parametrize("cell", ["abc", "1_000", "5%", "0x10", "1 000", "2024-01-01", "1:30"])
def test_text_in_a_column_that_is_used(write: Write, cell: str) -> None:
    path = write(f"# comment\ny,u\n1,2\n\n{cell},3\n")
    refused(f"data.csv' line 5, column 'y': '{cell}' is not a number", path, "y")
    same(from_csv(path, "u").outputs, [[2], [3]])


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e400"])
def test_infinite_values(write: Write, cell: str) -> None:
    refused(f"line 3, column '1': '{cell}' is infinite", write(f"1,2\n3,4\n5,{cell}\n"), 1)


def test_numbers_keep_every_digit(write: Write) -> None:
    data = from_csv(write("y\n0.1\n-0.00026240399999988284\n1.7976931348623157e308\n5e-324\n"), "y")
    same(data.outputs, [[0.1], [-0.00026240399999988284], [1.7976931348623157e308], [5e-324]])


def test_a_single_row_is_read(write: Write) -> None:
    same(from_csv(write("y,u\n1,2"), "y", "u").outputs, [[1]])
    same(from_csv(write("1,2"), 1).outputs, [[2]])


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "\ufeff", "  \n"])
def test_an_empty_file(write: Write, text: str) -> None:
    refused("data.csv' is empty; expected rows", write(text), "y")


def test_names_without_rows(write: Write) -> None:
    path = write("y,u\n")
    refused("data.csv' has column names and no rows", path, "y")
    assert columns(path) == ["y", "u"]


@pytest.mark.parametrize(
    ("text", "line", "cells"),
    [
        ("y,u\n1,2\n3\n", 3, 1),
        ("y,u\n1,2\n\n3,4,5\n", 4, 3),
        ("y;u\n1,5;2\n3;4;5\n", 3, 3),
        ("y,u\n1,2,\n3,4,\n", 2, 3),
    ],
)
def test_rows_of_different_lengths(write: Write, text: str, line: int, cells: int) -> None:
    refused(f"line {line} has {cells} cell(s), line 1 has 2", write(text), "y")


def test_a_quote_that_is_never_closed_does_not_swallow_the_rest(write: Write) -> None:
    refused("line 3 cannot be read as CSV", write('y,u,note\n1,2,a\n3,4,"b\n5,6,c\n7,8,d\n'), "y")


@pytest.mark.parametrize("wanted", ["x", "Y", 2, "2", -1, "-1", ""])
def test_no_such_column_lists_those_there_are(write: Write, wanted: Any) -> None:
    refused(f"outputs: no column {wanted!r} in ", write("u,y\n1,2\n"), wanted)
    message = refused("inputs: no column", write("u,y\n1,2\n"), "u", wanted)
    assert message.endswith("it has 'u', 'y'.")


def test_many_columns_are_not_all_listed(write: Write) -> None:
    names = [f"c{i}" for i in range(300)]
    message = refused("no column 'y'", write(",".join(names) + "\n" + ",".join("1" * 300)), "y")
    assert "'c19', ..." in message and "'c20'" not in message


@pytest.mark.parametrize("wanted", [None, 1.5, True, [None], [True], [["y"]], {"y"}])
def test_what_cannot_be_a_column(write: Write, wanted: Any) -> None:
    refused("outputs: expected", write("u,y\n1,2\n"), wanted)


def test_columns_are_used_once(write: Write) -> None:
    path = write("u,y,u,k\n1,2,3,a\n4,5,6,a\n")
    refused("outputs: no column; expected at least one", path, [])
    refused("outputs: column 'y' is already in outputs", path, ["y", "y"])
    refused("inputs: column 'y' is already in outputs", path, "y", 1)
    refused("id: column 'y' is already in outputs", path, "y", id="y")
    refused("has 2 columns 'u', 0, 2; give the index", path, "u")
    same(from_csv(path, "y", 2).inputs, [[3], [6]])


def test_a_first_sample_is_not_lost_as_names(write: Write) -> None:
    """Text in the first row makes it names; a number in a column asked for by index says that it is not."""
    path = write("2024-01-01,1.5,2\n2024-01-02,2.5,3\n")
    message = refused("outputs: the first row of", path, 1)
    assert "column 1 of it is 1.5; add a row of names, or ask for '1.5' if that is one" in message


def test_several_recordings_by_id(write: Write) -> None:
    path = write("run,y,u\nb,1,10\na,2,20\nb,3,30\n a ,4,40\nb,5,50\n")
    data = from_csv(path, "y", "u", id="run")
    assert isinstance(data, SeriesList)
    assert data.ids == ("b", "a") and data.output_names == ("y",) and data.input_names == ("u",)
    same(data.outputs[0], [[1], [3], [5]])
    same(data.outputs[1], [[2], [4]])
    assert data.inputs is not None and len(data.outputs) == len(data.inputs) == 2
    same(data.inputs[0], [[10], [30], [50]])
    same(data.inputs[1], [[20], [40]])
    assert from_csv(path, "y", id="run").inputs is None
    assert from_csv(write("7,1\n7,2\n8,3\n", "numbers.csv"), 1, id=0).ids == ("7", "8")
    refused("id: no column 'lap'", path, "y", id="lap")
    refused("line 3, column 'run' is empty; expected the id", write("run,y\na,1\n,2\n"), "y", id="run")


def test_several_files(write: Write) -> None:
    a, b = write("y,u\n1,2\n3,4\n", "a.csv"), write("\ufeffy;u\n5,5;6\n", "b.csv")
    data = from_csv([a, str(b)], "y", "u")
    assert data.ids == (str(a), str(b))
    same(data.outputs[0], [[1], [3]])
    same(data.outputs[1], [[5.5]])
    assert data.inputs is not None
    same(data.inputs[1], [[6]])
    single = from_csv((a,), "y")
    assert isinstance(single, SeriesList) and len(single.outputs) == 1 and single.inputs is None


def test_several_files_with_ids(write: Write) -> None:
    a, b = write("k,y\n1,10\n2,20\n1,30\n", "a.csv"), write("k,y\n1,40\n", "b.csv")
    data = from_csv([a, b], "y", id="k")
    assert data.ids == (f"{a}:1", f"{a}:2", f"{b}:1")
    for found, expected in zip(data.outputs, [[[10], [30]], [[20]], [[40]]], strict=True):
        same(found, expected)


def test_files_that_do_not_match(write: Write) -> None:
    a = write("y,u\n1,2\n", "a.csv")
    message = refused("expected the same in every file", [a, write("y,v\n1,2\n", "b.csv")], "y")
    assert "b.csv' has the columns 'y', 'v', but " in message and "a.csv' has 'y', 'u'" in message
    refused("b.csv' has the columns '0', '1'", [a, write("1,2\n", "b.csv")], "y")
    refused("c.csv' has column names and no rows", [a, write("y,u\n", "c.csv")], "y")
    refused("d.csv' line 2, column 'y': 'x' is not a number", [a, write("y,u\nx,1\n", "d.csv")], "y")


@pytest.mark.parametrize("path", [[], None, 3, [None], b"data.csv"])
def test_what_cannot_be_a_path(path: Any) -> None:
    refused("path: expected a file or a list of files", path, "y")


def test_files_that_are_not_there(tmp_path: Path, write: Write) -> None:
    refused(f"path: there is no file '{tmp_path}/no.csv'", tmp_path / "no.csv", "y", error=FileNotFoundError)
    refused("there is no file", [write("y\n1\n"), tmp_path / "no.csv"], "y", error=FileNotFoundError)
    refused("is a directory; expected a CSV file", tmp_path, "y", error=IsADirectoryError)


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"PK\x03\x04\x14\0",
        b"\x1f\x8b\x08\0abc",
        "y,u\n1,2\n".encode("utf-16-le"),
        b"\xff\xfe\0",
    ],
)
def test_files_that_are_not_text(write: Write, content: bytes) -> None:
    refused("data.csv' is not a text file; expected CSV", write(content), "y")


def test_written_files_come_back_to_the_last_digit(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    values = np.array([0.1, nan, -1 / 3, 1e300])
    to_csv(path, {"a, b": values, "n": np.arange(4)})
    assert path.read_text() == '"a, b",n\n0.1,0\n,1\n-0.3333333333333333,2\n1e+300,3\n'
    same(from_csv(path, "a, b").outputs, values[:, None])
    to_csv(path, {"only": values})  # a gap alone in its row is not a blank line
    same(from_csv(path, "only").outputs, values[:, None])
    assert [file.name for file in tmp_path.iterdir()] == ["out.csv"]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    for wrong in ({"y": np.zeros(2), "u": np.zeros(3)}, {"y": np.zeros((2, 1))}, {}):
        with pytest.raises(InvalidInput, match="columns: shapes"):
            to_csv(tmp_path / "out.csv", wrong)
    with pytest.raises(FileNotFoundError, match=r"the directory .*nowhere' does not exist"):
        to_csv(tmp_path / "nowhere" / "out.csv", {"y": np.zeros(2)})
    assert not list(tmp_path.iterdir())


def test_what_is_read_can_be_fitted(write: Write) -> None:
    """Both results go into `fit` as they are; what a fit cannot use, the fit refuses."""
    from gpssm.plumbing.validation import training_data

    rows = "".join(f"{k},{t % 5},{t}\n" for t in range(6) for k in "ab")
    data = from_csv(write("k,y,u\n" + rows), "y", "u", id="k")
    outputs, inputs, *_ = training_data(data.outputs, data.inputs)
    assert [y.shape for y in outputs] == [c.shape for c in inputs] == [(6, 1), (6, 1)]
    with pytest.raises(InvalidInput, match="at least 2"):
        gpssm.EnVI(1).fit(from_csv(write("y\n1\n"), "y").outputs)
    gap = from_csv(write("y,u\n1,2\n2,\n1,3\n"), "y", "u")
    with pytest.raises(InvalidInput, match="inputs: NaN at row 1"):
        gpssm.EnVI(1).fit(gap.outputs, gap.inputs)


def test_a_large_file_is_read_quickly(tmp_path: Path) -> None:
    """Beside Python's own reader; in a process of its own, where shapes are not checked at every call."""
    path = tmp_path / "large.csv"
    np.savetxt(path, np.arange(500_000.0).reshape(-1, 5), delimiter=",", header="a,b,c,d,e", comments="", fmt="%.17g")
    code = """
import csv, sys, time
from gpssm.datasets import from_csv

def rows(path):
    with open(path, newline="") as file:
        lines = csv.reader(file)
        next(lines)
        return [[float(cell) for cell in line] for line in lines]

def seconds(read, *arguments):
    started = time.process_time()
    return read(*arguments), time.process_time() - started

theirs, least = seconds(rows, sys.argv[1])
data, needed = seconds(from_csv, sys.argv[1], ["a", "b", "c"], ["d", "e"])
print(data.outputs.shape, [*data.outputs[-1], *data.inputs[-1]] == theirs[-1], *data.inputs[-1], needed / least)
"""
    run = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True, timeout=300)
    shape, same_row, *last, ratio = run.stdout.rsplit(maxsplit=4)
    assert (shape, same_row) == ("(100000, 3)", "True")
    same([float(number) for number in last], [499_998, 499_999])
    assert float(ratio) < 15  # two to three times


def test_importing_is_light() -> None:
    code = "import sys, gpssm.datasets; assert not {'jax', 'pooch', 'scipy', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
