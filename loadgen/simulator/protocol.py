"""The OpenAI dialects from the server's side: what a request asks for, and the documents that answer it.

Knows: the fields of chat and completions bodies, refusals in vLLM's words and status codes, SSE events framed as HTTP
chunks. Must not know: engines, time, sockets, faults.
Why: a client is only as well tested as the server is lifelike, so wording and order of fields follow a recorded vLLM.
Sampling fields (temperature, seed, stop ...) are accepted and change nothing: the text comes from a book.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.simulator.tokens import encode, render_chat, token_starts

Dialect = Literal["chat", "completions"]
DONE = b"data: [DONE]\n\n"
DEFAULT_OUTPUT_TOKENS: dict[Dialect, int] = {"chat": 256, "completions": 16}


class Refused(Exception):
    """The request is answered with an error document in place of tokens."""

    def __init__(
        self, status: int, message: str, kind: str, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}

    def document(self) -> bytes:
        """`{"error": {...}}` as vLLM writes it."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


def bad_request(message: str, param: str | None = None) -> Refused:
    """A 400."""
    return Refused(400, message, "BadRequestError", param)


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    prompt: str | list[Any] | None = None
    messages: list[_Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    add_generation_prompt: bool | None = None  # these two only at /tokenize
    return_token_strs: bool | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: bool | int | None = None


# What would change the answer and is not simulated: refused, so that no measurement rests on it unknowingly.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "logprobs": (None, False),
}


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One valid request. `prompt` is what the tokenizer sees; `starts` are its token offsets (`token_starts`)."""

    dialect: Dialect
    prompt: bytes
    starts: NDArray[np.int64]
    prompt_tokens: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


def read_body(data: bytes) -> _Body:
    """Decode a body. Raises Refused (400) for bad JSON or wrong types."""
    try:
        return msgspec.json.decode(data, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError) as bad:
        raise Refused(400, f"1 validation error: {bad}", "Bad Request", "body") from bad


def read_ask(dialect: Dialect, data: bytes, *, model: str, max_model_len: int) -> Ask:
    """Decode and check a request body. Raises Refused: 400, or 404 for another model than `model`."""
    body = read_body(data)
    check_model(body, model)
    for name, allowed in _UNSUPPORTED.items():
        if (value := getattr(body, name)) not in allowed:
            raise bad_request(f"{name}={value} is not supported by this simulated server", name)
    if body.stream_options is not None and not body.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    prompt = encode(prompt_text(body, dialect))
    starts = token_starts(prompt)
    given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    asked = DEFAULT_OUTPUT_TOKENS[dialect] if given is None else given
    _check_lengths(len(starts), asked, given is None, max_model_len)
    options = body.stream_options or _StreamOptions()
    return Ask(
        dialect=dialect,
        prompt=prompt,
        starts=starts,
        prompt_tokens=len(starts),
        max_tokens=min(asked, max_model_len - len(starts)),
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
    )


def check_model(body: _Body, model: str) -> None:
    """Raises Refused (404) where the body names another model; none at all is taken as ours, as vLLM does."""
    if body.model not in (None, "", model):
        message = f"The model `{body.model}` does not exist. Valid aliases: {model}."
        raise Refused(404, message, "NotFoundError", "model")


def prompt_text(body: _Body, dialect: Dialect) -> str:
    """The prompt as one text. Token ids become pieces of at most four letters and digits, one token each."""
    if dialect == "chat":
        if not body.messages:
            raise bad_request("messages: Field required", "body.messages")
        return render_chat((message.role, _content(message)) for message in body.messages)
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt):
        prompt = "".join(f" {np.base_repr(token, 36)[-4:]}" for token in prompt)
    if not isinstance(prompt, str):
        raise bad_request("prompt must be one string or one list of token ids", "prompt")
    if not prompt:
        raise bad_request("The decoder prompt cannot be empty", "prompt")
    return prompt


def _content(message: _Message) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise bad_request(f"content of type {part.type!r} is not supported by this simulated server", "messages")
    return "".join(part.text or "" for part in message.content)


def _check_lengths(prompt_tokens: int, asked: int, by_default: bool, limit: int) -> None:
    if asked < 1:
        raise bad_request(
            f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})", "max_tokens"
        )
    if prompt_tokens + 1 > limit:
        raise bad_request(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {prompt_tokens} "
            "input tokens, which leaves no room for output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={prompt_tokens})",
            "input_tokens",
        )
    if prompt_tokens + asked > limit and not by_default:
        raise bad_request(
            f"This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens and "
            f"your prompt contains {prompt_tokens} input tokens, for a total of {prompt_tokens + asked} tokens. "
            f"Please reduce the length of the input prompt or the number of requested output tokens. "
            f"(parameter=max_tokens, value={asked})",
            "max_tokens",
        )


def usage(prompt_tokens: int, output_tokens: int, cached_tokens: int | None) -> bytes:
    """The usage object as JSON; `cached_tokens` None: the server has no prefix cache and says nothing of it."""
    details = b"null" if cached_tokens is None else b'{"cached_tokens":%d}' % cached_tokens
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":%b}' % (
        prompt_tokens,
        prompt_tokens + output_tokens,
        output_tokens,
        details,
    )


def frame(event: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(event), event)


class Events:
    """The SSE events of one answer, each framed as an HTTP chunk of its own. `text` arguments are JSON-escaped."""

    def __init__(self, dialect: Dialect, answer_id: str, created: int, model: str) -> None:
        kind = {"chat": "chat.completion.chunk", "completions": "text_completion"}[dialect]
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":' % (
            msgspec.json.encode(answer_id),
            kind.encode(),
            created,
            msgspec.json.encode(model),
        )
        chat = dialect == "chat"
        self._open = self._head + (b'[{"index":0,"delta":{"content":"' if chat else b'[{"index":0,"text":"')
        self._close = (b'"}' if chat else b'"') + b',"logprobs":null,"finish_reason":'
        self._role = b'[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        self._chat = chat

    def role(self, use: bytes | None) -> bytes:
        """The first event of a chat stream, without a token; nothing for completions."""
        return frame(self._head + self._role + self._usage(use)) if self._chat else b""

    def token(self, text: bytes, use: bytes | None) -> bytes:
        """An event with generated text; `use` with continuous usage."""
        return frame(b"%b%b%bnull}]%b" % (self._open, text, self._close, self._usage(use)))

    def last_token(self, text: bytes, finish_reason: bytes, use: bytes | None) -> bytes:
        """The event with the last generated text, which carries the finish reason."""
        reason = b'"%b","stop_reason":null}]' % finish_reason
        return frame(b"%b%b%b%b%b" % (self._open, text, self._close, reason, self._usage(use)))

    def usage(self, use: bytes) -> bytes:
        """The event of `include_usage`: no choices."""
        return frame(self._head + b"[]" + self._usage(use))

    def malformed(self, text: bytes) -> bytes:
        """A token event that lost its end."""
        return frame(self._open + text + b"\n\n")

    @staticmethod
    def _usage(use: bytes | None) -> bytes:
        return b"}\n\n" if use is None else b',"usage":%b}\n\n' % use


def error_event(refused: Refused) -> bytes:
    """An error inside a stream of status 200, framed."""
    return frame(b"data: %b\n\n" % refused.document())


def whole_answer(
    dialect: Dialect, answer_id: str, created: int, model: str, text: str, finish_reason: str, use: bytes
) -> bytes:
    """The JSON document of an answer that was not streamed."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    choice |= {"message": {"role": "assistant", "content": text}} if dialect == "chat" else {"text": text}
    return msgspec.json.encode(
        {
            "id": answer_id,
            "object": "chat.completion" if dialect == "chat" else "text_completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": msgspec.Raw(use),
        }
    )
