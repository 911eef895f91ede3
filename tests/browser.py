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

    The browser is shown a copy with a probe at its end, in a frame: no window of it is as narrow as a phone.
    """
    copy, frame = (page.with_name(f"{kind}-{page.name}") for kind in ("probed", "frame"))
    probe = f"addEventListener('load', () => parent.postMessage(JSON.stringify({asked}), '*'))"
    copy.write_text(page.read_text().replace("</body>", f"<script>{probe}</script></body>"))
    frame.write_text(
        f"""<title></title><script>onmessage = message => {{document.title = message.data}}</script>
        <iframe src="{copy.name}" width="{width}" height="1000" style="border: 0"></iframe>"""
    )
    command = [
        str(CHROMIUM), *OPTIONS, "--dump-dom", "--enable-logging=stderr", "--virtual-time-budget=5000",
        "--window-size=1400,1100", f"--user-data-dir={profile}", frame.as_uri(),
    ]  # fmt: skip
    environment = os.environ | {"HOME": str(profile)}
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    finally:
        copy.unlink()
        frame.unlink()
    answer = json.loads(html.unescape(re.findall(r"<title>(.*?)</title>", shown.stdout)[0]))
    return answer, "\n".join(line for line in shown.stderr.splitlines() if "CONSOLE" in line)


WIDTHS = "[...document.images].map(i => i.complete && i.naturalWidth)"
"""Of the pictures that were loaded."""
