"""Workload files: the shipped ones, every key, every mistake at once with its place."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.plan.workload import Prefix
from loadgen.store.specfile import load_workload, read_length, shipped
from tests.plan.made import planned, stage


def _write(folder: Path, text: str, name: str = "w.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [("chat", 2000, 200), ("summarize", 20000, 100), ("story", 200, 1000), ("swap", 200, 2000)],
)
def test_the_shipped_workloads(name: str, prompt: int, output: int) -> None:
    workload = load_workload(name)
    assert (workload.name, workload.kind) == (name, name)
    assert (workload.prompt_tokens.mean(), workload.output_tokens.mean()) == (prompt, output)
    assert load_workload(f" {name.upper()} ") == workload
    assert pickle.loads(pickle.dumps(workload)) == workload
    assert set(shipped()) == {"chat", "summarize", "story", "swap"}


def test_every_key(tmp_path: Path) -> None:
    workload = load_workload(
        _write(
            tmp_path,
            "name: mine\nkind: summarize\nprompt_tokens: lognormal:2000±500,500..9000\noutput_tokens: uniform:5..9\n"
            "correlation: 0.5\nshared_prefix_tokens: 300\nprefix_groups: 4\nnote: 'ours'\n"
            "turns:\n  count: uniform:2..4\n  prompt_tokens: 50\n  think_ms: 1500\n",
        )
    )
    assert workload.prefix == Prefix(300, 4)
    assert workload.turns is not None
    assert workload.turns.think_ms.mean() == 1500
    assert (workload.correlation, workload.note) == (0.5, "ours")
    assert {r.turn for r in planned(stage(workload), 50)} == {0, 1, 2, 3}


def test_pairs_from_a_file_are_joint_and_looked_up_beside_the_workload(tmp_path: Path) -> None:
    _write(tmp_path, "prompt,output\n100,10\n200 20\n\n# remark\n300\t30\n", "pairs.csv")
    path = _write(tmp_path, "name: p\nkind: story\nprompt_tokens: file:pairs.csv\noutput_tokens: file:pairs.csv\n")
    requests = planned(stage(load_workload(path)), 200)
    assert {(r.prompt_tokens, r.output_tokens) for r in requests} == {(100, 10), (200, 20), (300, 30)}


@pytest.mark.parametrize(
    ("text", "place"), [("100,10\n5\n", ":2"), ("1,2\n3,x\n", ":2"), ("1,0\n", ":1"), ("a,b\n", "p.csv"), ("", "p.csv")]
)
def test_bad_pairs_are_told_with_their_line(tmp_path: Path, text: str, place: str) -> None:
    path = _write(tmp_path, text, "p.csv")
    with pytest.raises(UsageError) as bad:
        read_length(f"file:{path}")
    assert place in bad.value.where


def test_own_data(tmp_path: Path) -> None:
    _write(tmp_path, '{"prompt": "hello"}\n{"prompt": "world", "output_tokens": 3}\n', "d.jsonl")
    path = _write(tmp_path, "name: d\ndata: {file: d.jsonl}\noutput_tokens: 40\n")
    requests = planned(stage(load_workload(path)), 2)
    assert {(r.messages[0].content, r.output_tokens) for r in requests} == {("hello", 40), ("world", 3)}
    both = _write(tmp_path, "name: d\nkind: chat\ndata: {file: d.jsonl}\noutput_tokens: 40\n")
    with pytest.raises(UsageError, match="excludes"):
        load_workload(both)
    with pytest.raises(UsageError, match="cannot be read"):
        load_workload(_write(tmp_path, "name: d\ndata: {file: none.jsonl}\noutput_tokens: 40\n"))


def test_every_mistake_is_told_at_once_where_it_stands(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        "name: a b\nkind: chatt\nprompt_token: 4\noutput_tokens: unifrom:3\ncorrelation: 2\nturns:\n  cont: 3\n"
        "  think_ms: [1]\n",
    )
    with pytest.raises(UsageError) as bad:
        load_workload(path)
    told = str(bad.value)
    for place, word in (
        ("1:1", "name"),
        ("2:1", "did you mean chat?"),
        ("3:1", "did you mean prompt_tokens?"),
        ("4:1", "unifrom"),
        ("5:1", "correlation"),
        ("7:3", "did you mean count?"),
        ("8:3", "must be a length"),
    ):
        assert any(f"w.yaml:{place}: " in line and word in line for line in told.splitlines()), (place, word, told)
    assert bad.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "place"),
    [("", ":1:1"), ("- a\n", ":1:1"), ("name: [\n", ":2:1"), ("a: 1\na: 2\n", ":2:1"), ("x: \t- y: z\n  - :\n", ":")],
)
def test_what_is_no_workload_file(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(UsageError) as bad:
        load_workload(_write(tmp_path, text))
    assert place in bad.value.where


def test_a_wait_may_be_nothing_and_groups_need_a_prefix(tmp_path: Path) -> None:
    text = "name: w\nkind: story\nprompt_tokens: 9\noutput_tokens: 9\n"
    agent = load_workload(_write(tmp_path, text + "turns: {count: 3, think_ms: 0}\n"))
    assert {r.think_ns for r in planned(stage(agent), 9)} == {0}
    with pytest.raises(UsageError, match="goes below 1"):
        load_workload(_write(tmp_path, text + "turns: {count: 0}\n"))
    with pytest.raises(UsageError, match="shared_prefix_tokens"):
        load_workload(_write(tmp_path, text + "prefix_groups: 3\n"))


def test_unknown_names_are_answered_with_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean story"):
        load_workload("storry")
    with pytest.raises(UsageError, match="known: chat"):
        load_workload("zzz")
    with pytest.raises(UsageError, match="cannot be read"):
        load_workload(str(tmp_path / "none.yaml"))
