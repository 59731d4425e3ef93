"""A person's way through the pages, in a real browser without a window (make test-report)."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.explanation import explained
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.comparison import compare
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.report.comparison_page import comparison_page
from campo_onnx.report.plan_page import plan_page
from campo_onnx.targets.target import target
from campo_onnx.wording import visible
from tests.report import hostile
from tests.report.large import large_model

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium and Chromium")

pytestmark = pytest.mark.browser

LAYER = Path(__file__).parent.parent.parent / "examples" / "bert_layer.onnx"
OPTIONS = Options(target=target("v100"), lists=preset("campo"))
MOST_BYTES = 5_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1000"):
        options.add_argument(argument)
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture
def visit(browser, tmp_path):
    """Open a page; at the end it must have complained of nothing and asked for nothing."""

    def open_page(text: str) -> Any:
        path = tmp_path / "report.html"
        path.write_text(text, encoding="utf-8")
        browser.get(path.as_uri())
        assert js(browser, "return document.documentElement.dataset.ready") == "true"
        return browser

    yield open_page
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    requests = [
        e["message"] for e in browser.get_log("performance") if '"Network.requestWillBeSent"' in e["message"]
    ]
    assert not [request for request in requests if '"url":"http' in request]


@pytest.fixture(scope="module")
def layer():
    return optimize(LAYER, OPTIONS)


def js(browser: Any, script: str, *arguments: object) -> Any:
    return browser.execute_script(script, *arguments)


def element(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def text_of(browser: Any, selector: str) -> str:
    return str(element(browser, selector).text)


def shown(browser: Any) -> list[str]:
    """Names in the table of decisions, as far as it exists."""
    return js(
        browser,
        "return [...document.querySelectorAll('#decisions-table [data-row]')].map((row) => row.textContent)",
    )


def keys(browser: Any, *pressed: str) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.switch_to.active_element.send_keys(*(getattr(Keys, key, key) for key in pressed))


def page_of(optimized: Any) -> str:
    moved = optimized.given_traffic, optimized.planned_traffic
    return plan_page(optimized.plan, optimized.problem, moved, model="step.onnx")


def test_decisions_are_searched_sorted_and_opened(visit, layer) -> None:
    browser, plan = visit(page_of(layer)), layer.plan
    gains = sorted((d.gain_us for d in plan.decisions), reverse=True)
    assert plan.decision[shown(browser)[0]].gain_us == pytest.approx(gains[0])
    element(browser, "#decisions-search").send_keys("QUERY grad")
    wanted = {d.node for d in plan.decisions if "query" in d.node.lower() and "grad" in d.node.lower()}
    assert wanted
    assert set(shown(browser)) == wanted
    assert text_of(browser, "#decisions-count") == f"{len(wanted)} of {len(plan.decisions)} decisions"
    element(browser, "#decisions-table th:first-child button").click()
    assert shown(browser) == sorted(wanted)
    element(browser, "#decisions-table th:first-child button").click()
    assert shown(browser) == sorted(wanted, reverse=True)
    head = element(browser, "#decisions-table th:first-child")
    assert head.get_attribute("aria-sort") == "descending"
    element(browser, "#decisions-table [data-row='0']").click()
    first = plan.decision[max(wanted)]
    assert text_of(browser, "#detail-title") == first.node
    why = text_of(browser, "#detail .reason")
    assert " ".join(explained(plan, first.node)) in why
    keys(browser, "ESCAPE")
    assert not element(browser, "#detail").is_displayed()
    element(browser, "#decisions-clear").click()
    assert text_of(browser, "#decisions-count") == f"{len(plan.decisions)} decisions"


def test_rows_are_as_high_as_scrolling_takes_them_to_be(visit, layer) -> None:
    browser = visit(page_of(layer))
    heights = "return [...document.querySelectorAll('.rows tbody tr:not(.gap)')].map((r) => r.offsetHeight)"
    assert set(js(browser, heights)) <= {js(browser, "return ROW_PX"), js(browser, "return ROW_PX") - 1}


def test_filters_and_the_table_of_reasons_agree(visit, layer) -> None:
    browser, plan = visit(page_of(layer)), layer.plan
    link = element(browser, "button[data-rule]")
    rule = link.get_attribute("data-rule")
    link.click()
    wanted = [d for d in plan.decisions if d.decided_by.value == rule and not d.is_lowered and d.precision]
    assert text_of(browser, "#decisions-count").startswith(f"{len(wanted)} of ")
    assert set(shown(browser)) <= {d.node for d in wanted}


def test_the_map_opens_downwards_by_mouse_and_by_keyboard(visit, layer) -> None:
    browser = visit(page_of(layer))
    labels = "return [...document.querySelectorAll('#map-tree [role=treeitem]')].map((i) => i.ariaLabel)"
    before = js(browser, labels)
    assert before[0].startswith(f"whole graph: {len(layer.plan.low_nodes)} of 192 nodes in FP16")
    module = next(i for i, label in enumerate(before) if label.startswith("attention_output:"))
    js(browser, "document.querySelectorAll('#map-tree [role=treeitem]')[arguments[0]].click()", module)
    assert js(browser, labels)[0] == before[module]
    inside = [d.node for d in layer.plan.decisions if d.node.startswith("attention_output/")]
    assert text_of(browser, "#decisions-count") == f"{len(inside)} of 192 decisions, in attention_output"
    keys(browser, "ARROW_DOWN")
    child = js(browser, "return document.activeElement.ariaLabel")
    assert child.startswith("attention_output")
    assert child != before[module]
    keys(browser, "ARROW_UP")
    assert js(browser, "return document.activeElement.ariaLabel") == before[module]
    keys(browser, "BACK_SPACE")
    assert js(browser, labels) == before
    js(browser, "document.querySelector('#map-tree [role=treeitem].low').click()")
    assert text_of(browser, "#detail-title") in layer.plan.low_nodes


def test_parts_of_the_map_are_as_wide_as_their_time(visit, layer) -> None:
    browser = visit(page_of(layer))
    parts = js(
        browser,
        "return [...document.querySelectorAll('#map-tree [aria-level=\"2\"]')].map((i) => "
        "[i.entry.module === undefined ? '' : DATA.modules[i.entry.module], i.entry.span])",
    )
    spans = {name: span for name, span in parts if name}
    time_us = {
        name: sum(d.fp32_us for d in layer.plan.decisions if d.node.startswith(f"{name}/")) for name in spans
    }
    assert len(spans) > 5
    width = js(browser, "return document.getElementById('map-tree').clientWidth")
    for name, span in spans.items():
        assert span / width == pytest.approx(time_us[name] / layer.plan.fp32_us, rel=1e-3)


def test_modules_open_one_by_one(visit, layer) -> None:
    browser = visit(page_of(layer))
    rows = "return [...document.querySelectorAll('#modules tbody tr')].map((r) => r.textContent)"
    before = js(browser, rows)
    line = element(browser, "#modules tr[aria-expanded=false]")
    line.click()
    assert len(js(browser, rows)) > len(before)
    keys(browser, "ARROW_LEFT")
    assert js(browser, rows) == before


def test_modules_show_bytes_and_launches(visit, layer) -> None:
    browser = visit(page_of(layer))
    before, after = layer.given_traffic.total, layer.planned_traffic.total
    root = (
        "return [...document.querySelectorAll('#modules tbody tr:first-child td')].map((c) => c.textContent)"
    )
    choose = (
        "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        "s.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    js(browser, choose, "modules-what", "bytes")
    assert js(browser, root)[3:5] == [f"{m.moved_bytes / 1e9:,.2f} GB" for m in (before, after)]
    js(browser, choose, "modules-what", "launches")
    assert js(browser, root)[3:6] == [
        f"{n:,}" for n in (before.launches, after.launches, len(layer.plan.casts))
    ]
    js(browser, choose, "map-weight", "bytes")
    assert (
        js(browser, "return document.querySelector('#map-tree').firstChild.entry.sum.all")
        == before.moved_bytes
    )


def test_on_paper_tables_are_whole_and_the_map_fits(visit, layer) -> None:
    browser = visit(page_of(layer))
    js(browser, "window.dispatchEvent(new Event('beforeprint'))")
    assert set(shown(browser)) == {d.node for d in layer.plan.decisions}
    assert not browser.find_elements("css selector", ".gap")
    js(browser, "document.getElementById('map-tree').style.width = '600px'")
    spans = "return [...document.querySelectorAll('#map-tree [role=treeitem]')]"
    spans += ".map((i) => i.getBoundingClientRect().right)"
    assert max(js(browser, spans)) <= js(
        browser, "return document.getElementById('map-tree').getBoundingClientRect().right"
    )
    js(browser, "window.dispatchEvent(new Event('afterprint'))")
    assert len(shown(browser)) < len(layer.plan.decisions)


def test_casts_lead_to_their_nodes(visit, layer) -> None:
    browser = visit(page_of(layer))
    assert text_of(browser, "#casts-count") == f"{len(layer.plan.casts)} casts"
    element(browser, "#casts-search").send_keys("query.weight")
    wanted = [c for c in layer.plan.casts if "query.weight" in c.tensor]
    assert text_of(browser, "#casts-count").startswith(f"{len(wanted)} of ")
    element(browser, "#casts-table [data-row='0']").click()
    assert f"{wanted[0].tensor} (input" in text_of(browser, "#detail-body")


def test_strategies_are_switched(visit) -> None:
    comparison = compare(LAYER, OPTIONS)
    browser = visit(comparison_page(comparison, model="step.onnx"))
    plans = [row.plan for row in comparison.rows]
    for number in (0, len(plans) - 1):
        js(
            browser,
            "const s = document.getElementById('strategy'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('input', {bubbles: true}))",
            str(number),
        )
        assert text_of(browser, "#casts-count") == f"{len(plans[number].casts)} casts"
    element(browser, "#decisions-differ").click()
    differing = {
        d.node for d in plans[0].decisions if len({plan.decision[d.node].is_lowered for plan in plans}) > 1
    }
    assert text_of(browser, "#decisions-count") == f"{len(differing)} of 192 decisions"


def test_hostile_names_do_nothing(visit) -> None:
    optimized = optimize(hostile.model(), OPTIONS)
    browser = visit(page_of(optimized))
    for name in hostile.NAMES:
        element(browser, "#decisions-clear").click()
        js(
            browser,
            "const s = document.getElementById('decisions-search'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('input', {bubbles: true}))",
            visible(name),
        )
        assert visible(name) in shown(browser)
        element(browser, "#decisions-table [data-row='0']").click()
        keys(browser, "ESCAPE")
    assert js(browser, "return window.broken") is None
    assert js(browser, "return document.querySelectorAll('script, img').length") == 2 + 2
    assert js(browser, "return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_ten_thousand_nodes_open_at_once(visit, tmp_path) -> None:
    optimized = optimize(large_model(10_750), OPTIONS)
    text = page_of(optimized)
    assert len(text.encode()) < MOST_BYTES
    browser = visit(text)
    # What makes it quick: rows and parts of the map exist only where they are seen.
    assert js(browser, "return document.querySelectorAll('#decisions-table tr').length") < 100
    assert js(browser, "return document.querySelectorAll('#map-tree [role=treeitem]').length") < 5000
    js(browser, "document.getElementById('decisions-scroll').scrollTop = 1e9")
    browser.execute_async_script(  # the rows are drawn when the page hears of it: before the second frame
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
    )
    assert js(
        browser, "return [...document.querySelectorAll('#decisions-table tr')].at(-2).ariaRowIndex"
    ) == str(len(optimized.plan.decisions) + 1)


def test_a_plan_file_opens_too(visit, layer) -> None:
    browser = visit(plan_page(Plan.from_json(layer.plan.to_json()), model="plan.json"))
    element(browser, "#decisions-table [data-row='0']").click()
    assert "the plan file" in text_of(browser, "#detail-body")


@pytest.mark.parametrize("width", [1280, 800, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(visit, layer, width, scheme) -> None:
    browser = visit(page_of(layer))
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert js(browser, "return document.documentElement.scrollWidth") <= width
        assert contrast(js(browser, COLOURS, "body")) > 7
        for selector in (".card .quiet", ".key.low", "#decisions-table td button"):
            assert contrast(js(browser, COLOURS, selector)) > 4.5, selector
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


COLOURS = """
let at = document.querySelector(arguments[0]);
const text = getComputedStyle(at).color;
while (at && /, 0\\)$/.test(getComputedStyle(at).backgroundColor)) at = at.parentElement;
return [text, at ? getComputedStyle(at).backgroundColor : "rgb(255, 255, 255)"];
"""


def contrast(colours: list[str]) -> float:
    """Contrast ratio of a text and what is behind it, as the accessibility guidelines define it."""

    def luminance(colour: str) -> float:
        parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)
