"""Vhosts, limits of vhosts and users, policies, and values that are kept under a name.

Policies and operator policies are for users with the tag policymaker, or administrators alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from penstock.config.queue_arguments import PRIORITY_MOST, read_policy
from penstock.core.topology.topology import table_of
from penstock.errors import InvalidArgument, NotFound
from penstock.operations.operation import RABBITMQ, Answer, Body, House, Operation
from penstock.operations.people import TAGS_MOST, expect
from penstock.records.declared_types import QUEUE_TYPES
from penstock.records.rights import ADMINISTERS, KNOWS_VALUES, LOGIN, MONITORING, RULES, SEES, Right
from penstock.server.people.accounts import USER_LIMITS, VHOST_LIMITS, Accounts, Permission
from penstock.server.people.entitlements import refused
from penstock.server.people.tokens import ALL
from penstock.wire.fields import VHOST, Field, count, flag, name, table, text, texts

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.records.chunks import Now
    from penstock.records.queue_settings import Policy
    from penstock.server.people.access import Who


CLUSTER_NAME = "cluster_name"
"""The value that names the instance for tools; without it the name of the settings does."""

LIMIT_MOST = 1_000_000_000

DESCRIPTION_MOST = 4096

COPIED_S = 0.02
"""How often it is looked whether a batch of a sink is copied to its end: its rows come to nobody else."""

STEP = 64
"""Objects of a vhost that are deleted before others have their turn."""


def vhosts(house: House, who: Who) -> Iterator[dict[str, object]]:
    """Those that the user may open, or all for one who sees everything."""
    everything = MONITORING.holds(who.tags)
    for vhost, more in list(house.accounts.vhosts.items()):
        if everything or who.enters(vhost):
            yield {"name": vhost, "description": "", "tags": [], "tracing": False, **more,
                   "default_queue_type": house.accounts.default_type(vhost)}  # fmt: skip


def check_name(vhost: str) -> None:
    """InvalidArgument for a name with what sets apart what the log keeps of a vhost."""
    if "\0" in vhost:
        raise InvalidArgument(f"vhost {vhost!r}: a name has no zero byte")


async def set_vhost(
    house: House, who: Who, vhost: str, new: bool | None, description: str | None, tags: Sequence[str] | None,
    default_queue_type: str | None, tracing: bool | None,
) -> Answer:  # fmt: skip
    """Make or describe.  Whoever makes one at run time may use it."""
    if default_queue_type is not None and default_queue_type not in QUEUE_TYPES:
        known = ", ".join(QUEUE_TYPES)
        raise InvalidArgument(f"default_queue_type is {default_queue_type!r}, not one of {known}")
    check_name(vhost)
    fresh = vhost not in house.accounts.vhosts
    expect(new, not fresh, f"vhost '{vhost}'")
    if fresh:
        await empty(house, vhost)  # of one of the name that was not deleted to the end
    more = {"description": description, "tags": tags, "default_queue_type": default_queue_type,
            "tracing": tracing}  # fmt: skip

    def work(accounts: Accounts) -> None:
        accounts.vhosts.setdefault(vhost, {}).update({key: one for key, one in more.items() if one is not None})
        if fresh and who.user in accounts.users:
            accounts.permissions.setdefault((who.user, vhost), Permission(who.user, vhost, ALL, ALL, ALL))

    await house.change(work)
    return {"vhost": vhost, "new": fresh}


async def delete_vhost(house: House, who: Who, vhost: str) -> Answer:
    """First nobody comes in any more, then what is there goes."""
    _there(house, vhost)
    if vhost in house.accounts.fixed_vhosts:
        file = "is one of the settings file: take it out there, and delete it after the next start"
        where = "is always there" if vhost == "/" else file
        raise InvalidArgument(f"vhost '{vhost}' {where}")
    await house.change(lambda accounts: accounts.forget_vhost(vhost))
    house.hang_up(f"vhost '{vhost}' is deleted", vhost=vhost)
    await empty(house, vhost)
    return {"vhost": vhost}


async def empty(house: House, vhost: str) -> None:
    """Nothing is left of a vhost that is not there: whoever makes one of its name finds it empty, its past too."""
    while left := await house.decide(lambda: _emptied(house, vhost)):  # noqa: ASYNC110 - others have their turn
        await asyncio.sleep(0 if left > 0 else COPIED_S)
    house.forget_counts(vhost)


def _emptied(house: House, vhost: str) -> int:
    """How many things of a vhost were deleted; 0: there is none, or the vhost is there again; -1: some still come."""
    if vhost in house.accounts.vhosts:
        return 0
    core, now = house.core, house.now()
    if any(part.vhost == vhost for decided in core.decided.values() for part in decided.parts):
        return -1
    some = list(islice(_deletions(core, now, vhost), STEP)) or list(islice(_unbindings(core, now, vhost), STEP))
    for delete in some:
        delete()
    return len(some) or core.forget_vhost(now, vhost)


def _deletions(core: Core, now: Now, vhost: str) -> Iterator[Callable[[], object]]:
    for operator in (False, True):
        for policy in core.policies(vhost, operator=operator):
            yield partial(core.delete_policy, now, vhost, policy.name, operator=operator)
    for queue in core.queues():
        if queue.vhost == vhost and queue.exchange is None:  # else it goes with its exchange
            yield partial(core.delete_queue, now, queue)
    for of, exchange in core.topology.exchanges:
        if of == vhost:
            yield partial(core.delete_exchange, now, vhost, exchange, if_unused=False)
    for of, exchange, key in core.topology.topics:
        if of == vhost:
            yield partial(core.delete_topic, now, vhost, exchange, key)
    for stream, state in core.streams.states.items():
        if state.asked.get("vhost") == vhost:
            yield partial(core.streams.release, now, stream, drop=True)


def _unbindings(core: Core, now: Now, vhost: str) -> Iterator[Callable[[], object]]:
    """Of what is left when all else is gone: bindings between predeclared exchanges."""
    for (of, source), found in core.topology.by_source.items():
        for one in found if of == vhost else ():
            end = one.destination, one.destination_type, one.key, table_of(one.arguments)
            yield partial(core.unbind, now, vhost, source, *end)


def _there(house: House, vhost: str) -> None:
    if vhost not in house.accounts.vhosts:
        raise NotFound(f"no vhost '{vhost}'")


# -- limits


def limits(house: House, who: Who, of: str = "") -> Iterator[dict[str, object]]:
    """Users, then vhosts, that have some: `user` or `vhost`, and `value`, limits by name.  of: one of both alone."""
    for noun, found in (("user", house.accounts.limits_of_users()), ("vhost", house.accounts.limits_of_vhosts())):
        if of in {"", noun}:
            for thing, value in found.items():
                yield {noun: thing, "value": dict(value)}


async def set_limit(
    house: House, who: Who, user: str | None, vhost: str | None, limit: str, value: int | None
) -> Answer:
    """Of a user or a vhost.  -1 is none, and None takes it away."""
    if (user is None) == (vhost is None):
        raise InvalidArgument(f"limit_set: user is {user!r}, not one of user and vhost")
    if user is not None and not house.users.known(user):
        raise NotFound(f"no user '{user}'")
    if vhost is not None:
        _there(house, vhost)
    known = VHOST_LIMITS if user is None else USER_LIMITS
    if limit not in known:
        raise InvalidArgument(f"'{limit[:60]}' is no limit: {' or '.join(known)}")

    def work(accounts: Accounts) -> None:
        kept = accounts.vhost_limits if user is None else accounts.user_limits
        mine = kept.setdefault(user or vhost or "", {})
        if value is None:
            mine.pop(limit, None)
        else:
            mine[limit] = value

    await house.change(work)
    return {"vhost": vhost, "limit": limit} if user is None else {"user": user, "limit": limit}


# -- values


def values(house: House, who: Who) -> Iterator[dict[str, object]]:
    """What is kept for the whole cluster."""
    for key, value in list(house.accounts.global_parameters.items()):
        yield {"name": key, "value": value}


async def set_value(house: House, who: Who, name: str, value: object) -> Answer:
    """Keep any JSON value under a name."""
    fresh = name not in house.accounts.global_parameters

    def work(accounts: Accounts) -> None:
        accounts.global_parameters[name] = value

    await house.change(work)
    return {"name": name, "new": fresh}


async def delete_value(house: House, who: Who, name: str) -> Answer:
    """Forget the value of a name.  NotFound."""
    if name not in house.accounts.global_parameters:
        raise NotFound(f"no value '{name}'")
    await house.change(lambda accounts: accounts.global_parameters.pop(name))
    return {"name": name}


_VHOST = name("vhost")

VHOSTS = Operation(
    "vhosts", vhosts, "list", "those that the user may open; all for administrators", LOGIN, key="vhosts",
    sdk="vhosts", cli="vhost list",
)  # fmt: skip
SET_VHOST = Operation(
    "vhost_set", set_vhost, "change",
    "vhost, description, tags, default_queue_type, tracing, new: make or describe a vhost",
    ADMINISTERS,
    (_VHOST, flag("new", None), text("description", most=DESCRIPTION_MOST), texts("tags", TAGS_MOST),
     text("default_queue_type"), flag("tracing", None)),
    sdk="add_vhost", cli="vhost add",
)  # fmt: skip
DELETE_VHOST = Operation(
    "vhost_delete", delete_vhost, "change", "vhost: with everything in it", ADMINISTERS, (_VHOST,),
    sdk="delete_vhost", cli="vhost delete",
)  # fmt: skip
LIMITS = Operation(
    "limits", limits, "list", "of users and vhosts that have some", ADMINISTERS, key="limits", sdk="limits",
    cli="user list-limits",
)  # fmt: skip
SET_LIMIT = Operation(
    "limit_set", set_limit, "change", "user or vhost, limit, value: a number; without it the limit goes", ADMINISTERS,
    (text("user"), text("vhost"), name("limit"), count("value", -1, LIMIT_MOST)),
    sdk="set_user_limit", cli="user set-limit",
)  # fmt: skip
VALUES = Operation(
    "values", values, "list", "what is kept under names", KNOWS_VALUES, key="values", action=False, missing=RABBITMQ
)
SET_VALUE = Operation(
    "value_set", set_value, "change", "name, value: keep any JSON under a name", ADMINISTERS,
    (name("name"), Field("value", "value")), action=False, missing=RABBITMQ,
)  # fmt: skip
DELETE_VALUE = Operation(
    "value_delete", delete_value, "change", "name: forget it", ADMINISTERS, (name("name"),), action=False,
    missing=RABBITMQ,
)  # fmt: skip


def ruling(body: Body) -> Right:
    """What changing a policy asks."""
    return ADMINISTERS if body.get("operator") else RULES


def policies(house: House, who: Who, vhost: str | None, operator: bool) -> Iterator[dict[str, object]]:
    """Those of one vhost or of all, in RabbitMQ's words."""
    for one in house.core.policies(vhost, operator=operator):
        yield {
            "vhost": one.vhost,
            "name": one.name,
            "pattern": one.pattern,
            "apply-to": one.apply_to,
            "definition": dict(one.definition),
            "priority": one.priority,
            "origin": one.origin,
        }


def set_policy(
    house: House, who: Who, policy: str, vhost: str, operator: bool, pattern: object, definition: Mapping[str, object],
    priority: int, apply_to: str | None,
) -> Answer:  # fmt: skip
    """One of that name is replaced as a whole.  AccessRefused where it would write what the server alone has to say."""
    found = policy_of(policy, vhost, operator, pattern, definition, priority, apply_to)
    if who.rights is not None:
        for exchange in (found.alternate_exchange, found.settings.get("dead_letter_exchange")):
            if isinstance(exchange, str) and who.rights.reserved(vhost, "write", exchange):
                raise refused("write", f"exchange '{exchange}' in vhost '{vhost}'", who.user)
    return {"policy": policy, "new": house.core.set_policy(house.now(), found)}


def policy_of(
    policy: str, vhost: str, operator: bool, pattern: object, definition: object, priority: int, apply_to: str | None
) -> Policy:
    """A policy that can be.  InvalidArgument says why it cannot."""
    applies = apply_to if apply_to is not None else "queues" if operator else "all"
    return read_policy(vhost, policy, pattern, definition, priority=priority, apply_to=applies, operator=operator)


def delete_policy(house: House, who: Who, policy: str, vhost: str, operator: bool) -> Answer:
    """What it did is undone.  NotFound."""
    house.core.delete_policy(house.now(), vhost, policy, operator=operator)
    return {"policy": policy}


POLICIES = Operation(
    "policies", policies, "list", "operator: the policies, or operator policies, of a vhost", SEES,
    (VHOST, flag("operator")), key="policies", sdk="policies", cli="policy list",
)  # fmt: skip
SET_POLICY = Operation(
    "policy_set", set_policy, "decide",
    "policy, pattern, definition, priority, apply_to, operator: this policy is there", ruling,
    (name("policy"), VHOST, flag("operator"), text("pattern"), table("definition"),
     count("priority", -PRIORITY_MOST, PRIORITY_MOST, 0), text("apply_to")),
    sdk="set_policy", cli="policy set",
)  # fmt: skip
DELETE_POLICY = Operation(
    "policy_delete", delete_policy, "decide", "policy, operator: what it did is undone", ruling,
    (name("policy"), VHOST, flag("operator")), sdk="delete_policy", cli="policy delete",
)  # fmt: skip
