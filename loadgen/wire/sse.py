"""Server-sent events from bytes, incrementally.

Knows: lines, fields, comments, the byte-order mark, what ends an event. Must not know: sockets, JSON, stamps.
Why: bytes are cut anywhere (inside a character, inside CRLF), so splitting happens on bytes and only whole events are
ever decoded; nothing is stripped from the data but the one space after the colon.
"""

from __future__ import annotations

from typing import NamedTuple

from loadgen.errors import WireError

MAX_LINE = 16 << 20  # bytes of one line, and of one event's data

_BOM = b"\xef\xbb\xbf"
_DATA_FIELDS = (b"data", b"error")  # llama.cpp has sent `error: {...}` as a field of its own


class Event(NamedTuple):
    """One event: its `event:` name ("" when it has none) and its data lines joined by newlines."""

    name: str
    data: bytes


class Decoder:
    """Feed it bytes as they come; it returns the events that these bytes completed.

    `saw_field` tells whether any line was an SSE field or comment at all (plain text has none). Past a line that is too
    long nothing is read: the call after the one that met it raises WireError, so that no event before it is lost.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # an unfinished line, as it came
        self._rest_size = 0
        self._skip_lf = False  # the last byte was CR: a LF that follows belongs to it
        self._head: bytes | None = b""  # what may be the beginning of a byte-order mark; None once that is settled
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0
        self._broken: str | None = None
        self.saw_field = False

    @property
    def idle(self) -> bool:
        """Nothing is unfinished: what comes next begins an event of its own."""
        return not (self._rest or self._data or self._name or self._skip_lf) and self._head is None

    def feed(self, data: bytes) -> list[Event]:
        """Events completed by `data`. Raises WireError after a line or an event that exceeds MAX_LINE."""
        if self._broken is not None:
            raise WireError(self._broken)
        if self._head is not None:
            data = self._without_bom(data)
        if self._skip_lf and data:
            self._skip_lf = False
            if data[:1] == b"\n":
                data = data[1:]
        if not data:
            return []
        if (
            self.idle
            and data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and b"\r" not in data
            and len(data) < MAX_LINE
        ):
            self.saw_field = True
            if data.count(b"\n") == 2:  # the usual case: one event of one line
                return [Event("", data[6:-2])] if len(data) > 8 else []
            blocks = data[6:-2].split(b"\n\ndata: ")
            if not any(b"\n" in block for block in blocks):
                return [Event("", block) for block in blocks if block]
        return self._lines(data)

    def flush(self) -> list[Event]:
        """What is left at the end of the stream, as if an empty line followed: servers omit the last one.

        Raises WireError as `feed` does.
        """
        if self._broken is not None:
            raise WireError(self._broken)
        if self._head:
            self._rest.append(self._head)
        found = self._lines(b"\n") if self._rest else []
        return found + self._dispatch()

    def _without_bom(self, data: bytes) -> bytes:
        joined = (self._head or b"") + data
        if len(joined) < len(_BOM) and _BOM.startswith(joined):
            self._head = joined
            return b""
        self._head = None
        return joined.removeprefix(_BOM)

    def _lines(self, data: bytes) -> list[Event]:
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        last = lines.pop()
        if lines and self._rest:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._rest_size = [], 0
        if last:
            self._rest.append(last)
            self._rest_size += len(last)
        found: list[Event] = []
        for line in lines:
            if not line:
                found += self._dispatch()
            else:
                self._field(line)
                if self._broken is not None:
                    return found
        if self._rest_size > MAX_LINE:
            self._broken = f"a line of over {MAX_LINE >> 20} MiB"
        return found

    def _field(self, line: bytes) -> None:
        if len(line) > MAX_LINE:
            self._broken = f"a line of over {MAX_LINE >> 20} MiB"
            return
        name, colon, value = line.partition(b":")
        if colon and not name:
            self.saw_field = True  # a comment
            return
        if value[:1] == b" ":
            value = value[1:]
        if name in _DATA_FIELDS:
            self.saw_field = True
            if name == b"error":
                self._name = "error"
            self._size += len(value) + 1
            if self._size > MAX_LINE:
                self._broken = f"an event of over {MAX_LINE >> 20} MiB"
                return
            self._data.append(value)
        elif name == b"event":
            self.saw_field = True
            self._name = value.decode("utf-8", "replace")
        elif name in (b"id", b"retry"):
            self.saw_field = True
        elif line[:1] == b"{":  # a JSON document in the middle of a stream: how some gateways report an error
            self._size += len(line) + 1
            self._data.append(line)

    def _dispatch(self) -> list[Event]:
        """The event that an empty line ends: none without data, except that an error needs no words to be one."""
        event = Event(self._name, b"\n".join(self._data))
        self._name, self._data, self._size = "", [], 0
        return [event] if event.data or event.name == "error" else []
