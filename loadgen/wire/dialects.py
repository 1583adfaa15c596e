"""What each API puts where: tables of fields, and the request bodies that go with them.

Knows: the JSON of chat and text completions as servers really send it. Must not know: SSE, stamps, outcomes.
Why: vendors differ in *where* text, reasoning, tool calls, usage and errors stand, not in what is done with them. So
the differences are rows of tables, and there is one reader for all: a gateway may answer one API in the shape of the
other, so the reader looks in every place whichever was called.

Sources of the field names: the OpenAI API reference; vLLM, SGLang, llama.cpp and TGI servers' own streams; Azure OpenAI
(content filters, choices without delta), DeepSeek (`reasoning_content`, `prompt_cache_hit_tokens`), OpenRouter
(`reasoning`, `reasoning_details`, errors beside choices), Groq (`x_groq`), Mistral (content as a list of parts),
Cerebras (`time_info`), Cohere and Anthropic behind gateways (`input_tokens`, `thinking`). The Responses API has typed
events instead of choices; `responses` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from loadgen.model import Features, Message, PlannedRequest
from loadgen.wire import responses
from loadgen.wire.reasons import error_of
from loadgen.wire.responses import Part

Json = dict[str, Any]
_MAX_COUNT = 100_000_000  # tokens: no request has more, so a larger number states nothing

# Where a choice keeps what it generated: a chat chunk, a whole chat answer, or (text completions) itself.
_SOURCES = ("delta", "message", "")
# Where text stands there, and what it is; of the spellings of reasoning the first that has any is taken, for gateways
# send the same words under several.
_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_text", "reasoning_details")
_VISIBLE = ("content", "refusal", "text")
# Parts of a content *list* by their type (Mistral, gateways in front of Anthropic and Google models).
_PART_TEXT: dict[str, tuple[str, Part]] = {
    "text": ("text", "visible"),
    "output_text": ("text", "visible"),
    "refusal": ("refusal", "visible"),
    "thinking": ("thinking", "reasoning"),
    "reasoning": ("text", "reasoning"),
    "reasoning.text": ("text", "reasoning"),
    "reasoning.summary": ("summary", "reasoning"),
}
# Where a call keeps its words: functions, the legacy single function, tools that take free text.
_CALL_AT = ("function", "custom")
_CALL_WORDS = ("name", "arguments", "input")
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
_SERVER_AT = ("timings", "usage", "x_groq", "time_info")
_SERVER_NAMES = ("prompt_n", "predicted_n", "cache_n", "draft_n", "draft_n_accepted")
_SERVER_ENDS = ("_ms", "_time", "_per_second")
_ERROR_FINISH = ("error", "abort", "server_error")
_MANY = 1 << 53  # a number beyond this is no count and no time


@dataclass(slots=True)
class Choice:
    """What one event says about one answer. `texts` is in reading order: reasoning, visible, tools."""

    index: int = 0
    texts: list[tuple[Part, str]] = field(default_factory=list)
    blank: bool = False  # a text field is there, and it is empty
    role: bool = False  # the event (also) names the speaker
    count: int | None = None  # tokens in this event, where token ids or logprobs tell
    finish: str | None = None


@dataclass(slots=True)
class Reading:
    """What one JSON event (or a whole JSON answer) says."""

    choices: list[Choice] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)  # keys of _COUNTS, only what is really stated
    error: str | None = None
    server: dict[str, float] = field(default_factory=dict)  # the server's own times and counts, as it names them


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API: its path below the base URL, and its request body."""

    path: str
    prompt: Callable[[Iterable[Message]], Json]
    limit: str | None = None  # the field of the output limit, where it is always the same
    states_usage: bool = False  # the last event brings it, nothing has to be asked for
    generates: bool = True  # False: an answer without tokens, in one document (embeddings)

    def body(self, planned: PlannedRequest, model: str, features: Features, history: tuple[Message, ...] = ()) -> Json:
        """The request: only what `features` says that the endpoint takes, and what the user asked for."""
        body: Json = {"model": model, **self.prompt((*history, *planned.messages))}
        if not self.generates:
            return body | features.extra_body
        body["stream"] = True
        body[self.limit or features.max_tokens_field] = planned.output_tokens
        options = {}
        if features.include_usage:
            options["include_usage"] = True
        if features.continuous_usage:
            options["continuous_usage_stats"] = True
        if options and not self.states_usage:
            body["stream_options"] = options
        if features.ignore_eos:
            body["ignore_eos"] = True
        if features.min_tokens:
            body["min_tokens"] = planned.output_tokens
        if features.temperature is not None:
            body["temperature"] = features.temperature
        return body | features.extra_body


def read(event: Any) -> Reading:
    """What an event (or a whole JSON answer) says; never raises, whatever its shape."""
    reading = Reading()
    if not isinstance(event, dict):
        return reading
    reading.error = error_of(event)
    for path in _USAGE_AT:
        if path[0] in event:
            reading.usage.update(usage_of(_at(event, path)))
    for key in _SERVER_AT:
        if key in event:
            reading.server.update(_server(event[key]))
    if responses.is_event(event):
        said = responses.read(event)
        if said.usage is not None:
            reading.usage.update(usage_of(said.usage))
        reading.error = reading.error or (None if said.error is None else error_of({"error": said.error}))
        if said.texts or said.blank or said.finish:
            reading.choices.append(Choice(0, list(said.texts), said.blank, False, said.count, said.finish))
        return reading
    if _is_embedding(event):
        reading.choices.append(Choice(finish="stop"))
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            reading.choices.append(_choice(choice, reading))
    return reading


def _is_embedding(event: Json) -> bool:
    """A whole answer of the embeddings API: vectors, as numbers or as base64, one for each input."""
    data = event.get("data")
    return isinstance(data, list) and bool(data) and all(isinstance(one, dict) and one.get("embedding") for one in data)


def _choice(source: Json, reading: Reading) -> Choice:
    choice = Choice()
    index = source.get("index")
    if isinstance(index, int):
        choice.index = index
    finish = source.get("finish_reason")
    if isinstance(finish, str) and finish.isprintable() and finish:
        choice.finish = finish[:60]
        if finish.lower() in _ERROR_FINISH and reading.error is None:
            reading.error = f"finish_reason {finish}"
    if source.get("error") and reading.error is None:
        reading.error = error_of(source)
    if "usage" in source:  # Moonshot
        reading.usage.update(usage_of(source["usage"]))
    for key in _SOURCES:
        part = source.get(key) if key else source
        if isinstance(part, dict):
            choice.role |= isinstance(part.get("role"), str)
            _read_texts(part, choice)
            if choice.texts:
                break
    choice.count = _counted(source)
    return choice


def _read_texts(source: Json, choice: Choice) -> None:
    """Append what a delta, a message or a choice carries."""
    texts = choice.texts
    for key in _REASONING:
        value = source.get(key)
        if value:
            texts += _texts(value, "reasoning")
            if texts:
                break
        elif value == "":
            choice.blank = True
    for key in _VISIBLE:
        value = source.get(key)
        if isinstance(value, str):
            if value:
                texts.append(("visible", value))
            else:
                choice.blank = True
        elif value:
            texts += _texts(value, "visible")
    for key, value in (("tool_calls", source.get("tool_calls")), ("function_call", source.get("function_call"))):
        for call in _as_list(value):
            if isinstance(call, dict):
                inner = call if key == "function_call" else next((call[k] for k in _CALL_AT if k in call), None)
                texts += _call_words(inner)


def _texts(value: Any, part: Part, depth: int = 0) -> list[tuple[Part, str]]:
    """The texts in a string, a part, or a list of parts."""
    if isinstance(value, str):
        return [(part, value)] if value else []
    found: list[tuple[Part, str]] = []
    for item in _as_list(value) if depth < 4 else ():
        if isinstance(item, dict):
            key, kind = _PART_TEXT.get(str(item.get("type", "text")), ("text", part))
            # What lies inside reasoning is reasoning, whatever its own type.
            found += _texts(item.get(key), part if part == "reasoning" else kind, depth + 1)
        else:
            found += _texts(item, part, depth + 1)
    return found


def _call_words(call: Any) -> list[tuple[Part, str]]:
    found: list[tuple[Part, str]] = []
    for key in _CALL_WORDS if isinstance(call, dict) else ():
        value = call.get(key)
        if value and isinstance(value, str | dict):  # Ollama has sent arguments as an object
            found.append(("tools", value if isinstance(value, str) else " ".join(map(str, value))))
    return found


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if isinstance(value, dict) else []


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


def usage_of(usage: Any) -> dict[str, int]:
    """The counts that a usage object really states: null, absent and all-zero mean "not stated"."""
    if not isinstance(usage, dict):
        return {}
    counts: dict[str, int] = {}
    for name, paths in _COUNTS.items():
        for path in paths:
            value = _at(usage, path)
            if _is_number(value) and 0 <= value <= _MAX_COUNT:
                counts[name] = int(value)
                break
    if "output" not in counts and "total" in counts and "prompt" in counts and counts["total"] > counts["prompt"]:
        counts["output"] = counts["total"] - counts["prompt"]
    return counts if any(counts.values()) else {}


def _server(source: Any) -> dict[str, float]:
    """The server's own times, where it sends them: llama.cpp `timings`, Groq's `*_time`; names as the server has."""
    if not isinstance(source, dict):
        return {}
    return {
        key: float(value)
        for key, value in source.items()
        if _is_number(value) and (key in _SERVER_NAMES or key.endswith(_SERVER_ENDS))
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MANY < value < _MANY


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


def _input_prompt(messages: Iterable[Message]) -> Json:
    return {"input": [{"role": message.role, "content": message.content} for message in messages]}


def _whole_input(messages: Iterable[Message]) -> Json:
    return {"input": "\n\n".join(message.content for message in messages)}


DIALECTS: dict[str, Dialect] = {
    "chat": Dialect("/chat/completions", _chat_prompt),
    "completions": Dialect("/completions", _text_prompt),
    "responses": Dialect("/responses", _input_prompt, limit="max_output_tokens", states_usage=True),
    "embeddings": Dialect("/embeddings", _whole_input, generates=False),
}
