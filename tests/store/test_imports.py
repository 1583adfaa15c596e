"""Other tools' result files: known by what is in them; loads, lengths, counts and units as each tool means them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell
from loadgen.roofline.named import Known
from loadgen.store.imports import read_result_table, read_results
from loadgen.store.inputs import read_cells

VLLM: dict[str, Any] = {
    "date": "20260101-120000",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 80,
    "request_rate": "inf",
    "max_concurrency": 8,
    "completed": 78,
    "failed": 2,
    "total_input_tokens": 78_000,
    "total_output_tokens": 15_600,
    "mean_ttft_ms": 250.0,
    "median_ttft_ms": 200.0,
    "mean_tpot_ms": 20.0,
    "mean_itl_ms": 22.0,
    "median_itl_ms": 19.0,
    "p99_itl_ms": 90.0,
}
SGLANG = {key: value for key, value in VLLM.items() if key not in ("model_id", "num_prompts", "failed")} | {
    "backend": "sglang-oai",
    "random_input_len": 1000,
    "random_range_ratio": 1.0,
    "concurrency": 7.6,
    "completed": 78,
}
AIPERF: dict[str, Any] = {
    "input_config": {
        "endpoint": {"model_names": ["Qwen/Qwen3-8B"]},
        "loadgen": {"concurrency": 8, "request_count": 80},
    },
    "request_count": {"unit": "requests", "avg": 78},
    "error_request_count": {"unit": "requests", "avg": 2},
    "time_to_first_token": {"unit": "ms", "avg": 250.0, "p99": 400.0},
    "inter_token_latency": {"unit": "ms", "avg": 20.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0, "std": 0.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0, "std": 0.0},
}
GENAI = {key: AIPERF[key] for key in AIPERF if key not in ("input_config", "error_request_count")} | {
    "input_config": {"model_names": ["x"], "perf_analyzer": {"stimulus": {"concurrency": 8}}},
    "time_to_first_token": {"unit": "ns", "avg": 250e6},
    "inter_token_latency": {"unit": "ns", "avg": 20e6},
}
EVALSCOPE = {
    "Number of concurrency": 8,
    "Request rate (req/s)": -1,
    "Total requests": 80,
    "Failed requests": 2,
    "Average time to first token (s)": 0.25,
    "Average time per output token (s)": 0.02,
    "Average inter-token latency (s)": 0.021,
    "Average input tokens per request": 1000.0,
    "Average output tokens per request": 200.0,
}
INFERENCE_PERF = {
    "load_summary": {"count": 80, "requested_rate": 4.0, "achieved_rate": 3.9},
    "successes": {
        "count": 78,
        "latency": {
            "time_to_first_token": {"mean": 0.25},
            "time_per_output_token": {"mean": 0.02},
            "inter_token_latency": {"mean": 0.021, "p99": 0.09},
            "normalized_time_per_output_token": {"mean": 0.05},
        },
        "prompt_len": {"mean": 1000},
        "output_len": {"mean": 200},
    },
    "failures": {"count": 2},
}


def guide(strategy: dict[str, Any], key: str = "config") -> dict[str, Any]:
    def of(mean: float, **more: Any) -> dict[str, Any]:
        return {"successful": {"mean": mean, "std_dev": 0.0, "percentiles": {"p99": 90.0}, **more}}

    return {
        key: {"strategy": strategy, "backend": {"model": "Qwen/Qwen3-8B"}},
        "metrics": {
            "request_totals": {"successful": 78, "errored": 2, "total": 80},
            "prompt_token_count": of(1000),
            "output_token_count": of(200),
            "time_to_first_token_ms": of(250),
            "inter_token_latency_ms": of(20),
            "time_per_output_token_ms": of(21.25),
            "request_concurrency": of(7.9),
        },
    }


GUIDELLM = {"benchmarks": [guide({"type_": "concurrent", "streams": 8})]}
FILES: dict[str, Any] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "aiperf": AIPERF,
    "aiperf records": {"records": {"ttft": AIPERF["time_to_first_token"], "itl": AIPERF["inter_token_latency"],
        "isl": {"avg": 1000}, "osl": {"avg": 200}, "request_count": {"avg": 80}},
        "input_config": {"loadgen": {"concurrency": 8}}},
    "genai-perf": GENAI,
    "guidellm": GUIDELLM,
    "guidellm of old": {"benchmarks": [guide({"type_": "concurrent", "streams": 8}, "args")]},
    "evalscope": EVALSCOPE,
    "inferencemax": {"hw": "h100-cr", "tp": 2, "conc": 8, "model": "gpt-oss-120b", "framework": "vllm",
        "precision": "fp4", "isl": 1000, "osl": 200, "mean_ttft": 0.25, "mean_tpot": 0.02},
}  # fmt: skip


def read(tmp_path: Path, *documents: Any, name: str = "r.json", known: Known | None = None) -> tuple[Cell, ...]:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps(one) for one in documents))
    return read_result_table(file, known or Known()).cells


@pytest.mark.parametrize("tool", FILES)
def test_each_tools_file_is_the_same_cell(tool: str, tmp_path: Path) -> None:
    (cell,) = read(tmp_path, FILES[tool], name="anything.json")
    assert (cell.prompt_tokens, cell.output_tokens) == (pytest.approx(1000), pytest.approx(200))
    assert (cell.load_kind, cell.load) == ("concurrency", 8)
    assert (cell.ttft_s, cell.itl_s) == (pytest.approx(0.25), pytest.approx(0.02))
    assert cell.protocol.requests in (78, 80)
    assert read_results(tmp_path / "anything.json") == (cell,)
    assert read_cells(tmp_path / "anything.json").cells == (cell,)


def test_an_open_loop_is_a_rate_and_failures_are_evidence(tmp_path: Path) -> None:
    (cell,) = read(tmp_path, INFERENCE_PERF)
    assert (cell.load_kind, cell.load, cell.protocol.requests) == ("rate", 4.0, 80)
    assert (cell.itl_s, cell.evidence["itl_p99_s"]) == (0.02, 0.09)
    assert cell.evidence["error_share"] == pytest.approx(0.025)
    (cell,) = read(tmp_path, VLLM | {"request_rate": 2.5, "max_concurrency": None})
    assert (cell.load_kind, cell.load) == ("rate", 2.5)
    assert cell.evidence["itl_p99_s"] == pytest.approx(0.09)
    (cell,) = read(tmp_path, {"benchmarks": [guide({"type_": "constant", "rate": 3})]})
    assert (cell.load_kind, cell.load) == ("rate", 3)


def test_all_requests_at_once_are_as_many_users(tmp_path: Path) -> None:
    (cell,) = read(tmp_path, VLLM | {"max_concurrency": None})
    assert (cell.load_kind, cell.load) == ("concurrency", 80)


def test_guidellms_other_strategies(tmp_path: Path) -> None:
    strategies = [{"type_": "synchronous"}, {"type_": "throughput"}, {"type_": "throughput", "max_concurrency": 64}]
    cells = read(tmp_path, {"benchmarks": [guide(one) for one in strategies]})
    assert [cell.load for cell in cells] == [1, 7.9, 64]


def test_a_static_batch_of_sglang(tmp_path: Path) -> None:
    one = {"batch_size": 16, "input_len": 256, "output_len": 32, "prefill_latency": 0.1, "median_decode_latency": 0.01}
    cells = read(tmp_path, one, one | {"batch_size": 32}, name="r.jsonl")
    assert [(cell.load_kind, cell.load) for cell in cells] == [("batch", 16), ("batch", 32)]
    assert cells[1].where.endswith("r.jsonl:2")


def test_real_lengths_where_the_file_lists_them(tmp_path: Path) -> None:
    lengths = list(range(800, 1001))
    (cell,) = read(tmp_path, VLLM | {"completed": 201, "total_input_tokens": sum(lengths), "input_lens": lengths})
    assert cell.protocol.length_ratio == pytest.approx(0.8, abs=0.01)
    assert cell.prompt_tokens == pytest.approx(1000, rel=0.01)


def test_genai_perfs_csv_takes_its_load_from_the_name_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "x-openai-chat-concurrency8"
    folder.mkdir()
    text = (
        "Metric,avg,min,max,p99\nTime To First Token (ms),250.00,1,2,3\nInter Token Latency (ms),20,1,2,3\n"
        'Output Sequence Length (tokens),200,1,2,3\nInput Sequence Length (tokens),"1,000.00",1,2,3\n\n'
        "Metric,Value\nRequest Count (count),80\n"
    )
    (folder / "profile_export_genai_perf.csv").write_text(text)
    (cell,) = read_results(folder / "profile_export_genai_perf.csv")
    assert (cell.prompt_tokens, cell.load, cell.ttft_s, cell.itl_s) == (1000, 8, 0.25, pytest.approx(0.02))
    assert cell.protocol.requests == 80


def test_a_folder_of_results_of_several_tools(tmp_path: Path) -> None:
    read(tmp_path, VLLM, name="a/x.json")
    read(tmp_path, EVALSCOPE, name="b/benchmark_summary.json")
    (tmp_path / "b" / "benchmark_args.json").write_text("{}")
    (tmp_path / "b" / "broken.json").write_text("{")
    assert len(read_cells(tmp_path).cells) == 2


def test_deployments_are_known_where_a_file_names_them_and_completed_by_the_user(tmp_path: Path) -> None:
    (cell,) = read(tmp_path, FILES["inferencemax"])
    assert cell.deployment is not None
    assert (cell.deployment.gpu.name, cell.deployment.gpus) == ("H100-SXM", 2)
    assert cell.protocol.length_ratio == 0.8
    (cell,) = read(tmp_path, VLLM)
    assert cell.deployment is None
    (cell,) = read(tmp_path, VLLM, known=Known(gpu=catalog.gpu("l40s")))
    assert cell.deployment is not None
    assert cell.deployment.shape.name == "Llama-3.1-8B"
    (cell,) = read(
        tmp_path, VLLM | {"model_id": "/models/own"}, known=Known(catalog.gpu("l4"), 1, catalog.shape("phi-4"))
    )
    assert cell.deployment is not None


def test_what_a_tool_means_is_noted(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(GUIDELLM))
    notes = read_result_table(tmp_path / "r.json").notes
    assert any("in place of its TPOT" in note for note in notes)


@pytest.mark.parametrize(
    ("document", "part"),
    [
        ({"hello": 1}, "known: SGLang"),
        ({key: value for key, value in AIPERF.items() if key != "input_config"}, "does not say the load"),
        (VLLM | {"total_input_tokens": None}, "no prompt tokens"),
        (VLLM | {"mean_ttft_ms": 0.0, "mean_tpot_ms": 0.0}, "neither TTFT nor ITL"),
        (VLLM | {"completed": 0}, "no prompt tokens"),
    ],
)
def test_what_cannot_be_read_says_why(document: Any, part: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        read(tmp_path, document)
    assert part in str(told.value)


def test_broken_json_says_where(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text('{"a": 1}\n{"b": \n')
    with pytest.raises(UsageError, match=r"r\.json:2"):
        read_results(file)


def test_no_number_is_made_of_what_is_missing(tmp_path: Path) -> None:
    (cell,) = read(tmp_path, {key: value for key, value in VLLM.items() if key != "mean_ttft_ms"})
    assert math.isnan(cell.ttft_s)
    assert cell.itl_s == pytest.approx(0.02)
