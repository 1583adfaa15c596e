"""What holds for all tests: what has been compiled is kept, and the heap of a test process is not searched for nothing.

Knows: Python's own caches and collector. Must not know: any test.
Why: both are a third of the suite's processor time, and no part of what is tested.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

# Containers like to forbid it; then each of a hundred child processes compiles all of loadgen again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# What the tests of the simulator, the fit and the plan of a capacity call; compiling it takes some ten seconds.
_COMPILE = """
from loadgen.roofline.cells import Cell
from loadgen.roofline.fit_trace import load_of, stack, trace
from loadgen.roofline.passes import StepLaw
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_fast import simulate_closed

engine = EngineConfig(StepLaw(step_s=1.0))
found = stack([trace(engine, load_of(Cell(1, 2, "concurrency", 1, 1.0, 1.0)))], [1.0])
found.times(engine.law), found.slopes(engine.law), simulate_closed(engine, 1, [1], [2])
"""
_compiling = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """Where several workers run the tests, the engine is compiled for all of them once, while they collect."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        config.stash[_compiling] = subprocess.Popen([sys.executable, "-c", _COMPILE])


def pytest_unconfigure(config: pytest.Config) -> None:
    if (child := config.stash.get(_compiling, None)) is not None:
        child.wait()


# How long an example takes says nothing on a machine that is busy. `--hypothesis-profile=thorough` looks further.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", _UNTIMED, max_examples=60)
settings.register_profile("thorough", _UNTIMED, max_examples=2000)
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="session")
def _no_full_collections() -> Iterator[None]:
    """A stage begins with a full collection: a quarter of a second over all that a test process holds."""
    from loadgen.engine import health

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "gc", SimpleNamespace(**{**vars(gc), "collect": lambda: 0}))
        yield
