"""Turns what was drawn for a unit into its requests: texts of the right size, shared prefixes, turns.

Knows: how texts, tags, prefixes and token counts come together. Must not know: when anything is sent, files, laws.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from loadgen.model import Message, PlannedRequest
from loadgen.plan import prompts
from loadgen.plan.tokens import DEFAULTS, Sizer, fit
from loadgen.plan.workload import Text, TraceRow, Workload

_SEEDS = (1 << 64) - 1
_KEPT_BLOCKS = 4096  # texts of trace blocks and prefixes that a process keeps (2 KB each)
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
        self._sizers = [sizers.get(w.name, DEFAULTS[w.kind]) for w, _ in mix]
        self._shared: OrderedDict[tuple[str, int, int], str] = OrderedDict()
        self._orders: dict[tuple[int, int], list[int]] = {}

    def unit(self, number: int, drawn: Drawn, first_id: int, due: int | None) -> Iterator[PlannedRequest]:
        """The turns of unit `number`, with ids from `first_id` on; only the first is due at a time."""
        workload, sizer = self._mix[drawn.workload][0], self._sizers[drawn.workload]
        rng = generator(self._seed, self._stage, TEXT, number)
        text = self.text(drawn.workload, number)
        session = f"{self._stage}-{number}" if workload.turns is not None else None
        group = int(rng.integers(workload.prefix.groups)) if workload.prefix is not None else 0
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
                prompt = self._prompt(workload, drawn, prompt_tokens, first_id + turn, sizer, rng, group, turn)
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
            )

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
        group: int,
        turn: int,
    ) -> str:
        if drawn.row is not None and drawn.row.blocks:
            return self._chained(workload.kind, drawn.row, sizer)
        shared = ""
        if workload.prefix is not None and turn == 0:
            shared = self._shared_text(workload.kind, group, min(workload.prefix.tokens, tokens), sizer) + "\n\n"
        label, state = prompts.tag(self._key, request_id), rng.bit_generator.state

        def make(chars: int) -> str:
            rng.bit_generator.state = state  # every attempt writes the same text, longer or shorter
            return shared + prompts.write(workload.kind, chars - len(shared), label, rng)

        return fit(make, tokens, sizer)[0]

    def _chained(self, kind: str, row: TraceRow, sizer: Sizer) -> str:
        """A prompt of blocks: equal ids give equal texts, others differ from their first characters on."""
        density = sizer.density
        parts = [self._shared_text(kind, block, row.block_tokens, sizer) for block in row.blocks]
        chars = [len(part) for part in parts]
        rest = row.prompt_tokens - (len(parts) - 1) * row.block_tokens - round(sizer.overhead_tokens)
        chars[-1] = max(16, min(chars[-1], round(rest / density)))  # the last block is seldom full
        return "".join(part[:size] for part, size in zip(parts, chars, strict=True))

    def _shared_text(self, kind: str, number: int, tokens: int, sizer: Sizer) -> str:
        """A text of `tokens` tokens (template not counted) that depends on the run, the stage and `number` only."""
        key = (kind, number, tokens)
        if (known := self._shared.get(key)) is None:
            size = max(1, round(tokens / sizer.density))
            rng = generator(self._seed, self._stage, SHARED, number)
            text = prompts.write(kind, size, prompts.tag(self._shared_key, number), rng)
            known = self._shared[key] = text.ljust(size)[:size]
            if len(self._shared) > _KEPT_BLOCKS:
                self._shared.popitem(last=False)
        return known


def key_of(nonce: str) -> int:
    """64 bits of a nonce (FNV-1a; Fowler, Noll, Vo)."""
    key = 0xCBF29CE484222325
    for byte in nonce.encode():
        key = ((key ^ byte) * 0x100000001B3) & _SEEDS
    return key
