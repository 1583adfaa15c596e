"""The tables of asked and got: what stands in them, and that tables which do not apply are left out."""

from __future__ import annotations

from dataclasses import replace

from loadgen.analysis.summary import summarise
from loadgen.model import RunInfo
from loadgen.report.asked import prompts, tables
from loadgen.report.render import render
from tests import synthetic
from tests.report.made import MARKUP, summary_of


def test_a_closed_loop_has_no_planned_arrivals_and_no_conversations() -> None:
    found = tables(summary_of("chat"))
    assert [row["side"] for row in found["lengths"]] == ["prompt", "output"] * 3
    assert {row["planned"] for row in found["arrivals"]} == {"n/a"}
    assert all(row["sent"] != "n/a" for row in found["arrivals"])
    assert found["cached"] == found["turns"] == []
    page = render(summary_of("chat"), "html")
    assert "Turns of conversations" not in page
    assert "Lengths, asked and got" in page


def test_an_open_loop_shows_its_rate_three_times() -> None:
    for row in tables(summary_of("open"))["arrivals"]:
        assert "n/a" not in (row["asked"], row["planned"], row["sent"], row["asked_cv"], row["sent_cv"])


def test_conversations_and_shared_prompts_have_their_tables() -> None:
    info, rows = synthetic.case("three")
    session = [replace(row, session_id="0-0", turn=i, cached_tokens=1_000 * i, repeated_tokens=0 if i == 0 else None)
               for i, row in enumerate(row for row in rows if not row.warmup)]  # fmt: skip
    info.endpoint["prompts"] = {"chat": {"counted_by": "server", "template_tokens": 11, "off_tokens": 0}}
    summary = summarise(info, synthetic.frame(tuple(session)))
    found = tables(summary)
    assert [row["turn"] for row in found["turns"]] == ["1", "2", "3"]
    assert found["cached"][0]["sharing"] == "2 of 3"
    page = render(summary, "html")
    for words in ("Turns of conversations", "Cached prompt tokens, expected and reported", "/tokenize"):
        assert words in page


def test_a_trace_says_in_the_report_what_was_left_out() -> None:
    info, rows = synthetic.case("trace")
    trace = {"speed": 2.0, "from_s": 0.0, "to_s": None, "context_limit": 8192, "rows": 120, "span_s": 30.0,
             "distinct_times": 9, "dropped": {"beyond the context limit": 7}, "block_hit_rate": 0.25}  # fmt: skip
    info.spec["stages"] = [{"name": "t@x2", "trace": trace}, {"name": "other"}]
    page = render(summarise(info, synthetic.frame(rows)), "html")
    for words in ("The trace that was replayed", "7 beyond the context limit", "8,192", "25 %"):
        assert words in page


def test_how_prompts_were_sized_in_words() -> None:
    info = RunInfo(1, "complete", "x", "2026-01-01T00:00:00Z")
    assert prompts(info) == []
    info.endpoint["prompts"] = {
        MARKUP: {"counted_by": "usage", "template_tokens": None, "scale": 1.25},
        "b": {"counted_by": None, "template_tokens": None, "scale": 1.0},
        "c": {"counted_by": "tokenizer", "template_tokens": 9, "off_tokens": 3},
    }
    one, two, three = prompts(info)
    assert (one["workload"], one["template"]) == (MARKUP, "n/a")
    assert one["how"] == "calibrated by the server's usage, 1.25 times the estimate"
    assert two["how"].startswith("estimated")
    assert three["how"] == "counted by the tokenizer, units are off by up to 3 tokens"
