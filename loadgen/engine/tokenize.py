"""Counts the tokens of texts at a server's `/tokenize`, before any load is sent.

Knows: how servers want to be asked, how many texts go into one question, how long it may take. Must not know: what is
counted, tables, prompts.
Why one body: vLLM takes `prompt`, llama.cpp `content`, SGLang `prompt` (also a list of them), and each ignores what the
others take; a server that knows none of it answers with an error and its prompts are calibrated from `usage` instead.
Why packed: a kind has up to 1,700 texts to count. Where a server takes no list, many go into one question with a mark
between them; its token ids, which the server tells, show where each text ends. A pack is believed if it holds as many
marks as it should and some of its texts, asked alone, have the same counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import aiohttp

from loadgen.engine.probe import Probed
from loadgen.engine.transport import Security, ssl_context
from loadgen.errors import EndpointError
from loadgen.plan.tokens import Counted, counting

_AT_ONCE = 16
_BATCH = 256  # texts of one question
_PACK_CHARS = 32_768  # of one question, where texts are packed
_MARK = " zq\n"  # between packed texts: behind a visible character, before one (see `plan.pools` on edges)
_ALONE = 4  # texts of a pack that are asked alone as well
_MOST = 400  # questions for one kind of text
_MOST_S = 60.0  # for one kind of text
_LISTS = ("sglang",)

T = TypeVar("T")


class Tokenizer(Protocol):
    """What counts the tokens of a text, or of many; picklable."""

    def __call__(self, text: str) -> int: ...

    def many(self, texts: list[str]) -> list[int]: ...


class ServerTokenizer:
    """The `/tokenize` of one server. The table of each kind is made once."""

    def __init__(self, probed: Probed, headers: dict[str, str], security: Security) -> None:
        self._url, self._model, self._lists = probed.tokenize_url or "", probed.target.model, probed.engine in _LISTS
        self._headers, self._security = headers, security
        self._tables: dict[str, Counted] = {}
        self._mark: list[int] = []  # its token ids; empty: texts cannot be packed
        self.asked = 0  # questions for the kind of text that was counted last

    def knows(self, kind: str) -> bool:
        """Whether the units of `kind` have been counted."""
        return kind in self._tables

    async def table(self, kind: str) -> Counted:
        """The tokens of the units of `kind`. Raises EndpointError where the server does not tell."""
        if kind in self._tables:
            return self._tables[kind]
        self.asked = 0
        connector = aiohttp.TCPConnector(ssl=ssl_context(self._security), limit=_AT_ONCE)
        async with aiohttp.ClientSession(
            headers=self._headers,
            connector=connector,
            trust_env=self._security.trust_env,
            timeout=aiohttp.ClientTimeout(total=_MOST_S),
        ) as session:
            try:
                async with asyncio.timeout(_MOST_S):
                    self._tables[kind] = await self._count(session, kind)
            except TimeoutError as slow:
                raise EndpointError(f"counting took over {_MOST_S:g} s", where=self._url) from slow
            except (aiohttp.ClientError, OSError, ValueError) as bad:
                raise EndpointError(f"does not count: {bad}", where=self._url) from bad
        return self._tables[kind]

    async def _count(self, session: aiohttp.ClientSession, kind: str) -> Counted:
        steps = counting(kind, "server")
        try:
            texts = next(steps)
            while True:
                texts = steps.send(await self._many(session, texts))
        except StopIteration as done:
            table: Counted = done.value
            return table

    async def _many(self, session: aiohttp.ClientSession, texts: list[str]) -> list[int]:
        """The tokens of each text: lists where the server takes them, else packs."""
        if self._lists:
            return [n for some in _packs(texts, None) for n in _counts(await self._ask(session, some), len(some))]
        if not self._mark:
            self._mark = await self._ids_of_mark(session)
        packs = _packs(texts, _PACK_CHARS)
        found = await _at_once([partial(self._pack, session, pack) for pack in packs])
        doubted = [text for pack, counts in zip(packs, found, strict=True) if not counts for text in pack]
        if self.asked + len(doubted) > _MOST:
            raise ValueError(f"one text at a time, {len(doubted):,} questions would be needed")
        alone = iter(await _at_once([partial(self._alone, session, text) for text in doubted]))
        return [n for pack, counts in zip(packs, found, strict=True) for n in counts or [next(alone) for _ in pack]]

    async def _ids_of_mark(self, session: aiohttp.ClientSession) -> list[int]:
        """What stands behind "a" and before another "a", which is one token wherever it stands."""
        once, twice = [_ids(await self._ask(session, _MARK.join("a" * n))) for n in (2, 3)]
        return once[1:-1] if len(once) > 2 and once + once[1:] == twice else []

    async def _pack(self, session: aiohttp.ClientSession, texts: list[str]) -> list[int]:
        """The tokens of each of the texts by one question; empty where that cannot be believed."""
        if not self._mark:
            return []
        counts = _split(_ids(await self._ask(session, _MARK.join(texts))), self._mark)
        if len(counts) != len(texts):
            return []
        for place in {1 + index * (len(texts) - 2) // (_ALONE - 1) for index in range(_ALONE if len(texts) > 1 else 0)}:
            if await self._alone(session, texts[place]) != counts[place]:
                return []
        return counts

    async def _alone(self, session: aiohttp.ClientSession, text: str) -> int:
        return _counts(await self._ask(session, text), 1)[0]

    async def _ask(self, session: aiohttp.ClientSession, text: str | list[str]) -> Any:
        body = {
            "model": self._model,
            "prompt": text,
            "content": text,
            "add_special_tokens": False,
            "add_special": False,
        }
        self.asked += 1
        async with session.post(self._url, json=body, allow_redirects=False) as response:
            answer = await response.read()
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}")
        return json.loads(answer)


async def _at_once(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """What each call returns, some of them running at a time."""
    found: dict[int, T] = {}
    left = iter(enumerate(calls))

    async def work() -> None:
        for place, call in left:
            found[place] = await call()

    await asyncio.gather(*(work() for _ in range(min(_AT_ONCE, len(calls)))))
    return [found[place] for place in range(len(calls))]


def _packs(texts: list[str], most_chars: int | None) -> list[list[str]]:
    """The texts in order, some in each pack."""
    packs: list[list[str]] = []
    size = 0
    for text in texts:
        size += len(text) + len(_MARK)
        if not packs or len(packs[-1]) == _BATCH or (most_chars is not None and size > most_chars):
            packs.append([])
            size = len(text)
        packs[-1].append(text)
    return packs


def _split(ids: list[int], mark: list[int]) -> list[int]:
    """How many ids stand before, between and behind the marks."""
    counts, start, place = [], 0, 0
    while place < len(ids):
        if ids[place : place + len(mark)] == mark:
            counts.append(place - start)
            start = place = place + len(mark)
        else:
            place += 1
    return [*counts, len(ids) - start]


def _ids(answer: Any) -> list[int]:
    """The token ids that an answer tells; empty where it tells none."""
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    return tokens if isinstance(tokens, list) and all(isinstance(one, int) for one in tokens) else []


def _counts(answer: Any, wanted: int) -> list[int]:
    """What an answer says: `count` (vLLM, SGLang), else the length of `tokens` (llama.cpp). Raises ValueError."""
    told = answer.get("count") if isinstance(answer, dict) else None
    if told is None and isinstance(answer, dict) and isinstance(tokens := answer.get("tokens"), list):
        told = [len(one) for one in tokens] if tokens and all(isinstance(t, list) for t in tokens) else len(tokens)
    counts: list[Any] = told if isinstance(told, list) else [told]
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise ValueError("an answer without a count")
    if len(counts) != wanted:
        raise ValueError("an answer without its count")
    return counts
