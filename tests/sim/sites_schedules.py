"""Schedules of sites by their seeds, and as many as anybody waits for: `make soak-schedules`."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import count

from sim.sites_finding import finding
from sim.sites_house import STEPS, Fabric

HOW = ("cuts", "kills", "proxies", "sides", "deletes", "all")
"""deletes: queues go and come, and sites die; all: operators act for them, too, publishers change sides."""

ROWS = ("row", "row of all")
"""The same of three sites whose ends have no link."""


def schedule(
    seed: int, names: str, how: str, dies_at: int | None = None, made: type[Fabric] = Fabric
) -> Fabric:  # fmt: skip
    """One run; a fault of it is told with what runs it again.  dies_at: some site dies at this step."""
    everything = how.endswith("all")
    fabric = made(
        seed, names,
        kills=everything or how in ("kills", "sides", "deletes", "row"), proxies=everything or how == "proxies",
        publishers=everything or how == "sides", deletes=everything or how in ("deletes", "row"),
        row=how in ROWS, dies_at=dies_at,
    )  # fmt: skip
    fabric.run_named(f"{seed} of {names}, {how}" + ("" if dies_at is None else f", dies at {dies_at}"))
    return fabric


def steps(names: str) -> int:
    """Of one schedule; a site may die at each."""
    return STEPS * len(names)


def main() -> None:
    """Schedules without an end, from the seed that the command line says on."""
    counts = Counter[str]()
    for seed in count(int(sys.argv[1])):
        three = seed % 4 == 0
        for how in (*HOW, *ROWS) if three else HOW:
            counts += schedule(seed, "abc" if three else "ab", how).counts
            counts["schedules"] += 1
        names = "abc" if three else "ab"
        counts += schedule(seed, names, "all", dies_at=seed % steps(names)).counts
        for how in (names, "row") if three else (names,):
            counts += finding(seed, how)
            counts["schedules"] += 1
        counts["schedules"] += 1
        if seed % 250 == 249:
            print(f"upto seed {seed}: {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
