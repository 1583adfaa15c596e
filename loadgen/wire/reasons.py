"""Why a request failed, in the server's own words: the shapes of error that servers send, and one line for each.

Knows: error objects, strings and lists; HTTP statuses with JSON or HTML bodies. Must not know: SSE, stamps, outcomes.
Why: an error inside HTTP 200 is as much a failure as a status 500, and a user must read what the server said.

Shapes seen: `{"error": {"message", "type", "code"}}` (OpenAI, vLLM, llama.cpp), `{"error": "text"}` (transformers, TGI,
Ollama), `{"object": "error", "message"}` (older vLLM, LMDeploy), `{"type": "error", "error": {…}}` (Anthropic),
`{"detail": …}` (FastAPI: text, or a list of field errors), `{"code", "message"}` (DashScope), `{"error_code",
"error_msg"}` (Qianfan), `{"errors": […]}` (Workers AI), `{"base_resp": {"status_code", "status_msg"}}` (MiniMax).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.wire.text import MAX_REASON, one_line, parse, readable

_UNNAMED = "an error without a reason"
# Where the words stand inside an error object, best first.
_WORDS = ("message", "msg", "detail", "error", "error_msg", "error_message", "description", "status_msg", "title")
# Keys that make an event an error when it has neither choices nor usage; the value must be words or a list of errors.
_BARE = ("detail", "message", "error_msg", "error_message", "errors")
_DEEPEST = 6  # levels of objects inside objects in which words are looked for


def error_of(event: Mapping[str, Any]) -> str | None:
    """The message of an error event or document in any of its shapes, on one line; None where there is no error.

    `"error": null`, an empty object or an empty string are no errors: good chunks carry them.
    """
    error = event.get("error")
    if error:
        return _words(error)
    if event.get("object") == "error" or event.get("type") == "error":
        return _words(event)
    base = event.get("base_resp")
    if isinstance(base, dict) and base.get("status_code") not in (None, 0, "0"):
        return _words(base)
    if "choices" not in event and "usage" not in event:
        for key in _BARE:
            value = event.get(key)
            if value and isinstance(value, str | list):
                return _words({**event, "message": value})
    return None


def http_reason(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """One line for a response whose status is not 2xx."""
    try:
        value = parse(body)
    except ValueError:
        value = None
    words = error_of(value) if isinstance(value, dict) else value if isinstance(value, str) else None
    text = f"HTTP {status}: {words or readable(body) or 'no reason given'}"[: MAX_REASON - 150]
    if "retry-after" in headers:
        text += f" (retry-after {headers['retry-after'][:40]})"
    if "location" in headers and 300 <= status < 400:
        text += f" (redirect to {headers['location'][:100]})"
    return one_line(text)


def _words(error: Any, depth: int = 0) -> str:
    if depth > _DEEPEST:
        return _UNNAMED
    if isinstance(error, str):
        return one_line(error, 400) or _UNNAMED
    if isinstance(error, list):
        return "; ".join(_words(item, depth + 1) for item in error[:3]) or _UNNAMED
    if not isinstance(error, dict):
        return f"error {error}" if isinstance(error, int | float) else _UNNAMED
    code = next((str(error[k]) for k in ("code", "status_code", "error_code", "type") if _plain(error.get(k))), "")
    text = next((_words(error[key], depth + 1) for key in _WORDS if error.get(key)), "")
    place = error.get("loc")
    if isinstance(place, list) and text:  # a field error of FastAPI names the field
        text = f"{'.'.join(str(part) for part in place[:6] if _plain(part))}: {text}"
    if not text:
        return f"error {one_line(code, 100)}" if code else _UNNAMED
    return text if not code or code in text else f"{text} ({one_line(code, 100)})"


def _plain(value: Any) -> bool:
    """A code that can stand in a line: a short word, or a number that is not 0."""
    if isinstance(value, str):
        return 0 < len(value) < 100
    return isinstance(value, int) and not isinstance(value, bool) and 0 < abs(value) < 1 << 40
