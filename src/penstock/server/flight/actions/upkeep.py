"""Actions on the whole log of a running server.

backup, log_verify, log_audit       the bulk child does the work
compact                             the keeper does now what it would do by and by, or says what that is
log_archive, log_archive_prune      what is due now, a step a call, or what they would do
hold                                a reader that comes back part by part keeps what it is going to read
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, InvalidArgument, PreconditionFailed
from penstock.records.rights import ADMINISTERS, LOGIN
from penstock.server.flight.actions.action import Action, Awaiting, Table
from penstock.server.flight.calls import Caller
from penstock.server.flight.connections import host_and_port
from penstock.server.upkeep.retention import HOLD_US
from penstock.server.users import is_loopback
from penstock.wire.fields import Fields

if TYPE_CHECKING:
    from penstock.server.bulk.upkeep import Upkeep
    from penstock.server.flight.handover import Handover
    from penstock.server.upkeep.archive import Archiving
    from penstock.server.upkeep.keeper import Keeper
    from penstock.server.upkeep.retention import Holds


PATH_LIMIT = 4096
"""PATH_MAX of Linux."""


class UpkeepActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self.table: Table = {
            "backup": Action(
                self._backup, "target, copy: the log so far, as files of a folder of the server's machine", ADMINISTERS
            ),
            "log_verify": Action(self._verify, "every checksum of the log so far", ADMINISTERS),
            "log_audit": Action(self._audit, "whether the log so far keeps each guarantee", ADMINISTERS),
        }

    def _backup(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        target, copy = f.name("target", PATH_LIMIT), f.flag("copy")
        f.finish()
        if "\0" in target:
            raise InvalidArgument("backup: target is no path")
        host, _ = host_and_port(caller.peer)
        if not is_loopback(host):
            raise AccessRefused(
                f"a backup writes files on the server's machine, so it is asked for from there, and not from {host}"
            )
        return self._upkeep.backup(target, copy, caller.gone)

    def _verify(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        f.finish()
        return self._upkeep.verify(caller.gone)

    def _audit(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        f.finish()
        return self._upkeep.audit(caller.gone)


class CompactAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, handover: Handover, keeper: Keeper) -> None:
        self._awaiting = Awaiting(handover)
        self._keeper = keeper
        self.table: Table = {
            "compact": Action(
                self._compact, "dry_run: delete and rewrite closed segments, or say what would be done", ADMINISTERS
            ),
        }

    def _compact(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        dry_run = f.flag("dry_run")
        f.finish()
        return self._awaiting.call(lambda: self._keeper.compact(dry_run=dry_run), caller.gone)


class ArchiveAction:
    """These actions, as rows of the table of all actions."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._awaiting = Awaiting(handover)
        self.table: Table = {
            "log_archive": Action(
                self._archive, "dry_run: archive the next closed segments, or say which ones are due", ADMINISTERS
            ),
            "log_archive_prune": Action(
                self._prune, "age, dry_run: remove archived days that are older, or say which ones", ADMINISTERS
            ),
        }

    def _archive(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        dry_run = f.flag("dry_run")
        f.finish()
        archive = self._there()
        return self._awaiting.call(lambda: archive.run_now(dry_run=dry_run), caller.gone)

    def _prune(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        age, dry_run = f.duration("age", -1), f.flag("dry_run")
        f.finish()
        if age < 0:
            raise InvalidArgument("log_archive_prune: age is missing; days that are older go")
        archive = self._there()
        return self._awaiting.call(lambda: archive.prune_now(age, dry_run=dry_run), caller.gone)

    def _there(self) -> Archiving:
        archive = self._handover.engine.archive
        if archive is None:
            raise PreconditionFailed("this server has no archive; [log] archive in its settings makes one")
        return archive


class HoldAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, handover: Handover, holds: Holds) -> None:
        self._handover = handover
        self._holds = holds
        self.table: Table = {
            "hold": Action(
                self._hold, "read, start, release: keep the log from an LSN on for ten minutes; or no longer", LOGIN
            ),
        }

    def _hold(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        name, start, release = f.name("read"), f.count("start"), f.flag("release")
        f.finish()

        def work() -> Mapping[str, object]:
            if release:
                self._holds.drop(caller.user, name)
                return {"seconds": 0}
            kept = self._holds.put(caller.who, name, start)
            engine = self._handover.engine
            kept = kept or (engine.archive is not None and engine.archive.keeps(start))  # the rest is in the log
            first, floor = engine.log.first_lsn, engine.log.base_floor
            return {"seconds": HOLD_US // 1_000_000, "kept": kept, "first": first, "floor": floor}

        return self._handover.call(work, caller.gone, durable=False)
