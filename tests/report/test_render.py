"""The four formats: what they hold, and that markup from outside stays text in all of them."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest

from loadgen.analysis.summary import Summary, summarise, to_json
from loadgen.report.render import FORMATS, render, write_report
from tests import synthetic
from tests.report.made import MARKUP, hostile


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(*synthetic.run("mixed"), ("p99(ttft) < 1s",))


@pytest.fixture(scope="module")
def bad() -> Summary:
    info, rows = hostile()
    return summarise(info, synthetic.frame(rows))


class _Page(HTMLParser):
    """Elements of a page, the text outside of scripts and styles, and the contents of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag: str) -> None:
        self._inside = None if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside is None:
            self.text.append(data)


def _headings(page: _Page) -> int:
    return sum(tag == "h1" for tag, _ in page.elements)


def test_the_page_stands_alone(summary: Summary) -> None:
    page = _Page(render(summary, "html"))
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            link = attributes.get(name)
            assert link is None or link.startswith(("#", "data:")), (tag, link)
    assert _headings(page) == 1
    assert ("html", {"lang": "en"}) in page.elements
    outside = re.findall(r"url\(\s*['\"]?(?!data:)[a-z]", render(summary, "html").split("</style>")[0])
    assert not outside


def test_the_verdict_stands_before_the_figures(summary: Summary) -> None:
    text = " ".join(" ".join(_Page(render(summary, "html")).text).split())
    places = [text.index(word) for word in (summary.verdict.upper(), "p99(ttft) < 1s", "output_tokens_per_s")]
    assert places == sorted(places)


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


def test_markup_stays_text_in_the_page(summary: Summary, bad: Summary) -> None:
    page, plain = _Page(render(bad, "html")), _Page(render(summary, "html"))
    assert not [attributes for tag, attributes in page.elements if tag == "img" or "onerror" in attributes]
    scripts = [sum(tag == "script" for tag, _ in one.elements) for one in (page, plain)]
    assert scripts[0] == scripts[1]
    assert not [script for script in page.scripts if script.startswith("alert(")]
    text = "".join(page.text)
    assert MARKUP in text  # shown as it is, a template expression not evaluated
    assert "49" not in re.findall(r"\b49\b", text.replace(MARKUP, "")) or "7*7" in text


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


def test_json_is_the_summary(summary: Summary) -> None:
    assert json.loads(render(summary, "json")) == json.loads(json.dumps(to_json(summary)))


def test_csv_has_a_row_for_every_value(summary: Summary) -> None:
    rows = list(csv.DictReader(io.StringIO(render(summary, "csv"))))
    values = [(stage.info.name, value) for stage in summary.stages for value in stage.values]
    assert len(rows) == len(values)
    for row, (name, value) in zip(rows, values, strict=True):
        assert (row["stage"], row["metric"], row["stat"]) == (name, value.metric, value.stat)
        assert row["value"] == ("" if value.value is None else repr(value.value))


@pytest.mark.parametrize("name", synthetic.CASES)
def test_every_kind_of_run_has_every_format(name: str) -> None:
    summary = summarise(*synthetic.run(name))
    for fmt in FORMATS:
        assert render(summary, fmt).strip()


def test_a_run_gets_its_two_files(tmp_path: object) -> None:
    from pathlib import Path

    folder = synthetic.write_run(Path(str(tmp_path)) / "run", *synthetic.case("chat"))
    before = {file.name for file in folder.iterdir()}
    assert write_report(folder) == folder / "report.html"
    assert {file.name for file in folder.iterdir()} - before == {"report.html", "summary.md"}
