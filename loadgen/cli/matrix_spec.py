"""The file of a matrix: settings of a server, and beside them the keys of a run.

Knows: which keys a setting has, which of a run's keys it may set for itself, how both become what a run is made of.
Must not know: positions in YAML (`store.yamlfile`), what a run's key means, how a server is started.
Why built on the spec of a run: workloads, loads, limits and gates have the same names and the same mistakes everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

SCHEMA_ID = "loadgen-matrix.schema.json"
# Keys of a run that a matrix has no use for: where it measures and writes is its own affair.
_NOT_HERE = ("url", "output", "no_report", "prometheus_port", "precision", "max_probes", "max_requests", "max_time")
# Keys of a run that say what a server is and how it is reached. A setting's own value takes the place of the matrix's.
_OF_SETTING = (
    *("model", "dialect", "api_key_env", "header", "temperature", "extra_body", "trust_env", "insecure", "ca"),
    *("metrics", "tokenizer", "warmup", "note", "provenance"),
    *("gpu", "gpus", "shape", "dtype", "weights", "compute", "kv"),
    *("price_per_gpu_hour", "price_input", "price_output", "price_cached"),
)
_ADDED = ("note", "provenance", "header")  # a setting's own are added to the matrix's
_PORT = "{port}"
_FLAG = r"--?[\w-]*(?:key|token|secret|password)"  # of a server, with a secret behind it
_SECRET = re.compile(rf"({_FLAG})(=|\s+)(\S+)", re.IGNORECASE)
_SECRET_FLAG = re.compile(_FLAG, re.IGNORECASE)
HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Setting:
    """One server setting. `argv` None: a server that others run, at `url`. `given`: the flags of its runs."""

    name: str
    given: dict[str, Any]
    url: str | None
    argv: tuple[str, ...] | None
    env: dict[str, str]
    cwd: Path
    port: int | None
    health: tuple[str, ...]
    patience_s: float | None
    grace_s: float | None

    def url_at(self, port: int) -> str:
        """Where it answers when it listens on `port`."""
        url = (self.url or f"http://127.0.0.1:{_PORT}").replace(_PORT, str(port))
        return url if "://" in url else f"http://{url}"

    def argv_at(self, port: int) -> tuple[str, ...]:
        """Its command with the port filled in."""
        return tuple(word.replace(_PORT, str(port)) for word in self.argv or ())

    def env_at(self, port: int) -> dict[str, str]:
        """Its environment with the port filled in."""
        return {name: value.replace(_PORT, str(port)) for name, value in self.env.items()}

    @property
    def needs_port(self) -> bool:
        """Whether it is started here, and says nowhere on which port."""
        return self.argv is not None and self.port is None

    def record(self) -> dict[str, Any]:
        """What is kept of it: no secret of its command, no value of its environment."""
        from loadgen.engine.host import public_url

        return {
            "name": self.name,
            "url": None if self.url is None else public_url(self.url.replace(_PORT, "0")),
            "command": None if self.argv is None else public_words(self.argv),
            "env": sorted(self.env),
        }


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as it was asked for."""

    title: str
    settings: tuple[Setting, ...]
    repeats: int
    given: dict[str, Any] = field(repr=False)  # of no setting in particular

    @property
    def seed(self) -> int:
        """That of the order, and of the first round's requests."""
        return int(self.given["seed"])


def public_words(argv: Iterable[str]) -> str:
    """A command as it may be stored and shown: what follows a flag that is called key, token, secret or password, and
    what a URL holds of user info, is left out."""
    from loadgen.engine.host import public_command

    words, hide = [], False
    for word in public_command([*argv]):
        words.append(HIDDEN if hide else _SECRET.sub(rf"\1\2{HIDDEN}", word))
        hide = _SECRET_FLAG.fullmatch(word) is not None
    return words[2] if words[:2] == ["/bin/sh", "-c"] else " ".join(words)


def read_matrix_spec(path: Path) -> Matrix:
    """The matrix in a file. Raises UsageError with every mistake."""
    from loadgen.store.yamlfile import read_yaml

    told = read_yaml(path, matrix_model()).model_dump(exclude_unset=True)
    settings, title, repeats = told.pop("settings"), told.pop("title", None), told.pop("repeats", 2)
    given = _given(told, path.parent)
    found = tuple(_setting(one, given, path.parent) for one in settings)
    return Matrix(title or path.stem, found, repeats, given)


def check(matrix: Matrix, where: str) -> None:
    """What only shows when flags are put together, told before any server is started. Raises UsageError."""
    from loadgen.cli import values
    from loadgen.cli.options import settings_from
    from loadgen.cli.stages import stages_from
    from loadgen.engine.probe import base_urls

    for setting in matrix.settings:
        try:
            base_urls(setting.url_at(setting.port or 1))
            values.check(setting.given)
            stages_from(setting.given)
            settings_from(setting.url_at(setting.port or 1), setting.given)
        except UsageError as bad:
            place = f"{where}: {bad.where}" if bad.where else where
            raise UsageError(bad.what, where=f"{place}, setting {setting.name}", do=bad.do) from bad


def schema() -> dict[str, Any]:
    """The JSON Schema of matrix files, for editors."""
    found = matrix_model().model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **found}


# -- from values to flags ------------------------------------------------------------------------------------------


def _given(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """The flags of `run` as they are without any, and what the file sets in place of them."""
    from loadgen.cli.run import command

    flags = command.make_context("run", ["http://127.0.0.1"]).params
    return {key: value for key, value in flags.items() if key not in ("url", "dump_spec")} | _set(values, base)


def _set(values: dict[str, Any], base: Path) -> dict[str, Any]:
    from loadgen.cli.spec import rebased

    told = {key: rebased(key, value, base) for key, value in values.items() if value is not None}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}


def _setting(told: dict[str, Any], given: dict[str, Any], base: Path) -> Setting:
    own = _set({key: told[key] for key in _OF_SETTING if key in told}, base)
    own |= {key: given[key] + own[key] for key in _ADDED if key in own}
    merged = given | own
    command = told.get("command")
    argv = None if command is None else _argv(command)
    if argv is not None:
        fact = f"engine_flags={public_words(argv)}"
        known = any(text.partition("=")[0].strip() == "engine_flags" for text in merged["provenance"])
        merged |= {} if known else {"provenance": (*merged["provenance"], fact)}
    health = told.get("health")
    return Setting(
        told["name"],
        merged,
        told.get("url"),
        argv,
        {name: str(value) for name, value in told.get("env", {}).items()},
        base / told.get("cwd", "."),
        told.get("port"),
        () if health is None else (health,) if isinstance(health, str) else tuple(health),
        _seconds(told.get("patience")),
        _seconds(told.get("grace")),
    )


def _argv(command: str | list[Any]) -> tuple[str, ...]:
    return ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(str(word) for word in command)


def _seconds(text: str | None) -> float | None:
    from loadgen.plan.units import duration_ns

    return None if text is None else duration_ns(text) / 1e9


# -- the model -----------------------------------------------------------------------------------------------------


@cache
def matrix_model() -> type[BaseModel]:
    """The pydantic model of a matrix file: `settings`, `repeats`, `title` and the keys of a run."""
    from typing import Annotated

    from pydantic import AfterValidator, ConfigDict, Field, create_model

    from loadgen.cli.spec import spec_model

    config = ConfigDict(extra="forbid", strict=True, title="A loadgen matrix")
    of_run = {
        name: (found.annotation, Field(None, description=found.description))
        for name, found in spec_model().model_fields.items()
        if name not in _NOT_HERE
    }
    one = _setting_model({name: of_run[name] for name in _OF_SETTING})
    fields: dict[str, Any] = {
        "settings": (
            Annotated[list[one], Field(min_length=1), AfterValidator(_distinct)],  # type: ignore[valid-type]
            Field(description="the servers that are compared; the first is the baseline"),
        ),
        "repeats": (
            Annotated[int, Field(ge=1, le=100)],
            Field(2, description="rounds in which every setting is measured once, every second one backwards"),
        ),
        "title": (str | None, Field(None, description="what the report calls it")),
        **of_run,
    }
    model: type[BaseModel] = create_model("Matrix", __config__=config, **fields)
    return model


def _setting_model(of_run: dict[str, Any]) -> type[BaseModel]:
    from typing import Annotated

    from pydantic import AfterValidator, ConfigDict, Field, create_model, model_validator

    span = Annotated[str, AfterValidator(_span)]
    scalar = str | int | float
    own: dict[str, Any] = {
        "name": (
            str,
            Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60, description="what reports call it"),
        ),
        "url": (
            str | None,
            Field(None, min_length=1, description="the endpoint; {port} stands for the port that the command is given"),
        ),
        "command": (
            Annotated[str, Field(min_length=1)] | Annotated[list[scalar], Field(min_length=1)] | None,
            Field(None, description="what starts the server: words, or a line for the shell; {port}: a free port"),
        ),
        "env": (
            dict[str, scalar] | None,
            Field(None, description="environment variables of the command; never stored"),
        ),
        "cwd": (str | None, Field(None, description="folder in which it is started, from that of this file")),
        "port": (
            Annotated[int, Field(ge=1, le=65535)] | None,
            Field(None, description="the port, where it may not be any that is free"),
        ),
        "health": (
            str | list[str] | None,
            Field(None, description="page that says that it can be measured: a path or a URL"),
        ),
        "patience": (span | None, Field(None, description="longest time from its start to its health, such as 10m")),
        "grace": (span | None, Field(None, description="time between SIGTERM and SIGKILL, such as 15s")),
    }

    def known(self: Any) -> Any:
        if self.url is None and self.command is None:
            raise ValueError("has neither url nor command: give one of them")
        lacking = [key for key in ("env", "cwd", "port", "grace") if getattr(self, key) is not None]
        if self.command is None and lacking:
            raise ValueError(f"{', '.join(lacking)} without command: a server at a url is not started")
        words = self.command if isinstance(self.command, list) else [self.command]
        told = [*words, *(self.env or {}).values()]
        if self.url is None and self.port is None and not any(_PORT in str(word) for word in told):
            raise ValueError("nobody knows where it listens: put {port} into its command, or give port or url")
        return self

    validators: dict[str, Callable[..., Any]] = {"known": model_validator(mode="after")(known)}  # type: ignore[dict-item]
    config = ConfigDict(extra="forbid", strict=True)
    model: type[BaseModel] = create_model("Setting", __config__=config, __validators__=validators, **own, **of_run)
    return model


def _distinct(settings: list[Any]) -> list[Any]:
    names = [one.name.lower() for one in settings]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{twice[0]} is given twice: give each setting a name of its own")
    return settings


def _span(text: str) -> str:
    from loadgen.plan.units import duration_ns

    try:
        if duration_ns(text) <= 0:
            raise ValueError("must be longer than 0")
    except UsageError as bad:
        raise ValueError(str(bad)) from bad
    return text
