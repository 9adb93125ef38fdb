"""Barriers over crashes at random points: what waits for what holds in every life, and no marker is lost."""

from __future__ import annotations

import random

from choices import examples, seeds
from penstock.testing import Broker, Message

QUEUE = {"name": "q", "underlying_topic": "t", "barrier_expression": "/end = true", "lease_period": "10s"}
LATER = {"name": "later", "underlying_topic": "t", "barrier_expression": "/end = true", "recovery_point": "epoch"}
END = b'{"end": true}'


class Load:
    """A broker, a worker, somebody who wants barriers alone, and what they were told."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = Broker({"queue": [QUEUE]}, seed=seed)
        self.published: list[str] = []  # bookmarks, in order
        self.barriers = set[str]()
        self.done = set[str]()  # acknowledged, durably
        self.came: dict[str, bool] = {}  # barrier -> whether something was committed since it came
        self.begin()

    def begin(self) -> None:
        """A life begins: who subscribes now gets what is released from now on."""
        self.held: list[Message] = []
        self.worker = self.broker.subscribe("q", max_backlog=self.chance.choice([1, 2, 5, None]))
        self.take()
        self.watcher = self.broker.subscribe("q", max_backlog=0)

    def look(self) -> None:
        """What came; both are sent the same barriers."""
        mine = self.take()
        assert [message.bookmark for message in self.watcher.take()] == mine

    def take(self) -> list[str]:
        """The barriers that came to the worker, each with all before it done; nothing that one holds back."""
        mine = list[str]()
        for message in self.worker.take():
            before = self.published[: self.published.index(message.bookmark)]
            if message.body == END:
                late = [mark for mark in before if mark not in self.barriers and mark not in self.done]
                assert not late, f"{message} came although {late} were not done"
                assert not self.came.get(message.bookmark), f"{message} came again after its removal was durable"
                self.came[message.bookmark] = False
                mine.append(message.bookmark)
            else:
                late = [mark for mark in before if mark in self.barriers and mark not in self.came]
                assert not late, f"{message} overtook {late}"
                self.held.append(message)
        return mine

    def committed(self) -> None:
        """All that was decided is on the disk."""
        self.came = dict.fromkeys(self.came, True)

    def step(self) -> None:
        """Something happens."""
        match self.chance.randrange(8):
            case 0 | 1 | 2:
                end = self.chance.random() < 0.3
                mark = self.broker.publish("t", END if end else b"{}")
                self.committed()
                self.published.append(mark)
                if end:
                    self.barriers.add(mark)
            case 3 | 4 if self.held:
                message = self.held.pop(self.chance.randrange(len(self.held)))
                if message.ack():
                    self.done.add(message.bookmark)
                self.committed()
            case 5 if self.held:
                self.held.pop().cancel()
            case 6:
                self.broker.advance(self.chance.choice([0.05, 4, 11]))
            case 7 if self.chance.random() < 0.5:
                self.broker.crash()
                self.broker.restart()
                self.begin()
            case _:
                pass
        self.look()

    def finish(self) -> None:
        """Everything is worked off; a queue that is declared now finds all of it in order."""
        for _ in range(10 * len(self.published)):
            for message in self.held:
                if message.ack():
                    self.done.add(message.bookmark)
            self.held.clear()
            self.broker.advance(11)
            self.look()
        assert self.done == set(self.published) - self.barriers
        assert set(self.came) == self.barriers
        self.broker.restart({"queue": [QUEUE, LATER]})
        worker = self.broker.subscribe("later", max_backlog=None)
        found = list[str]()
        while taken := worker.take():
            found += [message.bookmark for message in taken]
            for message in taken:
                message.ack()
        assert found == self.published
        self.broker.close()


def test_barriers_hold_whatever_crashes() -> None:
    for seed in seeds(examples(12, 2)):
        load = Load(seed)
        try:
            for _ in range(60):
                load.step()
            load.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
