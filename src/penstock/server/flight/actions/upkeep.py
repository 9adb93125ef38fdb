"""Actions on the whole log of a running server: `backup`, `log_verify`, `log_audit`.  The bulk child does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, InvalidArgument
from penstock.records.rights import ADMINISTERS
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.calls import Caller
from penstock.server.flight.logins import host_and_port
from penstock.server.users import is_loopback
from penstock.wire.fields import Fields

if TYPE_CHECKING:
    from penstock.server.bulk.upkeep import Upkeep

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
