"""The endpoint over real HTTP: exact counts, vLLM's documents, refusals, faults, metrics, and the engine's own times.

Times are compared where they are computed (due times in `/metrics`), never where this machine's speed would count.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.roofline.serving import Engine, EngineConfig, ServingRequest, Step
from loadgen.simulator.config import simulated
from loadgen.simulator.faults import parse_faults
from loadgen.simulator.server import Simulator
from loadgen.simulator.stepper import Stepper
from loadgen.simulator.stream import Stream
from loadgen.simulator.tokens import count_tokens

FAST = 200.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Why is the sea salty, and since when?"}]


class Reply:
    """One response, read to its end."""

    def __init__(self, status: int, headers: Any, data: bytes, cut: bool) -> None:
        self.status, self.headers, self.data, self.cut = status, headers, data, cut

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def lines(self) -> list[str]:
        """The payloads of the `data:` lines, `[DONE]` included."""
        return [line[6:] for line in self.data.decode().split("\n") if line.startswith("data: ")]

    @property
    def events(self) -> list[Any]:
        return [json.loads(line) for line in self.lines if line != "[DONE]"]

    @property
    def text(self) -> str:
        choices = [event["choices"][0] for event in self.events if event["choices"]]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


class Client:
    def __init__(self, session: aiohttp.ClientSession, simulator: Simulator) -> None:
        self.session, self.simulator = session, simulator

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.simulator.url + path, data=data, headers=headers) as response:
            got, cut = b"", False
            try:
                async for piece in response.content.iter_any():
                    got += piece
            except aiohttp.ClientError:
                cut = True
            return Reply(response.status, response.headers, got, cut)

    async def get(self, path: str) -> Reply:
        async with self.session.get(self.simulator.url + path) as response:
            return Reply(response.status, response.headers, await response.read(), False)

    async def metrics(self) -> dict[str, float]:
        page = (await self.get("/metrics")).data.decode()
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        return {
            sample.name + "".join(f":{sample.labels[k]}" for k in ("finished_reason", "kind") if k in sample.labels): (
                sample.value
            )
            for sample in samples
            if "le" not in sample.labels
        }

    async def until(self, metric: str, value: float) -> None:
        """Wait for a gauge (bounded by the test's time-out)."""
        while (await self.metrics())[metric] != value:  # noqa: ASYNC110 - the state is another's
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(knobs: dict[str, object] | None = None, **behaviour: Any) -> AsyncIterator[Client]:
    config = simulated(knobs=knobs, model="m", **{"time_scale": FAST, **behaviour})
    async with asyncio.timeout(30), Simulator(config) as simulator, aiohttp.ClientSession() as session:
        yield Client(session, simulator)


def body(tokens: int, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": USER, "max_tokens": tokens, "stream": True, **more}


USAGE = {"stream_options": {"include_usage": True}}


async def test_a_chat_stream_is_vllms() -> None:
    async with serving() as client:
        reply = await client.post(CHAT, body(7, **USAGE))
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert reply.events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [event["choices"][0]["finish_reason"] for event in reply.events[1:-1]]
    assert reasons == [None] * 6 + ["length"]
    assert reply.events[-1]["choices"] == []
    assert reply.events[-1]["usage"]["completion_tokens"] == 7 == count_tokens(reply.text)
    assert reply.lines[-1] == "[DONE]"
    assert {event["object"] for event in reply.events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in reply.events}) == 1


@pytest.mark.parametrize("tokens", [1, 2, 50])
async def test_usage_text_and_tokenize_agree(tokens: int) -> None:
    async with serving() as client:
        streamed = await client.post(CHAT, body(tokens, **USAGE))
        whole = await client.post(CHAT, body(tokens, stream=False))
        counted = await client.post("/tokenize", {"model": "m", "messages": USER})
        answer = await client.post("/tokenize", {"prompt": streamed.text})
    usage = streamed.events[-1]["usage"]
    assert usage == whole.json["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + tokens
    assert usage["prompt_tokens"] == counted.json["count"] == len(counted.json["tokens"])
    assert answer.json["count"] == tokens
    assert whole.json["choices"][0]["message"]["content"] == streamed.text
    assert whole.json["choices"][0]["finish_reason"] == "length"


async def test_completions_take_text_and_token_ids() -> None:
    async with serving() as client:
        plain = await client.post(COMPLETIONS, {"prompt": "Hello world", "max_tokens": 3, "stream": True, **USAGE})
        ids = await client.post(COMPLETIONS, {"prompt": [1, 2, 128_000, 7, 9], "max_tokens": 3})
        nested = await client.post(COMPLETIONS, {"prompt": [[5, 6]], "max_tokens": 3})
        many = await client.post(COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 3})
    assert [event["object"] for event in plain.events] == ["text_completion"] * 4
    assert plain.events[-1]["usage"]["prompt_tokens"] == 4
    assert ids.json["usage"]["prompt_tokens"] == 5
    assert nested.json["usage"]["prompt_tokens"] == 2
    assert many.status == 400


async def test_continuous_usage_counts_up() -> None:
    async with serving() as client:
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        reply = await client.post(CHAT, body(5, **options))
    assert [event["usage"]["completion_tokens"] for event in reply.events] == [0, 1, 2, 3, 4, 5, 5]


@pytest.mark.parametrize(("interval", "sizes"), [(1, [1] * 10), (4, [1, 4, 4, 1]), (100, [1, 9])])
async def test_tokens_are_grouped(interval: int, sizes: list[int]) -> None:
    async with serving(stream_interval=interval) as client:
        reply = await client.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 10, "stream": True, **USAGE})
    texts = [event["choices"][0]["text"] for event in reply.events[:-1]]
    assert [count_tokens(text) for text in texts] == sizes
    assert reply.events[-1]["usage"]["completion_tokens"] == 10 == count_tokens(reply.text)


async def test_speculative_tokens_share_an_event() -> None:
    async with serving({"draft_tokens": 3, "acceptance": 1.0}) as client:
        reply = await client.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 9, "stream": True})
    assert [count_tokens(event["choices"][0]["text"]) for event in reply.events] == [1, 4, 4]


async def test_content_parts_and_unknown_fields_are_taken() -> None:
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "Why is the sea "}, {"type": "text", "text": "salty?"}]}
    ]
    joined = [{"role": "user", "content": "Why is the sea salty?"}]
    async with serving() as client:
        a = await client.post(CHAT, body(2, messages=parts, stream=False, temperature=0, ignore_eos=True, min_tokens=2))
        b = await client.post(CHAT, body(2, messages=joined, stream=False, something_new={"a": 1}))
        image = await client.post(CHAT, body(2, messages=[{"role": "user", "content": [{"type": "image_url"}]}]))
    assert a.json["usage"] == b.json["usage"]
    assert image.status == 400


@pytest.mark.parametrize(
    ("path", "ask", "status", "words"),
    [
        (CHAT, b'{"model":', 400, "validation error"),
        (CHAT, {"model": "m"}, 400, "messages"),
        (CHAT, body(0), 400, "at least 1"),
        (CHAT, body(3, n=2), 400, "n=2"),
        (CHAT, body(3, logprobs=True), 400, "logprobs"),
        (CHAT, body(3, model="other"), 404, "does not exist"),
        (CHAT, body(3, stream=False, **USAGE), 400, "stream=True"),
        (CHAT, body(3, max_tokens="many"), 400, "max_tokens"),
        (CHAT, body(5_000), 400, "maximum context length is 1000 tokens"),
        (COMPLETIONS, {"prompt": "word " * 1_000}, 400, "your prompt contains 1001 input tokens"),
        (COMPLETIONS, {"prompt": ""}, 400, "empty"),
        (COMPLETIONS, {"prompt": 7}, 400, "prompt"),
        ("/v1/embeddings", {}, 404, None),
    ],
)
async def test_refusals_are_json_with_a_reason(path: str, ask: Any, status: int, words: str | None) -> None:
    async with serving(max_model_len=1_000) as client:
        reply = await client.post(path, ask)
    assert reply.status == status
    if words is not None:
        assert reply.json["error"]["code"] == status
        assert words in reply.json["error"]["message"]


async def test_a_request_beyond_the_kv_cache_is_refused() -> None:
    async with serving({"kv_tokens": 160}) as client:
        assert (await client.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 300})).status == 400
        assert (await client.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 100})).status == 200


async def test_max_completion_tokens_goes_first_and_defaults_are_known() -> None:
    async with serving() as client:
        newer = await client.post(CHAT, body(9, max_completion_tokens=4, stream=False))
        chat = await client.post(CHAT, {"messages": USER})
        text = await client.post(COMPLETIONS, {"prompt": "Hi"})
    assert [reply.json["usage"]["completion_tokens"] for reply in (newer, chat, text)] == [4, 256, 16]


async def test_what_a_probe_asks() -> None:
    async with serving(max_model_len=4_096) as client:
        models = (await client.get("/v1/models")).json
        assert [(entry["id"], entry["max_model_len"]) for entry in models["data"]] == [("m", 4_096)]
        assert (await client.get("/health")).status == 200
        assert "version" in (await client.get("/version")).json


async def test_answers_end_by_themselves_only_when_asked_to() -> None:
    async with serving(eos_rate=0.5, seed=3) as client:
        short = [(await client.post(CHAT, body(200, stream=False))).json for _ in range(20)]
        least = [(await client.post(CHAT, body(200, stream=False, min_tokens=9))).json for _ in range(5)]
        full = (await client.post(CHAT, body(200, stream=False, ignore_eos=True))).json
    counts = [reply["usage"]["completion_tokens"] for reply in short]
    assert len(set(counts)) > 1
    assert max(counts) < 200
    assert {reply["choices"][0]["finish_reason"] for reply in short} == {"stop"}
    assert min(reply["usage"]["completion_tokens"] for reply in least) >= 9
    assert full["usage"]["completion_tokens"] == 200
    assert full["choices"][0]["finish_reason"] == "length"


async def test_the_same_seed_gives_the_same_bytes() -> None:
    texts = []
    for seed in (5, 5, 6):
        async with serving(seed=seed) as client:
            texts.append((await client.post(CHAT, body(40))).text)
    assert texts[0] == texts[1] != texts[2]


# -- the engine's time ------------------------------------------------------------------------------------------------


def alone(config: EngineConfig, prompt: int, output: int) -> tuple[float, float]:
    """TTFT and the sum of gaps of one request on an idle engine, in virtual seconds."""
    engine = Engine(config)
    engine.submit(ServingRequest(0, prompt, output), 0.0)
    first, now = None, 0.0
    while engine.has_work:
        step = engine.step(now)
        now += step.duration_s
        if step.tokens and first is None:
            first = now
    assert first is not None
    return first, now - first


@pytest.mark.parametrize("scale", [20.0, 400.0])
async def test_due_times_are_the_engines(scale: float) -> None:
    async with serving({"token_budget": 300}, time_scale=scale) as client:
        prompt = "word " * 999
        reply = await client.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 12, "stream": True})
        counted = await client.metrics()
        ttft, gaps = alone(client.simulator.config.engine, count_tokens(prompt), 12)
    assert len(reply.events) == 12
    if not counted["simulator_schedule_resets_total"]:
        assert counted["vllm:time_to_first_token_seconds_sum"] == pytest.approx(ttft / scale, rel=1e-6)
        assert counted["vllm:inter_token_latency_seconds_sum"] == pytest.approx(gaps / scale, rel=1e-6)
    assert counted["vllm:inter_token_latency_seconds_count"] == 11


async def test_no_token_is_written_before_it_is_due() -> None:
    async with serving(time_scale=1.0) as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await client.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 5, "stream": True})
        took = loop.time() - began
        ttft, gaps = alone(client.simulator.config.engine, 1, 5)
    assert took >= ttft + gaps


async def test_first_tokens_are_written_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[list[bool]] = []  # for each step which of its tokens, in order, were the first of a stream
    write, flush = Stepper._write, Stream.flush

    def noted_write(self: Stepper, step: Step, due_s: float) -> None:
        steps.append([])
        write(self, step, due_s)

    def noted_flush(self: Stream) -> None:
        steps[-1].append(self.last_due_s is None)
        flush(self)

    monkeypatch.setattr(Stepper, "_write", noted_write)
    monkeypatch.setattr(Stream, "flush", noted_flush)
    async with serving(time_scale=20.0) as client:
        long = asyncio.create_task(client.post(CHAT, body(400)))
        await client.until("vllm:num_requests_running", 1)
        await asyncio.gather(*(client.post(CHAT, body(5)) for _ in range(3)))
        await long
    assert any(len(set(step)) == 2 for step in steps)
    assert all(step == sorted(step, reverse=True) for step in steps)


async def test_metrics_count_what_was_served() -> None:
    async with serving() as client:
        asks = [client.post(CHAT, body(n, stream=n % 2 == 0)) for n in (3, 4, 5, 6)]
        replies = await asyncio.gather(*asks)
        counted = await client.metrics()
        prompt = replies[0].json["usage"]["prompt_tokens"]
    assert counted["vllm:generation_tokens_total"] == 18
    assert counted["vllm:prompt_tokens_total"] == 4 * prompt
    assert counted["vllm:request_success_total:length"] == 4
    assert counted["vllm:time_to_first_token_seconds_count"] == 4
    assert counted["vllm:inter_token_latency_seconds_count"] == 14
    assert counted["vllm:num_requests_running"] == counted["vllm:num_requests_waiting"] == 0
    assert counted["vllm:kv_cache_usage_perc"] == 0
    assert counted["simulator_lateness_end_seconds_count"] >= 6
    assert 0 < counted["simulator_lateness_max_seconds"] < 30


async def test_the_prefix_cache_is_told_in_usage_and_metrics() -> None:
    ask = {"prompt": "word " * 100, "max_tokens": 2}
    async with serving({"prefix_cache": True}) as client:
        first, second = [(await client.post(COMPLETIONS, ask)).json["usage"] for _ in range(2)]
        other = (await client.post(COMPLETIONS, {**ask, "prompt": "x " + ask["prompt"]})).json["usage"]  # type: ignore[operator]
        counted = await client.metrics()
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (first, second, other)]
    assert cached == [0, 96, 0]
    assert counted["vllm:prefix_cache_hits_total"] == 96
    assert counted["vllm:prefix_cache_queries_total"] == 101 + 101 + 102
    async with serving() as client:
        assert (await client.post(COMPLETIONS, ask)).json["usage"]["prompt_tokens_details"] is None


async def test_a_client_that_leaves_frees_the_engine() -> None:
    async with serving(time_scale=1.0) as client:
        leaving = asyncio.create_task(client.post(CHAT, body(100_000)))
        await client.until("vllm:num_requests_running", 1)
        leaving.cancel()
        await client.until("vllm:num_requests_running", 0)
        counted = await client.metrics()
    assert counted["vllm:request_success_total:abort"] == 1
    assert counted["vllm:kv_cache_usage_perc"] == 0


@pytest.mark.parametrize(
    ("overload", "stream", "status"), [("503", True, 503), ("429", True, 429), ("200", False, 503)]
)
async def test_a_full_queue_refuses(overload: str, stream: bool, status: int) -> None:
    async with serving({"max_sequences": 1}, time_scale=1.0, max_queue=1, overload=overload) as client:
        busy = [asyncio.create_task(client.post(CHAT, body(10_000))) for _ in range(2)]
        await client.until("vllm:num_requests_waiting", 1)
        reply = await client.post(CHAT, body(5, stream=stream))
        counted = await client.metrics()
        for task in busy:
            task.cancel()
    assert reply.status == status
    assert reply.headers["Retry-After"] == "1"
    assert reply.json["error"]["code"] == status
    assert counted["simulator_refused_total"] == 1


async def test_requests_that_wait_for_memory_are_the_queue_too() -> None:
    ask = {"prompt": "word " * 100, "max_tokens": 50, "stream": True}
    async with serving({"kv_tokens": 160}, time_scale=0.2, max_queue=1) as client:  # slow: 1.8 s for each
        first = asyncio.create_task(client.post(COMPLETIONS, ask))
        await client.until("vllm:num_requests_running", 1)
        second = asyncio.create_task(client.post(COMPLETIONS, ask))
        await client.until("vllm:num_requests_waiting", 1)
        generated = (await client.metrics())["vllm:generation_tokens_total"]
        while (await client.metrics())["vllm:generation_tokens_total"] < generated + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        third = await client.post(COMPLETIONS, ask)
        statuses = [(await task).status for task in (first, second)]
    assert (statuses, third.status) == ([200, 200], 503)


async def test_a_full_queue_can_refuse_inside_a_stream() -> None:
    async with serving({"max_sequences": 1}, time_scale=1.0, max_queue=0, overload="200") as client:
        busy = asyncio.create_task(client.post(CHAT, body(10_000)))
        await client.until("vllm:num_requests_running", 1)
        reply = await client.post(CHAT, body(5))
        busy.cancel()
    assert reply.status == 200
    assert reply.events[0]["error"]["code"] == 503
    assert reply.lines[1:] == ["[DONE]"]


async def test_silence_is_filled_with_comments() -> None:
    async with serving(time_scale=0.01, keep_alive_s=0.02) as client:  # a step takes about 700 ms
        reply = await client.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 2, "stream": True})
    assert reply.data.startswith(b": keep-alive\n\n")
    assert len(reply.events) == 2


# -- faults -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def faulty(fault: str, **behaviour: Any) -> AsyncIterator[Client]:
    async with serving(faults=parse_faults(fault), **behaviour) as client:
        yield client
        kind = fault.split(":")[0]
        assert (await client.metrics())[f"simulator_faults_total:{kind}"] >= 1


@pytest.mark.parametrize(("kind", "retry"), [("429", "1"), ("503", "1"), ("500", None)])
async def test_refusing_faults(kind: str, retry: str | None) -> None:
    async with faulty(kind) as client:
        reply = await client.post(CHAT, body(5))
    assert reply.status == reply.json["error"]["code"] == int(kind)
    assert reply.headers.get("Retry-After") == retry


@pytest.mark.parametrize("tokens", [1, 2, 30])
async def test_an_error_inside_200(tokens: int) -> None:
    async with faulty("error200") as client:
        stream = await client.post(CHAT, body(tokens))
        whole = await client.post(CHAT, body(tokens, stream=False))
    assert stream.status == whole.status == 200
    assert "error" in stream.events[-1]
    assert stream.lines[-1] == "[DONE]"
    assert count_tokens("".join(e["choices"][0]["delta"]["content"] for e in stream.events[:-1])) < tokens
    assert "error" in whole.json


@pytest.mark.parametrize("kind", ["truncate", "reset"])
@pytest.mark.parametrize("tokens", [1, 2, 30])
async def test_cuts(kind: str, tokens: int) -> None:
    async with faulty(kind) as client:
        stream = await client.post(CHAT, body(tokens))
        whole = await client.post(CHAT, body(tokens, stream=False))
    assert stream.cut
    assert whole.cut
    assert "[DONE]" not in stream.lines
    if kind == "truncate" and tokens > 1:
        assert 1 <= count_tokens(stream.text) < tokens


async def test_a_malformed_event_costs_its_token_only() -> None:
    async with faulty("malformed") as client:
        stream = await client.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 9, "stream": True, **USAGE})
        whole = await client.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 9})
    broken = [line for line in stream.lines if line != "[DONE]" and not _is_json(line)]
    assert len(broken) == 1
    assert len(stream.lines) == 9 + 1 + 1
    assert json.loads(stream.lines[-2])["usage"]["completion_tokens"] == 9
    assert not _is_json(whole.data.decode())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


async def test_a_missing_done_and_a_short_answer() -> None:
    async with faulty("no_done") as client:
        reply = await client.post(CHAT, body(5, **USAGE))
    assert not reply.cut
    assert "[DONE]" not in reply.lines
    assert reply.events[-1]["usage"]["completion_tokens"] == 5
    async with faulty("short") as client:
        replies = [await client.post(CHAT, body(50, **USAGE)) for _ in range(5)]
        one = await client.post(CHAT, body(1, **USAGE))
    counts = [reply.events[-1]["usage"]["completion_tokens"] for reply in replies]
    assert all(1 <= count < 50 for count in counts)
    assert len(set(counts)) > 1
    assert replies[0].events[-2]["choices"][0]["finish_reason"] == "stop"
    assert count_tokens(one.text) == 1


@pytest.mark.parametrize("kind", ["stall", "slow_headers"])
async def test_delays_last_as_long_as_asked_and_lose_nothing(kind: str) -> None:
    async with faulty(f"{kind}:150ms") as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        reply = await client.post(CHAT, body(20, **USAGE))
        took = loop.time() - began
        await client.post(CHAT, body(3, stream=False))
    assert took >= 0.15
    assert reply.events[-1]["usage"]["completion_tokens"] == 20 == count_tokens(reply.text)
    assert reply.lines[-1] == "[DONE]"


async def test_faults_are_the_same_for_a_seed() -> None:
    runs = []
    for seed in (1, 1, 2):
        async with serving(seed=seed, faults=parse_faults("429:0.3,error200:0.3")) as client:
            runs.append(
                [(reply.status, len(reply.data)) for reply in [await client.post(CHAT, body(9)) for _ in range(15)]]
            )
    assert runs[0] == runs[1] != runs[2]
