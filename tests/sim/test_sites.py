"""Two and three sites that share a queue: each message is worked once, whatever is cut and whoever is killed.

And faults of which each has to be found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from choices import EFFORT, SEED, USUAL, tried
from penstock.core.links.carried import Numbers
from penstock.core.links.ownership import Claim
from penstock.core.links.parcels import Parcel, read_ask
from penstock.core.links.telling import Telling
from penstock.core.queue import owning
from penstock.core.queue.contents import Contents
from penstock.core.queue.foreign import Foreign
from penstock.records.kinds import ENDED, Kind
from sim.sites_house import Fabric, SiteWorld
from sim.sites_schedules import schedule, steps

SCHEDULES = {
    "ab": {"cuts": 6, "kills": 6, "proxies": 8, "sides": 8, "deletes": 10, "all": 6},
    "abc": {"cuts": 6, "kills": 6, "proxies": 6, "sides": 6, "deletes": 8, "all": 6, "row": 6, "row of all": 6},
} if EFFORT > 1 else {
    "ab": {"cuts": 3, "kills": 6, "proxies": 3, "sides": 6, "deletes": 5, "all": 3},
    "abc": {"cuts": 3, "kills": 6, "proxies": 3, "sides": 3, "deletes": 4, "all": 4, "row": 3, "row of all": 4},
}  # fmt: skip
"""With those of `test_a_site_may_die_at_any_step`, of which some are several times as dear as others; most are of what
has been wrong most often, three sites where queues go and come, and publishers change sides.  Each planted fault is
found by the first `ENOUGH` of one kind, and `make soak-schedules` has no end."""

SHARE = min(float(os.environ.get("PENSTOCK_SCHEDULES", "200")) / 200, 1.0)
"""Of them that are run, while somebody works."""

HAPPENS = {
    "cuts": ("granted",), "kills": ("granted", "killed"), "proxies": ("proxied",), "sides": ("sent twice", "killed"),
    "deletes": ("granted", "killed", "deleted"), "all": ("granted", "killed", "proxied", "sent twice", "deleted"),
    "row": ("granted", "killed", "handed on", "deleted"),
    "row of all": ("granted", "killed", "proxied", "sent twice", "deleted"),
}  # fmt: skip
"""What has to be among what a run tries."""

ENOUGH = 5
"""The first schedules of a usual run in which a planted fault is found; of its kind there are more."""


@pytest.mark.parametrize(("names", "how"), [(names, how) for names, some in SCHEDULES.items() for how in some])
def test_each_message_is_worked_once(names: str, how: str, effort: int) -> None:
    count = max(3, int(SCHEDULES[names][how] * SHARE)) * effort
    tried(lambda seed: schedule(seed, names, how).counts, count, HAPPENS[how])


@pytest.mark.parametrize(("names", "how", "share"), [("ab", "all", 9), ("abc", "all", 30), ("abc", "row of all", 30)])
def test_a_site_may_die_at_any_step(names: str, how: str, share: int, effort: int) -> None:
    """While operators act for others and publishers change sides; share: one step of so many is tried in a hunt."""
    each = max(share // effort, 1) if effort > 1 else 2 * share
    for step in range(SEED % each, steps(names), each):
        assert schedule(SEED, names, how, dies_at=step).counts["killed"]


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
                if not ENDED.issuperset(table["kind"].to_pylist()):
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


class Twice(Fabric):
    """What a site has already is stored once more where it is brought again, by the link of another site."""

    def run(self) -> None:
        with mock.patch.object(Numbers, "unknown", lambda known, first, stop: [(first, stop)]):
            super().run()


class Shuffled(Fabric):
    """What comes later is brought first."""

    def batches(
        self, sender: SiteWorld, after: int, bound: int, cut: int, most: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from reversed(list(super().batches(sender, after, bound, cut, most)))


class Hasty(Fabric):
    """An ask that nobody answered makes an owner."""

    def answer(self) -> None:
        if self.asks:
            owner, asker, ask = self.asks.pop()
            site = self.sites[asker]
            site.core.each_owned_at(site.now, site.queue, owner, [(read_ask(ask)[2], Claim(asker, 9, "transfer"))])
            site.turn()


class Impatient(Fabric):
    """A barrier goes while other sites work on what stands before it."""

    def run(self) -> None:
        with mock.patch.object(Foreign, "before", return_value=False):
            super().run()


class Borrowed(Fabric):
    """What a site lets go as a barrier goes at the others, too."""

    def run(self) -> None:
        with mock.patch.object(owning, "_apart", lambda queue, wanted: [wanted]):
            super().run()


class Kept(Fabric):
    """What a barrier or the depth holds back stays, whoever owns it by now."""

    def run(self) -> None:
        with mock.patch.object(Contents, "extract_ours", lambda queue, wanted: queue._extracted(wanted, "ready")):
            super().run()


FAULTS = (Early, Leased, Forgetful, Looping, Anonymous, Twice, Shuffled, Hasty, Impatient, Borrowed, Kept)


SOONEST: dict[type[Fabric], str] = dict.fromkeys((Early, Leased, Forgetful, Shuffled, Kept), "sides")
"""The kind in which one is found, where it is none of those in which links are cut and sites are killed alone."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: type[Fabric]) -> None:
    names, how = "abc" if fault is Twice else "ab", SOONEST.get(fault, "kills")
    assert SCHEDULES[names][how] > ENOUGH
    for seed in range(USUAL, USUAL + ENOUGH):
        try:
            schedule(seed, names, how, made=fault)
        except AssertionError:
            return
    raise AssertionError(f"nobody finds it in {ENOUGH} schedules: {fault.__doc__}")
