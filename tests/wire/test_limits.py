"""Numbers that no server can mean must not get into a run."""

from __future__ import annotations

import pytest

from loadgen.wire.dialects import usage_of


@pytest.mark.parametrize("count", [10**30, 10**15, 1e300, float("inf"), -5, True, "12"])
def test_a_count_that_no_request_can_have_is_not_stated(count: object) -> None:
    assert "output" not in usage_of({"prompt_tokens": 7, "completion_tokens": count})
    assert usage_of({"prompt_tokens": 7, "completion_tokens": count})["prompt"] == 7
