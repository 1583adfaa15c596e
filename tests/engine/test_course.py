"""Lists and searches in virtual time: whole runs against the serving model, rules that end and skip stages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from loadgen.analysis.ending import why_end
from loadgen.analysis.frame import FrameBuilder, Requests
from loadgen.analysis.search import Search
from loadgen.engine.course import Course, Listed, Searching
from loadgen.engine.runner import Runner, Streamer, Target
from loadgen.engine.session import stage_info
from loadgen.engine.umpire import watch
from loadgen.model import Capture, Ended, Exchange, Load, RunInfo, stage_name
from loadgen.plan.lengths import fixed
from loadgen.plan.schedule import StageSpec, plan_stage
from loadgen.plan.workload import Workload
from loadgen.roofline.serving import Engine, EngineConfig, ServingRequest
from loadgen.simulator.config import simulated
from tests.engine.virtual import MS, Endpoint, S, VirtualClock, virtual

CHAT = Workload("chat", "chat", fixed(200), fixed(10))


class Rows:
    """A sink that can be read by stage."""

    def __init__(self) -> None:
        self.rows: list[Exchange] = []

    def write(self, exchange: Exchange) -> None:
        self.rows.append(exchange)

    def of(self, stage: int) -> Requests:
        builder = FrameBuilder()
        for row in self.rows:
            if row.stage == stage:
                builder.add(row)
        return builder.build()


class Serving:
    """The serving engine of the roofline, behind the streamer that a runner sends to."""

    def __init__(self, clock: VirtualClock, config: EngineConfig, lengths: tuple[int, int]) -> None:
        self.clock, self.engine, self.lengths = clock, Engine(config), lengths
        self.waiting: dict[int, asyncio.Queue[bool]] = {}
        self.ids = itertools.count()
        self.stepper: asyncio.Task[None] | None = None

    lead_ns = 0

    async def stream(self, capture: Capture, url: str, body: bytes) -> None:
        number, queue = next(self.ids), asyncio.Queue[bool]()
        self.waiting[number] = queue
        capture.sent_ns = capture.sent_end_ns = self.clock.now_ns()
        capture.status, capture.framing = 200, "close"
        capture.headers = (("content-type", "text/event-stream"),)
        self.engine.submit(ServingRequest(number, *self.lengths), self.clock.now_ns() / 1e9)
        if self.stepper is None or self.stepper.done():
            self.stepper = asyncio.create_task(self._steps())
        while True:
            done = await queue.get()
            event = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
            capture.body.add(self.clock.now_ns(), event, 0)
            if done:
                break
        usage = b'{"prompt_tokens":%d,"completion_tokens":%d}' % self.lengths
        end = b'data: {"choices":[{"delta":{},"finish_reason":"length"}],"usage":%s}\n\ndata: [DONE]\n\n' % usage
        capture.body.add(self.clock.now_ns(), end, 0)
        capture.complete, capture.end_ns = True, self.clock.now_ns()
        del self.waiting[number]

    async def _steps(self) -> None:
        while self.engine.has_work:
            now = self.clock.now_ns()
            step = self.engine.step(now / 1e9)
            await self.clock.sleep_until(now + max(round(step.duration_s * 1e9), 1))
            for number, tokens in step.tokens:
                for index in range(tokens):
                    self.waiting[number].put_nowait(number in step.finished and index == tokens - 1)


async def follow(course: Course, clock: VirtualClock, streamer: Streamer, info: RunInfo | None = None) -> RunInfo:
    """A session without its probe and its files: stage after stage, watched."""
    info = info or RunInfo(1, "complete", "r", "")
    rows = Rows()
    runner = Runner(clock, streamer, Target("http://x/v1", "chat", "m"), rows)
    while (spec := course.next(info, rows.of)) is not None:
        stage = stage_info(spec)
        info.stages.append(stage)

        async def ask(number: int = spec.stage) -> Ended | None:
            return why_end(course.ending, info.stages[-1], rows.of(number), 0)

        judge = asyncio.ensure_future(watch(clock, ask, runner.end))
        await runner.run(stage, plan_stage(spec, seed=0, nonce="n", first_id=spec.stage << 32))
        judge.cancel()
    return info


def stages(kind: str, loads: Sequence[float], **limits: int) -> list[StageSpec]:
    made = []
    for number, value in enumerate(loads):
        load = Load("concurrency", value) if kind == "concurrency" else Load("rate", value, "constant")
        made.append(StageSpec(number, stage_name("chat", load), ((CHAT, 1.0),), load, **limits))
    return made


def _carried(config: EngineConfig, offered: float, count: int) -> float:
    """Requests per second that the engine finishes when `offered` arrive."""
    engine, now, sent, finished = Engine(config), 0.0, 0, 0
    while finished < count:
        while sent < count and sent / offered <= now:
            engine.submit(ServingRequest(sent, 200, 10), sent / offered)
            sent += 1
        step = engine.step(now)
        now += step.duration_s
        finished += len(step.finished)
    return count / now


@virtual
async def test_the_search_finds_what_the_serving_model_carries() -> None:
    """A server that runs four sequences at a time, and the rate at which it works off arrivals that are too many."""
    clock = VirtualClock()
    config = simulated(knobs={"max_sequences": 4}).engine
    capacity = _carried(config, offered=100.0, count=600)
    search = Search(whole=False, low=capacity / 8, high=capacity * 8, requests=120)
    course = Searching(stages("rate", [1]), search, ("p90(ttft) < 500ms",))
    info = await follow(course, clock, Serving(clock, config, (200, 10)))
    (found,) = info.search
    assert found["ending"] == "found"
    assert found["kept"] == pytest.approx(capacity, rel=0.05)
    assert len({stage.name for stage in info.stages}) == len(info.stages)
    assert sum(probe["requests"] for probe in found["probes"]) < 0.15 * 120 * 85


@virtual
async def test_a_search_that_was_killed_goes_on_with_its_probes() -> None:
    clock = VirtualClock()
    search = Search(whole=True, low=1, high=64, requests=100)
    course = Searching(stages("concurrency", [1]), search, ("p50(ttft) < 1s",))

    def server() -> Endpoint:
        # TTFT is 50 ms for each request in flight: 1 s at twenty.
        endpoint = Endpoint(clock, lambda now: 50 * MS * max(endpoint.open, 1))
        return endpoint

    whole = await follow(course, clock, server())
    assert 17 <= whole.search[0]["kept"] <= 20
    first, rows = Searching(stages("concurrency", [1]), search, ("p50(ttft) < 1s",)), Rows()
    info = RunInfo(1, "running", "r", "")
    runner = Runner(clock, server(), Target("http://x/v1", "chat", "m"), rows)
    for _ in range(2):
        spec = first.next(info, rows.of)
        assert spec is not None
        info.stages.append(stage_info(spec))
        await runner.run(info.stages[-1], plan_stage(spec, seed=0, nonce="n", first_id=spec.stage << 32))
    info.stages.append(
        stage_info(StageSpec(2, "chat@40", ((CHAT, 1.0),), Load("concurrency", 40), 100))
    )  # killed in it
    again = Searching(stages("concurrency", [1]), search, ("p50(ttft) < 1s",))
    spec = again.next(info, rows.of)
    assert spec is not None
    assert spec.stage == 3
    assert spec.load.value not in [stage.load.value for stage in info.stages[:2]]


@virtual
async def test_a_stage_ends_once_its_percentile_is_known_well_enough() -> None:
    clock = VirtualClock()
    ticks = itertools.count()
    endpoint = Endpoint(clock, lambda now: 100 * MS + next(ticks) % 10 * MS)
    info = await follow(
        Listed(stages("rate", [10], duration_ns=3600 * S), until="p50(ttft) within 5%"), clock, endpoint
    )
    (stage,) = info.stages
    assert stage.reached is not None
    assert stage.stopped is None
    assert stage.end_ns is not None
    assert stage.end_ns < 60 * S
    assert stage.unsent == 0
    few = await follow(Listed(stages("rate", [10], requests=10_000), until="p50(ttft) within 5%"), clock, endpoint)
    assert few.stages[0].reached is not None
    assert (few.stages[0].planned, few.stages[0].unsent) < (1000, 1)


@virtual
async def test_a_goal_out_of_reach_ends_with_the_longest_time() -> None:
    clock = VirtualClock()
    course = Listed(stages("rate", [10], duration_ns=20 * S), until="p99(ttft) within 5%")
    info = await follow(course, clock, Endpoint(clock, lambda now: 100 * MS))
    assert info.stages[0].reached is None
    assert info.stages[0].window_end_ns == 20 * S


@virtual
async def test_what_breaks_ends_its_stage_and_skips_higher_loads_of_its_workload() -> None:
    clock = VirtualClock()
    endpoint = Endpoint(clock, lambda now: 100 * MS * max(endpoint.open, 1))
    course = Listed(stages("concurrency", [1, 8, 16, 4], requests=2000), stop_on=("p50(ttft) > 700ms",))
    info = await follow(course, clock, endpoint)
    assert [stage.name for stage in info.stages] == ["chat@1", "chat@8", "chat@4"]
    eight = info.stages[1]
    assert eight.stopped is not None
    assert "p50(ttft) > 700ms" in eight.stopped
    assert eight.unsent > 1500
    assert len(info.skipped) == 1
    assert info.skipped[0].startswith("chat@16: p50(ttft) > 700ms")


@virtual
async def test_a_saturated_server_gets_no_more_load() -> None:
    clock = VirtualClock()
    config = simulated(knobs={"max_sequences": 4}).engine
    course = Listed(stages("concurrency", [1, 4, 8, 16, 32], requests=300), stop_on=("saturation",))
    info = await follow(course, clock, Serving(clock, config, (200, 10)))
    assert [stage.name for stage in info.stages] == ["chat@1", "chat@4", "chat@8", "chat@16"]
    assert [line.partition(":")[0] for line in info.skipped] == ["chat@32"]
    assert "saturation" in info.skipped[0]


def test_a_list_goes_on_where_the_run_was_and_ends_with_its_budget() -> None:
    done = stage_info(stages("rate", [1])[0])
    done.end_ns = 5
    info = RunInfo(1, "running", "r", "", stages=[done])
    course = Listed(stages("rate", [1, 2], requests=3))
    spec = course.next(info, lambda number: Rows().of(number))
    assert spec is not None
    assert (spec.name, spec.stage) == ("chat@2/s", 1)
    info.limit = "--max-cost is spent"
    assert course.next(info, lambda number: Rows().of(number)) is None
    assert info.skipped == ["chat@2/s: --max-cost is spent"]
