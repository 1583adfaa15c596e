"""The order in which several things are measured several times: A B B A, drawn by a seed.

Knows: counterbalancing. Must not know: what is measured.
Why: a machine warms up, a neighbour comes, a cache fills. Where A is always measured before B, that drift is a
difference between A and B; where every second round runs backwards, a steady drift adds the same to both.
"""

from __future__ import annotations

import numpy as np


def rounds(things: int, repeats: int, seed: int) -> list[tuple[int, ...]]:
    """For each of `repeats` rounds the order of 0 ... `things` - 1.

    Rounds come in pairs, the second the first one backwards, so that over a pair everybody's mean place is the same;
    each pair draws an order of its own. More repeats of one seed go on where fewer would have ended.
    """
    found: list[tuple[int, ...]] = []
    for pair in range(-(-repeats // 2)):
        order = tuple(int(i) for i in np.random.default_rng([seed, pair]).permutation(things))
        found += [order, order[::-1]]
    return found[:repeats]
