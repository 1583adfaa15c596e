"""Texts of one's own: prompts, messages, ShareGPT conversations and OpenAI batch files, checked line by line.

Knows: the formats below. Must not know: how often a text is sent or in which order (`plan` decides by the seed).

    JSONL      {"prompt": "..."} | {"messages": [{"role": "user", "content": "..."}, ...]}; perhaps with "output_tokens"
    OpenAI     batch file: {"custom_id", "method", "url", "body": {"messages" | "prompt", "max_tokens", ...}}
    ShareGPT   JSON list of {"id", "conversations": [{"from": "human"|"gpt"|"system", "value"}]}
    plain      .txt: a prompt on every line that is not blank

A conversation becomes its user turns. Sent as a conversation (`turns` in the workload), each turn brings the next user
message and the server's own answers stand between, or the recorded ones (`history: recorded`: every run then sends the
same prompts, whatever the server says). Without `turns` only the first is sent; with `history: recorded` one request
carries everything up to the last user message, recorded answers included. A list of `messages` is always sent as it
stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.model import Message
from loadgen.plan.lengths import MAX_TOKENS
from loadgen.plan.workload import Text

_ROLES = ("system", "developer", "user", "assistant", "tool")
_SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
}
_SHOWN = 5  # mistakes that are told one by one


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of texts; picklable, read once by every process that plans (a `plan.workload.Texts`)."""

    path: str
    recorded_history: bool = False
    by_turns: bool = True  # with a recorded history: turn by turn, else all in one request

    @property
    def history(self) -> str:
        """What stands between turns, as a workload file says it."""
        return "recorded" if self.recorded_history else "server"

    def load(self) -> tuple[Text, ...]:
        """All texts. Raises UsageError that names every bad line (the first five, then their number)."""
        return _load(self.path, self.recorded_history, self.by_turns)


@lru_cache(maxsize=8)
def _load(path: str, recorded: bool, by_turns: bool) -> tuple[Text, ...]:
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as bad:
        raise UsageError(f"cannot be read: {bad}", where=path) from bad
    texts: list[Text] = []
    mistakes: list[tuple[str, str]] = []  # (place, what is wrong)
    for place, item in _items(path, content, mistakes):
        try:
            text = _text(item, recorded, by_turns)
        except ValueError as bad:
            mistakes.append((place, str(bad)))
        else:
            texts += [] if text is None else [text]
    if len(mistakes) == 1:
        raise UsageError(mistakes[0][1], where=mistakes[0][0])
    if mistakes:
        shown = "".join(f"\n  {place}: {what}" for place, what in mistakes[:_SHOWN])
        more = f"\n  and {len(mistakes) - _SHOWN} more" if len(mistakes) > _SHOWN else ""
        raise UsageError(f"{len(mistakes)} mistakes{shown}{more}", where=path)
    if not texts:
        raise UsageError("holds no text to send", where=path)
    return tuple(texts)


def _items(path: str, content: str, mistakes: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """What the file holds, with the place of each: lines, or the members of one JSON list."""
    plain = Path(path).suffix == ".txt"
    if not plain and content.lstrip().startswith("["):
        try:
            members = json.loads(content)
        except (ValueError, RecursionError) as bad:
            raise UsageError(f"not JSON: {bad}", where=f"{path}:{getattr(bad, 'lineno', 1)}") from bad
        yield from ((f"{path}: item {number}", member) for number, member in enumerate(members, 1))
        return
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        if plain:
            yield place, {"prompt": line.rstrip("\r")}
            continue
        try:
            yield place, json.loads(line)
        except (ValueError, RecursionError) as bad:
            mistakes.append((place, f"not JSON: {bad}"))


def _text(item: Any, recorded: bool, by_turns: bool) -> Text | None:
    """One item as a Text; None for a conversation without a word of its user. Raises ValueError for what cannot be."""
    if isinstance(item, str):
        item = {"prompt": item}
    if not isinstance(item, dict):
        raise ValueError("must be an object with prompt, messages, conversations or body")
    if "conversations" in item:
        return _conversation(item["conversations"], recorded, by_turns)
    body = item.get("body", item)
    if not isinstance(body, dict):
        raise ValueError("body must be an object")
    tokens = _output_tokens(body)
    if "messages" in body:
        messages = tuple(_message(m, i) for i, m in enumerate(_listed(body["messages"], "messages"), 1))
        return Text((messages,), tokens)
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError("has no prompt, messages or conversations" if prompt is None else "prompt must be a text")
    return Text(((Message("user", _sendable(prompt)),),), tokens)


def _output_tokens(body: dict[str, Any]) -> int | None:
    for key in ("output_tokens", "max_completion_tokens", "max_tokens"):
        value = body.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
            raise ValueError(f"{key} must be a whole number of 1 to {MAX_TOKENS:,}")
        return value
    return None


def _listed(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{what} must be a list with a member")
    return value


def _message(value: Any, number: int) -> Message:
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, list) and content and all(_is_text_part(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"message {number} has no content that is a text")
    if value.get("role") not in _ROLES:
        raise ValueError(f"message {number} has the role {value.get('role')!r}; known: {', '.join(_ROLES)}")
    return Message(value["role"], _sendable(content))


def _is_text_part(part: Any) -> bool:
    """A part of a content that is a list: `{"type": "text", "text": "..."}`. Pictures and sounds are not sent."""
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _sendable(text: str) -> str:
    """The text, unless JSON's escapes made one that UTF-8 cannot carry. Raises ValueError."""
    try:
        text.encode()
    except UnicodeEncodeError as bad:
        raise ValueError("holds half of a surrogate pair, which UTF-8 cannot carry") from bad
    return text


def _conversation(value: Any, recorded: bool, by_turns: bool) -> Text | None:
    """ShareGPT: turns need not alternate, may start with the answer, may be empty; system messages go first."""
    said: list[Message] = []
    if value == []:  # the real file has such ones
        return None
    for number, part in enumerate(_listed(value, "conversations"), 1):
        if not isinstance(part, dict) or not isinstance(part.get("value"), str):
            raise ValueError(f"turn {number} has no value that is a text")
        role = _SHAREGPT.get(str(part.get("from")).lower())
        if role is None:
            raise ValueError(f"turn {number} is from {part.get('from')!r}; known: {', '.join(_SHAREGPT)}")
        if part["value"].strip() and (said or role != "assistant"):
            said.append(Message(role, _sendable(part["value"])))
    last = max((i for i, m in enumerate(said) if m.role == "user"), default=None)
    if last is None:
        return None
    if recorded and not by_turns:
        return Text((tuple(said[: last + 1]),))
    turns: list[list[Message]] = [[]]
    for message in said[: last + 1]:
        if message.role != "assistant":
            turns[-1].append(message)
        elif any(m.role == "user" for m in turns[-1]):
            turns.append([message] if recorded else [])
        elif recorded:
            turns[-1].append(message)
    return Text(tuple(tuple(turn) for turn in turns))
