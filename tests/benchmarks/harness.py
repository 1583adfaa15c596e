"""What the benchmark scripts share: the oracle as a child process, its log, `loadgen run` as a pinned child, tables.

Knows: how to start both on cores of their own, and how a run's rows meet the oracle's log. Must not know: which loads
are worth measuring.
Why: every figure about the client is a comparison with a server whose own stamps say what was sent; the oracle is a
small C program outside this project whose path is given to each script (see README.md for what it must do).

The oracle's log is a file of records {u32 request, u32 event, i64 ns on CLOCK_MONOTONIC}: event k as it is handed to
send(), and event 0xffffffff when the request's last byte has been read.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
RECEIVED = 0xFFFFFFFF
LOG = np.dtype([("request", "<u4"), ("event", "<u4"), ("ns", "<i8")])
_PATIENCE_S = 10.0
_NEAR_NS = 100_000_000  # an arrival is never further from its send
_CANDIDATES = 256  # entries that are tried for a request


def arguments(description: str) -> argparse.ArgumentParser:
    """The flags of every script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--oracle", required=True, help="path of the oracle's binary")
    parser.add_argument("--repeats", type=int, default=1, help="medians over so many repeats")
    parser.add_argument("--client-core", type=int, default=0)
    parser.add_argument("--server-core", type=int, default=(os.cpu_count() or 1) - 1)
    return parser


class Oracle:
    """The oracle on a core of its own: `with Oracle(binary, core) as oracle: oracle.url`. After the block `log` holds
    {request: (received, sends)} and `lateness` the line in which it says how late it was itself."""

    def __init__(self, binary: str, core: int | None = None, *, log: bool = True) -> None:
        self._binary, self._core = binary, core
        self._file = Path(tempfile.mkstemp(suffix=".log")[1]) if log else None
        self.url = self.lateness = ""
        self.log: dict[int, tuple[int, Ints]] = {}

    def __enter__(self) -> Oracle:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [self._binary, "--port", str(port)] + (["--log", str(self._file)] if self._file else [])
        self._child = subprocess.Popen(
            pinned(command, self._core), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.url = f"http://127.0.0.1:{port}/v1"
        limit = time.monotonic() + _PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return self
            except OSError:
                if time.monotonic() > limit or self._child.poll() is not None:
                    raise
                time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.send_signal(signal.SIGTERM)
        self.lateness = self._child.communicate(timeout=_PATIENCE_S)[0].strip().rpartition("; ")[2]
        if self._file is not None:
            self.log = read_log(self._file)
            self._file.unlink()


def read_log(path: Path) -> dict[int, tuple[int, Ints]]:
    """{request: (stamp of its last byte, stamps of its events)} of every request that got an event."""
    records = np.fromfile(path, dtype=LOG)
    records = records[np.argsort(records["request"], kind="stable")]
    numbers, starts = np.unique(records["request"], return_index=True)
    log = {}
    for number, part in zip(numbers, np.split(records, starts[1:]), strict=True):
        received = part["ns"][part["event"] == RECEIVED]
        sends = part["ns"][part["event"] < len(part)]
        if len(sends):
            log[int(number)] = (int(received[0]), sends.astype(np.int64))
    return log


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    """The command on one core."""
    return list(command) if core is None else ["taskset", "-c", str(core), *command]


def real_time() -> None:
    """As root, run this process and its children before whatever else wants the machine; else change nothing."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _is_real_time() -> bool:
    return hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) == os.SCHED_RR


@dataclass(frozen=True)
class Ran:
    """A child process that has ended."""

    code: int
    wall_s: float
    cpu_s: float  # user and system, start-up included
    rss_mb: float
    output: str


def run_child(command: Sequence[str], core: int | None = None) -> Ran:
    """Run to the end. Output and errors come back as one text."""
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        child = subprocess.Popen(pinned(command, core), stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - begun
        out.seek(0)
        text = out.read()
    return Ran(child.returncode, wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text)


def loadgen_run(url: str, run_dir: Path, flags: Sequence[str], core: int | None = None) -> Ran:
    """`loadgen run` as a user would start it, pinned. Raises RuntimeError with its output when it fails."""
    command = [sys.executable, "-m", "loadgen", "run", url, "-o", str(run_dir), *flags]
    ran = run_child(command, core)
    if ran.code:
        raise RuntimeError(f"exit code {ran.code}\n{ran.output}")
    return ran


@dataclass(frozen=True)
class Errors:
    """What the client reported against the oracle's log, in ns. One entry per request, gap or event."""

    requests: int
    ttft: Ints  # TTFT - (first event sent - request received): the way of the request is in it
    gap: Ints
    sent_gap: Ints  # the oracle's own gap, to which the client's is compared
    arrival: Ints  # arrival stamp - the oracle's stamp just before send()
    shared: float  # share of events whose stamp equals the one before: one receive
    send_late: Ints  # sent - scheduled; empty in closed loop


def compare(run_dir: Path, log: dict[int, tuple[int, Ints]]) -> Errors:
    """Compare the measured rows of a run with the log. Raises ValueError where they cannot be matched."""
    from loadgen.store.runfile import open_run

    info, requests = open_run(run_dir)
    origin = int(info.clock["origin_ns"])
    rows = [row for row in (requests.exchange(i) for i in range(len(requests))) if row.event_ns and not row.warmup]
    arrivals = [np.array(row.event_ns, dtype=np.int64) + origin for row in rows]
    ttft, gap, sent_gap, arrival, late = [], [], [], [], []
    shared = 0
    for row, stamps, (received, sends) in zip(rows, arrivals, match(arrivals, list(log.values())), strict=True):
        if row.outcome == "ok" and len(stamps) != len(sends):
            raise ValueError(f"request {row.request_id}: {len(stamps)} events, the oracle sent {len(sends)}")
        sends = sends[: len(stamps)]
        steps = np.diff(stamps)
        shared += int(np.count_nonzero(steps == 0))
        arrival.append(stamps - sends)
        sent_gap.append(np.diff(sends))
        gap.append(steps - sent_gap[-1])
        ttft.append((row.event_ns[0] - (row.sent_ns or 0)) - (int(sends[0]) - received))
        if row.scheduled_ns is not None and row.sent_ns is not None:
            late.append(row.sent_ns - row.scheduled_ns)
    none = np.zeros(0, dtype=np.int64)
    return Errors(
        len(ttft),
        np.array(ttft, dtype=np.int64),
        np.concatenate([none, *gap]),
        np.concatenate([none, *sent_gap]),
        np.concatenate([none, *arrival]),
        shared / max(sum(map(len, arrivals)), 1),
        np.array(late, dtype=np.int64),
    )


def match(arrivals: Sequence[Ints], log: Sequence[tuple[int, Ints]]) -> list[tuple[int, Ints]]:
    """The log's entry of each request: pairs are formed nearest first, by the median distance over all events.

    A row does not hold the server's number, but a few late events do not move a median, and two streams whose sends lie
    so close that they are confused differ by microseconds. Raises ValueError when an entry is missing.
    """
    entries = sorted(log, key=lambda entry: int(entry[1][0]))
    firsts = np.array([entry[1][0] for entry in entries])
    pairs: list[tuple[float, int, int]] = []
    for number, stamps in enumerate(arrivals):
        low, high = np.searchsorted(firsts, [stamps[0] - _NEAR_NS, stamps[0] + _NEAR_NS])
        near = [k for k in range(low, high) if len(entries[k][1]) >= len(stamps)]
        if near:
            sends = np.array([entries[k][1][: len(stamps)] for k in near])
            distances = np.median(np.abs(stamps - sends), axis=1)
            nearest = np.argsort(distances)[:_CANDIDATES]
            pairs += [(float(distances[i]), number, near[i]) for i in nearest]
    chosen: dict[int, int] = {}
    taken: set[int] = set()
    for _, number, entry in sorted(pairs):
        if number not in chosen and entry not in taken:
            chosen[number] = entry
            taken.add(entry)
    if len(chosen) < len(arrivals):
        raise ValueError(f"{len(arrivals) - len(chosen)} requests are not in the oracle's log")
    return [entries[chosen[number]] for number in range(len(arrivals))]


def quantiles_us(values: Ints, points: Sequence[float] = (0, 0.01, 0.5, 0.99, 1)) -> list[str]:
    """Quantiles in µs, as text; n/a where there is nothing."""
    if not len(values):
        return ["n/a"] * len(points)
    return [f"{value / 1000:,.1f}" for value in np.quantile(values, points)]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def machine() -> str:
    """One line for above a table: when, on what."""
    model = platform.processor() or platform.machine()
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = next(line.partition(": ")[2] for line in facts.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    load = os.getloadavg()[0]
    return (
        f"{today}, {model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load {load:.1f}{', real-time priority' if _is_real_time() else ''}"
    )
