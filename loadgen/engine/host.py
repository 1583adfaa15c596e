"""The client's own machine: what it is, what it allows, and which secrets must never leave it.

Knows: /proc, resource limits, versions. Must not know: runs or requests.
Why: a figure without its client is half a figure, and a run that will hit the descriptor limit must say so beforehand.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import resource
import sys
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from loadgen.errors import UsageError
from loadgen.model import Exchange, Failure, Sink

_SPARE_DESCRIPTORS = 64  # files, pipes, the epoll, standard streams
_LARGE_TABLE = 65_536
_SHORT_QUERY = 12  # characters of a query's value that may be a key; a version or a flag is shorter
_SHORTEST = 4  # characters of what is treated as a secret
_PLAIN_FINISH = (None, "length", "stop")
_PLAIN_HEADERS = {"accept", "content-type", "user-agent", "accept-language"}


def host_facts() -> dict[str, Any]:
    """CPU, cores, memory, system and load of this machine; None where the system does not tell."""
    return {
        "cpu": _proc_value("/proc/cpuinfo", "model name") or platform.processor() or None,
        "cores": cores(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average_1m": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Versions of loadgen and of what its timing depends on."""
    found = {"python": platform.python_version()}
    for name in ("loadgen", "aiohttp", "msgspec", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def ensure_capacity(connections: int, same_address: bool = True) -> str | None:
    """Raise the descriptor limit for `connections` sockets, and check the ephemeral ports towards one address.

    Returns a note when the limit was raised; raises UsageError when the system does not allow that many.
    """
    needed = connections + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    note = None
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UsageError(
                f"{connections} connections need {needed} file descriptors, the system allows {hard}",
                do="raise the hard limit (ulimit -Hn) or lower the concurrency",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        note = f"file-descriptor limit raised from {soft} to {needed}"
    ports = _ephemeral_ports()
    if same_address and ports is not None and connections > ports:
        raise UsageError(
            f"{connections} connections to one address need as many local ports, the system has {ports}",
            do="widen net.ipv4.ip_local_port_range, or use several endpoints",
        )
    _grow_descriptor_table()
    return note


def _grow_descriptor_table() -> None:
    """Make the kernel's table of this process's descriptors as large as it may become (up to 65,536, half a megabyte).

    It doubles at 64, 128, 256 ... descriptors, and in a process with threads each time waits until no processor reads
    the old table any more (`synchronize_rcu` in Linux's fs/file.c): 8 to 23 ms in which socket() does not return.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = min(soft if soft != resource.RLIM_INFINITY else _LARGE_TABLE, _LARGE_TABLE) - 1
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "rb") as any_file:
        os.close(fcntl.fcntl(any_file.fileno(), fcntl.F_DUPFD_CLOEXEC, last))


@dataclass(frozen=True, slots=True)
class Secrets:
    """Values that must not reach disk, logs, reports or error lines."""

    values: tuple[str, ...] = ()

    def scrub(self, text: str) -> str:
        """`text` with every secret replaced by ***."""
        for value in self.values:
            text = text.replace(value, "***")
        return text

    @staticmethod
    def of(url: str, headers: dict[str, str]) -> Secrets:
        """The secrets in a URL's user info and in headers (every header that is not plainly harmless)."""
        found = [value for name, value in headers.items() if name.lower() not in _PLAIN_HEADERS]
        found += [value.split(" ", 1)[1] for value in found if value.lower().startswith("bearer ")]
        parts = urlsplit(url if "://" in url else "//" + url)
        found += [parts.password] if parts.password else []
        found += [value for pair in parts.query.split("&") if len(value := pair.partition("=")[2]) >= _SHORT_QUERY]
        found += [_password(value) for value in found if value.lower().startswith("basic ")]
        found += [form for value in found if len(value) >= _SHORTEST for form in _spellings(value)]
        # Longest first, so that "Bearer KEY" goes before KEY. A value of a few letters would blank out ordinary words.
        return Secrets(tuple(sorted({value for value in found if len(value) >= _SHORTEST}, key=len, reverse=True)))


def _password(basic: str) -> str:
    """The password inside a basic Authorization header; "" where there is none."""
    try:
        return b64decode(basic.split(" ", 1)[1]).decode().partition(":")[2]
    except ValueError:
        return ""


def _spellings(value: str) -> list[str]:
    """Other forms in which a server may send a secret back: escaped for JSON or a URL, base64."""
    escaped = "".join(f"\\u{ord(c):04x}" for c in value)
    return [escaped, escaped.upper().replace("\\U", "\\u"), quote(value, safe=""), b64encode(value.encode()).decode()]


def scrubbed(exchange: Exchange, secrets: Secrets) -> Exchange:
    """The exchange with no secret in anything that the server said (it may echo the key that it refuses)."""
    if not secrets.values:
        return exchange
    failure, finish, text = exchange.failure, exchange.finish_reason, exchange.text
    if failure is None and finish in _PLAIN_FINISH and text is None:
        return exchange
    return replace(
        exchange,
        failure=None if failure is None else Failure(failure.kind, secrets.scrub(failure.message)),
        finish_reason=None if finish is None else secrets.scrub(finish),
        text=None if text is None else secrets.scrub(text),
    )


@dataclass(frozen=True, slots=True)
class ScrubbingSink:
    """Takes secrets out of rows before they are written."""

    sink: Sink
    secrets: Secrets

    def write(self, exchange: Exchange) -> None:
        self.sink.write(scrubbed(exchange, self.secrets))


def split_credentials(url: str) -> tuple[str, str]:
    """A URL without its user info, and that as an Authorization header ("" where there is none).

    Raises:
        UsageError: not a URL.
    """
    try:
        parts = urlsplit(url if "://" in url else "//" + url)
        name, password, _ = parts.username, parts.password, parts.port
    except ValueError as bad:
        raise UsageError(f"is not a URL: {bad}", where=url) from bad
    if name is None and password is None:
        return url, ""
    basic = b64encode(f"{unquote(name or '')}:{unquote(password or '')}".encode()).decode()
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, parts.query, "")).removeprefix("//"), f"Basic {basic}"


def public_url(url: str) -> str:
    """A URL without user info, and with the values of its query left out."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = "&".join(f"{pair.partition('=')[0]}=***" for pair in parts.query.split("&")) if parts.query else ""
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def public_command(argv: list[str]) -> list[str]:
    """The command line with header values and URL secrets removed."""
    shown: list[str] = []
    for index, word in enumerate(argv):
        if (index and argv[index - 1] == "--header") or word.startswith("--header="):
            word = word.partition(":")[0] + ": ***"
        elif "@" in word and "//" in word:
            word = public_url(word)
        shown.append(word)
    return shown


def _proc_value(path: str, key: str) -> str | None:
    try:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    except OSError:
        return None
    return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _ephemeral_ports() -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return int(high) - int(low) + 1
