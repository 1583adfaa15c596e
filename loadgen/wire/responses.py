"""The typed events of the Responses API, and its whole answer.

Knows: which event types carry generated text, which end an answer, where usage and errors stand. Must not know: chat
and completions (`dialects`), SSE, stamps.
Why: here one event has one type, and the text of an answer comes up to four times: in deltas, in `.done` events, in the
finished item and in the finished response. Only deltas are the stream; counting the others would double every token.

Source of the names: the OpenAI API reference (Responses, streaming events); vLLM sends the same types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
Part = Literal["visible", "reasoning", "tools"]
_PREFIX = "response."
# What a delta of each kind holds, by the middle of its type: `response.<kind>.delta`.
_DELTAS: dict[str, Part] = {
    "output_text": "visible",
    "refusal": "visible",
    "reasoning": "reasoning",
    "reasoning_text": "reasoning",
    "reasoning_summary": "reasoning",
    "reasoning_summary_text": "reasoning",
    "function_call_arguments": "tools",
    "custom_tool_call_input": "tools",
    "mcp_call_arguments": "tools",
    "mcp_call.arguments": "tools",
    "code_interpreter_call_code": "tools",
}
# How an answer ends, by its status.
_ENDS = {"completed": "stop", "incomplete": "length"}
_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_FAILED = ("failed", "cancelled")
# Where the items of a whole answer keep their texts.
_ITEMS: dict[str, tuple[tuple[str, Part], ...]] = {
    "message": (("content", "visible"),),
    "reasoning": (("summary", "reasoning"), ("content", "reasoning")),
    "function_call": (("arguments", "tools"),),
    "custom_tool_call": (("input", "tools"),),
}


@dataclass(frozen=True, slots=True)
class Said:
    """What one event says. `usage` and `error` are as the server has them; `count`: tokens, where logprobs tell."""

    texts: tuple[tuple[Part, str], ...] = ()
    blank: bool = False  # a delta without text
    count: int | None = None
    finish: str | None = None
    usage: Any = None
    error: Any = None


def is_event(value: Json) -> bool:
    """Whether this is an event of a Responses stream, or a whole Responses answer; chat events have choices."""
    kind = value.get("type")
    typed = isinstance(kind, str) and kind.startswith(_PREFIX)
    return (typed or value.get("object") == "response") and "choices" not in value


def read(value: Json) -> Said:
    """What an event, or a whole answer, says; never raises, whatever its shape."""
    kind = value.get("type")
    if not isinstance(kind, str):
        return _ended(value, with_texts=True)
    name = kind.removeprefix(_PREFIX)
    if name.endswith(".delta"):
        part = _DELTAS.get(name.removesuffix(".delta"))
        text = value.get("delta")
        if part is None or not isinstance(text, str):
            return Said()
        probabilities = value.get("logprobs")
        count = len(probabilities) if isinstance(probabilities, list) and probabilities else None
        return Said(((part, text),), count=count) if text else Said(blank=True)
    answer = value.get("response")
    if name in (*_ENDS, *_FAILED) and isinstance(answer, dict):
        return _ended({"status": name, **answer}, with_texts=False)
    return Said()


def _ended(answer: Json, *, with_texts: bool) -> Said:
    status = answer.get("status")
    if status in _FAILED:
        return Said(usage=answer.get("usage"), error=answer.get("error") or f"the response has the status {status}")
    finish = _ENDS.get(status) if isinstance(status, str) else None
    why = answer.get("incomplete_details")
    if status == "incomplete" and isinstance(why, dict) and isinstance(why.get("reason"), str):
        finish = _REASONS.get(why["reason"], "length")
    return Said(_texts(answer) if with_texts else (), finish=finish, usage=answer.get("usage"))


def _texts(answer: Json) -> tuple[tuple[Part, str], ...]:
    """All texts of a whole answer, in reading order."""
    found: list[tuple[Part, str]] = []
    items = answer.get("output")
    for item in items if isinstance(items, list) else ():
        for key, part in _ITEMS.get(str(item.get("type")), ()) if isinstance(item, dict) else ():
            held = item.get(key)
            for piece in held if isinstance(held, list) else (held,):
                text = piece.get("text") or piece.get("refusal") if isinstance(piece, dict) else piece
                if isinstance(text, str) and text:
                    found.append((part, text))
    return tuple(found)
