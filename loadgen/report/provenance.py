"""What was run, against what, by whom and how to run it again.

Knows: the fields of run.json and their names for people. Must not know: figures, HTML.
"""

from __future__ import annotations

import json
import shlex
from pathlib import PurePath
from typing import Any

from loadgen.analysis.endpoints import urls
from loadgen.analysis.numbers import NONE, quantity
from loadgen.model import RunInfo

STATUS = {
    "running": "not finished: what is shown was measured until now, or until the run was killed",
    "complete": "complete",
    "interrupted": "interrupted: what is shown was measured until then",
    "failed": "failed",
}
Pairs = list[tuple[str, str]]


def title(info: RunInfo) -> str:
    """The model, as far as it is known."""
    return str(info.endpoint.get("model") or "unknown model")


def headline(info: RunInfo, hardware: str) -> Pairs:
    """What, and against what: the few facts of the first screen."""
    stages = [stage.name for stage in info.stages]
    shown = ", ".join(stages[:12]) + (f" and {len(stages) - 12} more" if len(stages) > 12 else "")
    engine, version = (str(info.endpoint.get(key) or "") for key in ("engine", "version"))
    engine = version if version.startswith(engine) else f"{engine} {version}".strip()
    pairs = [
        ("Model", title(info)),
        ("Endpoint", ", ".join(urls(info)) or NONE),
        ("Engine", engine or NONE),
        ("Hardware", hardware or "not named"),
        ("Stages", shown or "none"),
        ("Run", f"{info.created}, {STATUS.get(info.status, info.status)}"),
    ]
    return pairs + [(f"Note: {key}", value) for key, value in info.notes.items()]


def endpoint(info: RunInfo) -> Pairs:
    """What the probe learned."""
    found = _pairs({key: value for key, value in info.endpoint.items() if key not in ("trials", "others")})
    for number, other in enumerate(info.endpoint.get("others") or (), 2):
        found += _pairs({key: value for key, value in other.items() if key != "trials"}, f"endpoint {number}: ")
    return found


def host(info: RunInfo) -> Pairs:
    """The client's machine, its clock, and the versions of what measured."""
    pairs = _pairs(info.host) + _pairs(info.clock, "clock: ")
    return pairs + [(f"version of {name}", version) for name, version in info.versions.items()]


def identity(info: RunInfo) -> Pairs:
    """What tells this run from every other."""
    return [
        ("run id", info.run_id),
        ("seed", str(info.seed)),
        ("nonce", info.nonce or NONE),
        ("run file schema", str(info.schema)),
        *([("error", info.error)] if info.error else []),
    ]


def command(info: RunInfo) -> str:
    """The command line that makes the same run; its seed fixes all but the nonce."""
    words = [str(word) for word in info.command]
    if not words:
        return ""
    name = PurePath(words[0]).name
    return shlex.join(["loadgen" if name in ("loadgen", "__main__.py") else name, *words[1:]])


def spec(info: RunInfo) -> str:
    """The whole resolved configuration as JSON."""
    return json.dumps(info.spec, indent=2, ensure_ascii=False, default=str)


def _pairs(of: dict[str, Any], before: str = "") -> Pairs:
    """Every field, those within fields with the outer name before theirs."""
    found: Pairs = []
    for key, value in of.items():
        name = before + _words(key)
        found += _pairs(value, f"{name}: ") if isinstance(value, dict) else [(name, _plain(key, value))]
    return found


def _words(key: str) -> str:
    for unit in ("_ns", "_bytes", "_1m"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _plain(key: str, value: Any) -> str:
    """A value for people; the suffix of its key says its unit."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if key.endswith("_ns"):
            return quantity(value / 1e9, "s")
        return quantity(value, "B") if key.endswith("_bytes") else f"{value:.10g}"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
