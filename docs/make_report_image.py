"""Take the pictures of docs/images in a headless browser: a report at three widths and dark, the site.

    python docs/make_report_image.py [--site FOLDER]

It needs Chromium with its driver, and selenium (the extra ``browser``). The site is one that ``make docs``
built; without --site its picture stays as it is.
"""

import argparse
import base64
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from PIL import Image
from selenium import webdriver

from campo_onnx.emulation.batches import draw_batches
from campo_onnx.ir.importer import import_model

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
MODEL = ROOT / "examples" / "bert_layer.onnx"
COMMAND = "optimize bert_layer.onnx --device v100 --inputs batch.npz --rules --report report.html --quiet"
COLOURS = 128
DESKTOP, TABLET, TELEPHONE = 1240, 820, 390
SHOTS = {
    "": (DESKTOP, "light"),
    "-dark": (DESKTOP, "dark"),
    "-tablet": (TABLET, "light"),
    "-telephone": (TELEPHONE, "light"),
}
PARTS = {"report": ("", "modules-title"), "report-evidence": ("rules", "costs")}
"""Parts of the report, each from one element of the page (the top, where that is empty) to before another."""


def visit(browser: Any, address: str, width: int, scheme: str) -> None:
    """Show a page at a width, light or dark."""
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width == TELEPHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(address)


def save(browser: Any, name: str, width: int, top: int, bottom: int) -> None:
    """Write lines of the page with few colours."""
    clip = {"x": 0, "y": top, "width": width, "height": bottom - top, "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    picture = Image.open(io.BytesIO(base64.b64decode(taken["data"])))
    target = IMAGES / f"{name}.png"
    picture.convert("RGB").quantize(COLOURS).save(target, optimize=True)
    print(f"{target}, {target.stat().st_size / 1000:.0f} kB")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder to this machine, and give its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


def place_of(browser: Any, element: str) -> int:
    """First line of an element in the page."""
    script = "return document.getElementById(arguments[0]).getBoundingClientRect().top + window.scrollY"
    return int(browser.execute_script(script, element)) if element else 0


def write_report(folder: Path) -> Path:
    """Optimize the example, as a user does who has a batch."""
    shutil.copy(MODEL, folder)
    ordinary, *_ = draw_batches(import_model(MODEL).view)
    np.savez(folder / "batch.npz", **ordinary.feeds)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "campo_onnx", *COMMAND.split()], cwd=folder, env=env, check=True)
    return folder / "report.html"


def main() -> None:
    """Take every picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, help="folder of the built site")
    asked = parser.parse_args()
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(Path(folder))
        for end, (width, scheme) in SHOTS.items():
            visit(browser, page.as_uri(), width, scheme)
            for part, (first, behind) in PARTS.items():
                save(browser, part + end, width, place_of(browser, first), place_of(browser, behind))
    if asked.site is not None:
        with served(asked.site.resolve()) as address:  # opened as files, its pages hide the search
            visit(browser, address, DESKTOP, "light")
            save(browser, "site", DESKTOP, 0, 1000)
    browser.quit()


if __name__ == "__main__":
    main()
