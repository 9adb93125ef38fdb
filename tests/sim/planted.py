"""Houses with a bug: what the simulator must find, or its silence means nothing.

Each has one mistake of the kind that upkeep beside appends invites: something told, shown or deleted a step too early.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from penstock.log.rewrite import Made
from penstock.log.rewrite_plan import Task
from penstock.log.simdisk import SimFile
from penstock.log.writer import Commit
from penstock.server.upkeep.keeper import Keeper
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


def found_in_turn(houses: Sequence[type[House]], first: int, chains: int) -> int:
    """Look for each and say how it showed; 1 when all were found, as for a single one, and 0 when one was not.

    AttributeError: what one changes has another name by now, so that it says nothing.
    """
    from sim.interleave import run

    status = 1
    for house in houses:
        try:
            run(first, chains, house=house)
        except AttributeError:
            raise
        except BaseException:  # noqa: BLE001  a planted mistake shows in whatever goes wrong
            print(traceback.format_exc(), flush=True)
        else:
            print(f"{house.__name__} was not found")
            status = 0
    return status
