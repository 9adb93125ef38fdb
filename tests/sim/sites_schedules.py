"""Schedules of sites by their seeds, and as many as anybody waits for: `make soak-schedules`."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import count

from sim.sites_house import Fabric

HOW = ("cuts", "kills", "proxies", "sides")


def schedule(seed: int, names: str, how: str) -> Fabric:
    """One run; a fault of it is told with what runs it again."""
    fabric = Fabric(seed, names, kills=how in ("kills", "sides"), proxies=how == "proxies", publishers=how == "sides")
    try:
        fabric.run()
    except Exception as error:
        error.add_note(f"schedule {seed} of {names}, {how}, kind {fabric.kind}")
        raise
    return fabric


def main() -> None:
    """Schedules without an end, from the seed that the command line says on."""
    counts = Counter[str]()
    for seed in count(int(sys.argv[1])):
        for how in HOW:
            counts += schedule(seed, "abc" if seed % 4 == 0 else "ab", how).counts
        counts["schedules"] += len(HOW)
        if seed % 250 == 249:
            print(f"upto seed {seed}: {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
