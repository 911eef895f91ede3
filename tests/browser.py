"""A page as a browser shows it."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium"
)
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def look(page: Path, profile: Path, asked: str, width: int = 1280) -> tuple[Any, str]:
    """What the JavaScript expression `asked` is once the page is loaded, and all that the browser complained about.

    The browser is shown a copy with a probe at its end, so that the answer can be read from the title.
    """
    copy = page.with_name(f"probed-{page.name}")
    probe = f'<script>addEventListener("load", () => {{document.title = JSON.stringify({asked})}})</script>'
    copy.write_text(page.read_text().replace("</body>", f"{probe}</body>"))
    command = [
        str(CHROMIUM), *OPTIONS, "--dump-dom", "--enable-logging=stderr", "--virtual-time-budget=5000",
        f"--window-size={width},1000", f"--user-data-dir={profile}", copy.as_uri(),
    ]  # fmt: skip
    environment = os.environ | {"HOME": str(profile)}
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    finally:
        copy.unlink()
    answer = json.loads(html.unescape(re.findall(r"<title>(.*?)</title>", shown.stdout)[0]))
    return answer, "\n".join(line for line in shown.stderr.splitlines() if "CONSOLE" in line)


WIDTHS = "[...document.images].map(i => i.complete && i.naturalWidth)"
"""Of the pictures that were loaded."""
