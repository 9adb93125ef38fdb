"""Of `definitions.json`: users, permissions, queues of other types, and what an export does not tell.

Where all users may do everything nothing is limited here either; else each permission is one here.  What a quorum queue
or a stream loses by there being one instance is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast, get_args

from penstock.config.foreign.converted import Book, Place, Table, Verdict
from penstock.config.queue_values import argument_name
from penstock.records.password_hashes import IN_SETTINGS, SHA256
from penstock.records.rights import Tag

ALL = ".*"
TAGS = get_args(Tag)
_IN_SETTINGS = {theirs: ours for ours, theirs in IN_SETTINGS.items()}
USER_LIMITS = {"max-connections": "max_connections", "max-channels": "max_channels"}
VHOST_LIMITS = {"max-connections": "max_connections", "max-queues": "max_queues"}

_T = TypeVar("_T")


class TopicPermission(NamedTuple):
    """One that narrows a permission by routing key."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str
    place: Place


class Permission(NamedTuple):
    """One permission, and where it stands."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str
    place: Place

    @property
    def full(self) -> bool:
        """Whether it limits nothing."""
        return self.configure == self.write == self.read == ALL


def user_table(book: Book, values: Mapping[str, object], place: Place) -> dict[str, object] | None:
    """A `[[user]]`; None for one that cannot log in."""
    name = values.get("name")
    if not isinstance(name, str) or not name:
        book.wrong(place, "name is missing")
        return None
    table: dict[str, object] = {"name": name}
    digest = values.get("password_hash", "")
    if not isinstance(digest, str):
        book.wrong(place, f"password_hash {digest!r} is not text")
        return None
    if not digest:
        book.remark(Verdict.DIFFERS, place, "has no password, so nobody can log in as this user; it is left out")
        return None
    table["password_hash"] = digest
    hashing = values.get("hashing_algorithm", SHA256)
    how = _IN_SETTINGS.get(hashing) if isinstance(hashing, str) else None
    if how is None:
        book.remark(Verdict.REFUSED, place, f"passwords hashed by {hashing!r}")
        return None
    if how != "sha256":
        table["hashing"] = how
    known, other = _tags(book, values.get("tags", []), place)
    if known:
        table["tags"] = known
    if other:
        book.remark(Verdict.NO_MEANING, place, f"the tags {', '.join(other)}")
    table |= limits_of(book, values.get("limits"), USER_LIMITS, place)
    return table


def _tags(book: Book, tags: object, place: Place) -> tuple[list[str], list[str]]:
    """Those that mean something here, and the others."""
    words: Sequence[object] = ()
    if isinstance(tags, str):
        words = tags.split(",")
    elif isinstance(tags, list):
        words = cast("list[object]", tags)
    else:
        book.wrong(place, f"tags {tags!r} is neither a list nor text")
    told = [str(word).strip() for word in words]
    return [word for word in told if word in TAGS], [word for word in told if word and word not in TAGS]


def limits_of(book: Book, given: object, known: Mapping[str, str], place: Place) -> dict[str, object]:
    """Limits as keys of a `[[user]]` or `[[vhost]]`; below 0 is none, as there, and so is an empty list."""
    if given in (None, []):
        return {}
    if not isinstance(given, dict):
        book.wrong(place, f"limits {given!r} are no object")
        return {}
    out: dict[str, object] = {}
    for name, value in cast("dict[str, object]", given).items():
        if isinstance(value, bool) or not isinstance(value, int):
            book.wrong(place, f"limit {name} {value!r} is no whole number")
        elif value >= 0:
            if name in known:
                out[known[name]] = value
            else:
                book.remark(Verdict.REFUSED, place, f"the limit {name}, which is not one of {', '.join(known)}")
    return out


def permit(
    book: Book,
    permissions: Sequence[Permission],
    topics: Sequence[TopicPermission],
    users: Iterable[str],
    vhosts: Iterable[str],
) -> None:
    """Put the permissions into the book, unless every user may do everything everywhere."""
    known = set(users)
    granted, strange = _parted(permissions, lambda one: one.user in known)
    opened = {(one.user, one.vhost) for one in granted}
    narrower, idle = _parted(topics, lambda one: (one.user, one.vhost) in opened)
    for one in idle:
        book.remark(Verdict.DIFFERS, one.place, f"{one.user!r} has no permission in {one.vhost!r} to be narrowed")
    for right in strange:
        book.remark(Verdict.DIFFERS, right.place, f"{right.user!r} is no user of the file who can log in")
    everywhere = {(user, vhost) for user in known for vhost in vhosts}
    if not narrower and all(one.full for one in granted) and everywhere <= opened:
        return
    for right in granted:
        said = {"configure": right.configure, "write": right.write, "read": right.read}
        book.add("permission", Table(_of_user(right.user, right.vhost) | said), right.place)
    for one in narrower:
        table = _of_user(one.user, one.vhost) | {"exchange": one.exchange, "write": one.write, "read": one.read}
        book.add("topic_permission", Table(table), one.place)


def _parted(items: Iterable[_T], test: Callable[[_T], bool]) -> tuple[list[_T], list[_T]]:
    """Those of which the test holds, and the others."""
    held, others = list[_T](), list[_T]()
    for one in items:
        (held if test(one) else others).append(one)
    return held, others


def _of_user(user: str, vhost: str) -> dict[str, object]:
    return {"user": user} if vhost == "/" else {"user": user, "vhost": vhost}


_LOSES: Mapping[object, str] = {
    "quorum": "lost are its copies on other nodes",
    "stream": "lost are its copies on other nodes, the stream protocol and its offsets, which are places in the one "
    "log here",
}


def lost_by(arguments: Mapping[str, object]) -> str:
    """What a queue with these arguments has not got here; empty where nothing is lost."""
    kind = arguments.get(argument_name("queue_type"))
    return f"a {kind} queue keeps all its messages; {_LOSES[kind]}" if kind in _LOSES else ""


VOID = "undefined"
"""What RabbitMQ exports in the place of a value that is none."""


def voids_in(arguments: Mapping[str, object]) -> str:
    """What has to be looked at among the arguments of a binding, for an export does not tell it; empty: nothing."""
    found = ", ".join(name for name, value in arguments.items() if value == VOID)
    if not found:
        return ""
    return (
        f"{found}: 'undefined' is a text here. RabbitMQ writes it for no value (void), which means a header with any "
        "value: where it was that, delete this binding and declare it anew by AMQP"
    )
