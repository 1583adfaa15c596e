"""A whole `run` from one file: SPEC.yaml, whose keys are the flags of `loadgen run`.

Knows: how a flag becomes a key, how a spec and flags are put together, how flags are written as a spec. Must not know:
what a flag means (`values`, `options`, `stages`), positions in YAML (`store.yamlfile`).
Why from the command itself: the keys, their types and their descriptions are those of the flags, so a flag cannot be
without its key. Flags given beside a spec win over it. Paths in a spec are looked up beside it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from loadgen.cli.values import READERS
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

_NOT_KEYS = ("dump_spec", "help", "resume")
_PATHS = ("trace", "ca", "tokenizer")
_ONE_OF = (("concurrency", "rate", "trace"), ("requests", "duration"))  # a flag displaces the others in a spec
SCHEMA_ID = "loadgen.schema.json"


def is_spec(text: str | None) -> bool:
    """Whether a command's first argument names a spec file, not a URL."""
    return text is not None and "://" not in text and Path(text).suffix.lower() in (".yaml", ".yml")


def read_spec(path: Path) -> dict[str, Any]:
    """The keys that the file sets, with values as the flags would give them. Raises UsageError with every mistake."""
    from loadgen.store.yamlfile import read_yaml

    with contextlib.suppress(OSError, UnicodeDecodeError):
        if re.search(r"^settings\s*:", path.read_text(encoding="utf-8"), re.MULTILINE):
            raise UsageError("describes a matrix, not a run", where=str(path), do=f"use `loadgen matrix {path}`")
    model = read_yaml(path, spec_model())
    values = model.model_dump(exclude_unset=True)
    return {key: rebased(key, value, path.parent) for key, value in values.items() if value is not None}


def is_search(path: str) -> bool:
    """Whether a spec is of a search: it sets one of the keys that only a search has."""
    from loadgen.cli.search import SEARCH_OPTIONS

    return bool(read_spec(Path(path)).keys() & {option.name for option in SEARCH_OPTIONS})


def with_spec(ctx: click.Context, url: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The URL and the flags of a command, with what a spec says where no flag does. Raises UsageError."""
    if not is_spec(url):
        return url, given
    values = read_spec(Path(url))
    if foreign := sorted(values.keys() - given.keys() - {"url"}):
        do = f"use `loadgen {'run' if ctx.command.name == 'search' else 'search'} {url}`"
        raise UsageError(f"{', '.join(foreign)}: nothing that `{ctx.command.name}` knows", where=url, do=do)
    said = {key for key in given if ctx.get_parameter_source(key) not in (ParameterSource.DEFAULT, None)}
    displaced = {key for group in _ONE_OF for key in group if said & set(group)}
    merged = dict(given)
    for key in given.keys() & values.keys() - said - displaced:
        value = values[key]
        merged[key] = tuple(value) if isinstance(value, list) else value
    return str(values.get("url", "")), merged


def dump_spec(ctx: click.Context, url: str, given: dict[str, Any]) -> str:
    """The flags as a spec, defaults left out: `with_spec` reads back the same. Values of headers are left out, too, and
    what a URL holds of user info and query values."""
    import io

    from ruamel.yaml import YAML

    from loadgen.engine.host import public_url

    defaults = {parameter.name: parameter.get_default(ctx) for parameter in ctx.command.params}
    full = url if "://" in url else f"http://{url}"
    bare = public_url(full)
    spec: dict[str, Any] = {"url": url if bare == full else bare}
    left_out = [] if bare == full else ["the secrets of the URL"]
    for key in (parameter.name for parameter in ctx.command.params):
        value = given.get(key or "")
        if key in (None, "url", *_NOT_KEYS) or value is None or value is False or value == () or value == defaults[key]:
            continue
        if key == "endpoint":
            spec[key] = [public_url(text if "://" in text else f"http://{text}") for text in value]
        elif key == "header":
            left_out += [f"header {text.partition(':')[0].strip()}" for text in value]
        elif key == "extra_body":
            spec[key] = json.loads(value)
        elif key == "provenance":
            spec[key] = {name.strip(): fact.strip() for name, _, fact in (text.partition("=") for text in value)}
        else:
            spec[key] = list(value) if isinstance(value, tuple) else value
    out = io.StringIO()
    out.write(f"# yaml-language-server: $schema={SCHEMA_ID}\n")
    if left_out:
        out.write(f"# Never stored, to be given again: {', '.join(left_out)}\n")
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 1000
    yaml.dump(spec, out)
    return out.getvalue()


def schema() -> dict[str, Any]:
    """The JSON Schema of spec files, for editors."""
    found = spec_model().model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **found}


# -- the model -----------------------------------------------------------------------------------------------------


@cache
def spec_model() -> type[BaseModel]:
    """The pydantic model of a spec: one field for each parameter of `run` and of `search`."""
    from pydantic import ConfigDict, Field, create_model

    from loadgen.cli.run import command
    from loadgen.cli.search import SEARCH_OPTIONS

    fields: dict[str, Any] = {}
    for parameter in (*command.params, *SEARCH_OPTIONS):
        if parameter.name is None or parameter.name in _NOT_KEYS:
            continue
        if parameter.name == "url":
            fields["url"] = (str, Field(description="the endpoint, such as http://127.0.0.1:8000/v1", min_length=1))
            continue
        text = (getattr(parameter, "help", None) or "").partition("  [")[0]
        fields[parameter.name] = (_type(parameter) | None, Field(None, description=text))
    model: type[BaseModel] = create_model(
        "Spec", __config__=ConfigDict(extra="forbid", strict=True, title="A loadgen run"), **fields
    )
    return model


def _type(parameter: click.Parameter) -> Any:
    from typing import Annotated, Literal

    from pydantic import AfterValidator, BeforeValidator, Field

    kind, name = parameter.type, parameter.name or ""
    if name == "workload":
        return _workloads_type()
    if isinstance(kind, click.IntRange):
        found: Any = Annotated[int, Field(ge=kind.min, le=kind.max)]
    elif isinstance(kind, click.Choice):
        found = Literal[tuple(kind.choices)]
    elif getattr(parameter, "is_flag", False):
        found = bool
    elif isinstance(kind, click.FloatRange):
        found = Annotated[float, Field(ge=kind.min, le=kind.max, allow_inf_nan=False)]
    else:
        found = Annotated[str, BeforeValidator(_text(name), json_schema_input_type=Any), AfterValidator(_checked(name))]
    if name == "provenance":
        facts = dict[str, str | int | float | bool]
        return Annotated[list[found], BeforeValidator(_facts, json_schema_input_type=facts | list[found])]
    if getattr(parameter, "multiple", False):
        return Annotated[list[found], BeforeValidator(_listed, json_schema_input_type=list[found] | found)]
    return found


def _workloads_type() -> Any:
    from typing import Annotated

    from pydantic import BeforeValidator, Discriminator, Tag

    from loadgen.store.specfile import WorkloadModel

    one = Annotated[
        Annotated[str, Tag("name")] | Annotated[WorkloadModel, Tag("workload")],
        Discriminator(lambda value: "name" if isinstance(value, str) else "workload"),
    ]
    return Annotated[list[one], BeforeValidator(_listed, json_schema_input_type=list[one] | one)]


def _facts(value: Any) -> Any:
    """A mapping as the `KEY=VALUE` that its flag takes, facts within facts joined by points."""
    if not isinstance(value, dict):
        return _listed(value)
    return [f"{key}={fact}" for key, fact in _flat(value)]


def _flat(value: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    for key, fact in value.items():
        if isinstance(fact, dict):
            yield from ((f"{key}.{name}", one) for name, one in _flat(fact))
        elif isinstance(fact, list):
            yield str(key), ", ".join(map(str, fact))
        elif fact is not None:
            yield str(key), str(fact).lower() if isinstance(fact, bool) else str(fact)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _text(name: str) -> Callable[[Any], Any]:
    """What a flag would be given as text: numbers, lists of them, for --extra-body a mapping."""

    def text(value: Any) -> Any:
        if name == "extra_body" and isinstance(value, dict | list):
            return json.dumps(value)
        if isinstance(value, list) and all(isinstance(v, int | float | str) and not isinstance(v, bool) for v in value):
            return ",".join(str(v) for v in value)
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    return text


def _checked(name: str) -> Callable[[str], str]:
    """A check of a text's grammar where there is one for this key, so that all mistakes are told at once."""

    def check(text: str) -> str:
        if name in READERS and not _is_shape_file(name, text):  # which counts from the spec: it is read later
            try:
                READERS[name](text)
            except UsageError as bad:  # the place is the key's, not the flag's
                raise ValueError(str(UsageError(bad.what, do=bad.do))) from bad
        return text

    return check


# -- paths ---------------------------------------------------------------------------------------------------------


def rebased(key: str, value: Any, base: Path) -> Any:
    """A key's value with its paths, which count from the spec (in `base`), counted from the working folder."""
    if key in _PATHS:
        return value if (key, value) == ("tokenizer", "off") else str(base / value)
    if key in ("prompt_tokens", "output_tokens"):
        return _rebased_length(value, base)
    if _is_shape_file(key, value):
        return str(base / value)
    if key != "workload":
        return value
    return [_rebased_workload(item, base) for item in value]


def _is_shape_file(key: str, value: Any) -> bool:
    return key == "shape" and str(value).lower().endswith(".json")


def _rebased_length(value: Any, base: Path) -> Any:
    if isinstance(value, str) and value.startswith("file:"):
        return f"file:{base / value.removeprefix('file:').strip()}"
    return value


def _rebased_workload(item: str | dict[str, Any], base: Path) -> str | dict[str, Any]:
    if isinstance(item, str):
        names = (name.strip() for name in item.split(","))
        return ",".join(str(base / name) if Path(name).suffix in (".yaml", ".yml") else name for name in names)
    item = {key: _rebased_length(value, base) for key, value in item.items() if value is not None}
    if "data" in item:
        item["data"] = item["data"] | {"file": str(base / item["data"]["file"])}
    return item
