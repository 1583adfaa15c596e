"""The server's own view: names of every engine, series in time, findings; all by figures that can be worked out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from loadgen.analysis.server import Histogram, Reading, Sample, Scrape, ServerLog, normalise, server_series
from loadgen.analysis.server_names import ALIASES, SERIES
from loadgen.analysis.summary import Summary, summarise
from loadgen.model import Exchange, Finding
from tests.analysis.made import frame, ns, ok, run, stage

# -- names ------------------------------------------------------------------------------------------------------------


def read(*lines: tuple[str, float] | tuple[str, float, dict[str, str]]) -> Reading:
    samples: list[Sample] = [(line[0], line[2] if len(line) == 3 else {}, line[1]) for line in lines]
    return normalise(samples)


@pytest.mark.parametrize(
    ("lines", "engine", "values"),
    [
        # before and after vLLM renamed it; where both are told, the new one
        ([("vllm:gpu_cache_usage_perc", 0.5)], "vllm", {"kv_usage": 0.5}),
        ([("vllm:gpu_cache_usage_perc", 0.5), ("vllm:kv_cache_usage_perc", 0.6)], "vllm", {"kv_usage": 0.6}),
        (
            [("sglang:num_running_reqs", 3), ("sglang:num_queue_reqs", 1), ("sglang:token_usage", 0.28)],
            "sglang",
            {"running": 3, "waiting": 1, "kv_usage": 0.28},
        ),
        (
            [("sglang:prompt_tokens_total", 100), ("sglang:cached_tokens_total", 40)],
            "sglang",
            {"prompt_tokens": 100, "prefix_queries": 100, "prefix_hits": 40},
        ),
        (
            [("tgi_batch_current_size", 4), ("tgi_queue_size", 2), ("tgi_request_generated_tokens_sum", 90)],
            "tgi",
            {"running": 4, "waiting": 2, "generation_tokens": 90},
        ),
        (
            [("trtllm_kv_cache_utilization", 0.62), ("trtllm_num_requests_running", 2)],
            "tensorrt-llm",
            {"kv_usage": 0.62, "running": 2},
        ),
        ([("nv_gpu_power_usage", 300, {"gpu_uuid": "a"})], "triton", {"gpu_power_w": 300}),
    ],
)
def test_names_of_the_engines(lines: Any, engine: str, values: dict[str, float]) -> None:
    assert read(*lines) == Reading((engine,), values, {})


def test_triton_tells_by_labels() -> None:
    name = "nv_trt_llm_request_metrics"
    labels = [{"request_type": word, "model": "m", "version": "1"} for word in ("max", "active", "waiting")]
    got = read((name, 64, labels[0]), (name, 5, labels[1]), (name, 2, labels[2]))
    assert got.values == {"running": 5, "waiting": 2}
    kv = "nv_trt_llm_kv_cache_block_metrics"
    got = read((kv, 0.25, {"kv_cache_block_type": "fraction"}), (kv, 10, {"kv_cache_block_type": "used"}))
    assert got.values == {"kv_usage": 0.25}


def test_several_engines_and_gpus_become_one_value() -> None:
    got = read(
        ("vllm:num_requests_running", 3, {"engine": "0"}),
        ("vllm:num_requests_running", 4, {"engine": "1"}),
        ("vllm:kv_cache_usage_perc", 0.2, {"engine": "0"}),
        ("vllm:kv_cache_usage_perc", 0.4, {"engine": "1"}),
        ("DCGM_FI_DEV_POWER_USAGE", 300.0, {"gpu": "0"}),
        ("DCGM_FI_DEV_POWER_USAGE", 500.0, {"gpu": "1"}),
        ("DCGM_FI_DEV_SM_CLOCK", 1980.0, {"gpu": "0"}),
        ("DCGM_FI_DEV_SM_CLOCK", 1500.0, {"gpu": "1"}),
        ("DCGM_FI_DEV_GPU_UTIL", 50.0, {"gpu": "0"}),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 2000.0, {"gpu": "0"}),
        ("DCGM_FI_DEV_FB_USED", 1.0, {"gpu": "0"}),
    )
    assert got.engines == ("vllm", "dcgm")
    assert got.values == pytest.approx(
        {
            "running": 7,
            "kv_usage": 0.3,
            "gpu_power_w": 800,
            "sm_clock_hz": 1.5e9,
            "gpu_utilization": 0.5,
            "gpu_energy_j": 2.0,
            "gpu_memory_bytes": 2**20,
        }
    )


def test_histograms_add_up_over_engines() -> None:
    lines: list[Any] = []
    for engine in ("0", "1"):
        lines += [(f"vllm:time_to_first_token_seconds_{end}", 2.0, {"engine": engine}) for end in ("sum", "count")]
        lines += [
            ("vllm:time_to_first_token_seconds_bucket", n, {"engine": engine, "le": le})
            for le, n in (("0.5", 1.0), ("+Inf", 2.0), ("what", 3.0))
        ]
    assert read(*lines).histograms == {"ttft_s": Histogram(4.0, 4.0, (0.5,), (2.0,))}


def test_what_is_not_finite_or_not_known_is_not_there() -> None:
    got = read(("vllm:num_requests_running", float("nan")), ("vllm:num_requests_waiting", float("inf")), ("other", 1.0))
    assert got == Reading((), {}, {})


def test_every_alias_names_a_series() -> None:
    assert {alias.series for aliases in ALIASES.values() for alias in aliases} <= set(SERIES)


# -- in time ----------------------------------------------------------------------------------------------------------


def scrape(at: float, values: dict[str, float] | None = None, *, source: int = 0, **histograms: Any) -> Scrape:
    """A page read at `at` seconds; its tick is that moment."""
    made = {name: Histogram(*pair) for name, pair in histograms.items()}
    return Scrape(ns(at) or 0, 1000, round(at * 1000), source, ("vllm",), values or {}, made)


def drawn(scrapes: Sequence[Scrape]) -> dict[str, tuple[list[float], list[float]]]:
    series = server_series(ServerLog(tuple(scrapes)))
    return {name: (t_s.tolist(), values.tolist()) for name, (t_s, values) in series.items()}


def test_gauges_rates_means_and_shares() -> None:
    got = drawn(
        [
            scrape(1, {"running": 2, "generation_tokens": 100, "prefix_hits": 0, "prefix_queries": 0}, ttft_s=(1.0, 2)),
            scrape(
                3, {"running": 5, "generation_tokens": 300, "prefix_hits": 5, "prefix_queries": 20}, ttft_s=(4.0, 4)
            ),
        ]
    )
    assert got["running"] == ([1, 3], [2, 5])
    assert got["generation_tokens_per_s"] == ([3], [100])
    assert got["ttft_s"] == ([3], [1.5])
    assert got["prefix_hit_share"] == ([3], [0.25])


def test_a_restart_is_a_hole_not_a_negative_rate() -> None:
    got = drawn([scrape(at, {"generation_tokens": n}) for at, n in ((0, 100), (1, 5), (2, 9))])
    t_s, rates = got["generation_tokens_per_s"]
    assert t_s == [1, 2]
    np.testing.assert_array_equal(rates, [np.nan, 4.0])


def test_pages_of_one_series_add_up_where_all_are_there() -> None:
    both = [scrape(at, {"running": n}, source=source) for at in (0, 2) for source, n in ((0, 1), (1, 3))]
    assert drawn([*both, scrape(1, {"running": 1})])["running"] == ([0, 2], [4, 4])


# -- findings ---------------------------------------------------------------------------------------------------------

TTFT, GAP, TOKENS = 0.1, 0.01, 51  # of each request: 0.6 s from first byte to last token


def answers(*, ttft: float = TTFT, span: float = GAP * (TOKENS - 1), **more: Any) -> list[Exchange]:
    """Ten requests one after another, a second each, from 0 s on."""
    events = [ttft + span * i / (TOKENS - 1) for i in range(TOKENS)]
    return [ok(i, sent=float(i), events=events, **more) for i in range(10)]


def counters(*, tokens: float = 510, prompts: float = 1000, ttft: float = TTFT, **more: float) -> list[Scrape]:
    """A page before and one after the ten requests, and one every second between: what an honest server would tell."""
    pages = []
    for second in range(11):
        share = second / 10
        values = {"generation_tokens": 7 + tokens * share, "prompt_tokens": prompts * share, "running": 1.0}
        values |= {name: value * share for name, value in more.items()}
        n = 10 * share
        decode = (GAP * (TOKENS - 1) * n, (TOKENS - 1) * n)
        pages.append(scrape(second, values, ttft_s=(ttft * n, n), itl_s=decode))
    # In the middle of each request it is running.
    return [replace_t(page, 0.3 if 0 < i < 10 else 0.0) for i, page in enumerate(pages)]


def replace_t(page: Scrape, later_s: float) -> Scrape:
    return Scrape(
        page.t_ns + (ns(later_s) or 0),
        page.took_ns,
        page.tick,
        page.source,
        page.engines,
        page.values,
        page.histograms,
    )


def summary(exchanges: list[Exchange], scrapes: Sequence[Scrape], **more: Any) -> Summary:
    info = run(stage(start=0.0, end=10.0, requests=len(exchanges)), **more)
    return summarise(info, frame(exchanges), (), ServerLog(tuple(scrapes)))


def finding(summary: Summary, code: str) -> Finding | None:
    return next((finding for finding in summary.findings if finding.code == code), None)


SERVER_CODES = {
    "another_tenant",
    "metrics_of_a_part",
    "outside_engine",
    "gateway_buffers",
    "preemptions",
    "throttled_clocks",
    "server_restarted",
}


def test_a_server_that_agrees_gives_figures_and_no_finding() -> None:
    got = summary(answers(), counters())
    assert not SERVER_CODES & {finding.code for finding in got.findings}
    figures = got.stages[0].server
    assert figures["generation_tokens"] == figures["client_generation_tokens"] == 510
    assert figures["prompt_tokens"] == 1000
    assert figures["server_ttft_s"] == pytest.approx(TTFT)
    assert figures["server_itl_s"] == pytest.approx(GAP)
    assert figures["running_mean"] == 1


def test_without_telemetry_there_are_no_figures_and_nothing_is_zero() -> None:
    got = summarise(run(stage()), frame(answers()))
    assert got.stages[0].server == {}


@pytest.mark.parametrize(("told", "named"), [({"tokens": 1020}, "1,020 tokens"), ({"prompts": 4000}, "4,000 prompt")])
def test_another_tenant_is_named_by_what_it_used(told: dict[str, float], named: str) -> None:
    got = finding(summary(answers(), counters(**told)), "another_tenant")
    assert got is not None
    assert got.severity == "questionable"
    assert named in got.message


def test_another_tenant_is_named_by_its_requests_in_flight() -> None:
    scrapes = [Scrape(p.t_ns, 1, p.tick, 0, p.engines, {**p.values, "running": 3.0}, p.histograms) for p in counters()]
    got = finding(summary(answers(), scrapes), "another_tenant")
    assert got is not None
    assert "3.00 requests on average" in got.message


def test_answers_that_failed_are_no_other_tenant() -> None:
    """The server may have gone on for somebody who had given up."""
    more = [ok(10 + i, sent=float(i), events=(), outcome="failed", output_tokens=None, end=i + 0.5) for i in range(10)]
    given_up = [
        Exchange(**{**{f: getattr(e, f) for f in e.__dataclass_fields__}, "output_tokens_requested": 51}) for e in more
    ]
    assert finding(summary(answers() + given_up, counters(tokens=1020, prompts=2000)), "another_tenant") is None


def test_tokens_in_flight_at_the_edges_are_no_disagreement() -> None:
    """Pages that were read in the middle of requests: 1.5 of the first and last answers lie outside."""
    inside = [page for page in counters() if 0 < page.tick < 10_000]
    got = summary(answers(), inside)
    assert finding(got, "another_tenant") is None
    assert finding(got, "metrics_of_a_part") is None
    assert got.stages[0].server["client_generation_tokens"] == pytest.approx(8 * 51, abs=1)


def test_a_page_of_one_replica_of_several_is_said_to_be_that() -> None:
    got = summary(answers(), counters(tokens=255, prompts=500))
    assert finding(got, "metrics_of_a_part") is not None
    assert finding(got, "another_tenant") is None


@pytest.mark.parametrize("added", [0.03, 0.005])
def test_time_in_a_gateway_is_told_from_time_in_the_engine(added: float) -> None:
    got = finding(summary(answers(ttft=TTFT + added), counters()), "outside_engine")
    assert got is not None
    assert got.value == pytest.approx(added, abs=1e-6)
    assert got.severity == "info"


def test_no_time_is_attributed_where_the_server_saw_other_requests() -> None:
    busy = [
        Scrape(p.t_ns, 1, p.tick, 0, p.engines, p.values, {"ttft_s": Histogram(2 * h.sum, 2 * h.count)})
        for p in counters()
        for h in (p.histograms["ttft_s"],)
    ]
    assert finding(summary(answers(ttft=TTFT + 0.03), busy), "outside_engine") is None


def test_a_gateway_that_holds_tokens_back_is_named_with_the_time() -> None:
    held = 0.4
    got = finding(summary(answers(ttft=TTFT + held, span=GAP * (TOKENS - 1) - held), counters()), "gateway_buffers")
    assert got is not None
    assert got.value == pytest.approx(held, abs=1e-4)
    # A slow gateway that holds nothing back is not one that buffers.
    assert finding(summary(answers(ttft=TTFT + held), counters()), "gateway_buffers") is None


def test_preemptions_are_counted_over_the_stage() -> None:
    got = finding(summary(answers(), counters(preemptions=20)), "preemptions")
    assert got is not None
    assert got.value == 20


def test_cache_hits_are_judged_where_the_answers_do_not_tell() -> None:
    scrapes = counters(prefix_hits=500, prefix_queries=1000)
    got = finding(summary(answers(), scrapes), "cache_hits")
    assert got is not None
    assert got.value == pytest.approx(0.5)
    assert finding(summary(answers(repeated_tokens=500), scrapes), "cache_hits") is None
    assert finding(summary(answers(cached_tokens=0), scrapes), "cache_hits") is None


def test_lowered_clocks() -> None:
    def clocks(busy_hz: float, bits: float = 0.0) -> list[Scrape]:
        fast = [scrape(-1.0, {"sm_clock_hz": 1.98e9, "gpu_utilization": 0.0, "throttle_reasons": 1.0})]
        slow = {"sm_clock_hz": busy_hz, "gpu_utilization": 0.9, "throttle_reasons": bits}
        return fast + [scrape(float(at), slow) for at in range(10)]

    assert finding(summary(answers(), clocks(1.98e9)), "throttled_clocks") is None
    slow = finding(summary(answers(), clocks(1.5e9)), "throttled_clocks")
    assert slow is not None
    assert slow.value == pytest.approx(1 - 1.5 / 1.98)
    capped = finding(summary(answers(), clocks(1.9e9, 4.0)), "throttled_clocks")
    assert capped is not None
    assert "power cap" in capped.message


def test_a_restart_is_named_and_gives_no_figures() -> None:
    pages = counters()
    pages[5] = scrape(5.3, {"generation_tokens": 1.0, "prompt_tokens": 0.0})
    got = summary(answers(), pages)
    assert finding(got, "server_restarted") is not None
    assert finding(got, "another_tenant") is None
    assert "generation_tokens" not in got.stages[0].server


def test_energy_by_counter_and_by_power() -> None:
    got = summary(answers(), counters(gpu_energy_j=5100.0)).stages[0].server
    assert got["energy_j"] == pytest.approx(5100)
    assert got["energy_per_output_token_j"] == pytest.approx(10)
    assert got["energy_per_request_j"] == pytest.approx(510)
    power = [Scrape(p.t_ns, 1, p.tick, 0, p.engines, {"gpu_power_w": 510.0}) for p in counters()]
    assert summary(answers(), power).stages[0].server["energy_per_request_j"] == pytest.approx(510)


def test_servers_that_count_when_a_request_ends() -> None:
    """llama.cpp adds a request's tokens at its end: pages read in the middle of requests are no disagreement."""
    pages = [
        Scrape(p.t_ns, 1, p.tick, 0, ("llama.cpp",), {"generation_tokens": 51.0 * i})
        for i, p in enumerate(counters())
        if 0 < i < 10
    ]
    got = summary(answers(), pages)
    assert finding(got, "another_tenant") is None
    assert finding(got, "metrics_of_a_part") is None
