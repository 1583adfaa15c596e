"""`loadgen run --ray` on a real Ray, started here for the run: one schedule, and an actor that is killed.

What needs no Ray (clocks, lost workers, fetched rows) is in tests/engine/test_remote.py, tests/analysis/test_clocks.py.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from loadgen.cli.run import command
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.runfile import open_run
from tests.cli.test_run import LOADGEN, QUICK, rows, run

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: it is large, and no part of the extra `dev`"
)
EXAMPLES = Path(__file__).parents[2] / "examples" / "ray"
KEY = "sk-very-secret"
_PATIENCE_S = 150.0  # Ray takes seconds to start on an idle machine, half a minute on a busy one


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimulatorProcess(simulated(time_scale=4.0)) as simulator:
        yield simulator.url


def actors() -> dict[int, str]:
    """Processes of Ray's actors here, by number."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "cmdline").read_bytes().rstrip(b"\0").decode() if entry.name.isdigit() else ""
        except OSError:
            continue
        if name.startswith("ray::_Actor"):
            found[int(entry.name)] = name
    return found


def has_rows(out: Path, worker: int) -> bool:
    part = out / f"requests.w{worker}.jsonl"
    return part.exists() and part.stat().st_size > 0


@needs_ray
def test_an_actor_that_is_killed_is_a_finding_and_the_schedule_is_that_of_one_process(
    endpoint: str, tmp_path: Path
) -> None:
    """One start of Ray for all of it: it takes seconds."""
    out, before = tmp_path / "r", actors()
    words = ["--rate", "40", "--requests", "300", "--seed", "7"]
    ray = ["--ray", "local", "--workers", "2", "--header", f"Authorization: Bearer {KEY}"]
    line = [*LOADGEN, "run", endpoint, *QUICK, *words, *ray, "-o", str(out)]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and child.poll() is None and not all(has_rows(out, k) for k in (0, 1)):
        time.sleep(0.1)
    hands = actors().keys() - before.keys()
    assert len(hands) == 2, actors()
    os.kill(min(hands), signal.SIGKILL)
    text, err = child.communicate(timeout=_PATIENCE_S)
    assert child.returncode == 0, err
    assert "1 of 2 workers died" in text
    assert "2 workers began within" in text
    info, requests = open_run(out)
    stage, told = info.stages[0], info.host["ray"]
    marked = int(stage.health["requests_lost"])
    assert requests.holds("outcome", "cancelled").sum() == marked
    assert len(rows(out)) + stage.unsent == 300
    assert sorted(one["lost"] for one in told["workers"]) == [False, True]
    for one in told["workers"]:  # both clocks are this machine's: what is measured is the error itself
        assert abs(one["offset_ns"]) <= one["error_ns"]
    assert all(has_rows(out, k) for k in (0, 1))

    # The schedule does not know how many workers follow it.
    alone = run("run", endpoint, *QUICK, *words, "-o", str(tmp_path / "one"))
    assert alone.returncode == 0, alone.stderr
    due = {row["id"]: row["ts"] for row in rows(tmp_path / "one")}
    first, start = open_run(tmp_path / "one")[0].stages[0].start_ns, stage.start_ns
    assert first is not None
    assert start is not None
    for row in rows(out):
        assert abs((row["ts"] - start / 1000) - (due[row["id"]] - first / 1000)) <= 1 + 2 * max(
            one["error_ns"] / 1000 for one in told["workers"]
        )
    assert KEY not in text + err
    assert not any(KEY in file.read_text(encoding="utf-8") for file in out.iterdir())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:9", "no Ray cluster answers"),
        ("nowhere", "is no address of a cluster"),
        ("ray://127.0.0.1:10001", "is a proxy"),
    ],
)
@needs_ray
def test_a_cluster_that_cannot_be_used_is_one_line(endpoint: str, tmp_path: Path, address: str, said: str) -> None:
    done = run("run", endpoint, "--ray", address, "--workers", "2", "-o", str(tmp_path / "r"))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_without_ray_one_line_says_what_to_install(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run("run", endpoint, "--ray", "auto", "-o", str(tmp_path / "r"), env={"PYTHONPATH": path})
    assert done.returncode == 2
    assert done.stderr == "loadgen: --ray: needs Ray, which is not installed - pip install 'loadgen[ray]'\n"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_manifests_ask_for_what_there_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = YAML(typ="safe").load(text)
    assert "loadgen[ray]" in text
    comment = " ".join(line.strip("# \\") for line in text.splitlines() if line.startswith("#"))
    line = found["spec"]["entrypoint"] if "spec" in found else comment.partition("exec ray-cluster.yaml '")[2]
    words = shlex.split(line.partition("'")[0])
    assert words[:2] == ["loadgen", "run"]
    given = command.make_context("run", words[2:]).params
    assert given["ray"] == "auto"
    groups = found["spec"]["rayClusterSpec"]["workerGroupSpecs"] if "spec" in found else []
    room = sum(group["replicas"] * int(group["rayStartParams"]["num-cpus"]) for group in groups)
    room += sum(
        kind.get("max_workers", 0) * kind["resources"]["CPU"] for kind in found.get("available_node_types", {}).values()
    )
    assert int(given["workers"]) <= room
