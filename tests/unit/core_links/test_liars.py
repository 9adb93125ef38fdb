"""A site that lies by saying what a site may say: whatever comes of it, and in whatever order.

Queues that no link of ours carries to it are none of its business, memory is what the log folds to, what is written for
what it says has a bound, and who is honest is told and heard as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from choices import SEED, spread
from penstock.core.effects import Verb
from penstock.core.links.carried import Carries
from penstock.core.links.ownership import WHYS, Claim
from penstock.core.links.parcels import Ask, Enquiry, Numbers, Parcel, Piece, Told
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.core.state.lsns import flat
from penstock.errors import PenstockError
from penstock.records.chunks import LSN_LIMIT
from penstock.records.entries import Control, Publishes
from unit.core.walking import walk
from unit.core.world import World
from unit.core_links.test_lies import OFFER, rows
from unit.core_links.test_linking import Linked

QUEUES: dict[str, dict[str, object]] = {
    "q": {}, "private": {}, "found": {"recovery_point": "epoch"},
    "given": {"kind": "group-local", "initial_owner": "b", "group_local_queue_domain": "d"},
}  # fmt: skip
"""All but `private` are linked."""

WRITTEN_BESIDES, WRITTEN_EACH = 2_000, 20
"""Bytes of records for whatever it says, and for each byte of that."""


class Liar:
    """What b says to a: true or not, it chooses from what may be said."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.at = 1_000

    def lsn(self) -> int:
        dice = self.dice
        return dice.choice((1, 5, 30, 100, 1_000, 1 << 32, LSN_LIMIT - 1, dice.randrange(1, 200)))

    def spans(self, most: int = LSN_LIMIT) -> tuple[tuple[int, int, int], ...]:
        ends = [sorted((self.lsn(), self.lsn())) for _ in range(self.dice.choice((1, 2, 5, 40)))]
        some = [(low, min(high, low + most)) for low, high in ends if low < high]
        return tuple((self.dice.choice((11, 22, 33)), *span) for span in some or [(1, 2)])

    def queue(self) -> str:
        return self.dice.choice((*QUEUES, "q", "unknown"))

    def claim(self) -> Claim:
        why = self.dice.choice(WHYS)
        return Claim(self.dice.choice("abc"), 0 if why == "first" else self.dice.choice((1, 3, LSN_LIMIT - 1)), why)

    def offer(self) -> dict[str, object]:
        dice, name = self.dice, self.queue()
        kind = dice.choice(("distributed", "distributed", "group-local", "local"))
        said = {
            **OFFER, "identity": ["/", name, kind, dice.choice(("", "d"))], "topic": ["", dice.choice((name, "q"))],
            "initial_owner": dice.choice((None, "a", "b")), "sends": dice.random() < 0.8, "since": self.lsn(),
            "back": dice.choice((None, 1, self.lsn())), "heard": dice.choice((None, [], [[11, self.lsn()]])),
        }  # fmt: skip
        if dice.random() < 0.3:
            said["ends"] = [{"identity": said["identity"], "since": 1, "until": self.lsn(), "topic": said["topic"]}]
        return said

    def told(self) -> Told:
        claim = self.claim() if self.dice.random() < 0.6 else None
        return Told(self.dice.choice(("/", "/", "v")), self.queue(), self.spans(), claim)

    def parcel(self) -> Parcel:
        dice, count = self.dice, self.dice.choice((0, 0, 1, 3))
        first = min(dice.choice((self.at, self.lsn())), LSN_LIMIT - 9)
        self.at += dice.choice((1, 5, 50))
        told = [self.told() for _ in range(dice.choice((0, 1, 3)))]
        offers = tuple(self.offer() for _ in range(dice.choice((0, 0, 1, 2))))
        if not count:
            return Parcel(self.at, told=tuple(told), offers=offers)
        path = dice.choice(((22,), (33, 22), (11, 22)))
        piece = Piece(path, dice.choice(("/", "/", "v")), "", (), count, dice.choice((0, first)))
        batch = rows(*range(first, first + count), key=dice.choice((*QUEUES, "t")))
        numbers = (Numbers("p", 22, self.lsn(), self.lsn(), dice.choice((1, LSN_LIMIT - 1))),)
        return Parcel(self.at, (piece,), batch, tuple(told), numbers, offers)

    def says(self, a: Linked) -> int:
        """One thing; of how many bytes."""
        act = self.dice.randrange(4)
        if act == 0:
            path = self.dice.choice(((), ("c",), ("c", "b"), ("a",)))
            words = Ask("/", self.queue(), self.spans(100), path).words
            a.core.answer(a.now, "b", words)
        elif act == 1:
            words = Enquiry("/", self.queue(), self.spans(), *self.claim()[1:]).words
            a.core.enquired(a.now, "b", words)
        else:
            parcel = self.parcel()
            words = parcel.head
            a.core.hear(a.now, "b", words, parcel.rows)
            return len(words) + (0 if parcel.rows is None else parcel.rows.nbytes)
        return len(words)


def goes_on(a: Linked, dice: Random) -> None:
    """What else happens there."""
    queue: Queue = a.q(dice.choice([name for name in QUEUES if name != "private"]))
    act = dice.randrange(5)
    if act == 0:
        a.publish(queue.name, b"{}")
    elif act == 1:
        a.subscribe(queue, tag=f"w{dice.random()}", max_backlog=3)
    elif act == 2:
        for holder in [one for one in queue.holders() if not one.closed]:
            if held := [run.chunk for run in holder.leases.held()]:
                a.core.settle(a.now, queue, held, Verb.ACK, by=holder)
    elif act == 3:
        a.advance(dice.choice((0.1, 3)))
        a.core.asks(a.now)
        a.core.enquiries(a.now)
    elif dice.random() < 0.3:
        a.core.delete_queue(a.now, queue)
        a.turn()
        a.declare(queue.name, **QUEUES[queue.name])
    else:
        walk(a)
    a.turn()


def written(world: World, start: int) -> int:
    some: Sequence[Publishes | Control] = world.entries[start:]
    return sum(sum(map(len, one.bodies)) if isinstance(one, Publishes) else len(one.body) for one in some)


@pytest.mark.parametrize("seed", spread(range(10), 4))
def test_a_liar_harms_no_queue_that_is_not_linked_and_writes_no_more_than_it_says(seed: int, effort: int) -> None:
    a, b, c = Linked("a"), Linked("b"), Linked("c")
    b.declare("q")
    c.declare("q")
    for name, settings in QUEUES.items():
        a.declare(name, **settings)
    a.core.declare_topic(a.now, "/", "", "t")
    topics = [Carries(name) for name in (*QUEUES, "t") if name != "private"]
    for other in (b, c):
        a.core.carries(other.name, topics, ("east", "west", "south"))
        other.core.carries("a", [Carries(".*")])
    for name in (*QUEUES, "t"):
        a.publish(name, *[b"{}"] * 20)
    for other in (b, c):
        assert a.link(other, *topics) == other.link(a) == []
    mine = flat(a.q("private").snapshot()[0]).tolist()
    liar, dice = Liar(SEED + seed), Random(SEED + seed)
    for _ in range(150 * effort):
        before, said = len(a.entries), 0
        try:
            said = liar.says(a)
        except (ValueError, PenstockError):
            continue
        finally:
            a.turn()
            assert written(a, before) <= WRITTEN_BESIDES + WRITTEN_EACH * (said or 1_000)
        goes_on(a, dice)
    private = a.q("private")
    assert set(mine) <= set(flat(private.snapshot()[0]).tolist())
    assert not any(first <= mine[-1] and mine[0] < stop for first, stop, _ in private.foreign_spans())
    for queue in a.core.queues():
        queue.check()
    assert canonical(a.core.durable_state()) == canonical(a.folded())
    c.publish("q", b"honest")
    c.send(a)
    assert a.core.heard("c") > 0
    a.send(c)
    c.q().check()
