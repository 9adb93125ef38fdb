"""What commands over HTTP share beside operations: rights of who asks, and what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import DiskFull, NotFound
from penstock.server.operating import Operating, Waits

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.server.entitlements import Need, Rights
    from penstock.server.http.facts import Facts
    from penstock.server.services import Server


class Commands(Operating):
    """The base of the commands of one noun."""

    def __init__(self, server: Server, facts: Facts, waits: Waits) -> None:
        super().__init__(server, facts.refuse_early, waits)
        self.facts = facts

    def rights(self, user: str | None) -> Rights | None:
        """What a user may do; None where nothing is limited, and for nobody: all of it was judged before."""
        return None if user is None else self.server.users.rights(user)

    def configure(self, user: str | None, what: str, vhost: str, *needs: Need) -> None:
        """AccessRefused unless the user may change the topology so."""
        rights = self.rights(user)
        if rights is not None:
            rights.configure(what, vhost, needs)

    def binds(self, user: str | None, vhost: str, source: str, key: str) -> None:
        """AccessRefused unless the user may bind to this exchange, or unbind, with this key."""
        rights = self.rights(user)
        if rights is not None:
            rights.binds(self.core, vhost, source, key)

    def vhost(self, name: str) -> str:
        """A vhost that is there.  Raises NotFound."""
        self.facts.refuse_early()
        if name not in self.facts.vhosts():
            raise NotFound("Not Found")
        return name

    def queue(self, vhost: str, name: str) -> Queue:
        """A queue that anybody may use.  Raises NotFound, ResourceLocked."""
        return self.core.queue(self.vhost(vhost), name)

    def refuse_full(self) -> None:
        """LogBroken or DiskFull when nothing can be stored."""
        self.usable()
        if self.engine.log.full:
            raise DiskFull("the log has no room")
