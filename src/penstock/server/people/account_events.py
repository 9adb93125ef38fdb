"""What a change of users, vhosts, permissions and limits is told as: events by the names and fields of RabbitMQ 3.10.

    {"vhosts": [...]}, {"vhosts": [..., {"name": "v"}]}  ->  vhost.created {"name": "v"}

What goes with a user is not told one by one, what goes with a vhost is, as there.  Passwords are in no event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import orjson

Fields: TypeAlias = "dict[str, Any]"
Event = tuple[str, Fields]


class _Row(NamedTuple):
    """Objects of one kind, and what is told of one that came, is another, or has gone."""

    kind: str
    keys: tuple[str, ...]
    noun: str
    changed: str = "created"


_VHOSTS = _Row("vhosts", ("name",), "vhost", "updated")
_PERMISSIONS = (
    _Row("permissions", ("user", "vhost"), "permission"),
    _Row("topic_permissions", ("user", "vhost", "exchange"), "topic.permission"),
)
_VALUES: Mapping[str, tuple[str, str]] = {
    "vhost_limits": ("vhost.limits", "vhost"), "user_limits": ("user.limits", "username"),
}  # fmt: skip


def events_between(before: bytes, after: bytes, fixed: Collection[str] = ("/",)) -> list[Event]:
    """before, after: all that is kept, as `Accounts.state` gives it.  fixed: vhosts that are always there."""
    old, new = orjson.loads(before), orjson.loads(after)
    gone = _by(old, "users", ("name",)).keys() - _by(new, "users", ("name",)).keys()
    gone |= _by(new, "removed", ("name",)).keys() - _by(old, "removed", ("name",)).keys()
    rights = [one for row in _PERMISSIONS for one in _of(row, old, new)]
    ended = [(name, one) for name, one in rights if name.endswith("deleted") and (one["user"],) not in gone]
    made = [(name, one) for name, one in rights if not name.endswith("deleted")]
    vhosts = [_of_fixed(*one) if one[1]["name"] in fixed else one for one in _of(_VHOSTS, old, new)]
    deleted: Sequence[Event] = [("user.deleted", {"name": name}) for (name,) in sorted(gone)]
    return [*ended, *deleted, *_of_users(old, new), *vhosts, *_of_values(old, new), *made]


def _by(told: Fields, kind: str, keys: tuple[str, ...]) -> dict[tuple[Any, ...], Fields]:
    return {tuple(one[key] for key in keys): one for one in cast("list[Fields]", told[kind])}


def _of(row: _Row, old: Fields, new: Fields) -> Iterator[Event]:
    before, after = _by(old, row.kind, row.keys), _by(new, row.kind, row.keys)
    for key, one in after.items():
        if key not in before:
            yield f"{row.noun}.created", one
        elif one != before[key]:
            yield f"{row.noun}.{row.changed}", one
    for key in before.keys() - after.keys():
        yield f"{row.noun}.deleted", dict(zip(row.keys, key, strict=True))


def _of_fixed(_: str, one: Fields) -> Event:
    """One of the settings is kept while it is described."""
    return "vhost.updated", one


def _of_users(old: Fields, new: Fields) -> Iterator[Event]:
    before, after = _by(old, "users", ("name",)), _by(new, "users", ("name",))
    for key, one in after.items():
        name, was = {"name": one["name"]}, before.get(key)
        if was is None:
            yield "user.created", name
        elif was["password_hash"] != one["password_hash"]:
            yield f"user.password.{'changed' if one['password_hash'] else 'cleared'}", name
        if one["tags"] != ([] if was is None else was["tags"]):
            yield "user.tags.set", {**name, "tags": one["tags"]}


def _limits(kept: Mapping[tuple[Any, ...], Fields], key: tuple[Any, ...]) -> Fields:
    return cast("Fields", kept[key]["value"]) if key in kept else {}


def _of_values(old: Fields, new: Fields) -> Iterator[Event]:
    for kind, (noun, whose) in _VALUES.items():
        before, after = _by(old, kind, ("name",)), _by(new, kind, ("name",))
        for key in sorted(before.keys() | after.keys()):
            was, limits = _limits(before, key), _limits(after, key)
            if was != limits:
                yield f"{noun}.{'set' if limits else 'cleared'}", {"name": "limits", whose: key[0], **limits}
    before, after = (_by(some, "global_parameters", ("name",)) for some in (old, new))
    for key, one in after.items():
        if before.get(key) != one:
            yield "parameter.set", {"component": "global", **one}
    for (name,) in sorted(before.keys() - after.keys()):
        yield "parameter.cleared", {"component": "global", "name": name}
