"""Made-up runs that look like real ones, for everybody's tests.

Knows: what a server's stamps look like under load (prefill by prompt length, a step that grows with the users, noise)
and every odd kind of run. Must not know: how anything is measured, stored or drawn.
Why: analysis and report need runs of every kind in milliseconds, the same ones each time.

    info, requests = run("chat")              RunInfo and Requests of one of CASES
    folder = write_run(tmp_path / "r", *case("open"))      the same as a run folder
    write_huge(tmp_path / "huge", 100_000, 300)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from loadgen.analysis.frame import FrameBuilder, Requests
from loadgen.analysis.row import row_of
from loadgen.model import EndSeen, Exchange, Failure, Load, LoadKind, RunInfo, StageInfo

MS, S = 1_000_000, 1_000_000_000
LENGTHS = {
    "chat": (2000, 200),
    "summarize": (20_000, 100),
    "story": (200, 1000),
    "swap": (200, 2000),
    "brief": (500, 20),
}

# The server: ns per prompt token, ns per step, ns per step and user in flight.
PREFILL_NS, STEP_NS, USER_NS = 20_000, 5 * MS, 50_000

FAILURES = (
    (Failure("connect", "connection refused"), None),
    (Failure("http", "503 Service Unavailable: overloaded"), 503),
    (Failure("http", "429 Too Many Requests"), 429),
    (Failure("server_error", "engine died <script>alert(1)</script> & more"), 200),
    (Failure("truncated", "the stream ended without [DONE]"), 200),
    (Failure("empty", "no output token"), 200),
)
ENDS: dict[str, EndSeen] = {
    "truncated": "eof",
    "server_error": "done",
    "empty": "done",
    "timeout": "cut",
    "cancelled": "cut",
}


@dataclass(frozen=True)
class StageCase:
    """One stage: a load, how many requests, and what goes wrong with which share of them."""

    workload: str = "chat"
    kind: LoadKind = "concurrency"
    value: float = 8.0  # users, or requests/s
    requests: int = 60
    duration_s: float | None = None  # the window; requests that begin after it are unmeasured load
    warmup: int = 2
    failed: float = 0.0
    censored: float = 0.0  # no first token within the time allowed
    cancelled: int = 0  # of the last requests, cut off by an interruption
    group: int = 1  # tokens in an event
    slower: float = 1.0  # factor on the server's times
    late_ns: int = 20_000  # what the client adds before each send
    reasoning: int = 0
    cached: int = 0
    short_by: int = 0  # output tokens fewer than asked


CASES: dict[str, tuple[StageCase, ...]] = {
    "chat": tuple(StageCase(value=users, requests=n) for users, n in ((1, 20), (8, 80), (32, 320))),
    "mixed": tuple(
        StageCase(name, value=users, requests=40) for name in ("chat", "summarize", "story") for users in (1, 8)
    ),
    "five": tuple(StageCase(name, requests=24) for name in ("chat", "summarize", "story", "swap", "mine")),
    "open": tuple(StageCase(kind="rate", value=rate, requests=200) for rate in (2, 8)),
    "trace": (StageCase(kind="trace", value=4.0, requests=120),),
    "window": (
        StageCase(requests=200, duration_s=10.0),
        StageCase(kind="rate", value=8.0, requests=200, duration_s=15.0),
    ),
    "failures": (StageCase(requests=120, failed=0.2),),
    "censored": (StageCase(kind="rate", value=8.0, requests=160, failed=0.03, censored=0.1),),
    "grouped": (StageCase(group=4),),
    "reasoning": (StageCase(reasoning=64, cached=512),),
    "short": (StageCase(short_by=120),),
    "late_client": (StageCase(kind="rate", value=8.0, late_ns=60 * MS),),
    "interrupted": (StageCase(requests=50, cancelled=8),),
    "none": (),
    "empty": (StageCase(requests=0, warmup=0),),
    "one": (StageCase(requests=1, value=1, warmup=0),),
    "three": (StageCase(requests=3, value=1),),
    "all_failed": (StageCase(requests=30, failed=1.0),),
    "fifty": tuple(StageCase("chat" if i % 2 else "story", value=1 + i, requests=4 + i) for i in range(50)),
}


def run(name: str, seed: int = 1) -> tuple[RunInfo, Requests]:
    """The run of CASES by that name, as analysis takes it."""
    info, rows = case(name, seed)
    return info, frame(rows)


def case(name: str, seed: int = 1) -> tuple[RunInfo, tuple[Exchange, ...]]:
    """The same as values."""
    info, rows = build(CASES[name], seed)
    if name == "interrupted":
        info.status, info.stages[-1].stopped = "interrupted", "interrupted"
    return info, rows


def build(stages: tuple[StageCase, ...], seed: int = 1) -> tuple[RunInfo, tuple[Exchange, ...]]:
    """A run of stages of the caller's own. The info is the caller's to change; the requests are made once."""
    info, rows = _made(stages, seed)
    return msgspec.convert(msgspec.to_builtins(info), RunInfo), rows


def frame(rows: tuple[Exchange, ...]) -> Requests:
    """The requests as columns."""
    builder = FrameBuilder()
    for row in rows:
        builder.add(row)
    return builder.build()


def write_run(path: Path, info: RunInfo, rows: tuple[Exchange, ...]) -> Path:
    """The run as a folder, through the product's own writer."""
    from loadgen.store.runfile import RunWriter

    writer = RunWriter.create(path, info)
    for row in rows:
        writer.write(row)
    assert info.status != "running"
    writer.close(info.status)
    return path


# -- how the made-up server behaves ---------------------------------------------------------------------------------


@cache
def _made(stages: tuple[StageCase, ...], seed: int) -> tuple[RunInfo, tuple[Exchange, ...]]:
    info = RunInfo(
        schema=1,
        status="complete",
        run_id=f"{seed:032x}",
        created="2025-01-02T03:04:05+00:00",
        endpoint={
            "url": "http://127.0.0.1:8000/v1",
            "model": "llama-3.1-8b",
            "dialect": "chat",
            "engine": "simulated",
            "rtt_ns": 80_000,
            "include_usage": True,
            "ignore_eos": True,
        },
        spec={"roofline": {"gpu": "h100-sxm", "gpus": 1, "shape": "llama-3.1-8b", "dtype": "bf16"}, "slo": []},
        command=["loadgen", "run", "http://127.0.0.1:8000/v1"],
        host={"system": "Linux", "cpus": 2},
        clock={"stamp_source": "kernel", "clock": "CLOCK_MONOTONIC", "error_ns": 400, "resyncs": 3},
        versions={"loadgen": "0.1.0", "python": "3.11.7"},
        seed=seed,
        nonce="5ca1ab1e",
    )
    rows: list[Exchange] = []
    now = S
    for number, one in enumerate(stages):
        stage, more = _stage(one, number, now, np.random.default_rng([seed, number]))
        info.stages.append(stage)
        rows += more
        now = (stage.end_ns or now) + S // 10
    return info, tuple(rows)


def _stage(one: StageCase, number: int, start: int, rng: np.random.Generator) -> tuple[StageInfo, list[Exchange]]:
    closed = one.kind == "concurrency"
    load = Load(one.kind, float(one.value), "closed" if closed else "poisson")
    stage = StageInfo(number, f"{one.workload}@{one.value:g}", one.workload, load, start_ns=start)
    warm = [_one(one, -1000 + number * 10 + i, -1, start - S, rng, users=1) for i in range(one.warmup)]
    rows = list(_closed(one, number, start, rng) if closed else _open(one, number, start, rng))
    rows = [_spoiled(row, one, rng) for row in rows]
    if one.cancelled:
        rows[-one.cancelled :] = [_cancelled(row) for row in rows[-one.cancelled :]]
    stage.window_start_ns = start
    stage.end_ns = max((row.end_ns or start for row in rows), default=start)
    if one.duration_s is None:
        stage.requests, stage.planned, stage.window_end_ns = one.requests, one.requests, stage.end_ns
    else:
        stage.duration_ns = round(one.duration_s * S)
        stage.window_end_ns = start + stage.duration_ns
        rows = [_windowed(row, stage.window_end_ns) for row in rows]
        stage.planned = sum("after_window" not in row.flags for row in rows)
    wall_s = (stage.end_ns - start) / 1e9
    stage.health = {
        "client_cpu_s": 0.05 * wall_s,
        "wall_s": wall_s,
        "loop_lag_p99_ns": 150_000.0,
        "loop_lag_max_ns": 900_000.0,
        "clock_error_ns": 400.0,
        "peak_connections": float(min(one.value, one.requests) if closed else 40),
        "peak_in_flight": float(min(one.value, one.requests) if closed else 40),
        "receives": float(sum(len(row.event_ns) for row in rows)),
        "shared_receives": 0.0,
        "send_late_p99_ns": float(one.late_ns),
        "kernel_stamps": 1.0,
        "workers_lost": 0.0,
    }
    rows = [*(replace(row, warmup=True) for row in warm), *rows]
    return stage, sorted(rows, key=lambda row: row.end_ns or 0)


def _closed(one: StageCase, number: int, start: int, rng: np.random.Generator) -> Iterator[Exchange]:
    users = max(int(one.value), 1)
    gap = int(_service_ns(one, users) / users)
    free = [start + i * gap for i in range(min(users, one.requests))]  # staggered over one service time
    for i in range(one.requests):
        ready = heapq.heappop(free)
        row = _one(one, (number << 40) + i, number, ready, rng, users=users)
        assert row.end_ns is not None
        heapq.heappush(free, row.end_ns + 100_000)
        yield row


def _open(one: StageCase, number: int, start: int, rng: np.random.Generator) -> Iterator[Exchange]:
    users = max(one.value * _service_ns(one, 8) / S, 1.0)
    due = start + np.cumsum(rng.exponential(S / one.value, one.requests))
    for i, when in enumerate(due):
        row = _one(one, (number << 40) + i, number, int(when), rng, users=users)
        yield replace(row, scheduled_ns=int(when))


def _service_ns(one: StageCase, users: float) -> float:
    prompt, output = LENGTHS.get(one.workload, (500, 150))
    return (prompt * PREFILL_NS + output * (STEP_NS + USER_NS * users)) * one.slower


def _one(one: StageCase, request_id: int, stage: int, ready: int, rng: np.random.Generator, users: float) -> Exchange:
    asked_prompt, asked_output = LENGTHS.get(one.workload, (500, 150))
    prompt = int(asked_prompt * rng.uniform(0.99, 1.01))
    output = max(asked_output - one.short_by, 1)
    streamed = output  # reasoning is streamed, too
    sizes = [one.group] * (streamed // one.group) + [streamed % one.group] * (streamed % one.group > 0)
    dispatched = ready + one.late_ns
    sent = dispatched + 30_000
    wait = (prompt * PREFILL_NS + USER_NS * users) * (1 + 0.5 * rng.exponential()) * one.slower
    steps = (STEP_NS + USER_NS * users) * one.group * one.slower * rng.lognormal(-0.005, 0.1, len(sizes))
    steps[0] = wait
    at = tuple(int(t) for t in sent + np.cumsum(steps))
    new = users > 1 and request_id % 1000 < users
    return Exchange(
        request_id,
        stage,
        one.workload,
        "ok",
        asked_prompt,
        asked_output,
        ready_ns=ready,
        dispatched_ns=dispatched,
        connect_start_ns=dispatched if new else None,
        connected_ns=dispatched + 25_000 if new else None,
        sent_ns=sent,
        sent_end_ns=sent + 40_000,
        headers_ns=sent + 2 * MS,
        end_ns=at[-1] + 200_000,
        first_answer_ns=at[min(one.reasoning // one.group, len(at) - 1)],
        event_ns=at,
        event_tokens=tuple(sizes),
        http_status=200,
        finish_reason="length",
        end_seen="done",
        prompt_tokens=prompt,
        prompt_tokens_source="usage",
        output_tokens=output,
        output_tokens_source="usage",
        reasoning_tokens=one.reasoning or None,
        cached_tokens=one.cached or None,
        prompt_chars=prompt * 4,
        flags=_flags(one, new),
    )


def _flags(one: StageCase, new: bool) -> tuple[str, ...]:
    on = {"new_connection": new, "grouped": one.group > 1, "reasoning": one.reasoning > 0, "shorter": one.short_by > 0}
    return tuple(word for word, it_is in on.items() if it_is)


# -- what goes wrong ------------------------------------------------------------------------------------------------


def _spoiled(row: Exchange, one: StageCase, rng: np.random.Generator) -> Exchange:
    luck = rng.random()
    if luck < one.failed:
        failure, status = FAILURES[rng.integers(len(FAILURES))]
        keep = len(row.event_ns) // 3 if failure.kind in ("truncated", "server_error") else 0
        return _broken(row, failure, status, keep, (row.sent_ns or 0) + 5 * MS)
    if luck < one.failed + one.censored:
        failure = Failure("timeout", "no first token within 30 s")
        broken = _broken(row, failure, 200, 0, (row.sent_ns or 0) + 30 * S)
        return replace(broken, flags=(*row.flags, "censored"))
    return row


def _broken(row: Exchange, failure: Failure, status: int | None, keep: int, end: int) -> Exchange:
    refused = failure.kind == "connect"
    return replace(
        row,
        outcome="cancelled" if failure.kind == "cancelled" else "failed",
        failure=failure,
        http_status=status,
        event_ns=row.event_ns[:keep],
        event_tokens=row.event_tokens[:keep],
        first_answer_ns=row.event_ns[0] if keep else None,
        end_ns=max(end, row.event_ns[keep - 1] if keep else end),
        sent_ns=None if refused else row.sent_ns,
        sent_end_ns=None if refused else row.sent_end_ns,
        headers_ns=row.headers_ns if status is not None else None,
        finish_reason=None,
        end_seen=ENDS.get(failure.kind),
        prompt_tokens=None,
        prompt_tokens_source=None,
        output_tokens=sum(row.event_tokens[:keep]) if keep else None,
        output_tokens_source="events" if keep else None,
        reasoning_tokens=None,
        cached_tokens=None,
        flags=tuple(word for word in row.flags if word == "new_connection"),
    )


def _cancelled(row: Exchange) -> Exchange:
    keep = len(row.event_ns) // 2
    return _broken(row, Failure("cancelled", "the run was interrupted"), 200, keep, row.event_ns[keep] - 1)


def _windowed(row: Exchange, end: int) -> Exchange:
    begun = row.scheduled_ns if row.scheduled_ns is not None else row.sent_ns or row.dispatched_ns or 0
    return replace(row, flags=(*row.flags, "after_window")) if begun >= end else row


# -- a run too large for the writer's pace --------------------------------------------------------------------------


def write_huge(path: Path, requests: int = 100_000, events: int = 300, users: int = 256) -> Path:
    """A closed-loop chat run of any size in a second or two: a few hundred different streams, shifted in time."""
    one = StageCase(value=users, requests=min(requests, 400), warmup=0)
    rng = np.random.default_rng(7)
    rows = []
    for i in range(one.requests):
        row = row_of(_one(one, i, 0, 0, rng, users=users))
        mean = (STEP_NS + USER_NS * users) / 1000
        row.gap_us = [row.gap_us[0], *np.rint(mean * rng.lognormal(-0.005, 0.1, events - 1)).astype(int).tolist()]
        row.output_tokens = row.output_tokens_requested = events
        row.flags, row.connect_start_us, row.connected_us, row.first_answer_us = [], None, None, None
        rows.append((sum(row.gap_us), row, msgspec.json.encode(row.gap_us).decode()))
    path.mkdir(parents=True)
    period = max(took for took, _, _ in rows) + 500
    with open(path / "requests.jsonl", "w", encoding="utf-8") as out:
        for i in range(requests):
            took, row, gaps = rows[i * 7919 % len(rows)]
            sent = 1_000_000 + i // users * period + i % users * (period // users)
            out.write(
                f'{{"id":{i},"s":0,"w":"chat","pr":2000,"or":{events},"tr":{sent - 50},"td":{sent - 30},"t0":{sent},'
                f'"t1":{sent + 40},"th":{sent + 2000},"ta":{sent + row.gap_us[0]},"te":{sent + took + 200},'
                f'"g":{gaps},"hs":200,"fr":"length","es":"done","p":{row.prompt_tokens},"ps":"usage",'
                f'"q":{events},"qs":"usage","pc":8000}}\n'
            )
    info, _ = _made((), 7)
    end = (1_000_000 + (requests // users + 2) * period) * 1000
    stage = StageInfo(0, f"chat@{users}", "chat", Load("concurrency", float(users)), requests, None, S, S, end, end)
    stage.planned = requests
    stage.health = {"wall_s": (end - S) / 1e9, "client_cpu_s": 0.2 * (end - S) / 1e9, "kernel_stamps": 1.0}
    plain = msgspec.to_builtins(replace(info, stages=[stage]))
    (path / "run.json").write_bytes(msgspec.json.encode(plain))
    return path
