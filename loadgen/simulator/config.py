"""What a simulated endpoint is made of.

Knows: every setting of the simulator with its default and unit. Must not know: how any of them is acted out.
Why: the value goes, pickled, to another process, and is what the command line and the demo fill in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.passes import LITERATURE, Deployment, Efficiency
from loadgen.roofline.precision import BF16
from loadgen.roofline.serving import EngineConfig, engine_config
from loadgen.simulator.faults import Faults

Overload = Literal["429", "503", "200"]  # a status, or vLLM's way: an error inside a stream of status 200
STEP_S = 1e-3  # launch, scheduler and sampler of one step: what measured engines spend beside the GPU's own work
TYPICAL = replace(LITERATURE, step_s=STEP_S)


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """One simulated endpoint. `engine` says what it can do, the rest how it behaves on the wire."""

    engine: EngineConfig
    model: str
    max_model_len: int = 131_072  # tokens, prompt and output together
    seed: int = 0
    time_scale: float = 1.0  # 2: everything takes half as long as on the hardware
    stream_interval: int = 1  # tokens per event after the first
    keep_alive_s: float | None = None  # a comment after this much silence; None: never
    faults: Faults = field(default_factory=Faults)
    max_queue: int | None = None  # requests waiting beyond the batch; None: no limit
    overload: Overload = "503"
    replicas: int = 1  # data-parallel engines behind a router; they decode only where there is a prefill pool
    router: str = "least_loaded"  # a name in fleet.ROUTERS
    prefill_replicas: int = 0  # engines of a prefill pool; 0: every engine does both
    transfer_token_s: float = 0.0  # to move one token's KV from the prefill pool
    eos_rate: float = 0.0  # probability per token that an answer ends by itself, where ignore_eos is not set

    wrong_answers: bool = False  # checkable questions (`plan.guard`) get prose, as from a broken model

    def __post_init__(self) -> None:
        if not self.time_scale > 0:
            raise UsageError("must be above 0", where="--time-scale")
        if not 0 <= self.eos_rate < 1:
            raise UsageError("must be a probability below 1", where="--eos-rate")
        if self.stream_interval < 1 or self.max_model_len < 2:
            raise UsageError("--stream-interval must be at least 1 and --max-model-len at least 2")


def simulated(
    where: Deployment | None = None,
    *,
    efficiency: Efficiency = TYPICAL,
    model: str | None = None,
    knobs: dict[str, object] | None = None,
    **behaviour: object,
) -> SimulatorConfig:
    """The endpoint of a deployment (Llama-3.1-8B in bf16 on one H100 SXM where none is given).

    `knobs` are fields of EngineConfig, `behaviour` fields of SimulatorConfig.

    Raises:
        UsageError: the model does not fit into the GPUs' memory, or a setting is out of range.
    """
    if where is None:
        where = Deployment(catalog.gpu("h100-sxm"), 1, catalog.shape("llama-3.1-8b"), BF16)
    config = engine_config(where, efficiency, **(knobs or {}))
    return SimulatorConfig(engine=config, model=model or where.shape.name, **behaviour)  # type: ignore[arg-type]
