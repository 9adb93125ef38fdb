"""kill -9 under queues without duplicates: by a window of keys, by keys in headers, unique while queued or leased.

What was confirmed is not stored a second time and not lost either; a key whose message was lost with
the server does not keep the message out when it comes again.  `PENSTOCK_KILLS` sets how often (a third of it, 2 by
default), `PENSTOCK_SEED` repeats a run's choices.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import penstock
from crash.dedup_clients import KEYS_OF_UNIQUE, Notes, Publisher, Team, Worker, seeded, send, send_unique
from crash.model_clients import end, happens
from crash.test_kills import KILLS, SEED, audit, die_while_starting
from live_server import LiveServer

pytestmark = pytest.mark.crash

LIVES = max(2, KILLS // 3)
PATIENCE_S = 60.0
SETTINGS = """
[log]
checkpoint_records = 700

[[queue]]
name = "window"
dedup_key = "/key"
dedup_window = "1d"

[[queue]]
name = "named"
dedup_window = "1d"

[[queue]]
name = "unique"
dedup_key = "/key"
unique = true
"""


def test_kills_of_queues_without_duplicates(tmp_path: Path) -> None:
    rnd = random.Random(SEED)
    queues = [Notes("window", True), Notes("named", True, header=True), Notes("unique", False)]
    print(f"PENSTOCK_SEED={SEED} PENSTOCK_KILLS={KILLS}: {LIVES} lives")
    settings = tmp_path / "penstock.toml"
    settings.write_text(SETTINGS)
    server = LiveServer(tmp_path, [str(settings), "--sync", "commit"], flight=True)
    with server:
        for life in range(LIVES):
            url = f"penstock://{server.ready['flight']}"
            team = Team(rnd.randrange(10, 400))
            clients = [Publisher(url, notes, seeded(rnd), f"publisher-{notes.queue}", team) for notes in queues]
            workers = [Worker(url, notes, seeded(rnd), f"worker-{notes.queue}") for notes in queues]
            for client in (*clients, *workers):
                client.start()
            assert team.enough.wait(PATIENCE_S)
            if life == LIVES - 1:
                happens(
                    lambda: all(one.duplicates and one.acked for one in queues),
                    (*clients, *workers), "no duplicate, or nothing is acked",
                )  # fmt: skip
            server.kill()
            end((*clients, *workers), f"PENSTOCK_SEED={SEED}, life {life}")
            if rnd.random() < 0.3:
                die_while_starting(server, rnd)
            server.start()
            with penstock.connect(f"penstock://{server.ready['flight']}") as client:
                for notes in queues:
                    look(client, notes, f"PENSTOCK_SEED={SEED}, life {life}, {notes.queue}")
    for notes in queues:
        print(f"{notes.queue}: {len(notes.key)} sent, {notes.duplicates} duplicates, {notes.acked} acked")
        assert notes.duplicates
        assert notes.acked
    assert "Traceback" not in server.output(), server.output()
    audit(server.data)


def look(client: penstock.Client, notes: Notes, where: str) -> None:
    """Judge one queue after a start, while nobody else does anything; from then on all is known of it."""
    there = [int(message.json()["id"]) for message in client.peek(notes.queue, 1 << 20)]
    present = set(there)
    assert len(there) == len(present), f"{where}: {[one for one, n in Counter(there).items() if n > 1]} are there twice"
    keys = Counter(notes.key[number] for number in there)
    assert not (twice := [key for key, count in keys.items() if count > 1]), f"{where}: two messages have {twice}"
    assert not present & notes.gone, f"{where}: {present & notes.gone} were acked, or duplicates"
    lost = notes.sure - notes.gone - notes.maybe - present
    assert not lost, f"{where}: {lost} are lost"
    for number, first in notes.asked.items():
        assert first or number not in present, f"{where}: the key of {number} was taken before"
        if number in present or number in notes.gone:
            notes.taken.add(notes.key[number])
        elif number in notes.maybe:
            notes.unknown.add(notes.key[number])
    notes.gone |= (notes.sure | notes.maybe | set(notes.asked)) - present
    notes.sure = present
    notes.asked.clear()
    notes.maybe.clear()
    notes.unknown -= notes.taken
    if notes.window:
        known = [key for key in range(notes.next_key) if key not in notes.unknown]
        send(client, notes, known)  # those that were taken are kept out, and the others are let in
    else:
        for key in range(KEYS_OF_UNIQUE):
            assert send_unique(client, notes, key) == (key not in keys), f"{where}: {key}"
