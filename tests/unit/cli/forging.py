"""Logs with a history by chance, and violations planted in it."""

from __future__ import annotations

import random
from pathlib import Path

from penstock.core.audit_histories import Report
from penstock.records.chunks import pack_pairs
from penstock.records.kinds import Kind
from unit.cli.test_audit import Forger

__all__ = ["forged"]


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
