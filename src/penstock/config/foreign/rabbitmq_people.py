"""Users and permissions of `definitions.json`: what they are here.

A permission there says by three patterns of names what a user may configure, write and read in a vhost.  Where all
users may do everything nothing is limited here either; else each permission becomes entitlements: exchanges are told
one by one, since an entitlement names one.  Who may change the topology is the administrator's tag here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.config.foreign.converted import Book, Verdict
from penstock.config.places import Place
from penstock.records.patterns import PatternError, compile_pattern
from penstock.records.texts import to_bytes

ALL = ".*"
PREDECLARED = ("", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "amq.rabbitmq.trace")
DEFAULT_NAMED = "amq.default"
"""What the default exchange is called where it needs a name."""

TAGS = ("administrator", "policymaker", "monitoring", "management", "impersonator")
HASHING = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}


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
    hashing = values.get("hashing_algorithm", "rabbit_password_hashing_sha256")
    how = HASHING.get(hashing) if isinstance(hashing, str) else None
    if how is None:
        book.remark(Verdict.REFUSED, place, f"passwords hashed by {hashing!r}")
        return None
    if how != "sha256":
        table["hashing"] = how
    tags = values.get("tags", [])
    words: Sequence[object] = tags.split(",") if isinstance(tags, str) else tags if isinstance(tags, list) else ()
    if not isinstance(tags, str | list):
        book.wrong(place, f"tags {tags!r} is neither a list nor text")
    known = [word for word in (str(one).strip() for one in words) if word in TAGS]
    other = [word for word in (str(one).strip() for one in words) if word and word not in TAGS]
    if known:
        table["tags"] = known
    if other:
        book.remark(Verdict.NO_MEANING, place, f"the tags {', '.join(other)}")
    limits = values.get("limits")
    if limits:
        book.remark(Verdict.REFUSED, place, f"limits of a user: {limits!r}")
    return table


def entitle(
    book: Book,
    permissions: Sequence[Permission],
    users: Iterable[str],
    vhosts: Iterable[str],
    exchanges: Iterable[tuple[str, str]],
) -> None:
    """Put entitlements into the book, unless every user may do everything everywhere."""
    everywhere = {(user, vhost) for user in users for vhost in vhosts}
    if all(one.full for one in permissions) and everywhere <= {(one.user, one.vhost) for one in permissions}:
        return
    declared = sorted(exchanges)
    for one in permissions:
        names = [*PREDECLARED, *(name for vhost, name in declared if vhost == one.vhost)]
        try:
            for table in _entitlements(one, names):
                book.add("entitlement", table, one.place, {})
        except PatternError as error:
            book.wrong(one.place, str(error))
            continue
        if one.configure:
            book.remark(
                Verdict.DIFFERS,
                one.place,
                f"configure {one.configure!r}: here a user may declare queues that he may read, which show their own "
                "name; any other change of the topology takes the administrator's tag",
            )


def _entitlements(one: Permission, exchanges: Sequence[str]) -> Iterable[dict[str, object]]:
    """Those of one permission, the narrower ones first."""
    about = {"user": f"^{_escaped(one.user)}$", "vhost": one.vhost}
    if one.vhost == "/":
        del about["vhost"]
    all_read, all_written = one.read == ALL, one.write == ALL
    if not (all_read and all_written):
        for name in exchanges:
            read, write = _allows(one.read, name), _allows(one.write, name)
            if (read, write) != (all_read, all_written):
                place = {"exchange": name} if name else {}
                yield {**about, "topic": ALL, **place, "read": read, "write": write}
    if one.read and not all_read:
        yield {**about, "queue": f"(?:{one.read})", "read": True, "write": _allows(one.write, "")}
    if all_read or all_written:
        yield {**about, "read": all_read, "write": all_written}


def _allows(pattern: str, exchange: str) -> bool:
    """Whether a permission is for an exchange; an empty one is for nothing."""
    if not pattern:
        return False
    return compile_pattern(pattern).search(to_bytes(exchange or DEFAULT_NAMED)) is not None


def _escaped(name: str) -> str:
    return "".join(f"\\{one}" if not (one.isalnum() or one in "_-") and one.isascii() else one for one in name)
