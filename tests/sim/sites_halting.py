"""Sites at which a fault stops the queue, until they start again.

The fault is planted at some call of what a queue does by itself: what is due there, and what somebody who leaves gives
back; or at some call of what a client asks for.  Links go on bringing what others publish and settle, and ask; an
operator may delete the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from penstock.core.commands.containing import Due, part_of
from penstock.core.effects import Verb
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.whole import DISPATCH
from penstock.core.state.lsns import flat
from penstock.errors import Unavailable
from penstock.records.entries import Publishes
from planting import Plant, Planted
from sim.sites_house import KINDS, Fabric, SiteWorld
from unit.core.world import DURABLE

CALLS_MOST = 150
"""A fault is at one of the first so many calls."""

MORE_KINDS: dict[str, dict[str, object]] = {
    "once": {"unique": True, "dedup_key": "/no"}, "blocks": {"max_length": 4, "overflow": "block"},
}  # fmt: skip
"""They would compare what comes with what they have."""


class Halting(Fabric):
    def __init__(self, seed: int, names: str, **how: bool) -> None:
        dice = Random(f"faults {seed}")
        kinds = KINDS | MORE_KINDS
        kind = dice.choice(list(kinds))
        owner = {"kind": "group-local", "initial_owner": "a", "group_local_queue_domain": "d"}
        super().__init__(seed, names, settings={**kinds[kind], **(owner if dice.random() < 0.3 else {})}, **how)
        self.kind = kind

    def work(self) -> None:
        site = self.mostly(self.eager)
        if site.queue.stopped:
            return
        if len(site.queue.consumers) < 2:
            site.subscribe(site.queue, tag=f"w{self.dice.random()}", max_backlog=self.dice.choice((1, 3, 8)))
        if self.dice.random() < 0.7:
            self.dice.choice((self.fault, self.fail))(site)

    def fault(self, site: SiteWorld) -> None:
        """Something fails as the queue does what is due, and mostly as it takes back what somebody had."""
        core, queue = site.core, site.queue
        plant = Plant(self.dice.randint(1, CALLS_MOST), "penstock.core.queue.")
        leaving: Consumer | None = None
        if (holders := [one for one in queue.consumers if one.leases.count]) and self.dice.random() < 0.7:
            leaving = self.dice.choice(holders)
            for lsn in flat([run.chunk for run in leaving.leases.held()]).tolist():
                self.excused[self.known(site, lsn)] += 1
                self.working.get(self.known(site, lsn), set()).discard(site.name)
        queue.agenda |= DISPATCH

        def due() -> None:
            with plant.there():
                if leaving is not None:
                    core.unsubscribe(site.now, leaving, requeue=True)
                queue.tick(site.now, core._out)

        try:
            core._do(Due(part_of(queue), due, (queue,)))
        except Planted:
            self.die(site)
            return
        core._touch(queue)
        site.turn()
        self.counts["stopped"] += queue.stopped

    def fail(self, site: SiteWorld) -> None:
        """Something fails as a client publishes, or settles what it has: what it was about stops, or its site ends."""
        core, queue = site.core, site.queue
        holders = [one for one in queue.holders() if not one.closed and one.leases.count]
        holder = self.dice.choice(holders) if holders and self.dice.random() < 0.5 else None
        has = [] if holder is None else flat([run.chunk for run in holder.leases.held()]).tolist()
        held = [lsn for lsn in has if self.worked[self.known(site, lsn)]][:3]
        verb = self.dice.choice((Verb.ACK, Verb.CANCEL))
        messages = Publishes(core.topic("/", "", "q"), DURABLE, [self.body() for _ in range(3)])
        told: Sequence[int] = ()
        try:
            with Plant(self.dice.randint(1, CALLS_MOST), "penstock.core.").there():
                if holder is not None:
                    core.settle(site.now, queue, [range(lsn, lsn + 1) for lsn in held], verb, by=holder)
                else:
                    published = core.publish(site.now, messages)
            if holder is None:
                told = published.positions
        except Planted as error:
            if not (core.whole_after(error) or core.contain_command(error)):
                self.end(site)
                return
            self.counts["contained"] += queue.stopped
        self.published.update({(site.origin, lsn): False for lsn in told})
        for lsn in held:
            self.excused[self.known(site, lsn)] += 1
            self.working.get(self.known(site, lsn), set()).discard(site.name)
        core._touch(queue)
        site.turn()

    def end(self, site: SiteWorld) -> None:
        """A fault ends a site: nothing of what failed is logged."""
        out = site.core._out
        out.journal, out._group, out._nesting = [], None, 0
        self.counts["ended"] += 1
        self.die(site)

    def bring(self, pair: tuple[str, str], most: int) -> bool:
        """What a link tells of a queue that is half changed may fail, too."""
        receiver = self.sites[pair[1]]
        stopped = receiver.has_queue and receiver.queue.stopped
        try:
            return super().bring(pair, most)
        except (LookupError, ValueError, AttributeError):
            if not stopped:
                raise
            self.end(receiver)
            return True

    def ack(self) -> None:
        """What somebody had when it was stopped is acked once, too; what is not known to be theirs comes again."""
        site = self.mostly(self.eager)
        if not site.queue.stopped:
            super().ack()
            return
        for holder in list(site.queue.holders()):
            for lsn in flat([run.chunk for run in holder.leases.held()]).tolist():
                if site.name not in self.working.get(self.known(site, lsn), ()):
                    continue
                try:
                    settled = site.core.settle(site.now, site.queue, [range(lsn, lsn + 1)], Verb.ACK, by=holder)
                except LookupError:  # half changed: its site starts again
                    self.end(site)
                    return
                site.turn()
                if settled:
                    self.working.get(self.known(site, lsn), set()).discard(site.name)

    def delete(self) -> None:
        """Others would not be told of all that goes with one that is stopped."""
        try:
            super().delete()
        except Unavailable:
            self.counts["refused"] += 1

    def settle_down(self) -> None:
        for site in self.sites.values():
            if site.has_queue and site.queue.stopped:
                self.die(site)
        super().settle_down()
