"""The tokenizer's rule, the text whose count is exact, and prefix hashes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.simulator.stream import EscapedBook
from loadgen.simulator.tokens import (
    Prefixes,
    count_tokens,
    encode,
    render_chat,
    token_ids,
    token_starts,
    write_book,
)

BOOK = write_book(np.random.default_rng(1))
# Text that is dense in the rule's borders: short runs of few characters.
BORDERS = st.text(alphabet="ab1 \n\t.,é漢\x01", max_size=60)


def is_word(byte: int) -> bool:
    return byte > 127 or chr(byte).isalnum() or byte == ord("_")


def reference_count(data: bytes) -> int:
    """The rule of the module's docstring, one byte at a time."""
    tokens, place = 0, 0
    while place < len(data):
        end = place
        while end < len(data) and chr(data[end]) in " \t\n\r\x0b\x0c":
            end += 1
        if end - place > 1 or end == len(data):
            tokens += 1
            place = end - 1 if end < len(data) else end
            continue
        place = end
        start = place
        while (
            place < len(data)
            and place - start < 4
            and (chr(data[place]).isalnum() or data[place] in b"_" or data[place] > 127)
        ):
            place += 1
        place = max(place, start + 1)
        tokens += 1
        # the rest of a long word goes on without white space: the loop takes its next four bytes
    return tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abcd", 1),
        ("abcde", 2),
        ("Hello world", 4),
        (" ", 1),
        ("  ", 1),
        ("a ", 2),
        ("a b", 2),
        ("a  b", 3),
        ("\n\nThe", 2),
        ("...", 3),
        ("a, b", 3),
        ("漢字", 2),
    ],
)
def test_the_rule(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


@given(BORDERS | st.text(max_size=40))
def test_counts_follow_the_rule_for_any_text(text: str) -> None:
    assert count_tokens(text) == reference_count(encode(text)) == len(token_ids(text))


@given(BORDERS)
def test_starts_cut_the_text_into_pieces(text: str) -> None:
    starts = token_starts(encode(text)).tolist()
    assert starts == sorted(set(starts))
    assert not text or (starts[0] == 0 and starts[-1] < len(encode(text)))


def test_a_lone_surrogate_is_counted() -> None:
    assert count_tokens("\ud800") == 1


@given(st.integers(0, 10_000), st.integers(0, 300))
def test_any_stretch_of_the_book_has_as_many_tokens_as_pieces(start: int, tokens: int) -> None:
    text = BOOK.text(start, tokens)
    assert count_tokens(text) == tokens
    assert json.loads(b'"%b"' % EscapedBook.of(BOOK).escaped(start, tokens)) == text


def test_the_book_is_varied() -> None:
    assert len(set(BOOK.pieces)) > 200


def test_the_chat_template_separates_turns() -> None:
    one = render_chat([("user", "a"), ("user", "b")])
    other = render_chat([("user", "ab")])
    assert count_tokens(one) == count_tokens(other) + 5 == 5 + 5 + 5


def hashes(text: str, seed: int = 0) -> tuple[int, ...]:
    data = encode(text)
    return Prefixes(4, np.random.default_rng(seed)).hashes(data, token_starts(data))


def test_there_is_one_hash_per_full_block() -> None:
    assert [len(hashes(" word" * n)) for n in (0, 3, 4, 7, 8, 9)] == [0, 0, 1, 1, 2, 2]


@given(st.lists(st.sampled_from([" one", " two", " six", "."]), min_size=8, max_size=40), st.integers(0, 39))
def test_hashes_agree_up_to_the_first_difference_and_not_beyond(pieces: list[str], place: int) -> None:
    place %= len(pieces)
    changed = [*pieces[:place], " ten", *pieces[place + 1 :]]
    a, b = hashes("".join(pieces)), hashes("".join(changed))
    same = place // 4
    assert a[:same] == b[:same]
    assert not set(a[same:]) & set(b[same:])


def test_hashes_do_not_depend_on_what_was_hashed_before() -> None:
    prefixes = Prefixes(4, np.random.default_rng(0))
    short, long = encode(" word" * 8), encode(" word" * 800)
    first = prefixes.hashes(short, token_starts(short))
    assert prefixes.hashes(long, token_starts(long))[:2] == first
