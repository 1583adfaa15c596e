"""One event of each shape that a vendor sends: what it says, read from tables. And the requests that we send."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.model import Features, Message, PlannedRequest
from loadgen.wire.dialects import DIALECTS, read
from loadgen.wire.reasons import error_of
from loadgen.wire.timeline import decode
from tests.wire.made import DONE, chat, event, say, stream


def texts(delta: dict[str, Any]) -> list[tuple[str, str]]:
    (choice,) = read({"choices": [{"index": 0, "delta": delta}]}).choices
    return [(part, text) for part, text in choice.texts]


V, R, T = "visible", "reasoning", "tools"
DELTAS: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "OpenAI": ({"content": " the"}, [(V, " the")]),
    "a space is a token": ({"content": " "}, [(V, " ")]),
    "refusal": ({"content": None, "refusal": "No"}, [(V, "No")]),
    "DeepSeek": ({"content": None, "reasoning_content": "hm"}, [(R, "hm")]),
    "OpenRouter": (
        {"content": "", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        [(R, "hm")],
    ),
    "OpenRouter, details alone": ({"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]}, [(R, "hm")]),
    "both spellings of a gateway": ({"reasoning": "hm", "reasoning_content": "hm"}, [(R, "hm")]),
    "reasoning and answer in one": ({"reasoning_content": "hm", "content": "a"}, [(R, "hm"), (V, "a")]),
    "Mistral": (
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "a"},
            ]
        },
        [(R, "hm"), (V, "a")],
    ),
    "parts as words": ({"content": ["a", "b"]}, [(V, "a"), (V, "b")]),
    "a part by itself": ({"content": {"type": "text", "text": "a"}}, [(V, "a")]),
    "tool name": ({"tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": ""}}]}, [(T, "f")]),
    "tool arguments": ({"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]}, [(T, '{"a')]),
    "two calls at once": (
        {"tool_calls": [{"function": {"name": "f"}}, {"function": {"name": "g", "arguments": "{}"}}]},
        [(T, "f"), (T, "g"), (T, "{}")],
    ),
    "arguments as an object": (
        {"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        [(T, "f"), (T, "a")],
    ),
    "a tool of free text": ({"tool_calls": [{"type": "custom", "custom": {"input": "x"}}]}, [(T, "x")]),
    "the old function_call": ({"function_call": {"name": "f", "arguments": "{"}}, [(T, "f"), (T, "{")]),
    "a tool id alone": ({"tool_calls": [{"index": 0, "id": "1", "type": "function"}]}, []),
    "role": ({"role": "assistant", "content": ""}, []),
    "role, null": ({"role": "assistant", "content": None, "tool_calls": None}, []),
    "nothing": ({}, []),
    "nonsense": ({"content": 5, "tool_calls": "x", "function_call": [], "reasoning": [None, 3]}, []),
}


@pytest.mark.parametrize("name", DELTAS)
def test_where_a_vendor_puts_what_it_generates(name: str) -> None:
    delta, expected = DELTAS[name]
    assert texts(delta) == expected


USES: dict[str, tuple[Any, dict[str, int]]] = {
    "OpenAI": (
        {
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        {"prompt": 9, "output": 5, "total": 14, "cached": 4, "reasoning": 2},
    ),
    "DeepSeek": (
        {"prompt_tokens": 9, "completion_tokens": 5, "prompt_cache_hit_tokens": 8},
        {"prompt": 9, "output": 5, "cached": 8},
    ),
    "Anthropic": (
        {"input_tokens": 9, "output_tokens": 5, "cache_read_input_tokens": 3},
        {"prompt": 9, "output": 5, "cached": 3},
    ),
    "details null": (
        {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": None},
        {"prompt": 9, "output": 5},
    ),
    "SGLang": ({"completion_tokens": 5, "reasoning_tokens": 0}, {"output": 5, "reasoning": 0}),
    "total and prompt": ({"prompt_tokens": 9, "total_tokens": 14}, {"prompt": 9, "output": 5, "total": 14}),
    "prompt alone": ({"prompt_tokens": 9}, {"prompt": 9}),
    "zero total": ({"total_tokens": 0}, {}),
    "all zero": ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, {}),
    "nulls": ({"prompt_tokens": None, "completion_tokens": None}, {}),
    "null": (None, {}),
    "nonsense": ({"prompt_tokens": "9", "completion_tokens": True, "total_tokens": [1]}, {}),
    "beyond reason": ({"completion_tokens": 10**400, "prompt_tokens": -1, "total_tokens": 1e300}, {}),
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("where", ["beside choices", "x_groq", "in the choice"])
def test_usage_means_what_it_states(name: str, where: str) -> None:
    use, expected = USES[name]
    place: dict[str, Any] = {
        "beside choices": {"choices": [], "usage": use},
        "x_groq": {"choices": [], "x_groq": {"usage": use}},
        "in the choice": {"choices": [{"index": 0, "delta": {}, "usage": use}]},
    }
    assert read(place[where]).usage == expected


ERRORS: dict[str, tuple[dict[str, Any], str | None]] = {
    "OpenAI": ({"error": {"message": "too long", "type": "invalid", "code": "context"}}, "too long (context)"),
    "TGI": ({"error": "overloaded", "error_type": "overloaded"}, "overloaded"),
    "old vLLM": ({"object": "error", "message": "no", "code": 400}, "no (400)"),
    "Anthropic": (
        {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
        "busy (overloaded_error)",
    ),
    "FastAPI": ({"detail": "Not Found"}, "Not Found"),
    "FastAPI, a field": ({"detail": [{"loc": ["body", "n"], "msg": "too big"}]}, "body.n: too big"),
    "DashScope": ({"code": "Throttling", "message": "slow down"}, "slow down (Throttling)"),
    "Qianfan": ({"error_code": 17, "error_msg": "quota"}, "quota (17)"),
    "MiniMax": ({"choices": [], "base_resp": {"status_code": 1004, "status_msg": "login"}}, "login (1004)"),
    "Workers AI": ({"errors": [{"message": "down", "code": 3040}], "success": False}, "down (3040)"),
    "nested": ({"error": {"message": {"error": {"message": "deep"}}}}, "deep"),
    "a code alone": ({"error": {"code": 502}}, "error 502"),
    "true": ({"error": True}, "error True"),
    "lines": ({"error": {"message": "a\nb\t c\u2028d\x1b[31m"}}, "a b c d [31m"),
    "null": ({"error": None, "choices": []}, None),
    "empty": ({"error": {}, "choices": []}, None),
    "blank": ({"error": "", "choices": []}, None),
    "MiniMax, well": ({"base_resp": {"status_code": 0, "status_msg": ""}, "choices": []}, None),
    "a ping": ({"type": "ping"}, None),
    "an Anthropic message": ({"type": "message_start", "message": {"role": "assistant"}}, None),
    "a chunk": ({"choices": [{"delta": {"content": "a"}}]}, None),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_known_in_every_shape(name: str) -> None:
    value, expected = ERRORS[name]
    assert error_of(value) == expected


def test_keys_are_never_repeated() -> None:
    text = error_of({"error": {"message": "Incorrect API key: sk-proj-abcdef123456, got Bearer abc.def"}})
    assert text == "Incorrect API key: ***, got Bearer ***"


STREAMS: dict[str, tuple[bytes, ...]] = {
    "Azure": (
        event({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}),
        chat({"role": "assistant", "content": "", "refusal": None}),
        say("a", content_filter_results={}),
        say("b"),
        event({"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 1}}]}),
        chat({}, "stop"),
    ),
    "Groq": (
        chat({"role": "assistant", "content": ""}, x_groq={"id": "r"}),
        say("a"),
        say("b"),
        chat({}, "stop", x_groq={"usage": {"prompt_tokens": 7, "completion_tokens": 2, "queue_time": 0.5}}),
    ),
    "OpenRouter": (
        b": OPENROUTER PROCESSING\n\n",
        chat({"role": "assistant", "content": ""}, provider="P"),
        chat({"role": "assistant", "content": "a"}, native_finish_reason=None),
        chat({"role": "assistant", "content": "b"}),
        chat({"role": "assistant", "content": ""}, "stop"),
        event(
            {
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
                "usage": {"completion_tokens": 2},
            }
        ),
    ),
    "Mistral": (
        chat({"role": "assistant", "content": ""}, p="abc"),
        say("a", p="abcd"),
        say("b", "stop", usage={"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}),
    ),
    "Fireworks, Together": (
        chat({"role": "assistant"}),
        say("a", usage=None),
        say("b", "stop", usage={"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}),
    ),
    "SGLang": (
        chat({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}),
        *[chat({"role": None, "content": t, "reasoning_content": None, "tool_calls": None}) for t in "ab"],
        chat({"role": None, "content": None, "reasoning_content": None}, "stop"),
    ),
    "Ollama": (
        *[chat({"role": "assistant", "content": t}) for t in "ab"],
        chat({"role": "assistant", "content": ""}, "stop"),
    ),
    "TensorRT-LLM": (chat({"role": "assistant"}), say("a"), say("b", "stop", avg_decoded_tokens_per_iter=1.0)),
    "no blank lines between events": ((say("a") + say("b", "stop")).replace(b"\n\n", b"\n"),),
    "chat shapes from a text endpoint and back": (event({"choices": [{"index": 0, "text": "a"}]}), say("b", "stop")),
    "pretty-printed": (
        b'data: {"choices":\ndata: [{"index": 0,\ndata: "delta": {"content": "a"}}]}\n\n',
        say("b", "stop"),
    ),
}


@pytest.mark.parametrize("dialect", ["chat", "completions"])
@pytest.mark.parametrize("name", STREAMS)
def test_two_tokens_are_two_tokens_at_every_vendor(name: str, dialect: str) -> None:
    exchange = decode(stream(*STREAMS[name], DONE, dialect=dialect), keep_text=True)
    assert exchange.failure is None
    assert (exchange.text, exchange.event_tokens, exchange.output_tokens) == ("ab", (1, 1), 2)
    assert exchange.finish_reason == "stop"
    assert "unparsable" not in exchange.flags


def test_the_servers_own_times_are_kept() -> None:
    timings = {"prompt_ms": 5.0, "predicted_per_second": 9, "cache_n": 3, "draft_n": 2, "note": "x", "bad_ms": 10**400}
    exchange = decode(stream(say("a"), chat({}, "stop", timings=timings, time_info={"queue_time": 0.1}), DONE))
    assert exchange.server == {
        "prompt_ms": 5.0,
        "predicted_per_second": 9.0,
        "cache_n": 3.0,
        "draft_n": 2.0,
        "queue_time": 0.1,
    }
    assert exchange.cached_tokens == 3


# -- what we send -------------------------------------------------------------------------------------------------

PLANNED = PlannedRequest(3, 0, "chat", (Message("system", "be kind"), Message("user", "hi")), 9, 40)


def test_only_what_the_endpoint_takes_is_sent() -> None:
    bare = Features(include_usage=False)
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert DIALECTS["chat"].body(PLANNED, "m", bare) == {
        "model": "m",
        "messages": messages,
        "stream": True,
        "max_tokens": 40,
    }
    everything = Features(
        max_tokens_field="max_completion_tokens",
        continuous_usage=True,
        ignore_eos=True,
        min_tokens=True,
        temperature=0.0,
        extra_body={"top_k": 1, "model": "other"},
    )
    history = (Message("assistant", "yes?"),)
    assert DIALECTS["chat"].body(PLANNED, "m", everything, history) == {
        "model": "other",
        "messages": [{"role": "assistant", "content": "yes?"}, *messages],
        "stream": True,
        "max_completion_tokens": 40,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
        "min_tokens": 40,
        "temperature": 0.0,
        "top_k": 1,
    }


def test_a_text_completion_is_one_prompt() -> None:
    body = DIALECTS["completions"].body(PLANNED, "m", Features())
    assert body["prompt"] == "be kind\n\nhi"
    assert "messages" not in body
    assert body["stream_options"] == {"include_usage": True}
    assert {name: dialect.path for name, dialect in DIALECTS.items()} == {
        "chat": "/chat/completions",
        "completions": "/completions",
        "responses": "/responses",
        "embeddings": "/embeddings",
    }


def test_an_embedding_is_asked_for_with_its_text_and_nothing_else() -> None:
    body = DIALECTS["embeddings"].body(PLANNED, "m", Features(ignore_eos=True, temperature=0.5))
    assert body == {"model": "m", "input": "be kind\n\nhi"}
