"""Schedules: every plan is one plan for any worker count, unique, lazy, exact in number; sweeps."""

from __future__ import annotations

import itertools
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.model import Load, Message
from loadgen.plan.lengths import parse_length, table
from loadgen.plan.prompts import rough_tokens, tag, tag_text
from loadgen.plan.schedule import StageSpec, parse_sweep, plan_stage, plan_warm_up
from loadgen.plan.tokens import Calibration, Counted, counted
from loadgen.plan.workload import Prefix, Text, TraceRow, Turns
from loadgen.plan.writer import key_of
from tests.plan.made import common, planned, prompt, stage, workload

_RATE = Load("rate", 20.0, "gamma:2")
_TAG = 39  # characters of a tag
_EXACT = Calibration(1.0, 0.0)  # tokens as `rough_tokens` counts them
_TALK = Turns(parse_length("uniform:1..5"), parse_length("30"), parse_length("uniform:500..1500"))


def _words(text: str) -> int:
    return len(re.findall(r"\S+|\n+", text))


def _table(kind: str, count: Callable[[str], int]) -> Counted:
    return counted(kind, lambda texts: [count(text) for text in texts], count)


def _kinds() -> list[StageSpec]:
    mixed = StageSpec(2, "m", ((workload("chat", name="a"), 7), (workload(name="b", output="uniform:1..90"), 3)), _RATE)
    return [
        stage(requests=60),
        stage(load=_RATE, requests=61),
        stage(load=_RATE),
        mixed,
        stage(workload(turns=_TALK), requests=97),
        stage(workload(prefix=Prefix(30, 3)), requests=60),
    ]


@pytest.mark.parametrize("spec", _kinds())
@pytest.mark.parametrize("workers", [2, 7])
def test_workers_together_make_the_plan_of_one(spec: StageSpec, workers: int) -> None:
    alone = planned(spec, 140)
    parts = [planned(spec, 140, part=(index, workers)) for index in range(workers)]
    together = sorted(itertools.chain(*parts), key=lambda r: r.request_id)
    assert together[: len(alone)] == alone
    for part in parts:  # a conversation stays with one worker, its turns one after the other
        turns = [(r.session_id, r.turn) for r in part if r.session_id]
        assert turns == sorted(turns, key=lambda t: (int(str(t[0]).split("-")[1]), t[1]))
    assert sum(len(p) for p in parts) >= len(alone)


def test_a_stage_by_number_has_exactly_so_many_and_one_by_time_has_no_end() -> None:
    assert [r.request_id for r in planned(stage(requests=33), first_id=1 << 40)] == list(range(1 << 40, (1 << 40) + 33))
    assert len(planned(stage(workload(turns=_TALK), requests=50))) == 50
    assert planned(stage(requests=0)) == []
    spec = replace(stage(load=_RATE), duration_ns=10**9)
    assert planned(spec, 2_500)[-1].offset_ns > 50 * 10**9


def test_plans_and_specs_travel_to_spawned_workers() -> None:
    for spec in _kinds():
        sent = pickle.loads(pickle.dumps(partial(plan_stage, spec, seed=3, nonce="q", first_id=0, part=(1, 2))))
        assert list(itertools.islice(sent(), 5)) == planned(spec, 5, seed=3, nonce="q", part=(1, 2))


def test_a_worker_does_not_write_the_texts_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadgen.plan import prompts

    written = []
    monkeypatch.setattr(prompts, "section", lambda *given: (written.append(given) or "", 0))
    planned(stage(requests=1_000), part=(3, 10))
    assert len(written) == 100


def test_no_two_of_100_000_prompts_share_their_beginning() -> None:
    """Over two stages, two runs and two workers: every prompt begins with its tag, of fewer tokens than any cache's
    block has, and no two tags are alike (nor are many of them in their first two words)."""
    spec = stage(workload(prompt="8"))
    cases = list(itertools.product((0, 1), ("aa", "ab")))
    for number, nonce in cases:
        some = replace(spec, stage=number)
        for request in itertools.chain(*(planned(some, 40, nonce=nonce, part=(w, 2)) for w in (0, 1))):
            assert prompt(request)[:_TAG] == tag_text(tag(key_of(nonce), request.request_id))
    heads = {tag_text(tag(key_of(nonce), (number << 32) + place)) for number, nonce in cases for place in range(25_000)}
    assert len(heads) == 100_000
    assert len({head[:9] for head in heads}) > 50_000  # of 65,536: chance alone leaves about 51,300


def test_only_the_tag_depends_on_the_nonce() -> None:
    one, other = (planned(stage(workload("chat", "300"), requests=5), nonce=n) for n in ("a", "b"))
    for a, b in zip(one, other, strict=True):
        assert prompt(a)[:_TAG] != prompt(b)[:_TAG]
        assert prompt(a)[_TAG:] == prompt(b)[_TAG:]


def test_seed_and_stage_change_texts_lengths_and_times() -> None:
    spec = stage(workload(prompt="uniform:50..5000"), load=_RATE)
    base = planned(spec, 20)
    for other in (planned(spec, 20, seed=2), planned(replace(spec, stage=1), 20)):
        assert [r.prompt_tokens for r in base] != [r.prompt_tokens for r in other]
        assert [r.offset_ns for r in base] != [r.offset_ns for r in other]
        assert any(prompt(a)[_TAG:] != prompt(b)[_TAG:] for a, b in zip(base[:3], other, strict=False))
    assert planned(spec, 20, seed=-7) == planned(spec, 20, seed=-7)


def test_a_mix_keeps_its_weights_and_each_its_lengths() -> None:
    mix = ((workload(name="a", prompt="10"), 70.0), (workload(name="b", prompt="uniform:20..40"), 20.0),
           (workload(name="c", prompt="50"), 10.0))  # fmt: skip
    requests = planned(StageSpec(0, "m", mix, _RATE), 8_000)
    shares = Counter(r.workload for r in requests)
    assert [shares[name] / 8_000 for name in "abc"] == pytest.approx([0.7, 0.2, 0.1], abs=0.015)
    assert {r.prompt_tokens for r in requests if r.workload == "b"} == set(range(20, 41))
    order = np.array([r.workload == "a" for r in requests], dtype=float)
    assert np.corrcoef(order[1:], order[:-1])[0, 1] == pytest.approx(0, abs=0.04)


def test_columns_of_one_file_are_drawn_together_and_correlation_ties_lengths() -> None:
    pairs = workload(prompt="1", output="1")
    pairs = replace(pairs, prompt_tokens=table("f", (10, 20, 30), "f"), output_tokens=table("f", (1, 2, 3), "f"))
    assert all(r.prompt_tokens == 10 * r.output_tokens for r in planned(stage(pairs), 100))
    tied = workload(prompt="lognormal:60±30", output="lognormal:50±40", correlation=0.9)
    lengths = np.array([(r.prompt_tokens, r.output_tokens) for r in planned(stage(tied), 3_000)])
    ranks = lengths.argsort(axis=0).argsort(axis=0)
    assert np.corrcoef(ranks.T)[0, 1] == pytest.approx(0.89, abs=0.02)


def test_sizers_decide_the_size_of_texts() -> None:
    spec = stage(workload("summarize", "500"), requests=20)
    assert {rough_tokens(prompt(r)) for r in planned(spec, sizer={"summarize": Calibration(2.0, 40)})} == {230}
    table = replace(_table("summarize", _words), overhead_tokens=5)
    assert {_words(prompt(r)) for r in planned(spec, sizer={"summarize": table})} <= {494, 495}


def test_texts_whose_units_do_not_add_up_are_counted_whole_and_corrected() -> None:
    """A tokenizer that joins over blanks: so many characters make a token."""

    def count(text: str) -> int:
        return -(-len(text) // 5)

    table = _table("chat", count)
    assert table.check is not None
    for request in planned(stage(workload("chat", "uniform:60..900")), 30, sizer={"chat": table}):
        assert abs(count(prompt(request)) - request.prompt_tokens) <= 1


def test_groups_share_exactly_their_prefix() -> None:
    """A section of 300 tokens for each of four groups, then one of 100 of its own, from its tag on."""
    spec = stage(workload("summarize", "400", prefix=Prefix(300, 4)), requests=80)
    requests = planned(spec, sizer={"summarize": _EXACT})
    groups = Counter(prompt(r)[:_TAG] for r in requests)
    ends = {head: common([prompt(r) for r in requests if prompt(r).startswith(head)]) for head in groups}
    assert len(ends) == 4
    assert {rough_tokens(head) for head in ends.values()} == {300}
    assert min(groups.values()) > 8
    assert len({prompt(r)[len(ends[prompt(r)[:_TAG]]) :][:_TAG] for r in requests}) == 80
    assert {rough_tokens(prompt(r)) for r in requests} == {400}
    again = planned(replace(spec, stage=1))
    assert not {prompt(r)[:_TAG] for r in again} & set(ends)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_what_was_sent_before_is_known_to_every_worker(workers: int) -> None:
    spec = stage(workload("summarize", "400", prefix=Prefix(300, 4)), requests=80)
    parts = [planned(spec, part=(index, workers)) for index in range(workers)]
    requests = sorted(itertools.chain(*parts), key=lambda r: r.request_id)
    seen: set[str] = set()
    for request in requests:
        assert request.repeated_tokens == (300 if prompt(request)[:_TAG] in seen else 0)
        seen.add(prompt(request)[:_TAG])
    assert {r.repeated_tokens for r in planned(stage(workload(turns=_TALK), requests=20)) if r.turn} == {None}
    assert {r.repeated_tokens for r in planned(stage(workload("text", texts=_Texts(2)), requests=5))} == {None}


def test_conversations_have_turns_with_waits_and_one_due_time() -> None:
    requests = planned(stage(workload(turns=_TALK), load=_RATE), 400)
    sessions = {r.session_id for r in requests}
    assert {r.turn for r in requests} == {0, 1, 2, 3, 4}
    assert 100 < len(sessions) < 180
    for r in requests:
        assert (r.offset_ns is not None) == (r.turn == 0)
        assert r.think_ns == 0 if r.turn == 0 else 500_000_000 <= r.think_ns <= 1_500_000_000
        assert r.prompt_tokens == (60 if r.turn == 0 else 30)


# -- traces and texts of one's own ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    blocks: tuple[tuple[int, ...], ...]

    def rows(self) -> Iterator[TraceRow]:
        for index, blocks in enumerate(self.blocks):
            yield TraceRow(index * 1_000_000, 64 * len(blocks) - 20, 7, blocks, 64)


@dataclass(frozen=True)
class _Texts:
    count: int

    def load(self) -> tuple[Text, ...]:
        return tuple(Text(((Message("user", f"text {i}"),),), i or None) for i in range(self.count))


def test_a_trace_gives_times_lengths_and_exactly_the_prefixes_of_its_blocks() -> None:
    spec = replace(stage(load=Load("trace", 1.0, "trace")), trace=_Rows(((0, 1, 2), (0, 1, 3), (0, 4), (5, 6), (0, 1))))
    requests = planned(spec, sizer={"story": _EXACT})
    assert [r.offset_ns for r in requests] == [0, 10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6]
    assert [r.prompt_tokens for r in requests] == [172, 172, 108, 108, 108]
    texts = [prompt(r) for r in requests]
    assert [rough_tokens(t) for t in texts] == [172, 172, 108, 108, 108]
    assert [r.repeated_tokens for r in requests] == [0, 128, 64, 0, 64]

    def shared(a: int, b: int) -> int:
        return rough_tokens(common([texts[a], texts[b]]))

    assert shared(0, 1) == 128  # two blocks of 64 tokens, then another text at once
    assert shared(0, 2) == 64
    assert texts[0][:4] != texts[3][:4]
    assert shared(0, 4) == 64 + 9  # the block that is not full begins like the full one
    assert planned(spec, part=(1, 2), sizer={"story": _EXACT}) == requests[1::2]


def test_own_texts_are_each_used_once_before_any_comes_again() -> None:
    spec = stage(workload("text", output="99", texts=_Texts(10)), requests=25)
    requests = planned(spec)
    names = [prompt(r) for r in requests]
    assert sorted(names[:10]) == sorted(names[10:20]) == [f"text {i}" for i in range(10)]
    assert names[:10] != names[10:20]
    assert {r.output_tokens for r in requests} == {99, *range(1, 10)}
    assert {r.prompt_tokens for r in requests} == {0}
    assert planned(spec, part=(2, 3)) == requests[2::3]


def test_a_warm_up_is_marked_never_due_and_unlike_what_is_measured() -> None:
    for kind in (workload("chat", "400"), workload("text", texts=_Texts(3))):
        spec = stage(kind, load=_RATE, requests=4)
        warm = list(plan_warm_up(spec, kind, 4, seed=1, nonce="nw", first_id=-4))
        assert [(r.warmup, r.offset_ns, r.request_id) for r in warm] == [(True, None, i) for i in (-4, -3, -2, -1)]
        assert not {prompt(r)[:6] for r in warm} & {prompt(r)[:6] for r in planned(spec)}
    assert [r.prompt_tokens for r in plan_warm_up(spec, workload("chat", "400"), 3, seed=1, nonce="w", first_id=0)] == [
        400, 200, 400]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", [8]),
        ("1,8,32", [1, 8, 32]),
        ("1..256*2", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ("1..100*10, 5", [1, 10, 100, 5]),
        ("2..10+4", [2, 6, 10]),
        ("1..4", [1, 2, 3, 4]),
        ("1..9*3,9,27", [1, 3, 9, 27]),
        ("0.5..2+0.5", [0.5, 1.0, 1.5, 2.0]),
        ("0.1..0.3+0.1", [0.1, 0.2, 0.3]),
    ],
)
def test_sweeps(text: str, values: list[float]) -> None:
    assert parse_sweep(text, integers=False) == values


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "a", "1,,2", "1..", "5..1", "1..9*1", "1..9+0", "1..9/2", "0..4*2", "1..9e9"]
)
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sweep(text, integers=False)


def test_users_are_whole() -> None:
    with pytest.raises(UsageError, match="fraction"):
        parse_sweep("1,2.5", integers=True)


def test_a_stage_without_weight_is_refused() -> None:
    with pytest.raises(UsageError, match="no workload"):
        planned(StageSpec(0, "x", ((workload(), 0.0),), _RATE), 1)
