"""YAML files read into checked models, every mistake at once, each with file:line:col and what was probably meant.

Knows: YAML positions, pydantic's complaints. Must not know: what any file is about.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from loadgen.errors import UsageError

M = TypeVar("M", bound=BaseModel)


def read_yaml(path: Path, model: type[M]) -> M:
    """The file as a `model`.

    Raises:
        UsageError: cannot be read, is no YAML, or does not fit; one line for each mistake.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as bad:
        raise UsageError(f"cannot be read: {bad}", where=str(path)) from bad
    return parse_yaml(text, str(path), model)


def parse_yaml(text: str, name: str, model: type[M]) -> M:
    """As `read_yaml`, from text; `name` stands in the complaints."""
    try:
        data = YAML(typ="rt").load(text)
    except MarkedYAMLError as bad:
        mark = bad.problem_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        raise UsageError(f"not YAML: {bad.problem}", where=where) from bad
    except YAMLError as bad:
        raise UsageError(f"not YAML: {' '.join(str(bad).split())}", where=name) from bad
    if not isinstance(data, CommentedMap):
        raise UsageError("must hold keys and values, such as `name: chat`", where=f"{name}:1:1")
    try:
        return model.model_validate(data)
    except ValidationError as bad:
        raise _complaint(bad, data, name, model) from None


def _complaint(bad: ValidationError, data: CommentedMap, name: str, model: type[BaseModel]) -> UsageError:
    """One UsageError for all mistakes, in the order in which they stand in the file."""
    found = sorted({(_position(data, e["loc"]), _sentence(dict(e), model)) for e in bad.errors()})
    if len(found) == 1:
        (line, column), what = found[0]
        return UsageError(what, where=f"{name}:{line}:{column}")
    lines = "".join(f"\n  {name}:{line}:{column}: {what}" for (line, column), what in found)
    return UsageError(f"{len(found)} mistakes{lines}", where=name)


def _position(data: Any, loc: Sequence[int | str]) -> tuple[int, int]:
    """Line and column (from 1) of the deepest part of `loc` that the file has."""
    line, column = 0, 0
    for part in loc:
        if isinstance(data, CommentedMap) and part in data:
            line, column = data.lc.key(part)
        elif isinstance(data, CommentedSeq) and isinstance(part, int) and part < len(data):
            line, column = data.lc.item(part)
        else:
            continue  # a missing key, or the name of an alternative: the parent's place
        data = data[part]
    return line + 1, column + 1


def _sentence(error: dict[str, Any], model: type[BaseModel]) -> str:
    loc = [str(part) for part in error["loc"]]
    path = ".".join(loc)
    if error["type"] == "extra_forbidden":
        names = _keys(model, error["loc"][:-1])
        near = difflib.get_close_matches(loc[-1], names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(names)}"
        return f"unknown key {path} - {hint}"
    if error["type"] == "missing":
        return f"{path} is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def _keys(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The keys that are allowed at `loc`, found through the model's JSON Schema."""
    schema = model.model_json_schema(by_alias=True)
    nodes = [schema]
    for part in loc:
        nodes = [child for node in nodes for child in _children(schema, node, part)]
    return [key for node in nodes for key in _resolved(schema, node).get("properties", {})]


def _children(schema: dict[str, Any], node: dict[str, Any], part: int | str) -> list[dict[str, Any]]:
    node = _resolved(schema, node)
    found = [node.get("items", {})] if isinstance(part, int) else [node.get("properties", {}).get(part)]
    alternatives = [child for child in found if child]
    return [one for child in alternatives for one in child.get("anyOf", [child])]


def _resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref")
    resolved: dict[str, Any] = schema["$defs"][reference.rsplit("/", 1)[-1]] if reference else node
    return resolved
