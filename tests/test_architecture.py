"""Nothing lower imports anything higher; the picture is the one that CONTRIBUTING.md draws."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "gpssm"


def floors() -> dict[str, int]:
    """The number of its floor, from the top, for every room of the picture."""
    picture = re.search(r"```floors\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert picture is not None
    rows = [row.partition("#")[0].split() for row in picture[1].splitlines()]
    return {room: number for number, row in enumerate(rows) for room in row}


def imported(file: Path) -> set[str]:
    """Rooms that a file imports from, wherever in it; what is for type checkers alone counts, too."""
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "gpssm":
            rooms |= {alias.name for alias in node.names if not alias.name.startswith("_")}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gpssm."):
            rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("gpssm.")}
    return rooms


def test_every_room_is_in_the_picture() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert rooms - {"__init__", "__main__", "__pycache__", "py"} == set(floors())


def test_nothing_lower_imports_anything_higher() -> None:
    floor = floors()
    upward = [
        f"{file.relative_to(PACKAGE)} imports {other}"
        for file in PACKAGE.rglob("*.py")
        for room in [file.relative_to(PACKAGE).parts[0].removesuffix(".py")]
        if room in floor
        for other in imported(file)
        if other != room and floor.get(other, -1) <= floor[room]
    ]
    assert not upward


def test_no_file_is_longer_than_can_be_read_at_once() -> None:
    lengths = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in PACKAGE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 450} == {}
