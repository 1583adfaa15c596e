"""The KV cache as the scheduler sees it: a number of blocks, some private, some shared by prefix.

Knows: how many blocks are taken, which prompt prefixes are still there, and which to forget first. Must not know: the
requests, time or bytes.
Why: capacity, queueing, preemption and cache hits all follow from this one account, so it is kept exact and small; a
property test holds that no block is ever lost or counted twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

_UNLIMITED = 2**60


class KvPool:
    """Paged KV memory. A block is free, private to one sequence, or cached under a hash with its number of users."""

    def __init__(self, blocks: int | None) -> None:
        """`blocks`: the capacity, None for no limit."""
        self.blocks = _UNLIMITED if blocks is None else blocks
        self.private = 0
        self._users: dict[Hashable, int] = {}
        self._idle: OrderedDict[Hashable, None] = OrderedDict()  # cached without users, least recently used first

    @property
    def available(self) -> int:
        """Blocks that could be had now, by forgetting idle prefixes if need be."""
        return self.blocks - self.private - len(self._users) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that some sequence holds."""
        return self.blocks - self.available

    @property
    def cached(self) -> int:
        """Blocks kept under a hash, in use or idle."""
        return len(self._users)

    def reserve(self, count: int) -> bool:
        """Take `count` private blocks, forgetting idle prefixes, oldest first; False and no change if short."""
        if count > self.available:
            return False
        while count > self.blocks - self.private - len(self._users):
            forgotten, _ = self._idle.popitem(last=False)
            del self._users[forgotten]
        self.private += count
        return True

    def release(self, count: int) -> None:
        """Give back private blocks."""
        self.private -= count

    def hits(self, hashes: Sequence[Hashable], limit: int) -> int:
        """Leading blocks of `hashes` that are cached, at most `limit`."""
        count = 0
        while count < min(limit, len(hashes)) and hashes[count] in self._users:
            count += 1
        return count

    def acquire(self, hashes: Sequence[Hashable]) -> None:
        """Use these cached blocks."""
        for name in hashes:
            self._users[name] += 1
            self._idle.pop(name, None)

    def drop(self, hashes: Sequence[Hashable]) -> None:
        """Stop using these cached blocks; the last of a prefix is forgotten first."""
        for name in reversed(hashes):
            self._users[name] -= 1
            if self._users[name] == 0:
                self._idle[name] = None

    def publish(self, name: Hashable) -> bool:
        """Turn one private block into a cached one used once; False if the hash is cached already."""
        if name in self._users:
            return False
        self.private -= 1
        self._users[name] = 1
        return True
