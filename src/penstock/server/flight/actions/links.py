"""Actions about connections: a user sees and closes his own; `monitoring` sees and `administrator` closes all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, NotFound
from penstock.records.rights import ADMINISTRATOR, LOGIN
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.actions.desk import whose
from penstock.server.flight.calls import Caller
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.actions.desk import Commands, Desk

Reply = Mapping[str, object]


class LinkActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.table: Table = {
            "connections": Action(self._list, "user: open AMQP connections of all vhosts, or those of a user", LOGIN),
            "connection_close": Action(
                self._close, "connection or user, reason: close one, or all of a user, with code 320", LOGIN
            ),
        }

    def _list(self, caller: Caller, f: Fields) -> Reply:
        user = f.optional_text("user")
        f.finish()
        mine = whose(caller)
        if mine is not None and user not in {None, mine}:
            return {"connections": []}
        return {"connections": self._desk.list(caller, lambda desk: desk.links.connections(user or mine))}

    def _close(self, caller: Caller, f: Fields) -> Reply:
        name, user = f.optional_text("connection"), f.optional_text("user")
        reason = f.text("reason", "closed by an operator", 200)
        if (name is None) == (user is None):
            raise f.bad("connection", name, "one of connection and user")
        f.finish()
        whole = ADMINISTRATOR.holds(caller.who.tags)
        if user not in {None, caller.user} and not whole:
            raise AccessRefused(
                f"user '{caller.user}' closes his own connections; those of others take the tag {ADMINISTRATOR.name!r}"
            )

        async def work(desk: Commands) -> Reply:
            found = desk.links.connections(user if user is not None or whole else caller.user)
            names = [str(one["name"]) for one in found if name in {None, one["name"]}]
            if name is not None and not names:
                raise NotFound(f"no connection '{name}'")
            for one in names:
                await desk.links.close(one, reason)
            return {"closed": names}

        return self._desk.do(caller, work)
