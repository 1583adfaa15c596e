"""Prompts: generated texts that look like what people send, each different from its first word on.

Knows: how units become a text of a wanted size. Must not know: how sizes are counted (they come in), schedules, models.

Theory of operation. A text is one section, or several (a shared prefix, the blocks of a trace). A section is eight
words that no other section has in this order, what is asked, lines of the kind's pool in their order with random
leaps, and closing words that fill it up to its size. All sizes are sums of the sizes of units, so a text is put
together by a few cumulative sums, without being looked at: some ten microseconds, since texts are made on the client's
core while a stage runs. The tag comes first: no two prompts share a prefix by which a server's cache could help,
however alike the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from loadgen.plan import vocabulary
from loadgen.plan.pools import KINDS, Units, units

__all__ = ["KINDS", "Sizes", "rough_sizes", "rough_tokens", "section", "tag", "tag_text"]

Ints = NDArray[np.int64]
_MASK = (1 << 64) - 1
_LEAP = 4  # lines are taken 1 to so many apart
_RULE = "---"  # between the lines and the closing words
_PIECES = re.compile(r"[A-Za-z]{1,5}|[0-9]{1,2}|[^A-Za-z0-9\s]|\n+")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The tokens of every unit of one kind, as somebody counts; `rest` is what a section has beside its units."""

    first: Ints
    words: Ints
    asks: Ints
    lines: Ints
    rest: int

    @property
    def least(self) -> int:
        """The size of the largest section that holds a tag only: from it on, sections have the size that was asked."""
        return self.rest + int(self.first.max()) + 7 * int(self.words[: len(vocabulary.TAGS)].max())


def tag(key: int, number: int) -> bytes:
    """Eight bytes, different for every `number` under one key, and unlike under another key.

    A bijection of 64 bits (the finaliser of SplitMix64: Steele, Lea, Flood, OOPSLA 2014), so two numbers never meet.
    """
    z = (key ^ number) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)).to_bytes(8, "big")


def tag_text(label: bytes) -> str:
    """A tag as it stands in texts: a word for each byte."""
    return " ".join([vocabulary.TAGS[byte] for byte in label])


def rough_tokens(text: str) -> int:
    """About as many tokens as common vocabularies (32k to 256k entries) make of an ASCII text: letters by five, digits
    by two, marks one by one, ends of lines. Within 5 % for the texts made here; characters alone are off by 40 %,
    since logs have twice the tokens of prose."""
    return len(_PIECES.findall(text))


@cache
def rough_sizes(kind: str) -> Sizes:
    """Sizes by `rough_tokens`."""
    of = units(kind)
    first, words, asks, lines = (
        np.array([rough_tokens(unit) for unit in group]) for group in (of.first, of.words, of.asks, of.lines)
    )
    return Sizes(first, words, asks, lines, rough_tokens(f"\n{_RULE}\n"))


def section(
    kind: str, size: int, label: bytes, rng: np.random.Generator, sizes: Sizes, *, whole: bool = True
) -> tuple[str, int]:
    """A section of `kind` that begins with the words of `label` and has about `size`, and the size that it has.

    Where it is `whole`, never shorter than its tag; else it misses `size` by less than its smallest word. The same
    arguments give the same text; a larger one begins with the same lines.
    """
    of = units(kind)
    room = size - sizes.rest - int(sizes.first[label[0]]) - sum(int(sizes.words[byte]) for byte in label[1:])
    ask, sentence, start = _picks(rng, len(of.asks), len(of.sentences) - 1, len(of.lines))
    if room < 0 and not whole:
        return _begun(of, size, label, sizes)
    parts = [tag_text(label), "\n"]
    if sizes.asks[ask] <= room:
        parts.append(of.asks[ask])
        room -= int(sizes.asks[ask])
        taken, room = _lines(room, start, rng, sizes.lines)
        parts += [of.lines[i] for i in taken]
    parts.append(_RULE)
    closing, room = _closing(room, of.sentences[sentence], of.sentences[-1], sizes.words)
    parts += [of.words[i] for i in closing]
    parts.append("\n")
    return "".join(parts), size - room


def _begun(of: Units, size: int, label: bytes, sizes: Sizes) -> tuple[str, int]:
    """As much of a tag as fits into `size`, at least its first word, and what fills it up."""
    room = size - int(sizes.first[label[0]])
    parts = [of.first[label[0]]]
    for byte in label[1:]:
        if sizes.words[byte] > room:
            break
        parts.append(of.words[byte])
        room -= int(sizes.words[byte])
    closing, room = _closing(room, of.sentences[-1], of.sentences[-1], sizes.words)
    return "".join([*parts, *(of.words[i] for i in closing)]), size - room


def _picks(rng: np.random.Generator, *counts: int) -> list[int]:
    """An index below each of `counts`."""
    return [int(u * count) for u, count in zip(rng.random(len(counts)).tolist(), counts, strict=True)]


def _lines(room: int, start: int, rng: np.random.Generator, sizes: Ints) -> tuple[list[int], int]:
    """As many lines as fit into `room`, from the one behind `start` on and round again; and the room that is left."""
    least = int(sizes.min())
    if room < least:
        return [], room
    most = room // least + 1
    taken = (start + np.cumsum(rng.integers(1, _LEAP + 1, most))) % len(sizes)
    ends = np.cumsum(sizes[taken])
    count = int(np.searchsorted(ends, room, "right"))
    return taken[:count].tolist(), room - (int(ends[count - 1]) if count else 0)


def _closing(room: int, start: int, end: int, sizes: Ints) -> tuple[list[int], int]:
    """Words of the closing sentences from `start` on (they end before `end`), then such as fit into what is left."""
    taken: list[int] = []
    first = len(vocabulary.TAGS)
    while room > 0:
        ends = np.cumsum(sizes[start:end])
        count = int(np.searchsorted(ends, room, "right"))
        taken += range(start, start + count)
        room -= int(ends[count - 1]) if count else 0
        if start + count < end:
            break
        start = first
    while room > 0:
        fitting = np.flatnonzero(sizes[end:] <= room)
        if not len(fitting):
            break
        best = end + int(fitting[np.argmax(sizes[end:][fitting])])
        taken.append(best)
        room -= int(sizes[best])
    return taken, room
