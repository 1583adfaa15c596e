"""Prompts: unique from the first characters on, sized to the character, varied, the same for the same seed."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.prompts import KINDS, tag, write

_TAG = "0123456789abcdef"


def _text(kind: str, chars: int, seed: int = 5) -> str:
    return write(kind, chars, _TAG, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chars", [1, 16, 17, 60, 300, 399, 400, 401, 2_000, 50_000])
def test_a_text_has_the_asked_length_to_a_word_and_begins_with_its_tag(kind: str, chars: int) -> None:
    text = _text(kind, chars)
    assert text.startswith(_TAG)
    assert abs(len(text) - max(chars, 16)) <= 8


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_right_in_the_mean(kind: str) -> None:
    off = [len(_text(kind, 900, seed)) - 900 for seed in range(200)]
    assert abs(np.mean(off)) < 1.5  # characters: cutting at blanks must not make texts shorter


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_text_begins_like_a_shorter_one(kind: str) -> None:
    longest = write(kind, 40_000, _TAG, np.random.default_rng(5))
    for chars in (20, 100, 390, 410, 2_000, 30_000):
        assert longest.startswith(_text(kind, chars))


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_varied(kind: str) -> None:
    words = Counter(re.findall(r"\S+", _text(kind, 8_000)))
    assert len(words) > 150
    assert max(words.values()) < 0.2 * sum(words.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: str) -> None:
    assert _text(kind, 3_000) == _text(kind, 3_000)
    assert _text(kind, 3_000)[len(_TAG) :] != _text(kind, 3_000, seed=6)[len(_TAG) :]


def test_a_chat_looks_like_a_pasted_log() -> None:
    lines = _text("chat", 8_000).splitlines()
    stamped = [
        line
        for line in lines
        if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|DEBUG|WARN|ERROR|FATAL)", line)
    ]
    assert len(stamped) > 20
    assert stamped == sorted(stamped)  # time runs forward
    assert any(re.match(r'    at |  File "|goroutine', line) for line in lines)  # a stack trace
    assert "?" in lines[0]


def test_a_document_has_headings_and_paragraphs() -> None:
    text = _text("summarize", 30_000)
    assert len(re.findall(r"^\d+\. [A-Z]", text, re.MULTILINE)) >= 5
    assert text.count("\n\n") > 30
    sentences = re.findall(r"[^.]+\.", text)
    assert 60 < np.mean([len(s) for s in sentences]) < 200


@given(st.integers(0, (1 << 64) - 1), st.sets(st.integers(-(1 << 40), 1 << 50), min_size=2, max_size=50))
def test_tags_never_meet(key: int, numbers: set[int]) -> None:
    assert len({tag(key, number) for number in numbers}) == len(numbers)


def test_tags_of_neighbours_part_at_once() -> None:
    tags = [tag(77, number) for number in range(4_000)]
    assert len({t[:4] for t in tags}) > 3_500  # of 65,536: chance alone leaves about 3,880
