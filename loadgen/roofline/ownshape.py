"""A model shape of one's own as one line of text: `custom:NAME:layers=32,hidden=4096,...`.

Knows: which dimensions a shape has and how they are written. Must not know: files, the catalogue.
Why: a run, a fit and a table keep what served as text. A model that came from a `config.json` must be understood there
when that file is long gone, so its dimensions are kept, not its path.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from typing import Any

from loadgen.errors import UsageError
from loadgen.roofline.shapes import ModelShape

OWN = "custom:"
SOURCE = "config.json"


def write_shape(shape: ModelShape) -> str:
    """The text of a shape: its name and every dimension that is not the usual one."""
    facts = (f"{of.name}={int(value)}" for of in fields(shape) if _differs(of, value := getattr(shape, of.name)))
    return f"{OWN}{re.sub('[:,=]', '-', shape.name)}:{','.join(facts)}"


def _differs(of: Field[Any], value: Any) -> bool:
    return isinstance(value, int) and (of.default is MISSING or value != of.default)


def parse_shape(text: str) -> ModelShape:
    """The shape that `write_shape` wrote. Raises UsageError for a dimension that is unknown, missing or impossible."""
    name, _, facts = text.removeprefix(OWN).partition(":")
    kinds = {of.name: bool if of.type == "bool" else int for of in fields(ModelShape) if of.type in ("int", "bool")}
    try:
        values = dict(fact.split("=") for fact in facts.split(","))
        if unknown := sorted(values.keys() - kinds.keys()):
            raise ValueError(f"there is no {unknown[0]}")
        dimensions: dict[str, Any] = {key: kinds[key](int(value)) for key, value in values.items()}
        return ModelShape(name=name, source=SOURCE, **dimensions)
    except (ValueError, TypeError) as bad:
        raise UsageError(
            f"is no shape written out: {bad}", where=text[:80], do=f"write {OWN}NAME:layers=32,hidden=4096,..."
        ) from bad
