"""The questions of `--guard`: every right answer passes as a model would phrase it, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.guard import QUESTIONS, Question, right, solve, spoken

BY_KIND = {kind: [q for q in QUESTIONS if q.kind == kind] for kind in ("arithmetic", "copying", "json", "counting")}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.expected)
def test_its_own_answer_is_right_and_every_other_is_wrong(question: Question) -> None:
    assert right(question, question.expected)
    assert solve(f" {question.text}\n") == question.expected
    others = [q.expected for q in BY_KIND[question.kind] if q != question]
    assert not any(right(question, answer) for answer in ["", "I cannot help with that.", *others])


def test_no_question_is_asked_twice_in_a_round() -> None:
    assert len({question.text for question in QUESTIONS}) == len(QUESTIONS) == 32
    assert solve("What is the weather?") is None


@pytest.mark.parametrize(
    ("kind", "answer", "is_right"),
    [
        ("arithmetic", "17 + 26 = 43.", True),
        ("arithmetic", "The answer is **43**", True),
        ("arithmetic", "<think>17+26... 44? no</think>43", True),
        ("arithmetic", "43 or 44", False),
        ("arithmetic", "-43", False),
        ("arithmetic", "<think>43", False),
        ("copying", "Amber, River, Stone, Maple.", True),
        ("copying", '"{expected}"', True),
        ("json", "```json\n{expected}\n```", True),
        ("json", '{"count": 4, "city": "Oslo"}', True),
        ("json", '{"city": "Oslo", "count": "4"}', False),
        ("json", '{"city": "Oslo", "count": 4, "more": 1}', False),
        ("json", '{"city": "Oslo"', False),
        ("counting", "2 3 4 5 6 7 8 9", True),
        ("counting", "Sure! 2,3,4,5,6,7,8,9", True),
        ("counting", "2, 3, 4, 5, 7, 8, 9", False),
    ],
)
def test_answers_as_models_phrase_them(kind: str, answer: str, is_right: bool) -> None:
    question = BY_KIND[kind][0]
    assert right(question, answer.replace("{expected}", question.expected)) is is_right


@given(st.text())
def test_any_text_can_be_judged(answer: str) -> None:
    assert isinstance(spoken(answer), str)
    for questions in BY_KIND.values():
        right(questions[0], answer)
