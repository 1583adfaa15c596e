"""What limits each workload, in a sentence, and what to try next.

Knows: the rules from a stage's phases and its points under the roof to a sentence, and the table of advice. Must not
know: how a figure is computed, HTML, Markdown.
Why: people who are handed a report read one sentence. It must follow from the figures beside it, name its evidence, and
say nothing where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.analysis.numbers import percent, quantity, times
from loadgen.report.placement import PASS, Placement
from loadgen.report.stages import Placed, WorkloadGroup
from loadgen.roofline.explain import PhasePoint

FAR = 0.25  # of the roof; under it, something other than the GPU takes most of a pass
BEATS = 1.05  # of the roof; over it, a named fact is wrong
GROWS = 0.15  # of the whole time, that load must add before it is worth a word
BUSY = 0.6  # of the time in prefill, by the unloaded TTFT; over it, prefills queue up behind each other
NOTABLE = 0.25  # of the time in prefill; over it, decode steps wait for prefills noticeably

# (phase, what bounds it) -> what helps
ADVICE: dict[tuple[str, str], str] = {
    ("prefill", "compute"): "compute fewer prompt tokens (shorter prompts, prefix caching), compute them in 8 bits, or "
    "add FLOP/s (a faster GPU, tensor parallelism)",
    ("prefill", "memory"): "prompts this short cost one reading of the weights: weights in 8 or 4 bits, or several "
    "prompts to a pass",
    ("decode", "memory"): "read fewer bytes per step (weights or KV cache in 8 or 4 bits, shorter contexts) or add "
    "bandwidth; more users at once raise the whole server's rate and cost each of them little",
    ("decode", "compute"): "the batch is past the ridge: fewer users per GPU, computing in fewer bits, or more FLOP/s",
    ("waiting", "prefill"): "less load per replica, more replicas, or cheaper prompts (prefix caching, 8-bit compute)",
    ("waiting", ""): "less load per replica or more replicas; raise the engine's limits on sequences or KV cache if "
    "one of them is reached",
    (
        "slowed",
        "prefill",
    ): "less load per replica, more replicas, cheaper prompts (prefix caching, 8-bit compute), smaller "
    "prefill chunks, or prefill on GPUs of its own",
    (
        "slowed",
        "",
    ): "less load per replica or more replicas; look at the engine's batch limit and at what shares its GPU",
    ("client", ""): "raise the cap on requests in flight or the number of workers, or lower the rate",
    ("far", ""): "look for launch overhead, the scheduler, the network or a busy CPU before buying a faster GPU",
    (
        "beats",
        "",
    ): "check --gpu, --gpus, --shape and --dtype; look for cached prompts or several tokens to an event",
    ("unknown", ""): PASS,
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`limit` in two or three words, `sentence` with its evidence, `advice` for the next step."""

    workload: str
    limit: str
    sentence: str
    advice: str


def diagnose(group: WorkloadGroup, placed: Placement) -> Diagnosis:
    """What limits a workload at the highest load that was measured."""
    stages = [stage for stage in group.measured if stage.phases is not None]
    if not stages:
        text = "no request was answered" if not group.measured else "no answer came as a stream"
        return Diagnosis(group.name, "nothing measured", f"{text.capitalize()}, so no phase can be named.", "")
    alone, loaded = stages[0], stages[-1]
    phases = loaded.phases
    assert phases is not None
    parts = {
        "client": phases.before,
        "waiting": phases.waiting,
        "prefill": phases.ttft,
        "decode": phases.decode + phases.slowed,
    }
    phase = max(parts, key=parts.__getitem__)
    share = parts[phase] / phases.total if phases.total > 0 else 0.0
    if phase == "client":
        return _client(group, loaded, share)
    if phase == "waiting":
        return _waiting(group, alone, loaded, share)
    if phase == "decode" and phases.slowed > phases.decode:
        return _slowed(group, alone, loaded, share, placed.point(loaded, "decode"))
    # Prefill is judged where nothing waits, decode where the batch is: at the lowest and at the highest load.
    return _pass(group, loaded, phase, placed.point(alone if phase == "prefill" else loaded, phase))


def overall(diagnoses: Sequence[Diagnosis]) -> str:
    """One sentence for the run: `decode (memory-bound) limits chat and story, waiting for prefill limits summarize`."""
    by_limit: dict[str, list[str]] = {}
    for one in diagnoses:
        by_limit.setdefault(one.limit, []).append(one.workload)
    told = [
        f"{limit} for {_listed(names)}" if limit == "nothing measured" else f"{limit} limits {_listed(names)}"
        for limit, names in by_limit.items()
    ]
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}." if text else "Nothing was measured."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _client(group: WorkloadGroup, loaded: Placed, share: float) -> Diagnosis:
    text = (
        f"At {loaded.label} {percent(share)} of the time passes before a request is even sent: it waits for a free "
        "slot in this client, not for the server."
    )
    return Diagnosis(group.name, "waiting to be sent", text, ADVICE["client", ""])


def _waiting(group: WorkloadGroup, alone: Placed, loaded: Placed, share: float) -> Diagnosis:
    """TTFT that load added is the largest part: what do requests wait for?"""
    before, now = alone.value("ttft", "mean"), loaded.value("ttft", "mean")
    assert before is not None
    assert now is not None
    text = (
        f"At {loaded.label} {percent(share)} of the time is waiting that load adds: mean TTFT is "
        f"{quantity(now, 's')}, {times(now / before)} that at {alone.label}."
    )
    busy, evidence = _prefill_busy(alone, loaded)
    if busy < BUSY:
        return Diagnosis(group.name, "waiting in the server", text, ADVICE["waiting", ""])
    return Diagnosis(
        group.name,
        "waiting for prefill",
        f"{text} {evidence}: prefills queue behind each other.",
        ADVICE["waiting", "prefill"],
    )


def _slowed(group: WorkloadGroup, alone: Placed, loaded: Placed, share: float, point: PhasePoint | None) -> Diagnosis:
    """Decode is the largest part, and most of it load has added."""
    before, now = alone.value("tpot", "mean"), loaded.value("tpot", "mean")
    text = f"At {loaded.label} decode takes {percent(share)} of the time"
    if before and now:
        text += f": mean TPOT is {quantity(now, 's')}, {times(now / before)} that at {alone.label}"
    text += "."
    if point is not None:
        text += f" That is {percent(point.share_of_roof)} of its {point.bound} roof."
    busy, evidence = _prefill_busy(alone, loaded)
    if busy < NOTABLE:
        return Diagnosis(group.name, "decode (slowed by load)", text, ADVICE["slowed", ""])
    limit = "prefill of other requests" if busy >= BUSY else "decode (slowed by load)"
    text += f" {evidence}: decode steps wait for other requests' prefills."
    return Diagnosis(group.name, limit, text, ADVICE["slowed", "prefill"])


def _prefill_busy(alone: Placed, loaded: Placed) -> tuple[float, str]:
    """The share of the time that prefill alone would keep the server busy, and the same in words."""
    rate, each = loaded.value("requests_per_s", "rate"), alone.value("ttft", "mean")
    busy = min((rate or 0.0) * (each or 0.0), 1.0)
    told = (
        f"{quantity(rate, 'requests/s')} with {quantity(each, 's')} of prefill each would by themselves keep the "
        f"server busy {percent(busy)} of the time"
    )
    return busy, told


def _pass(group: WorkloadGroup, loaded: Placed, phase: str, point: PhasePoint | None) -> Diagnosis:
    """A phase of the model itself is the largest part."""
    p = loaded.phases
    assert p is not None
    total = p.total or 1.0
    prefill, decode = (f"{percent(x / total)} of the time" for x in (p.ttft, p.decode + p.slowed))
    told = f"prefill takes {prefill}, decode {decode}" if phase == "prefill" else f"decode takes {decode}"
    text = f"At {loaded.label} {told}"
    text += f", {percent(p.slowed / total)} because load slows it down." if p.slowed > GROWS * total else "."
    if point is None:
        return Diagnosis(group.name, phase, text, ADVICE["unknown", ""])
    where = f"{quantity(point.intensity, 'FLOP/byte')} against a ridge of {quantity(point.ridge, 'FLOP/byte')}"
    roof = percent(point.share_of_roof)
    if point.share_of_roof > BEATS:
        text += f" {phase.capitalize()} runs at {roof} of its roof ({where}), faster than the named hardware can."
        return Diagnosis(group.name, f"{phase} (hardware misnamed)", text, ADVICE["beats", ""])
    text += f" {phase.capitalize()} is {point.bound}-bound ({where}) and reaches {roof} of that roof"
    if point.share_of_roof < FAR:
        text += ", so that overheads, not the GPU, take most of it."
        return Diagnosis(group.name, f"{phase} (overheads)", text, ADVICE["far", ""])
    return Diagnosis(group.name, f"{phase} ({point.bound}-bound)", f"{text}.", ADVICE[phase, point.bound])
