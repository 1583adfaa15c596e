"""Questions whose answers can be checked: whether a fast server still answers right.

Knows: the questions, their right answers, and how an answer is judged. Must not know: how they are sent, or rates.
Why: a server that returns nonsense quickly beats every honest one. Quantisation gone wrong, a broken kernel or a cache
that mixes up requests show in none of the times. The questions are easy enough for any instruction-tuned model and are
the same in every run, so that two runs can be compared question by question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["arithmetic", "copying", "json", "counting"]
MAX_TOKENS = 256  # a reasoning model thinks first
_WORDS = ("amber", "river", "stone", "maple", "cloud", "violet", "ember", "harbor", "meadow", "copper", "winter")
_CITIES = ("Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Perth", "Turin", "Accra")
_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:[,\u202f\u00a0]\d{3})*")
_OBJECT = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Question:
    """One question, and its right answer in the plainest form."""

    kind: Kind
    text: str
    expected: str


def _arithmetic(i: int) -> Question:
    a, b = 17 + 13 * i, 26 + 7 * i
    return Question("arithmetic", f"What is {a} + {b}? Reply with the number only.", str(a + b))


def _copying(i: int) -> Question:
    words = " ".join(_WORDS[(i + step * (i + 1)) % len(_WORDS)] for step in range(4))
    return Question("copying", f"Repeat these four words and write nothing else: {words}", words)


def _json(i: int) -> Question:
    city, count = _CITIES[i % len(_CITIES)], 3 * i + 4
    asked = f'Reply with one JSON object and nothing else. Its key "city" is "{city}" and its key "count" is {count}.'
    return Question("json", asked, json.dumps({"city": city, "count": count}))


def _counting(i: int) -> Question:
    first, last = i + 2, i + 9
    asked = f"Count from {first} to {last}. Write the numbers only, separated by commas."
    return Question("counting", asked, ", ".join(str(n) for n in range(first, last + 1)))


_MAKERS: tuple[Callable[[int], Question], ...] = (_arithmetic, _copying, _json, _counting)
QUESTIONS: tuple[Question, ...] = tuple(make(i) for i in range(8) for make in _MAKERS)
_BY_TEXT = {question.text: question for question in QUESTIONS}


def spoken(answer: str) -> str:
    """The answer without what a model thought aloud before it."""
    return _THOUGHT.sub("", answer).strip()


def right(question: Question, answer: str) -> bool:
    """Whether an answer holds what was asked for; words around it are forgiven, a wrong or missing value is not."""
    return _JUDGES[question.kind](question.expected, spoken(answer))


def _numbers(text: str) -> list[int]:
    return [int(re.sub(r"\D", "", found) or 0) * (-1 if found[0] == "-" else 1) for found in _NUMBER.findall(text)]


def _right_number(expected: str, answer: str) -> bool:
    found = _numbers(answer)  # "17 + 26 = 43" or "43": the result stands last
    return bool(found) and found[-1] == int(expected)


def _right_words(expected: str, answer: str) -> bool:
    return expected in " ".join(re.findall(r"[a-z]+", answer.lower()))


def _right_object(expected: str, answer: str) -> bool:
    for found in _OBJECT.findall(answer):
        try:
            value = json.loads(found)
        except ValueError:
            continue
        if value == json.loads(expected):
            return True
    return False


def _right_count(expected: str, answer: str) -> bool:
    wanted = _numbers(expected)
    found = [int(n) for n in re.findall(r"\d+", answer)]
    return any(found[at : at + len(wanted)] == wanted for at in range(len(found) - len(wanted) + 1))


_JUDGES: dict[Kind, Callable[[str, str], bool]] = {
    "arithmetic": _right_number,
    "copying": _right_words,
    "json": _right_object,
    "counting": _right_count,
}


def solve(text: str) -> str | None:
    """The right answer to a text that ends in one of the questions; None where it does not. For simulated servers."""
    question = _BY_TEXT.get(text.strip())
    return question.expected if question is not None else None
