"""`loadgen plan`: what it prints is what `run` would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.cli import cli
from loadgen.cli.stages import warmup_of
from loadgen.errors import UsageError


def _plan(*words: str) -> Any:
    done = CliRunner().invoke(cli, ["plan", *words, "--format", "json"])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.output)["stages"]


def test_an_open_loop_is_summed_up_as_drawn() -> None:
    (stage,) = _plan("-w", "chat", "--rate", "20", "--arrivals", "gamma:2", "--duration", "300s", "--show", "2")
    assert stage["rate"] == pytest.approx(20, rel=0.1)
    assert stage["gap_cv"] == pytest.approx(2, rel=0.1)
    assert 298 < stage["last_due_s"] < 300
    assert stage["units"] == pytest.approx(6_000, rel=0.1)
    lengths = {"mean": 2000, "sd": 0, "p5": 2000, "p50": 2000, "p95": 2000, "sum": 2000 * stage["units"]}
    assert stage["prompt_tokens"] == lengths
    assert [r["request_id"] for r in stage["first"]] == [0, 1]
    assert stage["first"][0]["due_s"] < stage["first"][1]["due_s"]


def test_a_closed_loop_has_no_due_times_and_by_duration_no_number() -> None:
    by_number, by_time = (
        _plan("--concurrency", "2", "--requests", "7")[0],
        _plan("--concurrency", "2", "--duration", "9s")[0],
    )
    assert (by_number["units"], by_number["rate"], by_number["first"][0]["due_s"]) == (7, None, None)
    assert (by_time["units"], by_time["duration_s"]) == (None, 9.0)
    assert _plan("--concurrency", "1", "--requests", "0")[0]["first"] == []


def test_the_seed_fixes_it_all() -> None:
    words = ("--rate", "5", "--requests", "50", "--prompt-tokens", "lognormal:300±200")
    assert _plan(*words) == _plan(*words)
    assert _plan(*words) != _plan(*words, "--seed", "1")


def test_a_trace_says_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,prompt_tokens,output_tokens\n0,10,5\n1,10,0\n2,9000,5\n4,20,5\n")
    one, two = _plan("--trace", str(path), "--trace-context", "100", "--trace-speed", "1,2")
    assert one["trace"]["dropped"] == {"failed when recorded": 1, "beyond the context limit": 1}
    assert [r["due_s"] for r in one["first"]] == [0.0, 4.0]
    assert [r["due_s"] for r in two["first"]] == [0.0, 2.0]
    words = ["plan", "--trace", str(path), "--trace-context", "100", "--trace-slice", "1s..9s"]
    done = CliRunner().invoke(cli, words)
    assert "from 1 s to 9 s, up to 100 tokens; 1 requests over 0.0 s" in done.output
    assert "left out: 1 failed when recorded, 1 beyond the context limit" in done.output


def test_what_prompts_share_and_conversations_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "name: a\nkind: chat\nprompt_tokens: 900\noutput_tokens: 5\nshared_prefix_tokens: 600\nprefix_groups: 3\n"
        "turns: {count: uniform:2..4, prompt_tokens: 50, think_ms: 10}\n"
    )
    done = CliRunner().invoke(cli, ["plan", "-w", str(tmp_path / "a.yaml"), "--concurrency", "1"])
    assert "the first 600 tokens are those of its group, one of 3" in done.output
    assert "uniform:2..4 turns, each after the first 50 more tokens and 10 ms later" in done.output


def test_text_names_the_load_and_that_nothing_was_sent() -> None:
    done = CliRunner().invoke(cli, ["plan", "-w", "chat,story", "--mix", "3,1", "--rate", "5", "--requests", "40"])
    assert done.exit_code == 0
    for words in ("chat+story@5/s: open loop, 5 requests/s, poisson, 40 requests", "75% chat", "25% story", "#0 at "):
        assert words in done.output
    assert "Nothing was sent" in done.output


def test_an_argument_that_is_neither_a_url_nor_a_spec() -> None:
    with pytest.raises(UsageError, match="neither"):
        _plan("chat")
    assert _plan("http://127.0.0.1:9/v1", "--requests", "1", "--concurrency", "1")


def test_every_flag_of_run_is_taken_and_gates_are_checked() -> None:
    (stage,) = _plan("http://127.0.0.1:9", "--model", "m", "--gpu", "h100-sxm", "--rate", "1", "--requests", "2")
    assert stage["units"] == 2
    with pytest.raises(UsageError, match="did you mean"):
        _plan("--slo", "p99(tft) < 1s")


def test_nothing_beyond_the_window_is_shown() -> None:
    (empty,) = _plan("--rate", "0.001", "--duration", "1s")
    assert (empty["units"], empty["first"]) == (0, [])
    (some,) = _plan("--rate", "2", "--arrivals", "constant", "--duration", "1s", "--show", "9")
    assert [r["due_s"] for r in some["first"]] == [0.0, 0.5]


def test_the_experiment_for_a_fit_is_printed_in_its_order() -> None:
    hardware = ["--gpu", "h200-sxm", "--shape", "llama-3.1-70b", "--gpus", "4"]
    result = CliRunner().invoke(cli, ["plan", "--profile", "roofline", *hardware])
    assert result.exit_code == 0
    assert "Llama-3.1-70B on 4 x H200-SXM" in result.output
    assert "p128-o256@33" in result.output
    assert result.output.count("held out  ") >= 3
    stages = _plan("--profile", "roofline")
    assert sum(stage["held_out"] for stage in stages) == 3
    assert all(stage["estimate_s"] > 0 for stage in stages)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--profile", "roofline", "-w", "chat"), "leave out --workload"),
        (("--profile", "roofline", "--prompt-tokens", "5"), "leave out --prompt-tokens"),
        (("--budget", "10m"), "--budget needs --profile"),
        (("--profile", "roofline", "--budget", "0"), "longer than 0"),
        (("--profile", "roofline", "--kv", "fp9"), "unknown KV type"),
    ],
)
def test_what_does_not_go_with_an_experiment_is_refused(flags: tuple[str, ...], part: str) -> None:
    result = CliRunner().invoke(cli, ["plan", *flags])
    assert isinstance(result.exception, UsageError)
    assert part in str(result.exception)


def test_by_another_tools_protocol_its_numbers_hold_until_a_flag_says_otherwise() -> None:
    words = ("--protocol", "inferencemax", "--concurrency", "8")
    (stage,) = _plan(*words)
    assert stage["units"] == 80
    assert (stage["prompt_tokens"]["p5"] < 1750, stage["prompt_tokens"]["p95"] <= 2000) == (True, True)
    assert _plan(*words, "--requests", "9")[0]["units"] == 9
    assert warmup_of({"warmup": None, "rate": None, "trace": None, "concurrency": "2,8", "protocol": words[1]}) == 16
    assert warmup_of({"warmup": 3, "rate": None, "trace": None, "concurrency": "2,8", "protocol": words[1]}) == 3
    with pytest.raises(UsageError, match="give --rate"):
        _plan("--protocol", "mlperf")
    with pytest.raises(UsageError, match="brings its own"):
        _plan("--protocol", "vllm", "--profile", "roofline")
