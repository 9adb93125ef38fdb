"""Users and what they may do: `/api/users`, `/api/permissions`, `/api/topic-permissions`, `/api/user-limits`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.rights import ADMINISTERS, LOGIN
from penstock.wire.http.answers import done, json_response, made, not_found
from penstock.wire.http.fields import Fields, short, shown
from penstock.wire.http.routes import Ask, Row

TAGS_MOST = 100
LIMIT_MOST = 1_000_000_000


class People(Protocol):
    """What these paths ask of the server.  Changes raise what is refused, and are durable when they return."""

    def users(self) -> Iterable[Mapping[str, object]]:
        """`name password_hash hashing_algorithm tags limits`."""
        ...

    async def put_user(
        self, name: str, password: str | None, password_hash: str | None, algorithm: str | None, tags: Sequence[str]
    ) -> bool:
        """Make or change; whether it is new.  Without a password or hash a new user has none, another keeps his."""
        ...

    async def delete_users(self, names: Sequence[str]) -> None:
        """NotFound for the first that is not there."""
        ...

    def permissions(self) -> Iterable[Mapping[str, object]]:
        """`user vhost configure write read`."""
        ...

    async def put_permission(self, user: str, vhost: str, configure: str, write: str, read: str) -> bool:
        """Whether it is new."""
        ...

    async def delete_permission(self, user: str, vhost: str) -> None:
        """NotFound when there is none."""
        ...

    def topic_permissions(self) -> Iterable[Mapping[str, object]]:
        """`user vhost exchange write read`."""
        ...

    async def put_topic_permission(self, user: str, vhost: str, exchange: str, write: str, read: str) -> bool:
        """Whether it is new."""
        ...

    async def delete_topic_permissions(self, user: str, vhost: str) -> None:
        """Of a user in a vhost; NotFound when one of these is not there."""
        ...

    def user_limits(self) -> Iterable[Mapping[str, object]]:
        """`user value`: limits by name."""
        ...

    async def put_user_limit(self, user: str, name: str, value: int | None) -> None:
        """None: no limit of that name."""
        ...

    def hash_password(self, password: str) -> str:
        """With new salt."""
        ...


def tags_of(fields: Fields) -> tuple[str, ...]:
    """Tags as a list, or a text with commas between.  Raises InvalidArgument."""
    value = fields.values.get("tags")
    if value is None:
        raise InvalidArgument("tags is missing")
    parts: list[object] = cast("list[object]", value) if isinstance(value, list) else []
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    elif not isinstance(value, list):
        raise InvalidArgument(f"tags is {shown(value)}, not a list of texts or a text with commas")
    if len(parts) > TAGS_MOST:
        raise InvalidArgument(f"tags has {len(parts)} entries, {TAGS_MOST} are allowed")
    for part in parts:
        if not isinstance(part, str) or not part:
            raise InvalidArgument(f"tags holds {shown(part)}, which is no tag")
        short(part, "a tag")
    return tuple(dict.fromkeys(cast("list[str]", parts)))


def rows(people: People) -> Sequence[Row]:
    """The paths."""
    doors, rights = _Users(people), _Permissions(people)
    one, permission = "/api/users/{user}", "/api/permissions/{vhost}/{user}"
    limit, topic = "/api/user-limits/{user}/{name}", "/api/topic-permissions/{vhost}/{user}"
    return (
        Row("GET", "/api/users", doors.every, "Every user", ADMINISTERS, many=True),
        Row(
            "GET",
            "/api/users/without-permissions",
            doors.lonely,
            "Users that may open no vhost",
            ADMINISTERS,
            many=True,
        ),
        Row("POST", "/api/users/bulk-delete", doors.delete_many, "Delete users", ADMINISTERS, "users"),
        Row("GET", one, doors.one, "One user", ADMINISTERS),
        Row(
            "PUT", one, doors.put, "Make or change a user", ADMINISTERS, "password password_hash hashing_algorithm tags"
        ),
        Row("DELETE", one, doors.delete, "Delete a user, and close his connections", ADMINISTERS),
        Row("GET", f"{one}/permissions", rights.of_user, "Permissions of a user", ADMINISTERS, many=True),
        Row(
            "GET",
            f"{one}/topic-permissions",
            rights.topics_of_user,
            "Topic permissions of a user",
            ADMINISTERS,
            many=True,
        ),
        Row("GET", "/api/permissions", rights.every, "Every permission", ADMINISTERS, many=True),
        Row("GET", permission, rights.one, "The permission of a user in a vhost", ADMINISTERS),
        Row("PUT", permission, rights.put, "Permit a user to use a vhost", ADMINISTERS, "configure write read"),
        Row("DELETE", permission, rights.delete, "Take a permission away", ADMINISTERS),
        Row("GET", "/api/topic-permissions", rights.topics, "Every topic permission", ADMINISTERS, many=True),
        Row("GET", topic, rights.topics_of, "Topic permissions of a user in a vhost", ADMINISTERS, many=True),
        Row(
            "PUT",
            topic,
            rights.put_topic,
            "Narrow what a user may do, by routing key",
            ADMINISTERS,
            "exchange write read",
        ),
        Row("DELETE", topic, rights.delete_topics, "Take topic permissions of a user in a vhost away", ADMINISTERS),
        Row("GET", "/api/user-limits", doors.limits, "Limits of users", ADMINISTERS, many=True),
        Row("GET", "/api/user-limits/{user}", doors.limits_of, "Limits of a user", ADMINISTERS, many=True),
        Row("PUT", limit, doors.put_limit, "Set max-connections or max-channels", ADMINISTERS, "value"),
        Row("DELETE", limit, doors.delete_limit, "Take a limit away", ADMINISTERS),
        Row("GET", "/api/auth/hash_password/{password}", doors.hash, "A password, hashed", LOGIN),
    )


class _Users:
    """The handlers about users."""

    def __init__(self, people: People) -> None:
        self._people = people

    async def every(self, ask: Ask) -> Response:
        """All."""
        return await ask.listed(map(dict, self._people.users()))

    async def lonely(self, ask: Ask) -> Response:
        """Those without a permission."""
        some = {one["user"] for one in self._people.permissions()}
        return await ask.listed(dict(one) for one in self._people.users() if one["name"] not in some)

    async def one(self, ask: Ask) -> Response:
        """By name."""
        found = next((one for one in self._people.users() if one["name"] == ask.names["user"]), None)
        return not_found() if found is None else json_response(found)

    async def put(self, ask: Ask) -> Response:
        """201 for a new one."""
        fields = await ask.fields()
        has = fields.values
        algorithm = fields.text("hashing_algorithm") if has.get("hashing_algorithm") is not None else None
        fresh = await self._people.put_user(
            short(ask.names["user"], "the name of a user"),
            fields.text("password") if has.get("password") is not None else None,
            fields.text("password_hash") if has.get("password_hash") is not None else None,
            algorithm,
            tags_of(fields),
        )
        return made(fresh)

    async def delete(self, ask: Ask) -> Response:
        """With his permissions and connections."""
        await self._people.delete_users([ask.names["user"]])
        return done()

    async def delete_many(self, ask: Ask) -> Response:
        """All of a list, or none."""
        value: object = (await ask.fields()).values.get("users")
        names = cast("list[object]", value) if isinstance(value, list) else [None]
        if not all(isinstance(one, str) for one in names):
            raise InvalidArgument("users is not a list of names")
        await self._people.delete_users(cast("list[str]", names))
        return done()

    async def limits(self, ask: Ask) -> Response:
        """Of all who have some."""
        return await ask.listed(map(dict, self._people.user_limits()))

    async def limits_of(self, ask: Ask) -> Response:
        """Of one."""
        found = (dict(one) for one in self._people.user_limits() if one["user"] == ask.names["user"])
        return await ask.listed(found)

    async def put_limit(self, ask: Ask) -> Response:
        """-1 is none."""
        value = (await ask.fields()).count("value", -1, LIMIT_MOST)
        await self._people.put_user_limit(ask.names["user"], ask.names["name"], value)
        return done()

    async def delete_limit(self, ask: Ask) -> Response:
        """Whether there was one or not."""
        await self._people.put_user_limit(ask.names["user"], ask.names["name"], None)
        return done()

    async def hash(self, ask: Ask) -> Response:
        """As definitions have it."""
        return json_response({"ok": self._people.hash_password(ask.names["password"])})


class _Permissions:
    """The handlers about permissions."""

    def __init__(self, people: People) -> None:
        self._people = people

    async def every(self, ask: Ask) -> Response:
        """All."""
        return await ask.listed(map(dict, self._people.permissions()))

    async def of_user(self, ask: Ask) -> Response:
        """Of one user."""
        if all(one["name"] != ask.names["user"] for one in self._people.users()):
            return not_found()
        found = (dict(one) for one in self._people.permissions() if one["user"] == ask.names["user"])
        return await ask.listed(found)

    async def one(self, ask: Ask) -> Response:
        """Of one user in one vhost."""
        key = ask.names["user"], ask.names["vhost"]
        found = next((one for one in self._people.permissions() if (one["user"], one["vhost"]) == key), None)
        return not_found() if found is None else json_response(found)

    async def put(self, ask: Ask) -> Response:
        """201 for a new one."""
        fields = await ask.fields()
        configure, write, read = (fields.text(kind) for kind in ("configure", "write", "read"))
        return made(await self._people.put_permission(ask.names["user"], ask.names["vhost"], configure, write, read))

    async def delete(self, ask: Ask) -> Response:
        """Take it away."""
        await self._people.delete_permission(ask.names["user"], ask.names["vhost"])
        return done()

    async def topics(self, ask: Ask) -> Response:
        """All."""
        return await ask.listed(map(dict, self._people.topic_permissions()))

    async def topics_of_user(self, ask: Ask) -> Response:
        """Of one user."""
        if all(one["name"] != ask.names["user"] for one in self._people.users()):
            return not_found()
        found = (dict(one) for one in self._people.topic_permissions() if one["user"] == ask.names["user"])
        return await ask.listed(found)

    async def topics_of(self, ask: Ask) -> Response:
        """Of one user in one vhost."""
        key = ask.names["user"], ask.names["vhost"]
        found = (dict(one) for one in self._people.topic_permissions() if (one["user"], one["vhost"]) == key)
        return await ask.listed(found)

    async def put_topic(self, ask: Ask) -> Response:
        """201 for a new one."""
        fields = await ask.fields()
        exchange = short(fields.text("exchange"), "the name of an exchange")
        write, read = fields.text("write"), fields.text("read")
        user, vhost = ask.names["user"], ask.names["vhost"]
        return made(await self._people.put_topic_permission(user, vhost, exchange, write, read))

    async def delete_topics(self, ask: Ask) -> Response:
        """Take them away."""
        await self._people.delete_topic_permissions(ask.names["user"], ask.names["vhost"])
        return done()
