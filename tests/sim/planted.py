"""Houses with a bug: what the simulator must find, or its silence means nothing.

Each has one mistake of the kind that upkeep beside appends invites: something told, shown or deleted a step too early.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from penstock.core.commands import life
from penstock.core.state.capture import Captured
from penstock.core.state.durable import DurableState
from penstock.core.state.queue_state import FoldedQueue, QueueState
from penstock.log.rewrite import Made
from penstock.log.rewrite_plan import Task
from penstock.log.simdisk import SimFile
from penstock.log.writer import Appender, Commit
from penstock.records.entries import Control, Entry, Group, singly
from penstock.records.kinds import Kind
from penstock.server.amqp import consuming
from penstock.server.flight.handover import Answer, Handover
from penstock.server.upkeep.compaction import Needs
from penstock.server.upkeep.keeper import Keeper
from penstock.testing.instance import TellingLog
from sim.killed_upkeep import KeeperHere
from sim.stepdisk import StepFile
from sim.upkeep_house import House


class BaseNotDurable(House):
    """Segments go when the base was handed to the log, instead of when it is on the disk."""

    def spoil(self) -> None:
        log, write = self.log, self.keeper.retirement.write_base

        def hasty(due: int, state: bytes) -> int:
            lsn = write(due, state)
            log._base_floor = due
            log.retire(due)
            return lsn

        self.keeper.retirement.write_base = hasty  # type: ignore[method-assign]


class CheckpointAhead(House):
    """A checkpoint is written of what the log has not synced."""

    class keeper_type(Keeper):  # noqa: N801  stands for the attribute
        async def _synced(self, lsn: int) -> None:
            """Nobody waits."""

    def spoil(self) -> None:
        super().spoil()
        log = self.log
        log._sync_here = lambda: None  # type: ignore[method-assign]
        write = log.write_checkpoint

        def early(state: bytes, lsn: int) -> str:
            log.synced = log.durable = max(log.durable, lsn)
            return write(state, lsn)

        log.write_checkpoint = early  # type: ignore[method-assign]


class NoSync(House):
    """A commit counts as durable before its sync."""

    def spoil(self) -> None:
        run = self.log._appender.run

        def lazy(commit: Commit) -> None:
            wanted, commit.sync = commit.sync, False
            run(commit)
            commit.sync = wanted

        self.log._appender.run = lazy  # type: ignore[method-assign]


class FolderForgotten(House):
    """A new segment's folder is not synced."""

    def spoil(self) -> None:
        self.disk.sync_folder = lambda folder="": None  # type: ignore[method-assign, misc]


class HoldsIgnored(House):
    """Retirement asks nobody who reads."""

    def spoil(self) -> None:
        engine_floor = self.engine.core.floor
        self.engine.floor = engine_floor  # type: ignore[method-assign]


class FloorOfYesterday(House):
    """Retirement believes the floor of the moment it began."""

    class keeper_type(Keeper):  # noqa: N801  stands for the attribute
        async def _retire(self) -> None:
            runtime = self.runtime
            floor = runtime.floor()
            runtime.floor = lambda: floor  # type: ignore[method-assign]
            try:
                await super()._retire()
            finally:
                del runtime.floor


class HoldsAskedBefore(House):
    """Compaction asks about holds when the new file is whole, and not again when the list of segments changes."""

    def spoil(self) -> None:
        compaction = self.keeper.compaction
        asked, swapped = compaction._read, compaction._swapped

        async def hasty(task: Task, made: Made) -> bool:
            answers = iter((asked(task), False))
            compaction._read = lambda _: next(answers)  # type: ignore[method-assign]
            try:
                return await swapped(task, made)
            finally:
                compaction._read = asked  # type: ignore[method-assign]

        compaction._swapped = hasty  # type: ignore[method-assign]


class _Unsynced(StepFile):
    """A file whose sync does nothing."""

    __slots__ = ()

    def sync(self) -> None:
        """Nothing."""


class RewritingNotSynced(House):
    """A compacted segment takes the place of the old ones before its bytes are on the disk."""

    def spoil(self) -> None:
        disk, plain = self.disk, self.disk.open

        def opened(name: str, *, create: bool = False, readonly: bool = False) -> SimFile:
            file = plain(name, create=create, readonly=readonly)
            return _Unsynced(disk, file._inode, readonly) if name.endswith(".rewrite") else file

        disk.open = opened  # type: ignore[method-assign]


PLANTED: tuple[type[House], ...] = (
    BaseNotDurable, CheckpointAhead, NoSync, FolderForgotten, HoldsIgnored, FloorOfYesterday, HoldsAskedBefore,
    RewritingNotSynced,
)  # fmt: skip


SOONEST: Mapping[type[House], int] = {HoldsIgnored: 2, RewritingNotSynced: 2, HoldsAskedBefore: 3}
"""The chain that found it, of those that are tried, where it is not the first: it comes before the others."""


def found_in_turn(houses: Sequence[type[House]], first: int, chains: int) -> int:
    """Look for each and say how it showed; 1 when all were found, as for a single one, and 0 when one was not.

    AttributeError: what one changes has another name by now, so that it says nothing.
    """
    from sim.interleave import run

    status = 1
    for house in houses:
        try:
            if SOONEST.get(house, chains) < chains:
                run(first + SOONEST[house], 1, house=house)
            run(first, chains, house=house)
        except AttributeError:
            raise
        except BaseException:  # noqa: BLE001  a planted mistake shows in whatever goes wrong
            print(traceback.format_exc(), flush=True)
        else:
            print(f"{house.__name__} was not found")
            status = 0
    return status


# -- servers with a mistake in one command, for walks that are killed

Spoil = Callable[[pytest.MonkeyPatch], None]


def _appending(spoiled: Callable[[TellingLog, Entry], list[Entry]], monkeypatch: pytest.MonkeyPatch) -> None:
    append = TellingLog.append

    def spoils(log: TellingLog, entries: Sequence[Entry], *, urgent: bool = True, sync: bool = False) -> None:
        append(log, [one for entry in entries for one in spoiled(log, entry)], urgent=urgent, sync=sync)

    monkeypatch.setattr(TellingLog, "append", spoils)


def _unwritten(*kinds: Kind) -> Spoil:
    """What such a record would say is so until the server dies."""

    def mute(one: Entry) -> Entry:
        if isinstance(one, Group):
            return Group([mute(part) for part in one.entries])  # type: ignore[misc]
        if isinstance(one, Control) and one.kind in kinds:
            return Control(Kind.MARK, "", lsn=one.lsn, time=one.time)
        return one

    return partial(_appending, lambda _, one: [mute(one)])


def _apart(kind: Kind) -> Spoil:
    """Each part of a group with such a record is written by itself."""

    def parted(log: TellingLog, one: Entry) -> list[Entry]:
        if not isinstance(one, Group) or kind not in {part.kind for part in one.entries if isinstance(part, Control)}:
            return [one]
        for part in one.entries:
            TellingLog.__base__.append(log, [part])  # type: ignore[union-attr]
            log.flush()
        return []

    return partial(_appending, parted)


def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked is answered when it is decided."""

    def at_once(self: Handover, lsn: int, answer: Answer[object], value: object, when: object = None) -> None:
        self.forget(answer)
        answer.give(value)

    monkeypatch.setattr(Handover, "when_durable", at_once)


def _checkpoint_without(field: str) -> Spoil:
    """A checkpoint leaves out what is of queues."""

    def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
        encode = DurableState.encode

        def shortened(state: DurableState) -> bytes:
            queues = {
                number: replace(one, **{field: getattr(QueueState(0, "", ""), field)})
                for number, one in state.queues.items()
            }
            return encode(replace(state, queues=queues))

        monkeypatch.setattr(DurableState, "encode", shortened)

    return spoil


def _base_not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments go, and are replaced, when the base that stands for them was handed to the log."""

    async def nobody_waits(self: Keeper, lsn: int) -> None:
        """Nothing."""
        self.runtime.log._base_floor = self.runtime.core.last_lsn + 1

    monkeypatch.setattr(KeeperHere, "_synced", nobody_waits)


def _rewrites_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction leaves out the last row that somebody needs."""
    pairs = Needs.pairs
    monkeypatch.setattr(Needs, "pairs", lambda self, first, last: pairs(self, first, last)[:-1])


def _captured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint takes each queue for what it was at the first of them."""

    def timeless(*given: object) -> Captured:
        return replace(Captured(*given), since=0)  # type: ignore[arg-type]

    monkeypatch.setattr(life, "Captured", timeless)


def _syncs_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that failed is taken for one that did not."""
    sync = Appender.sync

    def careless(appender: Appender, commit: Commit) -> None:
        sync(appender, commit)
        commit.error = None

    monkeypatch.setattr(Appender, "sync", careless)


def _lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start keeps transient messages."""
    monkeypatch.setattr(FoldedQueue, "drop_transient", lambda self: None)
    monkeypatch.setattr(life.Life, "_forget_transient", lambda self, queue: None)


def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody waits for is not written: acks over AMQP."""
    append = TellingLog.append

    def forgetful(log: TellingLog, entries: Sequence[Entry], *, urgent: bool = True, sync: bool = False) -> None:
        some = entries
        if not urgent:
            some = [
                Control(Kind.MARK, "", lsn=one.lsn, time=one.time) for one in singly(entries) if type(one) is Control
            ]
        append(log, some, urgent=urgent, sync=sync)

    monkeypatch.setattr(TellingLog, "append", forgetful)


def _streams_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads a stream from a place misses the first."""
    first_of = consuming.first_of
    monkeypatch.setattr(consuming, "first_of", lambda *given: first_of(*given) + 1)


SPOILED: Mapping[str, Spoil] = {
    "purges are not written": _unwritten(Kind.PURGE),
    "withdrawals are not written": _unwritten(Kind.DROP),
    "alters are not written": _unwritten(Kind.QUEUE_ALTER),
    "deletes are not written": _unwritten(Kind.QUEUE_DELETE),
    "removals of records are not written": _unwritten(Kind.SOW_DROP),
    "times to wait are not written": _unwritten(Kind.RESCHEDULE),
    "pauses are not written": _unwritten(Kind.PAUSE),
    "policies are not written": _unwritten(Kind.POLICY, Kind.POLICY_DELETE),
    "batches are not written": _unwritten(Kind.PLAN),
    "acks of what is not there are not written": _unwritten(Kind.DEFER),
    "keys that replace are not written": _unwritten(Kind.KEYED),
    "keys that keep out are not written": _unwritten(Kind.DEDUP),
    "numbers of publishers are not written": _unwritten(Kind.PUBLISHERS),
    "moves come apart": _apart(Kind.EXPIRE),
    "transactions come apart": _apart(Kind.TRANSACTION),
    "all is answered too early": _hasty,
    "checkpoints forget pauses": _checkpoint_without("paused"),
    "checkpoints forget keys": _checkpoint_without("taken"),
    "queues are captured at one time": _captured_at_once,
    "segments go before their base is there": _base_not_durable,
    "compaction leaves out what is needed": _rewrites_without,
    "syncs that fail are good": _syncs_that_fail,
    "transient messages last": _lasting,
    "acks over AMQP are not written": _unhurried,
    "streams begin too late": _streams_later,
}
"""What each is, and how it is planted."""
