"""Users, permissions, vhosts and limits at run time, as `wire.http.people` and `wire.http.vhosts` ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from penstock.core.topology.topology import table_of
from penstock.errors import InvalidArgument, NotFound
from penstock.records.password_hashes import ARGON2ID, SHA256, check_hash
from penstock.server.accounts import USER_LIMITS, VHOST_LIMITS, Account, Accounts, Permission, TopicPermission
from penstock.server.http.commands import Commands
from penstock.server.passwords import Kept, hash_password, keep
from penstock.server.permissions import ALL, Permitted, check_pattern

T = TypeVar("T")

STEP = 64
"""Objects of a vhost that are deleted before others have their turn."""


class People(Commands):
    """Every change is on disk before it is answered, or did not happen."""

    @property
    def accounts(self) -> Accounts:
        """What is administered at run time."""
        return self.server.accounts

    async def change(self, work: Callable[[Accounts], T]) -> T:
        """The result of a change that is on disk now.  Raises what it raises, and Unavailable; nothing is changed."""
        self.facts.refuse_early()
        return await self.accounts.change(work)

    # -- users

    def users(self) -> Iterator[Mapping[str, object]]:
        """Those of the settings, then those of run time; of the former no hash is shown."""
        users, accounts = self.server.users, self.accounts
        for name in users.fixed():
            yield self._user(name, Kept("", SHA256), users.tags(name))
        for one in list(accounts.users.values()):
            yield self._user(one.name, one.password, one.tags)

    def _user(self, name: str, password: Kept, tags: Sequence[str]) -> Mapping[str, object]:
        limits = self.accounts.limits_of_users()
        return {
            "name": name,
            "password_hash": password.text,
            "hashing_algorithm": password.algorithm,
            "tags": list(tags),
            "limits": limits.get(name, {}),
        }

    def _changeable(self, name: str) -> None:
        if name in self.accounts.fixed_users:
            raise InvalidArgument(f"user '{name}' is one of the settings file: change it there")

    async def put_user(
        self, name: str, password: str | None, password_hash: str | None, algorithm: str | None, tags: Sequence[str]
    ) -> bool:
        """Make or change."""
        self._changeable(name)
        fresh = not self.server.users.known(name)
        present = self.accounts.users.get(name)
        if "impersonator" in tags:
            raise InvalidArgument("the tag 'impersonator' is not supported in this version")
        if password is not None and password_hash is not None:
            raise InvalidArgument("there is both a password and a password_hash")
        if algorithm is not None:
            check_hash("", algorithm)
        if password is not None:
            kept = await asyncio.to_thread(keep, password)  # whatever algorithm is asked for: none is safer
        elif password_hash is not None:
            kept = Kept(password_hash, algorithm or SHA256)
            check_hash(kept.text, kept.algorithm)
        elif present is not None:
            kept = present.password
        elif not fresh:
            raise InvalidArgument(f"user '{name}' is there by default: say which password it is to have")
        else:
            kept = Kept("", ARGON2ID)
        account = Account(name, kept, tuple(tags))
        keeps = not fresh and present is None  # guest, who could use every vhost

        def work(accounts: Accounts) -> None:
            accounts.users[name] = account
            accounts.removed.discard(name)
            if keeps:
                for vhost in accounts.vhosts:
                    accounts.permissions[name, vhost] = Permission(name, vhost, ALL, ALL, ALL)

        await self.change(work)
        return fresh

    async def delete_users(self, names: Sequence[str]) -> None:
        """Their connections close."""
        for name in names:
            self._changeable(name)
            if not self.server.users.known(name):
                raise NotFound("Not Found")
        default = {name for name in names if name in self.server.users.fixed()}

        def work(accounts: Accounts) -> None:
            for name in names:
                accounts.forget_user(name)
            accounts.removed |= default | {name for name in names if name == "guest" and not accounts.fixed_users}

        await self.change(work)
        for session in list(self.server.amqp.sessions):
            if session.user in names and not session.closing:
                session.close_by_server(320, f"user '{session.user}' was deleted")
        self.engine.arm()

    # -- permissions

    def permissions(self) -> Iterator[Mapping[str, object]]:
        """Users of the settings may open every vhost; what else they may do entitlements say."""
        for name in self.server.users.fixed():
            for vhost in list(self.accounts.vhosts):
                yield {"user": name, "vhost": vhost, "configure": ALL, "write": ALL, "read": ALL}
        for one in list(self.accounts.permissions.values()):
            yield {
                "user": one.user, "vhost": one.vhost, "configure": one.configure, "write": one.write, "read": one.read,
            }  # fmt: skip

    def _known(self, user: str, vhost: str) -> None:
        if vhost not in self.accounts.vhosts or not self.server.users.known(user):
            raise NotFound("Not Found")

    async def put_permission(self, user: str, vhost: str, configure: str, write: str, read: str) -> bool:
        """Whether it is new."""
        self._known(user, vhost)
        for kind, text in (("configure", configure), ("write", write), ("read", read)):
            check_pattern(kind, text)
        if user not in self.accounts.users:
            if (configure, write, read) == (ALL, ALL, ALL):
                return False  # so it is
            self._changeable(user)
            raise InvalidArgument(f"user '{user}' is there by default: give it a password of its own first")
        fresh = (user, vhost) not in self.accounts.permissions

        def work(accounts: Accounts) -> None:
            accounts.permissions[user, vhost] = Permission(user, vhost, configure, write, read)

        await self.change(work)
        self._renew(user)
        return fresh

    async def delete_permission(self, user: str, vhost: str) -> None:
        """The user may not open the vhost any more; connections that have done so stay, and may do nothing there."""
        self._known(user, vhost)
        if user not in self.accounts.users:
            self._changeable(user)
            raise InvalidArgument(f"user '{user}' is there by default: give it a password of its own first")
        if (user, vhost) not in self.accounts.permissions:
            raise NotFound("Not Found")

        def work(accounts: Accounts) -> None:
            del accounts.permissions[user, vhost]

        await self.change(work)
        self._renew(user)

    # -- topic permissions

    def topic_permissions(self) -> Iterator[Mapping[str, object]]:
        """Of users of run time; others have none."""
        for one in list(self.accounts.topic_permissions.values()):
            yield {
                "user": one.user, "vhost": one.vhost, "exchange": one.exchange, "write": one.write, "read": one.read,
            }  # fmt: skip

    async def put_topic_permission(self, user: str, vhost: str, exchange: str, write: str, read: str) -> bool:
        """Whether it is new."""
        self._known(user, vhost)
        for kind, text in (("write", write), ("read", read)):
            check_pattern(kind, text)
        if user not in self.accounts.users:
            if (write, read) == (ALL, ALL):
                return False  # so it is
            self._changeable(user)
            raise InvalidArgument(f"user '{user}' is there by default: give it a password of its own first")
        if not isinstance(self.server.users.rights(user), Permitted):
            raise InvalidArgument("where entitlements are configured, these say who may read and write which topics")
        fresh = (user, vhost, exchange) not in self.accounts.topic_permissions

        def work(accounts: Accounts) -> None:
            accounts.topic_permissions[user, vhost, exchange] = TopicPermission(user, vhost, exchange, write, read)

        await self.change(work)
        self._renew(user)
        return fresh

    async def delete_topic_permissions(self, user: str, vhost: str) -> None:
        """Those of a user in a vhost, if there are any."""
        self._known(user, vhost)

        def work(accounts: Accounts) -> None:
            for key in [key for key in accounts.topic_permissions if key[:2] == (user, vhost)]:
                del accounts.topic_permissions[key]

        await self.change(work)
        self._renew(user)

    def _renew(self, user: str) -> None:
        """Open connections go on with the rights as they are now."""
        rights = self.server.users.rights(user)
        for session in self.server.amqp.sessions:
            if session.user == user and session.rights is not None:
                session.take_rights(rights)

    # -- limits

    def user_limits(self) -> Iterator[Mapping[str, object]]:
        """Of users that have some."""
        return ({"user": name, "value": dict(value)} for name, value in self.accounts.limits_of_users().items())

    async def put_user_limit(self, user: str, name: str, value: int | None) -> None:
        """None: no limit."""
        if not self.server.users.known(user):
            raise NotFound("Not Found")
        _check_limit(name, USER_LIMITS)
        await self.change(lambda accounts: _set(accounts.user_limits.setdefault(user, {}), name, value))

    def vhost_limits(self) -> Iterator[Mapping[str, object]]:
        """Of vhosts that have some."""
        return ({"vhost": name, "value": dict(value)} for name, value in self.accounts.limits_of_vhosts().items())

    async def put_vhost_limit(self, vhost: str, name: str, value: int | None) -> None:
        """None: no limit."""
        self.vhost(vhost)
        _check_limit(name, VHOST_LIMITS)
        await self.change(lambda accounts: _set(accounts.vhost_limits.setdefault(vhost, {}), name, value))

    # -- global parameters

    def global_parameters(self) -> Mapping[str, object]:
        """Values by name."""
        return dict(self.accounts.global_parameters)

    async def put_global_parameter(self, name: str, value: object) -> bool:
        """Whether it is new."""
        fresh = name not in self.accounts.global_parameters

        def work(accounts: Accounts) -> None:
            accounts.global_parameters[name] = value

        await self.change(work)
        return fresh

    async def delete_global_parameter(self, name: str) -> None:
        """NotFound when there is none."""
        if name not in self.accounts.global_parameters:
            raise NotFound("Not Found")
        await self.change(lambda accounts: accounts.global_parameters.pop(name))

    def hash_password(self, password: str) -> str:
        """With new salt."""
        return hash_password(password)

    # -- vhosts

    def vhosts(self, user: str) -> Iterator[Mapping[str, object]]:
        """Those that the user may open, or all for one who sees everything."""
        users = self.server.users
        everything = not {"administrator", "monitoring"}.isdisjoint(users.tags(user))
        for name, more in list(self.accounts.vhosts.items()):
            if everything or users.enters(user, name):
                yield {"name": name, "description": "", "tags": [], "tracing": False, "default_queue_type": "classic",
                       **more}  # fmt: skip

    async def put_vhost(self, user: str, name: str, more: Mapping[str, object]) -> bool:
        """Make or describe."""
        fresh = name not in self.accounts.vhosts

        def work(accounts: Accounts) -> None:
            accounts.vhosts.setdefault(name, {}).update(more)
            if fresh and user in accounts.users:
                accounts.permissions.setdefault((user, name), Permission(user, name, ALL, ALL, ALL))

        await self.change(work)
        return fresh

    async def delete_vhost(self, name: str) -> None:
        """First nobody comes in any more, then what is there goes."""
        self.vhost(name)
        if name in self.accounts.fixed_vhosts:
            where = "is always there" if name == "/" else "is one of the settings file: take it out there"
            raise InvalidArgument(f"vhost '{name}' {where}")
        await self.change(lambda accounts: accounts.forget_vhost(name))
        for session in list(self.server.amqp.sessions):
            if session.opened and session.vhost == name and not session.closing:
                session.close_by_server(320, f"vhost '{name}' is deleted")
        for operator in (False, True):
            for policy in self.core.policies(name, operator=operator):
                await self.decide(self._without(name, policy.name, operator=operator))
        await self._empty(name)

    def _without(self, vhost: str, name: str, *, operator: bool) -> Callable[[], None]:
        return lambda: self.core.delete_policy(self.now(), vhost, name, operator=operator)

    async def _empty(self, vhost: str) -> None:
        core = self.core

        def some() -> int:
            queues = [queue for queue in core.queues() if queue.vhost == vhost][:STEP]
            for queue in queues:
                core.delete_queue(self.now(), queue)
            topology = core.topology
            exchanges = [name for of, name in topology.exchanges if of == vhost][: STEP - len(queues)]
            for name in exchanges:
                core.delete_exchange(self.now(), vhost, name)
            topics = [(exchange, key) for of, exchange, key in topology.topics if of == vhost]
            topics = topics[: STEP - len(queues) - len(exchanges)]
            for exchange, key in topics:
                core.delete_topic(self.now(), vhost, exchange, key)
            bindings = [one for (of, _), found in topology.by_source.items() if of == vhost for one in found][:STEP]
            if not (queues or exchanges or topics):  # between predeclared exchanges
                for one in bindings:
                    core.unbind(
                        self.now(), vhost, one.source, one.destination, one.destination_type, one.key,
                        table_of(one.arguments),
                    )  # fmt: skip
            return len(queues) + len(exchanges) + len(topics) + len(bindings)

        while await self.decide(some):  # noqa: ASYNC110 - nothing is awaited, others have their turn
            await asyncio.sleep(0)


def _check_limit(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise InvalidArgument(f"'{name[:60]}' is no limit: {' or '.join(known)}")


def _set(limits: dict[str, int], name: str, value: int | None) -> None:
    if value is None:
        limits.pop(name, None)
    else:
        limits[name] = value
