"""Sites whose consumers let leases end: what one gives back comes again, to others first.

The judge of silence reads logs alone: who was granted what, whose leases ended, and who has settled something since.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, cast

from penstock.core.state.encoding import load
from penstock.records.chunks import unpack_pairs
from penstock.records.entries import Control
from penstock.records.kinds import ENDED, Kind
from sim.sites_house import KINDS, Fabric, SiteWorld, touched

PERIODS = (500_000, 1_500_000, 5_000_000)
"""Microseconds of a lease: while a site asks, time goes on by up to two seconds."""


class Silence:
    """Of one site: who holds what, and who is silent, by their tags."""

    def __init__(self, seen: int = 0) -> None:
        """seen: entries of its log."""
        self.holders: dict[int, str] = {}
        self.silent: set[str] = set()
        self.seen = seen

    def hear(self, entry: Control) -> list[int]:
        """What a record says; whose leases ended by it."""
        if entry.kind is not Kind.RETURN and entry.kind not in ENDED:
            return []
        gone = touched(entry)
        tags = {tag for lsn in gone if (tag := self.holders.pop(lsn, None)) is not None}
        if entry.kind is Kind.SETTLE:
            self.silent -= tags
        elif entry.kind is Kind.RETURN and cast("dict[str, Any]", load(entry.header))["cause"] == "lease":
            self.silent |= tags
            return gone
        return []

    def grant(self, entry: Control) -> set[str]:
        """Somebody is given something: to whom of those who are silent."""
        header = cast("dict[str, Any]", load(entry.header))
        pairs = unpack_pairs(entry.body)[1]
        spans = list(zip(pairs[::2], pairs[1::2], strict=True))
        to: list[tuple[str, str, int]] = header.get("to") or [(header["consumer"], "", len(spans))]
        given = set[str]()
        for tag, _, count in to:
            for first, stop in spans[:count]:
                self.holders.update(dict.fromkeys(range(first, min(stop, first + 50)), tag))  # as `touched`: over gaps
            del spans[:count]
            given.add(tag)
        return given & self.silent


class Hanging(Fabric):
    """Workers that let leases end as time goes on, and are served behind those that do not."""

    def __init__(self, seed: int, names: str = "ab", *, kills: bool = False, deletes: bool = False) -> None:
        dice = Random(f"leases {seed}")
        self.silences = {name: Silence() for name in names}
        kind = dice.choice(list(KINDS))
        settings = {**KINDS[kind], "lease_period": dice.choice(PERIODS)}
        super().__init__(seed, names, kills=kills, deletes=deletes, settings=settings)
        self.kind = kind

    def ack(self) -> None:
        """Workers hang oftener than not."""
        if self.dice.random() < 0.4:
            super().ack()

    def kill(self) -> None:
        before = {name: site.core for name, site in self.sites.items()}
        super().kill()
        for name, site in self.sites.items():
            if site.core is not before[name]:
                self.silences[name] = Silence(len(site.entries))

    def look(self) -> None:
        for name, site in self.sites.items():
            silence = self.silences[name]
            for entry in site.entries[silence.seen :]:
                if not isinstance(entry, Control):
                    continue
                for lsn in silence.hear(entry):
                    self.excused[self.known(site, lsn)] += 1
                    self.counts["ended"] += 1
                if entry.kind is Kind.GRANT and (given := silence.grant(entry)):
                    self.judge_silent(site, silence, given)
            silence.seen = len(site.entries)
        super().look()

    def judge_silent(self, site: SiteWorld, silence: Silence, given: set[str]) -> None:
        """Who let a lease end is given something: nobody else has room."""
        self.counts["silent was given"] += 1
        held = Counter(silence.holders.values())
        for one in site.queue.consumers if site.has_queue else ():
            if one.tag not in silence.silent and not one.closed:
                full = one.max_backlog is not None and held[one.tag] >= one.max_backlog
                assert full, f"{sorted(given)} let leases end at {site.name}, and are served before {one.tag}"
                self.counts["others first"] += 1
