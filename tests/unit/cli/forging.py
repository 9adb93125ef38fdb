"""Logs that are written record by record: as a test says, or by chance with violations planted in them."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path

from penstock.cli.logfiles import audit
from penstock.core.audit_histories import Report
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.writer import MEMORY
from penstock.ports import Clock
from penstock.records.chunks import pack_pairs
from penstock.records.entries import Control, Entry, Publishes, Topic
from penstock.records.kinds import NO_ROUTE, Kind
from penstock.records.queue_settings import QueueSettings

T0 = 1_700_000_000_000_000
PERSISTENT = b"\x10\0\x02"


class Still(Clock):
    """A clock that stands."""

    def wall(self) -> int:
        return T0

    def mono(self) -> int:
        return 1


class Forger:
    """Writes a log record by record.  `queue` is declared with messages 10..19 in it, unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[Entry] = []
        self.lsn = 1
        self.time = T0
        self.boot()
        self.queue = self.declare("q")
        self.control(Kind.ROUTE, body=pack_pairs(self.queue, ()), route=0)
        while self.lsn < 10:
            self.control(Kind.TOPIC_DECLARE, f"t{self.lsn}", {"vhost": "/", "exchange": "", "settings": {}})
        self.messages(10)

    def boot(self, clean: bool = True) -> int:
        return self.control(Kind.BOOT, header={"clean": clean, "instance": "x", "version": 1})

    def control(
        self, kind: Kind, name: str = "", header: object = None, body: bytes = b"", route: int = NO_ROUTE
    ) -> int:
        lsn = self.lsn
        self.entries.append(self.make(kind, name, header, body, route))
        return lsn

    def make(
        self, kind: Kind, name: str = "", header: object = None, body: bytes = b"", route: int = NO_ROUTE
    ) -> Control:
        data = json.dumps(header).encode() if header is not None else b""
        self.lsn += 1
        return Control(kind, name, data, body, self.lsn - 1, self.time, route=route)

    def declare(self, name: str, settings: QueueSettings | None = None, durable: bool = True) -> int:
        header = {
            "vhost": "/", "durable": durable, "exclusive": False, "auto_delete": False, "arguments": {},
            "settings": asdict(settings or QueueSettings()),
        }  # fmt: skip
        return self.control(Kind.QUEUE_DECLARE, name, header)

    def messages(self, count: int, route: int = 0, transient: bool = False, not_before: int = 0) -> int:
        self.entries.append(self.batch(count, route, transient, not_before))
        return self.lsn - count

    def batch(self, count: int, route: int = 0, transient: bool = False, not_before: int = 0) -> Publishes:
        self.lsn += count
        return Publishes(
            Topic("/", "", "q"), PERSISTENT, [b"x"] * count, self.lsn - count, self.time, route, transient=transient,
            not_before=[not_before] * count if not_before else None,
        )  # fmt: skip

    def about(self, kind: Kind, *pairs: int, queue: int = 0, **header: object) -> int:
        return self.control(kind, "q", header, pack_pairs(queue or self.queue, pairs))

    def grant(self, *pairs: int, attempt: int = 1, queue: int = 0) -> int:
        return self.about(Kind.GRANT, *pairs, queue=queue, consumer="c", client="me", attempt=attempt)

    def give_back(self, *pairs: int, not_before: int = 0) -> int:
        header = {"cause": "cancel", "failed": True, "cancelled": True}
        return self.about(Kind.RETURN, *pairs, **header, **({"not_before": not_before} if not_before else {}))

    def write(self) -> None:
        log = Log.open(OsDisk(self.folder), Still(), replace(MEMORY, origin=7))
        for _ in log.replay():
            pass
        log.append(self.entries)
        log.flush()
        log.close()

    def report(self) -> Report:
        self.write()
        return audit(self.folder)


def two_holders(f: Forger) -> None:
    f.grant(10, 12)
    f.grant(11, 13, attempt=2)


def back_without_a_lease(f: Forger) -> None:
    f.give_back(10, 11)


def forged(folder: Path, seed: int) -> tuple[Report, int, bool]:
    """Write a log; its audit, its last LSN, and whether something was planted.  Even seeds are sound."""
    chance, log = random.Random(seed), Forger(folder)
    ready, leased, attempts = list(range(10, 20)), list[int](), dict[int, int]()
    plant = seed % 2
    bad = 0
    for step in range(60):
        what = chance.choice(["publish", "grant", "return", "settle", "expire", "planted"])
        if what == "publish":
            first = log.lsn
            log.messages(chance.randrange(1, 6))
            ready += range(first, log.lsn)
        elif what == "grant" and ready:
            run = _run(chance, ready)
            tries = {attempts.get(lsn, 0) + 1 for lsn in run}
            if len(tries) == 1:
                _of(log, Kind.GRANT, run, {"consumer": "c", "client": "x", "attempt": tries.pop()})
                _move(run, ready, leased)
                attempts.update({lsn: attempts.get(lsn, 0) + 1 for lsn in run})
        elif what == "return" and leased:
            run = _run(chance, leased)
            _of(log, Kind.RETURN, run, {"cause": "cancel", "failed": 0, "cancelled": 0})
            _move(run, leased, ready)
        elif what == "settle" and leased:
            run = _run(chance, leased)
            _of(log, Kind.SETTLE, run, {"by": "c"})
            for lsn in run:
                leased.remove(lsn)
        elif what == "expire" and ready:
            run = _run(chance, ready)
            _of(log, Kind.EXPIRE, run, {"reason": "time_limit"})
            for lsn in run:
                ready.remove(lsn)
        elif what == "planted" and plant and (step > 20 or not bad):
            bad += _planted(chance, log, ready, leased)
    if plant and not bad:
        _of(log, Kind.SETTLE, [3], {"by": "c"})
    return log.report(), log.lsn - 1, bool(plant)


def _run(chance: random.Random, of: list[int]) -> list[int]:
    """Neighbours among the living ones; what lies between them has ended or is in the other list."""
    of.sort()
    at = chance.randrange(len(of))
    run = [of[at]]
    while at + 1 < len(of) and of[at + 1] == run[-1] + 1 and chance.random() < 0.7:
        at += 1
        run.append(of[at])
    return run


def _move(run: list[int], source: list[int], target: list[int]) -> None:
    for lsn in run:
        source.remove(lsn)
        target.append(lsn)


def _of(log: Forger, kind: Kind, run: list[int], header: dict[str, object]) -> None:
    log.control(kind, "q", header, pack_pairs(log.queue, (run[0], run[-1] + 1)))


def _planted(chance: random.Random, log: Forger, ready: list[int], leased: list[int]) -> int:
    """One violation; how many."""
    match chance.randrange(5):
        case 0:  # an end of what is not there, from somewhere to somewhere
            a = chance.randrange(2, log.lsn)
            log.control(Kind.SETTLE, "q", {"by": "c"}, pack_pairs(log.queue, (a, a + chance.randrange(1, 9))))
            for lsn in range(a, log.lsn):
                for where in (ready, leased):
                    if lsn in where and lsn < a + 9:
                        where.remove(lsn)
        case 1 if leased:
            _of(log, Kind.GRANT, leased[:1], {"consumer": "d", "client": "y", "attempt": 7})
        case 2 if ready:
            _of(log, Kind.RETURN, ready[:1], {"cause": "cancel", "failed": 0, "cancelled": 0})
        case 3:
            log.control(Kind.PUBLISHERS, header={"p": chance.randrange(3)})
            log.control(Kind.PUBLISHERS, header={"p": 0})
        case 4 if ready:
            log.control(Kind.DUE, "q", {"place": 0}, pack_pairs(log.queue, (ready[0], ready[0] + 1)))
        case _:
            _of(log, Kind.GRANT, [chance.randrange(2, 10)], {"consumer": "c", "client": "x", "attempt": 1})
    return 1
