"""Those that take anything beside filters: what no filter wants goes to them by slices, as it would one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from penstock.core.effects import Scan, Verb
from penstock.core.queue.administering import pause
from penstock.core.queue.contents import Contents
from penstock.core.queue.dispatching import matched
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.order.runs import NEVER
from penstock.records.queue_settings import FairnessModel
from unit.core_queue.test_queue import Bench, First

MODELS: tuple[FairnessModel, ...] = ("fast", "round-robin", "proportional")
MANY = 1000


def singly(patch: pytest.MonkeyPatch) -> list[int]:
    """What is taken one by one from now on: how many are in the list says how often."""
    taken: list[int] = []
    original = Contents.take_one

    def take_one(queue: Contents, key: Any) -> Any:
        taken.append(key[1])
        return original(queue, key)

    patch.setattr(Contents, "take_one", take_one)
    return taken


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("others", [0, 7])
def test_a_filter_that_wants_little_does_not_have_the_others_served_one_by_one(
    model: FairnessModel, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a backlog of two million: 37,000 messages a second beside a filter that matched none, else 400,000."""
    q = Bench(fairness_model=model, max_per_subscription_backlog=MANY)
    q.worker(filter=First("nobody's"))
    workers = [q.worker(max_backlog=MANY // 2) for _ in range(2)]
    mine = q.worker(filter=First("mine"))
    pause(q.queue, q.now, NEVER, q.sink)
    for one in range(others + 1):
        if one:
            q.publish(1, body=b"mine")
        q.publish(MANY // (others + 1), body=b"anybody's")
    taken = singly(monkeypatch)
    pause(q.queue, q.now, 0, q.sink)
    got = {one.tag: q.sent(to=one) for one in (*workers, mine)}
    assert sum(map(len, got.values())) >= MANY - others
    assert len(taken) <= 3 * others
    q.queue.check()


class Side(Bench):
    """A queue whose deliveries are kept by consumer; scans are answered at once, each for a part."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.bodies: dict[int, bytes] = {}
        self.workers: list[Consumer] = []
        self.got: dict[str, list[int]] = {}

    def look(self) -> None:
        while self.sink.effects:
            scans = [effect for effect in self.sink.effects if isinstance(effect, Scan)]
            for one in self.deliveries():
                self.got.setdefault(one.consumer.tag, []).extend(one.chunk)
            for scan in scans:
                seen = scan.chunk[: max(1, len(scan.chunk) // 2)]
                texts = [cast("First", one).text.encode() for one in scan.filters]
                found = [[lsn for lsn in seen if self.bodies[lsn].startswith(text)] for text in texts]
                self.queue.scanned(self.now, scan.token, found, seen[-1], self.sink)

    def put(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.bodies[self.sink.next_lsn] = body
            self.publish(1, body=body)


class Pair:
    """Two such queues with the same story: one gives slices, the other goes one by one."""

    def __init__(self, model: FairnessModel, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bound = self.dice.choice((0, 0, 25))
        self.sides = [Side(fairness_model=model, max_backlog=self.bound) for _ in range(2)]
        self.slices = 0

    def run(self, steps: int) -> None:
        original = cast("Any", matched)._give_plain

        def counted(*given: Any) -> tuple[int, int]:
            out = cast("tuple[int, int]", original(*given))
            self.slices += out[0] > 1
            return out

        for _ in range(steps):
            step = self.step()
            for side, give in zip(self.sides, (counted, lambda *_: (0, 0)), strict=True):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(matched, "_give_plain", give)
                    step(side)
                    side.time += 1
                    side.look()
                side.queue.check()
            assert self.sides[0].got == self.sides[1].got

    def step(self) -> Callable[[Side], None]:
        """What happens next: publishes that find nobody, a new consumer, or some that are settled."""
        dice = self.dice
        what, count = dice.randrange(6), dice.randrange(1, 9)
        if what <= 1:
            return partial(self.publish, [dice.choice((b"a", b"b", b"c", b"c", b"c")) for _ in range(4 * count)])
        if what == 2 and len(self.sides[0].workers) < 6:
            options: dict[str, Any] = {"max_backlog": 2 * count, "priority": dice.choice((0, 0, 0, 1))}
            if text := dice.choice(("a", "b", "z", "")):
                options["filter"] = First(text)
            elif not self.bound:
                options["no_ack"] = dice.random() < 0.2
            return lambda side: side.workers.append(side.worker(**options))
        return partial(self.settle, dice.randrange(6), count, dice.choice((Verb.ACK, Verb.RELEASE)))

    def publish(self, bodies: list[bytes], side: Side) -> None:
        pause(side.queue, side.now, NEVER, side.sink)
        side.put(bodies)
        pause(side.queue, side.now, 0, side.sink)

    def settle(self, at: int, count: int, verb: Verb, side: Side) -> None:
        one = side.workers[at % len(side.workers)] if side.workers else None
        if one is not None and not one.no_ack:
            held = side.got.get(one.tag, [])[-count:]
            del side.got.get(one.tag, [])[-count:]
            for lsn in held:
                side.settle(range(lsn, lsn + 1), verb, by=one)


@pytest.mark.parametrize("model", MODELS)
def test_slices_are_what_goes_one_by_one(model: FairnessModel) -> None:
    slices = 0
    for seed in range(6):
        pair = Pair(model, seed)
        pair.run(40)
        slices += pair.slices
    assert slices > 6
