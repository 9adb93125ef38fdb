"""Two and three sites that share a queue: each message is worked once, whatever is cut and whoever is killed.

And faults of which each has to be found.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from choices import SEED
from penstock.core.links.ownership import Claim
from penstock.core.links.parcels import Parcel, read_ask
from penstock.core.links.telling import GONE, Telling
from penstock.records.kinds import Kind
from sim.sites_house import Fabric, SiteWorld

SCHEDULES = {"ab": 12, "abc": 5}
HAPPENS = {"cuts": ("granted",), "kills": ("granted", "killed"), "proxies": ("proxied",)}
"""What has to be among what a run tries."""

ENOUGH = 60
"""Schedules in which a planted fault is found."""


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("how", ["cuts", "kills", "proxies"])
def test_each_message_is_worked_once(names: str, how: str, effort: int) -> None:
    counts = Counter[str]()
    for seed in range(SEED, SEED + SCHEDULES[names] * effort):
        fabric = Fabric(seed, names, kills=how == "kills", proxies=how == "proxies")
        try:
            fabric.run()
        except Exception as error:
            error.add_note(f"schedule {seed} of {names}, {how}")
            raise
        counts += fabric.counts
    assert all(counts[what] for what in HAPPENS[how]), counts


class Early(Fabric):
    """A grant leaves before it is durable."""

    def leaves(self, site: SiteWorld) -> int:
        return site.core.last_lsn


class Leased(Fabric):
    """What somebody works on is given to another site."""

    def give(self, site: SiteWorld, asker: str, ask: bytes) -> None:
        queue = site.queue
        for _, run, _ in list(queue.standing("leased")):
            first = run.chunk[0]
            if queue.claims(site.core.peers).of(first).owner == site.name:
                claim = queue.claims(site.core.peers).of(first).to(asker, "transfer")
                site.core.own(site.now, queue, [(first, first + 1)], claim)


class Forgetful(Fabric):
    """Settles that a link did not bring before it was cut are not told again."""

    def heal(self, pair: tuple[str, str]) -> None:
        super().heal(pair)
        telling = self.tellings[pair]
        for table in self.sites[pair[0]].tables:
            last = table["lsn"].to_pylist()[-1]
            if last > telling.upto:
                if not GONE.issuperset(table["kind"].to_pylist()):
                    return
                telling.upto = last


class Looping(Fabric):
    """A site sends on as its own what came from elsewhere."""

    def tell(self, telling: Telling, sender: SiteWorld, batch: pa.RecordBatch) -> list[Parcel]:
        kinds = batch.column("kind").to_numpy()
        return super().tell(telling, sender, batch.take(np.flatnonzero(kinds != Kind.CARRIED)))


class Anonymous(Fabric):
    """A message is named by where it stands in the log of who tells of it."""

    def tell(self, telling: Telling, sender: SiteWorld, batch: pa.RecordBatch) -> list[Parcel]:
        told = sender.core.told_as
        sender.core.told_as = lambda first, stop: [(sender.origin, first, stop)]  # type: ignore[method-assign]
        try:
            return super().tell(telling, sender, batch)
        finally:
            sender.core.told_as = told  # type: ignore[method-assign]


class Hasty(Fabric):
    """An ask that nobody answered makes an owner."""

    def answer(self) -> None:
        if self.asks:
            owner, asker, ask = self.asks.pop()
            site = self.sites[asker]
            site.core.owned_at(site.now, site.queue, owner, read_ask(ask)[2], Claim(asker, 9, "transfer"))
            site.turn()


@pytest.mark.parametrize("fault", [Early, Leased, Forgetful, Looping, Anonymous, Hasty])
def test_a_planted_fault_is_found(fault: type[Fabric]) -> None:
    for seed in range(ENOUGH):
        try:
            fault(seed, "ab").run()
        except AssertionError:
            return
    raise AssertionError(f"nobody finds it in {ENOUGH} schedules: {fault.__doc__}")
