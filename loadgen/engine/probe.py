"""Finds out what answers at a URL before any load is sent: base URL, model, dialect, accepted fields, engine.

Knows: how servers differ at `/v1/models` and in what they refuse. Must not know: loads, what else servers tell of
themselves (`provenance` does).
Why: a strict server refuses unknown fields and a vendor renames others, so each is tried once, and what was found is
stored with the run. Whatever makes the endpoint unusable is told in one line (`EndpointError`), at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from loadgen.engine import provenance
from loadgen.engine.runner import Target
from loadgen.engine.transport import Security, ssl_context
from loadgen.errors import EndpointError, UsageError
from loadgen.model import Exchange, Features, Message, PlannedRequest
from loadgen.wire.dialects import DIALECTS

_LOOPBACK = ("localhost", "127.", "[::1]", "0.0.0.0", "host.docker.internal")
_ENDPOINTS = ("/chat/completions", "/completions", "/models")
_LOADING_PATIENCE_S = 120.0
_ASIDE_PATIENCE_S = 2.0  # for each answer that a run can do without
_TOKENS = 8  # asked of each trial request
_TOKENIZES = ("vllm", "llama.cpp", "sglang", "loadgen-simulator")
# What a refusal may name, and what to leave out or rename then.
_REMEDIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("max_completion_tokens", {"max_tokens_field": "max_completion_tokens"}),
    ("stream_options", {"include_usage": False}),
    ("include_usage", {"include_usage": False}),
    ("temperature", {"temperature": None}),
)


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probe learned."""

    target: Target
    engine: str | None = None  # "vllm", "llama.cpp", ... or None: not known
    version: str | None = None
    context_limit: int | None = None  # tokens
    models: tuple[str, ...] = ()
    rtt_ns: int | None = None  # of a GET on the kept connection
    tokenize_url: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    trials: tuple[str, ...] = ()  # what was tried and what came of it, one line each
    silent: tuple[str, ...] = ()  # URLs of what was asked aside and did not answer in time


def base_urls(url: str) -> list[str]:
    """Base URLs to try, best first, from what a user may type: a host, `/v1`, or a whole `…/chat/completions`."""
    text = url.strip()
    if "://" not in text:
        text = ("http://" if text.startswith(_LOOPBACK) else "https://") + text
    try:
        parts = urlsplit(text)
    except ValueError as bad:
        raise UsageError(f"is not a URL: {bad}", where=url) from bad
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("not an http(s) URL", where=url, do="give a host or a URL such as http://127.0.0.1:8000/v1")
    try:
        _ = parts.port
    except ValueError as bad:
        raise UsageError(f"bad port: {bad}", where=url) from bad
    path = parts.path.rstrip("/")
    for ending in _ENDPOINTS:
        path = path.removesuffix(ending)
    base = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    return [base] if path.endswith("/v1") or path != parts.path.rstrip("/") else [base + "/v1", base]


class Probe:
    """One look at an endpoint. `trial` sends one small streaming request through the run's own transport."""

    def __init__(
        self,
        headers: dict[str, str],
        security: Security,
        trial: Callable[[Target, PlannedRequest], Awaitable[Exchange]],
        say: Callable[[str], None] = lambda line: None,
        patience_s: float = 15.0,
    ) -> None:
        self._patience_s = patience_s  # for each answer that is not a stream
        self._headers, self._security, self._trial, self._say = headers, security, trial, say
        self._trials: list[str] = []

    async def run(self, url: str, *, model: str | None, dialect: str | None, wanted: Features) -> Probed:
        """Find the endpoint and what it accepts; `wanted` holds what the user fixed. Raises EndpointError."""
        bases, query = base_urls(url), urlsplit(url.strip()).query
        async with aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(ssl=ssl_context(self._security)),
            trust_env=self._security.trust_env,
            timeout=aiohttp.ClientTimeout(total=self._patience_s),
        ) as session:
            base, listing = await self._find(session, bases, f"?{query}" if query else "")
            models = tuple(
                entry["id"] for entry in listing if isinstance(entry.get("id"), str) and _sendable(entry["id"])
            )
            chosen = _choose(model, models, base)
            facts = await self._facts(session, base, listing, chosen)
        target = Target(base, dialect or "chat", chosen, wanted, query)
        target = await self._settle(target, dialect is None, models)
        return replace(facts, target=target, models=models, trials=tuple(self._trials))

    # -- where --------------------------------------------------------------------------------------------------

    async def _find(
        self, session: aiohttp.ClientSession, bases: list[str], query: str
    ) -> tuple[str, list[dict[str, Any]]]:
        deadline = asyncio.get_running_loop().time() + _LOADING_PATIENCE_S
        last = ""
        for base in bases:
            while True:
                status, data = await self._get(session, f"{base}/models{query}")
                if status != 503 or asyncio.get_running_loop().time() > deadline:
                    break
                self._say(f"{base} answers 503 (loading?), waiting")
                await asyncio.sleep(0.5)
            if status in (401, 403):
                raise EndpointError(f"HTTP {status}: the key was refused", where=base, do=_KEY_ADVICE)
            if status == 200 and isinstance(data, dict) and isinstance(data.get("data") or data.get("models"), list):
                entries = data.get("data") or data["models"]
                return base, [entry for entry in entries if isinstance(entry, dict)]
            last = f"HTTP {status}"
            self._trials.append(f"GET {base}/models: {last}")
        # Some gateways list no models: a trial request decides, on the first base that has a /v1.
        if last in ("HTTP 404", "HTTP 405", "HTTP 501", "HTTP 200"):
            return bases[0], []
        raise EndpointError(f"{last} at /models", where=bases[0], do="is this an OpenAI-compatible endpoint?")

    async def _get(self, session: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
        try:
            async with session.get(url, allow_redirects=False) as response:
                body = await response.content.read(4 << 20)
        except TimeoutError as trouble:
            raise EndpointError(
                f"no answer within {self._patience_s:g} s", where=url, do="is the server up?"
            ) from trouble
        except (aiohttp.ClientError, OSError, ValueError) as trouble:
            reason = " ".join(str(trouble).replace(" ssl:default", "").split()) or type(trouble).__name__
            do = _TLS_ADVICE if isinstance(trouble, aiohttp.ClientSSLError) else "is the server up?"
            raise EndpointError(f"cannot be reached: {reason}", where=url, do=do) from trouble
        try:
            return response.status, json.loads(body)
        except (ValueError, RecursionError):
            return response.status, body.decode("utf-8", "replace")

    # -- what ---------------------------------------------------------------------------------------------------

    async def _facts(
        self, session: aiohttp.ClientSession, base: str, listing: list[dict[str, Any]], model: str
    ) -> Probed:
        """Engine, version, context limit: what the server tells of itself without being asked for tokens."""
        entry = next((e for e in listing if e.get("id") == model), listing[0] if listing else {})

        silent: list[str] = []

        async def quietly(url: str) -> tuple[int, Any]:
            try:
                async with asyncio.timeout(min(_ASIDE_PATIENCE_S, self._patience_s)):
                    return await self._get(session, url)
            except TimeoutError:
                silent.append(url)
            except EndpointError:
                pass
            return 0, None

        facts = await provenance.ask(quietly, base, entry)
        loop = asyncio.get_running_loop()
        before = loop.time()
        await self._get(session, base + "/models")
        rtt_ns = int((loop.time() - before) * 1e9)
        tokenize = base.removesuffix("/v1") + "/tokenize" if facts.engine in _TOKENIZES else None
        target = Target(base, "chat", model)
        known = (facts.engine, facts.version, facts.context_limit)
        return Probed(target, *known, (), rtt_ns, tokenize, facts.told, silent=tuple(silent))

    # -- what it accepts ----------------------------------------------------------------------------------------

    async def _settle(self, target: Target, may_change_dialect: bool, models: tuple[str, ...]) -> Target:
        """Find the smallest request that works, then add what makes output lengths exact, if it is accepted."""
        target = await self._accepted(target, may_change_dialect, models)
        if not DIALECTS[target.dialect].generates:
            return target  # there is no output whose length could be fixed
        if target.features.ignore_eos or target.features.min_tokens:
            return target
        for both in (True, False):
            candidate = replace(target, features=replace(target.features, ignore_eos=True, min_tokens=both))
            exchange = await self._try(candidate, "with ignore_eos" + (" and min_tokens" if both else ""))
            if exchange.outcome == "ok":
                return candidate
        return target

    async def _accepted(self, target: Target, may_change_dialect: bool, models: tuple[str, ...]) -> Target:
        for _ in range(len(_REMEDIES) + 2):
            exchange = await self._try(target, target.dialect)
            if exchange.outcome == "ok" or (exchange.failure is not None and exchange.failure.kind == "empty"):
                return target
            message = exchange.failure.message if exchange.failure is not None else "no reason given"
            status = exchange.http_status
            if status in (401, 403):
                raise EndpointError(f"the key was refused: {message}", where=target.url, do=_KEY_ADVICE)
            remedied = _remedy(target, message)
            if status in (400, 422, 500, 501) and remedied is not None:
                target = remedied
            elif status in (404, 405) and may_change_dialect and "model" not in message.lower():
                target, may_change_dialect = replace(target, dialect="completions"), False
            else:
                known = f"; it serves {', '.join(models[:8])}" if models else ""
                raise EndpointError(message + known, where=target.url, do="no load was sent")
        raise EndpointError("refuses every form of request that was tried", where=target.url, do="see --extra-body")

    async def _try(self, target: Target, what: str) -> Exchange:
        planned = PlannedRequest(-1, -1, "probe", (Message("user", "Count from one to ten."),), 6, _TOKENS)
        exchange = await self._trial(target, planned)
        outcome = exchange.outcome if exchange.failure is None else exchange.failure.message
        self._trials.append(f"POST {target.url} ({what}): {outcome}")
        return exchange


_TLS_ADVICE = "give --ca FILE with its authority's certificate, or --insecure"
_KEY_ADVICE = "give a key with --api-key-env VAR"


def _remedy(target: Target, message: str) -> Target | None:
    """The target without what the server's refusal names; None when nothing is left to change."""
    lowered = message.lower()
    for word, change in _REMEDIES:
        changed = replace(target.features, **change)
        if word in lowered and changed != target.features:
            return replace(target, features=changed)
    if ("extra" in lowered or "unknown" in lowered or "unexpected" in lowered) and target.features.include_usage:
        return replace(target, features=replace(target.features, include_usage=False))
    return None


def _sendable(text: str) -> bool:
    """Whether a name is one: a lone surrogate cannot be sent back, and control characters would steer a terminal."""
    return text.isprintable()


def _choose(model: str | None, models: tuple[str, ...], base: str) -> str:
    if model is not None:
        return model
    if len(models) == 1:
        return models[0]
    if not models:
        raise EndpointError(
            "lists no model", where=base, do="is this an OpenAI-compatible API? If it lists none, name one with --model"
        )
    raise EndpointError(f"serves {len(models)} models: {', '.join(models[:8])}", where=base, do="choose with --model")
