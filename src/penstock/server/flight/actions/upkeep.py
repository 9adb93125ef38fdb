"""Actions on the whole log of a running server: `backup`, `log_verify`, `log_audit`.  The bulk child does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, InvalidArgument
from penstock.server.flight.calls import Caller, peer_host
from penstock.server.users import is_loopback
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.bulk.upkeep import Upkeep

PATH_LIMIT = 4096
"""PATH_MAX of Linux."""


class UpkeepActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self.table: dict[str, tuple[Callable[[Caller, Fields], Mapping[str, object]], str]] = {
            "backup": (self._backup, "target, copy: the log so far, as files of a folder of the server's machine"),
            "log_verify": (self._verify, "every checksum of the log so far"),
            "log_audit": (self._audit, "whether the log so far keeps each guarantee"),
        }

    def _backup(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        target, copy = f.name("target", PATH_LIMIT), f.flag("copy")
        f.finish()
        caller.administer("backup")
        if "\0" in target:
            raise InvalidArgument("backup: target is no path")
        host = peer_host(caller.peer)
        if not is_loopback(host):
            raise AccessRefused(
                f"a backup writes files on the server's machine, so it is asked for from there, and not from {host}"
            )
        return self._upkeep.backup(target, copy, caller.gone)

    def _verify(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        f.finish()
        caller.administer("log_verify")
        return self._upkeep.verify(caller.gone)

    def _audit(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        f.finish()
        caller.administer("log_audit")
        return self._upkeep.audit(caller.gone)
