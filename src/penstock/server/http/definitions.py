"""`/api/definitions`: what there is as one JSON document, and taking such a document over, by the other commands.

Taking it merges: it adds and replaces, never removes; a queue or exchange that is there with other properties is left
alone.  All of a document is taken, or nothing.

In: what can be looked at without changing anything is looked at first, object by object; then the objects are made, and
what was made is undone when one is refused after all.  Both go in time steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.config.foreign.rabbitmq_people import lost_by, voids_in
from penstock.config.queue_arguments import MIRRORS, NO_MIRRORS, arguments_of, queue_settings
from penstock.core.topology.register import check_settings
from penstock.core.topology.topology import DEFAULT, PREDECLARED
from penstock.errors import AccessRefused, InvalidArgument, PenstockError
from penstock.operations import people, queues, topology, vhosts
from penstock.operations.vhosts import DELETE_POLICY, LIMIT_MOST, SET_POLICY, policy_of
from penstock.records.dataclass import dataclass
from penstock.records.password_hashes import SHA256, check_hash
from penstock.records.rights import ADMINISTERS, RULES, without_right
from penstock.server.http.administration import (
    OPERATOR,
    description_of,
    parameters,
    policy_fields,
    policy_item,
    tags_of,
)
from penstock.server.http.administration import VHOST_LIMITS as LIMITS
from penstock.server.http.messages import Commands
from penstock.server.http.routes import RABBITMQ_VERSION, Ask, Row
from penstock.server.people.access import NOBODY
from penstock.server.people.accounts import (
    USER_LIMITS,
    VHOST_LIMITS,
    Account,
    Accounts,
    Kept,
    Permission,
    TopicPermission,
    hash_password,
)
from penstock.server.people.users import check_pattern
from penstock.wire.fields import short
from penstock.wire.http.bodies import LARGE_MOST, Lenient
from penstock.wire.http.lists import done, encoded, gathered, json_bytes, json_response, sorted_in_steps

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.core.queue.queue import Queue

STEP = 64
"""Objects that are looked at before others have their turn."""

LOGGED = 20
"""Warnings of one document that the server's log shows; whoever asked is told all."""

logger = logging.getLogger("penstock.server.http")

Sections = Mapping[str, "list[Lenient]"]
Undo = list[Callable[[], Awaitable[object]]]


SECTIONS_OF_A_VHOST = ("parameters", "policies", "queues", "exchanges", "bindings")


class Definitions(Commands):
    def rows(self) -> Sequence[Row]:
        every, of_vhost = "/api/definitions", "/api/definitions/{vhost}"
        fields = " ".join(SECTIONS)
        return (
            Row("GET", every, self.shown, "Everything that is defined", ADMINISTERS),
            Row("POST", every, self.taken, "Take definitions over", ADMINISTERS, fields),
            Row("GET", of_vhost, self.shown, "What is defined in a vhost", RULES),
            Row("POST", of_vhost, self.taken, "Take definitions over into a vhost", ADMINISTERS, fields),
        )

    def _vhost_of(self, ask: Ask) -> str | None:
        """That of the path, which has to be there; None: all."""
        vhost = ask.names.get("vhost")
        return None if vhost is None else self.vhost(vhost)

    # -- out

    async def shown(self, ask: Ask) -> Response:
        """All of it; objects of one vhost do not name it."""
        vhost, version = self._vhost_of(ask), self.facts.version
        head: dict[str, object] = {
            "rabbit_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "Penstock",
            "product_version": version,
        }
        parts = [bytes(json_response(head).body)[:-1]]
        for name in SECTIONS if vhost is None else SECTIONS_OF_A_VHOST:
            found = await gathered(
                {key: value for key, value in one.items() if vhost is None or key != "vhost"}
                for one in self.section(name, vhost)
            )
            if name == "bindings":
                found = await sorted_in_steps(found, lambda one: [str(value) for value in one.values()])
            parts.append(b'"' + name.encode() + b'":' + await encoded(cast("list[object]", found)))
        headers = {"content-disposition": "attachment; filename=definitions.json"}
        return json_bytes(b",".join(parts) + b"}", 200, headers)

    def section(self, name: str, vhost: str | None) -> Iterable[Mapping[str, object]]:
        """Objects of one section; exclusive and predeclared ones are nobody else's, and not among them."""
        return SECTIONS[name].out(self, vhost)

    def users_of_run_time(self) -> Iterable[Mapping[str, object]]:
        """Those of the settings are not to be taken elsewhere."""
        fixed = set(self.users.fixed())
        return [one for one in people.users(self, NOBODY, hashes=True) if one["name"] not in fixed]

    def permissions_of_run_time(self) -> Iterable[Mapping[str, object]]:
        return [one for one in people.permissions(self, NOBODY, None, None) if one["user"] in self.accounts.users]

    def topic_permissions_of_run_time(self) -> Iterable[Mapping[str, object]]:
        return [one for one in people.topic_permissions(self, NOBODY, None, None) if one["user"] in self.accounts.users]

    def shared_queues(self, vhost: str | None) -> Iterable[Mapping[str, object]]:
        """As a declare makes them; those that an exchange has for itself come with it."""
        return (
            {"name": one.name, "vhost": one.vhost, "durable": one.durable, "auto_delete": one.auto_delete,
             "arguments": self._arguments(one)}
            for one in self.core.queues()
            if one.exclusive_to is None and one.exchange is None and vhost in {None, one.vhost}
        )  # fmt: skip

    def shared_bindings(self, vhost: str | None) -> Iterable[Mapping[str, object]]:
        """Those of exchanges that have a name."""
        exclusive = {(one.vhost, one.name) for one in self.core.queues() if one.exclusive_to is not None}
        return (
            one for one in topology.bindings(self, NOBODY, vhost, None, None, None)
            if one["source"] != DEFAULT
            and (one["destination_type"] != "queue" or (one["vhost"], one["destination"]) not in exclusive)
        )  # fmt: skip

    def _arguments(self, queue: Queue) -> dict[str, object]:
        """Of a declare that makes the same queue, whoever declared it."""
        own = self.core.ruling(queue)
        return arguments_of(own.own, own.given, queue.arguments)

    # -- in

    async def taken(self, ask: Ask) -> Response:
        """204, or what is taken and not the same here, a sentence each."""
        vhost = self._vhost_of(ask)
        fields = await ask.fields(LARGE_MOST, once=True)
        if not any(name in fields.values for name in SECTIONS):
            raise InvalidArgument(f"the document has none of {', '.join(SECTIONS)}")
        warnings = await self.take({name: fields.items(name) for name in SECTIONS}, vhost)
        return json_response({"warnings": warnings}) if warnings else done()

    async def take(self, sections: Sections, vhost: str | None) -> Sequence[str]:
        """All of it, or nothing; what is not the same here, object by object."""
        self.refuse_full()
        taking = Taking(self, sections, vhost)
        await taking.look()
        undo: Undo = []

        def administer(accounts: Accounts) -> None:
            before = accounts.state()
            taking.administer(accounts)
            after = accounts.state()
            undo.append(lambda: self.change(lambda there: there.take_back(before, after)))

        try:
            for fresh in taking.vhosts - set(self.accounts.vhosts):
                await vhosts.empty(self, fresh)
            await self.change(administer)
            await taking.make(undo)
        except Exception:
            for one in reversed(undo):
                try:
                    await one()
                except PenstockError as error:  # somebody else has changed it meanwhile: the others are undone still
                    logger.warning("definitions: what was made is not undone: %s", error)
            raise
        for warning in taking.warnings[:LOGGED]:
            logger.warning("definitions: %s", warning)
        if len(taking.warnings) > LOGGED:
            logger.warning("definitions: %d more are not the same here", len(taking.warnings) - LOGGED)
        return taking.warnings


class Taking:
    """One document on its way in."""

    def __init__(self, definitions: Definitions, sections: Sections, vhost: str | None) -> None:
        self._house = definitions
        self._core = definitions.core
        self._accounts = definitions.accounts
        self._into = vhost
        self.warnings: list[str] = []
        self._sections = self._without_nodes(sections)
        known = set(self._accounts.vhosts)
        self.vhosts = known | {one.text("name") for one in sections["vhosts"]}

    def _without_nodes(self, sections: Sections) -> Sections:
        """The same but for what says how queues are spread over nodes, which has no meaning here; it is told."""
        policies: list[Lenient] = []
        for one in sections["policies"]:
            found = one.values.get("definition")
            given = cast("dict[str, object]", found) if isinstance(found, dict) else {}
            if mirrors := MIRRORS.intersection(given):
                self.warnings.append(one.told(f"policy: {', '.join(sorted(mirrors))}: {NO_MIRRORS}"))
                kept = {key: value for key, value in given.items() if key not in mirrors}
                if not kept:
                    continue
                one = one.holding({**one.values, "definition": kept})
            policies.append(one)
        return {**sections, "policies": policies}

    async def look(self) -> None:
        """InvalidArgument for the first object that cannot be."""
        done = 0
        for name, section in SECTIONS.items():
            for one in self._sections[name]:
                try:
                    section.look(self, one)
                except (PenstockError, ValueError) as error:
                    raise InvalidArgument(one.told(str(error))) from None
                done += 1
                if done % STEP == 0:
                    await asyncio.sleep(0)

    def _where(self, one: Lenient) -> str:
        vhost = one.text("vhost", "/") if self._into is None else self._into
        if vhost not in self.vhosts:
            raise InvalidArgument(f"vhost '{vhost}' does not exist")
        return vhost

    def look_at_user(self, one: Lenient) -> None:
        short(one.text("name"), "the name of a user")
        self.warnings += [one.told(f"user: {sentence}") for sentence in without_right(tags_of(one))]
        _limits(one, USER_LIMITS)
        if one.values.get("password") is None:
            check_hash(one.text("password_hash", ""), self._algorithm(one))

    @staticmethod
    def _algorithm(one: Lenient) -> str:
        return one.text("hashing_algorithm", SHA256)

    def look_at_vhost(self, one: Lenient) -> None:
        vhosts.check_name(short(one.text("name"), "the name of a vhost"))
        description_of(one)
        _limits(one, VHOST_LIMITS)

    def look_at_permission(self, one: Lenient) -> None:
        self._where(one)
        one.text("user")
        for kind in ("configure", "write", "read"):
            check_pattern(kind, one.text(kind))

    def look_at_topic_permission(self, one: Lenient) -> None:
        self._where(one)
        one.text("user")
        short(one.text("exchange"), "the name of an exchange")
        for kind in ("write", "read"):
            check_pattern(kind, one.text(kind))

    def look_at_parameter(self, one: Lenient) -> None:
        vhost, component = self._where(one), one.text("component")
        value = one.table("value")
        fields = type(one)(value)
        if component == OPERATOR:
            policy_of(one.text("name"), vhost, operator=True, **policy_fields(fields))
        elif component == LIMITS:
            for limit in value:
                fields.number(limit, -1, LIMIT_MOST)
        else:
            raise InvalidArgument(f"component '{component[:60]}' is not one of {OPERATOR}, {LIMITS}")

    def look_at_global(self, one: Lenient) -> None:
        short(one.text("name"), "the name of a value")
        one.shallow("value", one.values.get("value"))

    def look_at_policy(self, one: Lenient) -> None:
        policy_of(one.text("name"), self._where(one), operator=False, **policy_fields(one))

    def look_at_queue(self, one: Lenient) -> None:
        name, vhost = short(one.text("name"), "the name of a queue"), self._where(one)
        one.flag("durable", True)
        one.flag("auto_delete", False)
        arguments = one.table("arguments")
        if lost := lost_by(arguments):
            self.warnings.append(one.told(f"queue '{name}' in vhost '{vhost}': {lost}"))
        if self._core.find_queue(vhost, name) is None:
            check_settings(vhost, name, queue_settings(arguments, queue=name, vhost=vhost), by_arguments=True)

    def look_at_exchange(self, one: Lenient) -> None:
        self._where(one)
        short(one.text("name"), "the name of an exchange")
        one.text("type")
        for key in ("durable", "auto_delete", "internal"):
            one.flag(key, False)
        one.table("arguments")

    def look_at_binding(self, one: Lenient) -> None:
        self._where(one)
        for key in ("source", "destination", "routing_key"):
            short(one.text(key), key)
        one.choice("destination_type", ("queue", "exchange"))
        if voids := voids_in(one.table("arguments")):
            source, end = one.text("source"), one.text("destination")
            self.warnings.append(one.told(f"binding of '{source}' to '{end}': {voids}"))

    # -- making

    def administer(self, accounts: Accounts) -> None:
        """Users, vhosts, permissions, limits and global parameters."""
        for one in self._sections["vhosts"]:
            accounts.vhosts.setdefault(one.text("name"), {}).update(description_of(one))
            if limits := _limits(one, VHOST_LIMITS):
                accounts.vhost_limits.setdefault(one.text("name"), {}).update(limits)
        for one in self._sections["users"]:
            if one.text("name") not in accounts.fixed_users:
                self._take_user(accounts, one)
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
                limits = {name: type(one)(value).number(name, -1, LIMIT_MOST) for name in value}
                accounts.vhost_limits.setdefault(self._where(one), {}).update(limits)

    def _take_user(self, accounts: Accounts, one: Lenient) -> None:
        name = one.text("name")
        kept = Kept(one.text("password_hash", ""), self._algorithm(one))
        if one.values.get("password") is not None:
            kept = Kept(hash_password(one.text("password")), SHA256)  # by Argon2id once its user logs in
        before = accounts.users.get(name)
        if before is None or before.password != kept:
            accounts.forget_tokens(name)
        accounts.users[name] = Account(name, kept, tags_of(one))
        accounts.removed.discard(name)
        accounts.user_limits.pop(name, None)
        if limits := _limits(one, USER_LIMITS):
            accounts.user_limits[name] = limits

    async def make(self, undo: Undo) -> None:
        """Everything in the core; `undo` gets what takes it back."""
        for section, operator in (("policies", False), ("parameters", True)):
            for one in self._sections[section]:
                if not operator or one.text("component") == OPERATOR:
                    await self._set_policy(one, undo, operator=operator)
        steps: tuple[tuple[str, Callable[[Lenient, Undo], Awaitable[None]]], ...] = (
            ("exchanges", self._make_exchange), ("queues", self._make_queue), ("bindings", self._bind),
        )  # fmt: skip
        for section, make in steps:
            for place, one in enumerate(self._sections[section]):
                await make(one, undo)
                if place % STEP == 0:
                    await asyncio.sleep(0)
        await self._house.durable(self._core.last_lsn)

    async def _make_exchange(self, one: Lenient, undo: Undo) -> None:
        named = {"vhost": self._where(one), "exchange": one.text("name")}
        if self._core.topology.exchange(*named.values()) is None:
            await self._decide(
                topology.declare_exchange, **named, type=one.text("type"), durable=one.flag("durable", True),
                auto_delete=one.flag("auto_delete", False), internal=one.flag("internal", False),
                arguments=one.table("arguments"),
            )  # fmt: skip
            undo.append(partial(self._decide, topology.delete_exchange, **named, if_unused=False))

    async def _make_queue(self, one: Lenient, undo: Undo) -> None:
        vhost, name = self._where(one), one.text("name")
        if self._core.find_queue(vhost, name) is None:
            named, arguments = {"vhost": vhost, "queue": name}, one.table("arguments")
            await self._decide(
                queues.declare_by_arguments, **named, durable=one.flag("durable", True),
                auto_delete=one.flag("auto_delete", False), arguments=arguments,
            )  # fmt: skip
            undo.append(partial(self._decide, queues.delete, **named, if_unused=False, if_empty=False))

    async def _decide(self, run: Callable[..., object], **arguments: object) -> None:
        """Carry out an operation; what it decides is waited for with all the rest."""
        await self._house.decide(partial(run, self._house, NOBODY, **arguments), wait=False)

    async def _set_policy(self, one: Lenient, undo: Undo, *, operator: bool) -> None:
        vhost, name = self._where(one), one.text("name")
        fields = type(one)(one.table("value")) if operator else one
        present = next((p for p in self._core.policies(vhost, operator=operator) if p.name == name), None)
        named: dict[str, object] = {"policy": name, "vhost": vhost, "operator": operator}
        await self._house.operate(SET_POLICY, NOBODY, {**named, **policy_fields(fields)})
        if present is None:
            undo.append(lambda: self._house.operate(DELETE_POLICY, NOBODY, named))
        else:
            before = {key: getattr(present, key) for key in ("pattern", "definition", "priority", "apply_to")}
            undo.append(lambda: self._house.operate(SET_POLICY, NOBODY, {**named, **before}))

    async def _bind(self, one: Lenient, undo: Undo) -> None:
        source, kind, end = one.text("source"), one.text("destination_type"), one.text("destination")
        if source == DEFAULT:
            return  # every queue has it
        asked = {
            "vhost": self._where(one), "exchange": source, "queue": end if kind == "queue" else None,
            "destination": None if kind == "queue" else end, "key": one.text("routing_key"),
            "arguments": one.table("arguments"),
        }  # fmt: skip
        before = self._core.last_lsn
        try:
            await self._decide(topology.bind, **asked)
        except AccessRefused as error:
            raise InvalidArgument(f"bindings: {error}") from error
        if self._core.last_lsn > before:
            undo.append(partial(self._decide, topology.unbind, **asked))


def _limits(one: Lenient, known: Sequence[str]) -> dict[str, int]:
    """Limits that an object of the document has beside its other fields; an empty list is none, as there."""
    if one.values.get("limits") == []:
        return {}
    limits = type(one)(one.table("limits"))
    for name in limits.values:
        if name not in known:
            raise InvalidArgument(f"the limit '{name[:60]}' is not one of {', '.join(known)}")
    return {name: limits.number(name, -1, LIMIT_MOST) for name in limits.values}


@dataclass(frozen=True, slots=True)
class Section:
    """Objects of a document."""

    out: Callable[[Definitions, str | None], Iterable[Mapping[str, object]]]  # those that there are
    look: Callable[[Taking, Lenient], None]  # whether one may come in


SECTIONS: Mapping[str, Section] = {
    "users": Section(lambda house, _: house.users_of_run_time(), Taking.look_at_user),
    "vhosts": Section(
        lambda house, _: [{"name": one, **more} for one, more in house.accounts.vhosts.items()], Taking.look_at_vhost
    ),
    "permissions": Section(lambda house, _: house.permissions_of_run_time(), Taking.look_at_permission),
    "topic_permissions": Section(
        lambda house, _: house.topic_permissions_of_run_time(), Taking.look_at_topic_permission
    ),
    "parameters": Section(lambda house, vhost: parameters(house, NOBODY, None, vhost), Taking.look_at_parameter),
    "global_parameters": Section(lambda house, _: vhosts.values(house, NOBODY), Taking.look_at_global),
    "policies": Section(
        lambda house, vhost: map(policy_item, vhosts.policies(house, NOBODY, vhost, operator=False)),
        Taking.look_at_policy,
    ),
    "queues": Section(lambda house, vhost: house.shared_queues(vhost), Taking.look_at_queue),
    "exchanges": Section(
        lambda house, vhost: (
            one for one in topology.exchanges(house, NOBODY, vhost) if one["name"] not in PREDECLARED
        ),
        Taking.look_at_exchange,
    ),
    "bindings": Section(lambda house, vhost: house.shared_bindings(vhost), Taking.look_at_binding),
}
