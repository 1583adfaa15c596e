"""What holds for all tests: what has been compiled is kept, and the heap of a test process is not searched for nothing.

Knows: Python's own caches and collector. Must not know: any test.
Why: both are a third of the suite's processor time, and no part of what is tested.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

# Containers like to forbid it; then each of a hundred child processes compiles all of loadgen again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


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
