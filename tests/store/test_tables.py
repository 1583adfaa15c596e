"""Tables of cells: two layouts, loose spellings, every mistake at once; what is left out is said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.named import Known
from loadgen.store.tablecolumns import Timing, timing
from loadgen.store.tables import Table, parse_table, read_table

WIDE = "isl,osl,concurrency,ttft_ms,itl_ms\n"
TIDY = "isl,osl,concurrency_or_batch,metric,value,unit\n"
FULL = "source,gpu,n_gpu,model,dtype,engine," + TIDY


def read(text: str, known: Known | None = None) -> Table:
    return parse_table(text, "t.csv", known or Known())


def complaint(text: str, known: Known | None = None) -> str:
    with pytest.raises(UsageError) as told:
        read(text, known)
    assert told.value.exit_code == 2
    return str(told.value)


def test_a_wide_row_is_a_cell_with_means_in_seconds() -> None:
    (cell,) = read("isl,osl,concurrency,ttft_ms,itl_s,requests,length_range_ratio\n1000,200,8,250,0.02,80,0.8\n").cells
    assert (cell.prompt_tokens, cell.output_tokens, cell.load_kind, cell.load) == (1000, 200, "concurrency", 8)
    assert (cell.ttft_s, cell.itl_s) == (0.25, 0.02)
    assert (cell.protocol.requests, cell.protocol.length_ratio) == (80, 0.8)
    assert (cell.deployment, cell.label, cell.where) == (None, "", "t.csv:2")


def test_tidy_rows_of_one_cell_come_together_and_tpot_counts_as_itl() -> None:
    rows = "1000,200,8,ttft_mean,250,ms\n1000,200,16,tpot_mean,30,ms\n1000,200,8,tpot_mean,0.02,s\n"
    first, second = read(TIDY + rows).cells
    assert (first.load, first.ttft_s, first.itl_s) == (8, 0.25, 0.02)
    assert second.load == 16
    assert math.isnan(second.ttft_s)
    assert second.itl_s == pytest.approx(0.03)


def test_a_number_that_comes_twice_is_a_cell_that_was_measured_twice() -> None:
    cells = read(TIDY + "1000,200,8,ttft,250,ms\n1000,200,8,itl,20,ms\n1000,200,8,ttft,260,ms\n").cells
    assert [cell.ttft_s for cell in cells] == [0.25, 0.26]


def test_tpot_is_preferred_to_itl_and_percentiles_are_evidence() -> None:
    head = "isl,osl,users,mean ttft (ms),mean_itl_ms,Mean TPOT (ms),p99_itl_ms\n"
    (cell,) = read(head + "1000,200,8,250,22,20,90\n").cells
    assert cell.itl_s == pytest.approx(0.02)
    assert cell.evidence == {"itl_p99_s": pytest.approx(0.09)}


def test_a_median_stands_in_for_a_mean_and_this_is_said() -> None:
    found = read("isl,osl,users,ttft_p50_ms,itl_ms\n1000,200,8,250,20\n")
    assert found.cells[0].ttft_s == 0.25
    assert any("medians" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ttft_ms", Timing("ttft", "mean", 1e-3)),
        ("TTFT (s)", Timing("ttft", "mean", 1.0)),
        ("Time To First Token p99 ms", Timing("ttft", "p99", 1e-3)),
        ("avg_inter_token_latency_us", Timing("itl", "mean", 1e-6)),
        ("tpot", Timing("tpot", "mean", None)),
        ("output_throughput", None),
        ("e2e_ms", None),
    ],
)
def test_times_by_their_names(name: str, meant: Timing | None) -> None:
    assert timing(name) == meant


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffisl,osl,concurrency,ttft_ms,itl_ms\r\n1000,200,8,1250.5,20\r\n",
        "isl;osl;concurrency;ttft_ms;itl_ms\n1.000;200;8;1.250,5;20\n",
        "isl\tosl\tconcurrency\tttft_ms\titl_ms\n1000\t200\t8\t1250.5\t20\n",
        '# a source, a licence\n\n"isl", "osl", "concurrency", "ttft_ms", "itl_ms"\n1000,200,8,"1,250.5",20\n,,,,\n',
        "sep=;\nisl;osl;concurrency;ttft_ms;itl_ms\n1000;200;8;1.2505s;20ms\n",
        "input_len,output_len,max_concurrency,ttft_us,itl_us,request_rate\n1000,200,8,1250500,20000,inf\n",
    ],
)
def test_any_usual_file_of_text_reads_alike(text: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(text.encode())
    (cell,) = read_table(file).cells
    assert (cell.prompt_tokens, cell.load_kind, cell.load) == (1000, "concurrency", 8)
    assert (cell.ttft_s, cell.itl_s) == (pytest.approx(1.2505), pytest.approx(0.02))


def test_a_spreadsheets_unicode_text_reads_too(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes((WIDE + "1000,200,8,250,20\n").replace(",", "\t").encode("utf-16"))
    assert read_table(file).cells[0].ttft_s == 0.25


def test_empty_fields_are_not_known_and_never_zero() -> None:
    found = read(WIDE + "1000,200,8,,20\n1000,200,16,n/a,nan\n1000,200,32,-,30\n")
    assert [cell.load for cell in found.cells] == [8, 32]
    assert all(math.isnan(cell.ttft_s) for cell in found.cells)
    assert any("without TTFT and ITL" in note for note in found.notes)


def test_batch_is_static_and_a_finite_rate_is_open_loop() -> None:
    (cell,) = read("isl,osl,batch,ttft_ms\n512,128,4,100\n").cells
    assert (cell.load_kind, cell.load) == ("batch", 4)
    cells = read("isl,osl,rate,concurrency,ttft_ms\n512,128,2.5,,100\n512,128,inf,4,100\n").cells
    assert [(cell.load_kind, cell.load) for cell in cells] == [("rate", 2.5), ("concurrency", 4)]


def test_every_mistake_is_told_at_once_with_its_line() -> None:
    rows = ("1000,200,8,fast,20", "1000,200,0,250,20", "-5,200,8,250,20", "1000,200,8,250,-1", "1000,200,,2,2")
    told = complaint(WIDE + "\n".join(rows))
    for part in ("t.csv:2: ttft_ms: 'fast'", "t.csv:3: concurrency", "t.csv:4: isl", "t.csv:5: itl_ms", "t.csv:6"):
        assert part in told


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("isl,osl,concurency,ttft_ms\n1,1,1,1\n", "did you mean concurrency?"),
        ("isl,osl,concurrency,tftt_ms\n1,1,1,1\n", "did you mean ttft_ms?"),
        ("isl,osl,concurrency,ttft\n1,1,1,1\n", "call it ttft_ms or ttft_s"),
        ("isl,concurrency,ttft_ms\n1,1,1\n", "no column for osl"),
        ("isl,input_len,osl,concurrency,ttft_ms\n1,1,1,1,1\n", "both mean isl"),
        ("isl,isl,osl,concurrency,ttft_ms\n1,1,1,1,1\n", "two columns are called isl"),
        ("", "is empty"),
        (WIDE, "holds no cell"),
        (WIDE + "1,1,1,1,1,1,1\n", "has 7 fields"),
        (TIDY + "1000,200,8,ttft_mean,250,parsecs\n", "no time"),
        (TIDY + "1000,200,8,ttft_meen,250,ms\n", "did you mean ttft_mean?"),
        (TIDY + "1000,200,max-load,output_throughput,250,tok/s\n", "a fit needs TTFT or ITL"),
        ("isl,osl,concurrency,batch,ttft_ms\n1,1,1,1,1\n", "give one of them"),
        ("isl,osl,concurrency,ttft_ms,length_range_ratio\n1,1,1,1,1.2\n", "above 1"),
    ],
)
def test_one_mistake_is_one_line_that_says_what_to_write(text: str, part: str) -> None:
    assert part in complaint(text)


ROWS = (
    "aic_silicon,H100-SXM,2,meta-llama/Llama-3.1-70B,fp8,vllm-nan,1024,1024,4,ttft_mean,102,ms\n"
    "aic_silicon,H100-SXM,2,meta-llama/Llama-3.1-70B,fp8,vllm-nan,1024,1024,4,tpot_mean,19,ms\n"
    "aic_silicon,H100-SXM,4,openai/gpt-oss-120b,fp4,vllm-0.18.0,1024,1024,4,tpot_mean,6,ms\n"
    "splitwise,H100-SXM-powercap,8,llama2-70b,fp16,vLLM-2023,512,128,2,ttft,98,ms\n"
    "aic_silicon,H100-SXM,2,meta-llama/Llama-3.1-8B-Instruct,nan,trtllm-1.0,512,128,2,ttft,30,ms\n"
)


def test_several_deployments_in_one_file_are_told_apart_and_known_by_any_name() -> None:
    found = read(FULL + ROWS)
    labels = [cell.label for cell in found.cells]
    assert labels[0] == "2 x H100-SXM, meta-llama/Llama-3.1-70B, fp8, vllm-nan"
    assert len(set(labels)) == 4
    where = [cell.deployment for cell in found.cells]
    facts = [(d.gpu.name, d.gpus, d.shape.name, d.dtypes.weights) for d in where if d is not None]
    assert facts[1] == ("H100-SXM", 4, "gpt-oss-120b", "mxfp4")
    assert facts[2] == ("H100-SXM powercap", 8, "Llama-2-70B", "bf16")
    assert facts[3][3] == "bf16"


def test_what_a_source_says_of_its_protocol_is_used_and_said() -> None:
    found = read(FULL + ROWS)
    assert [cell.protocol.length_ratio for cell in found.cells] == [0.8, 0.8, 1.0, 1.0]
    assert [cell.load_kind for cell in found.cells] == ["concurrency", "concurrency", "batch", "concurrency"]
    assert any("splitwise" in note for note in found.notes)
    own = FULL.replace("\n", ",length_range_ratio\n") + ROWS.splitlines()[0] + ",0.5\n"
    assert read(own).cells[0].protocol.length_ratio == 0.5


def test_flags_choose_among_the_deployments_of_a_file() -> None:
    known = Known(catalog.gpu("h100"), 2, catalog.shape("llama-3.1-70b"), "fp8")
    found = read(FULL + ROWS, known)
    assert {cell.label for cell in found.cells} == {"2 x H100-SXM, meta-llama/Llama-3.1-70B, fp8, vllm-nan"}
    assert any("left out" in note for note in found.notes)
    told = complaint(FULL + ROWS, Known(gpu=catalog.gpu("b200")))
    assert "choose by --gpu" in told
    assert "4 x H100-SXM" in told


def test_flags_complete_what_a_file_does_not_say() -> None:
    known = Known(catalog.gpu("h200"), 4, catalog.shape("llama-3.1-70b"), "fp8", kv="fp8")
    (cell,) = read(WIDE + "1000,200,8,250,20\n", known).cells
    assert cell.deployment is not None
    assert (cell.deployment.gpu.name, cell.deployment.gpus, cell.deployment.dtypes.kv) == ("H200-SXM", 4, "fp8")
    assert cell.label == "4 x H200-SXM, Llama-3.1-70B, fp8, KV fp8"


def test_an_unknown_gpu_or_model_is_a_mistake_once_and_no_concern_where_another_is_chosen() -> None:
    rows = "x,H100-SMX,1,llama-3.1-8b,bf16,v,1,2,3,ttft,1,ms\n" * 2 + "x,H100,1,lama-9b,bf16,v,1,2,3,ttft,1,ms\n"
    told = complaint(FULL + rows)
    assert "2 mistakes" in told
    assert "did you mean H100-SXM" in told
    assert "t.csv:4" in told
    good = "x,H200,1,llama-3.1-8b,bf16,v,1,2,3,ttft,1,ms\n"
    known = Known(gpu=catalog.gpu("h200"), shape=catalog.shape("llama-3.1-8b"))
    assert len(read(FULL + rows + good, known).cells) == 1


def test_columns_that_say_nothing_here_are_named() -> None:
    found = read("isl,osl,concurrency,ttft_ms,power_w\n1000,200,8,250,700\n")
    assert any("power_w" in note for note in found.notes)


def test_throughput_alone_is_no_cell_for_a_fit_but_one_to_hold_a_prediction_against() -> None:
    rows = "x,H200,1,llama-3.1-8b,fp8,v,128,2048,max-load,output_throughput,26221,tok/s\n"
    (cell,) = parse_table(FULL + rows, "t.csv", rates=True).cells
    assert cell.evidence == {"output_tokens_per_s": 26221}
    assert (cell.load_kind, cell.load, cell.protocol.requests) == ("concurrency", 3000, 3000)
    assert math.isnan(cell.ttft_s)
    both = "isl,osl,concurrency,ttft_ms,output_tokens_per_s\n1000,200,8,250,640\n"
    assert read(both).cells[0].evidence == {"output_tokens_per_s": 640}
    assert "a fit needs TTFT or ITL" in complaint(FULL + rows)


def test_a_number_that_no_server_has_is_told_with_its_line() -> None:
    assert complaint(WIDE + "1e30,10,1,5,5\n") == "t.csv:2: isl: '1e30' is above 1,000,000,000"
