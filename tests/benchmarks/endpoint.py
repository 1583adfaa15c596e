"""The simulated endpoint under the real client, against the same engine in virtual time.

    python -m tests.benchmarks.endpoint

For closed loops of 1 to 128 users: measured TTFT, ITL and whole-server rate over real HTTP, what the engine says when
no clock, socket or client is involved, and the difference. Both get the same lengths and the same staggered start; a
user's next request reaches the engine a little after its last answer, so after the next step has begun, and the virtual
users wait as long (`TURNAROUND_S`). Output lengths vary, else the users of a closed loop lock into one phase, and means
depend on who comes first by a microsecond.
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
from loadgen.roofline.serving import Engine, EngineConfig, ServingRequest
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.wire.timeline import last_token_ns

TURNAROUND_S = 0.5e-3
Times = list[tuple[float, ...]]  # per request: sent, then its token times, in seconds


class Rows(list[Exchange]):
    """A sink."""

    def write(self, exchange: Exchange) -> None:
        self.append(exchange)


def virtual(config: EngineConfig, users: int, outputs: Sequence[int], prompt: int, stagger_s: float) -> Times:
    """The load on the engine alone."""
    engine, times, numbers = Engine(config), [], iter(range(len(outputs)))
    live: dict[int, list[float]] = {}

    def submit(when_s: float) -> None:
        if (number := next(numbers, None)) is not None:
            engine.submit(ServingRequest(number, prompt, outputs[number]), when_s)
            live[number] = [when_s]

    for user in range(users):
        submit(user * stagger_s / users)
    now_s = 0.0
    while engine.has_work:
        step = engine.step(now_s)
        now_s += step.duration_s
        for number, _ in step.tokens:
            live[number].append(now_s)
        for number in step.finished:
            times.append(tuple(live.pop(number)))
            submit(now_s + TURNAROUND_S)
    return times


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


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="1,8,32,128")
    parser.add_argument("--prompt-tokens", type=int, default=500)
    parser.add_argument("--output-tokens", type=int, default=100)
    given = parser.parse_args(argv)
    config = simulated()
    print("users |        TTFT ms        |         ITL ms        |     output tokens/s")
    print("      |  model  measured      |  model  measured      |   model  measured")
    with SimulatorProcess(config) as simulator:
        real(simulator.url, config.model, 4, [10] * 8, 100, 0.0)  # warm-up
        rng, mean = np.random.default_rng(0), given.output_tokens
        for users in map(int, given.users.split(",")):
            outputs = rng.integers(mean // 2, mean * 3 // 2 + 1, size=max(5 * users, 20)).tolist()
            load = (users, outputs, given.prompt_tokens, mean * 8e-3)
            model = figures(virtual(config.engine, *load))
            measured = figures(real(simulator.url, config.model, *load))
            cells = [f"{a:7.2f} {b:8.2f} {b / a - 1:+5.1%}" for a, b in zip(model, measured, strict=True)]
            print(f"{users:5} | " + " | ".join(cells), flush=True)
    print(simulator.lateness)


if __name__ == "__main__":
    main()
