"""Workload files: YAML in, `Workload` out; by the name of a shipped one or from a file of one's own.

Knows: the keys of a workload file, `file:` lengths. Must not know: how texts are written, when they are sent.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from loadgen.errors import UsageError
from loadgen.plan.lengths import Length, parse_length, table
from loadgen.plan.prompts import KINDS
from loadgen.plan.workload import Prefix, Turns, Workload
from loadgen.store.dataset import TextFile
from loadgen.store.resources import workload_dir
from loadgen.store.yamlfile import read_yaml


def read_length(text: str | int, column: int = 0, base: Path = Path()) -> Length:
    """A length as typed, `file:PAIRS.csv` included: column 0 (prompt) or 1 (output) of the pairs in a file.

    The file has a pair on every line, divided by a comma or blanks; one line of names may lead. Two lengths from one
    file are drawn together, row by row. A relative path is looked up under `base`.

    Raises:
        UsageError: not a length; a file that cannot be read or has a bad line.
    """
    if isinstance(text, int) or not text.startswith("file:"):
        return parse_length(text)
    path = base / text.removeprefix("file:").strip()
    rows = _pairs(path)
    return table(text, tuple(row[column] for row in rows), joint=str(path))


def _pairs(path: Path) -> list[tuple[int, int]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as bad:
        raise UsageError(f"cannot be read: {bad}", where=str(path)) from bad
    rows = []
    for number, line in enumerate(lines, 1):
        fields = line.replace(",", " ").replace("\t", " ").split()
        if not fields or fields[0].startswith("#") or (number == 1 and not fields[0].isdigit()):
            continue
        if len(fields) != 2 or not all(f.isdigit() and int(f) >= 1 for f in fields):
            raise UsageError("is not a pair of token counts", where=f"{path}:{number}", do="write: 1200,150")
        rows.append((int(fields[0]), int(fields[1])))
    if not rows:
        raise UsageError("holds no pair", where=str(path), do="write prompt and output tokens, a pair on a line")
    return rows


def _spelled(least: int) -> Callable[[Any], Any]:
    """Check a length's spelling while the file is checked, so that all mistakes come at once."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError("must be a length, such as 2000 or uniform:100..500")
        if isinstance(value, int) or not value.startswith("file:"):
            try:
                parse_length(value, least)
            except UsageError as bad:
                raise ValueError(str(bad)) from bad
        return value

    return check


LengthText = Annotated[int | str, BeforeValidator(_spelled(1))]
WaitText = Annotated[int | str, BeforeValidator(_spelled(0))]


def _kind(value: Any) -> Any:
    if value not in KINDS:
        near = difflib.get_close_matches(str(value), KINDS, n=1)
        raise ValueError(f"unknown kind {value!r} - " + (f"did you mean {near[0]}?" if near else f"known: {KINDS}"))
    return value


Kind = Annotated[str, BeforeValidator(_kind), WithJsonSchema({"enum": [*KINDS]})]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TurnsModel(_Model):
    """A conversation: further turns on one slot, the history growing by the server's own answers."""

    count: LengthText = Field(2, description="turns in a conversation, a length")
    prompt_tokens: LengthText = Field(100, description="tokens that each turn after the first adds")
    think_ms: WaitText = Field(1000, description="milliseconds of waiting before each turn after the first")

    def build(self) -> Turns:
        return Turns(parse_length(self.count), parse_length(self.prompt_tokens), parse_length(self.think_ms, 0))


class DataModel(_Model):
    """Texts of one's own, sent as they are."""

    file: str = Field(description="JSONL of prompts or messages, ShareGPT JSON, OpenAI batch file, or .txt")
    history: Literal["server", "recorded"] = Field(
        "server", description="what stands between the turns of a conversation: the server's answers or the recorded"
    )


class WorkloadModel(_Model):
    """A kind of request: generated texts of a kind and length, or texts of one's own."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="what reports call it")
    kind: Kind | None = Field(None, description=f"who writes the prompts: {', '.join(KINDS)}")
    prompt_tokens: LengthText | None = Field(None, description="prompt length: 2000, uniform:100..500, ...")
    output_tokens: LengthText = Field(description="output length, likewise; with data: where the file does not say")
    data: DataModel | None = Field(None, description="texts of one's own, instead of kind and prompt_tokens")
    correlation: float = Field(0.0, ge=-1, le=1, description="of prompt and output lengths")
    shared_prefix_tokens: int = Field(0, ge=0, description="tokens at the start that a group's prompts share")
    prefix_groups: int = Field(1, ge=1, description="number of groups, each with a prefix of its own")
    turns: TurnsModel | None = Field(None, description="several turns for each user")
    note: str = Field("", description="a remark, kept with the run")

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadModel:
        generated = {"kind": self.kind, "prompt_tokens": self.prompt_tokens}
        missing = [key for key, value in generated.items() if value is None]
        if self.data is None and missing:
            raise ValueError(f"{' and '.join(missing)} missing - give kind and prompt_tokens, or data")
        if self.data is not None and (len(missing) < 2 or self.shared_prefix_tokens):
            raise ValueError(
                "data excludes kind, prompt_tokens and shared_prefix_tokens - its texts are sent as they are"
            )
        if self.prefix_groups > 1 and not self.shared_prefix_tokens:
            raise ValueError("prefix_groups without shared_prefix_tokens - give the tokens that a group shares")
        return self

    def build(self, base: Path) -> Workload:
        """The workload; relative paths are looked up under `base`. Raises UsageError for files that do not do."""
        texts = None
        if self.data is not None:
            texts = TextFile(str(base / self.data.file), self.data.history == "recorded", self.turns is not None)
            texts.load()  # every mistake in it is told now
        return Workload(
            name=self.name,
            kind=self.kind or "text",
            prompt_tokens=read_length(self.prompt_tokens or 1, 0, base),
            output_tokens=read_length(self.output_tokens, 1, base),
            correlation=self.correlation,
            prefix=Prefix(self.shared_prefix_tokens, self.prefix_groups) if self.shared_prefix_tokens else None,
            turns=None if self.turns is None else self.turns.build(),
            texts=texts,
            note=self.note,
        )


def shipped() -> dict[str, Path]:
    """The shipped workloads: name to file."""
    return {path.stem: path for path in sorted(workload_dir().glob("*.yaml"))}


def build_workload(described: Mapping[str, Any]) -> Workload:
    """A workload from the keys of a workload file, checked before. Raises UsageError for files that do not do."""
    return WorkloadModel.model_validate(dict(described)).build(Path())


def load_workload(name_or_file: str) -> Workload:
    """A shipped workload by name (case does not matter), or one from a YAML file.

    Raises:
        UsageError: no such workload or file; every mistake in the file.
    """
    known = shipped()
    path = known.get(name_or_file.strip().lower())
    if path is None:
        path = Path(name_or_file)
        if path.suffix not in (".yaml", ".yml") and not path.exists():
            near = difflib.get_close_matches(name_or_file.lower(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}, or FILE.yaml"
            raise UsageError(f"unknown workload {name_or_file!r}", do=hint)
    return read_yaml(path, WorkloadModel).build(path.parent)
