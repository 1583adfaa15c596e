"""The comparison's page, comment and text: what stands in them, and the page in a real browser with the network off."""

from __future__ import annotations

import html
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from loadgen.analysis.compare import compare
from loadgen.analysis.compare_gate import decide, parse
from loadgen.analysis.compare_sides import Side, side_of_run
from loadgen.analysis.summary import summarise
from loadgen.report.compare import render
from loadgen.report.comparison import Comparison, advice, bounds, change, sentence, view
from tests import synthetic
from tests.report.made import MARKUP, hostile, summary_of
from tests.report.test_browser import UNDRAWN, WIDTH, Shown
from tests.report.test_browser import pytestmark as browser_only
from tests.synthetic import StageCase

CASES = (StageCase("brief", value=2, requests=60), StageCase("brief", value=8, requests=320))
BIGGER = {"roofline": {"gpu": "h200-sxm", "gpus": 2, "shape": "llama-3.1-8b", "dtype": "bf16"}}


@cache
def side(name: str, slower: float = 1.0, seed: int = 1, more: bool = False) -> Side:
    cases = tuple(replace(case, slower=slower) for case in CASES)
    info, rows = synthetic.build(cases + ((replace(CASES[0], value=16),) if more else ()), seed)
    if more:
        info.spec = info.spec | BIGGER
    return side_of_run(name, summarise(info, synthetic.frame(rows)))


def made(base: Side, *others: Side, gates: tuple[str, ...] = (), prices: tuple[float, ...] = ()) -> Comparison:
    versus = compare(base, others)
    return Comparison(versus, decide(parse(gates), versus, 0.005), prices or (None,) * (1 + len(others)), 0.005)


@cache
def three() -> Comparison:
    """A baseline, the same server again, and two bigger GPUs that are no faster."""
    gates = ("mean(tpot) worse by 5%", "p99(ttft) worse by 5%")
    sides = side("base"), side("again", seed=2), side("bigger", 1.3, 3, more=True)
    return made(*sides, gates=gates, prices=(2.0, 2.0, 3.0))


@cache
def enemies() -> Comparison:
    info, rows = hostile()
    sides = [side_of_run(f"{MARKUP}{i}", summarise(info, synthetic.frame(rows))) for i in range(2)]
    info.notes = {MARKUP: f"{MARKUP} other"}
    return made(*sides, gates=("p50(ttft) worse by 5%",))


@pytest.mark.parametrize(
    ("value", "is_share", "text"),
    [
        (1.0512, False, "+5.12 %"),
        (0.88, False, "−12 %"),
        (1.0, False, "0 %"),
        (1.25, False, "+25 %"),
        (3.0, False, "3.00 times"),
        (0.4, False, "0.400 times"),
        (0.005, True, "+0.5 points"),
        (-0.25, True, "−25 points"),
        (None, False, "n/a"),
        (float("inf"), False, "∞"),
    ],
)
def test_a_change_is_written_as_people_say_it(value: float | None, is_share: bool, text: str) -> None:
    assert change(value, is_share) == text


def test_bounds_share_their_unit() -> None:
    assert bounds(0.95, 1.02, False) == "−5 to +2 %"
    assert bounds(0.95, 4.0, False) == "−5 % to 4.00 times"
    assert bounds(2.5, 4.0, False) == "2.50 to 4.00 times"
    assert bounds(0.001, 400.0, False) == "< 0.1 to > 10 times"
    assert bounds(None, None, False) == ""


def test_one_sentence_says_what_changed_most() -> None:
    told = sentence(three().versus[1])
    assert told.startswith("bigger: of 26 figures ")
    assert "Most for the worse: " in told
    assert "no workload and load in common" in sentence(
        made(side("base"), side_of_run("x", summary_of("one"))).versus[0]
    )


def test_costs_divide_by_what_was_used() -> None:
    rows = view(three())["costs"]["rows"]
    assert len(rows) == 2
    base, again, bigger = rows[1]["runs"]
    assert base["tokens_per_s"] == base["per_gpu"]
    assert float(bigger["per_gpu"].replace(",", "")) == pytest.approx(
        float(bigger["tokens_per_s"].replace(",", "")) / 2, rel=1e-3
    )
    # 1.3 times as slow on twice the GPUs at 1.5 times the price: 1 / (1.3 * 2 * 1.5) of the tokens for a dollar.
    assert float(bigger["per_dollar_change"].removesuffix(" times")) == pytest.approx(1 / 3.9, rel=0.02)
    assert again["per_gpu_change"].endswith("%")
    assert float(base["per_thousand"]) < float(bigger["per_thousand"])
    assert base["at_slo"] == ""  # no SLO was given
    assert view(made(side("base"), side_of_run("x", replace_spec(side("again", seed=2)))))["costs"]["gpus"][1] == "n/a"


def replace_spec(of: Side) -> Any:
    """The run's summary without a word on its hardware."""
    assert of.summary is not None
    return replace(of.summary, info=replace(of.summary.info, spec={}))


def test_every_run_is_placed_under_its_own_roof() -> None:
    shown = view(three())
    rows = {(row["workload"], row["load"], row["phase"]): row["cells"] for row in shown["roofs"]["rows"]}
    assert all("-bound" in text for text in rows["brief", "8 users", "decode"])
    assert rows["brief", "16 users", "prefill"][0] == "n/a"
    assert [one["gpu"] for one in shown["series"]["rooflines"]] == ["1 × H100-SXM, bf16"] * 2 + ["2 × H200-SXM, bf16"]


def test_all_formats_say_the_same() -> None:
    for form in ("html", "md", "text"):
        text = html.unescape(render(three(), form)).replace("\\_", "_").replace("_<wbr>", "_")
        for told in (sentence(three().versus[1]), "seed of lengths, arrivals and texts", "mean(tpot) worse by 5%"):
            assert told in text, form
        assert "brief@16" in text  # not matched


def test_figures_without_a_verdict_say_what_to_try() -> None:
    few = side_of_run("few", summary_of("three"))
    assert "plan --detect 5%" in view(made(few, side_of_run("again", summary_of("three"))))["versus"][0]["advice"]
    info, rows = synthetic.build(tuple(replace(case, short_by=10) for case in CASES))
    other = side_of_run("shorter", summarise(info, synthetic.frame(rows)))
    assert view(made(side("base"), other))["versus"][0]["advice"] == "measure both alike in output tokens got"


def test_more_requests_are_not_advised_where_the_measurement_is_invalid() -> None:
    one = made(side_of_run("few", summary_of("three")), side_of_run("again", summary_of("three"))).versus[0]
    why = "the measurement of the baseline is INVALID (shared_receives)"
    pairs = [replace(p, rows=tuple(replace(r, verdict="not decidable", why=why) for r in p.rows)) for p in one.pairs]
    told = advice(replace(one, pairs=tuple(pairs)))
    assert "INVALID (shared_receives)" in told
    assert "more requests" not in told


def test_a_comment_is_short_and_its_tables_are_whole() -> None:
    text = render(three(), "md")
    assert len(text) < 8_000
    for table in text.split("\n\n"):
        rows = [line.replace("\\|", "") for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) <= 1
    assert "{{" not in text


@pytest.mark.parametrize("form", ["html", "md", "text", "json"])
def test_markup_in_names_stays_text(form: str) -> None:
    text = render(enemies(), form)
    if form == "html":
        body = text.partition("<style>")[0] + text.partition("</style>")[2]
        for script in ("<script>alert", "<img", "onerror=alert(2)>"):
            assert script not in body.partition("/**")[0]
        assert text.count("</script>") == text.count("<script")
    elif form == "md":
        assert "<script" not in text
        assert "<img" not in text


@pytest.mark.parametrize("name", ["none", "empty", "one", "three", "all_failed", "interrupted", "open", "failures"])
def test_odd_runs_make_a_page(name: str) -> None:
    one = side_of_run("odd", summary_of(name))
    for base, other in ((one, side("base")), (side("base"), one), (one, one)):
        for form in ("html", "md", "text", "json"):
            assert render(made(base, other, gates=("p50(ttft) worse by 5%",)), form)


# -- in a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, comparison in (("three", three()), ("enemies", enemies())):
        found[name] = folder / f"{name}.html"
        found[name].write_text(render(comparison, "html"), encoding="utf-8")
    return found


class TestInABrowser:
    pytestmark = browser_only

    def test_it_is_drawn_without_a_complaint_and_prints(self, browser: Any, pages: dict[str, Path]) -> None:
        shown = Shown(browser, pages["three"])
        assert shown.drawn >= 9
        assert shown.page.evaluate(UNDRAWN) == []
        shown.widen(375)
        shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        shown.page.set_viewport_size({"width": 720, "height": 1000})
        shown.page.emulate_media(media="print")
        assert shown.page.evaluate(WIDTH) <= 720
        assert shown.troubles == []
        shown.context.close()

    def test_markup_neither_runs_nor_breaks_a_phone_and_axe_finds_no_fault(
        self, browser: Any, pages: dict[str, Path]
    ) -> None:
        shown = Shown(browser, pages["enemies"], width=375)
        assert shown.page.evaluate(UNDRAWN) == []
        assert shown.page.locator("img").count() == 0
        assert shown.page.evaluate(WIDTH) <= 375
        assert shown.troubles == []
        axe = pytest.importorskip("axe_playwright_python.base")
        shown.page.evaluate(axe.AXE_SCRIPT)
        shown.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        found = shown.page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
        shown.context.close()

    def test_its_tables_need_no_script(self, browser: Any, pages: dict[str, Path]) -> None:
        context = browser.new_context(offline=True, java_script_enabled=False)
        page = context.new_page()
        page.goto(pages["three"].as_uri())
        assert "worse" in page.locator("#figures").inner_text()
        context.close()
