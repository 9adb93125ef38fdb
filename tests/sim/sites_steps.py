"""Sites whose links bring what they are told to bring, and no more: for what is told step by step."""

from __future__ import annotations

from penstock.core.effects import Verb
from penstock.core.queue.dispatching.consumers import Consumer
from sim.sites_house import Fabric, SiteWorld


class Steps(Fabric):
    """Two or three sites whose links bring what they are told to bring, and no more."""

    def __init__(self, names: str = "ab", *, row: bool = False, **settings: object) -> None:
        super().__init__(1, names, settings=settings, row=row)
        self.a, self.b = self.sites["a"], self.sites["b"]

    def look(self) -> None:
        """Each test says itself what becomes of its messages."""

    def send(self, way: str) -> None:
        """All that is durable at a site goes to another, over their link."""
        self.bring((way[0], way[1]), 1000)

    def ask(self, asker: SiteWorld) -> list[tuple[str, bytes]]:
        asker.advance(1)
        out = [(one.owner, one.ask) for one in asker.core.asks(asker.now)]
        asker.turn()
        return out

    def grant(self, asker: SiteWorld) -> int:
        """What a site asks for it is given; not durable at its owner yet."""
        count = 0
        for owner, ask in self.ask(asker):
            count += self.sites[owner].core.answer(self.sites[owner].now, asker.name, ask)
            self.sites[owner].turn()
        return count

    def act_for(self, absent: str, site: SiteWorld) -> None:
        """An operator has a site act for one that is away."""
        self.cut |= {(absent, site.name), (site.name, absent)}
        site.core.absent.add(absent)
        site.core.proxy(site.now, site.queue, True)
        site.core.asks(site.now)
        site.core.proxy(site.now, site.queue, False)
        site.core.absent.discard(absent)
        site.turn()

    def ack(self, site: SiteWorld, consumer: Consumer) -> None:
        for run in list(consumer.leases.held()):
            site.core.settle(site.now, site.queue, [run.chunk], Verb.ACK, by=consumer)
            site.turn()

    def work(self, site: SiteWorld, backlog: int = 10) -> Consumer:  # type: ignore[override]
        return site.subscribe(site.queue, max_backlog=backlog)

    def level(self) -> None:
        """All links are up, and everybody has heard everything."""
        for pair in self.pairs():
            self.heal(pair)
        for _ in range(4):
            for site in self.sites.values():
                site.sync()
            for pair in self.pairs():
                self.bring(pair, 1000)

    def told(self) -> dict[str, tuple[int, int, int]]:
        """Of each site what is ready, leased, and another's."""
        return {name: (one.queue.ready, one.queue.leased, one.queue.foreign_count) for name, one in self.sites.items()}
