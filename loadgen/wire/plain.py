"""The one shape that nearly every event of a stream has, read fast: some visible text and nothing else.

Knows: that shape. Must not know: any other; whatever differs is left to `dialects`, which reads everything.
Why: decoding runs on the core that also receives. Checked while it is parsed, a plain event costs a fifth of the time
that the general reader needs, and an answer of a few hundred tokens no longer stops the client for milliseconds.

The types are strict: unknown fields, a second choice, a finish_reason, usage, logprobs, text elsewhere do not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]
Nothing = Annotated[list[Any], msgspec.Meta(max_length=0)] | None


class _Delta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: Text
    role: str | None = None
    reasoning_content: None = None
    reasoning: None = None
    refusal: None = None
    tool_calls: Nothing = None
    function_call: None = None


class _Choice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    index: int | None = None
    logprobs: None = None
    finish_reason: None = None
    stop_reason: None = None
    matched_stop: None = None
    token_ids: None = None


class _ChatChoice(_Choice, forbid_unknown_fields=True, gc=False, kw_only=True):
    delta: _Delta


class _TextChoice(_Choice, forbid_unknown_fields=True, gc=False, kw_only=True):
    text: Text
    prompt_logprobs: None = None
    prompt_token_ids: None = None


class _Event(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str | None = None
    created: float | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    obfuscation: str | None = None
    usage: None = None
    prompt_token_ids: None = None


class _ChatEvent(_Event, forbid_unknown_fields=True, gc=False, kw_only=True):
    object: Literal["chat.completion.chunk"]
    choices: tuple[_ChatChoice]


class _TextEvent(_Event, forbid_unknown_fields=True, gc=False, kw_only=True):
    object: Literal["text_completion"]
    choices: tuple[_TextChoice]


def plain_reader(dialect: str) -> Callable[[bytes], str | None]:
    """A function that gives the text of a plain event of the dialect, None for every other."""
    return _chat if dialect == "chat" else _text


_decode_chat = msgspec.json.Decoder(_ChatEvent).decode
_decode_text = msgspec.json.Decoder(_TextEvent).decode


def _chat(data: bytes) -> str | None:
    try:
        return _decode_chat(data).choices[0].delta.content
    except msgspec.DecodeError:
        return None


def _text(data: bytes) -> str | None:
    try:
        return _decode_text(data).choices[0].text
    except msgspec.DecodeError:
        return None
