"""Actions about users, permissions, vhosts and their limits.  They are for administrators; anybody lists his vhosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument, NotFound, PreconditionFailed
from penstock.records.rights import ADMINISTERS, LOGIN
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.calls import Caller
from penstock.wire.flight.commands import DEFAULT_VHOST
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.actions.desk import Commands, Desk

Reply = Mapping[str, object]

TAGS_MOST = 100

LIMIT_MOST = 1_000_000_000

PASSWORD_MOST = 4096


class PeopleActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.table: Table = {
            "users": Action(self._users, "every user with tags and limits", ADMINISTERS),
            "user_set": Action(
                self._set_user,
                "user, password, password_hash, hashing_algorithm, tags, new: make or change",
                ADMINISTERS,
            ),
            "user_delete": Action(self._delete_user, "user: with permissions and connections", ADMINISTERS),
            "permissions": Action(self._permissions, "user, vhost: what users may do in which vhosts", ADMINISTERS),
            "permission_set": Action(
                self._permit, "user, vhost, configure, write, read: three regular expressions", ADMINISTERS
            ),
            "permission_delete": Action(self._forbid, "user, vhost: the user may not open it any more", ADMINISTERS),
            "vhosts": Action(self._vhosts, "those that the user may open; all for administrators", LOGIN),
            "vhost_set": Action(
                self._set_vhost, "vhost, description, tags, new: make or describe a vhost", ADMINISTERS
            ),
            "vhost_delete": Action(self._delete_vhost, "vhost: with everything in it", ADMINISTERS),
            "limits": Action(self._limits, "of users and vhosts that have some", ADMINISTERS),
            "limit_set": Action(
                self._set_limit, "user or vhost, limit, value: a number; without it the limit goes", ADMINISTERS
            ),
        }

    # -- users

    def _users(self, caller: Caller, f: Fields) -> Reply:
        f.finish()
        found = self._desk.list(caller, lambda desk: desk.people.users())
        return {"users": [{key: one[key] for key in ("name", "tags", "limits")} for one in found]}

    def _set_user(self, caller: Caller, f: Fields) -> Reply:
        name, new = f.name("user"), _new(f)
        password, kept = f.optional_text("password", PASSWORD_MOST), f.optional_text("password_hash")
        algorithm, tags = f.optional_text("hashing_algorithm"), None
        if f.has("tags"):
            tags = tuple(dict.fromkeys(f.texts("tags", TAGS_MOST)))
        f.finish()
        if tags is not None and not all(tags):
            raise InvalidArgument("user_set: tags holds an empty one")

        async def work(desk: Commands) -> Reply:
            people = desk.people
            _expect(new, people.server.users.known(name), f"user '{name}'")
            kept_tags = people.server.users.tags(name) if tags is None else tags
            return {"user": name, "new": await people.put_user(name, password, kept, algorithm, kept_tags)}

        return self._desk.do(caller, work)

    def _delete_user(self, caller: Caller, f: Fields) -> Reply:
        name = f.name("user")
        f.finish()
        self._desk.do(caller, lambda desk: desk.people.delete_users([name]), f"no user '{name}'")
        return {"user": name}

    # -- permissions

    def _permissions(self, caller: Caller, f: Fields) -> Reply:
        user, vhost = f.optional_text("user"), f.optional_text("vhost")
        f.finish()
        found = self._desk.list(caller, lambda desk: desk.people.permissions())
        return {"permissions": [one for one in found if user in {None, one["user"]} and vhost in {None, one["vhost"]}]}

    def _permit(self, caller: Caller, f: Fields) -> Reply:
        user, vhost = f.name("user"), f.text("vhost", DEFAULT_VHOST)
        texts = f.text("configure"), f.text("write"), f.text("read")
        f.finish()
        missing = f"no user '{user}', or no vhost '{vhost}'"
        new = self._desk.do(caller, lambda desk: desk.people.put_permission(user, vhost, *texts), missing)
        return {"user": user, "vhost": vhost, "new": new}

    def _forbid(self, caller: Caller, f: Fields) -> Reply:
        user, vhost = f.name("user"), f.text("vhost", DEFAULT_VHOST)
        f.finish()
        missing = f"user '{user}' has no permission in vhost '{vhost}'"
        self._desk.do(caller, lambda desk: desk.people.delete_permission(user, vhost), missing)
        return {"user": user, "vhost": vhost}

    # -- vhosts

    def _vhosts(self, caller: Caller, f: Fields) -> Reply:
        f.finish()
        return {"vhosts": self._desk.list(caller, lambda desk: desk.people.vhosts(caller.user))}

    def _set_vhost(self, caller: Caller, f: Fields) -> Reply:
        name, new, description = f.name("vhost"), _new(f), f.optional_text("description", 4096)
        more: dict[str, object] = {} if description is None else {"description": description}
        if f.has("tags"):
            more["tags"] = f.texts("tags", TAGS_MOST)
        f.finish()

        async def work(desk: Commands) -> Reply:
            _expect(new, name in desk.people.accounts.vhosts, f"vhost '{name}'")
            return {"vhost": name, "new": await desk.people.put_vhost(caller.user, name, more)}

        return self._desk.do(caller, work)

    def _delete_vhost(self, caller: Caller, f: Fields) -> Reply:
        name = f.name("vhost")
        f.finish()
        self._desk.do(caller, lambda desk: desk.people.delete_vhost(name), f"no vhost '{name}'")
        return {"vhost": name}

    # -- limits

    def _limits(self, caller: Caller, f: Fields) -> Reply:
        f.finish()

        def look(desk: Commands) -> list[Mapping[str, object]]:
            return [*desk.people.user_limits(), *desk.people.vhost_limits()]

        return {"limits": self._desk.list(caller, look)}

    def _set_limit(self, caller: Caller, f: Fields) -> Reply:
        user, vhost, limit = f.optional_text("user"), f.optional_text("vhost"), f.name("limit")
        value = f.optional_count("value", -1, LIMIT_MOST)
        if (user is None) == (vhost is None):
            raise f.bad("user", user, "one of user and vhost")
        f.finish()
        if user is not None:
            self._desk.do(caller, lambda desk: desk.people.put_user_limit(user, limit, value), f"no user '{user}'")
            return {"user": user, "limit": limit}
        where = str(vhost)
        self._desk.do(caller, lambda desk: desk.people.put_vhost_limit(where, limit, value), f"no vhost '{where}'")
        return {"vhost": where, "limit": limit}


def _new(f: Fields) -> bool | None:
    """Whether it must be new, or must be there; None: either."""
    return f.flag("new") if f.has("new") else None


def _expect(new: bool | None, there: bool, what: str) -> None:
    if new is True and there:
        raise PreconditionFailed(f"{what} is there already")
    if new is False and not there:
        raise NotFound(f"no {what}")
