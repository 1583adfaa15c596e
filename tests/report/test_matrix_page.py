"""A matrix's page, comment, text and JSON: what stands in them, and the page in a real browser with the network off."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from loadgen.analysis.compare_sides import side_of_run
from loadgen.analysis.matrix import Matrix, Visit, matrix, whole_side
from loadgen.analysis.matrix_findings import judge
from loadgen.analysis.summary import summarise
from loadgen.report.matrix import FORMATS, MatrixReport, render
from loadgen.report.matrix_view import tagline
from loadgen.store.matrixfile import SCHEMA, MatrixRecord, VisitRecord
from tests import synthetic
from tests.report.made import MARKUP, hostile
from tests.report.test_browser import UNDRAWN, WIDTH, Shown
from tests.report.test_browser import pytestmark as browser_only
from tests.synthetic import StageCase

CASES = (StageCase("brief", value=2, requests=40), StageCase("brief", value=8, requests=80))
SPEC = {"roofline": {"gpu": "h100-sxm", "shape": "llama-3.1-8b", "dtype": "bf16", "price_per_gpu_hour": 2.5}}


def _report(found: Matrix, name: str = "a matrix", slo: tuple[str, ...] = ()) -> MatrixReport:
    visits = [VisitRecord(v.setting, v.round, v.state, f"runs/{v.run}", error=v.error) for v in found.visits]
    settings = [{"name": setting, "command": f"serve {name}", "url": None, "env": []} for setting in found.settings]
    record = MatrixRecord(SCHEMA, "2026-01-01T12:00:00+00:00", name, 0, 2, list(slo), settings, [{"name": "x"}], visits)
    return MatrixReport(Path("M"), record, found, judge(found))


def _visit(setting: str, number: int, slower: float, slo: tuple[str, ...]) -> Visit:
    info, rows = synthetic.build(tuple(replace(case, slower=slower) for case in CASES), number)
    info.spec = info.spec | SPEC
    side = whole_side(side_of_run(setting, summarise(info, synthetic.frame(rows), slo)))
    return Visit(setting, number, "done", side, f"r{number}-{setting}", ready_s=1.5)


@cache
def good() -> MatrixReport:
    """Two settings that were measured, the second slower, and one that did not start."""
    slo = ("p50(ttft) < 60s", "error_rate < 50%")
    visits = [_visit(name, n, slower, slo) for n in (1, 2) for name, slower in (("fast", 1.0), ("slow", 1.3))]
    visits += [Visit("broken", n, "failed", error="the server ended with exit code 1") for n in (1, 2)]
    return _report(matrix(["fast", "slow", "broken"], visits), slo=slo)


@cache
def enemies() -> MatrixReport:
    info, rows = hostile()
    slo = ("p50(ttft) < 60s",)
    side = whole_side(side_of_run(MARKUP, summarise(info, synthetic.frame(rows), slo)))
    visits = [Visit(MARKUP, 1, "done", side, MARKUP), Visit("b", 1, "done", replace(side, name="b"), "r")]
    visits.append(Visit(f"{MARKUP}2", 1, "failed", error=MARKUP))
    return _report(matrix([MARKUP, "b", f"{MARKUP}2"], visits), MARKUP, slo)


def test_all_formats_say_the_same() -> None:
    for form in ("html", "md", "text"):
        text = html.unescape(render(good(), form)).replace("\\_", "_").replace("_<wbr>", "_")
        assert tagline(good().matrix) in text, form
        assert "setting broken could not be measured in any of 2 rounds: the server ended with exit code 1" in text, (
            form
        )
        assert "fast" in text
    assert tagline(good().matrix) == "brief: fast serves most while it keeps the SLO, at 8 users."


def test_json_has_every_cell_with_its_bounds_and_costs() -> None:
    found = json.loads(render(good(), "json"))
    assert [(cell["setting"], cell["cell"]) for cell in found["cells"]] == [
        (name, cell) for name in ("fast", "slow") for cell in ("brief@2", "brief@8")
    ]
    for cell in found["cells"]:
        (rate,) = (one for one in cell["metrics"] if one["metric"] == "output_tokens_per_s")
        assert rate["low"] < rate["value"] < rate["high"]
        cost = cell["cost"]["per_million"]
        assert cost["value"] == pytest.approx(2.5 / 3600 / rate["value"] * 1e6)
        assert cell["per_gpu"]["value"] == pytest.approx(rate["value"])
        assert set(cell["roof"]) == {"prefill", "decode"}
    assert [(row["setting"], row["verdict"]) for row in found["best"][0]["settings"]] == [
        ("fast", "best"),
        ("slow", "worse"),
    ]


def test_a_comment_is_short_and_its_tables_are_whole() -> None:
    text = render(good(), "md")
    assert len(text) < 6_000
    for table in text.split("\n\n"):
        rows = [line.replace("\\|", "") for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) <= 1
    assert "{{" not in text


@pytest.mark.parametrize("form", ["html", "md"])
def test_markup_in_names_stays_text(form: str) -> None:
    text = render(enemies(), form)
    if form == "html":
        body = text.partition("<style>")[0] + text.partition("</style>")[2]
        for script in ("<script>alert", "<img", "onerror=alert(2)>"):
            assert script not in body.partition("/**")[0]
        assert text.count("</script>") == text.count("<script")
    else:
        assert "<script" not in text
        assert "<img" not in text


@pytest.mark.parametrize("form", FORMATS)
def test_a_matrix_of_which_nothing_is_measured_makes_a_page(form: str) -> None:
    for state in ("waiting", "failed"):
        found = matrix(["a", "b"], [Visit("a", 1, state), Visit("b", 1, state)])  # type: ignore[arg-type]
        assert render(_report(found), form)


# -- in a browser ---------------------------------------------------------------------------------------------------


class TestInABrowser:
    pytestmark = browser_only

    def test_it_is_drawn_on_a_phone_and_its_tables_need_no_script(self, browser: Any, tmp_path: Path) -> None:
        path = tmp_path / "matrix.html"
        path.write_text(render(good(), "html"), encoding="utf-8")
        shown = Shown(browser, path, width=375)
        assert shown.drawn == 2
        assert shown.page.evaluate(UNDRAWN) == []
        assert shown.page.evaluate(WIDTH) <= 375
        assert shown.troubles == []
        shown.context.close()
        context = browser.new_context(offline=True, java_script_enabled=False)
        page = context.new_page()
        page.goto(path.as_uri())
        assert "front" in page.locator("#front").inner_text()
        context.close()

    def test_markup_neither_runs_nor_breaks_a_phone_and_axe_finds_no_fault(self, browser: Any, tmp_path: Path) -> None:
        path = tmp_path / "enemies.html"
        path.write_text(render(enemies(), "html"), encoding="utf-8")
        shown = Shown(browser, path, width=375)
        assert shown.page.evaluate(UNDRAWN) == []
        assert shown.page.locator("img").count() == 0
        assert shown.page.evaluate(WIDTH) <= 375
        assert shown.troubles == []
        axe = pytest.importorskip("axe_playwright_python.base")
        shown.page.evaluate(axe.AXE_SCRIPT)
        shown.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        found = shown.page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
        shown.page.emulate_media(color_scheme="dark")
        colors = "axe.run({resultTypes: ['violations'], runOnly: {type: 'rule', values: ['color-contrast']}})"
        assert [one["nodes"][0]["html"] for one in shown.page.evaluate(colors)["violations"]] == []
        shown.context.close()
