"""How many tokens a text has: estimated, calibrated from the server's own counts, or counted exactly.

Knows: server tokens = overhead (template, tag) + tokens per character * characters. Must not know: prompts, servers.
Why: a prompt must have the asked length as the server counts it, and most servers can only tell after the fact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

_SPREAD = 1.3  # lengths must differ by this factor before an overhead can be told from the density
_MAX_OVERHEAD = 2_000.0  # tokens; templates with a built-in system prompt reach hundreds
_TRIES = 40  # a text of a megabyte is halved to a character in 20
_SPARE_CHARS = 64
_GROWTH = 64  # characters for a token, at which a text that does not fill up is given up


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

    def through(self, observations: Sequence[tuple[int, int]]) -> Exact:
        """The same tokenizer with the overhead that (text tokens, server tokens) showed: their median difference."""
        differences = [server - text for text, server in observations]
        return replace(self, overhead_tokens=max(0, round(float(np.median(differences))))) if differences else self


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

    With a tokenizer a text that is long enough is cut to the character at which the count fits; where none does, the
    closest is returned, so that the caller sees a miss as a difference. `make` must give a longer text with the same
    beginning for more characters; `make(1)` is the shortest text that may be sent.
    """
    if isinstance(sizer, Calibration):
        text = make(sizer.chars(tokens))
        return text, sizer.tokens(len(text))
    chars = Calibration(sizer.density, sizer.overhead_tokens).chars(tokens) + _SPARE_CHARS
    text = make(chars)
    count = sizer.count(text) + sizer.overhead_tokens
    while count < tokens and chars < _GROWTH * max(tokens, 1):
        chars = 2 * chars
        text = make(chars)
        count = sizer.count(text) + sizer.overhead_tokens
    return _cut(make(1), text, count, tokens, sizer)


def _cut(shortest: str, text: str, count: int, tokens: int, sizer: Exact) -> tuple[str, int]:
    """The beginning of `text` (of `count` tokens), no shorter than `shortest`, whose count is closest to `tokens`: the
    rule of false position, with a halving at every third step, so that it ends."""
    low, high = len(shortest), len(text)
    low_count, high_count = sizer.count(shortest) + sizer.overhead_tokens, count
    best, best_count = min(((shortest, low_count), (text, high_count)), key=lambda pair: abs(pair[1] - tokens))
    for attempt in range(_TRIES):
        if best_count == tokens or high - low <= 1 or not low_count < tokens < high_count:
            break
        share = 0.5 if attempt % 3 == 2 else (tokens - low_count) / (high_count - low_count)
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        count = sizer.count(text[:middle]) + sizer.overhead_tokens
        if abs(count - tokens) < abs(best_count - tokens):
            best, best_count = text[:middle], count
        if count < tokens:
            low, low_count = middle, count
        else:
            high, high_count = middle, count
    return best, best_count
