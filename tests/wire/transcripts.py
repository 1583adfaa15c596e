"""Reads recorded answers of real servers: what curl printed line by line, and what a raw socket received.

Knows: the layout of a transcript file. Must not know: how the client reads an answer.
A file holds one request made twice: by curl (framing taken off, one piece to a line) and by a bare socket (the very
bytes of each receive). The socket's log is left out where paths were shortened in it, for then its framing lies.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.model import Capture, Framing, Message, Piece, PlannedRequest, Receives

FIXTURES = Path(__file__).with_name("fixtures")

_LINE = re.compile(r"^\s*([0-9.]+) \| ?(.*)$")
_RECEIVE = re.compile(r"^\s*([0-9.]+) \|\s*(\d+) \|\s*\d+ \| (b['\"].*)$")


@dataclass(frozen=True)
class Answer:
    """One recorded answer, and what was asked for."""

    url: str
    request: dict[str, Any]
    status: int
    headers: tuple[tuple[str, str], ...]
    framing: Framing
    pieces: list[Piece]
    complete: bool

    def capture(self) -> Capture:
        """The answer as the transport would have left it."""
        asked = self.request.get("max_tokens") or self.request.get("max_completion_tokens")
        planned = PlannedRequest(0, 0, "chat", (Message("user", "x"),), 1, asked if isinstance(asked, int) else 16)
        return Capture(
            planned,
            "chat" if "/chat/" in self.url else "completions",
            sent_ns=0,
            headers_ns=0,
            status=self.status,
            headers=self.headers,
            framing=self.framing,
            body=Receives(self.pieces),
            complete=self.complete,
        )

    def data_lines(self) -> list[str]:
        """The `data:` lines of an answer that curl recorded, without any parsing of SSE."""
        text = b"".join(data for _, data, _ in self.pieces).decode("utf-8", "replace")
        return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def read(path: Path) -> dict[str, Answer]:
    """The answers in a file: "curl", "socket", both, or none where it records something else or nothing came."""
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    url = next((line.removeprefix("### POST ") for line in lines if line.startswith("### POST ")), "")
    body = next((line.removeprefix("### body: ") for line in lines if line.startswith("### body: ")), "")
    try:
        request = json.loads(body)
    except ValueError:
        request = {}
    answers = {"curl": _curl(lines, url, request), "socket": _socket(lines, url, request)}
    return {name: answer for name, answer in answers.items() if answer is not None and url}


def _section(lines: list[str], title: str) -> tuple[list[str], str]:
    """The lines under a title, and the `===` line that ends them."""
    starts = [i for i, line in enumerate(lines) if line.startswith(title)]
    if not starts:
        return [], ""
    rest = lines[starts[0] + 1 :]
    end = next((i for i, line in enumerate(rest) if line.startswith("=== ")), len(rest))
    return rest[:end], rest[end] if end < len(rest) else ""


def _curl(lines: list[str], url: str, request: dict[str, Any]) -> Answer | None:
    section, verdict = _section(lines, "=== curl -sS -N -i")
    status, headers, pieces = 0, [], []
    in_head = True
    for line in section:
        match = _LINE.match(line)
        if match is None:
            continue
        stamp, text = round(float(match[1]) * 1e9), match[2]
        if in_head and text.startswith("HTTP/"):
            status, headers = int(text.split()[1]), []
        elif in_head and not text:
            in_head = status < 200
        elif in_head:
            name, _, value = text.partition(":")
            headers.append((name.strip().lower(), value.strip()))
        else:
            pieces.append((stamp, (text + "\n").encode("utf-8", "surrogateescape"), 0))
    if not status:
        return None
    return Answer(url, request, status, tuple(headers), "close", pieces, "exit 0," in verdict)


def _socket(lines: list[str], url: str, request: dict[str, Any]) -> Answer | None:
    section, verdict = _section(lines, "=== raw socket recv() log")
    pieces: list[Piece] = []
    for line in section:
        match = _RECEIVE.match(line)
        if match is None:
            continue
        data = ast.literal_eval(match[3])
        if len(data) != int(match[2]):
            return None
        pieces.append((round(float(match[1]) * 1e9), data, 0))
    if not pieces or "peer closed" not in verdict:
        return None
    head, end, first = b"".join(data for _, data, _ in pieces).partition(b"\r\n\r\n")
    left = len(head) + len(end)
    body: list[Piece] = []
    for stamp, data, blind in pieces:
        if data[left:]:
            body.append((stamp, data[left:], blind))
        left = max(0, left - len(data))
    top, *rest = head.decode("latin-1").split("\r\n")
    headers = tuple((n.strip().lower(), v.strip()) for n, _, v in (line.partition(":") for line in rest))
    known = dict(headers)
    framing: Framing = "chunked" if known.get("transfer-encoding", "").lower() == "chunked" else "close"
    complete = first.endswith(b"0\r\n\r\n") if framing == "chunked" else True
    return Answer(url, request, int(top.split()[1]), headers, framing, body, complete)
