"""The page in a real browser, from disk, with the network off: charts are drawn, nothing is fetched, a phone fits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.report.render import write_report
from tests import synthetic
from tests.report.made import MARKUP, hostile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
CASES = ("mixed", "open", "failures", "one", "all_failed", "none", "interrupted", "five")

# Names of charts that hold no mark at all.
UNDRAWN = """() => [...document.querySelectorAll('[data-chart]')]
  .filter(p => !p.querySelector('.scatterlayer path, .barlayer path, .heatmaplayer image'))
  .map(p => p.dataset.chart)"""
# Texts whose contrast with what lies behind them is below 4.5:1, by the formula of WCAG 2.
FAINT = """() => {
  const linear = (x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const light = (c) => {
    const [r, g, b] = c.match(/[0-9.]+/g).slice(0, 3).map(x => linear(x / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (!color.endsWith(', 0)')) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const contrast = (e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  return [...document.querySelectorAll('body :is(p, td, th, h1, h2, h3, dt, dd, a, small, span, code, li)')]
    .filter(e => e.offsetParent && !e.closest('.plot') && contrast(e) < 4.5)
    .map(e => e.outerHTML.slice(0, 80));
}"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("LOADGEN_NO_SKIP") != "1", reason="no Chromium on this machine"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    return {name: write_report(synthetic.write_run(folder / name, *synthetic.case(name))) for name in CASES}


class _Shown:
    """A page that is open, and what it complained of."""

    def __init__(
        self, browser: Any, path: Path, *, width: int = 1280, theme: str = "light", script: bool = True
    ) -> None:
        size = {"width": width, "height": 900}
        self.context = browser.new_context(
            viewport=size, color_scheme=theme, offline=True, java_script_enabled=script, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("console", lambda m: self.troubles.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda r: self.troubles.append(r.url) if r.url != path.as_uri() else None)
        self.page.goto(path.as_uri())

    def draw_all(self) -> int:
        plots = self.page.locator("[data-chart]")
        for i in range(plots.count()):
            plots.nth(i).scroll_into_view_if_needed()
            plots.nth(i).locator(".main-svg").first.wait_for(timeout=20_000)
        return int(plots.count())


@pytest.fixture
def show(browser: Any, reports: dict[str, Path]) -> Iterator[Any]:
    shown: list[_Shown] = []

    def _show(name: str, **more: Any) -> _Shown:
        shown.append(_Shown(browser, reports[name], **more))
        return shown[-1]

    yield _show
    for one in shown:
        one.context.close()


@pytest.mark.parametrize("name", CASES)
def test_every_chart_is_drawn_without_a_complaint(show: Any, name: str) -> None:
    shown = show(name)
    drawn = shown.draw_all()
    assert drawn == {"none": 0, "all_failed": 1}.get(name, drawn)
    if name not in ("none", "all_failed"):
        assert drawn >= 10
        assert shown.page.evaluate(UNDRAWN) == []
    assert shown.troubles == []


@pytest.mark.parametrize("width", [375, 768, 1600])
def test_no_width_makes_the_page_scroll_sideways(show: Any, width: int) -> None:
    shown = show("mixed", width=width)
    shown.draw_all()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width


def test_charts_take_the_colours_of_the_theme_and_follow_a_change(show: Any) -> None:
    shown = show("mixed", theme="light")
    shown.draw_all()
    color = "document.querySelector('[data-chart=throughput] .xtitle').style.fill"
    light = shown.page.evaluate(color)
    shown.page.emulate_media(color_scheme="dark")
    shown.page.wait_for_function(f"{color} !== '{light}'")
    ink = shown.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()")
    assert ink == "#e6e9ed"
    assert shown.troubles == []


def test_contrast_of_text_is_enough_in_both_themes(show: Any) -> None:
    for theme in ("light", "dark"):
        assert show("failures", theme=theme).page.evaluate(FAINT) == []


def test_tables_need_no_script(show: Any) -> None:
    page = show("mixed", script=False).page
    text = page.locator("#figures").inner_text()
    assert "TTFT" in text
    assert "5.05" in text


def test_hover_tells_the_figures_of_a_point(show: Any) -> None:
    shown = show("mixed")
    plot = shown.page.locator("[data-chart=throughput]")
    plot.scroll_into_view_if_needed()
    point = plot.locator(".points path").first
    point.wait_for()
    point.hover(force=True)
    label = plot.locator(".hoverlayer .hovertext").first
    label.wait_for()
    assert "tokens/s per user" in label.text_content()


def test_the_legend_hides_a_line(show: Any) -> None:
    shown = show("mixed")
    plot = shown.page.locator("[data-chart=throughput]")
    plot.scroll_into_view_if_needed()
    plot.locator(".legendtoggle").first.wait_for()
    before = plot.locator(".scatterlayer .trace").count()
    plot.locator(".legendtoggle").first.click()
    shown.page.wait_for_function(
        f"document.querySelectorAll('[data-chart=throughput] .scatterlayer .trace').length < {before}"
    )


def test_the_keyboard_reaches_links_tables_and_details(show: Any) -> None:
    page = show("mixed").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(e => e.tabIndex === 0 && e.getAttribute('aria-label'))"
    )
    page.locator("details summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None


def test_paper_shows_everything_in_light_colours(show: Any) -> None:
    shown = show("mixed", theme="dark")
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert shown.page.locator("[data-chart]:not(:has(.main-svg))").count() == 0
    assert shown.page.locator("details:not([open], .long)").count() == 0
    assert (
        shown.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--panel').trim()")
        == "#ffffff"
    )
    shown.page.set_viewport_size({"width": 720, "height": 1000})  # about an A4 sheet
    shown.page.emulate_media(media="print")
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 720
    assert len(shown.page.pdf(format="A4")) > 100_000
    shown.page.emulate_media(media="screen", color_scheme="dark")
    shown.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert (
        shown.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--panel').trim()")
        != "#ffffff"
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_markup_from_outside_neither_runs_nor_breaks_a_phone(browser: Any, tmp_path: Path, theme: str) -> None:
    path = write_report(synthetic.write_run(tmp_path / "run", *hostile()))
    shown = _Shown(browser, path, width=375, theme=theme)
    shown.page.on("dialog", lambda dialog: (shown.troubles.append(dialog.message), dialog.dismiss()))
    shown.draw_all()
    assert shown.troubles == []
    assert shown.page.locator("img").count() == 0
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 375
    words = " ".join(MARKUP.split())
    assert words in " ".join(shown.page.locator("h1").inner_text().split())
    drawn = shown.page.locator(".legendtext, .xtitle, .annotation-text").all_text_contents()
    assert any(words in " ".join(text.split()) for text in drawn)
    shown.context.close()
