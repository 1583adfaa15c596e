"""The units that generated texts are made of: a few hundred for each kind, the same in every process.

Knows: what a text of each kind is put together from. Must not know: how (`prompts`), how many tokens a unit has.
Why units: a tokenizer never joins characters over the edges chosen here, so the tokens of a text are the sum of the
tokens of its units, and those can be counted once, by anybody: a tokenizer at hand or the server itself. An edge lies
between a visible character and a blank with a visible character behind it, or between the end of a line and a visible
character. Every unit is ASCII.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from loadgen.plan import vocabulary as words

_LINES = 1024  # log entries; documents and notes have half of that and less
_START_MS, _STEP_MS = 6 * 3_600_000, 61_500  # of the log: 1,024 entries span the day


@dataclass(frozen=True, slots=True)
class Units:
    """Of one kind. `first` and `words` (with a blank before each) begin with the words of `vocabulary.TAGS`, in order;
    behind them `words` has the closing sentences one after the other, each from an index of `sentences` on, and words
    that close small gaps. `asks` and `lines` end with the end of a line; lines are in the order in which texts take
    them."""

    first: tuple[str, ...]
    words: tuple[str, ...]
    sentences: tuple[int, ...]
    asks: tuple[str, ...]
    lines: tuple[str, ...]


@cache
def units(kind: str) -> Units:
    """What texts of `kind` are made of."""
    asks, make = _KINDS[kind]
    sentences = [text.split() for text in words.CLOSINGS]
    starts = np.cumsum([len(words.TAGS), *map(len, sentences)]).tolist()
    plain = [*words.TAGS, *(word for sentence in sentences for word in sentence), *words.FILLERS]
    return Units(words.TAGS, tuple(f" {w}" for w in plain), tuple(starts), tuple(f"{a}\n\n" for a in asks), make())


# -- lines of each kind --------------------------------------------------------------------------------------------


def _pick(rng: np.random.Generator, choices: tuple[str, ...]) -> str:
    return choices[int(rng.integers(len(choices)))]


def _log() -> tuple[str, ...]:
    """A day of log entries in order of time: a level, a component, an event, here and there a stack trace."""
    rng = np.random.default_rng(1)
    made, ms = [], _START_MS
    for _ in range(_LINES):
        ms += int(rng.integers(_STEP_MS))
        seconds, milli = divmod(ms, 1000)
        stamp = f"2026-03-14T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{milli:03d}Z"
        made.append(f"{stamp} {_log_entry(rng)}\n")
    return tuple(made)


def _log_entry(rng: np.random.Generator) -> str:
    level = _pick(rng, words.LEVELS)
    head = f"{level} [{_pick(rng, words.COMPONENTS)}] [req-{int(rng.integers(1 << 32)):08x}] "
    entry = head + _filled(_pick(rng, words.LOG_EVENTS), rng)
    if level in ("ERROR", "FATAL") and rng.random() < 0.4:
        frame = _pick(rng, words.FRAMES)
        frames = [_filled(frame, rng) for _ in range(int(rng.integers(2, 6)))]
        entry = "\n".join([entry, _pick(rng, words.ERRORS), *frames])
    return entry


def _filled(pattern: str, rng: np.random.Generator) -> str:
    return pattern.format(
        n=int(rng.integers(100, 40_000)),
        k=int(rng.integers(2, 99)),
        d=int(rng.integers(0, 10)),
        hex=f"{int(rng.integers(1 << 40)):010x}",
        code=int(rng.choice((200, 204, 404, 409, 429, 500, 502, 503, 504))),
        noun=_pick(rng, words.NOUNS),
        host=_pick(rng, words.HOSTS),
        pkg=_pick(rng, words.PACKAGES),
        cls=_pick(rng, words.CLASSES),
        method=_pick(rng, words.METHODS),
    )


def _document() -> tuple[str, ...]:
    """Paragraphs of three to eight sentences; every fifth begins a numbered section."""
    rng = np.random.default_rng(2)
    made = []
    for number in range(_LINES // 2):
        heading = f"{number // 5 + 1}. {_pick(rng, words.HEADINGS)}\n\n" if number % 5 == 0 else ""
        sentences = " ".join(_sentence(rng) for _ in range(int(rng.integers(3, 9))))
        made.append(f"{heading}{sentences}\n\n")
    return tuple(made)


def _sentence(rng: np.random.Generator) -> str:
    clause = f"{_pick(rng, words.SUBJECTS)} {_pick(rng, words.VERBS)} {_pick(rng, words.OBJECTS)}"
    shape = int(rng.integers(4))
    if shape == 0:
        text = f"{_pick(rng, words.CONNECTIVES)}{clause} {_pick(rng, words.ADVERBIALS)}."
    elif shape == 1:
        second = f"{_pick(rng, words.SUBJECTS)} {_pick(rng, words.VERBS)} {_pick(rng, words.OBJECTS)}"
        text = f"{_pick(rng, words.CONNECTIVES)}{clause}, and {second} {_pick(rng, words.ADVERBIALS)}."
    elif shape == 2:
        text = f"{_pick(rng, words.ADVERBIALS)}, {clause}."
    else:
        year, share = int(rng.integers(1720, 1940)), int(rng.integers(3, 90))
        text = f"in {year} {clause}, which by then concerned about {share} percent of the households."
    return text[0].upper() + text[1:]


def _story() -> tuple[str, ...]:
    rng = np.random.default_rng(3)
    return tuple(f"- {_story_note(rng)}\n" for _ in range(_LINES // 2))


def _story_note(rng: np.random.Generator) -> str:
    return _pick(rng, words.STORY_NOTES).format(
        place=_pick(rng, words.PLACES),
        time=_pick(rng, words.TIMES),
        person=_pick(rng, words.PEOPLE),
        trait=_pick(rng, words.TRAITS),
        event=_pick(rng, words.EVENTS),
        thing=_pick(rng, words.THINGS),
        weather=_pick(rng, words.WEATHERS),
    )


def _guide() -> tuple[str, ...]:
    rng = np.random.default_rng(4)
    points = (_pick(rng, words.GUIDE_POINTS).format(task=_pick(rng, words.TASKS)) for _ in range(_LINES // 2))
    return tuple(f"- Describe {point}.\n" for point in points)


_SUMMARY = ("Summarise the following document in one paragraph for a reader who has no time to read it.",)
_KINDS: dict[str, tuple[tuple[str, ...], Callable[[], tuple[str, ...]]]] = {
    "chat": (words.QUESTIONS, _log),
    "summarize": (_SUMMARY, _document),
    "story": (words.STORY_ASKS, _story),
    "swap": (words.GUIDE_ASKS, _guide),
}
KINDS = tuple(_KINDS)
