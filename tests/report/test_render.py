"""Labels and links of the page, and a comment that no name can break."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from loadgen.analysis.summary import Summary, summarise
from loadgen.report.render import FORMATS, render
from tests import synthetic
from tests.report.made import hostile, summary_of


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(*synthetic.run("mixed"), ("p99(ttft) < 1s",))


@pytest.fixture(scope="module")
def bad() -> Summary:
    info, rows = hostile()
    return summarise(info, synthetic.frame(rows))


class _Page(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def test_every_id_is_there_once_and_every_link_leads_somewhere(summary: Summary) -> None:
    page = _Page(render(summary, "html"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    links = {href[1:] for tag, a in page.elements if tag == "a" and (href := a.get("href") or "").startswith("#")}
    assert len(ids) == len(set(ids))
    assert links <= set(ids)


def test_tables_are_labelled(summary: Summary) -> None:
    """By a caption, or by the region that scrolls them."""
    page = _Page(render(summary, "html"))
    tables = sum(tag == "table" for tag, _ in page.elements)
    labels = sum(tag == "caption" or "region" in (a.get("role") or "") for tag, a in page.elements)
    assert labels >= tables > 5
    assert all("scope" in attributes for tag, attributes in page.elements if tag == "th")
    assert all(a.get("aria-label") for tag, a in page.elements if a.get("role") in ("region", "group"))


def test_markup_stays_text_in_the_comment(bad: Summary) -> None:
    text = render(bad, "md")
    assert "<script" not in text
    assert "<img" not in text
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    assert tables
    for table in tables:
        borders = {len(re.findall(r"(?<!\\)\|", row)) for row in table.split("\n") if row}
        assert len(borders) == 1, "a cell border in a name broke a table"
    assert "\u2028" not in text


@pytest.mark.parametrize("name", ["fifty", "five", "all_failed", "none", "interrupted"])
def test_the_comment_fits_a_pull_request(name: str) -> None:
    slo = ("p99(ttft) < 1s", "p99(tpot) < 50ms", "error_rate < 1%") if name != "none" else ()
    summary = summarise(*synthetic.run(name), slo)
    text = render(summary, "md")
    assert len(text) < 65_536
    assert summary.verdict.upper() in text
    assert text.lstrip().startswith("#")


@pytest.mark.parametrize("name", synthetic.CASES)
def test_every_kind_of_run_has_every_format(name: str) -> None:
    summary = summary_of(name)
    for fmt in FORMATS.keys() - {"html"}:  # see test_page
        assert render(summary, fmt).strip()
