"""Token counts: what calibration learns, and that texts made of counted units have the asked count."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.prompts import KINDS, section
from loadgen.plan.tokens import Calibration, Counted, calibrate, counted


@given(
    st.floats(0.5, 3.0), st.integers(0, 200), st.lists(st.integers(200, 90_000), min_size=2, max_size=20, unique=True)
)
def test_a_server_that_is_affine_is_learned(scale: float, overhead: int, rough: list[int]) -> None:
    pairs = [(r, round(overhead + scale * r)) for r in rough]
    learned = calibrate(pairs)
    for r, tokens in pairs:
        told = learned.overhead_tokens + learned.scale * r
        assert told == pytest.approx(tokens, rel=0.02 if max(rough) >= 1.3 * min(rough) else 0.3, abs=2)


def test_two_lengths_tell_overhead_from_scale() -> None:
    learned = calibrate([(1000, 1140), (500, 590)])
    assert (learned.scale, learned.overhead_tokens) == pytest.approx((1.1, 40))
    assert (learned.budget(1140), learned.share(1100)) == (1000, 1000)


def test_one_length_gives_the_ratio() -> None:
    assert calibrate([(1000, 300), (1010, 303)]) == Calibration(pytest.approx(0.3), 0.0)


def test_counts_that_make_no_sense_are_not_extrapolated() -> None:
    assert calibrate([(1000, 100), (500, 200)]).overhead_tokens == 0  # fewer tokens for more text
    assert calibrate([(1000, 0), (500, 0)]) == calibrate([]) == Calibration()


def _words(text: str) -> int:
    """A stand-in tokenizer: words of up to six letters, digits by three, runs of marks, ends of lines."""
    return len(re.findall(r" ?[A-Za-z]{1,6}|[0-9]{1,3}| ?[^\w\s]+|\n+|\s", text))


def _joined(text: str) -> int:
    """A tokenizer that joins over blanks: so many characters make a token, whatever they are."""
    return -(-len(text) // 5)


def _counted(kind: str, count: Callable[[str], int]) -> Counted:
    return counted(kind, lambda texts: [count(text) for text in texts], count)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_a_text_are_the_sum_of_its_units(kind: str) -> None:
    table = _counted(kind, _words)
    assert (table.source, table.check) == ("tokenizer", None)
    rng = np.random.default_rng(3)
    for tokens in (64, 65, 66, 200, 1_500, 20_000):
        text, told = section(kind, tokens, rng.bytes(8), rng, table.sizes(kind))
        assert abs(_words(text) - tokens) <= 1
        assert abs(told - tokens) <= 1


def test_a_tokenizer_that_joins_over_blanks_is_noticed() -> None:
    table = _counted("story", lambda text: _words(text) + text.count(" a a"))
    assert table.check is None  # nothing in a text is like that
    odd = _counted("story", _joined)
    assert odd.off_tokens > 1
    assert odd.check is _joined


def test_a_server_that_counts_less_than_nothing_makes_no_table_of_zeros() -> None:
    sizes = _counted("story", lambda text: 7).sizes("story")
    assert min(sizes.words.min(), sizes.lines.min(), sizes.first.min(), sizes.asks.min()) == 1


def test_the_overhead_of_a_template_is_the_usual_difference() -> None:
    table = _counted("story", _words)
    assert table.through([(100, 112), (50, 62), (70, 83)]).overhead_tokens == 12
    assert table.through([(100, 90)]).overhead_tokens == 0
    assert table.through([]) == table
    learned = table.through([(100, 112)])
    assert (learned.budget(112), learned.share(112), learned.budget(3)) == (100, 112, 1)
    assert learned.through([(100, 101), (100, 101)]).overhead_tokens == 13  # on top of what they were made with


def test_a_second_look_corrects_the_scale() -> None:
    assert Calibration(0.5, 20).through([(100, 60), (100, 60)]) == Calibration(0.4, 20)
    assert Calibration(0.5, 20).through([]) == Calibration(0.5, 20)
    assert Calibration(0.5, 20).through([(100, 10)]) == Calibration(0.5, 20)
