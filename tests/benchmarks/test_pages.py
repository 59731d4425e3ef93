"""Pages out of JSON and templates: the committed ones are what their JSON gives, and gaps are refused."""

import doctest
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages

jinja2 = pytest.importorskip("jinja2")

CLAIMS = sorted(path.stem for path in pages.RESULTS.glob("*.json"))


ROW = {"layers": 5, "nodes": 1000, "peak_mib": 64.0}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_committed_page_is_what_its_json_gives(claim: str) -> None:
    data = json.loads((pages.RESULTS / f"{claim}.json").read_text(encoding="utf-8"))
    page = (pages.RESULTS / f"{claim}.md").read_text(encoding="utf-8")
    assert pages.render(data.get("template", claim), data) == page


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_table_has_cells_for_its_columns(claim: str) -> None:
    width = 0
    for line in (pages.RESULTS / f"{claim}.md").read_text(encoding="utf-8").splitlines():
        cells = line.count("|")
        if line.startswith("|"):
            assert cells == width or not width, line
        width = cells if line.startswith("|") else 0


def test_a_page_that_cites_another_claim_has_its_figures() -> None:
    page = (pages.RESULTS / "coarse.md").read_text(encoding="utf-8")
    cited = pages.results("campo_eval")
    for device in pages.results("coarse")["devices"]:
        of = cited["predicted"][device]["summary"]["campo"]
        figures = [f"{of['over_tf_amp'][key]:+.1%}" for key in ("mean", "most")]
        figures += [f"{of['fewer_casts'][key]:.1%}" for key in ("mean", "most")]
        assert f"graphs, campo ({cited['made']['date']}) | {' | '.join(figures)} |" in page


def test_results_that_lack_what_the_page_shows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(jinja2.UndefinedError, match="rows"):
        pages.publish("scaling", {"made": pages.provenance()}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_jinja_the_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    (results,) = pages.publish("scaling", {"rows": []}, tmp_path)
    assert json.loads(results.read_text()) == {"rows": []}


def test_a_page_shows_the_results_that_were_written(tmp_path: Path) -> None:
    row = ROW | {"cpu_s": 1.75}
    results, page = pages.publish("scaling", {"made": pages.provenance(), "rows": [row]}, tmp_path)
    assert json.loads(results.read_text())["rows"] == [row]
    assert "| 5 | 1000 | 1.8 | 1750 | 64 |" in page.read_text()


def test_the_last_digits_of_a_sum_change_no_file(tmp_path: Path) -> None:
    written = []
    for seconds in (0.1 + 0.2, 0.3):
        data = {"made": pages.provenance(), "rows": [ROW | {"cpu_s": seconds}]}
        written.append([path.read_bytes() for path in pages.publish("scaling", data, tmp_path)])
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (1.234, "1.23"), (0, "0.00")], ids=["missing", "number", "zero"]
)
def test_a_number_that_is_missing_is_a_dash(value: Any, text: str) -> None:
    assert pages.number(value) == text


def test_a_message_fits_a_cell() -> None:
    assert pages.cell("it | broke\nbadly") == "it / broke badly"
    assert len(pages.cell("x" * 1000)) < 200


def test_pages_are_written_anew_from_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    row = ROW | {"cpu_s": 1.75}
    data = {"made": pages.provenance(), "rows": [row], "transcribed": "by hand"}
    _, page = pages.publish("scaling", data, tmp_path)
    text = page.read_text()
    assert "by hand" in text  # a page says so where nothing was measured again
    page.unlink()
    pages.main([])
    assert page.read_text() == text


def test_examples() -> None:
    assert doctest.testmod(pages).failed == 0
