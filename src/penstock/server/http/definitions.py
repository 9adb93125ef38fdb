"""Definitions out and in, over the other commands.

In: what can be looked at without changing anything is looked at first, object by object; then the objects are made, and
what was made is undone when one is refused after all.  Both go in time steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.config.arguments import arguments_of, queue_settings
from penstock.config.policies import read_policy
from penstock.core.topology.refusals import check_settings
from penstock.core.topology.topology import DEFAULT, PREDECLARED
from penstock.errors import AccessRefused, InvalidArgument, PenstockError
from penstock.server.accounts import Account, Accounts, Permission, TopicPermission, check_hash, hash_password
from penstock.server.http.commands import Commands, Waits
from penstock.server.permissions import check_pattern
from penstock.wire.http.fields import short
from penstock.wire.http.people import LIMIT_MOST, tags_of
from penstock.wire.http.policies import LIMITS, OPERATOR, parameters, policy_fields
from penstock.wire.http.vhosts import description_of

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.server.app import Server
    from penstock.server.http.facts import Facts
    from penstock.server.http.people import People
    from penstock.server.http.policies import Policies
    from penstock.server.http.topology import Topology
    from penstock.wire.http.fields import Fields

STEP = 64
"""Objects that are looked at before others have their turn."""

Sections = Mapping[str, "list[Fields]"]


class Definitions(Commands):
    """`wire.http.definitions` over topology, people and policies."""

    def __init__(
        self, server: Server, facts: Facts, waits: Waits, topology: Topology, people: People, policies: Policies
    ) -> None:
        super().__init__(server, facts, waits)
        self._topology = topology
        self._people = people
        self._policies = policies

    # -- out

    def section(self, name: str, vhost: str | None) -> Sequence[Mapping[str, object]]:
        """Objects of one section; exclusive and predeclared ones are nobody else's, and not among them."""
        accounts = self.server.accounts
        match name:
            case "users":
                of_settings = set(self.server.users.fixed())
                return [one for one in self._people.users() if one["name"] not in of_settings]
            case "vhosts":
                return [{"name": one, **more} for one, more in accounts.vhosts.items()]
            case "permissions":
                users = accounts.users.keys()
                return [one for one in self._people.permissions() if one["user"] in users]
            case "topic_permissions":
                return list(self._people.topic_permissions())
            case "parameters":
                return list(parameters(self._policies, self._people, None, vhost))
            case "global_parameters":
                return [{"name": key, "value": value} for key, value in accounts.global_parameters.items()]
            case "policies":
                return list(self._policies.policies(vhost, operator=False))
            case "queues":
                return [
                    {"name": one.name, "vhost": one.vhost, "durable": one.durable, "auto_delete": one.auto_delete,
                     "arguments": self._arguments(one)}
                    for one in self.core.queues()
                    if one.exclusive_to is None and vhost in {None, one.vhost}
                ]  # fmt: skip
            case "exchanges":
                return [one for one in self._topology.exchanges(vhost) if one["name"] not in PREDECLARED]
            case "bindings":
                exclusive = {(one.vhost, one.name) for one in self.core.queues() if one.exclusive_to is not None}
                found = [
                    one for one in self._topology.bindings(vhost)
                    if one["source"] != DEFAULT
                    and (one["destination_type"] != "queue" or (one["vhost"], one["destination"]) not in exclusive)
                ]  # fmt: skip
                return sorted(found, key=lambda one: [str(value) for value in one.values()])
            case _:
                return []

    def _arguments(self, queue: Queue) -> dict[str, object]:
        """Of a declare that makes the same queue, whoever declared it."""
        own = self.core.ruling(queue)
        return arguments_of(own.own, own.given, queue.arguments)

    # -- in

    async def take(self, sections: Sections, vhost: str | None, user: str) -> None:
        """All of it, or nothing."""
        self.refuse_full()
        taking = Taking(self, sections, vhost)
        await taking.look()
        accounts = self._people.change
        before = self.server.accounts.state()
        undo = list[Callable[[], Awaitable[object]]]()
        try:
            await accounts(taking.administer)
            await taking.make(user, undo, self._topology, self._policies)
        except PenstockError:
            for one in reversed(undo):
                await one()
            await accounts(lambda there: there.restore(before))
            raise


class Taking:
    """One document on its way in."""

    def __init__(self, definitions: Definitions, sections: Sections, vhost: str | None) -> None:
        self._core = definitions.core
        self._accounts = definitions.server.accounts
        self._sections = sections
        self._into = vhost
        known = set(self._accounts.vhosts)
        self.vhosts = known | {one.text("name") for one in sections["vhosts"]}
        self._looks: dict[str, Callable[[Fields], None]] = {
            "users": self._user,
            "vhosts": self._vhost,
            "permissions": self._permission,
            "topic_permissions": self._topic_permission,
            "parameters": self._parameter,
            "global_parameters": self._global,
            "policies": self._policy,
            "queues": self._queue,
            "exchanges": self._exchange,
            "bindings": self._binding,
        }

    async def look(self) -> None:
        """InvalidArgument for the first object that cannot be."""
        done = 0
        for name, look in self._looks.items():
            for one in self._sections[name]:
                try:
                    look(one)
                except (PenstockError, ValueError) as error:
                    raise InvalidArgument(one.told(str(error))) from None
                done += 1
                if done % STEP == 0:
                    await asyncio.sleep(0)

    def _where(self, one: Fields) -> str:
        vhost = one.text("vhost", "/") if self._into is None else self._into
        if vhost not in self.vhosts:
            raise InvalidArgument(f"vhost '{vhost}' does not exist")
        return vhost

    def _user(self, one: Fields) -> None:
        short(one.text("name"), "the name of a user")
        tags_of(one)
        if one.values.get("password") is None:
            check_hash(one.text("password_hash", ""), self._algorithm(one))

    @staticmethod
    def _algorithm(one: Fields) -> str:
        return one.text("hashing_algorithm", "rabbit_password_hashing_sha256")

    def _vhost(self, one: Fields) -> None:
        short(one.text("name"), "the name of a vhost")
        description_of(one)

    def _permission(self, one: Fields) -> None:
        self._where(one)
        one.text("user")
        for kind in ("configure", "write", "read"):
            check_pattern(kind, one.text(kind))

    def _topic_permission(self, one: Fields) -> None:
        self._where(one)
        one.text("user")
        short(one.text("exchange"), "the name of an exchange")
        for kind in ("write", "read"):
            check_pattern(kind, one.text(kind))

    def _parameter(self, one: Fields) -> None:
        vhost, component = self._where(one), one.text("component")
        value = one.table("value")
        fields = type(one)(value)
        if component == OPERATOR:
            read_policy(vhost, one.text("name"), **policy_fields(fields, operator=True))  # type: ignore[arg-type]
        elif component == LIMITS:
            for limit in value:
                fields.count(limit, -1, LIMIT_MOST)
        else:
            raise InvalidArgument(f"component '{component[:60]}' is not one of {OPERATOR}, {LIMITS}")

    def _global(self, one: Fields) -> None:
        short(one.text("name"), "the name of a value")

    def _policy(self, one: Fields) -> None:
        read_policy(self._where(one), one.text("name"), **policy_fields(one, operator=False))  # type: ignore[arg-type]

    def _queue(self, one: Fields) -> None:
        name, vhost = short(one.text("name"), "the name of a queue"), self._where(one)
        one.flag("durable", True)
        one.flag("auto_delete", False)
        arguments = one.table("arguments")
        if self._core.find_queue(vhost, name) is None:
            check_settings(vhost, name, queue_settings(arguments, queue=name, vhost=vhost))

    def _exchange(self, one: Fields) -> None:
        self._where(one)
        short(one.text("name"), "the name of an exchange")
        one.text("type")
        for key in ("durable", "auto_delete", "internal"):
            one.flag(key, False)
        one.table("arguments")

    def _binding(self, one: Fields) -> None:
        self._where(one)
        for key in ("source", "destination", "routing_key"):
            short(one.text(key), key)
        one.choice("destination_type", ("queue", "exchange"))
        one.table("arguments")

    # -- making

    def administer(self, accounts: Accounts) -> None:
        """Users, vhosts, permissions, limits and global parameters."""
        for one in self._sections["vhosts"]:
            accounts.vhosts.setdefault(one.text("name"), {}).update(description_of(one))
        for one in self._sections["users"]:
            name = one.text("name")
            if name not in accounts.fixed_users:
                password = one.values.get("password")
                algorithm = self._algorithm(one)
                kept = (
                    hash_password(one.text("password"), algorithm)
                    if password is not None
                    else one.text("password_hash", "")
                )
                accounts.users[name] = Account(name, kept, algorithm, tags_of(one))
                accounts.removed.discard(name)
        for one in self._sections["permissions"]:
            user, vhost = one.text("user"), self._where(one)
            if user in accounts.users:
                patterns = [one.text(kind) for kind in ("configure", "write", "read")]
                accounts.permissions[user, vhost] = Permission(user, vhost, *patterns)
        for one in self._sections["topic_permissions"]:
            user, vhost, exchange = one.text("user"), self._where(one), one.text("exchange")
            if user in accounts.users:
                narrower = TopicPermission(user, vhost, exchange, one.text("write"), one.text("read"))
                accounts.topic_permissions[user, vhost, exchange] = narrower
        for one in self._sections["global_parameters"]:
            accounts.global_parameters[one.text("name")] = one.values.get("value")
        for one in self._sections["parameters"]:
            if one.text("component") == LIMITS:
                value = one.table("value")
                limits = {name: type(one)(value).count(name, -1, LIMIT_MOST) for name in value}
                accounts.vhost_limits.setdefault(self._where(one), {}).update(limits)

    async def make(
        self, user: str, undo: list[Callable[[], Awaitable[object]]], topology: Topology, policies: Policies
    ) -> None:
        """Everything in the core; `undo` gets what takes it back."""
        for section, operator in (("policies", False), ("parameters", True)):
            for one in self._sections[section]:
                if not operator or one.text("component") == OPERATOR:
                    await self._set_policy(one, policies, undo, operator=operator)
        for one in self._sections["exchanges"]:
            vhost, name = self._where(one), one.text("name")
            if topology.exchange(vhost, name) is None:
                await topology.declare_exchange(
                    user, vhost, name, one.text("type"), durable=one.flag("durable", True),
                    auto_delete=one.flag("auto_delete", False), internal=one.flag("internal", False),
                    arguments=one.table("arguments"), wait=False,
                )  # fmt: skip
                undo.append(lambda v=vhost, n=name: topology.delete_exchange(user, v, n, if_unused=False))  # type: ignore[misc]
        for place, one in enumerate(self._sections["queues"]):
            vhost, name = self._where(one), one.text("name")
            if self._core.find_queue(vhost, name) is None:
                await topology.declare_queue(
                    user, vhost, name, durable=one.flag("durable", True), auto_delete=one.flag("auto_delete", False),
                    arguments=one.table("arguments"), wait=False,
                )  # fmt: skip
                undo.append(
                    lambda v=vhost, n=name: topology.delete_queue(user, v, n, if_unused=False, if_empty=False)  # type: ignore[misc]
                )
            if place % STEP == 0:
                await asyncio.sleep(0)
        for place, one in enumerate(self._sections["bindings"]):
            await self._bind(one, topology, undo, user)
            if place % STEP == 0:
                await asyncio.sleep(0)
        await topology.durable(self._core.last_lsn)

    async def _set_policy(
        self, one: Fields, policies: Policies, undo: list[Callable[[], Awaitable[object]]], *, operator: bool
    ) -> None:
        vhost, name = self._where(one), one.text("name")
        fields = type(one)(one.table("value")) if operator else one
        present = next((p for p in self._core.policies(vhost, operator=operator) if p.name == name), None)
        await policies.put_policy(vhost, name, **policy_fields(fields, operator=operator))  # type: ignore[arg-type]
        if present is None:
            undo.append(lambda: policies.delete_policy(vhost, name, operator=operator))
        else:
            undo.append(
                lambda: policies.put_policy(
                    vhost, name, pattern=present.pattern, definition=present.definition, priority=present.priority,
                    apply_to=present.apply_to, operator=operator,
                )
            )  # fmt: skip

    async def _bind(
        self, one: Fields, topology: Topology, undo: list[Callable[[], Awaitable[object]]], user: str
    ) -> None:
        vhost, source, name = self._where(one), one.text("source"), one.text("destination")
        kind, key, arguments = one.text("destination_type"), one.text("routing_key"), one.table("arguments")
        if source == DEFAULT:
            return  # every queue has it
        before = self._core.last_lsn
        try:
            await topology.bind(user, vhost, source, kind, name, key, arguments, wait=False)
        except AccessRefused as error:
            raise InvalidArgument(f"bindings: {error}") from error
        if self._core.last_lsn > before:
            undo.append(lambda: topology.unbind(user, vhost, source, kind, name, key, arguments))
