"""Turns what was drawn for a unit into its requests: texts of the right size, shared prefixes, turns.

Knows: how texts, tags, prefixes and token counts come together, and how much of a prompt was sent before. Must not
know: when anything is sent, files, laws.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from loadgen.model import Message, PlannedRequest
from loadgen.plan import prompts
from loadgen.plan.tokens import Calibration, Counted, Sizer
from loadgen.plan.workload import Prefix, Text, TraceRow, Workload

_SEEDS = (1 << 64) - 1
_KEPT_BLOCKS = 4096  # texts of trace blocks and prefixes that a process keeps (2 KB each)
_TRIES = 8  # of growing and shrinking a text whose units do not add up
_TAG_CHARS = 39
TEXT, LENGTHS, ARRIVALS, ORDER, SHARED = range(5)  # what a generator is for


class Drawn(NamedTuple):
    """The cheap facts of a unit."""

    workload: int  # index into the mix
    prompt_tokens: int
    output_tokens: int
    turns: int
    row: TraceRow | None = None


def generator(seed: int, stage: int, purpose: int, number: int = 0) -> np.random.Generator:
    """The generator for one purpose in one stage; `number` is a block or a unit."""
    return np.random.default_rng((seed & _SEEDS, stage & _SEEDS, purpose, number))


class Writer:
    """Makes the requests of a unit. Everything depends on (seed, stage, unit) only, and the tags on the nonce."""

    def __init__(
        self, mix: tuple[tuple[Workload, float], ...], stage: int, seed: int, nonce: str, sizers: Mapping[str, Sizer]
    ) -> None:
        self._mix, self._stage, self._seed = mix, stage, seed
        self._key, self._shared_key = key_of(nonce), key_of(f"{nonce}/{stage}")
        self._sizers = [sizers.get(w.name, Calibration()) for w, _ in mix]
        self._group_key = key_of(f"{seed}/{stage}/group")
        self._shared: OrderedDict[tuple[str, int, int], tuple[str, int]] = OrderedDict()
        self._seen: set[tuple[int, int]] = set()  # (workload, group) and (-1, block) of units so far
        self._orders: dict[tuple[int, int], list[int]] = {}

    def unit(
        self, number: int, drawn: Drawn, first_id: int, due: int | None, repeated: int | None = 0
    ) -> Iterator[PlannedRequest]:
        """The turns of unit `number`, with ids from `first_id` on; only the first is due at a time. `repeated`:
        what `sent_before` said of it."""
        workload, sizer = self._mix[drawn.workload][0], self._sizers[drawn.workload]
        rng = generator(self._seed, self._stage, TEXT, number)
        text = self.text(drawn.workload, number)
        session = f"{self._stage}-{number}" if workload.turns is not None else None
        later = rng.random((drawn.turns, 2)) if drawn.turns > 1 else None
        prompt_tokens, think_ns = drawn.prompt_tokens, 0
        for turn in range(drawn.turns):
            if later is not None and turn and workload.turns is not None:
                prompt_tokens = int(workload.turns.prompt_tokens.at(later[turn, :1])[0])
                think_ns = int(workload.turns.think_ms.at(later[turn, 1:])[0]) * 1_000_000
            if text is not None:
                messages, output_tokens = text.turns[turn], text.output_tokens or drawn.output_tokens
                prompt_tokens = 0  # nothing was asked for: the text is what it is
            else:
                output_tokens = drawn.output_tokens
                group = self.group(workload.prefix, number) if workload.prefix is not None and turn == 0 else None
                prompt = self._prompt(workload, drawn, prompt_tokens, first_id + turn, sizer, rng, group)
                messages = (Message("user", prompt),)
            yield PlannedRequest(
                request_id=first_id + turn,
                stage=self._stage,
                workload=workload.name,
                messages=messages,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                offset_ns=due if turn == 0 else None,
                session_id=session,
                turn=turn if session else None,
                think_ns=think_ns,
                repeated_tokens=repeated if turn == 0 else None,
            )

    def group(self, prefix: Prefix, number: int) -> int:
        """Which group unit `number` belongs to: any of them, equally likely."""
        return int.from_bytes(prompts.tag(self._group_key, number)) % prefix.groups

    def sent_before(self, number: int, drawn: Drawn) -> int | None:
        """How many tokens at the start of unit `number` an earlier unit of the stage had, too; None: not known (texts
        of one's own). To be asked once for every unit, in order."""
        workload = self._mix[drawn.workload][0]
        if workload.texts is not None:
            return None
        if drawn.row is not None:
            full = [(-1, block) for block in drawn.row.blocks[: drawn.prompt_tokens // drawn.row.block_tokens]]
            known = next((i for i, block in enumerate(full) if block not in self._seen), len(full))
            self._seen.update(full[known:])
            return known * drawn.row.block_tokens
        if workload.prefix is None:
            return 0
        mine = (drawn.workload, self.group(workload.prefix, number))
        if mine in self._seen:
            return min(workload.prefix.tokens, drawn.prompt_tokens)
        self._seen.add(mine)
        return 0

    def text(self, index: int, number: int) -> Text | None:
        """Which text of its own a unit sends: all are used once, in an order of the seed's, before any comes again."""
        texts = self._mix[index][0].texts
        if texts is None:
            return None
        loaded = texts.load()
        lap, place = divmod(number, len(loaded))
        if (index, lap) not in self._orders:
            order = generator(self._seed, self._stage, ORDER, lap).permutation(len(loaded))
            self._orders = {(index, lap): order.tolist()} | dict(list(self._orders.items())[-8:])
        return loaded[self._orders[index, lap][place]]

    # -- generated texts --------------------------------------------------------------------------------------------

    def _prompt(
        self,
        workload: Workload,
        drawn: Drawn,
        tokens: int,
        request_id: int,
        sizer: Sizer,
        rng: np.random.Generator,
        group: int | None,
    ) -> str:
        """The text of one turn, `tokens` server tokens with its template; a group's begins with its prefix."""
        if drawn.row is not None and drawn.row.blocks:
            return self._chained(workload.kind, drawn.row, sizer)
        shared, has = "", 0
        if workload.prefix is not None and group is not None:
            size = sizer.share(min(workload.prefix.tokens, tokens))
            shared, has = self._shared_text(workload.kind, group, size, sizer)
        label, wanted = prompts.tag(self._key, request_id), sizer.budget(tokens)
        text = shared + prompts.section(workload.kind, wanted - has, label, rng, sizer.sizes(workload.kind))[0]
        check = sizer.check if isinstance(sizer, Counted) else None
        return text if check is None else _checked(text, wanted, len(shared) + _TAG_CHARS, check)

    def _chained(self, kind: str, row: TraceRow, sizer: Sizer) -> str:
        """A prompt of blocks: equal ids give equal texts, others differ from their first word on. The last block,
        which is seldom full, begins like the full one."""
        rest = sizer.budget(row.prompt_tokens - (len(row.blocks) - 1) * row.block_tokens)
        sizes = [sizer.share(row.block_tokens)] * (len(row.blocks) - 1) + [rest]
        texts = [self._shared_text(kind, *pair, sizer)[0] for pair in zip(row.blocks, sizes, strict=True)]
        return "".join(texts)

    def _shared_text(self, kind: str, number: int, size: int, sizer: Sizer) -> tuple[str, int]:
        """A section that depends on the run, the stage, `number` and its size only; and the size that it has."""
        key = (kind, number, size)
        if (known := self._shared.get(key)) is None:
            rng = generator(self._seed, self._stage, SHARED, number)
            label = prompts.tag(self._shared_key, number)
            known = self._shared[key] = prompts.section(kind, size, label, rng, sizer.sizes(kind), whole=False)
            if len(self._shared) > _KEPT_BLOCKS:
                self._shared.popitem(last=False)
        return known


def _checked(text: str, wanted: int, least: int, check: Callable[[str], int]) -> str:
    """The text, its end grown or shrunk word by word until it has `wanted` tokens by `check`, or what comes closest;
    its first `least` characters stay."""
    best, miss = text, None
    for _ in range(_TRIES):
        off = wanted - check(text)
        if miss is None or abs(off) < miss:
            best, miss = text, abs(off)
        if off == 0:
            break
        body = text.rstrip("\n") + " a" * max(off, 0)
        for _ in range(-off):
            if (end := body.rfind(" ")) < least:
                break
            body = body[:end]
        text = body + "\n"
    return best


def key_of(nonce: str) -> int:
    """64 bits of a nonce (FNV-1a; Fowler, Noll, Vo)."""
    key = 0xCBF29CE484222325
    for byte in nonce.encode():
        key = ((key ^ byte) * 0x100000001B3) & _SEEDS
    return key
