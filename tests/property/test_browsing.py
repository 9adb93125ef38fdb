"""Queues whose consumers remove nothing, against their definition: random publishes, times, limits, consumers, starts.

Each message is sent once to each consumer that was there while it was ready, in the order of the queue; nobody's
acknowledgement takes it from anybody, and what leaves leaves by a limit, a ring, a newer value, its time or a purge.
Counts are recounted after each step.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random

import pytest

from choices import examples
from penstock.records.queue_settings import MODES
from penstock.testing import Broker, Message, Subscription

FIRST = int(os.environ.get("PENSTOCK_SEED", "0"))
PARTS, WALKS, STEPS = 4, 12, 40
SETTINGS: tuple[dict[str, object], ...] = (
    {}, {"max_length": 5}, {"max_length_bytes": "12B"}, {"ring_size": 4}, {"last_value_key": "/v"},
    {"ring_size": 5, "last_value_key": "/v"}, {"max_length": 3, "overflow": "drop-newest"},
)  # fmt: skip


@dataclass(eq=False)
class One:
    """A message."""

    n: int
    body: bytes
    due: float  # 0: at once
    ends: float  # 0: never


@dataclass(eq=False)
class Reader:
    """A consumer, and what it has to be sent."""

    subscription: Subscription
    most: int | None
    seen: list[int] = field(default_factory=list[int])
    held: list[Message] = field(default_factory=list[Message])


class Walk:
    """One walk: a broker beside a list."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.settings = self.random.choice(SETTINGS)
        self.broker = Broker({"queue": [{"name": "q", "non_destructive": True, **self.settings}]})
        self.readers = list[Reader]()
        self.ready = list[One]()  # in the order of the queue
        self.later = list[One]()
        self.last = 0
        self.sent: dict[Reader, list[int]] = {}

    # -- the definition

    def enter(self, one: One, *, scheduled: bool) -> None:
        s = self.settings
        refuses = MODES[s.get("overflow", "drop-head")].rejects  # type: ignore[index]
        if refuses and len(self.ready) >= 3 and not scheduled:
            return  # lost, and nobody is told; what becomes due is never refused
        if "last_value_key" in s:
            self.ready = [other for other in self.ready if value(other) != value(one)]
        ring = s.get("ring_size")
        if scheduled and isinstance(ring, int):
            self.ready.insert(0, one)
            return
        self.ready.append(one)
        if not refuses:
            while len(self.ready) > int(str(s.get("max_length", 1 << 60))):
                self.deliver()
                self.ready.pop(0)
            while sum(len(other.body) for other in self.ready) > (12 if "max_length_bytes" in s else 1 << 60):
                self.deliver()
                self.ready.pop(0)
        if isinstance(ring, int) and len(self.ready) > ring:
            self.deliver()
            self.ready.pop(0)

    def deliver(self) -> None:
        """Whoever has room is sent what it has not seen."""
        for reader in self.readers:
            for one in self.ready:
                if reader.most is not None and len(reader.held) + len(self.sent[reader]) >= reader.most:
                    break
                if one.n not in reader.seen:
                    reader.seen.append(one.n)
                    self.sent[reader].append(one.n)

    def time_goes(self) -> None:
        """What happened by time alone, moment by moment; nothing ends in the moment in which something is due."""
        now = self.broker.now()
        while moments := sorted(
            {one.due for one in self.later if one.due <= now} | {one.ends for one in self.ready if 0 < one.ends <= now}
        ):
            self.ready = [one for one in self.ready if not 0 < one.ends <= moments[0]]
            due = sorted((one for one in self.later if one.due <= moments[0]), key=lambda one: (one.due, one.n))
            self.later = [one for one in self.later if one not in due]
            if isinstance(ring := self.settings.get("ring_size"), int):
                due = self.let_in(due[::-1], ring)
            for one in due:
                self.enter(one, scheduled=True)
            self.deliver()

    def let_in(self, due: list[One], ring: int) -> list[One]:
        """Those that a ring has room for, the latest first: a newer value takes the room of the one it replaces."""
        ready, inside, seen = self.ready, list[One](), set[object]()
        for one in due:
            if "last_value_key" in self.settings:
                if value(one) in seen:
                    continue
                seen.add(value(one))
                ready = [other for other in ready if value(other) != value(one)]
            if len(ready) + len(inside) < ring:
                inside.append(one)
        return inside

    # -- steps

    def publish(self) -> None:
        self.last += 1
        n, random, now = self.last, self.random, self.broker.now()
        body = b'{"v":%d,"n":%d}' % (random.randrange(4), n) if "last_value_key" in self.settings else b"x" * (n % 5)
        delay = random.choice((None, None, None, 2.0))
        life = random.choice((None, None, 3.25)) if delay is None else None
        self.broker.publish("q", body, delay=delay, expiration=life, headers={"n": n})
        one = One(n, body, now + (delay or 0), now + life if life else 0)
        if delay is not None:
            self.later.append(one)
        else:
            self.enter(one, scheduled=False)

    def subscribe(self) -> None:
        most = self.random.choice((None, 1, 2, 5))
        reader = Reader(self.broker.subscribe("q", max_backlog=most), most)
        self.readers.append(reader)
        self.sent[reader] = []

    def settle(self) -> None:
        reader = self.random.choice(self.readers)
        for message in reader.held[: self.random.randrange(1, 4)]:
            reader.held.remove(message)
            self.random.choice((message.ack, message.release, message.expire))()

    def leave(self) -> None:
        reader = self.readers.pop(self.random.randrange(len(self.readers)))
        reader.subscription.close()
        del self.sent[reader]

    def start(self) -> None:
        self.readers.clear()
        self.sent.clear()
        if self.random.random() < 0.5:
            self.broker.crash()
        self.broker.restart()

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.45:
            self.publish()
        elif choice < 0.6:
            self.subscribe()
        elif choice < 0.75 and self.readers:
            self.settle()
        elif choice < 0.8 and self.readers:
            self.leave()
        elif choice < 0.97:
            self.broker.advance(self.random.choice((0.5, 1.0, 4.0)))
        else:
            self.start()
        self.time_goes()
        self.deliver()
        self.check()

    def check(self) -> None:
        told = self.broker.stats("q")
        found = told["ready"], told["ready_bytes"], told["delayed"]
        wanted = len(self.ready), sum(len(one.body) for one in self.ready), len(self.later)
        assert found == wanted, f"{self.settings}: ready, bytes and delayed are {found}, not {wanted}"
        for reader in self.readers:
            came = reader.subscription.take()
            numbers = [int(str(message.headers["n"])) for message in came]
            assert numbers == self.sent[reader], f"{self.settings}: {numbers} came, not {self.sent[reader]}"
            reader.held += came
            self.sent[reader] = []

    def run(self) -> int:
        with self.broker:
            for _ in range(STEPS):
                self.step()
        return STEPS


def value(one: One) -> bytes:
    return one.body.split(b",")[0]


@pytest.mark.parametrize("part", range(PARTS))
def test_browsers_and_definition_agree_on_every_command(part: int) -> None:
    """`PENSTOCK_EFFORT` times as many walks, `PENSTOCK_SEED` for others."""
    for number in range(examples(WALKS, 2)):
        seed = FIRST + number * PARTS + part
        try:
            assert Walk(seed).run() == STEPS
        except Exception as error:
            error.add_note(f"walk {seed}: PENSTOCK_SEED={seed}")
            raise


@pytest.mark.parametrize("seed", [456])
def test_walks_that_parted_once(seed: int) -> None:
    """Of what entered a ring in one moment one was replaced, and the others were read in no order."""
    assert Walk(seed).run() == STEPS
