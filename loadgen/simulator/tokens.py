"""The simulator's own tokenizer, its prompt template, and the text that it answers with.

Knows: how text falls into tokens, and prose whose tokens are known piece by piece. Must not know: HTTP, engines, time.
Why: a client that counts tokens can be tested only against a server whose counts are exact. Here `usage`, `/tokenize`,
the prefix cache and the generated text all follow from one rule, which is cheap enough for prompts of 100,000 tokens.

The rule, on UTF-8 bytes: a run of letters, digits and bytes above 0x7f falls into tokens of 4 bytes (the last may be
shorter); every other visible character is a token; of a run of white space the last character belongs to the token that
follows, and what is before it is one token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

_PIECE_BYTES = 4
_SPACE, _WORD, _MARK = 0, 1, 2
_CLASS = np.full(256, _MARK, dtype=np.uint8)
_CLASS[list(b" \t\n\r\x0b\x0c")] = _SPACE
_CLASS[list(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")] = _WORD
_CLASS[0x80:] = _WORD
_VOCABULARY = 128_256

# Special tokens of the chat template: one byte each, which the rule counts as one token.
_HEADER, _END_HEADER, _END_TURN = "\x01", "\x02", "\x03"

_WORDS = """
    the of and a to in is was that it for on with as by at from this his they which but not have had one we all were
    when there can said an each how their will other about out many then them these so some her would make like him
    into time has look more go see number way could people my than first water been call who its now find long down
    day did get come made may part over new sound take only little work know place year live back give most very
    after thing our just name good sentence great think help through much before line right too mean old any same
    tell boy follow came want show also around form three small set put end does another well large must even such
    because turn here why ask went men read need land different home move try kind hand picture again change off play
    spell air away animal house point page letter mother answer found study still learn should world between keep
    never last let thought city tree cross farm hard start might story saw far sea draw left late run while press
    close night real life few north open seem together next white children begin got walk example ease paper group
""".split()  # noqa: SIM905 - a table that is read by people


def token_starts(data: bytes) -> NDArray[np.int64]:
    """Byte offset at which each token of `data` starts (ascending, the first is 0); its length is the token count."""
    if not data:
        return np.zeros(0, dtype=np.int64)
    kinds = _CLASS[np.frombuffer(data, dtype=np.uint8)]
    run_starts = np.flatnonzero(np.diff(kinds, prepend=np.uint8(255)))
    place_in_run = np.arange(len(kinds)) - np.repeat(run_starts, np.diff(run_starts, append=len(kinds)))
    starts = (kinds == _MARK) | (place_in_run % _PIECE_BYTES == 0) & (kinds == _WORD)
    spaces = kinds[run_starts] == _SPACE
    starts[run_starts[spaces]] = True
    followers = run_starts[1:][spaces[:-1]]  # the token after white space begins one byte earlier
    starts[followers] = False
    starts[followers - 1] = True
    return np.flatnonzero(starts)


def encode(text: str) -> bytes:
    """UTF-8, with unpaired surrogates (a client may send them as JSON escapes) kept as they are."""
    return text.encode("utf-8", "surrogatepass")


def count_tokens(text: str) -> int:
    """Tokens in `text`."""
    return len(token_starts(encode(text)))


def token_ids(text: str) -> list[int]:
    """A number for each token of `text`; equal pieces have equal numbers."""
    data = encode(text)
    edges = [*token_starts(data).tolist(), len(data)]
    return [crc32(data[a:b]) % _VOCABULARY for a, b in pairwise(edges)]


def render_chat(messages: Iterable[tuple[str, str]]) -> str:
    """The prompt of a chat of (role, content): each turn between special tokens, then the assistant's header."""
    turns = [f"{_HEADER}{role}{_END_HEADER}{content}{_END_TURN}" for role, content in messages]
    return "".join(turns) + f"{_HEADER}assistant{_END_HEADER}"


class Prefixes:
    """Hashes of the prefixes of a prompt, for the engine's prefix cache.

    The hash of the first n bytes is the sum over i < n of (byte[i] + 1) * weight[i] modulo 2**64 with random odd
    weights (multilinear hashing), so the hashes of all prefixes are one cumulative sum.
    """

    def __init__(self, block_tokens: int, rng: np.random.Generator) -> None:
        self._block_tokens, self._rng = block_tokens, rng
        self._weights = np.zeros(0, dtype=np.uint64)

    def hashes(self, data: bytes, starts: NDArray[np.int64]) -> tuple[int, ...]:
        """The hash of the prefix that ends with each full block of `block_tokens` tokens, in order."""
        ends = np.append(starts, len(data))[self._block_tokens :: self._block_tokens]
        if not len(ends):
            return ()
        if len(self._weights) < len(data):
            more = self._rng.integers(0, 1 << 63, size=2 * len(data) - len(self._weights), dtype=np.uint64)
            self._weights = np.concatenate([self._weights, more * np.uint64(2) + np.uint64(1)])
        values = np.frombuffer(data, dtype=np.uint8).astype(np.uint64) + np.uint64(1)
        return tuple(np.cumsum(values * self._weights[: len(data)])[ends - 1].tolist())


@dataclass(frozen=True, slots=True)
class Book:
    """Prose that goes round for ever: piece i is exactly one token, alone and in any stretch that is read in order."""

    pieces: tuple[str, ...]

    def text(self, start: int, tokens: int) -> str:
        """The `tokens` pieces from piece `start` on."""
        size = len(self.pieces)
        return "".join(self.pieces[(start + i) % size] for i in range(tokens))


def pages(text: str) -> Book:
    """A text of its own as a book: one piece for each of its tokens."""
    data = encode(text)
    edges = [*token_starts(data).tolist(), len(data)]
    return Book(tuple(data[a:b].decode("utf-8", "replace") for a, b in pairwise(edges)))


def asked_last(prompt: bytes) -> str:
    """What the user said last in a prompt that `render_chat` made; the whole prompt where it is no chat."""
    text = prompt.decode("utf-8", "replace")
    _, header, turn = text.rpartition(f"{_HEADER}user{_END_HEADER}")
    return turn.partition(_END_TURN)[0] if header else text


def write_book(rng: np.random.Generator, sentences: int = 400) -> Book:
    """Sentences of 5 to 14 common words with commas and paragraphs, cut into their tokens."""
    pieces: list[str] = []
    for sentence in range(sentences):
        lead = " "
        if sentence % 6 == 0:
            pieces.append("\n")
            lead = "\n"
        length = int(rng.integers(5, 15))
        words = [_WORDS[i] for i in rng.integers(0, len(_WORDS), size=length)]
        comma = int(rng.integers(0, 3 * length))
        for place, word in enumerate(words):
            shown = word.capitalize() if place == 0 else word
            first, *rest = re.findall(f".{{1,{_PIECE_BYTES}}}", shown)
            pieces += [lead + first, *rest]
            lead = " "
            if place == comma and place + 1 < length:
                pieces.append(",")
        pieces.append(".")
    return Book(tuple(pieces))
