"""What tokens and requests cost: against arithmetic by hand."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.analysis.cost import Costs, at_slo, costs, gpus_told
from loadgen.analysis.summary import StageSummary, Summary, summarise, to_json
from loadgen.report.costs import table
from tests import synthetic
from tests.synthetic import StageCase


def _summary(spec: dict[str, Any], slo: tuple[str, ...] = ()) -> Summary:
    info, rows = synthetic.build((StageCase("brief", value=2, requests=40), StageCase("brief", value=8, requests=80)))
    info.spec |= spec
    return summarise(info, synthetic.frame(rows), slo)


def _value(stage: StageSummary, metric: str) -> float:
    found = stage.get(metric, "rate")
    assert found is not None
    assert found.value is not None
    return found.value


def test_hours_of_gpus_are_shared_by_what_the_server_answers() -> None:
    summary = _summary({"roofline": {"gpu": "h100-sxm", "gpus": 4, "price_per_gpu_hour": 2.5}})
    stage = summary.stages[1]
    found = costs(stage, summary.info.spec)
    assert found.per_million is not None
    assert found.per_thousand is not None
    per_s = 4 * 2.5 / 3600
    assert found.per_million.value == pytest.approx(per_s / _value(stage, "output_tokens_per_s") * 1e6)
    assert found.per_thousand.value == pytest.approx(per_s / _value(stage, "requests_per_s") * 1e3)
    assert found.per_million.low is not None
    assert found.per_million.high is not None
    assert found.per_million.low < found.per_million.value < found.per_million.high
    assert found.vendor_per_million is None


def test_a_vendor_is_paid_by_the_token_and_less_for_cached_ones() -> None:
    plain = _summary({"prices": {"input": 3.0, "output": 15.0, "cached": None}})
    stage = plain.stages[0]
    columns = stage.measured.columns
    paid = (columns.prompt_tokens[columns.ok].sum() * 3 + columns.output_tokens[columns.ok].sum() * 15) / 1e6
    found = costs(stage, plain.info.spec)
    assert found.vendor_per_thousand is not None
    assert found.vendor_per_million is not None
    assert found.vendor_per_thousand.value == pytest.approx(paid / columns.ok.sum() * 1e3)
    assert found.vendor_per_million.value == pytest.approx(paid / columns.output_tokens[columns.ok].sum() * 1e6)
    stage.measured.requests.cached_tokens[columns.rows] = 10.0
    cheaper = costs(stage, {"prices": {"input": 3.0, "output": 15.0, "cached": 0.3}}).vendor_per_thousand
    assert cheaper is not None
    assert found.vendor_per_thousand.value - cheaper.value == pytest.approx(10 * (3.0 - 0.3) / 1e6 * 1e3)


@pytest.mark.parametrize(
    ("named", "gpus"),
    [
        (None, None),
        ({"gpus": 1}, None),  # the default of whoever said nothing
        ({"gpus": 2}, 2),
        ({"gpus": 1, "gpu": "h100-sxm"}, 1),
        ({"price_per_gpu_hour": 1.0}, 1),
    ],
)
def test_gpus_are_those_that_somebody_named(named: Any, gpus: int | None) -> None:
    assert gpus_told(named) == gpus


def test_what_nobody_told_is_not_known() -> None:
    summary = _summary({})
    assert costs(summary.stages[0], summary.info.spec) == Costs()
    assert table(summary)["rows"] == []
    assert table(summary)["sentences"] == []


def test_the_cost_that_decides_is_that_of_the_highest_load_that_keeps_the_slo() -> None:
    spec = {"roofline": {"price_per_gpu_hour": 2.5}}
    both, none = _summary(spec, ("p50(ttft) < 60s",)), _summary(spec, ("p50(ttft) < 1us",))
    assert [stage.info.name for stage in at_slo(both).values()] == ["brief@8"]
    assert at_slo(none) == {}
    (text,) = table(both)["sentences"]
    assert text.startswith("brief keeps the SLO up to 8 users: ")
    assert [row["at_slo"] for row in table(both)["rows"]] == [False, True]
    stages = to_json(both)["stages"]
    assert [stage["at_slo"] for stage in stages] == [False, True]
    assert stages[1]["cost"]["per_million"]["value"] > 0
    assert stages[1]["cost"]["energy_per_token_j"] is None
