"""Take the pictures of docs/images in a headless browser: a report at three widths and dark, the site.

    python docs/make_report_image.py [--site FOLDER]

It needs Chromium with its driver, and selenium (the extra ``browser``). The site is one that ``make docs``
built; without --site its picture stays as it is.
"""

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver

from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.report.plan_page import plan_page
from campo_onnx.targets.target import target as target_called

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
MODEL = ROOT / "examples" / "bert_layer.onnx"
COLOURS = 128
DESKTOP, TABLET, TELEPHONE = 1240, 820, 390
SHOTS = {
    "report.png": (DESKTOP, "light"),
    "report-dark.png": (DESKTOP, "dark"),
    "report-tablet.png": (TABLET, "light"),
    "report-telephone.png": (TELEPHONE, "light"),
}
MOST_LINES = 1600  # of a picture; on a telephone what is above the table of modules is longer


def shot(browser: Any, page: Path, width: int, scheme: str) -> Image.Image:
    """Show a page at a width, light or dark, and take its first lines."""
    size = {"width": width, "height": MOST_LINES, "deviceScaleFactor": 1, "mobile": width == TELEPHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())
    return Image.open(io.BytesIO(browser.get_screenshot_as_png()))


def save(picture: Image.Image, name: str, height: int) -> None:
    """Crop a picture and write it with few colours."""
    target = IMAGES / name
    cropped = picture.crop((0, 0, picture.width, min(height, picture.height)))
    cropped.convert("RGB").quantize(COLOURS).save(target, optimize=True)
    print(f"{target}, {target.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Optimize the example, open its report and the site, and keep what is above the table of modules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, help="folder of the built site")
    asked = parser.parse_args()
    optimized = optimize(MODEL, Options(target=target_called("v100"), lists=preset("campo")))
    moved = optimized.given_traffic, optimized.planned_traffic
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        text = plan_page(optimized.plan, optimized.problem, moved, model=MODEL.name)
        page.write_text(text, encoding="utf-8")
        for name, (width, scheme) in SHOTS.items():
            picture = shot(browser, page, width, scheme)
            height = browser.execute_script("return document.getElementById('modules-title').offsetTop")
            save(picture, name, height)
    if asked.site is not None:
        save(shot(browser, asked.site.resolve() / "index.html", DESKTOP, "light"), "site.png", 1000)
    browser.quit()


if __name__ == "__main__":
    main()
