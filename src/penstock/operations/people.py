"""Users and what they may do, at run time.  All of it is for administrators, and on disk before it is answered.

Tokens are logins of one's own that end, for who should not have the password, such as executors elsewhere.  A user
makes tokens of himself alone, and needs the password for it: a token makes none, and makes none last longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, InvalidArgument, NotFound, PreconditionFailed
from penstock.operations.operation import RABBITMQ, Answer, Operation, Path
from penstock.records.password_hashes import ARGON2ID, SHA256, check_hash
from penstock.records.rights import ADMINISTERS, ADMINISTRATOR, LOGIN, without_right
from penstock.records.tokens import written
from penstock.server.people.access import open_vhost
from penstock.server.people.accounts import Account, Kept, Permission, Token, TopicPermission, hash_password, keep
from penstock.server.people.tokens import ALL, LASTS_MOST_S, bound_to, digest, make_room, new_secret, tags_within
from penstock.server.people.users import Permitted, check_pattern
from penstock.wire.fields import VHOST, count, flag, name, text, texts

if TYPE_CHECKING:
    from penstock.operations.operation import House
    from penstock.server.people.access import Who
    from penstock.server.people.accounts import Accounts


TAGS_MOST = 100

PASSWORD_MOST = 4096


def expect(new: bool | None, there: bool, what: str) -> None:
    """PreconditionFailed or NotFound unless something is new, or is there, as was asked."""
    if new is True and there:
        raise PreconditionFailed(f"{what} is there already")
    if new is False and not there:
        raise NotFound(f"no {what}")


def _changeable(house: House, user: str) -> None:
    if user in house.accounts.fixed_users:
        raise InvalidArgument(f"user '{user}' is one of the settings file: change it there")


# -- users


def users(house: House, who: Who, hashes: bool = False) -> Iterator[dict[str, object]]:
    """Those of the settings, of whom no hash is shown, then those of run time."""
    limits, accounts = house.accounts.limits_of_users(), list(house.accounts.users.values())
    found = [(name, Kept("", SHA256), house.users.tags(name)) for name in house.users.fixed()]
    for user, password, tags in (*found, *((one.name, one.password, one.tags) for one in accounts)):
        kept = {"password_hash": password.text, "hashing_algorithm": password.algorithm} if hashes else {}
        yield {"name": user, **kept, "tags": list(tags), "limits": limits.get(user, {})}


async def set_user(
    house: House, who: Who, user: str, new: bool | None, password: str | None, password_hash: str | None,
    hashing_algorithm: str | None, tags: Sequence[str] | None,
) -> Answer:  # fmt: skip
    """Make or change.  Without a password or hash a new user has none, and another keeps his.

    `warnings`: a sentence for each tag that gives no right.
    """
    if tags is not None and not all(tags):
        raise InvalidArgument("user_set: tags holds an empty one")
    known = house.users.known(user)
    expect(new, known, f"user '{user}'")
    given = tuple(dict.fromkeys(house.users.tags(user) if tags is None else tags))
    _changeable(house, user)
    if "impersonator" in given:
        raise InvalidArgument("the tag 'impersonator' is not supported in this version")
    account = Account(user, await _password(house, user, password, password_hash, hashing_algorithm), given)
    keeps = known and user not in house.accounts.users  # guest, who could use every vhost

    def work(accounts: Accounts) -> None:
        before = accounts.users.get(user)
        if before is None or before.password != account.password:
            accounts.forget_tokens(user)
        accounts.users[user] = account
        accounts.removed.discard(user)
        if keeps:
            for vhost in accounts.vhosts:
                accounts.permissions[user, vhost] = Permission(user, vhost, ALL, ALL, ALL)

    await house.change(work)
    return {"user": user, "new": not known, "warnings": list(without_right(tags or ()))}


async def _password(
    house: House, user: str, password: str | None, password_hash: str | None, algorithm: str | None
) -> Kept:
    """What is kept of what is given, or was kept before."""
    if password is not None and password_hash is not None:
        raise InvalidArgument("there is both a password and a password_hash")
    if algorithm is not None:
        check_hash("", algorithm)
    if password is not None:
        return await asyncio.to_thread(keep, password)  # whatever algorithm is asked for: none is safer
    if password_hash is not None:
        check_hash(password_hash, algorithm or SHA256)
        return Kept(password_hash, algorithm or SHA256)
    present = house.accounts.users.get(user)
    if present is not None:
        return present.password
    if house.users.known(user):
        raise InvalidArgument(f"user '{user}' is there by default: say which password it is to have")
    return Kept("", ARGON2ID)


async def delete_users(house: House, who: Who, users: Sequence[str]) -> Answer:
    """All of them, with their permissions, or none.  Their connections close."""
    for user in users:
        _changeable(house, user)
        if not house.users.known(user):
            raise NotFound(f"no user '{user}'")
    default = {user for user in users if user in house.users.fixed()}

    def work(accounts: Accounts) -> None:
        for user in users:
            accounts.forget_user(user)
        accounts.removed |= default | {user for user in users if user == "guest" and not accounts.fixed_users}

    await house.change(work)
    for user in users:
        house.hang_up(f"user '{user}' was deleted", users=(user,))
    return {"users": list(users)}


async def delete_user(house: House, who: Who, user: str) -> Answer:
    """Remove a user with permissions and limits; the connections close."""
    await delete_users(house, who, [user])
    return {"user": user}


def hash_of(house: House, who: Who, password: str) -> Answer:
    """A password as definitions have it, with new salt."""
    return {"ok": hash_password(password)}


# -- permissions


def permissions(house: House, who: Who, user: str | None, vhost: str | None) -> Iterator[dict[str, object]]:
    """Those of the settings as well as those that were given while the server runs."""
    accounts = house.accounts
    for one in (*house.users.fixed_permissions(list(accounts.vhosts)), *accounts.permissions.values()):
        if user in {None, one.user} and vhost in {None, one.vhost}:
            yield {
                "user": one.user, "vhost": one.vhost, "configure": one.configure, "write": one.write, "read": one.read,
            }  # fmt: skip


def _known(house: House, user: str, vhost: str) -> None:
    if not house.users.known(user):
        raise NotFound(f"no user '{user}'")
    if vhost not in house.accounts.vhosts:
        raise NotFound(f"no vhost '{vhost}'")


def _owned(house: House, user: str) -> None:
    """InvalidArgument for a user who may do everything since he is of the settings, or there by default."""
    if user not in house.accounts.users:
        _changeable(house, user)
        raise InvalidArgument(f"user '{user}' is there by default: give it a password of its own first")


async def set_permission(
    house: House, who: Who, user: str, vhost: str, configure: str, write: str, read: str
) -> Answer:
    """Three regular expressions over names; an empty one allows nothing."""
    _known(house, user, vhost)
    for kind, pattern in (("configure", configure), ("write", write), ("read", read)):
        check_pattern(kind, pattern)
    told = {"user": user, "vhost": vhost}
    asked = Permission(user, vhost, configure, write, read)
    if user not in house.accounts.users and asked in house.users.fixed_permissions([vhost]):
        return {**told, "new": False}  # so it is
    _owned(house, user)
    fresh = (user, vhost) not in house.accounts.permissions

    def work(accounts: Accounts) -> None:
        accounts.permissions[user, vhost] = asked

    await house.change(work)
    house.renew(user)
    return {**told, "new": fresh}


async def delete_permission(house: House, who: Who, user: str, vhost: str) -> Answer:
    """The user may not open the vhost any more; connections that have done so stay, and may do nothing there."""
    missing = NotFound(f"user '{user}' has no permission in vhost '{vhost}'")
    if vhost not in house.accounts.vhosts or not house.users.known(user):
        raise missing
    _owned(house, user)
    if (user, vhost) not in house.accounts.permissions:
        raise missing

    def work(accounts: Accounts) -> None:
        del accounts.permissions[user, vhost]

    await house.change(work)
    house.renew(user)
    return {"user": user, "vhost": vhost}


# -- topic permissions


def topic_permissions(house: House, who: Who, user: str | None, vhost: str | None) -> Iterator[dict[str, object]]:
    """Those of the settings as well as those that were given while the server runs."""
    for one in (*house.users.fixed_narrower().values(), *house.accounts.topic_permissions.values()):
        if user in {None, one.user} and vhost in {None, one.vhost}:
            yield {
                "user": one.user, "vhost": one.vhost, "exchange": one.exchange, "write": one.write, "read": one.read,
            }  # fmt: skip


async def set_topic_permission(
    house: House, who: Who, user: str, vhost: str, exchange: str, write: str, read: str
) -> Answer:
    """Two regular expressions over routing keys, beside the permission for the vhost."""
    _known(house, user, vhost)
    for kind, pattern in (("write", write), ("read", read)):
        check_pattern(kind, pattern)
    told = {"user": user, "vhost": vhost, "exchange": exchange}
    asked, all_of_it = (TopicPermission(user, vhost, exchange, *which) for which in ((write, read), (ALL, ALL)))
    so_far = house.users.fixed_narrower().get((user, vhost, exchange), all_of_it)
    if user not in house.accounts.users and asked == so_far:
        return {**told, "new": False}  # so it is
    _owned(house, user)
    if not isinstance(house.users.rights(user), Permitted):
        raise InvalidArgument("where entitlements are configured, these say who may read and write which topics")
    fresh = (user, vhost, exchange) not in house.accounts.topic_permissions

    def work(accounts: Accounts) -> None:
        accounts.topic_permissions[user, vhost, exchange] = asked

    await house.change(work)
    house.renew(user)
    return {**told, "new": fresh}


async def delete_topic_permissions(house: House, who: Who, user: str, vhost: str) -> Answer:
    """Those of a user in a vhost, if there are any."""
    _known(house, user, vhost)

    def work(accounts: Accounts) -> None:
        for key in [key for key in accounts.topic_permissions if key[:2] == (user, vhost)]:
            del accounts.topic_permissions[key]

    await house.change(work)
    house.renew(user)
    return {"user": user, "vhost": vhost}


_USER = name("user")

USERS = Operation(
    "users", users, "list", "every user with tags and limits", ADMINISTERS, key="users", sdk="users", cli="user list"
)
SET_USER = Operation(
    "user_set", set_user, "change", "user, password, password_hash, hashing_algorithm, tags, new: make or change",
    ADMINISTERS,
    (_USER, flag("new", None), text("password", most=PASSWORD_MOST), text("password_hash"), text("hashing_algorithm"),
     texts("tags", TAGS_MOST)),
    sdk="add_user", cli="user add",
)  # fmt: skip
DELETE_USER = Operation(
    "user_delete", delete_user, "change", "user: with permissions and connections", ADMINISTERS, (_USER,),
    sdk="delete_user", cli="user delete",
)  # fmt: skip
DELETE_USERS = Operation(
    "users_delete", delete_users, "change", "users: all of them, or none", ADMINISTERS, (texts("users", 10_000),),
    action=False, missing=RABBITMQ,
)  # fmt: skip
HASH_PASSWORD = Operation(
    "hash_password", hash_of, "look", "password: as definitions have it", LOGIN, (text("password"),), action=False,
    missing=RABBITMQ,
)  # fmt: skip
PERMISSIONS = Operation(
    "permissions", permissions, "list", "user, vhost: what users may do in which vhosts", ADMINISTERS,
    (text("user"), text("vhost")), key="permissions", sdk="permissions", cli="user list-permissions",
)  # fmt: skip
SET_PERMISSION = Operation(
    "permission_set", set_permission, "change", "user, vhost, configure, write, read: three regular expressions",
    ADMINISTERS, (_USER, VHOST, text("configure", ""), text("write", ""), text("read", "")),
    sdk="set_permissions", cli="user set-permissions",
)  # fmt: skip
DELETE_PERMISSION = Operation(
    "permission_delete", delete_permission, "change", "user, vhost: the user may not open it any more", ADMINISTERS,
    (_USER, VHOST), sdk="clear_permissions", cli="user clear-permissions",
)  # fmt: skip
TOPIC_PERMISSIONS = Operation(
    "topic_permissions", topic_permissions, "list", "user, vhost: what users may do with routing keys", ADMINISTERS,
    (text("user"), text("vhost")), key="topic_permissions", action=False, missing=RABBITMQ,
)  # fmt: skip
SET_TOPIC_PERMISSION = Operation(
    "topic_permission_set", set_topic_permission, "change", "user, vhost, exchange, write, read", ADMINISTERS,
    (_USER, VHOST, text("exchange", ""), text("write", ""), text("read", "")), action=False, missing=RABBITMQ,
)  # fmt: skip
DELETE_TOPIC_PERMISSIONS = Operation(
    "topic_permission_delete", delete_topic_permissions, "change", "user, vhost: all of them", ADMINISTERS,
    (_USER, VHOST), action=False, missing=RABBITMQ,
)  # fmt: skip


# -- tokens


def _told(one: Token) -> dict[str, object]:
    ends = datetime.fromtimestamp(int(one.ends), UTC).isoformat().replace("+00:00", "Z")
    return {
        "id": one.id, "user": one.user, "label": one.label, "vhost": one.vhost, "configure": one.configure,
        "write": one.write, "read": one.read, "tags": list(one.tags), "lasts_s": one.lasts_s, "ends": ends,
    }  # fmt: skip


def _by_password(who: Who, what: str) -> None:
    if who.token:
        raise AccessRefused(f"{what}: log in with the password of user '{who.user}', a token does not do")


def _mine(house: House, who: Who, token: str) -> Token:
    """A live one of his own; an administrator's are all.  NotFound."""
    found = house.accounts.tokens.get(token)
    mine = found is not None and (found.user == who.user or ADMINISTRATOR.holds(who.tags))
    if found is None or not mine or found.ends <= house.users.wall():
        raise NotFound(f"no token '{token}'")
    return found


def tokens(house: House, who: Who) -> Iterator[dict[str, object]]:
    """One's own, or everybody's for administrators, without their secrets; ended ones are not shown."""
    now = house.users.wall()
    for one in list(house.accounts.tokens.values()):
        if one.ends > now and (one.user == who.user or ADMINISTRATOR.holds(who.tags)):
            yield _told(one)


async def issue_token(
    house: House, who: Who, lasts_s: int, vhost: str, configure: str, write: str, read: str,
    tags: Sequence[str] | None, label: str,
) -> Answer:  # fmt: skip
    """A new one of the user's; its secret is told this once."""
    _by_password(who, "making a token")
    open_vhost(who, vhost, None, house.accounts.vhosts)
    for kind, pattern in (("configure", configure), ("write", write), ("read", read)):
        check_pattern(kind, pattern)  # by itself: `a)|(b` would name more than it has
        check_pattern(kind, f"^(?:{pattern})$")
    for tag in tags or ():
        if not tags_within((tag,), who.tags):
            raise AccessRefused(f"user '{who.user}' does not have the tag {tag!r}, so no token of his has it")
    made, secret = new_secret()
    bound = bound_to(secret, house.users.fixed_password(who.user))
    now = house.users.wall()
    kept = Token(
        made, who.user, digest(secret), bound, vhost, configure, write, read, tuple(tags or ()), lasts_s,
        now + lasts_s, label,
    )  # fmt: skip

    def work(accounts: Accounts) -> None:
        make_room(accounts, who.user, now)
        accounts.tokens[made] = kept

    await house.change(work)
    return {**_told(kept), "token": written(made, secret)}


async def renew_token(house: House, who: Who, token: str, lasts_s: int | None) -> Answer:
    """It lasts as long again from now on."""
    _by_password(who, "renewing a token")
    found = _mine(house, who, token)
    if found.user != who.user:
        raise InvalidArgument(f"token '{token}' is one of user '{found.user}', who alone makes it last longer")
    lasts = found.lasts_s if lasts_s is None else lasts_s
    kept = replace(found, lasts_s=lasts, ends=house.users.wall() + lasts)

    def work(accounts: Accounts) -> None:
        if token not in accounts.tokens:
            raise NotFound(f"no token '{token}'")
        accounts.tokens[token] = kept

    await house.change(work)
    return _told(kept)


async def revoke_token(house: House, who: Who, token: str) -> Answer:
    """It is none from now on."""
    if who.token != token:  # a token may end itself
        _by_password(who, "revoking a token")
    _mine(house, who, token)

    def work(accounts: Accounts) -> None:
        accounts.tokens.pop(token, None)

    await house.change(work)
    return {"id": token}


_TOKEN = name("token")
_FIELDS = "lasts_s vhost configure write read tags label"

TOKENS = Operation(
    "tokens", tokens, "list", "one's own tokens, or everybody's for administrators", LOGIN, key="tokens",
    sdk="tokens", cli="token list", path=Path("GET", "/api/tokens", {}, "Tokens, without their secrets"),
)  # fmt: skip
ISSUE_TOKEN = Operation(
    "token_issue", issue_token, "change", f"{_FIELDS}: a login of one's own that ends", LOGIN,
    (count("lasts_s", 1, LASTS_MOST_S, 3600), VHOST, text("configure", ""), text("write", ALL), text("read", ALL),
     texts("tags", 10), text("label", "")),
    sdk="issue_token", cli="token issue",
    path=Path("POST", "/api/tokens", {}, "A login of one's own that ends", _FIELDS),
)  # fmt: skip
RENEW_TOKEN = Operation(
    "token_renew", renew_token, "change", "token, lasts_s: it lasts as long again from now on", LOGIN,
    (_TOKEN, count("lasts_s", 1, LASTS_MOST_S)), sdk="renew_token", cli="token renew",
    path=Path("POST", "/api/tokens/{token}/renew", {}, "It lasts as long again from now on", "lasts_s"),
)  # fmt: skip
REVOKE_TOKEN = Operation(
    "token_revoke", revoke_token, "change", "token: it is none from now on", LOGIN, (_TOKEN,), sdk="revoke_token",
    cli="token revoke", path=Path("DELETE", "/api/tokens/{token}", {}, "It is none from now on"),
)  # fmt: skip
