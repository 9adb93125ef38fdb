"""Policies and operator policies, and the parameters that stand for some of them: `/api/policies`,
`/api/operator-policies`, `/api/parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.rights import ADMINISTERS, LISTS, LISTS_RULES, RULES, SEES
from penstock.wire.http.answers import done, json_response, made, not_found
from penstock.wire.http.fields import DEPTH_MOST, Fields, short, too_deep
from penstock.wire.http.people import LIMIT_MOST
from penstock.wire.http.routes import Ask, Row

PRIORITY_MOST = 2**31 - 1
OPERATOR, LIMITS = "operator_policy", "vhost-limits"
COMPONENTS = (OPERATOR, LIMITS)


class Policies(Protocol):
    """What these paths ask of the server.  Changes raise what is refused, and are durable when they return."""

    def policies(self, vhost: str | None, *, operator: bool) -> Iterable[Mapping[str, object]]:
        """`vhost name pattern apply-to definition priority`; NotFound for an unknown vhost."""
        ...

    async def put_policy(
        self,
        vhost: str,
        name: str,
        *,
        pattern: object,
        definition: object,
        priority: int,
        apply_to: str,
        operator: bool,
    ) -> bool:
        """Whether it is new."""
        ...

    async def delete_policy(self, vhost: str, name: str, *, operator: bool) -> None:
        """NotFound when there is none."""
        ...


class Limited(Protocol):
    """The same of limits of vhosts."""

    def vhost_limits(self) -> Iterable[Mapping[str, object]]:
        """`vhost value`."""
        ...

    async def put_vhost_limit(self, vhost: str, name: str, value: int | None) -> None:
        """One limit; None: no limit of that name."""
        ...


_FIELDS = ("pattern", "definition", "priority", "apply-to", "vhost", "name")
"""Those of a policy; tools repeat the vhost and the name of the path."""


def policy_fields(fields: Fields, *, operator: bool) -> dict[str, object]:
    """What `put_policy` takes of a body.  The rest is for the server to read."""
    if strange := [name for name in fields.values if name not in _FIELDS]:
        raise InvalidArgument(f"{strange[0]!r} is no field of a policy: it has {', '.join(_FIELDS)}")
    definition = fields.values.get("definition")
    if definition is None:
        raise InvalidArgument("definition is missing")
    if too_deep(definition, DEPTH_MOST):
        raise InvalidArgument(f"definition nests deeper than {DEPTH_MOST}")
    return {
        "pattern": fields.values.get("pattern"),
        "definition": definition,
        "priority": fields.count("priority", -PRIORITY_MOST, PRIORITY_MOST, 0),
        "apply_to": fields.text("apply-to", "queues" if operator else "all"),
        "operator": operator,
    }


def rows(policies: Policies, limited: Limited) -> Sequence[Row]:
    """The paths."""
    found = list[Row]()
    fields = "pattern definition priority apply-to"
    for path, operator, right in (("policies", False, RULES), ("operator-policies", True, ADMINISTERS)):
        doors, what = _Policies(policies, operator), "operator policy" if operator else "policy"
        one = f"/api/{path}/{{vhost}}/{{name}}"
        found += [
            Row("GET", f"/api/{path}", doors.every, f"Every {what}", LISTS, many=True),
            Row("GET", f"/api/{path}/{{vhost}}", doors.of_vhost, f"Every {what} of a vhost", SEES, many=True),
            Row("GET", one, doors.one, f"One {what}", SEES),
            Row("PUT", one, doors.put, f"Set a {what}", right, fields),
            Row("DELETE", one, doors.delete, f"Delete a {what}", right),
        ]
    values = _Parameters(policies, limited)
    of, one = "/api/parameters/{component}", "/api/parameters/{component}/{vhost}/{name}"
    return [
        *found,
        Row("GET", "/api/parameters", values.every, "Operator policies and limits of vhosts", LISTS_RULES, many=True),
        Row("GET", of, values.every, "Parameters of a component", LISTS_RULES, many=True),
        Row("GET", f"{of}/{{vhost}}", values.every, "Parameters of a component in a vhost", RULES, many=True),
        Row("GET", one, values.one, "One parameter", RULES),
        Row("PUT", one, values.put, "Set a parameter", ADMINISTERS, "value"),
        Row("DELETE", one, values.delete, "Delete a parameter", ADMINISTERS),
    ]


class _Policies:
    """The handlers of one kind."""

    def __init__(self, policies: Policies, operator: bool) -> None:
        self._policies = policies
        self._operator = operator

    async def every(self, ask: Ask) -> Response:
        """Of all vhosts."""
        return await ask.listed(map(dict, self._policies.policies(None, operator=self._operator)))

    async def of_vhost(self, ask: Ask) -> Response:
        """Of one."""
        found = self._policies.policies(ask.names["vhost"], operator=self._operator)
        return await ask.listed(map(dict, found))

    async def one(self, ask: Ask) -> Response:
        """By name."""
        every = self._policies.policies(ask.names["vhost"], operator=self._operator)
        found = next((one for one in every if one["name"] == ask.names["name"]), None)
        return not_found() if found is None else json_response(found)

    async def put(self, ask: Ask) -> Response:
        """201 for a new one; what was there is replaced as a whole."""
        given = policy_fields(await ask.fields(once=True), operator=self._operator)
        name = short(ask.names["name"], "the name of a policy")
        return made(await self._policies.put_policy(ask.names["vhost"], name, **given))  # type: ignore[arg-type]

    async def delete(self, ask: Ask) -> Response:
        """What it did is undone."""
        await self._policies.delete_policy(ask.names["vhost"], ask.names["name"], operator=self._operator)
        return done()


class _Parameters:
    """The handlers of parameters: no other component is there than these two."""

    def __init__(self, policies: Policies, limited: Limited) -> None:
        self._policies = policies
        self._limited = limited

    def _all(self, ask: Ask) -> Iterable[dict[str, object]]:
        component, vhost = ask.names.get("component"), ask.names.get("vhost")
        return parameters(self._policies, self._limited, component, vhost)

    async def every(self, ask: Ask) -> Response:
        """Of all, of one component, of one in one vhost."""
        return await ask.listed(self._all(ask))

    async def one(self, ask: Ask) -> Response:
        """By name."""
        found = next((one for one in self._all(ask) if one["name"] == ask.names["name"]), None)
        return not_found() if found is None else json_response(found)

    async def put(self, ask: Ask) -> Response:
        """Of a component that is known; what nobody would heed is refused."""
        await put_parameter(
            self._policies, self._limited, ask.names["component"], ask.names["vhost"], ask.names["name"],
            (await ask.fields(once=True)).table("value"),
        )  # fmt: skip
        return done()

    async def delete(self, ask: Ask) -> Response:
        """One."""
        component, vhost, name = ask.names["component"], ask.names["vhost"], ask.names["name"]
        if component == OPERATOR:
            await self._policies.delete_policy(vhost, name, operator=True)
            return done()
        found = next((one for one in self._all(ask) if one["name"] == name), None)
        if found is None:
            return not_found()
        for limit in cast("Mapping[str, int]", found["value"]):
            await self._limited.put_vhost_limit(vhost, limit, None)
        return done()


def parameters(
    policies: Policies, limited: Limited, component: str | None = None, vhost: str | None = None
) -> Iterable[dict[str, object]]:
    """Parameters with RabbitMQ's field names."""
    if component in {None, OPERATOR}:
        for one in policies.policies(vhost, operator=True):
            value = {key: item for key, item in one.items() if key not in {"vhost", "name"}}
            yield {"vhost": one["vhost"], "component": OPERATOR, "name": one["name"], "value": value}
    if component in {None, LIMITS}:
        for one in limited.vhost_limits():
            if vhost in {None, one["vhost"]}:
                yield {"vhost": one["vhost"], "component": LIMITS, "name": "limits", "value": one["value"]}


async def put_parameter(
    policies: Policies, limited: Limited, component: str, vhost: str, name: str, value: Mapping[str, object]
) -> None:
    """Set one.  Raises InvalidArgument for a component that is not here."""
    fields = Fields(value, f"parameter {component} {name!r}: ")
    if component == OPERATOR:
        await policies.put_policy(vhost, name, **policy_fields(fields, operator=True))  # type: ignore[arg-type]
    elif component == LIMITS:
        for limit in value:
            await limited.put_vhost_limit(vhost, limit, fields.count(limit, -1, LIMIT_MOST))
    else:
        raise InvalidArgument(f"component '{component[:60]}' is not one of {', '.join(COMPONENTS)}")
