"""Prompts: unique from their first words on, of the asked size, varied, the same for the same seed; made of units."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan import vocabulary
from loadgen.plan.pools import units
from loadgen.plan.prompts import KINDS, rough_sizes, rough_tokens, section, tag, tag_text

_TAG = bytes(range(8))
_HEAD = tag_text(_TAG)


def _text(kind: str, tokens: int, seed: int = 5) -> str:
    return section(kind, tokens, _TAG, np.random.default_rng(seed), rough_sizes(kind))[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 13, 14, 30, 99, 100, 101, 700, 20_000])
def test_a_text_has_the_asked_size_and_begins_with_its_tag(kind: str, tokens: int) -> None:
    text = _text(kind, tokens)
    assert text.startswith(_HEAD + "\n")
    assert rough_tokens(text) == max(tokens, 13)  # eight words, two ends of lines, a rule
    told = section(kind, tokens, _TAG, np.random.default_rng(5), rough_sizes(kind))[1]
    assert told == rough_tokens(text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_text_begins_with_the_lines_of_a_shorter_one(kind: str) -> None:
    longest = _text(kind, 10_000)
    for tokens in (100, 110, 500, 8_000):
        lines, _, _ = _text(kind, tokens).rpartition("---")
        assert longest.startswith(lines)
        assert rough_tokens(lines) > tokens / 3 or tokens < 500


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_varied(kind: str) -> None:
    words = Counter(re.findall(r"\S+", _text(kind, 2_500)))
    assert len(words) > 130
    assert max(words.values()) < 0.2 * sum(words.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: str) -> None:
    assert _text(kind, 900) == _text(kind, 900)
    assert _text(kind, 900)[len(_HEAD) :] != _text(kind, 900, seed=6)[len(_HEAD) :]


def test_a_chat_looks_like_a_pasted_log() -> None:
    lines = _text("chat", 2_500).splitlines()
    stamped = [
        line
        for line in lines
        if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|DEBUG|WARN|ERROR|FATAL) \[", line)
    ]
    assert len(stamped) > 20
    turned = [b for a, b in itertools.pairwise(stamped) if b < a]
    assert len(turned) <= 1  # time runs forward, but for the end of the day
    assert any(re.match(r'    at |  File "|goroutine', line) for line in lines)  # a stack trace
    assert "?" in lines[1]


def test_a_document_has_numbered_sections_and_paragraphs() -> None:
    text = _text("summarize", 7_500)
    numbers = [int(n) for n in re.findall(r"^(\d+)\. [A-Z]", text, re.MULTILINE)]
    assert len(numbers) >= 5
    assert sum(b <= a for a, b in itertools.pairwise(numbers)) <= 1
    assert text.count("\n\n") > 30
    sentences = re.findall(r"[^.]+\.", text)
    assert 60 < np.mean([len(s) for s in sentences]) < 200


@given(st.integers(0, (1 << 64) - 1), st.sets(st.integers(-(1 << 40), 1 << 50), min_size=2, max_size=50))
def test_tags_never_meet(key: int, numbers: set[int]) -> None:
    assert len({tag_text(tag(key, number)) for number in numbers}) == len(numbers)


def test_tags_of_neighbours_part_at_once() -> None:
    tags = [tag(77, number) for number in range(4_000)]
    assert len({t[:1] for t in tags}) == 256
    assert len({t[:2] for t in tags}) > 3_700  # of 65,536: chance alone leaves about 3,880


@pytest.mark.parametrize("kind", KINDS)
def test_units_meet_where_no_tokenizer_joins_characters(kind: str) -> None:
    of = units(kind)
    assert len(set(vocabulary.TAGS)) == len(vocabulary.TAGS) == len(of.first) == 256
    assert {len(word) for word in vocabulary.TAGS} == {4}
    for word in of.words:
        assert re.fullmatch(r" \S+", word)
    for line in (*of.asks, *of.lines):
        assert re.fullmatch(r"\S(.*\S)?\n+", line, re.DOTALL)
    assert all(unit.isascii() for group in (of.first, of.words, of.asks, of.lines) for unit in group)
    assert of.words[of.sentences[0] : of.sentences[1]] == tuple(f" {w}" for w in vocabulary.CLOSINGS[0].split())
