"""A deployment as files and flags name it: words beside each row, and what flags say over them.

Knows: how names become a `Deployment`, when two sayings contradict each other, and the label that keeps deployments of
one file apart. Must not know: files, columns, flags' spelling.
Why: a table of many deployments, a run's own notes and another tool's result file name GPU, model and data type in the
same loose way, and flags choose among them (where a file says it) or complete them (where it does not).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.catalog import Gpu
from loadgen.roofline.passes import Deployment
from loadgen.roofline.precision import dtypes
from loadgen.roofline.shapes import ModelShape

# What files write where they say nothing.
SILENT = frozenset(["", "-", "--", "n/a", "na", "nan", "none", "null", "unknown", "?", "auto"])
# How a GPU was run, behind its name.
_CONDITION = re.compile(r"[-_ ]+(?:power[-_ ]?capped|power[-_ ]?cap|(?P<watts>\d+) ?w)$", re.IGNORECASE)
# Under a power cap clocks fall: by its cube root where all power is dynamic, in proportion where voltage is at its
# least. The exponent is between the two. Memory keeps its own clock, so bandwidth stays.
CLOCK = 2 / 3
UNTOLD_CAP = 0.7  # of its power, for a GPU that is capped by nobody says how much


@dataclass(frozen=True, slots=True)
class Words:
    """What a file says beside its numbers, in its own words; "" where it says nothing."""

    gpu: str = ""
    gpus: int | None = None
    shape: str = ""
    dtype: str = ""
    weights: str = ""
    compute: str = ""
    kv: str = ""
    engine: str = ""

    @property
    def label(self) -> str:
        """The deployment in the file's own words: "2 x H100-SXM, Llama-3.3-70B, fp8, vllm-0.11"."""
        card = self.gpu if self.gpus is None or not self.gpu else f"{self.gpus} x {self.gpu}"
        types = [f"{name} {text}" for name in ("weights", "compute", "kv") if (text := getattr(self, name))]
        return ", ".join(part for part in (card, self.shape, self.dtype, *types, self.engine) if part)


@dataclass(frozen=True, slots=True)
class Known:
    """What the user says of the deployment, whatever a file says; None and "" where he says nothing."""

    gpu: Gpu | None = None
    gpus: int | None = None
    shape: ModelShape | None = None
    dtype: str = ""
    weights: str = ""
    compute: str = ""
    kv: str = ""


NOTHING = Known()


def said(text: str) -> str:
    """The text, or "" where it is one of the ways to say nothing."""
    plain = text.strip()
    return "" if plain.lower() in SILENT else plain


def find_gpu(name: str) -> Gpu:
    """As `catalog.gpu`, and "H100-SXM-powercap" or "A100-SXM-80 300W" are that card with lower clocks, another GPU.

    Raises:
        UsageError: no such GPU.
    """
    try:
        return catalog.gpu(name)
    except UsageError:
        if (found := _CONDITION.search(name.strip())) is None:
            raise
        return _capped(catalog.gpu(name.strip()[: found.start()]), found["watts"])


def _capped(card: Gpu, watts: str | None) -> Gpu:
    """The card under a power cap; one at or above its own power changes nothing."""
    share = UNTOLD_CAP if watts is None else min(1.0, float(watts) / card.tdp_w) if card.tdp_w else 1.0
    if share == 1.0 and watts is not None:
        return card
    cap = f"{watts}W" if watts else "powercap"
    told = "" if watts else f"; the cap is not told: {UNTOLD_CAP:.0%} of its power assumed, name it: {card.name} 500W"
    note = f"power-capped: compute at (cap / power)^{CLOCK:.2g} of its peak, bandwidth as it is{told}"
    slower = _clocked(card, share**CLOCK)
    return replace(slower, name=f"{card.name} {cap}", tdp_w=card.tdp_w and share * card.tdp_w, note=note)


def clock_ends(gpu: Gpu) -> tuple[Gpu, ...]:
    """How slow and how fast a power-capped GPU may compute; none for any other. An untold cap may be half, or nothing.

    Raises:
        UsageError: never for a GPU that `find_gpu` found.
    """
    found = _CONDITION.search(gpu.name)
    if found is None:
        return ()
    card = catalog.gpu(gpu.name[: found.start()])
    share = gpu.tdp_w / card.tdp_w if gpu.tdp_w and card.tdp_w else 1.0
    factors = (share ** (1 - CLOCK), share ** (CLOCK - 1))
    if found["watts"] is None:
        factors = ((0.5 / UNTOLD_CAP) ** CLOCK, UNTOLD_CAP**-CLOCK)
    return tuple(_clocked(gpu, factor) for factor in factors)


def is_untold(gpu: Gpu, told: Gpu) -> bool:
    """Whether `gpu` is the card of `told` under a cap of which nobody says how much, which `told` does."""
    found = _CONDITION.search(told.name)
    return found is not None and gpu.name == f"{told.name[: found.start()]} powercap"


def _clocked(gpu: Gpu, factor: float) -> Gpu:
    """The same GPU with every rate of computing times `factor`."""
    fields = ("bf16_flop_per_s", "fp8_flop_per_s", "fp4_flop_per_s", "int8_flop_per_s")
    return replace(gpu, **{field: rate * factor for field in fields if (rate := getattr(gpu, field)) is not None})


def chosen(words: Words, known: Known) -> bool:
    """Whether the words may mean the deployment that the user named. A custom GPU may be anything."""
    if known.gpus is not None and words.gpus is not None and known.gpus != words.gpus:
        return False
    if (
        known.gpu is not None
        and not known.gpu.name.startswith("custom")
        and words.gpu
        and not _is(find_gpu, words.gpu, known.gpu)
    ):
        return False
    if known.shape is not None and words.shape and not _is(catalog.shape, words.shape, known.shape):
        return False
    return not (known.dtype and words.dtype) or dtypes(known.dtype) == dtypes(_preset(words.dtype, words.shape))


def deployment(words: Words, known: Known = NOTHING) -> Deployment | None:
    """What the words and the user say together; None where GPU or model stays unknown.

    Raises:
        UsageError: a GPU, model or data type that the catalogue does not know.
    """
    gpu = known.gpu or (find_gpu(words.gpu) if words.gpu else None)
    shape = known.shape or (catalog.shape(words.shape) if words.shape else None)
    dtype = words.dtype or known.dtype or "bf16"
    name = shape.name if shape is not None else words.shape
    kinds = {kind: getattr(known, kind) or getattr(words, kind) for kind in ("weights", "compute", "kv")}
    choice = dtypes(_preset(dtype, name), gpu, **kinds)
    if gpu is None or shape is None:
        return None
    return Deployment(gpu, known.gpus or words.gpus or 1, shape, choice)


def describe(where: Deployment | None) -> str:
    """A deployment in the catalogue's words, as a label."""
    if where is None:
        return ""
    types = where.dtypes
    same = types.weights == types.compute
    kinds = types.weights if same else f"weights {types.weights}, compute {types.compute}"
    kv = "" if types.kv == "bf16" else f", KV {types.kv}"
    return f"{where.gpus} x {where.gpu.name}, {where.shape.name}, {kinds}{kv}"


def _is(find: Callable[[str], object], name: str, wanted: object) -> bool:
    try:
        return find(name) == wanted
    except UsageError:
        return False


def _preset(dtype: str, shape: str) -> str:
    """A data type as tables write it: gpt-oss comes in MXFP4, which many call plain fp4."""
    plain = dtype.lower().replace("-", "").replace("_", "")
    return "mxfp4" if plain in ("fp4", "4bit") and "gptoss" in shape.lower().replace("-", "") else dtype
