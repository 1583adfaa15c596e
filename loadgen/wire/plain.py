"""The shape that nearly every event of a stream has, read fast: some text or reasoning, perhaps a running usage.

Knows: that shape. Must not know: any other; whatever differs is left to `dialects`, which reads everything.
Why: decoding runs on the core that also receives. Checked while it is parsed, a plain event costs a third of the time
that the general reader needs, and an answer of a few hundred tokens does not stop the client for milliseconds.

The types are strict: an unknown field, a second choice, a finish_reason, logprobs, text elsewhere do not fit.

Within one stream such events differ in their text alone. `Shape` keeps the bytes around the text of the last one: where
the next has the same bytes around a text that needs no unescaping, JSON cannot mean anything else, and is not parsed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]
Nothing = Annotated[list[Any], msgspec.Meta(max_length=0)] | None
Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]


class Running(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A usage object without details or zeros: what `continuous_usage_stats` puts on every event."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    completion_tokens_details: None = None
    prompt_tokens_details: None = None

    def stated(self) -> dict[str, int]:
        """Its counts under the names of `dialects.usage_of`."""
        return {"prompt": self.prompt_tokens, "output": self.completion_tokens, "total": self.total_tokens}


# (is it visible, the text, the running usage)
Plain = tuple[bool, str, Running | None]


class _Delta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: str | None = None
    role: str | None = None
    reasoning_content: str | None = None
    reasoning: None = None
    refusal: None = None
    tool_calls: Nothing = None
    function_call: None = None


class _Choice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    index: Literal[0, None] = None
    logprobs: None = None
    finish_reason: None = None
    stop_reason: None = None
    native_finish_reason: None = None
    matched_stop: None = None
    token_ids: None = None
    content_filter_results: Any = None  # Azure; says nothing about tokens


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
    provider: str | None = None
    obfuscation: str | None = None
    p: str | None = None  # Mistral's padding
    avg_decoded_tokens_per_iter: float | None = None  # TensorRT-LLM; an average over the request, no count
    usage: Running | None = None
    prompt_token_ids: None = None
    error: None = None


class _ChatEvent(_Event, forbid_unknown_fields=True, gc=False, kw_only=True):
    object: Literal["chat.completion.chunk"]
    choices: tuple[_ChatChoice]


class _TextEvent(_Event, forbid_unknown_fields=True, gc=False, kw_only=True):
    object: Literal["text_completion"]
    choices: tuple[_TextChoice]


_decode_chat = msgspec.json.Decoder(_ChatEvent).decode
_decode_text = msgspec.json.Decoder(_TextEvent).decode


def _chat(data: bytes) -> Plain | None:
    try:
        event = _decode_chat(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    delta = event.choices[0].delta
    if delta.content:
        return None if delta.reasoning_content else (True, delta.content, event.usage)
    return (False, delta.reasoning_content, event.usage) if delta.reasoning_content else None


def _text(data: bytes) -> Plain | None:
    try:
        event = _decode_text(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return True, event.choices[0].text, event.usage


PLAIN: dict[str, Callable[[bytes], Plain | None]] = {"chat": _chat, "completions": _text}


class Shape(NamedTuple):
    """The bytes around the text of a plain event, from its `data:` to the empty line that ends it."""

    head: bytes
    tail: bytes
    visible: bool

    def text(self, data: bytes) -> str | None:
        """The text of one whole event of this shape; None where the bytes are anything else."""
        if not (data.startswith(self.head) and data.endswith(self.tail, len(self.head))):
            return None
        return next(iter(_plain_texts([data[len(self.head) : -len(self.tail)]])), None)

    def run(self, data: bytes, at: int, receives: Iterable[tuple[int, int, int]]) -> list[str]:
        """The texts of the receives, whose bytes lie from `at` on, that are each one HTTP chunk with one event of this
        shape: of all from the first on until one is not. A receive is (stamp, bytes, blind).

        The length of a receive tells what its chunk's size line must be, so that two comparisons check the framing
        and all of the event but its text.
        """
        begins: dict[int, bytes] = {}
        tail, insides = self.tail + b"\r\n", []
        for _, size, _ in receives:
            begin = begins.get(size)
            if begin is None:
                begin = begins[size] = self._begin(size)
            end = at + size
            if not (data.startswith(begin, at, end) and data.endswith(tail, at + len(begin), end)):
                break
            insides.append(data[at + len(begin) : end - len(tail)])
            at = end
        return _plain_texts(insides)

    def _begin(self, size: int) -> bytes:
        """How a receive of `size` bytes begins that is one whole chunk: size line and head. (What no receive begins
        with, if no chunk can be that long: its size line would have one digit more or less.)"""
        for digits in range(1, 5):
            line = b"%x" % max(size - digits - 4, 0)
            if len(line) == digits:
                return line + b"\r\n" + self.head
        return b"\r\n"


def _plain_texts(insides: list[bytes]) -> list[str]:
    """What stands between the quotes of JSON strings that need no unescaping, of all from the first on until one does
    need it or is empty.

    Control characters are no JSON, and whatever else does not print is rare enough for the slow way. All are looked at
    together, a quote between them; only where that fails is the place of the failure looked for.
    """
    together = b'"'.join(insides)
    if b"\\" not in together and together.count(b'"') == len(insides) - 1 and all(insides):
        with contextlib.suppress(UnicodeDecodeError):
            text = together.decode()
            if text.isprintable():
                return text.split('"')
    if len(insides) < 2:
        return []
    half = len(insides) // 2
    texts = _plain_texts(insides[:half])
    return texts + _plain_texts(insides[half:]) if len(texts) == half else texts


def shape(data: bytes, plain: Plain) -> Shape | None:
    """The shape of the plain event that `data` is, if its text stands there unescaped, once, and no usage beside it."""
    visible, text, usage = plain
    quoted = b'"' + text.encode() + b'"'
    if usage is not None or b"\\" in data or data.count(quoted) != 1 or not data.startswith(b"data: {"):
        return None
    if data.count(b"\n") != 2 or not data.endswith(b"}\n\n") or b"\r" in data:
        return None
    at = data.index(quoted)
    return Shape(data[: at + 1], data[at + len(quoted) - 1 :], visible)
