"""Texts of one's own: every format, and every mistake with its place."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.model import Message
from loadgen.plan.workload import Text
from loadgen.store.dataset import TextFile


def _load(folder: Path, content: str | list[Any], name: str = "d.jsonl", **how: bool) -> tuple[Text, ...]:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return pickle.loads(pickle.dumps(TextFile(str(path), **how))).load()


def _user(*texts: str) -> tuple[Message, ...]:
    return tuple(Message("user", text) for text in texts)


def test_prompts_messages_and_output_lengths(tmp_path: Path) -> None:
    lines = [
        {"prompt": "one"},
        {"prompt": "zwei\u2028drei", "output_tokens": 7},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
        "four",
    ]
    content = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    assert _load(tmp_path, content) == (
        Text((_user("one"),)),
        Text((_user("zwei\u2028drei"),), 7),  # a line separator inside a text is no end of a line
        Text(((Message("system", "s"), Message("user", "u")),)),
        Text((_user("four"),)),
    )


def test_openai_batch_files(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "q"}], "max_tokens": 50}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    assert _load(tmp_path, json.dumps(line)) == (Text((_user("q"),), 50),)


def _talk(*parts: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": who, "value": said} for who, said in parts]}


def test_sharegpt_that_does_not_alternate_starts_with_the_answer_or_is_empty(tmp_path: Path) -> None:
    talks = [
        _talk(("gpt", "welcome"), ("human", "a"), ("gpt", "A"), ("human", "b"), ("human", "c"), ("gpt", "C")),
        _talk(("system", "be brief"), ("human", "q"), ("gpt", ""), ("gpt", "Q"), ("gpt", "QQ"), ("human", "r")),
        _talk(("gpt", "only me")),
        _talk(("human", "  ")),
        _talk(),
    ]
    first, second = _load(tmp_path, talks, "s.json")
    assert first.turns == (_user("a"), _user("b", "c"))
    assert second.turns == ((Message("system", "be brief"), *_user("q")), _user("r"))


def test_recorded_answers_stand_in_one_request_or_between_turns(tmp_path: Path) -> None:
    said = [("gpt", "hi"), ("system", "s"), ("human", "a"), ("gpt", "A"), ("gpt", "AA"), ("human", "b"), ("gpt", "B")]
    whole = ((Message("system", "s"), *_user("a"), Message("assistant", "A"), Message("assistant", "AA"), *_user("b")),)
    (text,) = _load(tmp_path, [_talk(*said)], "s.json", recorded_history=True, by_turns=False)
    assert text.turns == whole
    (text,) = _load(tmp_path, [_talk(*said)], "s.json", recorded_history=True)
    assert text.turns == (whole[0][:2], whole[0][2:])
    (text,) = _load(tmp_path, [_talk(*said)], "s.json")
    assert text.turns == ((Message("system", "s"), *_user("a")), _user("b"))


def test_plain_text_is_a_prompt_on_each_line(tmp_path: Path) -> None:
    assert _load(tmp_path, "one\r\n\n  two\n", "p.txt") == (Text((_user("one"),)), Text((_user("  two"),)))


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    lines = [
        '{"prompt": "fine"}',
        '{"prompt": 5}',
        "{oops",
        '{"messages": []}',
        '{"messages": [{"role": "robot", "content": "x"}]}',
        '{"prompt": "x", "output_tokens": 0}',
        "[]",
        '{"text": "x"}',
    ]
    with pytest.raises(UsageError) as bad:
        _load(tmp_path, "\n".join(lines))
    told = str(bad.value)
    assert "7 mistakes" in told
    for number in (2, 3, 4, 5, 6):
        assert f"d.jsonl:{number}:" in told
    assert "and 2 more" in told
    assert "robot" in told


def test_a_single_mistake_is_one_line_with_its_place(tmp_path: Path) -> None:
    for line, word in (
        ('{"prompt": "\\ud800"}', "surrogate"),
        ('{"prompt": "x", "max_tokens": 10000000000000}', "max_tokens"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}', "content"),
        ("[" * 100_000, "not JSON"),
    ):
        with pytest.raises(UsageError) as bad:
            _load(tmp_path, '{"prompt": "fine"}\n' + line)
        assert bad.value.where.endswith("d.jsonl:2")
        assert word in bad.value.what


def test_a_content_of_parts_is_their_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert _load(tmp_path, json.dumps({"messages": [{"role": "user", "content": parts}]})) == (
        Text((_user("one two"),)),
    )


@pytest.mark.parametrize(
    ("content", "name"), [("", "e.jsonl"), ("[]", "e.json"), ("[{", "e.json"), ('[{"conversations": 3}]', "e.json")]
)
def test_files_that_hold_nothing_to_send(tmp_path: Path, content: str, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        _load(tmp_path, content, name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        TextFile(str(tmp_path / "none.jsonl")).load()
