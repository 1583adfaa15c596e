"""What each API puts where: tables of fields, and the request bodies that go with them.

Knows: the JSON of chat and text completions as servers really send it. Must not know: SSE, stamps, outcomes.
Why: vendors differ in *where* text, reasoning, tool calls, usage and errors stand, not in what is done with them. So
the differences are rows of tables, and there is one reader for all.

Sources of the field names: the OpenAI API reference; vLLM, SGLang and llama.cpp servers' own streams; Azure OpenAI
(content filters, choices without delta), DeepSeek (`reasoning_content`, `prompt_cache_hit_tokens`), OpenRouter
(`reasoning`, errors beside choices), Groq (`x_groq`), Mistral (content as a list of parts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from loadgen.model import Features, Message, PlannedRequest

Json = dict[str, Any]
Part = Literal["visible", "reasoning", "tools"]

# Where generated text stands in a chat delta (or, not streamed, in a message), and what it is.
_DELTA_TEXT: tuple[tuple[str, Part], ...] = (
    ("reasoning_content", "reasoning"),
    ("reasoning", "reasoning"),
    ("thinking", "reasoning"),
    ("content", "visible"),
    ("refusal", "visible"),
    ("text", "visible"),
)
# Parts of a content *list* by their type (Mistral, gateways in front of Anthropic and Google models).
_PART_TEXT: dict[str, tuple[str, Part]] = {
    "text": ("text", "visible"),
    "output_text": ("text", "visible"),
    "thinking": ("thinking", "reasoning"),
    "reasoning": ("text", "reasoning"),
    "refusal": ("refusal", "visible"),
}
_USAGE_AT: tuple[tuple[str, ...], ...] = (("usage",), ("x_groq", "usage"), ("message", "usage"))
# Name of a count -> where it may stand inside a usage object, best first.
_COUNTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "prompt": (("prompt_tokens",), ("input_tokens",)),
    "output": (("completion_tokens",), ("output_tokens",)),
    "total": (("total_tokens",),),
    "reasoning": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("reasoning_tokens",),
    ),
    "cached": (
        ("prompt_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cached_tokens"),
        ("prompt_cache_hit_tokens",),
        ("cached_tokens",),
        ("cache_read_input_tokens",),
    ),
}
_ERROR_FINISH = {"error", "abort", "server_error"}


@dataclass(slots=True)
class Reading:
    """What one JSON event says. `texts` is in the order of the wire; `empty` marks a content field with no text."""

    texts: list[tuple[Part, str]] = field(default_factory=list)
    empty: bool = False
    count: int | None = None  # tokens in this event, where token ids or logprobs tell
    finish: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    server: dict[str, float] = field(default_factory=dict)
    choices: bool = False
    index: int = 0  # the highest choice index in this event (n > 1)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API: its path, its request body, and where an event keeps what it generated."""

    path: str
    prompt: Callable[[Iterable[Message]], Json]
    sources: tuple[str, ...]  # keys of a choice under which text stands ("" is the choice itself)

    def body(self, planned: PlannedRequest, model: str, features: Features, history: tuple[Message, ...] = ()) -> Json:
        """The request: only what `features` says that the endpoint takes, and what the user asked for."""
        body: Json = {"model": model, **self.prompt((*history, *planned.messages)), "stream": True}
        body[features.max_tokens_field] = planned.output_tokens
        options = {}
        if features.include_usage:
            options["include_usage"] = True
        if features.continuous_usage:
            options["continuous_usage_stats"] = True
        if options:
            body["stream_options"] = options
        if features.ignore_eos:
            body["ignore_eos"] = True
        if features.min_tokens:
            body["min_tokens"] = planned.output_tokens
        if features.temperature is not None:
            body["temperature"] = features.temperature
        return body | features.extra_body

    def read(self, event: Any) -> Reading:
        """What an event (or a whole JSON answer) says; never raises, whatever its shape."""
        reading = Reading()
        if not isinstance(event, dict):
            return reading
        reading.error = error_of(event)
        for path in _USAGE_AT:
            reading.usage.update(_usage(_at(event, path)))
        for key in ("timings", "usage", "x_groq"):
            reading.server.update(_timings(event.get(key)))
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                reading.choices = True
                self._read_choice(choice, reading)
        return reading

    def _read_choice(self, choice: Json, reading: Reading) -> None:
        index = choice.get("index")
        if isinstance(index, int):
            reading.index = max(reading.index, index)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            reading.finish = finish
            if finish.lower() in _ERROR_FINISH and reading.error is None:
                reading.error = f"finish_reason {finish}"
        if choice.get("error") and reading.error is None:
            reading.error = error_of(choice)
        reading.usage.update(_usage(choice.get("usage")))
        before = len(reading.texts)
        blank = False
        for key in self.sources:
            source = choice.get(key) if key else choice
            if isinstance(source, dict):
                blank |= _read_delta(source, reading.texts)
        if len(reading.texts) == before:
            role_only = isinstance(choice.get("delta"), dict) and "role" in choice["delta"] and finish is None
            reading.empty |= blank and not role_only
        counted = _counted(choice)
        if counted is not None and (len(reading.texts) > before or (counted and blank)):
            reading.count = (reading.count or 0) + counted


def _read_delta(delta: Json, texts: list[tuple[Part, str]]) -> bool:
    """Append what a delta carries; True when it has a text field that is there but empty."""
    blank = False
    seen: set[str] = set()
    for key, part in _DELTA_TEXT:
        value = delta.get(key)
        if isinstance(value, str):
            if not value:
                blank = True
            elif not (part == "reasoning" and value in seen):  # some gateways send both spellings
                texts.append((part, value))
                seen.add(value)
        elif isinstance(value, list):
            texts += list(_parts(value))
    for call in _calls(delta):
        for key in ("name", "arguments"):
            value = call.get(key)
            if isinstance(value, str) and value:
                texts.append(("tools", value))
            elif isinstance(value, dict) and value:
                texts.append(("tools", str(value)))
    return blank


def _parts(items: list[Any]) -> Iterable[tuple[Part, str]]:
    for item in items:
        if isinstance(item, str) and item:
            yield "visible", item
        elif isinstance(item, dict):
            key, part = _PART_TEXT.get(str(item.get("type", "text")), ("text", "visible"))
            value = item.get(key)
            if isinstance(value, str) and value:
                yield part, value
            elif isinstance(value, list):
                yield from ((part, text) for _, text in _parts(value))


def _calls(delta: Json) -> Iterable[Json]:
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(call.get("function"), dict):
            yield call["function"]
    if isinstance(delta.get("function_call"), dict):
        yield delta["function_call"]


def _counted(choice: Json) -> int | None:
    """Tokens of this event as token ids or logprobs count them; None where the server tells neither."""
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return len(ids)
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        for key in ("content", "tokens", "refusal"):
            if isinstance(logprobs.get(key), list) and logprobs[key]:
                return len(logprobs[key])
    return None


def _usage(usage: Any) -> dict[str, int]:
    """The counts that a usage object really states: null, absent and all-zero mean "not stated"."""
    if not isinstance(usage, dict):
        return {}
    counts: dict[str, int] = {}
    for name, paths in _COUNTS.items():
        for path in paths:
            value = _at(usage, path)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 53:
                counts[name] = int(value)
                break
    if "output" not in counts and "total" in counts and "prompt" in counts and counts["total"] > counts["prompt"]:
        counts["output"] = counts["total"] - counts["prompt"]
    return counts if any(counts.values()) else {}


def _timings(source: Any) -> dict[str, float]:
    """The server's own times, where it sends them: llama.cpp `timings`, Groq's `*_time`; names as the server has."""
    if not isinstance(source, dict):
        return {}
    return {
        key: float(value)
        for key, value in source.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and (key.endswith(("_ms", "_time", "_per_second")) or key in ("prompt_n", "predicted_n", "cache_n", "draft_n"))
    }


def error_of(event: Json) -> str | None:
    """The message of an error object in any of its shapes, on one line; None where there is no error."""
    error = event.get("error")
    if error:
        return _message(error)
    if event.get("object") == "error" or event.get("type") == "error":
        return _message(event)
    if "choices" not in event and ("detail" in event or "message" in event) and "usage" not in event:
        return _message(event.get("detail") or event)
    return None


def _message(error: Any) -> str:
    if isinstance(error, dict):
        for key in ("message", "msg", "detail", "error", "description"):
            if error.get(key):
                text = _message(error[key])
                code = error.get("code") or error.get("type")
                return f"{text} ({code})" if isinstance(code, int | str) and str(code) not in text else text
    if isinstance(error, list) and error:
        return "; ".join(_message(item) for item in error[:3])
    return " ".join(str(error).split())[:400]


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _chat_prompt(messages: Iterable[Message]) -> Json:
    return {"messages": [{"role": message.role, "content": message.content} for message in messages]}


def _text_prompt(messages: Iterable[Message]) -> Json:
    return {"prompt": "\n\n".join(message.content for message in messages)}


DIALECTS: dict[str, Dialect] = {
    "chat": Dialect("/chat/completions", _chat_prompt, ("delta", "message")),
    "completions": Dialect("/completions", _text_prompt, ("",)),
}
