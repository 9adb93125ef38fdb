"""kill -9 while publishers of a full address are held (`address_full_policy = "BLOCK"`), over AMQP and Flight.

What was confirmed is there after the start and no more is confirmed than had room; what was held is unconfirmed, and
either stored or nowhere, for ever; sent again, it flows.  `PENSTOCK_KILLS` sets how often (a third of it, 2 by
default), `PENSTOCK_SEED` repeats a run's choices.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from crash.test_kills import KILLS, SEED, audit
from crash_clients import GONE, Confirm, Peer, identity, publish_bytes
from live_server import LiveServer

pytestmark = pytest.mark.crash

LIVES = max(2, KILLS // 3)
LIMIT = 20
BACKLOG = 3  # what a consumer holds is no longer ready, so it makes room; it comes back whatever the limit
PATIENCE_S = 60.0
SETTINGS = f"""
[[queue]]
name = "held"

[[address]]
pattern = "held"
address_full_policy = "BLOCK"
max_size_messages = {LIMIT}
"""


def body_of(number: int) -> bytes:
    return b"%d %s" % (number, b"x" * (number * 37 % 200))


@dataclass
class Notes:
    """What is known, over all lives; of one life first."""

    last: int = 0
    asked: set[int] = field(default_factory=set[int])  # published, not confirmed
    confirmed: set[int] = field(default_factory=set[int])  # in this life
    sure: set[int] = field(default_factory=set[int])  # confirmed, and not acknowledged
    gone: set[int] = field(default_factory=set[int])  # acknowledged, or not stored when its publisher was gone

    def fresh(self, count: int) -> list[int]:
        numbers = list(range(self.last + 1, self.last + 1 + count))
        self.last += count
        return numbers

    def told(self, numbers: Sequence[int]) -> None:
        """These are confirmed."""
        self.asked.difference_update(numbers)
        self.confirmed.update(numbers)
        self.sure.update(set(numbers) - self.gone)


class Held:
    """An AMQP publisher that sends without waiting for confirms."""

    def __init__(self, server: LiveServer, notes: Notes) -> None:
        self.peer, self.notes = Peer(server.port), notes
        self.peer.select_confirms()
        self.numbers = list[int]()  # by tag - 1
        self.open = set[int]()  # tags

    def send(self, numbers: Sequence[int]) -> None:
        self.notes.asked.update(numbers)
        self.open.update(range(len(self.numbers) + 1, len(self.numbers) + 1 + len(numbers)))
        self.numbers += numbers
        self.peer.send(b"".join(publish_bytes("", "held", body_of(number)) for number in numbers))

    def listen(self, seconds: float) -> None:
        """Take what has come.  EOFError or OSError when the server is gone and nothing is left."""
        for event in self.peer.events(seconds):
            assert isinstance(event, Confirm)
            tags = [tag for tag in self.open if tag <= event.tag] if event.multiple else [event.tag]
            self.open.difference_update(tags)
            self.notes.told([self.numbers[tag - 1] for tag in tags])

    def last_words(self) -> None:
        """Confirms that the server sent before it died, and the end."""
        try:
            while True:
                self.listen(1.0)
        except GONE:
            self.peer.socket.close()


class Upload(threading.Thread):
    """One table over Flight, whose call lasts until all of it has room."""

    def __init__(self, url: str, notes: Notes, numbers: Sequence[int]) -> None:
        super().__init__(name="upload")
        self.url, self.notes, self.numbers = url, notes, numbers
        self.failure: BaseException | None = None
        notes.asked.update(numbers)

    def run(self) -> None:
        try:
            with penstock.connect(self.url) as client:
                told = client.publish_table("held", pa.table({"body": [body_of(one) for one in self.numbers]}))
                assert told.stored == len(self.numbers), told
                self.notes.told(self.numbers)
        except (penstock.PenstockError, OSError):
            pass  # the server is gone, and nobody knows
        except BaseException as failure:  # noqa: BLE001 - the test reports it
            self.failure = failure


def until(what: Callable[[], bool], meanwhile: Callable[[], None] = lambda: time.sleep(0.01)) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end
        meanwhile()


def take(client: penstock.Client, notes: Notes, count: int) -> None:
    """Acknowledge so many, and know it."""
    taken = list[int]()
    with client.consume("held", backlog=BACKLOG, timeout="100ms") as consumer:
        end = time.monotonic() + PATIENCE_S
        while len(taken) < count:
            assert time.monotonic() < end
            if (message := consumer.take(0.1)) is not None:
                number = int(identity(message.body))
                assert number not in notes.gone, f"{number} came back"
                taken.append(number)
                message.ack()
        consumer.flush()
    notes.sure.difference_update(taken)
    notes.gone.update(taken)


def test_kills_while_publishers_of_a_full_address_are_held(tmp_path: Path) -> None:
    rnd = random.Random(SEED)
    notes = Notes()
    print(f"PENSTOCK_SEED={SEED} PENSTOCK_KILLS={KILLS}: {LIVES} lives")
    settings = tmp_path / "penstock.toml"
    settings.write_text(SETTINGS)
    server = LiveServer(tmp_path, [str(settings), "--sync", "commit"], flight=True)
    held = 0
    with server:
        for life in range(LIVES):
            where = f"PENSTOCK_SEED={SEED}, life {life}"
            url = f"penstock://{server.ready['flight']}"
            before = len(notes.sure)
            publishers = [Held(server, notes) for _ in range(2)]
            for one in publishers:
                one.send(notes.fresh(rnd.randrange(LIMIT, 3 * LIMIT)))
            upload = Upload(url, notes, notes.fresh(LIMIT))
            upload.start()
            count = rnd.randrange(1, LIMIT)
            with penstock.connect(url) as client:
                until(lambda client=client: client.queue("held")["ready"] >= LIMIT)  # type: ignore[misc]
                take(client, notes, count)
                if rnd.random() < 0.5:  # else it dies while what was held flows
                    until(lambda client=client: client.queue("held")["ready"] >= LIMIT)  # type: ignore[misc]
            server.kill()
            for one in publishers:
                one.last_words()
            upload.join(PATIENCE_S)
            assert not upload.is_alive()
            assert upload.failure is None, upload.failure
            room = LIMIT - before + count + BACKLOG
            assert len(notes.confirmed) <= room, f"{where}: {len(notes.confirmed)} are confirmed, {room} had room"
            assert notes.asked, f"{where}: nobody was held"
            held += len(notes.asked)
            server.start()
            with penstock.connect(f"penstock://{server.ready['flight']}") as client:
                look(client, notes, where)
                flow(server, client, notes)
    print(f"{notes.last} sent, {held} held when the server died, {len(notes.gone)} gone")
    assert "Traceback" not in server.output(), server.output()
    audit(server.data)


def look(client: penstock.Client, notes: Notes, where: str) -> None:
    """Judge what is there after a start; from then on all is known."""
    there = [int(identity(message.body)) for message in client.peek("held", 1 << 20)]
    present = set(there)
    assert len(there) == len(present), f"{where}: {[one for one, n in Counter(there).items() if n > 1]} are twice"
    assert len(there) <= LIMIT + BACKLOG, f"{where}: {len(there)} are there"
    assert not (lost := notes.sure - present), f"{where}: {lost} are lost"
    assert not (back := present & notes.gone), f"{where}: {back} came back"
    assert not (strange := present - notes.sure - notes.asked), f"{where}: {strange} were never published"
    notes.gone |= notes.asked - present
    notes.sure = present
    notes.asked.clear()
    notes.confirmed.clear()


def flow(server: LiveServer, client: penstock.Client, notes: Notes) -> None:
    """What was held comes again, as new messages of its publishers, and flows as there is room."""
    publisher = Held(server, notes)
    numbers = notes.fresh(2 * LIMIT)
    publisher.send(numbers)
    until(lambda: client.queue("held")["ready"] >= LIMIT)
    take(client, notes, 2 * LIMIT)
    until(lambda: not publisher.open, lambda: publisher.listen(0.1))
    publisher.peer.socket.shutdown(socket.SHUT_RDWR)
    publisher.peer.socket.close()
    notes.confirmed.clear()
