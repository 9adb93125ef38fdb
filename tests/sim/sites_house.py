"""Sites that share a queue: real cores with logs of their own, links between each two, workers, kills and an operator.

What may happen: a link brings what is durable at its sender, in log order, in pieces of any size, or is cut; a queue is
deleted at one of them, and declared again; a site is killed and starts from what was durable, and its links go on where
the destination says; asks are lost or come late.  Acks of a worker wait for the disk, as over Flight; a kill takes
those that did not get there, and what was leased.

The judge knows of each message who works on it, at which site, and what was answered.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import itemgetter
from random import Random

import pyarrow as pa

from penstock.core.audit_log import Audit
from penstock.core.effects import Verb
from penstock.core.links.carried import Carries
from penstock.core.links.parcels import Parcel, read_ask
from penstock.core.links.sharing import Site
from penstock.core.links.telling import Telling
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.core.state.encoding import load
from penstock.core.state.lsns import flat
from penstock.log.record_batches import joined as as_one
from penstock.records.chunks import unpack_pairs
from penstock.records.entries import Control, Publishes
from penstock.records.kinds import ENDED, Kind
from unit.core.world import DURABLE, World, to_table

STEPS = 60
"""Of a schedule, for each site."""

ORIGINS = {"a": 11, "b": 22, "c": 33}

ALL = 1000
"""Batches that a link brings at most, when it brings all."""

BARRIER = b'{"k": 0}'

KINDS: dict[str, dict[str, object]] = {
    "plain": {}, "ranked": {"priority_expression": "/k"}, "tenants": {"fairness_key": "/k"},
    "deep": {"target_queue_depth": 3}, "limited": {"max_length": 4, "overflow": "reject-publish"},
    "few at once": {"max_backlog": 4}, "barred": {"barrier_expression": "/k = 0"},
}  # fmt: skip
"""Kinds of queues; what each site does by itself must not make two do it."""


class SiteWorld(World):
    """A site: its log, and how far it is durable.  What it has of other sites' logs its own log says."""

    def __init__(
        self, name: str, names: str, owner: str | None = None, linked: str | None = None, **settings: object
    ) -> None:
        """owner: of a group-local queue; None: it is a distributed one.  linked: to these sites; None: to all."""
        super().__init__(origin=ORIGINS[name])
        self.name, self.names = name, names
        self.linked = names if linked is None else linked
        self.durable = 0  # entries that are on the disk
        self._seen, self._came = 0, dict[int, tuple[int, int]]()
        self._batches = list[tuple[int, pa.RecordBatch]]()
        for one in self.met():
            self.core.meet(self.now, Site(one, ORIGINS[one]))
        kind = {} if owner is None else {"kind": "group-local", "initial_owner": owner, "group_local_queue_domain": "d"}
        self.settings = {**kind, **settings}
        self.declare_again()
        self.settle_in()
        self.sync()

    def settle_in(self) -> None:
        """What the settings say, which no log has."""
        for one in self.linked:
            if one != self.name:
                self.core.carries(one, self.topics(), {""} if self.linked != self.names else ())

    def met(self) -> str:
        """Sites that it knows from the first."""
        return self.names

    def topics(self) -> list[Carries]:
        """What links carry."""
        return [Carries("q")]

    def turn(self) -> None:
        super().turn()
        self.core.stamps.note(self.core.last_lsn, self.wall)

    @property
    def has_queue(self) -> bool:
        return self.core.find_queue("/", "q") is not None

    @property
    def queue(self) -> Queue:
        found = self.core.queue("/", "q")
        assert found is not None
        return found

    def declare_again(self) -> None:
        """The queue as it was, which is another one now."""
        self.declare("q", **self.settings)

    def came(self) -> dict[int, tuple[int, int]]:
        """Of what came from elsewhere: origin and LSN there."""
        for entry in self.entries[self._seen :]:
            if isinstance(entry, Control) and entry.kind is Kind.CARRIED:
                origin = self.core.peers.sites[load(entry.header)["peer"]].origin  # type: ignore[index]
                for here, there, count in struct.iter_unpack("<3q", entry.body):
                    self._came.update((here + n, (origin, there + n)) for n in range(count))
        self._seen = len(self.entries)
        return self._came

    def batches(self) -> list[tuple[int, pa.RecordBatch]]:
        """The log as it is read by links: each batch with its last LSN."""
        for table in self.tables[len(self._batches) :]:
            [batch] = table.combine_chunks().to_batches()
            self._batches.append((batch.column("lsn")[-1].as_py(), batch))
        return self._batches

    def barrier(self, lsn: int) -> bool:
        """Whether a message is one, which each site lets go itself."""
        batch, row = self.rows[lsn]
        return "barrier_expression" in self.settings and batch.bodies[row] == BARRIER

    def sync(self) -> None:
        self.durable = len(self.entries)

    def commits(self) -> list[int]:
        """How many entries there are on the disk if it has all that is surely there, or some commits more."""
        ends, at = {self.durable}, 0
        for table in self.tables:
            rows = table.num_rows
            while rows:
                entry = self.entries[at]
                rows -= len(entry) if isinstance(entry, Publishes) else 1
                at += 1
            ends.add(at)
        return sorted(end for end in ends if end >= self.durable)

    @property
    def durable_lsn(self) -> int:
        last = self.entries[self.durable - 1] if self.durable else None
        if last is None:
            return 0
        return last.first + len(last) - 1 if isinstance(last, Publishes) else last.lsn

    def kill(self) -> None:
        """All that is not durable is lost; the process starts again.  A group is durable as a whole or not at all."""
        del self.entries[self.durable :]
        self.tables = [to_table(self.entries)]
        self._seen, self._came, self._batches = 0, {}, []
        self.restart(clean=False)
        self.settle_in()
        self.sync()


class Fabric:
    """Some sites, links both ways between each two, and the judge."""

    def __init__(
        self,
        seed: int,
        names: str = "ab",
        *,
        kills: bool = True,
        proxies: bool = False,
        publishers: bool = False,
        deletes: bool = False,
        settings: dict[str, object] | None = None,
        row: bool = False,
        dies_at: int | None = None,
    ) -> None:
        """settings: of the queue; None: chance says of which kind it is.

        row: each has links to its neighbours alone.  dies_at: at this step some site dies, whatever else happens.
        """
        self.dice = Random(seed)
        self.kills, self.proxies, self.publishers, self.dies_at = kills, proxies, publishers, dies_at
        self.deletes = deletes
        owner = names[0] if self.dice.random() < 0.3 else None
        self.kind = self.dice.choice(list(KINDS)) if settings is None else "given"
        settings, owner = (KINDS[self.kind], owner) if settings is None else (settings, None)
        self.ways = {(one, two) for one in names for two in names if one != two}
        if row:
            self.ways = {pair for one, two in pairwise(names) for pair in ((one, two), (two, one))}
        near = {name: "".join(two for one, two in sorted(self.ways) if one == name) if row else None for name in names}
        self.sites = {name: SiteWorld(name, names, owner, near[name], **settings) for name in names}
        self.busiest = self.dice.choice(names)  # where most is published
        self.eager = self.dice.choice([name for name in names if name != self.busiest])  # where most is worked
        self.cut: set[tuple[str, str]] = set()
        self.tellings: dict[tuple[str, str], Telling] = {}
        self.asks: list[tuple[str, str, bytes]] = []  # under way: owner, asker, what for
        self.published: dict[tuple[int, int], bool] = {}  # whether it was confirmed
        self.working: dict[tuple[int, int], set[str]] = {}  # sites at which somebody works on it
        self.worked: Counter[tuple[int, int]] = Counter()  # how often it was given to a worker
        self.excused: Counter[tuple[int, int]] = Counter()  # how often the page allows once more
        self.by_proxy: set[tuple[int, int]] = set()  # what somebody took in the name of another
        self.looked: dict[str, int] = {}
        self.confirmed: dict[str, int] = {}  # by site: entries that were looked at
        self.given: set[tuple[int, int]] = set()  # what went out since somebody looked
        self.gone: set[tuple[int, int]] = set()  # what went with a queue, at all sites
        self.lent: dict[tuple[int, int], str] = {}  # who owned what a site published, as it deleted its queue
        self.rung: Counter[tuple[str, int, int]] = Counter()  # barriers that went to somebody, by site
        self.twins: dict[tuple[int, int], tuple[int, int]] = {}  # one message that was published at two sites
        self.sequence = 0
        self.counts: Counter[str] = Counter()
        for pair in self.pairs():
            self.heal(pair)

    # -- what happens

    def run_named(self, name: str) -> Counter[str]:
        """A run; a fault of it is told with what runs it again.  What happened, and how often."""
        try:
            self.run()
        except Exception as error:
            error.add_note(f"schedule {name}, kind {self.kind}")
            raise
        return self.counts

    def run(self) -> None:
        often = (
            (self.publish, 2), (self.work, 2), (self.leave, 1), (self.ack, 6), (self.sync, 4), (self.carry, 8),
            (self.ask, 6), (self.answer, 6), (self.cut_or_heal, 2),
        )  # fmt: skip
        acts = [act for act, times in often for _ in range(times)]
        if self.kills:
            acts.append(self.kill)
        if self.proxies:
            acts += [self.proxy, self.proxy]
        if self.publishers:
            acts += [self.change_sides] * 2
        if self.deletes:
            acts += [self.delete, self.declare, self.declare]
        acts += self.more()
        for step in range(STEPS * len(self.sites)):
            if step == self.dies_at:
                self.kill()
            self.dice.choice(acts)()
            self.look()
        self.settle_down()

    def more(self) -> list[Callable[[], None]]:
        """What else happens."""
        return []

    def any(self) -> SiteWorld:
        """Some site that has the queue; if kills have left it to none, one declares it."""
        if not any(site.has_queue for site in self.sites.values()):
            self.declare()
        return self.sites[self.dice.choice([name for name, site in self.sites.items() if site.has_queue])]

    def mostly(self, name: str, often: float = 0.7) -> SiteWorld:
        """A site, as often, if it has the queue; else any."""
        site = self.sites[name]
        return site if self.dice.random() < often and site.has_queue else self.any()

    def publish(self) -> None:
        site = self.mostly(self.busiest, 0.8)
        published = site.publish("q", *(self.body() for _ in range(self.dice.randint(1, 6))))
        self.published.update({(site.origin, lsn): False for lsn in published.positions if not site.barrier(lsn)})

    def done(self, key: tuple[int, int]) -> bool:
        """Whether somebody had a message, or the same one that was published at another site."""
        return bool(self.worked[key]) or (key in self.twins and bool(self.worked[self.twins[key]]))

    def change_sides(self) -> None:
        """A publisher hears nothing of what it sent to one site, and sends it again to another."""
        having = [site for site in self.sites.values() if site.has_queue]
        if len(having) < 2:
            return
        one, other = self.dice.sample(having, 2)
        count = self.dice.randint(1, 3)
        bodies = [self.body() for _ in range(count)]
        if self.kind == "barred":
            bodies = [b"{}"] * count
        first = self.numbered(one, bodies)
        if self.dice.random() < 0.5:
            self.carry()
            self.work()
            self.ack()
        second = self.numbered(other, bodies)
        self.sequence += count
        for here, there in zip(first, second, strict=True):
            if here is not None and there is not None:
                self.twins[here], self.twins[there] = there, here
                self.counts["sent twice"] += 1

    def numbered(self, site: SiteWorld, bodies: list[bytes]) -> list[tuple[int, int] | None]:
        """Publish with adjacent sequences; what each is, None for one that is refused, or known already."""
        out = list[tuple[int, int] | None]()
        for place, body in enumerate(bodies):
            batch = Publishes(site.core.topic("/", "", "q"), DURABLE, [body])
            published = site.core.publish(site.now, batch, publisher="p", sequence=self.sequence + 1 + place)
            site.turn()
            made = [(site.origin, lsn) for lsn in published.positions]
            self.published.update(dict.fromkeys(made, False))
            out.append(made[0] if made else None)
        return out

    def body(self) -> bytes:
        return b'{"k": %d}' % self.dice.randrange(4)

    def work(self) -> None:
        site = self.mostly(self.eager)
        if len(site.queue.consumers) < 2:
            site.subscribe(site.queue, tag=f"w{self.dice.random()}", max_backlog=self.dice.choice((1, 3, 8)))

    def leave(self) -> None:
        site = self.any()
        if site.queue.consumers:
            consumer = self.dice.choice(list(site.queue.consumers))
            for lsn in flat([run.chunk for run in consumer.leases.held()]).tolist():
                self.excused[self.known(site, lsn)] += 1
                self.working.get(self.known(site, lsn), set()).discard(site.name)
            site.core.unsubscribe(site.now, consumer, requeue=True)
            site.turn()

    def ack(self) -> None:
        site = self.mostly(self.eager)
        holders = [one for one in site.queue.holders() if not one.closed]
        if holders:
            consumer = self.dice.choice(holders)
            held = flat([run.chunk for run in consumer.leases.held()]).tolist()
            for lsn in held if self.dice.random() < 0.5 else held[:1]:
                site.core.settle(site.now, site.queue, [range(lsn, lsn + 1)], Verb.ACK, by=consumer)
                site.turn()
                self.working.get(self.known(site, lsn), set()).discard(site.name)

    def delete(self) -> None:
        """Somebody deletes the queue of a site: what was that one's goes with it everywhere, and workers there end.

        Not of one between others: what passes it meanwhile the page has each end work.
        """
        site = self.any()
        between = sum(site.name == one for one, _ in self.ways) > 1 and len(self.ways) < 6
        if between or sum(one.has_queue for one in self.sites.values()) < 2:
            return
        self.forsake(site)
        claims = site.queue.claims(site.core.peers)
        had = [(self.known(site, lsn), claims.of(lsn).owner) for lsn in flat(site.queue.snapshot()[0]).tolist()]
        site.core.delete_queue(site.now, site.queue)
        site.turn()
        self.gone |= {key for key, owner in had if owner == site.name}
        self.lent.update({key: owner for key, owner in had if owner != site.name and key[0] == site.origin})
        self.counts["deleted"] += 1
        if self.dice.random() < 0.5:
            self.again(site)

    def forsake(self, site: SiteWorld) -> None:
        """Whoever works at a site does so no longer."""
        leased = [lsn for _, run, _ in site.queue.standing("leased") for lsn in run.chunk] if site.has_queue else ()
        worked = [key for key, places in self.working.items() if site.name in places]
        for key in {*worked, *(self.known(site, lsn) for lsn in leased)}:
            self.working.get(key, set()).discard(site.name)
            self.excused[key] += 1

    def declare(self) -> None:
        """A site that has the queue no more has it again."""
        lacking = [site for site in self.sites.values() if not site.has_queue]
        if lacking:
            self.again(self.dice.choice(lacking))

    def again(self, site: SiteWorld) -> None:
        """Links may come up anew at once, or tell of it before what follows it."""
        site.declare_again()
        if self.dice.random() < 0.5:
            for pair in self.pairs():
                if site.name in pair and pair not in self.cut:
                    self.heal(pair)

    def sync(self) -> None:
        """What is there is on the disk, and who told it hears that."""
        site = self.sites[self.dice.choice(list(self.sites))]
        site.sync()
        for sender, receiver in self.pairs():
            if receiver == site.name and (sender, receiver) not in self.cut:
                self.sites[sender].core.note_link(self.sites[sender].now, receiver, acked=site.core.heard(sender))
                self.sites[sender].turn()

    def kill(self) -> None:
        self.die(self.sites[self.dice.choice(list(self.sites))])

    def die(self, site: SiteWorld) -> None:
        self.counts["killed"] += 1
        site.durable = self.dice.choice(site.commits())  # what nobody was told of yet may be on the disk all the same
        self.forsake(site)
        lost = {self.known(site, lsn) for entry in site.entries[site.durable :] for lsn in touched(entry)}
        for key in lost:
            self.excused[key] += 1
        before = {(site.origin, lsn) for entry in site.entries if isinstance(entry, Publishes) for lsn in lsns(entry)}
        site.kill()
        after = {(site.origin, lsn) for entry in site.entries if isinstance(entry, Publishes) for lsn in lsns(entry)}
        for key in before - after:
            assert not self.published.pop(key, False), f"{key} was confirmed and is lost"
        self.looked[site.name] = self.confirmed[site.name] = 0
        self.asks = [one for one in self.asks if site.name not in one[:2]]
        self.cut |= {pair for pair in self.pairs() if site.name in pair and self.dice.random() < 0.5}
        for pair in self.pairs():
            if site.name in pair and pair not in self.cut:
                self.heal(pair)

    def cut_or_heal(self) -> None:
        if self.cut and self.dice.random() < 0.7:
            self.heal(self.dice.choice(sorted(self.cut)))
        else:
            self.cut.add(self.dice.choice(list(self.pairs())))

    def heal(self, pair: tuple[str, str]) -> None:
        """A link comes up: both sides say who they are, what they have, and how far the other's log is here."""
        self.cut.discard(pair)
        sender, receiver = (self.sites[name] for name in pair)
        self.tellings[pair] = sender.core.telling(receiver.name, upto=receiver.core.heard(sender.name))
        sender.core.link_up(receiver.name)
        assert receiver.core.share(sender.name, sender.core.said_to(receiver.name)) == []
        assert sender.core.share(receiver.name, receiver.core.said_to(sender.name)) == []

    def pairs(self) -> Iterator[tuple[str, str]]:
        return ((one, other) for one in self.sites for other in self.sites if (one, other) in self.ways)

    def carry(self) -> None:
        up = [pair for pair in self.pairs() if pair not in self.cut]
        if up:
            self.bring(self.dice.choice(up), self.dice.randint(1, 6))

    def leaves(self, site: SiteWorld) -> int:
        """Up to which LSN the log of a site may be told to others."""
        return site.durable_lsn

    def bring(self, pair: tuple[str, str], most: int) -> bool:
        """What so many turns of a sender have to tell, over its link; whether there was any."""
        sender, receiver = self.sites[pair[0]], self.sites[pair[1]]
        telling, bound, some = self.tellings[pair], self.leaves(sender), False
        after, upto = sender.core.quiet.get(receiver.name, (0, 0))
        for last, batch in self.batches(sender, telling.upto, bound, upto, most):
            quiet = after <= telling.upto and last <= upto
            for parcel in self.tell(telling, sender, batch):
                assert not quiet, f"{sender.name} says that up to {upto} nothing is news to {receiver.name}: {parcel}"
                assert receiver.core.hear(receiver.now, sender.name, parcel.head, parcel.rows).faults == ()
                receiver.turn()
                some = True
        self.look()
        return some

    def batches(
        self, sender: SiteWorld, after: int, bound: int, cut: int, most: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """So many batches of a log at most, up to an LSN; often joined, as links read it, but not over the cut."""
        found = sender.batches()
        found = found[bisect_right(found, after, key=itemgetter(0)) : bisect_right(found, bound, key=itemgetter(0))]
        found, at = found[:most], bisect_right(found[:most], cut, key=itemgetter(0))
        for some in (found[:at], found[at:]):
            if len(some) > 1 and (most >= ALL or self.dice.random() < 0.5):
                yield some[-1][0], as_one([batch for _, batch in some])
            else:
                yield from some

    def tell(self, telling: Telling, sender: SiteWorld, batch: pa.RecordBatch) -> list[Parcel]:
        return list(telling.parcels(batch))

    def ask(self) -> None:
        site = self.mostly(self.eager)
        site.advance(self.dice.choice((0.1, 2)))
        self.asked_by(site)

    def asked_by(self, site: SiteWorld) -> None:
        """What a site asks for, or hands on, is under way."""
        asked = site.core.asks(site.now)
        self.counts["handed on"] += sum(len(read_ask(one.ask).path) > 1 for one in asked)
        self.asks += [(one.to, site.name, one.ask) for one in asked]
        site.turn()

    def answer(self) -> None:
        """An ask arrives, or is lost."""
        if not self.asks:
            return
        owner, asker, ask = self.asks.pop(self.dice.randrange(len(self.asks)))
        if (asker, owner) in self.cut:
            return
        site = self.sites[owner]
        self.give(site, asker, ask)
        site.turn()
        if read_ask(ask).path:
            self.asked_by(site)

    def give(self, site: SiteWorld, asker: str, ask: bytes) -> None:
        self.counts["granted"] += site.core.answer(site.now, asker, ask)

    def proxy(self) -> None:
        """An operator has one site act for others, which are cut off, and may be alive."""
        site = self.mostly(self.eager)
        gone = self.dice.choice([name for name in self.sites if (name, site.name) in self.ways])
        self.cut |= {(gone, site.name), (site.name, gone)}
        site.core.absent |= {name for name in self.sites if (name, site.name) in self.cut}
        before = len(site.entries)
        site.core.proxy(site.now, site.queue, True)
        site.core.asks(site.now)
        site.core.proxy(site.now, site.queue, False)
        site.core.absent.clear()
        site.turn()
        for entry in site.entries[before:]:
            if isinstance(entry, Control) and entry.kind is Kind.OWN:
                for lsn in touched(entry):
                    key = self.known(site, lsn)
                    self.excused[key] += 2  # who had it goes on, and may give it on once more
                    self.by_proxy.add(key)
                    self.counts["proxied"] += 1

    # -- the judge

    def known(self, site: SiteWorld, lsn: int) -> tuple[int, int]:
        """What a message is called everywhere, though its site may have forgotten that."""
        return site.came().get(lsn, (site.origin, lsn))

    def look(self) -> None:
        """Who works on what; what is durable is confirmed."""
        for site in self.sites.values():
            for one in site.deliveries[self.looked.get(site.name, 0) :]:
                for lsn in one.chunk:
                    if site.barrier(lsn):
                        self.rung[site.name, *self.known(site, lsn)] += 1
                        before = [one for one in flat(site.queue.snapshot()[0]).tolist() if one < lsn]
                        assert not before, f"the barrier {lsn} went at {site.name} before {before}"
                        continue
                    key = self.known(site, lsn)
                    self.worked[key] += 1
                    self.given.add(key)
                    self.working.setdefault(key, set()).add(site.name)
            self.looked[site.name] = len(site.deliveries)
            start, self.confirmed[site.name] = self.confirmed.get(site.name, 0), site.durable
            for entry in site.entries[start : site.durable]:
                if isinstance(entry, Publishes):
                    for lsn in lsns(entry):
                        if self.known(site, lsn) == (site.origin, lsn) and not site.barrier(lsn):
                            assert (site.origin, lsn) in self.published, f"nobody published {lsn} at {site.name}"
                            self.published[site.origin, lsn] = True
            if site.has_queue and site.queue.stopped:
                continue  # what its memory has says nothing of who works on what
            standing = site.queue.standing("leased") if site.has_queue else ()
            held = {lsn for _, run, _ in standing for lsn in run.chunk}
            for key, places in list(self.working.items()):
                if not places:
                    del self.working[key]
                elif site.name in places and not any(a in held for a, _ in where(site, *key, key[1] + 1)):
                    places.discard(site.name)
        for key, places in self.working.items():
            assert len(places) < 2 or key in self.by_proxy, f"{key} is worked at {sorted(places)}"
        for key in self.given:
            count = self.worked[key]
            assert count <= 1 + self.excused[key], f"{key} was given out {count} times, {self.excused[key]} excused"
        self.given.clear()

    def settle_down(self) -> None:
        """All have the queue, links heal, everybody works; then all that was confirmed was worked, and none has any."""
        for site in self.sites.values():
            if not site.has_queue:
                site.declare_again()
        for pair in self.pairs():
            self.heal(pair)
        for _ in range(60):
            busy = False
            for site in self.sites.values():
                site.sync()
                if not site.queue.consumers:
                    site.subscribe(site.queue, tag=f"w{self.dice.random()}")
            for pair in self.pairs():
                busy |= self.bring(pair, ALL)
            for site in self.sites.values():
                for consumer in list(site.queue.holders()):
                    while not consumer.closed and consumer.leases.count:
                        self.take(site, consumer)
                        busy = True
            self.look()
            if not busy and not self.all_ask():
                break
        self.judge()

    def judge(self) -> None:
        """All that was confirmed was worked, no site has any of it, and each is what its log says."""
        for site in self.sites.values():
            site.queue.check()
            left = [self.known(site, lsn) for lsn in flat(site.queue.snapshot()[0]).tolist()]
            assert not left, f"site {site.name} still has {left}: {list(site.queue.foreign_spans())}"
            for entry in site.entries:
                if isinstance(entry, Publishes):
                    quiet = [self.known(site, lsn) for lsn in lsns(entry) if site.barrier(lsn) and lsn > site.queue.id]
                    quiet = [key for key in quiet if not self.rung[site.name, *key] and key not in self.gone]
                    assert not quiet, f"the barriers {quiet} never went at {site.name}"
            folded = site.folded(40)
            if site.queue.ranked_by is None:  # the log has no ranks
                assert canonical(site.core.durable_state()) == canonical(folded)
            audit = Audit()
            for table in site.tables:
                for batch in table.to_batches():
                    audit.feed(batch)
            findings = audit.finish(folded).findings
            assert not findings, f"site {site.name}: {findings}"
        missing = [key for key, confirmed in self.published.items() if confirmed and not self.done(key)]
        missing = [key for key in missing if not (self.went(key) or (key in self.twins and self.went(self.twins[key])))]
        assert not missing, f"{missing} were confirmed and never worked"
        for site in self.sites.values():
            for numbers in site.core.carried.values():
                here = [run[1] for run in numbers.runs if run[1]]
                assert here == sorted(here), f"site {site.name} has messages of an origin in another order"
            assert not site.core.early, f"site {site.name} waits for {list(site.core.early)}"

    def went(self, key: tuple[int, int]) -> bool:
        """Whether a message went with queues: its owner's; or that of its site, and its owner has it in none."""
        if key in self.gone or key not in self.lent:
            return key in self.gone
        owner = self.sites[self.lent[key]]
        return all(lsn < owner.queue.id for lsn, _ in where(owner, *key, key[1] + 1))

    def all_ask(self) -> bool:
        """Two sites may each hold back what stands before a barrier of the other, or one may own what it has not.

        Whether somebody is given some.
        """
        given = 0
        for site in self.sites.values():
            site.advance(20)
            asked = site.core.asks(site.now)
            site.turn()
            for one in asked:
                given += self.sites[one.to].core.answer(self.sites[one.to].now, site.name, one.ask)
                self.sites[one.to].turn()
        return given > 0

    def take(self, site: SiteWorld, consumer: Consumer) -> None:
        chunk = next(consumer.leases.held()).chunk
        site.core.settle(site.now, site.queue, [chunk], Verb.ACK, by=consumer)
        site.turn()
        self.look()


def lsns(entry: Publishes) -> list[int]:
    return list(range(entry.first, entry.first + len(entry)))


def touched(entry: Publishes | Control) -> list[int]:
    """Messages whose leases or ends a record tells."""
    if isinstance(entry, Publishes) or entry.kind not in (ENDED | {Kind.GRANT, Kind.RETURN, Kind.OWN}):
        return []
    _, pairs = unpack_pairs(entry.body)
    return [lsn for a, b in zip(pairs[::2], pairs[1::2], strict=True) for lsn in range(a, min(b, a + 50))]


def where(site: SiteWorld, origin: int, first: int, stop: int) -> list[tuple[int, int]]:
    """Where messages stand at a site."""
    if origin == site.origin:
        return [(first, stop)]
    return site.core._numbers(origin).here(first, stop)
