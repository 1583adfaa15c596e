"""Other tools' numbers from one set of stamps, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadgen.analysis.conventions import SOURCES, Convention, conventions
from loadgen.analysis.measured import measure, row_facts
from loadgen.model import Exchange, StageInfo
from tests.analysis.made import failed, frame, ok, stage


def table(exchanges: list[Exchange], info: StageInfo | None = None) -> dict[tuple[str, str], Convention]:
    requests = frame(exchanges)
    rows = conventions(measure(info or stage(), requests, row_facts(requests), 1))
    return {(row.tool, row.metric): row for row in rows}


GROUPED = [
    ok(0, sent=0.0, events=(0.2, 0.3, 0.5), tokens=(4, 4, 4)),  # 12 tokens: (0.5 - 0.2) / 11
    ok(1, sent=1.0, events=(0.1, 0.2), tokens=(1, 1)),  # 2 tokens: 0.1
    failed(2, sent=1.0),
]


def test_five_tools_on_one_run() -> None:
    rows = table(GROUPED)

    def value(tool: str, metric: str) -> float | None:
        return rows[tool, metric].value

    first, second = 0.3 / 11, 0.1
    assert value("vLLM bench serve", "Median TTFT") == pytest.approx(0.15)
    assert value("vLLM bench serve", "Mean TPOT") == pytest.approx((first + second) / 2)
    assert value("vLLM bench serve", "Median ITL") == pytest.approx(0.1)  # gaps 0.1, 0.2, 0.1
    assert value("vLLM bench serve", "Output token throughput") == pytest.approx(14 / 1.2)
    assert value("GuideLLM", "Time to first token, median") == pytest.approx(0.1)  # never between two values
    assert value("GuideLLM", "Time per output token, mean") == pytest.approx((0.5 + 0.2) / 14)
    assert value("GuideLLM", "Inter token latency, median") == pytest.approx(first)  # 11 of 12 weights
    assert value("AIPerf", "Inter Token Latency, avg") == pytest.approx((first + second) / 2)
    assert value("AIPerf", "Output Token Throughput Per User, avg") == pytest.approx((1 / first + 1 / second) / 2)
    assert value("InferenceMAX", "median_intvty") == pytest.approx(1 / ((first + second) / 2))
    assert value("InferenceMAX", "tput_per_gpu x GPUs") == pytest.approx(214 / 1.2)
    assert value("MLPerf Server", "99.00 percentile first token latency") == pytest.approx(0.2)
    assert value("MLPerf Server", "Completed samples per second") == pytest.approx(1 / 1.2)
    assert value("MLPerf Server", "Completed tokens per second") == pytest.approx(14 / 1.2)


def test_ours_stands_beside_it_by_name() -> None:
    rows = table(GROUPED)
    row = rows["AIPerf", "Output Token Throughput Per User, avg"]
    assert row.our_metric == "mean(output_tokens_per_s_per_user)"
    assert row.ours == pytest.approx(1 / ((0.3 / 11 + 0.1) / 2))
    assert row.ours != row.value
    assert row.stage == "chat@1"
    assert all(row.source == SOURCES[row.tool] and row.why and row.definition for row in rows.values())


def test_mlperf_counts_from_the_schedule() -> None:
    exchanges = [ok(i, scheduled=0.0, sent=0.1 * i, events=(0.2, 0.3)) for i in range(5)]
    row = table(exchanges, stage(kind="rate"))["MLPerf Server", "99.00 percentile first token latency"]
    assert row.value == pytest.approx(0.6)
    assert row.our_metric == "p99(ttft_scheduled)"


def test_index_percentile_is_never_interpolated() -> None:
    exchanges = [ok(i, sent=float(i), events=(0.01 * (i + 1), 0.01 * (i + 1) + 0.1)) for i in range(100)]
    row = table(exchanges)["MLPerf Server", "99.00 percentile first token latency"]
    assert row.value == pytest.approx(1.0)
    assert row.ours == pytest.approx(float(np.quantile(np.arange(1, 101) / 100, 0.99)))


@pytest.mark.parametrize(
    "exchanges", [[], [failed(0)], [ok(0, events=(0.5,))], [ok(0, events=(0.5,), flags=("not_streamed",))]]
)
def test_where_there_is_nothing_it_says_so(exchanges: list[Exchange]) -> None:
    for row in table(exchanges).values():
        assert row.value is None or math.isfinite(row.value)
        if "TPOT" in row.metric or "ITL" in row.metric:
            assert row.value is None
