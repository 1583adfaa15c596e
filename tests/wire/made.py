"""Captures made by hand: stamped pieces in, one Capture out. Times are given in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from loadgen.model import Capture, Failure, Message, Piece, PlannedRequest, Receives

DONE = b"data: [DONE]\n\n"


def event(value: Any, name: str = "") -> bytes:
    """One SSE event with a JSON document."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def chat(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    """A chat chunk with one choice; `more` stands beside `choices`."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if delta is not None:
        choice["delta"] = delta
    return event({"object": "chat.completion.chunk", "choices": [choice], **more})


def say(text: str, finish: str | None = None, **more: Any) -> bytes:
    """A chat chunk with visible text."""
    return chat({"content": text}, finish, **more)


def usage(output: int, prompt: int = 7, **details: Any) -> dict[str, Any]:
    """A usage object."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        **details,
    }


def bill(output: int, prompt: int = 7, **details: Any) -> bytes:
    """The chunk of `include_usage`."""
    return event({"object": "chat.completion.chunk", "choices": [], "usage": usage(output, prompt, **details)})


def capture(
    pieces: Iterable[tuple[float, bytes]],
    *,
    dialect: str = "chat",
    asked: int = 100,
    complete: bool = True,
    failure: Failure | None = None,
    status: int | None = 200,
    headers: tuple[tuple[str, str], ...] = (),
) -> Capture:
    """A body that ends with the connection, one piece per (second, bytes); sent at 0."""
    body: list[Piece] = [(round(at * 1e9), data, 1000 * i) for i, (at, data) in enumerate(pieces)]
    planned = PlannedRequest(0, 0, "test", (Message("system", "be kind"), Message("user", "hi")), 7, asked)
    return Capture(
        planned,
        dialect,
        sent_ns=0,
        headers_ns=0 if status is not None else None,
        end_ns=body[-1][0] if body else 0,
        status=status,
        headers=headers,
        framing="close",
        body=Receives(body),
        complete=complete,
        failure=failure,
    )


def stream(*segments: bytes, **how: Any) -> Capture:
    """Segments 0.1 s apart, the first at 0.1 s."""
    return capture([((i + 1) / 10, data) for i, data in enumerate(segments)], **how)
