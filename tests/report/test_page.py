"""The page as text: complete in itself, built for every case, safe with texts from outside, of a size of its own."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadgen.analysis.summary import summarise
from loadgen.model import RunInfo
from loadgen.report.render import render, write_report
from tests import synthetic
from tests.report.made import summary_of

EVIL = "</script><script>alert(1)</script><b>x</b>"


class _Page(HTMLParser):
    """What a browser would make of the markup: elements, ids, and text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if not self.tags or self.tags[-1][0] not in ("script", "style"):
            self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def _html(name: str) -> str:
    return render(summary_of(name), "html")


@pytest.fixture(scope="module")
def mixed() -> str:
    return _html("mixed")


@pytest.mark.parametrize("name", [name for name in synthetic.CASES if name != "fifty"])
def test_every_case_makes_a_page_with_its_verdict_first(name: str) -> None:
    summary = summary_of(name)
    page = _Page(render(summary, "html"))
    text = " ".join(page.words)
    assert text.index(summary.verdict.upper()) < text.index("Summary", text.index("Provenance"))
    for stage in summary.info.stages:
        assert stage.name in text
    assert "nan" not in re.findall(r"[a-z]+", text)
    assert "None" not in text


def test_sections_stand_in_the_order_of_a_reader(mixed: str) -> None:
    ids = [attrs["id"] for tag, attrs in _Page(mixed).tags if tag == "section"]
    assert ids == [
        "trust",
        "summary",
        "figures",
        "load",
        "time",
        "roofline",
        "distributions",
        "timeline",
        "lengths",
        "slowest",
        "conventions",
        "method",
        "provenance",
    ]


def test_links_of_the_page_lead_somewhere(mixed: str) -> None:
    page = _Page(mixed)
    ids = {attrs.get("id") for _, attrs in page.tags}
    links = [attrs["href"] or "" for tag, attrs in page.tags if tag == "a"]
    assert links
    assert all(link.startswith("#") and link[1:] in ids for link in links)


def test_nothing_is_fetched(mixed: str) -> None:
    page = _Page(mixed)
    assert not [attrs for _, attrs in page.tags if "src" in attrs or attrs.get("rel") == "stylesheet"]
    styles = re.findall(r"<style>(.*?)</style>", mixed, re.DOTALL)
    assert styles
    assert not any("url(" in style or "@import" in style for style in styles)


def test_both_rates_bear_their_full_names(mixed: str) -> None:
    text = "".join(_Page(mixed).words)  # a long name may be broken after each underscore
    assert "output_tokens_per_s, whole server" in text
    assert "output_tokens_per_s_per_user, p50" in text
    assert "throughput (" not in text.lower()


def test_percentiles_that_the_sample_cannot_support_are_marked() -> None:
    few, many = (_Page(_html(name)) for name in ("three", "chat"))
    marked = [
        sum((attrs.get("class") or "") == "n weak" for tag, attrs in page.tags if tag == "td") for page in (few, many)
    ]
    assert marked[0] > 10
    summary = summary_of("chat")
    ttft = summary.stages[-1].get("ttft", "p99")
    assert ttft is not None
    assert ttft.supported
    assert marked[1] > 0  # its stage of 20 requests


def _evil_run() -> tuple[RunInfo, tuple[synthetic.Exchange, ...]]:
    info, rows = synthetic.build((synthetic.StageCase(EVIL, requests=30, failed=0.3),))
    info.endpoint["model"] = info.endpoint["url"] = EVIL
    info.notes = {EVIL: EVIL}
    info.command = ["loadgen", "run", EVIL]
    info.host["cpu"] = EVIL
    return info, rows


def test_markup_from_outside_stays_text() -> None:
    info, rows = _evil_run()
    clean = _Page(_html("failures"))
    text = render(summarise(info, synthetic.frame(rows)), "html")
    page = _Page(text)
    assert page.count("script") == clean.count("script") == 3
    assert page.count("b") == 0
    assert EVIL in " ".join(page.words)
    data = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    specs = json.loads(data[1])
    names = [trace.get("name", "") for spec in specs.values() for trace in spec["data"]]
    assert any("&lt;b&gt;" in name for name in names)  # plotly reads a little HTML, so it gets none
    assert not any("<" in name for name in names)


def test_markup_from_outside_stays_text_in_a_comment() -> None:
    info, rows = _evil_run()
    text = render(summarise(info, synthetic.frame(rows)), "md")
    assert "<" not in text.replace("&lt;", "")
    assert "alert" in text


def test_a_pipe_does_not_break_a_table_of_the_comment() -> None:
    info, requests = synthetic.run("failures")
    info.spec["slo"] = ["p99(ttft) < 1s"]
    for stage in info.stages:
        stage.name = "a|b`c"
    text = render(summarise(info, requests), "md")
    rows = [line for line in text.splitlines() if line.startswith("|") and "a\\|b\\`c" in line]
    assert rows
    assert all(re.sub(r"\\\|", "", row).count("|") in (5, 9) for row in rows)


def test_without_hardware_the_page_says_what_to_give() -> None:
    info, requests = synthetic.run("chat")
    info.spec["roofline"] = {"gpu": None, "shape": None}
    text = render(summarise(info, requests), "html")
    assert "--gpu h100-sxm --gpus 1 --shape llama-3.1-8b" in text
    assert 'data-chart="roofline"' not in text


def test_unknown_hardware_is_said_and_hides_nothing_else() -> None:
    info, requests = synthetic.run("chat")
    info.spec["roofline"] = {"gpu": "h1000", "shape": "llama-3.1-8b"}
    text = render(summarise(info, requests), "html")
    assert "not in the catalogue" in text
    assert 'data-chart="timeline"' in text


def test_a_page_does_not_grow_with_its_run() -> None:
    small, large = (
        render(summarise(info, synthetic.frame(rows)), "html")
        for info, rows in (synthetic.build((synthetic.StageCase(requests=n, value=32),)) for n in (1500, 6000))
    )
    assert len(large) < len(small) * 1.02
    assert len(large) < 5_500_000


def test_fifty_stages_stay_below_the_limit() -> None:
    text = _html("fifty")
    assert len(text) < 8_000_000
    assert "Of 25 loads 8 are drawn." in text


def test_the_report_is_written_beside_its_run(tmp_path: Path) -> None:
    run = synthetic.write_run(tmp_path / "run", *synthetic.case("three"))
    path = write_report(run)
    assert path == run / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (run / "summary.md").read_text(encoding="utf-8").startswith("### llama-3.1-8b: measurement ")


def test_the_comment_fits_one() -> None:
    text = render(summary_of("five"), "md")
    assert len(text) < 8_000
    assert text.count("\n") < 120
