"""The simulated endpoint under the real client, against the same engine in virtual time.

    python -m tests.benchmarks.endpoint [--users 1,8,32,128] [--prompt-tokens 500] [--output-tokens 100]

For closed loops of 1 to 128 users: mean TTFT, mean ITL and the whole server's rate over real HTTP, and what the
engine says in virtual time of the same load: the same lengths, the same staggered start, and the same turnarounds,
which are measured (from a user's last token to his next request: too late for the step that begins meanwhile; each of
them, since where a step is as short as they are it matters which of them are longer). Output lengths vary, else the
users of a closed loop lock into one phase, and means depend on who comes first by a microsecond. The last column
compares request by request: the engine is given the moments at which requests were really sent, and the error of each
TTFT is what HTTP, two processes and the kernel add.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import numpy as np

from loadgen.engine.clock import MonotonicClock
from loadgen.engine.runner import Runner, Target
from loadgen.engine.sockets import StampingSelector
from loadgen.engine.timeouts import Limits
from loadgen.engine.transport import Security, Transport
from loadgen.model import Exchange, Features, Load, Message, PlannedRequest, StageInfo
from loadgen.roofline.serving import EngineConfig, ServingRequest
from loadgen.roofline.serving_fast import simulate_open
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.wire.timeline import last_token_ns
from tests.benchmarks.harness import machine, real_time, table
from tests.roofline.driving import drive

Times = list[tuple[float, ...]]  # per request: sent, then its token times, in seconds


class Rows(list[Exchange]):
    """A sink."""

    def write(self, exchange: Exchange) -> None:
        self.append(exchange)


def real(url: str, model: str, users: int, outputs: Sequence[int], prompt: int, stagger_s: float) -> Times:
    """The load over HTTP."""
    selector, rows = StampingSelector(0), Rows()
    words = "".join([" word"] * (prompt - 1))
    plan = (
        PlannedRequest(i, 0, "fixed", (Message("user", f"{i % 10_000:04d}{words}"),), prompt, output)
        for i, output in enumerate(outputs)
    )
    stage = StageInfo(0, "fixed", "fixed", Load("concurrency", users), requests=len(outputs))

    async def run() -> None:
        transport = Transport(
            MonotonicClock(0),
            selector=selector,
            headers={},
            limits=Limits(),
            security=Security(),
            last_token_ns=last_token_ns,
        )
        async with transport:
            target = Target(url + "/v1", "completions", model, Features(ignore_eos=True))
            runner = Runner(transport.clock, transport, target, rows, look=selector.drain)
            await runner.run(stage, plan, stagger_ns=int(stagger_s * 1e9))

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(run())
    wrong = [row for row in rows if row.outcome != "ok" or row.output_tokens != outputs[row.request_id]]
    assert not wrong, wrong[0]
    assert {row.prompt_tokens for row in rows} == {prompt}
    return [tuple(ns * 1e-9 for ns in (row.sent_ns or 0, *row.event_ns)) for row in rows]


def figures(times: Times) -> tuple[float, float, float]:
    """Mean TTFT in ms, mean ITL in ms, output tokens/s of the whole server."""
    ttft = [row[1] - row[0] for row in times]
    gaps = np.concatenate([np.diff(row[1:]) for row in times])
    span = max(row[-1] for row in times) - min(row[0] for row in times)
    return float(np.mean(ttft)) * 1e3, float(gaps.mean()) * 1e3, sum(len(row) - 1 for row in times) / span


def modelled(
    config: EngineConfig,
    users: int,
    prompt: int,
    outputs: Sequence[int],
    stagger_s: float,
    again_s: Sequence[float],
) -> tuple[float, float, float]:
    """The same three figures of the load in virtual time."""
    asked = [ServingRequest(i, prompt, output) for i, output in enumerate(outputs)]
    seen = drive(config, asked, concurrency=users, stagger=stagger_s, turnaround=again_s)
    return figures([(seen.sent[i], *(at for at, _ in events)) for i, events in seen.events.items()])


def turnarounds(times: Times, users: int) -> list[float]:
    """The times from a user's last token to his next request: the k-th to finish is the k-th to send again."""
    sent, ended = np.sort([row[0] for row in times]), np.sort([row[-1] for row in times])
    found: list[float] = (sent[users:] - ended[: len(ended) - users]).tolist()
    return found


def replay_error_ms(config: EngineConfig, times: Times, prompt: int) -> tuple[float, float, float]:
    """Median, 90th and 99th percentile of |TTFT - the engine's TTFT| with the requests sent when they really were."""
    order = sorted(times)
    sent = np.array([row[0] for row in order])
    served = simulate_open(config, sent - sent[0], prompt, [len(row) - 1 for row in order])
    errors = np.abs(np.array([row[1] - row[0] for row in order]) - served.ttft_s) * 1e3
    p50, p90, p99 = np.quantile(errors, (0.5, 0.9, 0.99)).tolist()
    return p50, p90, p99


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", default="1,2,4,8,16,32,64,128")
    parser.add_argument("--prompt-tokens", type=int, default=500)
    parser.add_argument("--output-tokens", type=int, default=100)
    parser.add_argument("--per-user", type=int, default=20, help="requests per user; at least 40 in all, at most 1,280")
    given = parser.parse_args(argv)
    config, prompt, mean = simulated(), given.prompt_tokens, given.output_tokens
    real_time()
    rows = []
    with SimulatorProcess(config) as simulator:
        real(simulator.url, config.model, 4, [10] * 8, 100, 0.0)  # warm-up
        rng = np.random.default_rng(0)
        for users in map(int, given.users.split(",")):
            count = min(max(given.per_user * users, 40), 1280)
            outputs = rng.integers(mean // 2, mean * 3 // 2 + 1, size=count).tolist()
            times = real(simulator.url, config.model, users, outputs, prompt, stagger := mean * 8e-3)
            again = turnarounds(times, users)
            model = modelled(config.engine, users, prompt, outputs, stagger, again)
            cells = [f"{a:,.2f} / {b:,.2f} ({b / a - 1:+.1%})" for a, b in zip(model, figures(times), strict=True)]
            errors = ", ".join(f"{one:.2f}" for one in replay_error_ms(config.engine, times, prompt))
            rows.append((users, count, *cells, f"{np.median(again) * 1e3:.2f}", errors))
    print(machine(), "\n")
    compared = "model / measured"
    head = (f"TTFT, ms: {compared}", f"ITL, ms: {compared}", f"output tokens/s: {compared}")
    print(table(("users", "requests", *head, "turnaround, ms", "TTFT error p50, p90, p99, ms"), rows))
    print(simulator.lateness)


if __name__ == "__main__":
    main()
