"""The page in a real browser, from disk, with the network off: charts are drawn, nothing is fetched, a phone fits.

Opening a page costs more than a second (it holds a whole library), so there is one browser and one page for each run;
a test that changes a page leaves it as it was. Accessibility is judged by axe-core, which a package for tests brings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from loadgen.report.render import write_report
from loadgen.store.fitfile import write_fit
from tests import synthetic
from tests.report.conftest import CHROMIUM
from tests.report.fitted import labelled
from tests.report.made import MARKUP, hostile

# Odd runs, and how many charts each has at least.
CASES = {"open": 13, "one": 10, "all_failed": 1, "none": 0, "five": 27, "fifty": 14}
SLO = ["ttft < 100ms and tpot < 50ms, goodput > 1", "p99(ttft) < 1s", "error_rate < 1%"]

# Scrolls to each chart, as a reader does, until it is drawn; returns how many there are.
DRAW = """async () => {
  const plots = [...document.querySelectorAll('[data-chart]')];
  for (const plot of plots) {
    plot.scrollIntoView({block: 'center'});
    for (let i = 0; i < 2000 && !plot.querySelector('.main-svg'); i++) await new Promise(done => setTimeout(done, 10));
  }
  return plots.length;
}"""
# Names of charts that hold no mark at all.
UNDRAWN = """() => [...document.querySelectorAll('[data-chart]')]
  .filter(p => !p.querySelector('.scatterlayer path, .barlayer path, .heatmaplayer image'))
  .map(p => p.dataset.chart)"""
WIDTH = "document.documentElement.scrollWidth"
PANEL = "getComputedStyle(document.documentElement).getPropertyValue('--panel').trim()"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("LOADGEN_NO_SKIP") != "1", reason="no Chromium on this machine"
    ),
]


class Shown:
    """A page that is open, all its charts drawn, and what it complained of."""

    def __init__(self, browser: Any, path: Path, *, width: int = 1280) -> None:
        size = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=size, color_scheme="light", offline=True, reduced_motion="reduce")
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("console", lambda m: self.troubles.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.troubles.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda r: self.troubles.append(r.url) if r.url != path.as_uri() else None)
        self.page.goto(path.as_uri())
        self.drawn = int(self.page.evaluate(DRAW))

    def widen(self, width: int) -> None:
        """Charts follow a moment later."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.until(f"{WIDTH} <= {width}")

    def until(self, true: str) -> None:
        """Wait until an expression is true. Asked by a timer: a page that is not seen has no animation frames."""
        self.page.wait_for_function(true, polling=50, timeout=20_000)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The report of a case of `synthetic`, or of "hostile"."""
    folder = tmp_path_factory.mktemp("reports")

    @cache
    def report(name: str) -> Path:
        info, rows = hostile() if name == "hostile" else synthetic.case(name)
        info.spec["slo"] = SLO if info.stages else []
        run = synthetic.write_run(folder / name, info, rows)
        if name == "hostile":
            write_fit(run, labelled(MARKUP))
        return write_report(run)

    return report


@pytest.fixture(scope="module")
def mixed(browser: Any, written: Callable[[str], Path]) -> Iterator[Shown]:
    """A page for all tests of how a page behaves: three workloads at two loads."""
    shown = Shown(browser, written("mixed"))
    yield shown
    shown.context.close()


@pytest.fixture(scope="module")
def dirty(browser: Any, written: Callable[[str], Path]) -> Iterator[Shown]:
    """A page on a phone whose every text from outside is hostile, with failures, an SLO and a fit."""
    shown = Shown(browser, written("hostile"), width=375)
    yield shown
    shown.context.close()


@pytest.fixture
def plot(mixed: Shown) -> Iterator[Any]:
    """Its first chart, in sight."""
    found = mixed.page.locator("[data-chart=throughput]")
    found.scroll_into_view_if_needed()
    yield found
    mixed.page.mouse.move(0, 0)


@pytest.mark.parametrize("name", CASES)
def test_every_run_is_drawn_on_a_phone_without_a_complaint(
    browser: Any, written: Callable[[str], Path], name: str
) -> None:
    shown = Shown(browser, written(name), width=375)
    assert shown.drawn >= CASES[name]
    assert shown.page.evaluate(UNDRAWN) == []
    assert shown.page.evaluate(WIDTH) <= 375
    assert shown.troubles == []
    shown.context.close()


def test_every_chart_is_drawn_and_nothing_is_fetched(mixed: Shown) -> None:
    assert mixed.drawn >= 18
    assert mixed.page.evaluate(UNDRAWN) == []
    assert mixed.troubles == []


def test_the_keyboard_reaches_links_tables_and_details(mixed: Shown) -> None:
    """The first of those that act on this page: a click would move the place that Tab starts from."""
    page = mixed.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(e => e.tabIndex === 0 && e.getAttribute('aria-label'))"
    )
    page.locator("details summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None


@pytest.mark.parametrize("width", [375, 768, 1600, 1280])
def test_no_width_makes_the_page_scroll_sideways(mixed: Shown, width: int) -> None:
    mixed.widen(width)


def test_charts_take_the_colours_of_the_theme_and_follow_a_change(mixed: Shown) -> None:
    page = mixed.page
    color = "document.querySelector('[data-chart=throughput] .xtitle').style.fill"
    light = page.evaluate(color)
    page.emulate_media(color_scheme="dark")
    mixed.until(f"{color} !== '{light}'")
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == "#e6e9ed"
    page.emulate_media(color_scheme="light")
    mixed.until(f"{color} === '{light}'")
    assert mixed.troubles == []


def test_tables_need_no_script(browser: Any, written: Callable[[str], Path]) -> None:
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto(written("mixed").as_uri())
    text = page.locator("#figures").inner_text()
    assert "TTFT" in text
    assert "5.05" in text
    context.close()


def test_hover_tells_the_figures_of_a_point(plot: Any) -> None:
    plot.locator(".points path").first.hover(force=True)
    label = plot.locator(".hoverlayer .hovertext").first
    label.wait_for()
    assert "tokens/s per user" in label.text_content()


def test_the_legend_hides_a_line(mixed: Shown, plot: Any) -> None:
    count = "document.querySelectorAll('[data-chart=throughput] .scatterlayer .trace').length"
    before = mixed.page.evaluate(count)
    plot.locator(".legendtoggle").first.click()
    mixed.until(f"{count} < {before}")
    mixed.page.evaluate("Plotly.restyle(document.querySelector('[data-chart=throughput]'), 'visible', true)")
    mixed.until(f"{count} === {before}")


def test_paper_shows_everything_in_light_colours(mixed: Shown) -> None:
    page = mixed.page
    page.emulate_media(color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("[data-chart]:not(:has(.main-svg))").count() == 0
    assert page.locator("details:not([open], .long)").count() == 0
    assert page.evaluate(PANEL) == "#ffffff"
    page.set_viewport_size({"width": 720, "height": 1000})  # about an A4 sheet
    page.emulate_media(media="print")
    assert page.evaluate(WIDTH) <= 720
    assert len(page.pdf(format="A4")) > 100_000
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(PANEL) != "#ffffff"
    assert mixed.troubles == []
    page.emulate_media(color_scheme="light")
    mixed.widen(1280)


def test_markup_from_outside_neither_runs_nor_breaks_a_phone(dirty: Shown) -> None:
    page = dirty.page
    page.emulate_media(color_scheme="dark")  # everything is drawn a second time
    page.emulate_media(color_scheme="light")
    assert dirty.troubles == []
    assert page.evaluate(UNDRAWN) == []
    assert page.locator("[data-chart^=fit-]").count() == 4
    assert page.locator("img").count() == 0
    assert page.evaluate(WIDTH) <= 375
    words = " ".join(MARKUP.split())
    assert words in " ".join(page.locator("h1").inner_text().split())
    drawn = page.locator(".legendtext, .xtitle, .annotation-text").all_text_contents()
    assert any(words in " ".join(text.split()) for text in drawn)


def test_axe_finds_no_fault_in_either_theme(dirty: Shown) -> None:
    if os.environ.get("LOADGEN_NO_SKIP") != "1":
        pytest.importorskip("axe_playwright_python")
    from axe_playwright_python.base import AXE_SCRIPT

    page = dirty.page
    page.evaluate("document.querySelectorAll('details:not(.long)').forEach(one => one.open = true)")
    page.evaluate(AXE_SCRIPT)
    every = "axe.run({resultTypes: ['violations']})"
    assert [(v["id"], v["nodes"][0]["html"]) for v in page.evaluate(every)["violations"]] == []
    page.emulate_media(color_scheme="dark")
    colors = "axe.run({resultTypes: ['violations'], runOnly: {type: 'rule', values: ['color-contrast']}})"
    assert [v["nodes"][0]["html"] for v in page.evaluate(colors)["violations"]] == []
    page.emulate_media(color_scheme="light")
