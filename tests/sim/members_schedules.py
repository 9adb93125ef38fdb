"""Schedules of members of a cluster by their seeds, and as many as anybody waits for: `make soak-members`."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import count

from sim import test_cluster_members as elected
from sim import test_manual_members as by_hand

WALKS = ((elected.walk, elected.SHAPES), (elected.chained, elected.SHAPES), (by_hand.walk, by_hand.SHAPES))
TOLD = 100
"""After so many seeds it says how far it is."""


def main() -> int:
    """Schedules without an end, from the seed that the command line says on; 1: one of them does not hold."""
    seen = Counter[str]()
    for seed in count(int(sys.argv[1])):
        for walk, shapes in WALKS:
            for shape in shapes:
                broken, found = walk([seed], shape)
                seen += found
                seen["schedules"] += 1
                if broken is not None:
                    print(f"{walk.__module__}.{walk.__name__}, {shape}, {broken}", flush=True)
                    return 1
        if seed % TOLD == TOLD - 1:
            print(f"upto seed {seed}: {dict(seen)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
