"""A clean stop under an unpaced load, again and again: nothing is said, and nothing that was promised is lost."""

from __future__ import annotations

import random
import time
from pathlib import Path

from choices import EFFORT
from penstock.server.flight.front import UNBOUNDED
from soak.books import Books
from soak.clients import drained
from soak.soak import QUEUES, Soak

STOPS = 3
"""Five with each step of more effort, in `make soak`."""

ENOUGH = 2_000 if EFFORT == 1 else 6_000
"""Messages confirmed before a stop, and up to twice as many: by then each kind of client has work."""

DEADLINE_S = 120.0


def confirmed(books: Books, count: int) -> None:
    """Wait until so many messages are."""
    until = time.monotonic() + DEADLINE_S
    while books.counts["confirmed"] < count:
        assert time.monotonic() < until, f"{books.counts}"
        assert not books.wrong, books.wrong
        time.sleep(0.01)


def test_stops_under_load_are_clean(tmp_path: Path, effort: int) -> None:
    soak = Soak(tmp_path, DEADLINE_S * effort, seed=1)
    chance, books, host = random.Random(1), soak.books, soak.host
    host.start()
    try:
        soak.declare()
        for _ in range(STOPS if effort == 1 else 5 * effort):
            soak.go()
            confirmed(books, books.counts["confirmed"] + ENOUGH + chance.randrange(ENOUGH))
            host.stop()
            soak.rest()
            books.killed()
            host.loads = effort > 1  # in a usual run the first alone takes apart what it has loaded as it ends
            host.start()
        books.close(drained(host.port, books, tuple(name for name in QUEUES if name != "markers")))
        host.stop()
    finally:
        if host.alive:
            host.kill()
    assert books.wrong == []
    lines = host.output(whole=True).splitlines()
    said = [line for line in lines if "is ready: amqp" not in line and " is recovering, " not in line]
    said = [line for line in said if effort > 1 or line != UNBOUNDED]  # a forked one has Arrow as it was loaded
    assert [line for line in said if not line.startswith("setting ")] == []
