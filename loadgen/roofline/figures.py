"""The numbers of a sentence: each with its unit, its formula and what that is computed from.

Knows: how a sentence is made of a template and of figures, so that no number stands in it that is not also a value.
Must not know: which sentences there are, fits, cells.
Why: "weights are read at 62 % of the bandwidth" is believed when the 62 % can be found and computed again. A number
that is typed into a sentence can be neither.

A formula is in the names of its `inputs` (+ - * / **, exp, log, min, max, abs), or one of ASSUMED, FITTED and ERROR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from string import Formatter

from loadgen.roofline.words import count, number, percent, quantity, seconds

ASSUMED = "assumed"
FITTED = "fitted, what is assumed being so"
ERROR = "mean of |log(model / measured)| over the fitted cells"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a sentence, SI. `unit`: a key of WRITTEN, which says how it is written."""

    value: float
    unit: str
    formula: str
    inputs: Mapping[str, float] = field(default_factory=dict)


Figures = Mapping[str, Figure]

# How a number of each unit is written. "about": two digits, of what is not known better.
WRITTEN: Mapping[str, Callable[[float], str]] = {
    "s": seconds,
    "share": percent,
    "number": number,
    "count": count,
    "about": lambda value: number(value, 2),
    "cells": lambda value: f"{count(value)} cell{'' if value == 1 else 's'}",
    "B": lambda value: quantity(value, "B"),
    "FLOP": lambda value: quantity(value, "FLOP"),
}


def written(of: Figure) -> str:
    """As it stands in a sentence."""
    return WRITTEN[of.unit](of.value)


def read(value: float, unit: str, name: str) -> Figure:
    """A number that is told as it was measured or counted, under the name it has there."""
    return Figure(value, unit, name, {name: value})


def ratio(a: tuple[str, float], b: tuple[str, float], unit: str = "share") -> Figure:
    """One named number over another."""
    return Figure(a[1] / b[1], unit, f"{a[0]} / {b[0]}", dict((a, b)))


def named_in(template: str) -> tuple[str, ...]:
    """The names that a template asks for."""
    return tuple(name for _, name, _, _ in Formatter().parse(template) if name)


def told(template: str, figures: Figures, **words: str) -> str:
    """The sentence: each `{name}` is that figure as it is written, or a word that is no figure."""
    return template.format(**{name: written(of) for name, of in figures.items()}, **words)
