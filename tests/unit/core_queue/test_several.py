"""Acks of several consumers at once: the same as one after the other, in one record where that shows nowhere."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import pytest

from choices import spread
from penstock.core.effects import Verb
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.order.runs import Run
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling.leases import Leases
from penstock.expr import compile_filter
from penstock.records.chunks import as_chunk
from penstock.records.entries import Control
from penstock.records.kinds import Kind
from unit.core.world import World

FILTERS = (None, "/g = 0", "/g = 0", "/g < 2")
SETTINGS: tuple[dict[str, object], ...] = (
    {},
    {"lease_period": 5_000_000},
    {"lease_period": 5_000_000, "leasing": "strict", "fairness_model": "proportional"},
    {"max_backlog": 5},
    {"semantics": "at-most-once", "fairness_model": "round-robin"},
    {"max_length": 6},
)


class Side:
    """A world in which messages are known by their bodies, for LSNs differ."""

    def __init__(self, settings: dict[str, object], *, several: bool) -> None:
        self.world = World()
        self.queue: Queue = self.world.declare("q", **settings)
        self.consumers: list[Consumer] = []
        self.lsns: dict[bytes, int] = {}
        self.several = several

    def subscribe(self, filter: str | None, **how: Any) -> None:
        compiled = None if filter is None else compile_filter(filter)
        self.consumers.append(self.world.subscribe(self.queue, f"c{len(self.consumers)}", filter=compiled, **how))

    def publish(self, bodies: Sequence[bytes]) -> None:
        first = self.world.publish("q", *bodies).first
        self.lsns.update(zip(bodies, range(first, first + len(bodies)), strict=True))

    def ack(self, wanted: Sequence[tuple[int, list[bytes]]]) -> int:
        core, now = self.world.core, self.world.now
        settled = [
            (self.consumers[place], [as_chunk(sorted(self.lsns[body] for body in bodies))]) for place, bodies in wanted
        ]
        lsns = [lsn for _, chunks in settled for lsn in chunks[0]]
        if self.several and len(lsns) == len(settled) > 0 and all(a < b for a, b in pairwise(lsns)):
            affected = core.settle_each(now, self.queue, [consumer for consumer, _ in settled], as_chunk(lsns))
        elif self.several:
            affected = core.settle_several(now, self.queue, settled)
        else:
            affected = 0
            for one, own in groupby(settled, key=itemgetter(0)):  # what neighbours of one consumer say is one command
                each = [chunk for _, chunks in own for chunk in chunks]
                affected += core.settle(now, self.queue, each, Verb.ACK, by=one)
        self.world.turn()
        return affected

    def give_back(self, place: int, bodies: Sequence[bytes], verb: Verb) -> int:
        core, now, one = self.world.core, self.world.now, self.consumers[place]
        chunks = [range(self.lsns[body], self.lsns[body] + 1) for body in bodies]
        if self.several and verb is Verb.CANCEL:
            affected = core.cancel_each(now, one, chunks)
        else:
            affected = sum(core.settle(now, self.queue, [chunk], verb, by=one) for chunk in chunks)
        self.world.turn()
        return affected

    def got(self, consumer: Consumer) -> list[bytes]:
        rows = self.world.rows
        return [rows[lsn][0].bodies[rows[lsn][1]] for lsn in self.world.inbox[consumer]]

    def told(self) -> object:
        queue = self.queue
        told = queue.so_far
        counts = (queue.ready, queue.leased, queue.outstanding, told.acked, told.stale, told.delivered)
        held = [sorted(lsn for run in one.leases.held() for lsn in run.chunk) for one in self.consumers]
        names = {lsn: body for body, lsn in self.lsns.items()}
        return (
            counts, [self.got(one) for one in self.consumers], self.world.contents(queue),
            [[names[lsn] for lsn in lsns] for lsns in held],
        )  # fmt: skip


def publish(sides: Sequence[Side], chance: random.Random, below: int) -> None:
    """The same messages in each world, fewer than this; all of a world have a number of their own."""
    first, count = len(sides[0].lsns), chance.randrange(1, below)
    bodies = [b'{"n": %d, "g": %d}' % (n, chance.randrange(3)) for n in range(first, first + count)]
    for side in sides:
        side.publish(bodies)


@pytest.mark.parametrize("seed", spread(range(18), 9))
def test_several_acks_are_the_same_as_one_after_the_other(seed: int) -> None:
    chance = random.Random(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    sides = [Side(dict(settings), several=True), Side(dict(settings), several=False)]
    client = chance.choice(["", "peer/1"])
    for _ in range(40):
        step = chance.random()
        if step < 0.15 or not sides[0].consumers:
            text, backlog = chance.choice(FILTERS), chance.choice([None, 1, 3])
            for side in sides:
                side.subscribe(text, max_backlog=backlog, client=client)
        elif step < 0.5:
            publish(sides, chance, 7)
        elif step < 0.55:
            for side in sides:
                side.world.advance(6)
        else:  # what they got, some of it settled before, or by now with another
            got = [(place, sides[0].got(one)) for place, one in enumerate(sides[0].consumers)]
            wanted = [
                (place, chance.sample(bodies[-6:], chance.randrange(1, min(len(bodies), 6) + 1)))
                for place, bodies in got
                if bodies and chance.random() < 0.8
            ]
            if chance.random() < 0.5:  # one of each, the oldest first, of some consumers several
                owners = {body: place for place, bodies in wanted for body in bodies[:2]}
                wanted = [(owners[body], [body]) for body in sorted(owners, key=sides[0].lsns.__getitem__)]
            affected = [side.ack([(place, sorted(set(bodies))) for place, bodies in wanted]) for side in sides]
            assert affected[0] == affected[1]
        assert sides[0].told() == sides[1].told()
    for side in sides:
        side.queue.check()
        side.world.restart(clean=True)
        side.queue = side.world.core.queue("/", "q")
    assert sides[0].world.contents(sides[0].queue) == sides[1].world.contents(sides[1].queue)


RETURNS: tuple[dict[str, object], ...] = (
    {},
    {"fairness_model": "fast"},
    {"max_deliveries": 3},
    {"max_backlog": 5},
    {"semantics": "at-most-once"},
    {"max_length": 6},
    {"lease_period": 5_000_000},
    {"fairness_model": "proportional"},
)


@pytest.mark.parametrize("seed", spread(range(32), 16))
def test_what_one_gives_back_singly_is_the_same_together_as_one_after_the_other(seed: int) -> None:
    chance = random.Random(seed)
    settings: dict[str, object] = {"fairness_model": "round-robin", **RETURNS[seed % len(RETURNS)]}
    filters = (None, None, "/g = 0") if seed % 3 == 2 else (None,)
    sides = [Side(dict(settings), several=True), Side(dict(settings), several=False)]
    for step in range(60):
        what = chance.random()
        if step < 3 or what < 0.05:
            text, backlog, priority = chance.choice(filters), chance.choice([2, 3, 6]), chance.choice([0, 0, 1])
            for side in sides:
                side.subscribe(text, max_backlog=backlog, priority=priority)
        elif what < 0.3:
            publish(sides, chance, 12)
        elif what < 0.35:
            for side in sides:
                side.world.advance(6)
        else:  # what one got of late, some of it settled before, or by now with another
            place = chance.randrange(len(sides[0].consumers))
            bodies = list(dict.fromkeys(sides[0].got(sides[0].consumers[place])[-8:]))
            bodies = chance.sample(bodies, chance.randrange(len(bodies) + 1))
            if chance.random() < 0.7:
                bodies.sort(key=sides[0].lsns.__getitem__)
            verb = chance.choice((Verb.CANCEL, Verb.CANCEL, Verb.EXPIRE, Verb.ACK))
            assert len({side.give_back(place, bodies, verb) for side in sides}) == 1
        assert sides[0].told() == sides[1].told()
    for side in sides:
        side.queue.check()


def test_what_one_gives_back_singly_is_one_record() -> None:
    side = Side({"fairness_model": "round-robin"}, several=True)
    side.consumers = [side.world.subscribe(side.queue, "c")]
    bodies = [b"%d" % n for n in range(5)]
    side.publish(bodies)
    assert side.give_back(0, bodies, Verb.CANCEL) == 5
    returns = [one for one in side.world.entries if isinstance(one, Control) and one.kind is Kind.RETURN]
    assert len(returns) == 1
    assert side.got(side.consumers[0]) == bodies * 2


def test_acks_of_one_client_are_one_record() -> None:
    side = Side({}, several=True)
    side.consumers = [side.world.subscribe(side.queue, f"c{n}", client="peer/1") for n in range(5)]
    bodies = [b"%d" % n for n in range(5)]
    side.publish(bodies)
    assert side.ack([(n, side.got(one)) for n, one in enumerate(side.consumers)]) == 5
    settles = [one for one in side.world.entries if isinstance(one, Control) and one.kind is Kind.SETTLE]
    first = side.lsns[bodies[0]]
    assert [array("q", one.body).tolist() for one in settles] == [[side.queue.id, first, first + 5]]


def test_acks_of_several_clients_are_one_record_that_says_who_has_done_what() -> None:
    side = Side({}, several=True)
    side.consumers = [side.world.subscribe(side.queue, f"c{n}", client=f"peer/{n}") for n in range(3)]
    bodies = [b"%d" % n for n in range(3)]
    side.publish(bodies)
    got = [(n, side.got(one)) for n, one in enumerate(side.consumers)]
    assert side.ack(got[::-1]) == 3
    settles = [one for one in side.world.entries if isinstance(one, Control) and one.kind is Kind.SETTLE]
    first = side.lsns[bodies[0]]
    assert [array("q", one.body).tolist() for one in settles] == [
        [side.queue.id, *(edge for lsn in range(first, first + 3) for edge in (lsn, lsn + 1))]
    ]
    whose = {side.lsns[own[0]]: f"peer/{n}" for n, own in got}
    assert json.loads(settles[0].header) == {"by": [[whose[lsn], 1] for lsn in sorted(whose)]}
    side.world.restart(clean=True)
    assert not side.world.contents(side.world.core.queue("/", "q"))


def test_one_ack_of_each_that_finds_one_message_gone_settles_the_others() -> None:
    side = Side({}, several=True)
    side.consumers = [side.world.subscribe(side.queue, f"c{n}", client="peer/1") for n in range(5)]
    bodies = [b"%d" % n for n in range(5)]
    side.publish(bodies)
    got = [(n, side.got(one)) for n, one in enumerate(side.consumers)]
    assert side.ack(got[2:3]) == 1
    assert side.ack(got) == 4
    assert (side.queue.so_far.acked, side.queue.so_far.stale, side.queue.leased, side.queue.outstanding) == (5, 1, 0, 0)
    side.queue.check()


def test_leases_given_one_by_one_are_cut_in_order_however_their_acks_are_written() -> None:
    leases = Leases()
    for lsn in (3, 7, 8):
        leases.add(Run(range(lsn, lsn + 1), True))
    for chunk in (range(3, 4), array("q", [7, 8])):
        taken, missing = leases.take(chunk)
        assert not missing
        assert [lsn for run in taken for lsn in run.chunk] == list(chunk)
    assert not leases.count
    assert not leases.runs


def test_an_ack_in_order_leaves_the_runs_as_they_are() -> None:
    leases = Leases()
    for lsn in (3, 7, 9):
        leases.add(Run(range(lsn, lsn + 1), True))
    leases.take(range(3, 4))
    assert [type(run) for run in leases.runs] == [Run]
