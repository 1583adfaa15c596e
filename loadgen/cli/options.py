"""The flags that `run` and `plan` share, and how they become settings (`stages` makes the stages).

Knows: flag names and defaults. Must not know: how a run is made, how a value is spelled (`values`).
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadgen.cli.values import SEEDS, Number, read_cooldown, read_extra_body, read_header, read_limit, read_workers
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.engine.settings import Settings
    from loadgen.plan.budget import Budget

F = TypeVar("F", bound=Callable[..., Any])
_PER_WORKER = 512  # users, or requests per second, that --workers auto gives to one process

# (flags, attributes) in the order in which --help shows them.
_LOAD_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("-w", "--workload", "workload"),
        {
            "multiple": True,
            "help": "chat, summarize, story, swap or FILE.yaml; several may be joined by commas.  [default: chat]",
        },
    ),
    (
        ("--concurrency",),
        {"help": "Closed loop: users, one or several, such as 1,8,32 or 1..256*2.  [default: 1,8,32]"},
    ),
    (("--rate",), {"help": "Open loop: requests per second, one or several, such as 4,8."}),
    (
        ("--mix",),
        {"metavar": "W,W", "help": "All workloads in one stage, by these weights, such as 70,20,10."},
    ),
    (("--trace",), {"metavar": "FILE", "help": "Open loop: replay a trace (Azure, BurstGPT, Mooncake, plain CSV)."}),
    (("--trace-speed",), {"help": "So many times as fast, one or several, such as 1,2.  [default: 1]"}),
    (("--trace-slice",), {"metavar": "A..B", "help": "Only this part of the recorded time, such as 10m..20m."}),
    (
        ("--trace-context",),
        {"type": click.IntRange(1), "help": "Leave out requests with more prompt and output tokens than this."},
    ),
    (("--trace-block",), {"type": click.IntRange(1), "help": "Tokens of a block of hash_ids.  [default: 512]"}),
    (("--trace-spread",), {"is_flag": True, "help": "Spread requests of one recorded moment, at most over a second."}),
    (("--arrivals",), {"help": "Open loop: poisson, constant, gamma:CV, ...  [default: poisson]"}),
    (
        ("--max-concurrency",),
        {"type": click.IntRange(1), "help": "Open loop: at most so many in flight; waiting shows as schedule delay."},
    ),
    (
        ("--profile",),
        {
            "type": click.Choice(["roofline"]),
            "help": "Instead of workloads and loads: the experiment that `loadgen fit` needs.",
        },
    ),
    (("--budget",), {"help": "With --profile: leave out what would take longer in all, such as 10m.  [default: 30m]"}),
    (
        ("--requests",),
        {
            "type": click.IntRange(0, 10**12),
            "help": "Requests per stage, all measured.  [default: 4 per user, at least 32]",
        },
    ),
    (("--duration",), {"help": "Length of each stage's window, such as 60s, instead of --requests."}),
    (("--prompt-tokens",), {"help": "Prompt length: 2000, uniform:100..500, normal:2000±200, lognormal:..., file:..."}),
    (
        ("--tokenizer",),
        {
            "metavar": "FILE|off",
            "help": "The model's tokenizer.json, for prompts of exactly the asked length; off: calibrate from usage "
            "alone.  [default: the server's /tokenize, where it has one]",
        },
    ),
    (("--output-tokens",), {"help": "Output length, likewise."}),
    (
        ("--warmup",),
        {
            "type": click.IntRange(0),
            "help": "Unmeasured requests per workload before its first stage.  [default: 4]",
        },
    ),
    (
        ("--protocol",),
        {
            "type": click.Choice(["native", "vllm", "guidellm", "aiperf", "inferencemax", "mlperf"]),
            "help": "Send as that tool does: number of requests, opening burst, warm-up, spread of lengths; flags win.",
        },
    ),
    (
        ("--burst-start",),
        {"is_flag": True, "help": "Start all users of a closed loop at once instead of over one service time."},
    ),
    (
        ("--workers",),
        {"default": "1", "show_default": True, "help": "Client processes, or auto: several when one is too few."},
    ),
    (
        ("--ray",),
        {
            "metavar": "auto|local|HOST:PORT",
            "help": "Run the workers on the nodes of this Ray cluster (local: started here for the run).",
        },
    ),
    (
        ("--seed",),
        {
            "type": SEEDS,
            "default": 0,
            "show_default": True,
            "help": "Fixes lengths, arrivals and texts (but for a run's nonce).",
        },
    ),
)
_RULE_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--stop-on",),
        {
            "multiple": True,
            "metavar": "COND",
            "help": "End a stage and skip higher loads, such as 'error_rate > 5%', 'p99(ttft) > 10s', saturation.",
        },
    ),
    (
        ("--until",),
        {
            "metavar": "GOAL",
            "help": "End a stage (--requests, --duration: at most) once 'p99(ttft) within 5%', by its 95 % interval.",
        },
    ),
    (("--cooldown",), {"help": "Silence between stages, such as 10s."}),
    (("--resume",), {"type": click.Path(path_type=Path), "metavar": "RUN", "help": "Go on with a run, same flags."}),
)
_LIMIT_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--max-tokens-total",),
        {
            "type": click.IntRange(1),
            "help": "Limit for prompt and output tokens of the whole run, warm-up and those in flight included.",
        },
    ),
    (("--price-input",), {"type": Number(0), "help": "Vendor's price of a million prompt tokens, in any currency."}),
    (("--price-output",), {"type": Number(0), "help": "... of a million output tokens."}),
    (("--price-cached",), {"type": Number(0), "help": "... of a million cached prompt tokens."}),
    (("--max-cost",), {"type": Number(0), "help": "Limit for the cost of the whole run, at these prices."}),
)
SPREADS = ("round-robin", "each")
_ENDPOINT_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--endpoint",),
        {"multiple": True, "metavar": "URL", "help": "A further endpoint beside URL; repeatable. See --spread."},
    ),
    (
        ("--spread",),
        {
            "type": click.Choice(SPREADS),
            "help": "With --endpoint: requests (whole sessions) to the endpoints in turn; or the whole plan to each, "
            "one run after the other, and their comparison.  [default: round-robin]",
        },
    ),
    (("--model",), {"help": "Model name.  [default: the one that the endpoint lists]"}),
    (
        ("--dialect",),
        {
            "type": click.Choice(["chat", "completions", "responses", "embeddings"]),
            "help": "API to speak.  [default: chat, completions where there is no chat]",
        },
    ),
    (
        ("--api-key-env",),
        {"metavar": "VAR", "help": "Environment variable that holds the key (sent as a bearer token, never stored)."},
    ),
    (
        ("--header",),
        {"multiple": True, "metavar": "K:V", "help": "A header for every request; its value is never stored."},
    ),
    (("--temperature",), {"type": Number(0), "help": "Sampling temperature, sent only when given."}),
    (("--extra-body",), {"metavar": "JSON", "help": "JSON object merged into every request body."}),
    (("--timeout-connect",), {"default": "10s", "show_default": True, "help": "Limit for a connection to stand."}),
    (("--timeout-first",), {"default": "300s", "show_default": True, "help": "Limit from sending to the first token."}),
    (("--timeout-idle",), {"default": "60s", "show_default": True, "help": "Limit between two token events."}),
    (("--timeout-total",), {"default": "off", "show_default": True, "help": "Limit for a whole request."}),
    (("--trust-env",), {"is_flag": True, "help": "Use the proxies that the environment names."}),
    (("--insecure",), {"is_flag": True, "help": "Do not verify TLS certificates."}),
    (("--ca",), {"metavar": "FILE", "help": "Verify TLS against this CA file."}),
    (
        ("--guard",),
        {"is_flag": True, "help": "Ask checkable questions beside the load: are fast answers still right?"},
    ),
    (("--keep-text",), {"is_flag": True, "help": "Store response texts in the run."}),
    (
        ("--metrics",),
        {
            "multiple": True,
            "default": ("auto",),
            "metavar": "URL|auto|off",
            "help": "Prometheus pages to read each second, joined by commas; auto: the endpoint's.  [default: auto]",
        },
    ),
)


def _add(options: tuple[tuple[tuple[str, ...], dict[str, Any]], ...]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for flags, attributes in reversed(options):
            function = click.option(*flags, **attributes)(function)
        return function

    return decorate


load_options = _add(_LOAD_OPTIONS)
rule_options = _add(_RULE_OPTIONS)
limit_options = _add(_LIMIT_OPTIONS)
endpoint_options = _add(_ENDPOINT_OPTIONS)


def new_nonce() -> str:
    """A run's nonce: random, so that no two runs share a prompt prefix; recorded in run.json."""
    return secrets.token_hex(4)


def settings_from(url: str, given: dict[str, Any]) -> Settings:
    """The engine's settings from parsed flags. Raises UsageError."""
    from loadgen.cli.stages import protocol_of, warmup_of
    from loadgen.engine.host import split_credentials
    from loadgen.engine.settings import Settings
    from loadgen.engine.timeouts import Limits
    from loadgen.engine.transport import Security
    from loadgen.model import Features
    from loadgen.store.tokenizer import read_tokenizer

    headers = dict(read_header(text) for text in given["header"])
    if (variable := given["api_key_env"]) is not None:
        key = os.environ.get(variable)
        key = (key or "").strip()  # a key read from a file brings its newline along
        if not key:
            raise UsageError(f"environment variable {variable} is empty or not set", where="--api-key-env")
        if not key.isprintable() or not key.isascii():
            raise UsageError(f"environment variable {variable} holds what no header can", where="--api-key-env")
        headers["Authorization"] = f"Bearer {key}"
    url, credentials = split_credentials(url)
    if credentials:
        if "authorization" in {name.lower() for name in headers}:
            raise UsageError("the URL carries credentials and so does a header", do="give one of them")
        headers["Authorization"] = credentials
    if given["insecure"] and given["ca"]:
        raise UsageError("--insecure and --ca contradict each other", do="give one of them")
    others = tuple(_other(text) for text in given.get("endpoint", ()))
    _all_different((url, *others))
    return Settings(
        url=url,
        others=others,
        model=given["model"],
        dialect=given["dialect"],
        headers=headers,
        features=Features(temperature=given["temperature"], extra_body=read_extra_body(given["extra_body"] or "{}")),
        limits=Limits(*(read_limit(n)(given[f"timeout_{n}"]) for n in ("connect", "first", "idle", "total"))),
        security=Security(given["insecure"], given["ca"], given["trust_env"]),
        seed=given["seed"],
        nonce=new_nonce(),
        warmup=warmup_of(given),
        burst_start=given["burst_start"] or protocol_of(given).burst,
        keep_text=given["keep_text"],
        guard=given["guard"],
        tokenizer=None if given["tokenizer"] in (None, "off") else read_tokenizer(given["tokenizer"]),
        ask_tokenize=given["tokenizer"] != "off",
        workers=_workers(given),
        budget=budget_of(given),
        cooldown_ns=0 if given.get("cooldown") is None else read_cooldown(given["cooldown"]),
        metrics=_metrics(url, given["metrics"]),
    )


def _other(text: str) -> str:
    """The URL of a further endpoint. All of them get the same headers."""
    from loadgen.engine.host import split_credentials

    url, credentials = split_credentials(text)
    if credentials:
        raise UsageError("a further endpoint's URL carries credentials", do="give --header, which all of them get")
    return url


def _all_different(urls: tuple[str, ...]) -> None:
    """Raises UsageError for an endpoint that is given twice: its own load would count as a stranger's."""
    from loadgen.engine.probe import base_urls

    seen: set[str] = set()
    for url in urls:
        if (base := base_urls(url)[-1]) in seen:
            raise UsageError("this endpoint is given twice", where=f"--endpoint {url}", do="give each once")
        seen.add(base)


def budget_of(given: dict[str, Any]) -> Budget:
    """What a run may spend, and a vendor's prices. Raises UsageError."""
    from loadgen.plan.budget import Budget, Prices

    prices = [given.get(f"price_{name}") for name in ("input", "output", "cached")]
    cost = given.get("max_cost")
    if (prices[0] is None) != (prices[1] is None) or (
        prices[0] is None and (prices[2] is not None or cost is not None)
    ):
        raise UsageError("a cost needs both prices", do="give --price-input and --price-output, per million tokens")
    known = Prices(prices[0], prices[1], prices[2]) if prices[0] is not None and prices[1] is not None else None
    return Budget(given.get("max_tokens_total"), cost, known)


def _workers(given: dict[str, Any]) -> int:
    wanted = read_workers(given["workers"])
    if wanted is not None:
        return wanted
    from loadgen.engine.host import cores
    from loadgen.plan.schedule import parse_sweep

    most = max(parse_sweep(given["rate"] or given["concurrency"] or "32", integers=False))
    needed = math.ceil(most / _PER_WORKER)
    return max(1, needed if given.get("ray") else min(cores() - 1, needed))


def _metrics(url: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """`wanted` as it is; a mistake in it is told before the first request."""
    from loadgen.engine.telemetry import pages
    from loadgen.engine.transport import Security

    pages(wanted, [url], {}, Security())
    return wanted
