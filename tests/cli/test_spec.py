"""SPEC.yaml: every flag has its key, both ways give the same run, every mistake is told; the schema, the examples."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from loadgen.cli import cli, matrix_spec
from loadgen.cli.run import command as run_command
from loadgen.cli.run import recipe_of
from loadgen.cli.search import SEARCH_OPTIONS
from loadgen.cli.spec import dump_spec, is_search, read_spec, schema, spec_model, with_spec
from loadgen.cli.stages import stages_from
from loadgen.cli.values import check
from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.runfile import open_run

EXAMPLES = Path(__file__).parents[2] / "examples"
_SPECS = sorted(path for path in EXAMPLES.glob("*.yaml") if path.stem != "matrix")  # see test_matrix
URL = "http://127.0.0.1:9/v1"


def _parsed(*words: str) -> tuple[click.Context, str, dict[str, Any]]:
    """The context and the parameters of `loadgen run WORDS`, spec and flags put together."""
    context = run_command.make_context("run", list(words), parent=click.Context(cli, **cli.context_settings))
    given = {key: value for key, value in context.params.items() if key not in ("url", "dump_spec")}
    url, merged = with_spec(context, context.params["url"], given)
    return context, url, merged


def _spec(folder: Path, text: str) -> str:
    path = folder / "SPEC.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_flag_has_its_key() -> None:
    flags = {p.name for p in (*run_command.params, *SEARCH_OPTIONS)} - {"dump_spec", "help", "resume"}
    assert set(spec_model().model_fields) == flags
    assert all(field.description for field in spec_model().model_fields.values())


_FLAGS = [
    [],
    ["-w", "chat,story", "--mix", "70,30", "--rate", "2,4", "--arrivals", "gamma:2", "--max-concurrency", "9",
     "--duration", "90s"],
    ["-w", "chat", "-w", "story", "--concurrency", "1..8*2", "--requests", "5", "--prompt-tokens", "uniform:5..9",
     "--output-tokens", "7", "--burst-start", "--seed", "0", "--warmup", "0"],
    ["--model", "m", "--dialect", "completions", "--temperature", "0.5", "--extra-body", '{"a": {"b": [1, null]}}',
     "--timeout-total", "2m", "--timeout-first", "off", "--insecure", "--keep-text", "--slo", "p99(ttft) < 1s",
     "--slo", "error_rate < 1%", "--note", "a=b: c", "--provenance", "driver=570.86", "--provenance", "flags=--x y=1",
     "--gpu", "h100-sxm", "--gpus", "2", "--no-report", "-o", "x"],
]  # fmt: skip


@pytest.mark.parametrize("flags", _FLAGS)
def test_flags_written_as_a_spec_give_the_same_run_again(tmp_path: Path, flags: list[str]) -> None:
    context, url, given = _parsed(URL, *flags)
    text = dump_spec(context, url, given)
    again, url_again, given_again = _parsed(_spec(tmp_path, text))
    assert (url_again, given_again) == (url, given)
    assert dump_spec(again, url_again, given_again) == text
    assert stages_from(given_again) == stages_from(given)


# A value for each flag whose text has a grammar; the others are taken by their type.
_TEXTS = {
    "concurrency": "1,4",
    "rate": "2,4.5",
    "mix": "70,30",
    "trace": "/t.csv",
    "trace_speed": "1,2",
    "trace_slice": "10m..20m",
    "arrivals": "gamma:2",
    "budget": "10m",
    "duration": "90s",
    "prompt_tokens": "uniform:5..9",
    "tokenizer": "/t.json",
    "output_tokens": "7",
    "workers": "2",
    "until": "p99(ttft) within 5%",
    "cooldown": "10s",
    "endpoint": "http://127.0.0.1:9/v1",
    "extra_body": '{"a": {"b": [1, null]}}',
    "ca": "/a.pem",
    "shape": "/m/config.json",
    "gpu": "h200-sxm",
    "dtype": "fp8",
    "weights": "fp8",
    "compute": "fp8",
    "kv": "fp8",
    "workload": "story",
    "stop_on": "error_rate > 5%",
    "slo": "p99(ttft) < 1s",
    "note": "a=b: c",
    "provenance": "driver=570.86",
    **{f"timeout_{name}": "7s" for name in ("connect", "first", "idle", "total")},
}


def _words(option: click.Option) -> list[str]:
    """The flag with a value that is not its default."""
    if option.is_flag:
        return [option.opts[-1]]
    if isinstance(option.type, click.Choice):
        return [option.opts[-1], option.type.choices[-1]]
    number = "5" if isinstance(option.type, click.IntRange | click.FloatRange) else None
    return [option.opts[-1], _TEXTS.get(option.name or "") or number or "word"]


@pytest.mark.parametrize(
    "option",
    [p for p in run_command.params if isinstance(p, click.Option) and p.name not in ("dump_spec", "resume", "header")],
    ids=lambda option: option.name,
)
def test_every_flag_is_written_as_its_key_and_read_back(tmp_path: Path, option: click.Option) -> None:
    context, url, given = _parsed(URL, *_words(option))
    text = dump_spec(context, url, given)
    assert f"\n{option.name}:" in text
    _, url_again, given_again = _parsed(_spec(tmp_path, text))
    assert (url_again, given_again) == (url, given)


def test_a_models_own_file_counts_from_the_spec_and_is_kept_as_dimensions(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny-Model"
    folder.mkdir()
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    (folder / "config.json").write_text(json.dumps(sizes))
    _, _, given = _parsed(_spec(folder, f"url: {URL}\ngpu: h100-sxm\nshape: config.json\n"))
    check(given)
    kept = recipe_of(given).roofline["shape"]
    (folder / "config.json").unlink()
    assert (catalog.shape(kept).name, catalog.shape(kept).layers) == ("Tiny-Model", 2)
    with pytest.raises(UsageError, match="cannot read it"):
        check(given)


def test_facts_about_the_server_are_a_block_of_their_own(tmp_path: Path) -> None:
    block = "provenance:\n  tp_size: 2\n  prefix_cache: true\n  engine: {version: 0.11.2, flags: [-a, -b]}\n  driver:\n"
    _, _, given = _parsed(_spec(tmp_path, f"url: {URL}\n{block}"))
    facts = ("tp_size=2", "prefix_cache=true", "engine.version=0.11.2", "engine.flags=-a, -b")
    assert given["provenance"] == facts
    for bad, said in (("{api_key: abc}", "names a secret"), ("just words", "is not KEY=VALUE")):
        with pytest.raises(UsageError, match=said) as told:
            _parsed(_spec(tmp_path, f"url: {URL}\nprovenance: {bad}\n"))
        assert "abc" not in str(told.value)


def test_values_of_headers_are_not_written() -> None:
    text = dump_spec(*_parsed(URL, "--header", "X-Key: very-secret"))
    assert "very-secret" not in text
    assert "X-Key" in text
    for url in ("http://me:very-secret@127.0.0.1:9/v1", "me:very-secret@host", "https://host/v1?key=very-secret"):
        text = dump_spec(*_parsed(url))
        assert "very-secret" not in text
        assert "to be given again: the secrets of the URL" in text
    assert "given again" not in dump_spec(*_parsed("127.0.0.1:9"))


def test_numbers_lists_and_mappings_stand_for_the_texts_of_flags(tmp_path: Path) -> None:
    _, url, given = _parsed(
        _spec(
            tmp_path,
            f"url: {URL}\nconcurrency: [1, 8]\nprompt_tokens: 50\nextra_body: {{top_p: 0.5}}\nslo: p99(ttft) < 1s\n"
            "workload: story\nseed: 3\nburst_start: true\n",
        )
    )
    assert url == URL
    assert (given["concurrency"], given["prompt_tokens"], given["seed"]) == ("1,8", "50", 3)
    assert (given["slo"], given["workload"], given["burst_start"]) == (("p99(ttft) < 1s",), ("story",), True)
    assert json.loads(given["extra_body"]) == {"top_p": 0.5}


def test_a_flag_wins_over_the_spec_and_displaces_what_contradicts_it(tmp_path: Path) -> None:
    path = _spec(tmp_path, f"url: {URL}\nrate: 4\nduration: 1m\nseed: 3\nwarmup: 7\n")
    _, _, given = _parsed(path, "--seed", "5", "--concurrency", "2", "--requests", "9", "--warmup", "4")
    assert (given["seed"], given["concurrency"], given["rate"]) == (5, "2", None)
    assert (given["requests"], given["duration"], given["warmup"]) == (9, None, 4)


def test_paths_count_from_the_spec(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "w.yaml").write_text("name: w\nkind: story\nprompt_tokens: 9\noutput_tokens: 9\n")
    (folder / "p.csv").write_text("5,6\n")
    (folder / "d.txt").write_text("hello\n")
    path = _spec(
        folder,
        f"url: {URL}\nworkload:\n- w.yaml\n- {{name: d, data: {{file: d.txt}}, output_tokens: file:p.csv}}\n"
        "trace: t.csv\nca: a.pem\n",
    )
    _, _, given = _parsed(path)
    assert (given["trace"], given["ca"]) == (str(folder / "t.csv"), str(folder / "a.pem"))
    _, _, given = _parsed(path, "--concurrency", "1")
    (w, _), (d, _) = (stage.mix[0] for stage in stages_from(given))
    assert (w.name, d.name, d.output_tokens.mean()) == ("w", "d", 6)


def test_every_mistake_is_told_at_once_where_it_stands(tmp_path: Path) -> None:
    path = _spec(
        tmp_path,
        "workload:\n- chat\n- {name: x, kind: stor, prompt_tokens: 1, output_token: 5}\nconcurency: 1\nwarmup: -3\n"
        "duration: 5\nrate: 1..\ndialect: chatt\ninsecure: maybe\narrivals: pois\ntimeout_idle: soon\n"
        "extra_body: [1]\nslo: [p99(ttft) < 1s, p99(tft) < 1s]\nmix: a,b\nworkers: 0\ntimeout_first: Off\n"
        "header: {a: b}\ngpu: h1000-sxm\nshape: llama-9\ndtype: bf17\ntrace_slice: 5m\nnote: x\nseed: 1.5\n",
    )
    with pytest.raises(UsageError) as bad:
        read_spec(Path(path))
    lines = str(bad.value).splitlines()
    for place, words in (
        ("1:1", "url is missing"),
        ("3:13", "did you mean story"),
        ("3:43", "did you mean output_tokens"),
        ("4:1", "did you mean concurrency"),
        ("5:1", "warmup"),
        ("6:1", "'5' is not a duration"),
        ("7:1", "'1..' is not a list of loads"),
        ("8:1", "'chat', 'completions', 'responses' or 'embeddings'"),
        ("9:1", "insecure"),
        ("10:1", "'pois' is not an arrival process"),
        ("11:1", "'soon' is not a duration"),
        ("12:1", "must be a JSON object"),
        ("13:23", "did you mean"),
        ("14:1", "list of weights"),
        ("15:1", "from 1 to 256"),
        ("17:1", "valid string"),
        ("18:1", "did you mean"),
        ("19:1", "did you mean"),
        ("20:1", "did you mean"),
        ("21:1", "not a slice"),
        ("22:1", "KEY=VALUE"),
        ("23:1", "valid integer"),
    ):
        assert any(f"SPEC.yaml:{place}: " in line and words in line for line in lines), (place, words, lines)
    assert not any("timeout_first" in line for line in lines)
    done = CliRunner().invoke(cli, ["run", path])
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    "flags",
    [["--gpu", "h1000"], ["--shape", "x"], ["--dtype", "bf17"], ["--workers", "0"], ["--header", "novalue"],
     ["--note", "x"], ["--extra-body", "[1]"], ["--extra-body", "{"], ["--timeout-idle", "0s"], ["--slo", "ttft"],
     ["--trace-slice", "5m", "--trace", "t.csv"]],
)  # fmt: skip
def test_values_that_cannot_be_read_are_told_before_anything_is_sent(flags: list[str]) -> None:
    for command in ("run", "plan"):
        done = CliRunner().invoke(cli, [command, URL, *flags])
        assert isinstance(done.exception, UsageError), (command, done.output)


# -- flags that go together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--rate", "1", "--concurrency", "1"], "contradict"),
        (["--trace", "x.csv", "--rate", "1"], "contradict"),
        (["--requests", "1", "--duration", "1s"], "contradict"),
        (["--arrivals", "poisson"], "needs --rate"),
        (["--trace-speed", "2"], "needs --trace"),
        (["--max-concurrency", "2"], "needs --rate"),
        (["--rate", "1", "--arrivals", "nope"], "arrival process"),
        (["-w", "chat,story", "--mix", "1"], "1 weights for 2"),
        (["-w", "chat,story", "--mix", "1,0"], "above 0"),
        (["-w", "chat,chat"], "twice"),
        (["--trace", "x.csv", "--prompt-tokens", "5"], "own lengths"),
        (["--trace", "x.csv", "-w", "chat,story"], "one workload"),
        (["--concurrency", "1.5"], "fraction"),
        (["--duration", "5"], "not a duration"),
        (["--duration", "0s"], "longer than 0"),
    ],
)
def test_flags_that_do_not_go_together(flags: list[str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        stages_from(_parsed(URL, *flags)[2])


def test_workloads_times_loads_and_one_mix_for_all() -> None:
    stages = stages_from(_parsed(URL, "-w", "chat,story", "--concurrency", "1,4")[2])
    assert [(s.stage, s.name, s.requests) for s in stages] == [
        (0, "chat@1", 32), (1, "chat@4", 32), (2, "story@1", 32), (3, "story@4", 32)]  # fmt: skip
    (mixed,) = stages_from(_parsed(URL, "-w", "chat,story", "--mix", "70%, 30%", "--rate", "2", "--duration", "9s")[2])
    assert (mixed.name, [weight for _, weight in mixed.mix]) == ("chat+story@2/s", [70.0, 30.0])
    assert (mixed.requests, mixed.duration_ns) == (None, 9 * 10**9)


# -- schema and examples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "of"), [("loadgen.schema.json", schema), ("loadgen-matrix.schema.json", matrix_spec.schema)]
)
def test_the_shipped_schema_is_that_of_the_flags(name: str, of: Callable[[], dict[str, Any]]) -> None:
    """`LOADGEN_UPDATE=1 pytest tests/cli/test_spec.py` writes it anew."""
    path = EXAMPLES / name
    text = json.dumps(of(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("LOADGEN_UPDATE"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimulatorProcess(simulated(time_scale=20.0)) as simulator:
        yield simulator.url


@pytest.mark.parametrize("path", _SPECS, ids=lambda path: path.stem)
def test_every_example_is_planned(path: Path) -> None:
    done = CliRunner().invoke(cli, ["plan", str(path), "--format", "json", "--show", "2", "--requests", "5"])
    assert done.exit_code == 0, done.output
    assert all(stage["first"] for stage in json.loads(done.output)["stages"])
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=loadgen.schema.json\n")


_SHORT = {
    "trace": ["--trace-speed", "100"],
    "trace-azure": ["--trace-speed", "100"],
    "trace-mooncake": ["--trace-speed", "100"],
    "correlated": ["--concurrency", "4"],
    "limits": ["--concurrency", "1,2", "--output-tokens", "10"],
    "several-endpoints": ["--rate", "50"],
    "prefix-groups": ["--output-tokens", "10"],
    "sweep": ["-w", "chat", "--concurrency", "1,2"],
    "mix": ["--rate", "50"],
    "pairs": ["--rate", "50"],
    "search": ["--rate", "50..60", "--slo", "p50(ttft) < 10s", "--precision", "50"],
    "stop-rules": ["--concurrency", "1,2", "--cooldown", "0s"],
    "release-gate": ["--rate", "50", "--slo", "error_rate < 50%"],
}


@pytest.mark.parametrize(
    "path", [path for path in _SPECS if "https://" not in path.read_text(encoding="utf-8")], ids=lambda path: path.stem
)
def test_every_example_runs(endpoint: str, tmp_path: Path, path: Path) -> None:
    """Against the embedded endpoint, cut to a few requests; conversations without their pauses."""
    for file in (file for file in EXAMPLES.iterdir() if file.is_file()):
        text = file.read_text(encoding="utf-8").replace("http://127.0.0.1:8000/v1", endpoint)
        text = text.replace("http://127.0.0.1:8001/v1", endpoint.replace("127.0.0.1", "localhost"))
        text = text.replace("lognormal:5000±4000", "10").replace("lognormal:800±1500,10..20000", "10")
        (tmp_path / file.name).write_text(text, encoding="utf-8")
    flags = ["--requests", "6", "--warmup", "1", "--no-report", "-o", str(tmp_path / "run"), *_SHORT.get(path.stem, [])]
    command = "search" if is_search(str(tmp_path / path.name)) else "run"
    done = CliRunner().invoke(cli, [command, str(tmp_path / path.name), *flags])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    info, requests = open_run(tmp_path / "run")
    assert info.status == "complete"
    assert (requests.outcome == 0).sum() == len(requests) >= 6 * len(info.stages)
