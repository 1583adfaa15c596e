"""How many tokens a text has: estimated, calibrated from the server's own counts, or counted exactly.

Knows: server tokens = overhead (template, tag) + tokens per character * characters. Must not know: prompts, servers.
Why: a prompt must have the asked length as the server counts it, and most servers can only tell after the fact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_SPREAD = 1.3  # lengths must differ by this factor before an overhead can be told from the density
_MAX_OVERHEAD = 2_000.0  # tokens; templates with a built-in system prompt reach hundreds
_TRIES = 12


@dataclass(frozen=True, slots=True)
class Calibration:
    """Server tokens of a text of c characters: `overhead_tokens + tokens_per_char * c`."""

    tokens_per_char: float
    overhead_tokens: float = 0.0

    @property
    def density(self) -> float:
        """Tokens per character of text."""
        return self.tokens_per_char

    def chars(self, tokens: int) -> int:
        """How many characters make `tokens` server tokens (>= 1)."""
        return max(1, round((tokens - self.overhead_tokens) / self.tokens_per_char))

    def through(self, observations: Sequence[tuple[int, int]]) -> Calibration:
        """The same overhead, with the density that (characters, server tokens) near the wanted length really showed:
        a straight line through two lengths is off where the density of the text changes with its length."""
        chars = sum(c for c, _ in observations)
        tokens = sum(t - self.overhead_tokens for _, t in observations)
        return Calibration(tokens / chars, self.overhead_tokens) if chars > 0 and tokens > 0 else self

    def tokens(self, chars: int) -> int:
        """How many server tokens that many characters make."""
        return round(self.overhead_tokens + self.tokens_per_char * chars)


@dataclass(frozen=True, slots=True)
class Exact:
    """A tokenizer at hand: `count(text)` is the number of text tokens, to which the template adds `overhead_tokens`."""

    count: Callable[[str], int]
    overhead_tokens: int = 0
    density: float = 0.3  # tokens per character, roughly: where the search begins


Sizer = Calibration | Exact

# Text tokens per character for each kind of prompt, over common vocabularies (32k to 256k entries): a first guess,
# replaced by what the warm-up shows.
DEFAULTS = {
    "chat": Calibration(0.42, 10),
    "summarize": Calibration(0.20, 10),
    "story": Calibration(0.22, 10),
    "swap": Calibration(0.22, 10),
    "text": Calibration(0.25, 10),
}


def calibrate(observations: Sequence[tuple[int, int]], default: Calibration | None = None) -> Calibration:
    """Learn from (characters sent, prompt tokens that the server counted) pairs.

    Least squares with an overhead where the lengths differ enough to tell it apart, else the mean ratio. Without an
    observation `default` (or the estimate for plain text) is returned.
    """
    if not observations:
        return default or DEFAULTS["text"]
    chars, tokens = (np.asarray(column, dtype=np.float64) for column in zip(*observations, strict=True))
    plain = Calibration(float(tokens.sum() / max(chars.sum(), 1.0)))
    if plain.tokens_per_char <= 0:
        return default or DEFAULTS["text"]
    if chars.max() < _SPREAD * chars.min():
        return plain
    slope, overhead = (float(x) for x in np.polyfit(chars, tokens, 1))
    if slope <= 0 or not 0 <= overhead <= min(_MAX_OVERHEAD, float(tokens.min())):
        return plain
    return Calibration(slope, overhead)


def fit(make: Callable[[int], str], tokens: int, sizer: Sizer) -> tuple[str, int]:
    """A text from `make(characters)` with `tokens` server tokens, and how many it has (by the sizer's knowledge).

    With a tokenizer the text is grown and shrunk by the secant rule until it fits, at most twelve times; the closest
    is returned, so that the caller sees a miss as a difference. `make` must give a longer text for more characters.
    """
    if isinstance(sizer, Calibration):
        text = make(sizer.chars(tokens))
        return text, sizer.tokens(len(text))
    chars = Calibration(sizer.density, sizer.overhead_tokens).chars(tokens)
    best, best_count = "", -1
    low, high = 0, 0  # characters known to be too few, too many (0: not known)
    for _ in range(_TRIES):
        text = make(chars)
        count = sizer.count(text) + sizer.overhead_tokens
        if best_count < 0 or abs(count - tokens) < abs(best_count - tokens):
            best, best_count = text, count
        if count == tokens:
            break
        low, high = (chars, high) if count < tokens else (low, chars)
        step = chars + round((tokens - count) * max(len(text), 1) / max(count, 1))
        chars = max(1, step if step != chars else chars + (1 if count < tokens else -1))
        if low and high and not low < chars < high:
            if high - low <= 1:
                break
            chars = (low + high) // 2
    return best, best_count
