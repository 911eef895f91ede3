"""The site that `make docs` has built: links, pictures, the reference, and a browser's opinion."""

import os
import re
import zlib
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser import WIDTHS, look, needs_chromium
from test_docstrings import offered

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "docs"
TUTORIALS = sorted(script.stem for script in (ROOT / "docs" / "tutorials").glob("plot_*.py"))
ENTRANCES = ["index", "start", "reference/api/gpssm.EnVI", *(f"gallery/{name}" for name in TUTORIALS[:1])]

pytestmark = pytest.mark.skipif(
    not (SITE / "objects.inv").exists() and "CI" not in os.environ, reason="there is no site here; run make docs"
)


class Page(HTMLParser):
    """The places of a page, and where it leads to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if "src" in values:
            self.loads.add(values["src"])
        if tag == "link" and values.get("rel") == "stylesheet":
            self.loads.add(values["href"])


@cache
def pages() -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in SITE.rglob("*.html") if "_static" not in path.parts}


def broken(path: Path, address: str) -> bool:
    """Whether an address on a page leads nowhere, as far as that can be known here."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return False
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return True
    return bool(parts.fragment) and target in pages() and unquote(parts.fragment) not in pages()[target].ids


def test_no_link_is_broken() -> None:
    found = {(str(path.relative_to(SITE)), link) for path, page in pages().items() for link in page.links | page.loads}
    assert len(pages()) > 100 and len(found) > 1000
    assert not {(path, link) for path, link in found if broken(SITE / path, link)}


def test_a_link_that_leads_nowhere_would_be_seen() -> None:
    assert broken(SITE / "index.html", "nowhere.html") and broken(SITE / "index.html", "glossary.html#term-nonsense")
    assert not broken(SITE / "index.html", "glossary.html#term-free-run")


def test_nothing_is_loaded_from_elsewhere() -> None:
    loaded = {address for page in pages().values() for address in page.loads}
    for sheet in (SITE / "_static").rglob("*.css"):
        loaded |= set(re.findall(r"(?:@import\s+|url\()[\"']?([^\"')]+)", sheet.read_text()))
    assert loaded and not {address for address in loaded if urlsplit(address).scheme in ("http", "https")}
    assert not {address for address in loaded if address.startswith("//")}


def test_every_tutorial_has_its_pictures() -> None:
    for name in TUTORIALS:
        text = (SITE / "gallery" / f"{name}.html").read_text()
        assert re.search(rf'src="\.\./_images/sphx_glr_{name}_\d+\.png"', text), name
        assert f"sphx_glr_{name}_thumb.png" in (SITE / "gallery" / "index.html").read_text()


def test_every_name_that_a_user_reaches_is_in_the_inventory() -> None:
    head, packed = (SITE / "objects.inv").read_bytes().split(b"using zlib.\n")
    assert head.startswith(b"# Sphinx inventory version 2")
    listed = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    assert not {f"gpssm.{name}" for name, _ in offered()} - listed


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", ENTRANCES)
def test_a_browser_shows_it_whole_and_has_no_complaint(page: str, width: int, tmp_path: Path) -> None:
    asked = f"[innerWidth, document.documentElement.scrollWidth, {WIDTHS}]"
    (shown, needed, pictures), complaints = look(SITE / f"{page}.html", tmp_path, asked, width)
    assert shown == width and needed <= width
    assert all(pictures) and (pictures or not page.startswith(("index", "gallery")))
    assert complaints == ""


@needs_chromium
@pytest.mark.slow
def test_a_page_that_is_too_wide_or_complains_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<body><div style='width: 700px'>wide</div><script>nonsense()</script></body>")
    needed, complaints = look(page, tmp_path / "profile", "document.documentElement.scrollWidth", 390)
    assert needed >= 700 and "nonsense is not defined" in complaints
