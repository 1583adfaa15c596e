"""Token counts: what calibration learns, and that texts are made to fit an exact count."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.prompts import KINDS, write
from loadgen.plan.tokens import DEFAULTS, Calibration, Exact, calibrate, fit


@given(
    st.floats(0.1, 1.0), st.integers(0, 200), st.lists(st.integers(500, 90_000), min_size=2, max_size=20, unique=True)
)
def test_a_server_that_is_affine_is_learned(density: float, overhead: int, chars: list[int]) -> None:
    pairs = [(c, round(overhead + density * c)) for c in chars]
    learned = calibrate(pairs)
    for c, tokens in pairs:
        assert learned.tokens(c) == pytest.approx(tokens, rel=0.02 if max(chars) >= 1.3 * min(chars) else 0.3, abs=2)


def test_two_lengths_tell_overhead_from_density() -> None:
    learned = calibrate([(1000, 340), (500, 190)])
    assert (learned.tokens_per_char, learned.overhead_tokens) == pytest.approx((0.3, 40))
    assert learned.chars(340) == 1000


def test_one_length_gives_the_ratio() -> None:
    assert calibrate([(1000, 300), (1010, 303)]) == Calibration(pytest.approx(0.3), 0.0)


def test_counts_that_make_no_sense_are_not_extrapolated() -> None:
    assert calibrate([(1000, 100), (500, 200)]).overhead_tokens == 0  # fewer tokens for more text
    assert calibrate([(1000, 0), (500, 0)], DEFAULTS["chat"]) == DEFAULTS["chat"]


def test_nothing_seen_is_the_default() -> None:
    assert calibrate([], DEFAULTS["chat"]) == DEFAULTS["chat"]


def _words(text: str) -> int:
    """A stand-in tokenizer: words, digits one by one, every mark."""
    return len(re.findall(r"[A-Za-z]+|\d|[^\w\s]", text))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [64, 200, 1_500, 20_000])
def test_texts_are_grown_and_shrunk_until_they_fit(kind: str, tokens: int) -> None:
    def make(chars: int) -> str:
        return write(kind, chars, "0123456789abcdef", np.random.default_rng(3))

    text, count = fit(make, tokens, Exact(_words, overhead_tokens=9))
    assert _words(text) + 9 == count
    assert abs(count - tokens) <= 2  # a word of the text may be several tokens


def test_what_cannot_fit_is_told_as_it_is() -> None:
    """A text that does not grow enough, one that may not get shorter, and tokens that come in fours."""
    assert fit(lambda chars: "a b c", 30, Exact(_words)) == ("a b c", 3)
    assert fit(lambda chars: "tag: " + "x " * chars, 5, Exact(_words, overhead_tokens=9)) == ("tag: x ", 12)
    text, count = fit(lambda chars: "y" * chars, 10, Exact(lambda text: 4 * (len(text) // 4)))
    assert (len(text) // 4 * 4, abs(count - 10)) == (count, 2)


def test_the_overhead_of_a_template_is_the_usual_difference() -> None:
    exact = Exact(_words, 0)
    assert exact.through([(100, 112), (50, 62), (70, 83)]).overhead_tokens == 12
    assert exact.through([(100, 90)]).overhead_tokens == 0
    assert exact.through([]) == exact


def test_with_a_calibration_the_count_is_what_it_predicts() -> None:
    text, count = fit(lambda chars: "x" * chars, 120, Calibration(0.5, 20))
    assert (len(text), count) == (200, 120)
