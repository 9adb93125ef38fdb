"""From the log to what is live: no gap and no double, however publishing, commits, reads and receivers interleave.

Each seed is one history: batches of several topics are published, commits happen when they like, reads of the log and
filters answer late and in any order, receivers have room or have not, subscriptions pause, close and begin anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from choices import spread
from penstock.errors import PenstockError
from penstock.expr import Filter, compile_filter
from penstock.log.simdisk import SimDisk
from penstock.records import properties as header_codec
from penstock.records.entries import Publishes, Topic
from penstock.server.replaying import page as pages
from penstock.server.replaying import sources
from penstock.server.replaying.log_source import Follower
from penstock.server.replaying.page import Page
from penstock.server.replaying.selection import Selection
from penstock.testing.instance import FakeClock, Instance
from penstock.testing.process import load

CONFIG = {
    "queue": [{"name": "q", "underlying_topic": "^[ab]", "default_publish_target": "a"}],
    "topic": [{"name": "c"}],
}
A, C = Selection.topic("/", "", "a"), Selection.topic("/", "", "c")
AB = Selection.pattern("/", "", "^[ab]$")
HEADER = header_codec.encode(header_codec.Properties(delivery_mode=header_codec.PERSISTENT))


class Taker:
    """A receiver whose room comes and goes."""

    def __init__(self) -> None:
        self.open = True
        self.most = 1 << 30
        self.lsns: list[int] = []
        self.bodies: list[bytes] = []
        self.complete = 0
        self.error: PenstockError | None = None
        self.durable: Callable[[], int] = lambda: 0

    def room(self) -> int:
        return self.most if self.open else 0

    def take(self, page: Page) -> None:
        assert self.open
        assert len(page) <= self.most
        assert page.last <= self.durable(), "handed over before it was durable"
        self.lsns += page.lsns
        self.bodies += page.bodies

    def level(self) -> None:
        self.complete += 1

    def ended(self, error: PenstockError | None) -> None:
        self.error = error


class House:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.disk, self.clock = SimDisk(seed=seed), FakeClock()
        self.instance = Instance(self.disk, self.clock, load(CONFIG))
        self.engine = self.instance.engine
        self.engine.on_turn = None  # commits happen when `commit` says so
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        if seed % 3:
            self.engine.replays.off = lambda work, done: self.jobs.append((work, done))
        self.published: list[tuple[int, str, bytes, bool]] = []  # LSN, topic, body, whether the filter wants it
        self.followers: list[tuple[Follower, Taker, Selection, str | None, int]] = []
        self.number = 0

    def publish(self) -> None:
        rows = self.random.choice([1, 1, 2, 5, 40])
        names = [self.random.choice("abc") for _ in range(rows)]
        if self.random.random() < 0.5:
            names = [names[0]] * rows
        big = b"x" * self.random.choice([0, 0, 200, 3000])
        bodies = list[bytes]()
        for _ in range(rows):
            self.number += 1
            bodies.append(b'{"n": %d, "x": "%s"}' % (self.number, big))
        topics: list[Topic] = [self.instance.core.topic("/", "", name) for name in names]
        one = topics[0] if len(set(names)) == 1 else topics
        published = self.instance.core.publish(self.engine.now(), Publishes(one, HEADER, bodies))
        assert published.stored == rows
        first, number = published.first, self.number - rows + 1
        self.published += [(first + row, names[row], bodies[row], (number + row) % 3 == 0) for row in range(rows)]

    def commit(self) -> None:
        self.instance.run(lambda: None)
        self.instance.log.flush()
        self.instance.run(lambda: None)

    def follow(self) -> None:
        taker = Taker()
        taker.durable = lambda: self.instance.log.durable
        selection = self.random.choice([A, C, AB])
        text = self.random.choice([None, None, "/n % 3 = 0"])
        start = self.random.choice([None, 1, self.random.randrange(1, self.instance.core.next_lsn + 3)])
        begins = self.instance.core.next_lsn if start is None else start
        taker.open = self.random.random() < 0.8
        taker.most = self.random.choice([1, 3, 1 << 30])
        filter = None if text is None else compile_filter(text)
        follower = Follower(self.engine.replays.source(selection, start=start, filter=filter), taker)
        self.followers.append((follower, taker, selection, text, begins))

    def answer(self) -> None:
        if self.jobs:
            work, done = self.jobs.pop(self.random.randrange(len(self.jobs)))
            done(work())

    def wanted(self, selection: Selection, text: str | None, begins: int) -> list[int]:
        names = "a" if selection == A else "c" if selection == C else "ab"
        durable = self.instance.log.durable
        return [
            lsn
            for lsn, name, _, third in self.published
            if begins <= lsn <= durable and name in names and (text is None or third)
        ]

    def some_follower(self) -> tuple[Follower, Taker] | None:
        if not self.followers:
            return None
        return self.random.choice(self.followers)[:2]

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.3:
            self.publish()
            if self.random.random() < 0.5:
                self.engine.finish_turn()
        elif chance < 0.45:
            self.commit()
        elif chance < 0.65:
            self.answer()
        elif chance < 0.72:
            if len(self.followers) < 12:
                self.follow()
        elif (some := self.some_follower()) is not None:
            follower, taker = some
            if chance < 0.82:
                taker.open = not taker.open
                if taker.open:
                    follower.step()
            elif chance < 0.9:
                follower.pause() if self.random.random() < 0.5 else follower.resume()
            elif chance < 0.92:
                follower.close()
            else:
                taker.most = self.random.choice([1, 3, 1 << 30])
                follower.step()

    def settle(self) -> None:
        """Let everything come to rest with all doors open."""
        for follower, taker, *_ in self.followers:
            taker.open, taker.most = True, 1 << 30
            follower.resume()
        for _ in range(60):
            self.commit()
            for follower, *_ in self.followers:
                follower.step()
            while self.jobs:
                self.answer()


@pytest.mark.parametrize("seed", spread(range(24), 6))
def test_no_gap_and_no_double(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(sources, "KEPT_BYTES", chance.choice([0, 1_000, 2 << 20]))
    monkeypatch.setattr(sources, "WAITING_BYTES", chance.choice([2_000, 20_000, 8 << 20]))
    monkeypatch.setattr(sources, "QUIET_BYTES", chance.choice([0, 1_000, 8_192]))
    rows = chance.choice([3, 4_096])
    monkeypatch.setattr(pages, "PAGE_ROWS", rows)
    house = House(seed)
    for number in range(chance.choice([150, 400])):
        house.step()
        for _, taker, selection, text, begins in house.followers if number % 10 == 0 else ():
            want = house.wanted(selection, text, begins)
            assert taker.lsns == want[: len(taker.lsns)]
    house.settle()
    bodies = {lsn: body for lsn, _, body, _ in house.published}
    for follower, taker, selection, text, begins in house.followers:
        assert taker.error is None
        assert taker.bodies == [bodies[lsn] for lsn in taker.lsns]
        if not follower.closed:
            assert taker.lsns == house.wanted(selection, text, begins)
            assert taker.complete == 1
            assert follower.source.live
    replays = house.engine.replays
    for follower, *_ in house.followers:
        follower.close()
    assert not replays.active
    assert replays.kept.bytes == 0


@pytest.mark.parametrize("seed", spread(range(24), 6))
def test_a_crash_takes_nothing_back_that_was_shown(seed: int) -> None:
    """Whoever goes on after a power cut from the last message they saw misses nothing and gets nothing twice."""
    house = House(seed)
    for _ in range(150):
        house.step()
    house.instance.crash()
    house.disk.crash()
    house.clock.reboot()
    again = Instance(house.disk, house.clock, load(CONFIG))
    known = {lsn: body for lsn, _, body, _ in house.published}
    everything = Taker()
    everything.durable = lambda: again.log.durable
    again.run(lambda: Follower(again.engine.replays.source(Selection.pattern("/", "", ""), start=1), everything))
    there = dict(zip(everything.lsns, everything.bodies, strict=True))
    assert there == {lsn: body for lsn, body in known.items() if lsn in there}
    for _, before, selection, text, begins in house.followers:
        assert set(before.lsns) <= there.keys()
        after = Taker()
        after.durable = everything.durable
        start = before.lsns[-1] + 1 if before.lsns else begins
        filter = None if text is None else compile_filter(text)
        names = "a" if selection == A else "c" if selection == C else "ab"

        def on(
            selection: Selection = selection, after: Taker = after, start: int = start, filter: Filter | None = filter
        ) -> None:
            Follower(again.engine.replays.source(selection, start=start, filter=filter), after)

        again.run(on)
        wanted = [
            lsn
            for lsn, name, _, third in house.published
            if lsn in there and lsn >= begins and name in names and (text is None or third)
        ]
        assert before.lsns + after.lsns == wanted
    again.stop()
