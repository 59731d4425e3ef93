"""Take the picture of a report that the README shows, in a browser without a window.

Run ``python docs/make_report_image.py``, which writes ``docs/images/report.png``. It needs Chromium with
its driver, and selenium (the extra ``browser``).
"""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver

from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.report.plan_page import plan_page
from campo_onnx.targets.target import target as target_called

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples" / "bert_layer.onnx"
WIDTH, COLOURS = 1240, 128


def main() -> None:
    """Optimize the example, open its report, and keep what is above the table of modules."""
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
        browser.set_window_size(WIDTH, 2000)
        browser.get(page.as_uri())
        height = browser.execute_script("return document.getElementById('modules-title').offsetTop")
        picture = Image.open(io.BytesIO(browser.get_screenshot_as_png()))
    browser.quit()
    target = ROOT / "docs" / "images" / "report.png"
    picture.crop((0, 0, WIDTH, height)).convert("RGB").quantize(COLOURS).save(target, optimize=True)
    print(f"{target}, {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
