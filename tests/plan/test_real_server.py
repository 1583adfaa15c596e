"""Plans against a real server: llama.cpp with a model of random weights, which counts, caches and converses for real.

The run goes through the command line, in this process; the figures are the server's own, not the plan's. Answers have
eight tokens: of fewer, random weights now and then make none that is valid UTF-8, and so an empty answer.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from loadgen.analysis.frame import Requests
from loadgen.cli import cli
from loadgen.store.runfile import open_run
from tests import llama

pytestmark = pytest.mark.llama
_HEAD = Path(__file__).parents[2].parent / "shared" / "traces" / "mooncake_conversation_head1000.jsonl"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = tmp_path_factory.mktemp("llama") / "micro.gguf"
    llama.make_model(model)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with llama.server(model, port, slots=1) as url:
        yield f"{url}/v1"


def _run(endpoint: str, folder: Path, spec: str, *flags: str) -> Requests:
    """The measured requests of a run with these keys (and URL); every one must have succeeded."""
    (folder / "SPEC.yaml").write_text(f"url: {endpoint}\noutput: {folder / 'run'}\nno_report: true\n{spec}")
    done = CliRunner().invoke(cli, ["run", str(folder / "SPEC.yaml"), *flags])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    _, requests = open_run(folder / "run")
    requests = requests.select(requests.request_id >= 0)
    assert (requests.outcome == 0).all()
    return requests


@pytest.mark.parametrize(("kind", "tokens"), [("chat", 64), ("story", 300), ("chat", 1_500)])
def test_prompts_have_the_asked_number_of_tokens_by_calibration_alone(
    endpoint: str, tmp_path: Path, kind: str, tokens: int
) -> None:
    """Within 2 % (and 2 tokens) in the mean. One prompt varies more: a vocabulary of 2,048 cuts words differently."""
    requests = _run(
        endpoint,
        tmp_path,
        f"workload: [{{name: w, kind: {kind}, prompt_tokens: {tokens}, output_tokens: 8}}]\n"
        "concurrency: 1\nrequests: 24\nwarmup: 24\ntokenizer: 'off'\n",
    )
    assert requests.prompt_tokens.mean() == pytest.approx(tokens, rel=0.02, abs=2)
    assert np.abs(requests.prompt_tokens - tokens).max() < 0.15 * tokens
    assert open_run(tmp_path / "run")[0].endpoint["prompts"]["w"]["counted_by"] == "usage"


def test_prompts_have_the_asked_number_within_a_token_by_its_tokenize(endpoint: str, tmp_path: Path) -> None:
    requests = _run(
        endpoint,
        tmp_path,
        "workload:\n"
        "- {name: a, kind: chat, prompt_tokens: uniform:64..1500, output_tokens: 8}\n"
        "- {name: b, kind: summarize, prompt_tokens: uniform:64..1500, output_tokens: 8}\n"
        "- {name: c, kind: story, prompt_tokens: 64, output_tokens: 8}\n"
        "mix: [1, 1, 1]\nconcurrency: 1\nrequests: 24\nwarmup: 2\n",
    )
    assert np.abs(requests.prompt_tokens - requests.prompt_tokens_requested).max() <= 1
    told = open_run(tmp_path / "run")[0].endpoint["prompts"]
    assert told == {w: {"counted_by": "server", "template_tokens": 11, "off_tokens": 0} for w in "abc"}


def test_with_its_tokenizer_every_prompt_has_the_asked_number_within_a_token(endpoint: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokens, merges = llama.tokenizer()
    model = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    requests = _run(
        endpoint,
        tmp_path,
        "workload: [{name: w, kind: chat, prompt_tokens: uniform:64..1500, output_tokens: 8}]\n"
        "concurrency: 1\nrequests: 20\nwarmup: 6\ntokenizer: tokenizer.json\n",
    )
    assert np.abs(requests.prompt_tokens - requests.prompt_tokens_requested).max() <= 1


def test_a_shared_prefix_is_found_in_the_cache_and_unique_prompts_are_not(endpoint: str, tmp_path: Path) -> None:
    text = "workload: [{name: w, kind: chat, prompt_tokens: 600, output_tokens: 8%s}]\nconcurrency: 1\nrequests: 10\n"
    folders = [tmp_path / "unique", tmp_path / "shared"]
    for folder in folders:
        folder.mkdir()
    unique = _run(endpoint, folders[0], text % "")
    assert unique.cached_tokens.max() < 16  # the template's own head, and a first word met by chance
    assert (unique.repeated_tokens == 0).all()
    shared = _run(endpoint, folders[1], text % ", shared_prefix_tokens: 400")
    assert shared.cached_tokens[1:] == pytest.approx(400, abs=16)  # the first one fills the cache
    assert shared.repeated_tokens.tolist() == [0] + 9 * [400]
    assert shared.server["cache_n"].tolist() == shared.cached_tokens.tolist()


def test_a_conversation_of_five_turns_grows_by_the_servers_own_answers(endpoint: str, tmp_path: Path) -> None:
    requests = _run(
        endpoint,
        tmp_path,
        "workload: [{name: w, kind: story, prompt_tokens: 100, output_tokens: 20, "
        "turns: {count: 5, prompt_tokens: 50, think_ms: 1}}]\nconcurrency: 1\nrequests: 10\nwarmup: 6\n",
    )
    for start in (0, 5):
        turns = slice(start, start + 5)
        assert requests.turn[turns].tolist() == [0, 1, 2, 3, 4]
        grown = np.diff(requests.prompt_tokens[turns])
        assert (grown > 50).all()  # 50 of the new turn, 20 of the answer, give or take, and the template
        assert (grown < 130).all()
        assert (requests.cached_tokens[turns][1:] >= 0.8 * requests.prompt_tokens[turns][:-1]).all()


def test_blocks_of_a_trace_are_found_in_the_cache(endpoint: str, tmp_path: Path) -> None:
    """Mooncake's form with blocks of 64 tokens: each request shares all but its last blocks with the one before."""
    rows = [
        f'{{"timestamp": {100 * i}, "input_length": {64 * len(ids) - 10}, "output_length": 8, "hash_ids": {ids}}}'
        for i, ids in enumerate([[0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 6, 7, 8], [9, 10, 11]])
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    requests = _run(endpoint, tmp_path, "trace: t.jsonl\ntrace_block: 64\nmax_concurrency: 1\nwarmup: 2\n")
    assert requests.cached_tokens[1:3] == pytest.approx([256, 128], abs=16)
    assert requests.repeated_tokens.tolist() == [0, 256, 128, 0]
    assert requests.cached_tokens[3] < 16
    assert requests.prompt_tokens == pytest.approx([310, 310, 310, 182], abs=1)


@pytest.mark.skipif(not _HEAD.is_file(), reason="the heads of real traces are not here")
def test_the_head_of_mooncakes_trace_is_replayed(endpoint: str, tmp_path: Path) -> None:
    """Its requests that fit into the context, at once; the blocks that it says are found in the cache."""
    requests = _run(
        endpoint,
        tmp_path,
        f"trace: {_HEAD}\ntrace_context: {llama.CONTEXT - 64}\ntrace_speed: 1000\nmax_concurrency: 1\n"
        "requests: 12\nwarmup: 2\n",
    )
    assert len(requests) == 12
    assert np.abs(requests.prompt_tokens - requests.prompt_tokens_requested).max() <= 2
    known = requests.repeated_tokens > 0
    assert known.any()
    assert (requests.cached_tokens[known] >= requests.repeated_tokens[known]).all()
    assert requests.cached_tokens[~known].max() < 16
