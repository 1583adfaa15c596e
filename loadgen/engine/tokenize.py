"""Counts the tokens of texts at a server's `/tokenize`, before any load is sent.

Knows: how servers want to be asked, how many questions go at once, how long it may take. Must not know: what is
counted, tables, prompts.
Why one body: vLLM takes `prompt`, llama.cpp `content`, SGLang `prompt` (also a list of them), and each ignores what the
others take; a server that knows none of it answers with an error and its prompts are calibrated from `usage` instead.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

import aiohttp

from loadgen.engine.probe import Probed
from loadgen.engine.transport import Security, ssl_context
from loadgen.errors import EndpointError
from loadgen.plan.tokens import Counted, counting

_AT_ONCE = 16
_BATCH = 256  # texts of one question, where a server takes lists
_MOST_S = 60.0  # for one kind of text
_LISTS = ("sglang",)


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

    async def table(self, kind: str) -> Counted:
        """The tokens of the units of `kind`. Raises EndpointError where the server does not tell."""
        if kind in self._tables:
            return self._tables[kind]
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
        """The tokens of each text: lists where the server takes them, else some questions at a time."""
        if self._lists:
            found: list[int] = []
            for start in range(0, len(texts), _BATCH):
                found += await self._ask(session, texts[start : start + _BATCH])
            return found
        counts = [0] * len(texts)
        left = iter(enumerate(texts))

        async def work() -> None:
            for place, text in left:
                (counts[place],) = await self._ask(session, text)

        await asyncio.gather(*(work() for _ in range(min(_AT_ONCE, len(texts)))))
        return counts

    async def _ask(self, session: aiohttp.ClientSession, text: str | list[str]) -> list[int]:
        body = {
            "model": self._model,
            "prompt": text,
            "content": text,
            "add_special_tokens": False,
            "add_special": False,
        }
        async with session.post(self._url, json=body, allow_redirects=False) as response:
            answer = await response.read()
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}")
        counts = _counts(json.loads(answer))
        if len(counts) != (len(text) if isinstance(text, list) else 1):
            raise ValueError("an answer without its count")
        return counts


def _counts(answer: Any) -> list[int]:
    """What an answer says: `count` (vLLM, SGLang), else the length of `tokens` (llama.cpp). Raises ValueError."""
    told = answer.get("count") if isinstance(answer, dict) else None
    if told is None and isinstance(answer, dict) and isinstance(tokens := answer.get("tokens"), list):
        told = [len(one) for one in tokens] if tokens and all(isinstance(t, list) for t in tokens) else len(tokens)
    counts: list[Any] = told if isinstance(told, list) else [told]
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise ValueError("an answer without a count")
    return counts
