"""A run without addresses, names and notes, for a report that is to be shared.

Knows: where in a run such words stand, and what they look like. Must not know: formats, figures.
Why: a report is passed on to people who may see how fast a server is, but not where it stands or what it serves.
Stage and workload names and the hardware that the user named stay: without them the figures say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from loadgen.analysis.frame import Requests
from loadgen.model import RunInfo

# What is an address by its look, the longest kind first.
_ADDRESSES = re.compile(
    r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+"  # URL
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"  # mail
    r"|\[[0-9a-fA-F:]+\](?::\d+)?"  # IPv6 in brackets
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"  # IPv4
    # host:port; `uniform:100..500` and its like are lengths and arrivals
    r"|(?<![\w.-])(?!(?:uniform|normal|lognormal|zipf|gamma|file):)[a-z][\w-]*(?:\.[\w-]+)*:\d{2,5}\b"
    r"|(?<![\w/])(?:~|\.{0,2})/[\w.~-]+(?:/[\w.~-]*)*",  # path
    re.IGNORECASE,
)
_VALUE_IS_PRIVATE = (
    "--note",
    "--header",
    "--model",
    "-o",
    "--output",
    "--ca",
    "--api-key-env",
    "--metrics",
    "--endpoint",
)
ADDRESS, MODEL, PRIVATE = "[address]", "[model]", "[removed]"


def redacted(info: RunInfo, requests: Requests) -> tuple[RunInfo, Requests]:
    """The same run with its addresses, the model's name, machine names and notes replaced by what they were."""
    clean = _cleaner(info)
    words = requests.words | {"error": tuple(clean(text) for text in requests.words["error"])}
    spec = {key: value if key in ("roofline", "slo") else _each(value, clean) for key, value in info.spec.items()}
    clear = replace(
        info,
        endpoint=_each(info.endpoint, clean),
        spec=spec | ({"notes": PRIVATE} if "notes" in spec else {}),
        command=_command(info.command, clean),
        host=_each(info.host, clean),
        notes={},
        error=None if info.error is None else clean(info.error),
        findings=[replace(finding, message=clean(finding.message)) for finding in info.findings],
    )
    return clear, replace(requests, words=words)


def redacted_fit(info: RunInfo, fit: Mapping[str, Any]) -> dict[str, Any]:
    """The fit of a run without what the run holds to be private; `info` is the run's own, not the redacted one."""
    clean = _cleaner(info)
    found: dict[str, Any] = _each(dict(fit), clean)
    return found | {"cells": [cell | {"where": PRIVATE} for cell in found["cells"]]}


def _cleaner(info: RunInfo) -> Callable[[str], str]:
    """A function that takes out of a text what this run knows to be private, then what looks like an address."""
    known: dict[str, str] = {}
    for one in (info.endpoint, *(info.endpoint.get("others") or ())):
        url = str(one.get("url") or "")
        parts = urlsplit(url if "://" in url else f"//{url}")
        known |= {str(one.get("model") or ""): MODEL, parts.hostname or "": ADDRESS}
    known |= dict.fromkeys(info.notes.values(), PRIVATE)
    known.pop("", None)
    longest_first = sorted(known, key=len, reverse=True)
    # As whole words: a model called "m" must not take the letter out of every other word.
    private = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in longest_first)) if known else None

    def clean(text: str) -> str:
        text = _ADDRESSES.sub(ADDRESS, text)
        return text if private is None else private.sub(lambda match: known[match[0]], text)

    return clean


def _command(words: list[str], clean: Callable[[str], str]) -> list[str]:
    """The command line without the values of private options."""
    found: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, _ = word.partition("=")
        if before in _VALUE_IS_PRIVATE:
            found.append(PRIVATE)
        elif equals and option in _VALUE_IS_PRIVATE:
            found.append(f"{option}={PRIVATE}")
        else:
            found.append(word if word == words[0] else clean(word))
    return found


def _each(value: Any, clean: Callable[[str], str]) -> Any:
    """`clean` applied to every text, keys included."""
    if isinstance(value, dict):
        return {clean(key): _each(one, clean) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_each(one, clean) for one in value]
    return clean(value) if isinstance(value, str) else value
