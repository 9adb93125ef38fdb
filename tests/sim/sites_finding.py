"""Sites that declare the queue of all when chance has it, each with a recovery point: what was there before is worked
once all the same, whoever finds it.

A topic keeps what no queue takes.  One site's point is always the epoch, so all there ever was has to be worked; the
others' are that, or now.  A site that starts again waits until it has heard of the others, as a server does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from unittest import mock

from penstock.core.links.carried import Carries
from sim.sites_house import KINDS, Fabric, SiteWorld
from unit.core.walking import walk

STEPS = 100
"""Of a schedule, for each site: a pass takes some."""


class KeepingWorld(SiteWorld):
    """A site that keeps the topic, with the queue or without it."""

    points = ("epoch",)
    begun = False

    def settle_in(self) -> None:
        if not self.begun:
            self.begun = True
            self.core.declare_topic(self.now, "/", "", "q")
            self.turn()
        super().settle_in()

    def declare_again(self) -> None:
        """It is declared when chance has it, not at first."""
        if self.begun:
            self.declare("q", **self.settings, recovery_point=self.points[self.durable % len(self.points)])

    def topics(self) -> list[Carries]:
        return [Carries("q")]


class Finding(Fabric):
    """Links are cut both ways, for a site has to hear of a queue before it declares its own to know of it."""

    def __init__(self, seed: int, names: str = "ab", **options: Any) -> None:
        self.unowned = set[tuple[int, int]]()  # published where there was no queue
        self.copies = dict[tuple[int, int], set[str]]()  # of these, sites that have one of their own
        self.parted = set[tuple[int, int]]()  # passed a site between others that had no queue
        self.enquiries = list[tuple[str, str, bytes]]()  # under way: who is asked, who asks, what
        kinds = {name: one for name, one in KINDS.items() if name != "limited"}  # the topic keeps what is refused
        with mock.patch("sim.sites_house.SiteWorld", KeepingWorld), mock.patch("sim.sites_house.KINDS", kinds):
            super().__init__(seed, names, **options)
        dice = Random(seed)
        owner = self.sites[names[0]].settings.get("initial_owner")  # what it has not nobody has
        keeper = owner or dice.choice(names)
        self.behind = dict[str, set[str]]()
        for name, site in self.sites.items():
            assert isinstance(site, KeepingWorld)
            site.points = ("epoch",) if name == keeper or dice.random() < 0.7 else ("now", "epoch", "now")

    def more(self) -> list[Callable[[], None]]:
        return [self.declare, *[self.walk] * 3, *[self.enquire] * 3, *[self.enquired] * 4, *[self.find] * 4]

    def publish(self) -> None:
        """To any site, whether it has the queue or not."""
        name = self.busiest if self.dice.random() < 0.6 else self.dice.choice(list(self.sites))
        site = self.sites[name]
        published = site.publish("q", *(self.body() for _ in range(self.dice.randint(1, 6))))
        made = [(site.origin, lsn) for lsn in published.positions if not site.barrier(lsn)]
        self.published.update(dict.fromkeys(made, False))
        if not site.has_queue:
            self.unowned.update(made)

    def look(self) -> None:
        """What a site published that had no queue is worked at each of the others that had one when it came there."""
        for site in self.sites.values() if len(self.sites) > 2 else ():
            for here, key in site.came().items() if site.has_queue else ():
                if here > site.queue.id and key in self.unowned and site.name not in self.copies.setdefault(key, set()):
                    self.copies[key].add(site.name)
                    if len(self.copies[key]) > 1:
                        self.excuse(key)
        self.look_between()
        super().look()

    def look_between(self) -> None:
        """What passed a site between two others that did not have the queue then each of its ends may work."""
        for site in self.sites.values():
            if sum(site.name == one for one, _ in self.ways) > 1 and len(self.ways) < 6:
                for here, key in site.came().items():
                    if key not in self.parted and (not site.has_queue or here < site.queue.id):
                        self.parted.add(key)
                        self.excuse(key)

    def excuse(self, key: tuple[int, int]) -> None:
        """It may be worked once more."""
        self.excused[key] += 1
        self.by_proxy.add(key)

    @property
    def begun(self) -> bool:
        """Whether some site has the queue."""
        return any(site.has_queue for site in self.sites.values())

    def work(self) -> None:
        if self.begun:
            super().work()

    def leave(self) -> None:
        if self.begun:
            super().leave()

    def ack(self) -> None:
        if self.begun:
            super().ack()

    def ask(self) -> None:
        if self.begun:
            super().ask()

    def delete(self) -> None:
        if self.begun:
            super().delete()

    def proxy(self) -> None:
        if self.begun:
            super().proxy()

    def find(self) -> None:
        """One after the other what it takes until a pass has found something, where links are up."""
        self.enquire()
        for _ in range(len(self.enquiries)):
            self.enquired()
        self.sync()
        for pair in self.pairs():
            if pair not in self.cut:
                self.bring(pair, 3)
        self.enquire()
        self.walk()

    def walk(self) -> None:
        """A step of the passes of a site."""
        site = self.sites[self.dice.choice(list(self.sites))]
        self.counts["found"] += walk(site, whole=self.dice.random() < 0.3)

    def enquire(self) -> None:
        site = self.sites[self.dice.choice(list(self.sites))]
        site.advance(self.dice.choice((0.01, 2)))
        self.enquiries += [(one.to, site.name, one.ask) for one in site.core.enquiries(site.now)]
        site.turn()

    def enquired(self) -> None:
        """An enquiry arrives, or is lost."""
        if self.enquiries:
            asked, site, words = self.enquiries.pop(self.dice.randrange(len(self.enquiries)))
            if (site, asked) not in self.cut and (site, asked) in self.ways:
                self.hear_of(self.sites[asked], site, words)

    def hear_of(self, asked: SiteWorld, site: str, words: bytes) -> None:
        asked.core.enquired(asked.now, site, words)
        asked.turn()
        self.counts["enquired"] += 1

    def cut_or_heal(self) -> None:
        super().cut_or_heal()
        for one, other in list(self.pairs()):
            if (one, other) in self.cut and (other, one) not in self.cut:
                self.cut.add((other, one))

    def heal(self, pair: tuple[str, str]) -> None:
        super().heal(pair)
        if (pair[1], pair[0]) in self.cut:
            super().heal((pair[1], pair[0]))

    def die(self, site: SiteWorld) -> None:
        self.enquiries = [one for one in self.enquiries if site.name not in one[:2]]
        kill = site.kill

        def killed() -> None:
            kill()
            others = [one for one, other in self.ways if other == site.name]
            self.behind[site.name] = set(site.core.await_sites(site.now, others))
            site.turn()

        with mock.patch.object(site, "kill", killed):
            super().die(site)
        for one, other in list(self.pairs()):
            if (one, other) in self.cut:
                self.cut.add((other, one))

    def bring(self, pair: tuple[str, str], most: int) -> bool:
        """As everywhere; who has heard all that is durable waits for that site no longer."""
        some = super().bring(pair, most)
        sender, receiver = self.sites[pair[0]], self.sites[pair[1]]
        if sender.name in self.behind.get(receiver.name, ()) and self.tellings[pair].upto >= sender.durable_lsn:
            self.behind[receiver.name].discard(sender.name)
            receiver.core.level(receiver.now, sender.name)
            receiver.turn()
        return some

    def run(self) -> None:
        """Nobody is so far away that a pass does not wait for it."""
        waits = mock.patch("penstock.core.commands.offering.WAITS_MOST", 1 << 50)
        with waits, mock.patch("sim.sites_house.STEPS", STEPS):
            super().run()

    def settle_down(self) -> None:
        for site in self.sites.values():
            if not site.has_queue:
                site.declare_again()
        super().settle_down()

    def all_ask(self) -> bool:
        """Passes go to their ends, and enquiries are answered, before anybody asks."""
        some = 0
        for site in self.sites.values():
            site.advance(20)
            asked = site.core.enquiries(site.now)
            site.turn()
            before = sum(len(one.entries) for one in self.sites.values())
            for one in asked:
                if (site.name, one.to) in self.ways:
                    self.hear_of(self.sites[one.to], site.name, one.ask)
            some += sum(len(one.entries) for one in self.sites.values()) - before
            while walk(site):
                some += 1
        return super().all_ask() or bool(some)


def finding(seed: int, how: str) -> Counter[str]:
    """One run: of two or three sites that are all linked, by their names, or of three in a row."""
    names = "abc" if how == "row" else how
    return Finding(seed, names, kills=seed % 3 > 0, row=how == "row").run_named(f"{seed}, finding, {how}")
