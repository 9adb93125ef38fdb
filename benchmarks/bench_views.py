"""What a view over a deep queue costs: a message that enters, is leased, returned and acknowledged, at several depths.

    python benchmarks/bench_views.py [--messages 1000000]

The view alone, without a server: bodies of some 100 bytes of JSON come in batches of 1,000 until so many wait; then
churn at that depth, in turns of 100: 100 arrive, the oldest 100 are leased, a tenth of them comes back and is leased
again, all are acknowledged, and the rows that changed are told three times.  100 groups.

fill     CPU a message that enters, reading its body included; resident bytes a message
churn    CPU a message, from its arrival to its acknowledgement: it must not grow with what waits
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence

import orjson
from harness import emit, parse, parser, usage

from penstock.core.view_contributions import AVAILABLE, AWAY, GONE
from penstock.core.view_groups import Elements, View, body_of
from penstock.expr.view_definition import Definition

GROUPS = 100
ENTER = 1000
TURN = 100
TURNS = 1000

SELECTS = {
    "count, sum": "/region, COUNT(/id) AS /n, SUM(/total) AS /total",
    "min, max, last": "/region, MIN(/total) AS /low, MAX(/total) AS /high, /id AS /last",
}
DEEP = 100_000
"""With less in it the size of the process says nothing of the view."""

DEPTHS = (10_000, 100_000, 1_000_000)


def bodies(count: int, first: int, chance: random.Random) -> list[bytes]:
    """Orders, no two alike."""
    return [
        orjson.dumps(
            {
                "id": first + row,
                "region": f"region-{chance.randrange(GROUPS)}",
                "total": round(chance.random() * 1000, 2),
                "note": "leave it with the neighbours",
            }
        )
        for row in range(count)
    ]


def enter(view: View, first: int, some: Sequence[bytes]) -> None:
    """Messages that a queue takes."""
    records = [orjson.loads(body) for body in some]
    view.enter(view.read(Elements(range(first, first + len(some)), records, some)))


def fill(view: View, depth: int, chance: random.Random) -> float:
    """CPU seconds that the view took."""
    spent = 0.0
    for first in range(1, depth + 1, ENTER):
        some = bodies(min(ENTER, depth + 1 - first), first, chance)
        began = time.process_time()
        enter(view, first, some)
        view.flush()
        spent += time.process_time() - began
    return spent


def churn(view: View, depth: int, turns: int, chance: random.Random) -> float:
    """CPU seconds; the depth stays."""
    spent = 0.0
    for turn in range(turns):
        head, tail = 1 + turn * TURN, depth + 1 + turn * TURN
        some = bodies(TURN, tail, chance)
        back = [end for lsn in sorted(chance.sample(range(head, head + TURN), TURN // 10)) for end in (lsn, lsn + 1)]
        began = time.process_time()
        enter(view, tail, some)
        view.move((head, head + TURN), AWAY)
        told = len(view.flush())
        view.move(back, AVAILABLE)
        told += len(view.flush())
        view.move(back, AWAY)
        view.move((head, head + TURN), GONE)
        told += len(view.flush())
        spent += time.process_time() - began
        assert told
    return spent


def depths(most: int) -> Iterator[int]:
    """Those up to the one that was asked for."""
    yield from (depth for depth in DEPTHS if depth < most)
    yield most


def main() -> None:
    """Measure and print."""
    given = parse(parser(__doc__ or "", messages=1_000_000, quick=4000, repeat=2))
    turns = min(TURNS, max(given.messages // 4 // TURN, 1))
    for name, select in SELECTS.items():
        for depth in depths(given.messages):
            filled, churned, held = list[float](), list[float](), list[float]()
            for run in range(given.repeat):
                chance = random.Random(run)
                gc.collect()
                before = usage_here()
                view = View(Definition("v", "q", (select,), ("/region",)))
                filled.append(fill(view, depth, chance) / depth * 1e6)
                gc.collect()
                held.append((usage_here() - before) / depth)
                churned.append(churn(view, depth, turns, chance) / (turns * TURN) * 1e6)
                assert view.messages == depth
                assert sum(len(body_of(view, row)) > 2 for row in view.rows.values()) == len(view.rows)
                del view
            settings = {"waiting": depth, "groups": GROUPS, "select": select, "turn": TURN, "turns": turns}
            emit(f"view, {name}: fill, {depth:,} waiting", filled, "us/message", settings=settings)
            if depth >= DEEP:
                emit(f"view, {name}: resident, {depth:,} waiting", held, "bytes/message", settings=settings)
            emit(f"view, {name}: churn, {depth:,} waiting", churned, "us/message", settings=settings)


def usage_here() -> int:
    """Resident bytes of this process."""
    import os

    return usage(os.getpid()).resident


if __name__ == "__main__":
    main()
