"""kill -9 under queues with an order of their own: priorities, barriers, a target depth, recovery points, acks that
come before their message, publishers with numbers, views and a queue over a view.  Judged by docs/durability.md.

`PENSTOCK_KILLS` sets how often (a third of it, 2 by default), `PENSTOCK_SEED` repeats a run's choices (not its timing).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from crash.model_clients import EXPRESSIONS, TOPIC, Administrator, Client, Notes, Publisher, Worker, end, happens
from crash.test_kills import KILLS, PART, SEED, audit
from live_server import LiveServer
from penstock.errors import PreconditionFailed

pytestmark = pytest.mark.crash

LIVES = max(2, KILLS // 3)
PATIENCE_S = 60.0
CONFIG = f"""
[[queue]]
name = "keep"
underlying_topic = "{TOPIC}"

[[queue]]
name = "over"
underlying_topic = "sums"

[[view]]
name = "sums"
source = "keep"
select = "/g AS /g, COUNT(1) AS /n"
group_by = ["/g"]
"""


def test_kills_of_queues_with_an_order(tmp_path: Path) -> None:
    rnd = random.Random(SEED)
    config = tmp_path / "penstock.toml"
    config.write_text(CONFIG)
    notes = Notes()
    print(f"PENSTOCK_SEED={SEED} PENSTOCK_KILLS={KILLS}: {LIVES} lives")
    server = LiveServer(tmp_path, [str(config), "--sync", "commit"], flight=True)
    with server:
        with penstock.connect(f"penstock://{server.ready['flight']}") as client:
            client.declare("ranked", underlying_topic=TOPIC, priority_expression=EXPRESSIONS[0])
            client.declare("fenced", underlying_topic=TOPIC, barrier_expression="/end = true")
            client.declare("shallow", underlying_topic=TOPIC, target_queue_depth=1000)
        for life in range(LIVES):
            url = f"penstock://{server.ready['flight']}"
            team: list[Client[Notes]] = [Publisher(url, notes, rnd.randrange(1 << 30), "publisher")]
            team += [Worker(url, notes, rnd.randrange(1 << 30), queue) for queue in ("ranked", "fenced", "shallow")]
            team.append(Administrator(url, notes, rnd.randrange(1 << 30), "administrator"))
            for client in team:
                client.start()
            time.sleep(rnd.uniform(0.3, 1.2) * PART)
            if life == LIVES - 1:
                happens(lambda: notes.duplicates, team, "no publisher was told of a duplicate")
            server.kill()
            end(team, f"PENSTOCK_SEED={SEED}, life {life}")
            server.start()
            with penstock.connect(f"penstock://{server.ready['flight']}") as client:
                Look(client, notes, f"PENSTOCK_SEED={SEED}, life {life}").all()
    assert notes.duplicates, "no publisher was told of a duplicate"
    print(len(notes.sent), "sent,", notes.duplicates, "duplicates,", notes.deferred, "deferred,", notes.replaced)
    assert "Traceback" not in server.output(), server.output()
    audit(server.data)


class Look:
    """One look at all queues, after a restart."""

    def __init__(self, client: penstock.Client, notes: Notes, where: str) -> None:
        self.client, self.notes, self.where = client, notes, where

    def all(self) -> None:
        """Each queue by its row of the table."""
        present = self.kept()
        self.ranked(present)
        self.fenced(present)
        self.shallow(present)
        self.later(present)
        self.view(present)

    def drained(self, queue: str, wanted: set[int] | None = None, *, ack: bool = False) -> list[int]:
        """All that a consumer without a limit is given, in its order; without `ack` it goes back."""
        out, empty, settled = list[int](), False, 0
        until = time.monotonic() + PATIENCE_S
        consumer = self.client.consume(queue, backlog=0, timeout="300ms")
        try:
            while time.monotonic() < until:
                message = consumer.take()
                if message is None:
                    if empty and (wanted is None or wanted <= set(out)):
                        break
                    if ack:
                        consumer.flush()
                        settled = len(out)
                    stats = self.client.queue(queue)
                    granted = stats["leased"] + settled > len(out)  # and on its way
                    empty = not stats["ready"] and not stats["barriers_waiting"] and not granted
                    continue
                number = message.json()["id"]
                out.append(number)
                if ack:
                    message.ack()
            if ack:
                consumer.flush()
        finally:
            consumer.close()
        return out

    def kept(self) -> set[int]:
        """The queue that nobody consumes has all there is: confirmed ones for certain, each once, in order."""
        found = [message.json()["id"] for message in self.client.sow("keep")]
        assert found == sorted(set(found)), f"{self.where}: keep has {_twice(found)} twice, or out of order"
        assert set(self.notes.marks) <= set(found), f"{self.where}: {set(self.notes.marks) - set(found)} are lost"
        assert set(found) <= set(self.notes.sent)
        return set(found)

    def sure(self, queue: str, present: set[int]) -> set[int]:
        """What the queue must have."""
        notes = self.notes
        return present - notes.gone.get(queue, set()) - notes.maybe.get(queue, set())

    def judge(self, queue: str, present: set[int], found: list[int]) -> None:
        """Nothing lost, nothing twice, nothing back; what was stored and is not in the queue is gone for ever.

        What was leased early, acked and taken back by the kill was never stored: it is published again.
        """
        notes = self.notes
        gone = notes.gone.setdefault(queue, set())
        assert not _twice(found), f"{self.where}: {_twice(found)} twice in {queue}"
        assert not gone & set(found), f"{self.where}: {gone & set(found)} are back in {queue}"
        lost = self.sure(queue, present) - set(found)
        assert not lost, f"{self.where}: {sorted(lost)[:9]} are lost from {queue}"
        assert set(found) <= present, f"{self.where}: {queue} has what keep has not"
        gone |= notes.maybe.pop(queue, set()) & present - set(found)

    def ranked(self, present: set[int]) -> None:
        """At the same places: in the order of the expression that was answered, or of one that was asked for."""
        notes = self.notes
        found = self.drained("ranked", self.sure("ranked", present))
        self.judge("ranked", present, found)
        orders = {
            name: sorted(found, key=lambda number: (-getattr(notes.sent[number], name[1:]), number))
            for name in notes.expressions
        }
        matching = {name for name, order in orders.items() if order == found}
        assert matching, f"{self.where}: ranked came as {found[:30]}, by {notes.expressions}"
        notes.expressions = matching if len(matching) == 1 else notes.expressions

    def fenced(self, present: set[int]) -> None:
        """All before a barrier is done before it comes, and all behind it comes later; each barrier at most twice."""
        notes = self.notes
        ends = {number for number in present if notes.sent[number].end}
        found = self.drained("fenced", self.sure("fenced", present - ends), ack=True)
        plain = [number for number in found if number not in ends]
        self.judge("fenced", present - ends, plain)
        passed = 0
        for number in found:
            if number in ends:
                assert number > passed, f"{self.where}: barrier {number} came after {passed}"
                waiting = [one for one in plain if one < number and found.index(one) > found.index(number)]
                assert not waiting, f"{self.where}: {waiting} came after the barrier {number}"
                passed = number
            else:
                assert number > passed, f"{self.where}: {number} came after the barrier {passed}"
        missing = ends - set(found) - notes.barriers - notes.gone.get("ends", set())
        lost = {number for number in missing if not self.was_sent("fenced", number)}
        assert not lost, f"{self.where}: barriers {lost} are lost"
        notes.gone.setdefault("ends", set()).update(ends)
        notes.barriers.clear()
        for number in plain:
            notes.settled("fenced", number, sure=True)

    def was_sent(self, queue: str, number: int) -> bool:
        """Whether a barrier went to somebody, and for ever: it is lost with a connection that had not read it."""
        (mark,) = [message.bookmark for message in self.client.sow("keep") if message.json()["id"] == number]
        events = self.client.story(mark)["events"]
        return any(one["queue"] == queue and one["event"] == "settled" and one.get("barrier") for one in events)

    def shallow(self, present: set[int]) -> None:
        """Active or not, all are there; the oldest are active."""
        wanted = self.sure("shallow", present)
        found = self.drained("shallow", wanted if len(wanted) < 1000 else None)
        if len(wanted) < 1000:
            self.judge("shallow", present, found)
        else:
            assert not self.notes.gone.get("shallow", set()) & set(found)
            assert set(sorted(wanted)[:900]) <= set(found), f"{self.where}: the oldest are not active"

    def later(self, present: set[int]) -> None:
        """A pass goes on: no message twice, none left out, and none that was settled before it came."""
        names = [name for name, sure in self.notes.declared.items() if sure]
        wanted = [self.sure(name, present) for name in names]
        with ThreadPoolExecutor(len(names) or 1) as looking:  # most of a look is waiting until nothing more comes
            for name, found in zip(names, looking.map(self.drained, names, wanted), strict=True):
                self.judge(name, present, found)
        for name in [name for name, sure in self.notes.declared.items() if not sure]:
            try:
                self.client.declare(name, underlying_topic=TOPIC)
            except PreconditionFailed as error:
                if "recovery_point = epoch, not now" not in str(error):
                    raise  # else the alteration had happened, and was not answered
            self.client.alter(name, recovery_point="epoch")
            self.notes.declared[name] = True

    def view(self, present: set[int]) -> None:
        """Rows are those of what is available; a queue over them has each row once at most, in order."""
        counts = Counter(number % 3 for number in present)
        until = time.monotonic() + PATIENCE_S
        while True:
            rows = {message.json()["g"]: message.json()["n"] for message in self.client.sow("sums")}
            if rows == dict(counts) or time.monotonic() > until:
                break
        assert rows == dict(counts), f"{self.where}: the view has {rows} of {dict(counts)}"
        last: dict[int, int] = {}
        for message in self.client.sow("over"):
            row = message.json()
            assert row["n"] > last.get(row["g"], 0), f"{self.where}: row {row} is there twice, or out of order"
            last[row["g"]] = row["n"]
        assert all(count <= counts[group] for group, count in last.items())


def _twice(numbers: list[int]) -> list[int]:
    return [number for number, count in Counter(numbers).items() if count > 1]
