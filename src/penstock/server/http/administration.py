"""RabbitMQ's paths of what is administered: users, permissions, vhosts, limits, policies, parameters,
connections.  Whoever has no tag for more sees and closes his own connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from penstock.config.queue_arguments import PRIORITY_MOST
from penstock.errors import AccessRefused, InvalidArgument, NotFound, shown
from penstock.operations import people, vhosts
from penstock.operations.people import PERMISSIONS, TAGS_MOST, TOPIC_PERMISSIONS, USERS
from penstock.operations.server import CLOSE_CONNECTION, CONNECTIONS, PIPELINE_STATUS, REASON_MOST
from penstock.operations.vhosts import (
    CLUSTER_NAME,
    DELETE_POLICY,
    LIMIT_MOST,
    LIMITS,
    POLICIES,
    SET_LIMIT,
    SET_POLICY,
    SET_VALUE,
    VALUES,
    VHOSTS,
)
from penstock.records.declared_types import QUEUE_TYPES
from penstock.records.rights import ADMINISTERS, LISTS, LISTS_RULES, LOGIN, MONITORING, RULES, SEES
from penstock.server.http.routes import Ask, Deriving, Row
from penstock.wire.fields import short
from penstock.wire.http.bodies import Lenient
from penstock.wire.http.lists import COLUMNS, done, json_response, not_found, only_columns

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.operations.operation import House
    from penstock.server.operating import Operating
    from penstock.server.people.access import Who

OPERATOR, VHOST_LIMITS = "operator_policy", "vhost-limits"

COMPONENTS = (OPERATOR, VHOST_LIMITS)
"""Of parameters; no other is here."""

_POLICY_FIELDS = ("pattern", "definition", "priority", "apply-to", "vhost", "name")
"""Those of a policy; tools repeat the vhost and the name of the path."""


# -- people


def tags_of(fields: Lenient) -> tuple[str, ...]:
    """Tags as a list, or a text with commas between.  Raises InvalidArgument."""
    value = fields.values.get("tags")
    if value is None:
        raise InvalidArgument("tags is missing")
    parts: list[object] = cast("list[object]", value) if isinstance(value, list) else []
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    elif not isinstance(value, list):
        raise fields.bad("tags", value, "a list of texts or a text with commas")
    if len(parts) > TAGS_MOST:
        raise InvalidArgument(f"tags has {len(parts)} entries, {TAGS_MOST} are allowed")
    for part in parts:
        if not isinstance(part, str) or not part:
            raise InvalidArgument(f"tags holds {shown(part)}, which is no tag")
        short(part, "a tag")
    return tuple(dict.fromkeys(cast("list[str]", parts)))


def _user(fields: Lenient) -> Mapping[str, object]:
    kept = ("password", "password_hash", "hashing_algorithm")
    return {**{one: fields.optional_text(one) for one in kept}, "tags": tags_of(fields)}


def _names(fields: Lenient) -> Mapping[str, object]:
    value = fields.values.get("users")
    names = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(one, str) for one in names):
        raise InvalidArgument("users is not a list of names")
    return {"users": names}


def _permission(fields: Lenient) -> Mapping[str, object]:
    return {kind: fields.text(kind) for kind in ("configure", "write", "read")}


def _topic_permission(fields: Lenient) -> Mapping[str, object]:
    exchange = short(fields.text("exchange"), "the name of an exchange")
    return {"exchange": exchange, "write": fields.text("write"), "read": fields.text("read")}


def _limit(fields: Lenient) -> Mapping[str, object]:
    return {"value": fields.number("value", -1, LIMIT_MOST)}


def of_people(of: Deriving, house: Operating) -> Sequence[Row]:
    """Users and what they may do."""

    async def lonely(ask: Ask) -> Response:
        some = {one["user"] for one in people.permissions(house, ask.who, None, None)}
        return await ask.listed(one for one in people.users(house, ask.who, hashes=True) if one["name"] not in some)

    user, limit = "/api/users/{user}", "/api/user-limits/{user}/{name}"
    permission, topic = "/api/permissions/{vhost}/{user}", "/api/topic-permissions/{vhost}/{user}"
    of_user, limited = {"user": "name"}, {"name": "limit"}
    return (
        of.list("/api/users", USERS, "Every user", hashes=True),
        Row("GET", "/api/users/without-permissions", lonely, "Users that may open no vhost", ADMINISTERS, many=True),
        of.do("POST", "/api/users/bulk-delete", people.DELETE_USERS, "Delete users", _names, body="users"),
        of.one(user, USERS, "One user", of_user, hashes=True),
        of.put(user, people.SET_USER, "Make or change a user", _user, thing="a user",
               body="password password_hash hashing_algorithm tags"),
        of.do("DELETE", user, people.DELETE_USER, "Delete a user, and close his connections"),
        of.part(f"{user}/permissions", PERMISSIONS, "Permissions of a user", USERS, "user"),
        of.part(f"{user}/topic-permissions", TOPIC_PERMISSIONS, "Topic permissions of a user", USERS, "user"),
        of.list("/api/permissions", PERMISSIONS, "Every permission"),
        of.one(permission, PERMISSIONS, "The permission of a user in a vhost"),
        of.put(permission, people.SET_PERMISSION, "Permit a user to use a vhost", _permission,
               body="configure write read"),
        of.do("DELETE", permission, people.DELETE_PERMISSION, "Take a permission away"),
        of.list("/api/topic-permissions", TOPIC_PERMISSIONS, "Every topic permission"),
        of.list(topic, TOPIC_PERMISSIONS, "Topic permissions of a user in a vhost"),
        of.put(topic, people.SET_TOPIC_PERMISSION, "Narrow what a user may do, by routing key", _topic_permission,
               body="exchange write read"),
        of.do("DELETE", topic, people.DELETE_TOPIC_PERMISSIONS, "Take topic permissions of a user in a vhost away"),
        of.list("/api/user-limits", LIMITS, "Limits of users", of="user"),
        of.list("/api/user-limits/{user}", LIMITS, "Limits of a user", of="user"),
        of.do("PUT", limit, SET_LIMIT, "Set max-connections or max-channels", _limit, limited, body="value"),
        of.do("DELETE", limit, SET_LIMIT, "Take a limit away", None, limited),
        of.do("GET", "/api/auth/hash_password/{password}", people.HASH_PASSWORD, "A password, hashed",
              answer=json_response),
    )  # fmt: skip


# -- vhosts


def description_of(fields: Lenient) -> dict[str, object]:
    """What a vhost says of itself, in the order of its keys."""
    found: dict[str, object] = {}
    if fields.values.get("description") is not None:
        found["description"] = fields.text("description")
    tags = fields.values.get("tags")
    if tags is not None:
        if isinstance(tags, str):
            tags = [part.strip() for part in tags.split(",") if part.strip()]
        if not isinstance(tags, list) or not all(isinstance(one, str) for one in tags):  # pyright: ignore[reportUnknownVariableType]
            raise InvalidArgument("tags is neither a list of texts nor a text with commas")
        found["tags"] = tags
    if fields.values.get("default_queue_type") not in (None, "", "undefined"):
        found["default_queue_type"] = fields.choice("default_queue_type", tuple(QUEUE_TYPES))
    if "tracing" in fields.values:
        found["tracing"] = fields.flag("tracing")
    return found


def _value(fields: Lenient) -> Mapping[str, object]:
    if "value" not in fields.values:
        raise InvalidArgument("value is missing")
    return {"value": fields.shallow("value", fields.values["value"])}


def _cluster_name(fields: Lenient) -> Mapping[str, object]:
    value = short(fields.text("name"), "the name of a cluster")
    if not value:
        raise InvalidArgument("name is empty")
    return {"value": value}


def of_vhosts(of: Deriving) -> Sequence[Row]:
    """Vhosts, their limits, and what the whole cluster keeps by name."""
    vhost, limit, value = "/api/vhosts/{vhost}", "/api/vhost-limits/{vhost}/{name}", "/api/global-parameters/{name}"
    limited, within = {"name": "limit"}, "Topic permissions in a vhost"
    return (
        of.put(vhost, vhosts.SET_VHOST, "Make or describe a vhost", description_of, thing="a vhost",
               body="description tags default_queue_type tracing"),
        of.do("DELETE", vhost, vhosts.DELETE_VHOST, "Delete a vhost with everything in it"),
        of.part(f"{vhost}/permissions", PERMISSIONS, "Permissions in a vhost", VHOSTS, "vhost"),
        of.part(f"{vhost}/topic-permissions", TOPIC_PERMISSIONS, within, VHOSTS, "vhost"),
        of.list("/api/vhost-limits", LIMITS, "Limits of vhosts", right=LISTS, of="vhost"),
        of.list("/api/vhost-limits/{vhost}", LIMITS, "Limits of a vhost", right=SEES, of="vhost"),
        of.do("PUT", limit, SET_LIMIT, "Set max-connections or max-queues", _limit, limited, body="value"),
        of.do("DELETE", limit, SET_LIMIT, "Take a limit away", None, limited),
        of.list("/api/global-parameters", VALUES, "Every global parameter"),
        of.one(value, VALUES, "One global parameter"),
        of.put(value, SET_VALUE, "Keep a value under a name", _value, thing="a value", body="value"),
        of.do("DELETE", value, vhosts.DELETE_VALUE, "Forget a value"),
        of.do("PUT", "/api/cluster-name", SET_VALUE, "Name the instance for tools", _cluster_name, body="name",
              name=CLUSTER_NAME),
    )  # fmt: skip


# -- policies


def policy_fields(fields: Lenient) -> dict[str, Any]:
    """What `set_policy` takes of a body.  The rest is for the server to read."""
    if strange := [name for name in fields.values if name not in _POLICY_FIELDS]:
        raise InvalidArgument(f"{strange[0]!r} is no field of a policy: it has {', '.join(_POLICY_FIELDS)}")
    definition = fields.values.get("definition")
    if definition is None:
        raise InvalidArgument("definition is missing")
    fields.shallow("definition", definition)
    return {
        "pattern": fields.values.get("pattern"),
        "definition": definition,
        "priority": fields.count("priority", 0, -PRIORITY_MOST, PRIORITY_MOST),
        "apply_to": fields.optional_text("apply-to"),
    }


def policy_item(one: Mapping[str, object]) -> dict[str, object]:
    """One policy with RabbitMQ's field names."""
    return {key: value for key, value in one.items() if key != "origin"}


def of_policies(of: Deriving, house: Operating) -> Sequence[Row]:
    """Policies, operator policies, and the parameters that stand for some of them."""
    found = list[Row]()
    for path, what, operator in (("policies", "policy", False), ("operator-policies", "operator policy", True)):
        one, named, fields = (
            f"/api/{path}/{{vhost}}/{{name}}",
            {"name": "policy"},
            "pattern definition priority apply-to",
        )
        found += [
            of.list(f"/api/{path}", POLICIES, f"Every {what}", shape=policy_item, operator=operator),
            of.list(f"/api/{path}/{{vhost}}", POLICIES, f"Every {what} of a vhost", shape=policy_item,
                    operator=operator),
            of.one(one, POLICIES, f"One {what}", shape=policy_item, operator=operator),
            of.put(one, SET_POLICY, f"Set a {what}", policy_fields, named, thing="a policy", body=fields, once=True,
                   operator=operator),
            of.do("DELETE", one, DELETE_POLICY, f"Delete a {what}", None, named, operator=operator),
        ]  # fmt: skip
    values = _Parameters(house)
    some, one = "/api/parameters/{component}", "/api/parameters/{component}/{vhost}/{name}"
    return [
        *found,
        Row("GET", "/api/parameters", values.every, "Operator policies and limits of vhosts", LISTS_RULES, many=True),
        Row("GET", some, values.every, "Parameters of a component", LISTS_RULES, many=True),
        Row("GET", f"{some}/{{vhost}}", values.every, "Parameters of a component in a vhost", RULES, many=True),
        Row("GET", one, values.one, "One parameter", RULES),
        Row("PUT", one, values.put, "Set a parameter", ADMINISTERS, "value"),
        Row("DELETE", one, values.delete, "Delete a parameter", ADMINISTERS),
    ]


def parameters(
    house: House, who: Who, component: str | None = None, vhost: str | None = None
) -> Iterator[dict[str, object]]:
    """Parameters with RabbitMQ's field names."""
    if component in {None, OPERATOR}:
        for one in map(policy_item, vhosts.policies(house, who, vhost, operator=True)):
            value = {key: item for key, item in one.items() if key not in {"vhost", "name"}}
            yield {"vhost": one["vhost"], "component": OPERATOR, "name": one["name"], "value": value}
    if component in {None, VHOST_LIMITS}:
        for one in vhosts.limits(house, who, of="vhost"):
            if vhost in {None, one["vhost"]}:
                yield {"vhost": one["vhost"], "component": VHOST_LIMITS, "name": "limits", "value": one["value"]}


class _Parameters:
    def __init__(self, house: Operating) -> None:
        self._house = house

    def _all(self, ask: Ask) -> Iterator[dict[str, object]]:
        component, vhost = ask.names.get("component"), ask.names.get("vhost")
        return parameters(self._house, ask.who, component, vhost)

    async def every(self, ask: Ask) -> Response:
        """Of all, of one component, of one in one vhost."""
        return await ask.listed(self._all(ask))

    def _one(self, ask: Ask) -> dict[str, object] | None:
        return next((one for one in self._all(ask) if one["name"] == ask.names["name"]), None)

    async def one(self, ask: Ask) -> Response:
        found = self._one(ask)
        return not_found() if found is None else json_response(found)

    async def put(self, ask: Ask) -> Response:
        """Of a component that is known; what nobody would heed is refused."""
        component, vhost, name = ask.names["component"], ask.names["vhost"], ask.names["name"]
        value = (await ask.fields(once=True)).table("value")
        fields = Lenient(value, f"parameter {component} {name!r}: ")
        if component == OPERATOR:
            await self._do(ask, SET_POLICY, policy=name, vhost=vhost, operator=True, **policy_fields(fields))
        elif component == VHOST_LIMITS:
            for limit in value:
                number = fields.number(limit, -1, LIMIT_MOST)
                await self._do(ask, SET_LIMIT, vhost=vhost, limit=limit, value=number)
        else:
            raise InvalidArgument(f"component '{component[:60]}' is not one of {', '.join(COMPONENTS)}")
        return done()

    async def delete(self, ask: Ask) -> Response:
        vhost = ask.names["vhost"]
        found = self._one(ask)
        if found is None:
            return not_found()
        if ask.names["component"] == OPERATOR:
            await self._do(ask, DELETE_POLICY, policy=ask.names["name"], vhost=vhost, operator=True)
            return done()
        for limit in cast("Mapping[str, int]", found["value"]):
            await self._do(ask, SET_LIMIT, vhost=vhost, limit=limit)
        return done()

    async def _do(self, ask: Ask, operation: Any, **arguments: object) -> None:
        await self._house.operate(operation, ask.who, arguments)


# -- pipelines


def of_pipelines(of: Deriving) -> Sequence[Row]:
    """Spark pipelines, as their drivers told of them last."""
    every, summary = "/api/pipelines", "Spark pipelines: state, rows a second, lag, last error"
    return (
        of.do("GET", every, PIPELINE_STATUS, summary, answer=lambda found: json_response(found["pipelines"]),
              own=True),
        of.do("GET", f"{every}/{{name}}", PIPELINE_STATUS, "One Spark pipeline", None, {"name": "pipeline"},
              answer=lambda found: json_response(found["pipelines"][0]), own=True),
    )  # fmt: skip


# -- connections


def of_links(of: Deriving, house: Operating) -> Sequence[Row]:
    doors = _Links(house)
    one, user = "/api/connections/{name}", "/api/connections/username/{user}"
    told = "Close a connection; the header X-Reason tells its client why"
    return (
        of.list("/api/connections", CONNECTIONS, "Every connection"),
        of.one(one, CONNECTIONS, "One connection"),
        Row("DELETE", one, doors.close, told, LOGIN, operation=CLOSE_CONNECTION.name),
        Row("GET", f"{one}/channels", doors.channels_of, "Channels of a connection", LOGIN, many=True),
        of.list(user, CONNECTIONS, "Connections of a user"),
        Row(
            "DELETE", user, doors.close_user, "Close the connections of a user", LOGIN, operation=CLOSE_CONNECTION.name
        ),
        of.list("/api/vhosts/{vhost}/connections", CONNECTIONS, "Connections of a vhost", right=SEES),
        Row("GET", "/api/vhosts/{vhost}/channels", doors.channels, "Channels of a vhost", SEES, many=True),
        Row("GET", "/api/channels", doors.channels, "Every channel", LOGIN, many=True),
        Row("GET", "/api/channels/{name}", doors.channel, "One channel", LOGIN, query=COLUMNS),
    )


class _Links:
    """What is no operation: channels, and what becomes of who closes what is not his."""

    def __init__(self, house: Operating) -> None:
        self._house = house

    async def close(self, ask: Ask) -> Response:
        return await self._closed(ask, connection=ask.names["name"])

    async def close_user(self, ask: Ask) -> Response:
        return await self._closed(ask, user=ask.names["user"])

    async def _closed(self, ask: Ask, **which: str) -> Response:
        reason = ask.request.headers.get("x-reason", "Closed via management plugin")[:REASON_MOST]
        try:
            await self._house.operate(CLOSE_CONNECTION, ask.who, {**which, "reason": reason})
        except (AccessRefused, NotFound):
            return not_found()
        return done()

    def _channels(self, ask: Ask, connection: str | None = None) -> Iterator[dict[str, object]]:
        whose = None if ask.may(MONITORING) else ask.user
        return self._house.links.channels(whose, ask.names.get("vhost"), connection)

    async def channels(self, ask: Ask) -> Response:
        """Of all connections, or of one vhost."""
        return await ask.listed(self._channels(ask))

    async def channels_of(self, ask: Ask) -> Response:
        whose, name = None if ask.may(MONITORING) else ask.user, ask.names["name"]
        if all(one["name"] != name for one in self._house.connections(whose)):
            return not_found()
        return await ask.listed(self._channels(ask, name))

    async def channel(self, ask: Ask) -> Response:
        found = next((one for one in self._channels(ask) if one["name"] == ask.names["name"]), None)
        return not_found() if found is None else json_response(only_columns(found, ask.query))
