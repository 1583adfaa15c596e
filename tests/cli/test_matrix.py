"""`loadgen matrix`: from the file to the report, through a server that does not start, a kill and a resume."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.cli import cli
from loadgen.cli.matrix_spec import matrix_model, public_words, read_matrix_spec
from loadgen.cli.matrix_visit import Visiting, new_record
from loadgen.cli.spec import spec_model
from loadgen.errors import EndpointError, UsageError
from loadgen.store.matrixfile import read_matrix, write_matrix
from loadgen.store.runfile import open_run
from tests import synthetic
from tests.cli.test_run import LOADGEN

EXAMPLES = Path(__file__).parents[2] / "examples"
# The example, cut to seconds: fewer and shorter requests, and its third setting asks for more than there is.
_CUTS = {
    "[loadgen, simulate,": f"[{sys.executable}, -m, loadgen, simulate,",
    "command: loadgen simulate": f"command: exec {sys.executable} -m loadgen simulate",
    "--gpus, 2,": "--gpus, 2, --max-model-len, none,",
    "workload: [chat, story]": 'workload: chat\nmetrics: "off"',
    "concurrency: [1, 4, 16]": "concurrency: [1, 4]",
    "requests: 32": "requests: 6",
    "output_tokens: 40": "output_tokens: 5\nprompt_tokens: 50\nwarmup: 1",
    "ttft < 1s and tpot < 20ms": "ttft < 60s and tpot < 60s",
}


def _example() -> str:
    text = (EXAMPLES / "matrix.yaml").read_text(encoding="utf-8")
    for found, instead in _CUTS.items():
        assert found in text
        text = text.replace(found, instead)
    return text


SPEC = _example()


def _spec(folder: Path, text: str = SPEC) -> Path:
    path = folder / "m.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _states(folder: Path) -> dict[str, str]:
    return {visit.name: visit.state for visit in read_matrix(folder).visits}


def _rows(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """(stage, request) of every row of every run."""
    found = {}
    for path in sorted((folder / "runs").iterdir()):
        _, requests = open_run(path)
        found[path.name] = list(zip(requests.stage.tolist(), requests.request_id.tolist(), strict=True))
    return found


def test_a_matrix_goes_on_after_a_kill_and_past_a_server_that_does_not_start(tmp_path: Path) -> None:
    spec, folder = _spec(tmp_path), tmp_path / "M"
    words = [*LOADGEN, "matrix", str(spec)]
    child = subprocess.Popen([*words, "-o", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    made = 0
    for line in child.stderr:  # killed in the second run, once it is being measured
        made += "requests, about" in line
        if made == 2:
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stderr.close()
    states = _states(folder)
    cut = next(name for name, state in states.items() if state == "running")
    assert sum(state == "done" for state in states.values()) == 1
    before = _rows(folder)

    done = subprocess.run([*words, "--resume", str(folder)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 3), done.stderr  # 3: a busy machine, whose measurements are INVALID
    states = _states(folder)
    assert {state for name, state in states.items() if "tp2" not in name} == {"done"}
    assert {state for name, state in states.items() if "tp2" in name} == {"failed"}
    after = _rows(folder)
    assert all(rows == after[name] for name, rows in before.items() if name != cut)  # what was done is not done again
    assert set(before.get(cut, [])) <= set(after[cut])  # and of what was cut nothing is lost
    assert (
        "tp2 could not be measured in any of 2 rounds: the server ended with exit code 2; its last lines" in done.stdout
    )
    assert "'none' is not a valid integer" in done.stdout
    assert ("serves most while it keeps the SLO" in done.stdout) == (done.returncode == 0)
    for name in ("matrix.html", "summary.md", "runs/r1-tp1/report.html"):
        assert (folder / name).stat().st_size > 500
    info, _ = open_run(folder / "runs/r1-tp1")
    again, _ = open_run(folder / "runs/r2-tp1")
    other, _ = open_run(folder / "runs/r1-tp1-small-batch")
    assert info.seed == other.seed != again.seed  # the same requests for all settings of a round
    assert info.notes["matrix_setting"] == "tp1"
    assert "simulate --gpu h100-sxm" in info.endpoint["provenance"]["given"]["engine_flags"]

    changed = _spec(tmp_path, SPEC.replace("[1, 4]", "[1, 2]"))
    assert "made with another spec: stages differ" in str(_invoke(str(changed), "--resume", str(folder)).exception)
    assert "holds a matrix already" in str(_invoke(str(spec), "-o", str(folder)).exception)
    found = json.loads(CliRunner().invoke(cli, ["report", str(folder), "--format", "json"]).output)
    cells = {(cell["setting"], cell["cell"]): cell for cell in found["cells"]}
    assert set(cells) == {(name, f"chat@{load}") for name in ("tp1", "tp1-small-batch") for load in (1, 4)}
    assert all(cell["repeats"] == 2 and cell["slo"] for cell in cells.values())
    assert cells["tp1", "chat@4"]["cost"]["per_million"]["value"] > 0


def test_ctrl_c_stops_the_server_and_reports_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "M"
    quiet = f"""
settings:
  - {{name: slow, port: 9, command: "echo $$; exec {sys.executable} -c 'import time; time.sleep(99)'"}}
"""
    words = [*LOADGEN, "matrix", str(_spec(tmp_path, quiet)), "-o", str(folder)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = folder / "logs/r1-slow.log"
    for _ in range(1000):
        if log.exists() and log.read_text().strip():
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130, out
    assert "--resume" in out
    assert not Path(f"/proc/{log.read_text().strip()}").exists()
    assert _states(folder) == {"r1-slow": "interrupted", "r2-slow": "waiting"}


def test_with_no_setting_that_can_be_measured_it_ends_with_4(tmp_path: Path) -> None:
    text = (
        "settings:\n- {name: gone, url: 'http://127.0.0.1:9'}\n- {name: ends, command: 'exit 1 # {port}'}\nrepeats: 1\n"
    )
    done = _invoke(str(_spec(tmp_path, text)), "-o", str(tmp_path / "M"))
    assert isinstance(done.exception, EndpointError)  # exit code 4
    assert "no setting could be measured" in str(done.exception)
    assert "gone could not be measured" in done.output
    assert "ended with exit code 1" in done.output


@pytest.mark.parametrize(
    ("state", "port", "goes_on"),
    [("running", 4000, True), ("interrupted", 4000, True), ("died", 4000, False), ("running", 40001, False)],
)
def test_a_run_goes_on_where_it_can_and_is_kept_where_it_cannot(
    tmp_path: Path, state: Any, port: int, goes_on: bool
) -> None:
    text = 'settings:\n- {name: a, command: "x {port}"}\n'
    matrix = read_matrix_spec(_spec(tmp_path, text))
    record = new_record(matrix, "2026-01-01T00:00:00+00:00", ["loadgen"])
    visit = record.visits[0]
    visit.state, visit.run = state, "runs/r1-a"
    info, rows = synthetic.build((synthetic.StageCase("brief", requests=4),))
    info.endpoint["url"] = "http://127.0.0.1:4000/v1/chat/completions"
    synthetic.write_run(tmp_path / "M" / visit.run, info, rows)
    folder, resumes = Visiting(matrix, tmp_path / "M", record)._run_folder(visit, matrix.settings[0], port)
    assert resumes is goes_on
    assert folder.name == ("r1-a" if goes_on else "r1-a-2")


# -- before anything is started ------------------------------------------------------------------------------------


def _invoke(*words: str) -> Any:
    return CliRunner().invoke(cli, ["matrix", *words])


def test_a_dry_run_says_what_would_be_done_and_starts_nothing(tmp_path: Path) -> None:
    text = SPEC + "price_input: 1\nprice_output: 2\n"
    done = _invoke(str(_spec(tmp_path, text)), "--dry-run", "-o", str(tmp_path / "M"))
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "M").exists()
    for words in ("3 settings x 2 cells x 2 rounds", "chat@1, chat@4", "in all: 72 requests", "hours of the GPUs",
                  "at the vendor's prices", "Nothing was started"):  # fmt: skip
        assert words in done.output
    rounds = [line.partition(": ")[2].split(", ") for line in done.output.splitlines() if line.startswith("round ")]
    assert rounds[0] == rounds[1][::-1]
    unknown = _invoke(str(_spec(tmp_path, SPEC.replace("shape: llama-3.1-8b\n", ""))), "--dry-run")
    assert "time: not known" in unknown.output
    assert "odd number of rounds" in _invoke(str(_spec(tmp_path)), "--dry-run", "--repeats", "3").output


def test_a_resumed_matrix_counts_all_that_was_measured(tmp_path: Path) -> None:
    spec = _spec(tmp_path)
    record = new_record(read_matrix_spec(spec), "2026-01-01T00:00:00+00:00", [])
    for visit in record.visits:
        visit.state = "done"
    write_matrix(tmp_path / "M", record)
    words = (str(spec), "--resume", str(tmp_path / "M"))
    assert "runs of 2 rounds" in str(_invoke(*words, "--repeats", "1").exception)
    assert "its own folder" in str(_invoke(*words, "-o", str(tmp_path / "N")).exception)
    assert read_matrix(tmp_path / "M") == record


def test_every_mistake_is_told_at_once_where_it_stands(tmp_path: Path) -> None:
    path = _spec(
        tmp_path,
        "settings:\n- name: a b\n  command: x\n- {name: b, comand: x}\n- {name: c, url: x, grace: 5s}\n"
        "- {name: d, command: x, patience: soon}\n- {name: e, command: x, concurrency: 4}\n- {name: f, command: x}\n"
        "concurency: 4\nrepeats: 0\nurl: http://x\nslo: p99(tft) < 1s\n",
    )
    with pytest.raises(UsageError) as bad:
        read_matrix_spec(path)
    lines = str(bad.value).splitlines()
    for place, words in (
        ("2:3", "settings.0.name"),
        ("4:13", "did you mean command"),
        ("5:3", "grace without command"),
        ("6:25", "is not a duration"),
        ("7:25", "unknown key settings.4.concurrency"),
        ("8:3", "nobody knows where it listens"),
        ("9:1", "did you mean concurrency"),
        ("10:1", "repeats"),
        ("11:1", "unknown key url - it belongs under settings"),
        ("12:1", "did you mean"),
    ):
        assert any(f"m.yaml:{place}: " in line and words in line for line in lines), (place, words, lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("settings: []\n", "at least 1"),
        ("settings:\n- {name: a, url: x}\n- {name: A, url: y}\n", "a is given twice"),
        ("settings:\n- {name: a}\n", "neither url nor command"),
        ("settings:\n- {name: a, url: x}\nrequests: 5\nduration: 5s\n", "--requests and --duration contradict"),
        ("settings:\n- {name: a, url: x, api_key_env: NO_SUCH_VARIABLE}\n", "setting a"),
        ("concurrency: 4\n", "settings is missing"),
        ("settings:\n- {name: a, url: 'ftp://x'}\n", "setting a: not an http(s) URL"),
    ],
)
def test_what_cannot_be_measured_is_told_before_a_server_starts(tmp_path: Path, text: str, words: str) -> None:
    done = _invoke(str(_spec(tmp_path, text)), "--dry-run")
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)


def test_a_setting_has_its_own_hardware_and_adds_its_own_notes(tmp_path: Path) -> None:
    text = """
settings:
- {name: a, url: x, gpus: 2, gpu: h200-sxm, note: own=1, provenance: {tp_size: 2}, warmup: 9}
- {name: b, command: [serve, 8, --api-key, very-secret], port: 5, env: {KEY: hidden, N: 4}, provenance: engine_flags=x}
- {name: c, command: "serve --token=very-secret --port {port}", url: "http://127.0.0.1:{port}/v2", port: 8123}
gpu: h100-sxm
note: [all=1]
warmup: 1
"""
    matrix = read_matrix_spec(_spec(tmp_path, text))
    a, b, c = matrix.settings
    assert (a.given["gpu"], a.given["gpus"], a.given["warmup"], a.argv) == ("h200-sxm", 2, 9, None)
    assert a.given["note"] == ("all=1", "own=1")
    assert a.given["provenance"] == ("tp_size=2",)
    assert (b.given["gpu"], b.given["gpus"], b.given["warmup"]) == ("h100-sxm", 1, 1)
    assert b.argv_at(5) == ("serve", "8", "--api-key", "very-secret")
    assert b.env_at(5) == {"KEY": "hidden", "N": "4"}
    assert b.given["provenance"] == ("engine_flags=x",)
    assert c.url_at(8123) == "http://127.0.0.1:8123/v2"
    assert c.argv_at(7) == ("/bin/sh", "-c", "serve --token=very-secret --port 7")
    kept = json.dumps([one.record() for one in matrix.settings] + [list(one.given["provenance"]) for one in (b, c)])
    assert "very-secret" not in kept
    assert "hidden" not in kept


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["vllm", "serve", "--api-key", "abc", "-x"], "vllm serve --api-key *** -x"),
        (["vllm", "--hf-token=abc"], "vllm --hf-token=***"),
        (["/bin/sh", "-c", "run --password abc && x"], "run --password *** && x"),
        (["/bin/sh", "-c", "run --max-tokens 5"], "run --max-tokens 5"),
    ],
)
def test_secrets_of_a_command_are_not_shown(words: list[str], shown: str) -> None:
    assert public_words(words) == shown


def test_every_key_of_a_run_is_one_of_a_matrix_but_for_where_it_runs() -> None:
    of_run = set(spec_model().model_fields)
    left_out = {"url", "output", "no_report", "prometheus_port", "precision", "max_probes", "max_requests", "max_time"}
    assert set(matrix_model().model_fields) == of_run - left_out | {"settings", "repeats", "title"}
    assert all(field.description for field in matrix_model().model_fields.values())


def test_the_example_can_be_measured() -> None:
    done = _invoke(str(EXAMPLES / "matrix.yaml"), "--dry-run")
    assert done.exit_code == 0, done.output
    assert "3 settings x 6 cells x 2 rounds" in done.output
