"""The textbook figures, the full law's terms against hand arithmetic, and the command that prints them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cli.predict import command, parse_constants
from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.explain import place
from loadgen.roofline.passes import (
    Deployment,
    Efficiency,
    StepLaw,
    combine,
    constants_law,
    context_seen,
    decode_pass,
    prefill_pass,
    step_law,
    step_parts,
    textbook_law,
    visible_pairs,
)
from loadgen.roofline.precision import Dtypes, dtypes
from loadgen.roofline.predict import predict

H100 = catalog.gpu("h100-sxm")
TEXTBOOK = textbook_law(H100, 8e9)
MEASURED = constants_law(0.02e-3, 5e-3, 0.05e-3)


def test_textbook_decode_step_does_not_depend_on_the_batch() -> None:
    for users, per_token_ms in ((1, 4.776), (32, 0.149)):
        one = decode_pass(TEXTBOOK, users, 0.0)
        assert one.time_s * 1e3 == pytest.approx(4.78, abs=0.005)
        assert one.time_s / users * 1e3 == pytest.approx(per_token_ms, abs=0.0005)
        assert (one.bound, round(one.ridge or 0), one.intensity) == ("memory", 295, pytest.approx(users))


@pytest.mark.parametrize(
    ("tokens", "ms", "bound"), [(200, 4.78, "memory"), (512, 8.28, "compute"), (4096, 66.26, "compute")]
)
def test_textbook_prefill(tokens: int, ms: float, bound: str) -> None:
    one = prefill_pass(TEXTBOOK, tokens)
    assert one.time_s * 1e3 == pytest.approx(ms, abs=0.005)
    assert one.bound == bound


def test_textbook_request() -> None:
    chat = predict(TEXTBOOK, prompt_tokens=2000, output_tokens=200)
    assert chat.decode is not None
    assert chat.prefill.time_s * 1e3 == pytest.approx(32.4, abs=0.05)
    assert chat.decode.time_s * 1e3 == pytest.approx(950.4, abs=0.1)
    assert chat.e2e_s * 1e3 == pytest.approx(982.8, abs=0.05)
    assert chat.decode_share == pytest.approx(0.97, abs=0.005)
    swap = predict(TEXTBOOK, prompt_tokens=200, output_tokens=2000)
    assert 9 < swap.e2e_s / chat.e2e_s < 11  # as many tokens, about ten times as long


@pytest.mark.parametrize(
    ("prompt", "output", "batch", "ttft_ms", "tpot_ms", "e2e_s", "share", "rate"),
    [
        (2000, 200, 1, 40, 5.05, 1.04, 0.96, 198),
        (2000, 200, 32, 40, 6.60, 1.35, 0.97, 4848),
        (20000, 100, 1, 400, 5.05, 0.90, 0.56, 198),
        (20000, 100, 32, 400, 6.60, 1.05, 0.62, 4848),
        (200, 1000, 1, 4, 5.05, 5.05, 1.00, 198),
        (200, 1000, 32, 4, 6.60, 6.60, 1.00, 4848),
    ],
)
def test_measured_constants(
    prompt: int, output: int, batch: int, ttft_ms: float, tpot_ms: float, e2e_s: float, share: float, rate: float
) -> None:
    got = predict(MEASURED, prompt_tokens=prompt, output_tokens=output, batch=batch)
    assert got.ttft_s * 1e3 == pytest.approx(ttft_ms, abs=1e-9)
    assert (got.tpot_s or 0) * 1e3 == pytest.approx(tpot_ms, abs=1e-9)
    assert got.e2e_s == pytest.approx(e2e_s, abs=0.005)
    assert got.decode_share == pytest.approx(share, abs=0.006)
    assert got.decode_output_tokens_per_s == pytest.approx(rate, abs=0.5)
    assert got.request_output_tokens_per_s == pytest.approx(batch * output / got.e2e_s)
    if got.ttft_s > (got.tpot_s or 0):  # the first token took longer than one of the others
        assert got.request_output_tokens_per_s < (got.decode_output_tokens_per_s or 0)
    assert got.prefill.one.flops is None  # constants say nothing of FLOPs


def test_a_queue_moves_ttft_and_nothing_of_decode() -> None:
    calm = predict(MEASURED, prompt_tokens=2000, output_tokens=200)
    busy = predict(MEASURED, prompt_tokens=2000, output_tokens=200, queue_s=0.5)
    assert busy.ttft_s == pytest.approx(calm.ttft_s + 0.5)
    assert (busy.tpot_s, busy.decode_output_tokens_per_s) == (calm.tpot_s, calm.decode_output_tokens_per_s)
    assert busy.e2e_s == pytest.approx(calm.e2e_s + 0.5)


def test_one_output_token_has_no_tpot() -> None:
    got = predict(MEASURED, prompt_tokens=10, output_tokens=1)
    assert (got.tpot_s, got.decode, got.output_tokens_per_s_per_user) == (None, None, None)
    assert got.e2e_s == got.ttft_s


# --- the full law -----------------------------------------------------------------------------------------------


def law_of(shape: str, gpus: int = 1, choice: Dtypes | None = None, **efficiency: float) -> StepLaw:
    return step_law(Deployment(H100, gpus, catalog.shape(shape), choice or Dtypes()), Efficiency(**efficiency))


def test_decode_of_an_8b_by_hand() -> None:
    """Weights without the embedding, 128 KiB of KV per token, at 80 % of bandwidth."""
    one = decode_pass(law_of("llama-3.1-8b", mbu=0.8), 32, 2000.0)
    weights, kv = 2 * 7.5047e9, 32 * 2000 * 131072
    assert one.bytes == pytest.approx(weights + kv, rel=1e-4)
    assert one.time_s == pytest.approx((weights + kv) / (3.35e12 * 0.8) + 32 * 2000 * 524288 / 989e12, rel=1e-4)


def test_the_head_is_paid_per_sampled_token() -> None:
    law = law_of("llama-3.1-8b")
    long = prefill_pass(law, 2000).flops or 0
    short = prefill_pass(law, 1000).flops or 0
    assert long - short == pytest.approx(2 * 6.9793e9 * 1000 + 524288 * (2000**2 - 1000**2) / 2, rel=1e-4)


def test_experts_touched_grow_to_all_of_them() -> None:
    law = law_of("mixtral-8x7b")
    one, many = (decode_pass(law, batch, 0.0).bytes or 0 for batch in (1, 512))
    shape = catalog.shape("mixtral-8x7b")
    assert one == pytest.approx(2 * (shape.dense_params + shape.head_params + shape.routed_params * 2 / 8))
    assert many == pytest.approx(2 * (shape.dense_params + shape.head_params + shape.routed_params))


def test_all_reduce_only_between_gpus() -> None:
    alone, four = law_of("llama-3.1-70b"), law_of("llama-3.1-70b", gpus=4)
    assert (alone.allreduce_s, alone.allreduce_token_s) == (0, 0)
    assert four.allreduce_s == pytest.approx(2 * 80 * 5e-6)
    assert four.allreduce_token_s == pytest.approx(2 * 80 * 8192 * 2 / 80e9)


def test_a_four_bit_model_reads_four_bits_and_computes_in_sixteen() -> None:
    choice = dtypes("w4a16", H100)
    law, plain = law_of("llama-3.1-8b", choice=choice), law_of("llama-3.1-8b")
    assert law.compute_rate == plain.compute_rate
    assert law.dense_bytes == pytest.approx(6.9793e9 * 4.15625 / 8 + 2 * 0.5253e9, rel=1e-3)
    assert law_of("llama-3.1-8b", choice=dtypes("fp8", H100, kv="fp8")).kv_bytes == plain.kv_bytes / 2


def test_absorbed_latent_attention_has_about_242_flop_per_byte() -> None:
    law = law_of("deepseek-v3")
    assert law.attention_flops_decode / law.kv_bytes == pytest.approx(242, abs=0.5)


@given(a=st.floats(1e-6, 1), b=st.floats(1e-6, 1), p=st.floats(1, 50))
def test_the_smooth_maximum_lies_between_the_maximum_and_the_sum(a: float, b: float, p: float) -> None:
    law = StepLaw(sharpness=p)
    both = combine(law, a, b, 0.0, 0.0, 0.0, 0.0)
    assert max(a, b) * (1 - 1e-12) <= both <= (a + b) * (1 + 1e-12)
    assert combine(law._replace(sharpness=1.0), a, b, 0.0, 0.0, 0.0, 0.0) == pytest.approx(a + b)
    assert combine(law._replace(sharpness=math.inf), a, b, 0.0, 0.0, 0.0, 0.0) == max(a, b)


def test_overlap_takes_the_larger_of_cpu_and_gpu() -> None:
    law = StepLaw(step_s=5e-3)
    assert combine(law, 4e-3, 1e-3, 0.0, 0.0, 0.0, 5e-3) == pytest.approx(9e-3)
    assert combine(law._replace(overlap=1.0), 4e-3, 1e-3, 0.0, 0.0, 0.0, 5e-3) == pytest.approx(5e-3)


@pytest.mark.parametrize(("batch", "padded"), [(1, 1), (2, 2), (3, 4), (5, 8), (33, 40), (257, 272), (513, 513)])
def test_padding_is_a_staircase_and_a_cliff(batch: int, padded: int) -> None:
    law = StepLaw(flops_per_token=1.0, compute_rate=1.0, padding=1.0, eager_s=0.5)
    compute, *_, overhead = step_parts(law, batch, batch, 0, batch, 0.0, 0.0, 0.0)
    assert compute == padded
    assert overhead == (0.5 if batch > 512 else 0.0)


@given(start=st.integers(0, 3000), count=st.integers(1, 3000), window=st.integers(1, 2000), chunked=st.booleans())
def test_pairs_and_context_agree_with_counting_positions(start: int, count: int, window: int, chunked: bool) -> None:
    """Summing what each decoding query sees gives what prefill counts, within half a pair per query (the integral)."""
    law = StepLaw(window_share=0.75, window_tokens=window, window_chunked=float(chunked))
    counted = sum(context_seen(law, position + 1) for position in range(start, start + count))
    brute = sum(
        0.25 * (p + 1) + 0.75 * (p % window + 1 if chunked else min(p + 1, window)) for p in range(start, start + count)
    )
    assert counted == pytest.approx(brute)
    assert visible_pairs(law, start, count) == pytest.approx(brute, abs=0.5 * count + 1e-6)


def test_windows_cut_long_contexts_only() -> None:
    law = law_of("gpt-oss-20b")
    assert context_seen(law, 100.0) == 100
    assert context_seen(law, 10_000.0) == pytest.approx((10_000 + 128) / 2)


def test_kv_capacity_is_what_the_weights_leave() -> None:
    where = Deployment(H100, 1, catalog.shape("llama-3.1-8b"), Dtypes())
    assert where.kv_capacity_tokens() == pytest.approx((80e9 * 0.9 - 2e9 - 16.06e9) / 131072, rel=1e-3)
    assert replace(where, dtypes=dtypes("bf16", kv="fp8")).kv_capacity_tokens() == pytest.approx(
        2 * where.kv_capacity_tokens(), abs=2
    )
    with pytest.raises(UsageError, match="leave no room"):
        replace(where, shape=catalog.shape("llama-3.1-70b")).kv_capacity_tokens()


def test_points_lie_on_the_roof_when_the_times_are_the_roof_s() -> None:
    shape, law = catalog.shape("llama-3.1-8b"), law_of("llama-3.1-8b")
    ideal = predict(law, prompt_tokens=2000, output_tokens=200, batch=8)
    prefill, decode = place(
        H100,
        1,
        shape,
        Dtypes(),
        prompt_tokens=2000,
        output_tokens=200,
        batch=8,
        ttft_s=ideal.ttft_s,
        tpot_s=ideal.tpot_s,
    )
    assert (prefill.bound, decode.bound) == ("compute", "memory")
    assert prefill.share_of_roof == pytest.approx(1.0, abs=1e-6)
    assert 0.95 < decode.share_of_roof <= 1.0  # attention's FLOPs are not hidden behind the KV read
    slower = place(
        H100,
        1,
        shape,
        Dtypes(),
        prompt_tokens=2000,
        output_tokens=200,
        batch=8,
        ttft_s=None,
        tpot_s=2 * (ideal.tpot_s or 0),
    )
    assert [point.phase for point in slower] == ["decode"]
    assert slower[0].share_of_roof == pytest.approx(decode.share_of_roof / 2)


# --- the command ------------------------------------------------------------------------------------------------


def run(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(command, [*arguments, "--format", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_the_command_prints_the_textbook_request() -> None:
    got = run("--params", "8e9", "--prompt-tokens", "2000", "--output-tokens", "200")
    assert got["e2e_s"] == pytest.approx(0.9828, abs=5e-5)
    text = CliRunner().invoke(command, ["--params", "8e9"]).output
    assert "982.8 ms" in text
    assert "whole server, in decode" in text
    assert "per user" in text


def test_the_command_takes_constants_and_a_queue() -> None:
    got = run("--constants", "prefill=0.02ms,step=5ms,user=0.05ms", "--batch", "32", "--queue", "500ms")
    assert got["ttft_s"] == pytest.approx(0.54)
    assert got["tpot_s"] == pytest.approx(0.0066)
    assert "n/a" in CliRunner().invoke(command, ["--constants", "prefill=1ms,step=2ms"]).output


def test_the_command_takes_a_custom_gpu_and_a_config(tmp_path: object) -> None:
    path = f"{tmp_path}/config.json"
    with open(path, "w") as file:
        json.dump({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}, file)
    got = run("--gpu", "custom", "--peak", "1T", "--bandwidth", "100GB/s", "--shape", path)
    assert got["ttft_s"] > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpu", "h10"],
        ["--shape", "nothing.json"],
        ["--constants", "prefil=1ms"],
        ["--constants", "prefill=1ms"],
        ["--constants", "prefill=1ms,step=4"],
        ["--constants", "prefill=1ms,step=4ms", "--gpu", "h200"],
        ["--params", "8e9", "--shape", "llama-3.1-8b"],
        ["--params", "-8"],
        ["--gpu", "custom"],
        ["--queue", "5 parsecs"],
        ["--params", "1e400"],
        ["--params", "1e-320"],
        ["--gpu", "custom", "--peak", "1e-300", "--bandwidth", "1T"],
        ["--queue", "1e400s"],
        ["--gpu", "custom:1T"],
        ["--gpu", "custom:1T:x"],
    ],
)
def test_mistakes_are_one_line_errors(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_what_the_flags_allow_never_ends_in_infinity() -> None:
    largest = ["--params", "1e24", "--batch", "1000000000000", "--output-tokens", "1000000000000", "--mfu", "1e-6"]
    got = run(*largest, "--gpu", "custom:1e-15:1e-15", "--queue", "1e24s")
    json.dumps(got, allow_nan=False)


def test_constants_may_leave_out_the_user_term() -> None:
    assert parse_constants("step=5ms, prefill=20us") == pytest.approx((20e-6, 5e-3, 0.0))
