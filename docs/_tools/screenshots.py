"""Takes the pictures of docs/howto/serve.md: `python docs/_tools/screenshots.py MODEL TEXT`.

MODEL is a text model that was trained with ``--valid``. Needs xmc-fast[serve], playwright and Debian's chromium.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

from xmc_fast.serve import Settings, create_app

PICTURES = Path(__file__).parents[1] / "img" / "serve"
WIDE, PHONE = (1200, 800), (390, 800)


def main(model: str, text: str) -> None:
    """One picture per view."""
    server = uvicorn.Server(uvicorn.Config(create_app(Settings({"gnd": model})), port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.1)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    PICTURES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, size, scheme, tab in (
            ("suggest", WIDE, "light", "suggest"),
            ("model", WIDE, "light", "model"),
            ("phone", PHONE, "dark", "suggest"),
        ):
            context = browser.new_context(
                viewport=dict(zip(("width", "height"), size, strict=True)), color_scheme=scheme
            )
            page = context.new_page()
            page.goto(address)
            page.fill("textarea", text)
            page.wait_for_selector("#marked mark")
            page.locator(".decide").first.click()
            page.click(f"#tab-{tab}")
            page.wait_for_timeout(500)
            page.screenshot(path=PICTURES / f"{name}.png", full_page=name != "phone")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
