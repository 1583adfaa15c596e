"""Traces: every format's traps, by hand-made files that have them, and the heads of real ones where they are."""

from __future__ import annotations

import gzip
import itertools
import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.model import Load
from loadgen.plan.lengths import fixed
from loadgen.plan.prompts import rough_tokens
from loadgen.plan.schedule import StageSpec, plan_stage
from loadgen.plan.tokens import Calibration
from loadgen.plan.workload import Workload
from loadgen.store.tracefile import TraceFile
from tests.plan.made import common

_HEADS = Path(__file__).parents[2].parent / "shared" / "traces"
_real = pytest.mark.skipif(not _HEADS.is_dir(), reason="the heads of real traces are not here")


def _file(folder: Path, content: str, name: str = "trace.csv") -> str:
    path = folder / name
    path.write_bytes(content.encode())
    return str(path)


def _rows(path: str, **how: object) -> list[tuple[int, int, int]]:
    return [tuple(row[:3]) for row in TraceFile(path, **how).rows()]  # type: ignore[arg-type]


_AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:59.9799600,374,44\r\n"
    "2023-11-16 18:15:59.9799601,396,109\r\n"
    "2023-11-16 18:16:00,879,55\r\n"
    "2023-11-17 00:00:00.5,91,16"
)


def test_azure_ticks_of_100_ns_crlf_and_no_last_newline(tmp_path: Path) -> None:
    assert _rows(_file(tmp_path, _AZURE)) == [
        (0, 374, 44),
        (100, 396, 109),
        (20_040_000, 879, 55),
        (20_640_520_040_000, 91, 16),
    ]


@pytest.mark.parametrize("zone", ["+00:00", "Z", "+02:00"])
def test_a_zone_is_accepted(tmp_path: Path, zone: str) -> None:
    rows = f"2024-05-10 00:00:00.009930{zone},10,1\n2024-05-10 00:00:01{zone},20,2\n"
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"
    assert _rows(_file(tmp_path, text)) == [(0, 10, 1), (990_070_000, 20, 2)]


def test_burstgpt_of_six_and_of_eight_columns_is_read_by_its_header(tmp_path: Path) -> None:
    six = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n"
        "45,GPT-4,9,0,9,API log\n118.5,GPT-4,417,276,693,Conversation log\n"
    )
    eight = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,77,3.2,ChatGPT,472,18,490,API log\n45,78,0.1,GPT-4,9,0,9,API log\n"
        "118.5,79,9,GPT-4,417,276,693,Conversation log\n"
    )
    for text in (six, eight):
        path = _file(tmp_path, text)
        assert _rows(path) == [(0, 472, 18), (113_500_000_000, 417, 276)]
        assert TraceFile(path).survey().dropped == {"failed when recorded": 1}
        assert _rows(path, keep_failures=True)[1] == (40_000_000_000, 9, 1)


def test_prompts_of_one_session_begin_alike(tmp_path: Path) -> None:
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,a,3.2,ChatGPT,100,18,490,Conversation log\n6,b,1,GPT-4,100,9,9,Conversation log\n"
        "7,a,9,GPT-4,300,276,693,Conversation log\n8,,9,GPT-4,300,276,693,API log\n"
    )
    trace = TraceFile(_file(tmp_path, text))
    first, other, later, alone = trace.rows()
    assert (len(first.blocks), len(later.blocks), first.block_tokens, alone.blocks) == (2, 5, 64, ())
    assert later.blocks[:2] == first.blocks
    assert not set(other.blocks) & set(later.blocks)
    workload = Workload("m", "chat", fixed(1), fixed(1))
    spec = StageSpec(0, "m", ((workload, 1.0),), Load("trace", 1.0, "trace"), trace=trace)
    plan = list(plan_stage(spec, seed=0, nonce="x", first_id=0, sizer={"m": Calibration(1.0, 0.0)}))
    assert [request.repeated_tokens for request in plan] == [0, 0, 64, 0]
    texts = [request.messages[0].content for request in plan]
    assert rough_tokens(common([texts[0], texts[2]])) >= 64
    assert [rough_tokens(t) for t in texts] == [100, 100, 300, 300]


def test_a_plain_csv_may_have_a_mark_at_its_start_blank_lines_and_other_columns(tmp_path: Path) -> None:
    text = "\ufeffid,Time,Output_Tokens,prompt_tokens\n1,0.1,5,100\n\n2,1e0,6,200\n"
    assert _rows(_file(tmp_path, text)) == [(0, 100, 5), (900_000_000, 200, 6)]


def test_speed_slice_and_limit(tmp_path: Path) -> None:
    text = "time,prompt_tokens,output_tokens\n" + "".join(f"{100 + i},{i + 1},1\n" for i in range(100))
    path = _file(tmp_path, text)
    sliced = _rows(path, start_ns=10 * 10**9, end_ns=13 * 10**9, speed=4.0)
    assert sliced == [(0, 11, 1), (250_000_000, 12, 1), (500_000_000, 13, 1)]
    assert len(_rows(path, limit=7)) == 7
    survey = TraceFile(path, speed=2.0).survey()
    assert (survey.rows, survey.span_ns, survey.prompt_tokens) == (100, 49_500_000_000, 5_050)
    assert survey.rate == pytest.approx(2.0)


def test_the_context_limit_counts_prompt_and_output_and_tells_what_it_drops(tmp_path: Path) -> None:
    path = _file(tmp_path, "time,prompt_tokens,output_tokens\n0,90,10\n1,91,10\n2,5,200\n3,0,5\n4,1,1\n")
    assert _rows(path, context_limit=100) == [(0, 90, 10), (4_000_000_000, 1, 1)]
    dropped = TraceFile(path, context_limit=100).survey().dropped
    assert dropped == {"beyond the context limit": 2, "without a prompt": 1}
    with pytest.raises(UsageError, match=r"no request is left .*4 beyond"):
        TraceFile(path, context_limit=1).survey()


_MOONCAKE = "".join(
    f'{{"timestamp": {t}, "input_length": {n}, "output_length": 5, "hash_ids": {ids}}}\n'
    for t, n, ids in [(0, 1025, [0, 1, 2]), (0, 1024, [0, 1]), (0, 513, [0, 3]), (3000, 100, [9]), (3500, 40, [4])]
)


def test_mooncake_blocks_come_along_and_hits_are_counted(tmp_path: Path) -> None:
    trace = TraceFile(_file(tmp_path, _MOONCAKE, "t.jsonl"))
    assert [row.blocks for row in trace.rows()] == [(0, 1, 2), (0, 1), (0, 3), (9,), (4,)]
    survey = trace.survey()
    assert (survey.blocks, survey.blocks_seen_before, survey.distinct_times) == (9, 3, 3)


def test_bursts_of_a_coarse_clock_can_be_spread_over_a_second_at_most(tmp_path: Path) -> None:
    path = _file(tmp_path, _MOONCAKE, "t.jsonl")
    times = [row.offset_ns for row in TraceFile(path, spread=True).rows()]
    assert times == [0, 333_333_333, 666_666_666, 3_000_000_000, 3_500_000_000]


def test_another_block_size_is_told_not_guessed(tmp_path: Path) -> None:
    path = _file(tmp_path, '{"timestamp":0,"input_length":200,"output_length":5,"hash_ids":[1,2]}\n', "t.jsonl")
    with pytest.raises(UsageError, match=r"t\.jsonl:1: .*blocks of 512"):
        list(TraceFile(path).rows())
    assert next(TraceFile(path, block_tokens=128).rows()).block_tokens == 128


_ROW = '{"timestamp":0,"input_length":1,"output_length":1}\n'


@pytest.mark.parametrize(
    ("content", "name", "place", "word"),
    [
        ("time,prompt_tokens\n1,2\n", "t.csv", "t.csv:1", "output"),
        ("", "t.csv", "t.csv", ""),
        ("time,prompt_tokens,output_tokens\n0,1,1\n1,x,1\n", "t.csv", "t.csv:3", ""),
        ("time,prompt_tokens,output_tokens\n0,1,1\n1,2.5,1\n", "t.csv", "t.csv:3", "2.5"),
        ("time,prompt_tokens,output_tokens\n0,1,1\n1,-2,1\n", "t.csv", "t.csv:3", "-2"),
        ("time,prompt_tokens,output_tokens\n0,1,1\n1,2\n", "t.csv", "t.csv:3", "fields"),
        ("time,prompt_tokens,output_tokens\n5,1,1\n4,1,1\n", "t.csv", "t.csv:3", "back in time"),
        ("time,prompt_tokens,output_tokens\nnan,1,1\n", "t.csv", "t.csv:2", ""),
        ("time,prompt_tokens,output_tokens\n1e999999999,1,1\n", "t.csv", "t.csv:2", "no time"),
        ("time,prompt_tokens,output_tokens\n0,1e9999999,1\n", "t.csv", "t.csv:2", "no token count"),
        ('{"timestamp":0,"input_length":6.5,"output_length":5}\n', "t.jsonl", "t.jsonl:1", "whole number"),
        ("time,timestamp,prompt_tokens,output_tokens\n1,1,1,1\n", "t.csv", "t.csv:1", "two columns"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-01 00:00:00,1,1\n", "t.csv", "t.csv:2", ""),
        (_ROW + '{"timestamp":1,"input_length":1}\n', "t.jsonl", ":2", "output"),
        ('{"timestamp":0,"input_length":1,"output_length":1}\n{"timest\n', "t.jsonl", "t.jsonl:2", ""),
        ('{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[true,"a"]}\n', "t.jsonl", ":1", "hash_ids"),
        ('{"timestamp":0,"input_length":1,"output_length":1}\n[1]\n', "t.jsonl", ":2", "timestamp"),
    ],
)  # fmt: skip
def test_bad_rows_are_told_with_their_place(tmp_path: Path, content: str, name: str, place: str, word: str) -> None:
    with pytest.raises(UsageError) as bad:
        list(TraceFile(_file(tmp_path, content, name)).rows())
    assert place in bad.value.where
    assert word in bad.value.what


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none.csv"), str(tmp_path)):
        with pytest.raises(UsageError, match="cannot be read"):
            list(TraceFile(path).rows())
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        list(TraceFile(str(tmp_path / "b.csv")).rows())


def test_packed_files_are_read_and_the_description_travels(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(_AZURE.encode()))
    trace = pickle.loads(pickle.dumps(TraceFile(str(path), speed=2.0)))
    assert [row.offset_ns for row in trace.rows()][:3] == [0, 50, 10_020_000]


def test_a_long_trace_takes_no_memory(tmp_path: Path) -> None:
    """Eight thousand rows, which would be 2 MB: the survey does not hold them."""
    day = "2024-05-10 00"
    rows = (f"{day}:{i // 60_000:02d}:{i // 1_000 % 60:02d}.{i % 1_000:03d}0000+00:00,9,5" for i in range(8_000))
    path = _file(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "\r\n".join(rows))
    trace = TraceFile(path)
    next(trace.rows())
    tracemalloc.start()
    survey = trace.survey()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (survey.rows, survey.distinct_times) == (8_000, 8_000)
    assert peak < 400_000


def test_a_trace_is_streamed(tmp_path: Path) -> None:
    """The second half of the file is broken: whoever reads ahead would fall over it."""
    good = "".join(f"{i},1,1\n" for i in range(20_000))
    path = _file(tmp_path, f"time,prompt_tokens,output_tokens\n{good}broken,line\n")
    assert len(list(itertools.islice(TraceFile(path).rows(), 10_000))) == 10_000


@_real
@pytest.mark.parametrize(
    ("name", "rows", "first"),
    [
        ("azure_llm_2023_code_head2000.csv", 2000, (0, 4808, 10)),
        ("azure_llm_2023_conv_head2000.csv", 2000, (0, 374, 44)),
        ("mooncake_conversation_head1000.jsonl", 1000, (0, 6758, 500)),
        ("mooncake_synthetic_head300.jsonl", 300, None),
        ("burstgpt_format_sample.csv", 3, (0, 472, 18)),
    ],
)
def test_real_heads(name: str, rows: int, first: tuple[int, int, int] | None) -> None:
    trace = TraceFile(str(_HEADS / name))
    assert trace.survey().rows == rows
    if first is not None:
        assert tuple(next(trace.rows())[:3]) == first


@_real
def test_prompts_of_a_mooncake_head_share_exactly_the_blocks_that_it_says() -> None:
    trace = TraceFile(str(_HEADS / "mooncake_conversation_head1000.jsonl"), limit=60, context_limit=20_000)
    workload = Workload("m", "chat", fixed(1), fixed(1))
    spec = StageSpec(0, "m", ((workload, 1.0),), Load("trace", 1.0, "trace"), trace=trace)
    plan = list(plan_stage(spec, seed=0, nonce="x", first_id=0, sizer={"m": Calibration(1.0, 0.0)}))
    rows = list(trace.rows())
    for (a, x), (b, y) in _pairs(list(zip(rows, plan, strict=True))):
        blocks = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a.blocks, b.blocks, strict=False))
        )
        if blocks < min(len(a.blocks), len(b.blocks)):
            both = common([x.messages[0].content, y.messages[0].content])
            assert rough_tokens(both) == 512 * blocks
    assert all(abs(rough_tokens(p.messages[0].content) - p.prompt_tokens) <= 13 for p in plan)


def _pairs(items: list[tuple[object, object]]) -> Iterator[tuple[tuple, tuple]]:  # type: ignore[type-arg]
    return itertools.islice(itertools.combinations(items, 2), 0, 1_000, 7)
