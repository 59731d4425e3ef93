"""Time how long reports take to open in a headless Chromium.

    python scripts/time_report.py report.html ... [--times 5]

A report is open when its own script says that it is ready; before the clock starts the browser is there, and
shows nothing. Needs Chromium with its driver, and selenium (the extra ``browser``).
"""

import argparse
import shutil
import statistics
import time
from pathlib import Path

from selenium import webdriver


def opened_s(browser: webdriver.Chrome, report: Path) -> float:
    """Open a report; returns the seconds until it is ready."""
    browser.get("about:blank")
    began = time.perf_counter()
    browser.get(report.resolve().as_uri())
    while browser.execute_script("return document.documentElement.dataset.ready") != "true":
        time.sleep(0.005)
    return time.perf_counter() - began


def main() -> None:
    """Open each report some times, and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1000"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    for report in asked.reports:
        times = [opened_s(browser, report) for _ in range(asked.times)]
        shown = ", ".join(f"{seconds:.2f}" for seconds in times)
        size = report.stat().st_size / 1e6
        print(f"{report.name}: {size:.1f} MB, median {statistics.median(times):.2f} s of {shown}")
    browser.quit()


if __name__ == "__main__":
    main()
