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
    except RecursionError as bad:
        raise UsageError("is nested too deeply", where=name) from bad
    except (YAMLError, ValueError, TypeError) as bad:  # the latter from a tag, or a date, whose value is none
        raise UsageError(f"not YAML: {' '.join(str(bad).split())}", where=name) from bad
    if not isinstance(data, CommentedMap):
        raise UsageError("must hold keys and values, such as `name: chat`", where=f"{name}:1:1")
    try:
        return model.model_validate(data)
    except RecursionError as bad:
        raise UsageError("is nested too deeply", where=name) from bad
    except ValidationError as bad:
        raise _complaint(bad, data, name, model) from None


def _complaint(bad: ValidationError, data: CommentedMap, name: str, model: type[BaseModel]) -> UsageError:
    """One UsageError for all mistakes, in the order in which they stand in the file."""
    found = sorted({_mistake(dict(error), data, model) for error in bad.errors()})
    if len(found) == 1:
        line, column, what = found[0]
        return UsageError(what, where=f"{name}:{line}:{column}")
    lines = "".join(f"\n  {name}:{line}:{column}: {what}" for line, column, what in found)
    return UsageError(f"{len(found)} mistakes{lines}", where=name)


def _mistake(error: dict[str, Any], data: Any, model: type[BaseModel]) -> tuple[int, int, str]:
    """Line and column (from 1) of what is wrong, or of the deepest part above it that the file has, and a sentence."""
    line, column, path = 0, 0, []
    for part in error["loc"]:
        if isinstance(data, CommentedMap) and part in data:
            line, column = data.lc.key(part)
        elif isinstance(data, CommentedSeq) and isinstance(part, int) and part < len(data):
            line, column = data.lc.item(part)
        else:
            continue  # a missing key, or the name of an alternative: the parent's place
        path.append(str(part))
        data = data[part]
    return line + 1, column + 1, _sentence(error, ".".join(path), model)


def _sentence(error: dict[str, Any], path: str, model: type[BaseModel]) -> str:
    last = str(error["loc"][-1]) if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        names = _keys(model, error["loc"][:-1])
        near = difflib.get_close_matches(last, names, n=1, cutoff=0.5)
        below = next((name for name in names if last in _keys(model, (*error["loc"][:-1], name, 0))), None)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(names)}"
        hint = hint if below is None else f"it belongs under {below}"
        return f"unknown key {path} - {hint}"
    if error["type"] == "missing":
        return f"{f'{path}.' if path else ''}{last} is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def _keys(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The keys that are allowed at `loc`, found through the model's JSON Schema."""
    schema = model.model_json_schema(mode="serialization")
    nodes = [schema]
    for part in loc:
        nodes = [child for node in nodes for child in _children(schema, node, part)] or nodes
    return [key for node in nodes for one in _alternatives(schema, node) for key in one.get("properties", {})]


def _children(schema: dict[str, Any], node: dict[str, Any], part: int | str) -> list[dict[str, Any]]:
    found = []
    for one in _alternatives(schema, node):
        child = one.get("items") if isinstance(part, int) else one.get("properties", {}).get(part)
        found += [] if child is None else [child]
    return found


def _alternatives(schema: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    """The node itself behind its references, or all of its alternatives."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    inner = node.get("anyOf") or node.get("oneOf")
    return [node] if inner is None else [one for child in inner for one in _alternatives(schema, child)]
