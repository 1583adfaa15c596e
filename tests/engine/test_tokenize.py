"""Counting at a server's /tokenize: the forms of vLLM, llama.cpp and SGLang, and servers that do not count."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from aiohttp import web

from loadgen.engine.probe import Probed
from loadgen.engine.runner import Target
from loadgen.engine.tokenize import ServerTokenizer
from loadgen.engine.transport import Security
from loadgen.errors import EndpointError
from loadgen.plan.prompts import _PIECES, rough_tokens, section
from loadgen.plan.tokens import Counted
from loadgen.plan.vocabulary import TAGS

Answer = Callable[[dict[str, Any]], Any]


def _table(engine: str, answer: Answer, kind: str = "story") -> tuple[Counted, list[dict[str, Any]]]:
    """The table that a server's answers make, and what it was asked."""
    asked: list[dict[str, Any]] = []

    async def tokenize(request: web.Request) -> web.Response:
        asked.append(await request.json())
        told = answer(asked[-1])
        return told if isinstance(told, web.Response) else web.json_response(told)

    async def scenario() -> Counted:
        app = web.Application()
        app.router.add_post("/tokenize", tokenize)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        probed = Probed(Target("b", "chat", "m"), engine, tokenize_url=f"http://127.0.0.1:{port}/tokenize")
        try:
            server = ServerTokenizer(probed, {"Authorization": "Bearer k"}, Security())
            table = await server.table(kind)
            assert await server.table(kind) is table  # asked once
            return table
        finally:
            await runner.cleanup()

    return asyncio.run(scenario()), asked


def _ids(text: str) -> list[int]:
    return [crc32(piece.encode()) for piece in _PIECES.findall(text)]


def _vllm(body: dict[str, Any]) -> Any:
    ids = _ids(body["prompt"])
    return {"count": len(ids), "max_model_len": 2048, "tokens": ids, "token_strs": None}


def _llama_cpp(body: dict[str, Any]) -> Any:
    return {"tokens": _ids(body["content"])}


def _sglang(body: dict[str, Any]) -> Any:
    counts = [rough_tokens(text) for text in body["prompt"]]
    return {"tokens": [[7] * n for n in counts], "count": counts, "max_model_len": 2048}


@pytest.mark.parametrize(
    ("engine", "answer"),
    [("vllm", _vllm), ("llama.cpp", _llama_cpp), ("sglang", _sglang)],
    ids=["vllm", "llama.cpp", "sglang"],
)
def test_each_servers_form(engine: str, answer: Answer) -> None:
    table, asked = _table(engine, answer)
    assert (table.source, table.off_tokens) == ("server", 0)
    assert all(body["model"] == "m" and body["add_special"] is body["add_special_tokens"] is False for body in asked)
    assert len(asked) < (20 if engine == "sglang" else 60)  # 1,186 pieces
    rng = np.random.default_rng(2)
    for tokens in (50, 300, 1_500):
        assert rough_tokens(section("story", tokens, rng.bytes(8), rng, table.sizes("story"))[0]) == tokens


def test_what_is_otherwise_behind_a_mark_is_asked_alone() -> None:
    """SentencePiece puts a blank before a text: its first word has other tokens than behind the end of a line."""

    def answer(body: dict[str, Any]) -> Any:
        text = re.sub(r"(?m)(?<=\n)([a-z]{2})(?=[a-z]{2} )", r"\1~", body["content"])
        ids = _ids(text)
        return {"tokens": ids}

    table, asked = _table("llama.cpp", answer)
    assert table.table.first.tolist() == [rough_tokens(word) for word in TAGS]
    assert 256 < len(asked) <= 400


@pytest.mark.parametrize("ids", [[7], [], None], ids=["all the same", "none", "a count alone"])
def test_a_server_that_would_have_to_be_asked_a_thousand_times_is_not(ids: list[int] | None) -> None:
    def answer(body: dict[str, Any]) -> Any:
        count = rough_tokens(body["prompt"])
        return {"count": count} | ({} if ids is None else {"tokens": ids * count})

    with pytest.raises(EndpointError, match=r"one text at a time, \d+ questions"):
        _table("vllm", answer)


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("vllm", web.Response),  # nothing at all
        ("vllm", lambda: web.json_response({"error": "no"}, status=404)),
        ("vllm", lambda: {"tokens": None}),
        ("vllm", lambda: {"count": -1}),
        ("vllm", lambda: {"count": True}),
        ("vllm", lambda: [1, 2]),
        ("sglang", lambda: {"count": [1, 2]}),
    ],
    ids=["nothing", "404", "null", "negative", "bool", "list", "too many"],
)
def test_an_answer_without_a_count_is_an_error_not_a_table(engine: str, told: Callable[[], Any]) -> None:
    with pytest.raises(EndpointError, match="does not count"):
        _table(engine, lambda body: told())
