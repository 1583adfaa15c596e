"""The starting-error script on a few published cells, so that it cannot rot: right order of size, odd rows explained.

Cells: ai-dynamo/aiconfigurator (Apache-2.0), H100 SXM, client-side means.
"""

from __future__ import annotations

import io

import pandas as pd
import pytest

from tests.benchmarks.published import errors

HEAD = "source,gpu,n_gpu,model,dtype,engine,isl,osl,concurrency_or_batch,metric,value,unit\n"
CELLS = """aic_silicon,H100-SXM,1,Qwen/Qwen3-32B,fp8,trtllm-1.0.0rc3,1024,128,8,tpot_mean,18.652,ms
aic_silicon,H100-SXM,1,Qwen/Qwen3-32B,fp8,trtllm-1.0.0rc3,1024,128,8,ttft_mean,271.98,ms
aic_silicon,H100-SXM,1,Qwen/Qwen3-32B,fp8,trtllm-1.0.0rc3,1024,128,16,tpot_mean,24.248,ms
aic_silicon,H100-SXM,1,Qwen/Qwen3-32B,fp8,trtllm-1.0.0rc3,1024,128,16,ttft_mean,308.65,ms
"""


def test_literature_constants_are_in_the_right_range() -> None:
    ((key, cells, found),) = errors(pd.read_csv(io.StringIO(HEAD + CELLS), keep_default_na=False))
    assert (key[3], cells) == ("Qwen/Qwen3-32B", 2)
    assert isinstance(found, dict)
    assert found["ttft"] < 1.5
    assert found["itl"] < 0.4
    wrong = CELLS.replace("18.652", "1.8652").replace("24.248", "2.4248")  # a measurement faster than the hardware
    ((_, _, found),) = errors(pd.read_csv(io.StringIO(HEAD + wrong), keep_default_na=False))
    assert isinstance(found, dict)
    assert found["itl"] > 4


@pytest.mark.parametrize(("old", "new", "why"), [("Qwen3-32B", "Qwen9-1B", "unknown shape"), ("H100-SXM", "T4", "GB")])
def test_a_row_that_cannot_be_simulated_says_why(old: str, new: str, why: str) -> None:
    ((_, _, found),) = errors(pd.read_csv(io.StringIO(HEAD + CELLS.replace(old, new)), keep_default_na=False))
    assert isinstance(found, str)
    assert why in found
