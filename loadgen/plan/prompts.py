"""Prompts: generated texts that look like what people send, each different from its first characters on.

Knows: how a text of each kind is put together. Must not know: token counts (lengths are in characters), schedules.

Theory of operation. A process makes one pool of log entries, sentences and notes for each kind (the same in every
process). A text is: the unique tag, what is asked, then pieces of the pool in an order drawn from the request's own
generator, with times, ids and headings added as it goes. That costs about a microsecond per 100 characters, since
texts are made on the client's core while a stage runs. The tag comes first: no two prompts share a prefix by which a
server's cache could help, however alike the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from loadgen.plan import vocabulary as words

_POOL = 4096
_NEAR = 8  # characters by which a text may be longer or shorter than asked, to end with a word
_MASK = (1 << 64) - 1


def tag(key: int, number: int) -> str:
    """Sixteen hex digits, different for every `number` under one key, and unlike under another key.

    A bijection of 64 bits (the finaliser of SplitMix64: Steele, Lea, Flood, OOPSLA 2014), so two numbers never meet.
    """
    z = (key ^ number) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return f"{z ^ (z >> 31):016x}"


def write(kind: str, chars: int, tag: str, rng: np.random.Generator) -> str:
    """A prompt of `kind` with about `chars` characters (cut at the nearest blank), beginning with `tag`.

    Never shorter than the tag. The same arguments give the same text; more characters only add to it.
    """
    return _cut(f"{tag}: {_WRITERS[kind](chars, rng)}", max(chars, len(tag)))


def _cut(text: str, chars: int) -> str:
    """At the blank nearest to `chars`; where none is near (inside a long name or a time) exactly there."""
    if len(text) <= chars:
        return text
    before, after = text.rfind(" ", 0, chars + 1), text.find(" ", chars)
    near = after if 0 <= after - chars < chars - before else before
    return text[:near] if abs(near - chars) <= _NEAR else text[:chars]


# -- writers -------------------------------------------------------------------------------------------------------


def _draws(rows: int, columns: int, rng: np.random.Generator) -> list[list[int]]:
    """Columns of random numbers in 0.._POOL-1. Row by row, so that a longer text begins like a shorter one."""
    columns_first: list[list[int]] = rng.integers(0, _POOL, (rows, columns)).T.tolist()
    return columns_first


def _chat(chars: int, rng: np.random.Generator) -> str:
    """A support question with a pasted log: increasing times, levels, components, stack traces."""
    pool = _log_pool()
    question, day, ms = rng.integers(0, (len(words.QUESTIONS), 28, 60_000_000)).tolist()
    entries, gaps = _draws(chars // 120 + 8, 2, rng)  # entries have 160 characters in the mean
    parts = [words.QUESTIONS[question], "\n\n"]
    for entry, gap in zip(entries, gaps, strict=True):
        ms += gap >> 2
        seconds, milli = divmod(ms, 1000)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        parts.append(f"2026-03-{day + 1:02d}T{hour:02d}:{minute:02d}:{second:02d}.{milli:03d}Z {pool[entry]}\n")
    return "".join(parts)


def _summarize(chars: int, rng: np.random.Generator) -> str:
    """A long document with numbered headings and paragraphs of three to eight sentences."""
    pool = _sentence_pool()
    count = chars // 90 + 12  # sentences have 120 characters in the mean
    picks, sizes, headings = _draws(count, 3, rng)
    parts = ["Summarise the following document in one paragraph for a reader who has no time to read it.\n\n"]
    position = 0
    for paragraph in range(count):
        if position >= count:
            break
        if paragraph % 5 == 0:
            parts.append(f"{paragraph // 5 + 1}. {words.HEADINGS[headings[paragraph] % len(words.HEADINGS)]}\n\n")
        end = position + 3 + sizes[paragraph] % 6
        parts.append(" ".join([pool[i] for i in picks[position:end]]))
        parts.append("\n\n")
        position = end
    return "".join(parts)


def _notes(asks: tuple[str, ...], pool: Callable[[], tuple[str, ...]]) -> Callable[[int, np.random.Generator], str]:
    def text(chars: int, rng: np.random.Generator) -> str:
        notes = pool()
        ask = asks[int(rng.integers(len(asks)))]
        (picks,) = _draws(chars // 30 + 4, 1, rng)
        numbered = [f"({n}) {notes[i % len(notes)]}" for n, i in enumerate(picks, 1)]
        return f"{ask}\n\n{' '.join(numbered)}"

    return text


# -- pools ---------------------------------------------------------------------------------------------------------


def _pick(rng: np.random.Generator, choices: tuple[str, ...]) -> str:
    return choices[int(rng.integers(len(choices)))]


@cache
def _log_pool() -> tuple[str, ...]:
    rng = np.random.default_rng(1)
    return tuple(_log_entry(rng) for _ in range(_POOL))


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


@cache
def _sentence_pool() -> tuple[str, ...]:
    rng = np.random.default_rng(2)
    return tuple(_sentence(rng) for _ in range(_POOL))


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


@cache
def _story_pool() -> tuple[str, ...]:
    rng = np.random.default_rng(3)
    return tuple(_story_note(rng) for _ in range(_POOL // 8))


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


@cache
def _guide_pool() -> tuple[str, ...]:
    rng = np.random.default_rng(4)
    points = (_pick(rng, words.GUIDE_POINTS).format(task=_pick(rng, words.TASKS)) for _ in range(_POOL // 8))
    return tuple(f"Describe {point}." for point in points)


_WRITERS: dict[str, Callable[[int, np.random.Generator], str]] = {
    "chat": _chat,
    "summarize": _summarize,
    "story": _notes(words.STORY_ASKS, _story_pool),
    "swap": _notes(words.GUIDE_ASKS, _guide_pool),
}
KINDS = tuple(_WRITERS)
