"""Streams worked by hand: which events are tokens, when they came, how many tokens each holds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.model import Exchange, Failure
from loadgen.wire.timeline import answer, decode, last_token_ns
from tests.wire.made import DONE, bill, capture, chat, event, say, stream, usage

ROLE = chat({"role": "assistant", "content": ""})
FINISH = chat({}, "length")


def gaps(exchange: Exchange) -> list[float]:
    return [round((b - a) / 1e9, 6) for a, b in pairwise(exchange.event_ns)]


def test_role_first_ten_tokens_then_usage() -> None:
    tokens = [(0.5 + 0.05 * i, say(f" t{i}")) for i in range(10)]
    exchange = decode(capture([(0.01, ROLE), *tokens, (0.96, FINISH), (0.97, bill(10) + DONE)], asked=10))
    assert exchange.event_ns[0] == 500_000_000
    assert gaps(exchange) == [0.05] * 9
    assert exchange.event_tokens == (1,) * 10
    assert exchange.first_answer_ns == 500_000_000
    first, last = exchange.event_ns[0], exchange.event_ns[-1]
    assert (last - first) / 9 == pytest.approx(0.05e9)
    assert (exchange.outcome, exchange.end_seen, exchange.flags) == ("ok", "done", ())
    assert exchange.prompt_chars == len("be kind") + len("hi")


def test_five_chunks_of_four_tokens() -> None:
    exchange = decode(stream(*[say("four words of it")] * 5, FINISH + bill(20) + DONE, asked=20))
    assert exchange.event_tokens == (4,) * 5
    assert gaps(exchange) == [0.1] * 4
    n, (first, last) = sum(exchange.event_tokens), (exchange.event_ns[0], exchange.event_ns[-1])
    assert (last - first) / (n - 1) == pytest.approx(0.4e9 / 19)
    assert (last - first) / (n - exchange.event_tokens[0]) == pytest.approx(0.4e9 / 16)
    assert exchange.flags == ("grouped",)


def test_a_stall_that_ends_in_many_tokens_is_one_long_gap() -> None:
    counts = [1, 2, 3, 11, 12]
    events = [(at, say("x", usage=usage(n))) for at, n in zip([0.1, 0.15, 0.2, 0.7, 0.75], counts, strict=True)]
    exchange = decode(capture([*events, (0.8, FINISH + DONE)]))
    assert max(gaps(exchange)) == 0.5
    assert exchange.event_tokens == (1, 1, 1, 8, 1)


def test_blank_events_count_when_the_total_says_so() -> None:
    """vLLM: half a character is a token without text. The total is the only one to tell it from a keep-alive."""
    with_blank = (ROLE, say("a"), say(""), say("b"), say("c", "length"))
    assert len(decode(stream(*with_blank, bill(4) + DONE)).event_ns) == 4
    assert len(decode(stream(*with_blank, bill(3) + DONE)).event_ns) == 3
    assert len(decode(stream(*with_blank, DONE)).event_ns) == 3
    # More than fit: the tokens stand several to an event, and the blank one may be anything.
    assert len(decode(stream(*with_blank, bill(12) + DONE)).event_ns) == 3
    # A first token without text is the first token.
    first = decode(stream(ROLE, say(""), say("a"), say("b", "length"), bill(3) + DONE))
    assert (first.event_ns[0], first.first_answer_ns) == (200_000_000, 300_000_000)


def test_a_blank_finish_is_a_token_only_where_the_total_has_one_more() -> None:
    blank = say("", "stop")
    assert len(decode(stream(ROLE, say("a"), blank, bill(2) + DONE)).event_ns) == 2
    assert len(decode(stream(ROLE, say("a"), blank, bill(1) + DONE)).event_ns) == 1
    grouped = decode(stream(ROLE, *[say("four words of it")] * 5, blank, bill(20) + DONE))
    assert grouped.event_tokens == (4,) * 5
    # The chunk that brings the final usage is book-keeping, whatever it adds up to.
    billed = decode(stream(say("a"), say("b"), say("", "length", usage=usage(3)), DONE))
    assert len(billed.event_ns) == 2
    assert sum(billed.event_tokens) == 3


def test_blank_events_with_counts_of_their_own() -> None:
    by_usage = [say(t, usage=usage(n)) for t, n in (("a", 1), ("", 1), ("", 2), ("b", 4))]
    exchange = decode(stream(chat({"role": "assistant", "content": ""}, usage=usage(0)), *by_usage, FINISH + DONE))
    assert [ns // 10**8 for ns in exchange.event_ns] == [2, 4, 5]
    assert exchange.event_tokens == (1, 1, 2)


def test_hidden_reasoning_is_counted_and_not_streamed() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 100}}
    exchange = decode(stream(ROLE, say("a"), say("b"), say("c", "stop"), bill(103, **details) + DONE, asked=103))
    assert (exchange.output_tokens, exchange.reasoning_tokens, exchange.event_tokens) == (103, 100, (1, 1, 1))
    running = [chat({"content": ""}, usage=usage(n, **details)) for n in (50, 100)]
    shown = [say("a", usage=usage(101, **details)), say("b", "stop", usage=usage(102, **details))]
    exchange = decode(stream(*running, *shown, DONE))
    assert (exchange.output_tokens, exchange.event_tokens) == (102, (1, 1))


def test_reasoning_beside_the_output_is_added() -> None:
    """xAI: completion_tokens leaves reasoning out, total_tokens does not."""
    use = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 19,
        "completion_tokens_details": {"reasoning_tokens": 10},
    }
    exchange = decode(stream(say("a"), say("b", "stop"), event({"choices": [], "usage": use}) + DONE))
    assert (exchange.output_tokens, exchange.event_tokens) == (12, (1, 1))


def test_reasoning_that_is_left_in_the_text_was_streamed() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 2}}
    exchange = decode(stream(say("<think>"), say("hm"), say("a", "stop"), bill(3, **details) + DONE))
    assert exchange.event_tokens == (1, 1, 1)


def test_streamed_reasoning_is_in_ttft_and_not_in_the_answer() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 2}}
    thoughts = [chat({"reasoning_content": t, "content": None}) for t in ("h", "m")]
    exchange = decode(stream(ROLE, *thoughts, say("a", "stop"), bill(3, **details) + DONE, asked=3))
    assert exchange.event_tokens == (1, 1, 1)
    assert (exchange.event_ns[0], exchange.first_answer_ns) == (200_000_000, 400_000_000)
    assert exchange.flags == ("reasoning",)


@pytest.mark.parametrize(
    ("stated", "total", "shared"),
    [
        ([2, 1, 4], 7, (2, 1, 4)),
        ([2, 1, 4], 8, (2, 1, 5)),  # an end token, counted and never sent
        ([2, 1, 4], 30, (10, 10, 10)),  # no agreement: the server's total, shared evenly
        ([2, 1, 4], 4, (1, 2, 1)),
        ([2, 1, 4], 2, (1, 1, 0)),
    ],
)
def test_tokens_of_events_sum_up_to_the_total(stated: list[int], total: int, shared: tuple[int, ...]) -> None:
    events = [event({"choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [5] * n}]}) for n in stated]
    exchange = decode(stream(*events, FINISH, bill(total) + DONE))
    assert exchange.event_tokens == shared
    assert ("counts_disagree" in exchange.flags) == (total not in (7, 8))


def test_a_tokenizer_sees_the_whole_text_once() -> None:
    asked: list[str] = []

    def tokens(text: str) -> int:
        asked.append(text)
        return 6

    exchange = decode(stream(chat({"reasoning": "hm"}), say("Hel"), say("lo", "stop"), DONE), count_tokens=tokens)
    assert asked == ["Hello", "hm"]
    assert (exchange.output_tokens, exchange.output_tokens_source) == (12, "tokenizer")
    assert sum(exchange.event_tokens) == 12
    decode(stream(say("Hel"), say("lo", "stop"), bill(2) + DONE), count_tokens=tokens)
    assert len(asked) == 2


def test_several_answers_side_by_side() -> None:
    def choice(index: int, text: str | None, finish: str | None = None) -> bytes:
        delta = {} if text is None else {"content": text}
        return event(
            {
                "object": "chat.completion.chunk",
                "choices": [{"index": index, "delta": delta, "finish_reason": finish}],
            }
        )

    body = (choice(0, "a"), choice(1, "x"), choice(0, "b"), choice(0, None, "stop"), choice(1, "y"))
    whole = stream(*body, choice(1, None, "length"), bill(4))
    exchange = decode(whole, keep_text=True)
    assert (exchange.outcome, exchange.event_tokens, exchange.text) == ("ok", (1, 1, 1, 1), "ab")
    assert answer(whole) == "ab"
    assert decode(stream(*body)).failure == Failure("truncated", "the stream ended without [DONE] or finish_reason")
    both = event({"choices": [{"index": i, "delta": {"content": "x"}, "token_ids": [1]} for i in (0, 1)]})
    assert decode(stream(both, DONE)).event_tokens == (2,)
    one_counted = decode(stream(*body, choice(1, None, "length"), bill(2) + DONE))
    assert (sum(one_counted.event_tokens), one_counted.output_tokens_source) == (4, "events")
    assert "counts_disagree" in one_counted.flags


def test_a_stamp_is_that_of_the_piece_that_completed_the_event() -> None:
    one, two = say("漢"), say("字", "stop")
    exchange = decode(capture([(0.1, one[:20]), (0.2, one[20:] + two[:5]), (0.3, two[5:] + DONE)]))
    assert exchange.event_ns == (200_000_000, 300_000_000)


def test_events_that_share_a_receive_are_told_with_the_time_nobody_looked() -> None:
    exchange = decode(capture([(0.1, ROLE), (0.2, say("a") + say("b") + say("c")), (0.3, say("d", "stop") + DONE)]))
    assert exchange.shared_events == 2
    assert exchange.shared_wait_ns == 1000  # the blind time of the second piece
    assert "coalesced" in exchange.flags
    apart = decode(stream(ROLE + say("a"), say("b", "stop") + DONE))
    assert (apart.shared_events, apart.shared_wait_ns) == (0, 0)


def test_last_token_on_an_unfinished_stream() -> None:
    assert last_token_ns(stream(ROLE, b": wait\n\n", complete=False)) is None
    assert last_token_ns(stream(ROLE, say("a"), b": wait\n\n", say("b")[:9], complete=False)) == 200_000_000
    assert last_token_ns(stream(ROLE, say("a"), say(""), complete=False)) == 200_000_000
    assert last_token_ns(stream(complete=False, status=None)) is None


def test_a_surrogate_pair_in_two_events_is_one_character() -> None:
    halves = [
        b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % half for half in (b"\\ud83d", b"\\ude00")
    ]
    exchange = decode(stream(*halves, FINISH + DONE), keep_text=True)
    assert (exchange.text, len(exchange.event_ns), exchange.flags) == ("😀", 2, ("no_usage",))
    alone = decode(stream(halves[0], FINISH + DONE), keep_text=True)
    assert alone.text == "\ufffd"


@given(
    st.lists(st.tuples(st.sampled_from(["a", " the", "", "漢字"]), st.integers(1, 5)), min_size=1, max_size=30),
    st.integers(0, 60),
    st.sampled_from(["none", "ids", "running"]),
    st.integers(0, 20),
)
def test_whatever_is_stated_the_tokens_sum_up(
    events: list[tuple[str, int]], total: int, told: str, hidden: int
) -> None:
    sent, so_far = [], 0
    details = {"completion_tokens_details": {"reasoning_tokens": hidden}} if hidden else {}
    for text, n in events:
        so_far += n
        choice = {"index": 0, "delta": {"content": text}} | ({"token_ids": [1] * n} if told == "ids" else {})
        sent.append(event({"choices": [choice]} | ({"usage": usage(so_far)} if told == "running" else {})))
    exchange = decode(stream(*sent, FINISH, bill(total, **details) + DONE))
    assert len(exchange.event_ns) == len(exchange.event_tokens)
    assert all(n >= 0 for n in exchange.event_tokens)
    if exchange.event_ns:
        assert exchange.output_tokens is not None
        assert exchange.event_tokens[0] >= 1 or told != "none"
        assert sum(exchange.event_tokens) <= exchange.output_tokens
        if total > hidden:  # else the server's numbers leave nothing for the text that it sent
            assert (exchange.output_tokens, sum(exchange.event_tokens)) == (total, total - hidden)
