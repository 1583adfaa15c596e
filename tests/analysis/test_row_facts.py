"""Rows folded some at a time give what folding each row by itself gives."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.analysis import gaps
from loadgen.analysis.measured import row_facts
from tests import synthetic


@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("name", ["failures", "grouped", "all_failed", "empty", "one"])
def test_sums_do_not_depend_on_the_size_of_a_piece(monkeypatch: pytest.MonkeyPatch, name: str, chunk: int) -> None:
    _, requests = synthetic.run(name)
    monkeypatch.setattr(gaps, "CHUNK_EVENTS", chunk)
    facts = row_facts(requests)
    for i in range(len(requests)):
        low, high = requests.event_offset[i], requests.event_offset[i + 1]
        if high > low:
            assert facts.last_us[i] == requests.gap_us[low:high].sum()
            assert facts.tokens[i] == requests.tokens_of(i).sum()
        else:
            assert np.isnan(facts.last_us[i])
            assert facts.tokens[i] == 0
