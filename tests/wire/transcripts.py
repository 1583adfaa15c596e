"""Reads recorded streams of real servers: the `curl -i -N` part of a transcript, line by line with its times."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.model import Capture, Message, Piece, PlannedRequest

_LINE = re.compile(r"^\s*([0-9.]+) \| ?(.*)$")


@dataclass(frozen=True)
class Transcript:
    """One recorded request and its answer."""

    name: str
    url: str
    request: dict[str, Any]
    status: int
    headers: tuple[tuple[str, str], ...]
    pieces: list[Piece]

    def capture(self) -> Capture:
        """The answer as a capture: each line a piece of a body that ends with the connection."""
        asked = self.request.get("max_tokens") or self.request.get("max_completion_tokens")
        asked = asked if isinstance(asked, int) else 16
        planned = PlannedRequest(0, 0, "chat", (Message("user", "x"),), 1, asked)
        dialect = "chat" if "/chat/" in self.url else "completions"
        headers = tuple((k, v) for k, v in self.headers if k not in ("transfer-encoding", "content-encoding"))
        return Capture(
            planned,
            dialect,
            sent_ns=0,
            headers_ns=self.pieces[0][0] if self.pieces else None,
            status=self.status,
            headers=headers,
            framing="close",
            body=self.pieces,
            complete=True,
        )


def read(path: Path) -> Transcript | None:
    """The first curl exchange of a transcript file; None where it holds none."""
    url, request = "", {}
    lines = iter(path.read_text(encoding="utf-8", errors="surrogateescape").splitlines())
    for line in lines:
        if line.startswith("### POST "):
            url = line.removeprefix("### POST ")
        elif line.startswith("### body: "):
            try:
                request = json.loads(line.removeprefix("### body: "))
            except ValueError:
                request = {}
        elif line.startswith("=== curl -sS -N -i"):
            break
    else:
        return None
    status, headers, pieces = 0, [], []
    in_head = True
    for line in lines:
        if line.startswith("=== "):
            break
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
    return Transcript(f"{path.parent.name}/{path.stem}", url, request, status, tuple(headers), pieces)
