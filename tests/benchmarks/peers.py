"""Other tools on the same oracle in the same hour: their command lines, and where their result files keep the figures.

    python -m tests.benchmarks.peers --oracle PATH --tool guidellm=/path/bin/guidellm --tool aiperf=/path/bin/aiperf

Tried with GuideLLM 0.8.1, AIPerf 0.13.0 and EvalScope 1.14.1. Install the tools in environments of their own. They run
on all cores but the oracle's, as their authors mean them to; `loadgen run` is beside them on one core. What a tool
calls ITL is not always the gap between two events: GuideLLM's is the mean of each request, so its p99 says nothing
about single gaps.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.harness import Oracle, Ran, arguments, loadgen_run, machine, real_time, run_child, table

Figures = tuple[float, float, float, float]  # TTFT p50 and p99, ITL p50 and p99, in ms


@dataclass(frozen=True)
class Load:
    """What every tool is asked to do."""

    url: str  # ends in /v1
    model: str
    streams: int
    requests: int
    tokens: int  # of each answer
    folder: Path  # for the tool's files; holds `tokenizer/` and `prompts.jsonl`


@dataclass(frozen=True)
class Tool:
    """How a tool is started, and how its result is read."""

    command: Callable[[Load], list[str]]
    figures: Callable[[Path], Figures]


def _guidellm(load: Load) -> list[str]:
    backend = f"kind=openai_http,target={load.url.removesuffix('/v1')},request_format=/v1/chat/completions"
    return [
        "run",
        *("--backend", f"{backend},model={load.model}"),
        *("--profile", f"kind=concurrent,streams={load.streams}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={load.folder / 'tokenizer'}"),
        *("--data", f"kind=json_file,path={load.folder / 'prompts.jsonl'}"),
        *("--output", f"kind=json,path={load.folder / 'guidellm.json'}"),
        "--disable-console",
    ]


def _guidellm_figures(folder: Path) -> Figures:
    metrics = json.loads((folder / "guidellm.json").read_bytes())["benchmarks"][0]["metrics"]
    ttft, itl = (
        metrics[name]["successful"]["percentiles"] for name in ("time_to_first_token_ms", "inter_token_latency_ms")
    )
    return ttft["p50"], ttft["p99"], itl["p50"], itl["p99"]


def _aiperf(load: Load) -> list[str]:
    return [
        "profile",
        *("--url", load.url.removesuffix("/v1"), "--model", load.model, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", str(load.folder / "tokenizer"), "--ui", "none", "--use-legacy-max-tokens"),
        *("--concurrency", str(load.streams), "--request-count", str(load.requests)),
        *("--prompt-input-tokens-mean", "32", "--prompt-output-tokens-mean", str(load.tokens)),
        *("--output-artifact-dir", str(load.folder / "aiperf")),
    ]


def _aiperf_figures(folder: Path) -> Figures:
    result = json.loads((folder / "aiperf" / "profile_export_aiperf.json").read_bytes())
    ttft, gap = result["time_to_first_token"], result["inter_chunk_latency"]
    return ttft["p50"], ttft["p99"], gap["p50"], gap["p99"]


def _evalscope(load: Load) -> list[str]:
    return [
        "perf",
        *("--url", f"{load.url}/chat/completions", "--api", "openai", "--model", load.model, "--stream"),
        *("--tokenizer-path", str(load.folder / "tokenizer"), "--dataset", "random", "--prefix-length", "0"),
        *("--min-prompt-length", "32", "--max-prompt-length", "32", "--max-tokens", str(load.tokens)),
        *("--parallel", str(load.streams), "--number", str(load.requests)),
        *("--outputs-dir", str(load.folder / "evalscope"), "--no-timestamp"),
    ]


def _evalscope_figures(folder: Path) -> Figures:
    result = next((folder / "evalscope").glob("*/*/benchmark_percentile.json"))
    rows = {row["Percentiles"]: row for row in json.loads(result.read_bytes())}
    (p50, p99), ttft, itl = (rows["50%"], rows["99%"]), "TTFT (ms)", "ITL (ms)"
    return p50[ttft], p99[ttft], p50[itl], p99[itl]


TOOLS = {
    "guidellm": Tool(_guidellm, _guidellm_figures),
    "aiperf": Tool(_aiperf, _aiperf_figures),
    "evalscope": Tool(_evalscope, _evalscope_figures),
}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--tool", action="append", default=[], metavar="NAME=BINARY", help=f"one of {', '.join(TOOLS)}")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--ttft-us", type=int, default=50_000)
    parser.add_argument("--gap-us", type=int, default=10_000)
    given = parser.parse_args()
    others = ",".join(str(core) for core in range(os.cpu_count() or 1) if core != given.server_core)
    real_time()
    print(machine())
    rows = []
    for name in ["loadgen", *given.tool]:
        name, _, binary = name.partition("=")
        for _ in range(given.repeats):
            with tempfile.TemporaryDirectory() as text, Oracle(given.oracle, given.server_core) as oracle:
                folder = Path(text)
                requests = given.streams * given.rounds
                model = f"t{given.ttft_us}-i{given.gap_us}"
                load = Load(oracle.url, model, given.streams, requests, given.tokens, folder)
                if binary:
                    figures, ran = run_tool(TOOLS[name], binary, load, others)
                else:
                    figures, ran = run_ours(load, given.client_core)
            cells = [f"{value:,.2f}" for value in figures]
            rows.append((name, *cells, f"{ran.cpu_s:.1f}", f"{ran.wall_s:.1f}", oracle.lateness))
            print(rows[-1], flush=True)
    head = ("tool", "TTFT p50, ms", "p99", "ITL p50, ms", "p99", "CPU s", "wall s", "oracle")
    print(table(head, [("truth", given.ttft_us / 1000, "", given.gap_us / 1000, "", "", "", ""), *rows]))


def run_tool(tool: Tool, binary: str, load: Load, cores: str) -> tuple[Figures, Ran]:
    """Run another tool. Raises RuntimeError with the end of its output when it fails."""
    _tokenizer(load.folder / "tokenizer")
    prompts = (
        {"prompt": f"request {number} " + "word " * 30, "output_tokens_count": load.tokens}
        for number in range(load.requests)
    )
    (load.folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    ran = run_child(["taskset", "-c", cores, binary, *tool.command(load)])
    try:
        return tool.figures(load.folder), ran
    except (OSError, LookupError, TypeError, StopIteration) as bad:
        raise RuntimeError(f"{binary} left no result ({bad!r})\n{ran.output[-3000:]}") from bad


def run_ours(load: Load, core: int) -> tuple[Figures, Ran]:
    """`loadgen run` with the same load, read from its rows."""
    from loadgen.store.runfile import open_run

    flags = ["--model", load.model, "--concurrency", str(load.streams), "--requests", str(load.requests)]
    flags += ["--output-tokens", str(load.tokens), "--prompt-tokens", "32", "--burst-start", "--no-report"]
    ran = loadgen_run(load.url, load.folder / "run", flags, core)
    _, requests = open_run(load.folder / "run")
    ttft, gaps = [], []
    for row in (requests.exchange(i) for i in range(len(requests))):
        if row.warmup or row.sent_ns is None or not row.event_ns:
            continue
        ttft.append(row.event_ns[0] - row.sent_ns)
        gaps.append(np.diff(row.event_ns))
    p50, p99 = np.quantile(ttft, [0.5, 0.99]) / 1e6
    gap50, gap99 = np.quantile(np.concatenate(gaps), [0.5, 0.99]) / 1e6
    return (float(p50), float(p99), float(gap50), float(gap99)), ran


def _tokenizer(folder: Path) -> None:
    """A tokenizer that counts words, for tools that insist on one; nothing is fetched."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words: list[Any] = ["<unk>", "token", "word", "request", *(f"w{number}" for number in range(1000))]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "<unk>", "eos_token": "<unk>", "pad_token": "<unk>"}
    special["chat_template"] = "{% for message in messages %}{{ message.content }} {% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))


if __name__ == "__main__":
    main()
