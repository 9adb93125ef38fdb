"""Tokens: logins of one's own that end, for who should not have the password, such as executors elsewhere.

A user makes tokens of himself alone, and needs the password for it: a token makes none, and makes none last longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, InvalidArgument, NotFound
from penstock.operations.operation import Answer, Operation, Path
from penstock.records.rights import ADMINISTRATOR, LOGIN
from penstock.records.tokens import written
from penstock.server.access import open_vhost
from penstock.server.accounts import Token
from penstock.server.tokens import ALL, LASTS_MOST_S, bound_to, digest, make_room, new_secret, tags_within
from penstock.server.users import check_pattern
from penstock.wire.fields import VHOST, count, name, text, texts

if TYPE_CHECKING:
    from penstock.operations.house import House
    from penstock.server.access import Who
    from penstock.server.accounts import Accounts


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


async def issue(
    house: House, who: Who, lasts_s: int, vhost: str, configure: str, write: str, read: str,
    tags: Sequence[str] | None, label: str,
) -> Answer:  # fmt: skip
    """A new one of the user's; its secret is told this once."""
    _by_password(who, "making a token")
    open_vhost(who, vhost, None, house.accounts.vhosts)
    for kind, pattern in (("configure", configure), ("write", write), ("read", read)):
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


async def renew(house: House, who: Who, token: str, lasts_s: int | None) -> Answer:
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


async def revoke(house: House, who: Who, token: str) -> Answer:
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
    "token_issue", issue, "change", f"{_FIELDS}: a login of one's own that ends", LOGIN,
    (count("lasts_s", 1, LASTS_MOST_S, 3600), VHOST, text("configure", ""), text("write", ALL), text("read", ALL),
     texts("tags", 10), text("label", "")),
    sdk="issue_token", cli="token issue",
    path=Path("POST", "/api/tokens", {}, "A login of one's own that ends", _FIELDS),
)  # fmt: skip
RENEW_TOKEN = Operation(
    "token_renew", renew, "change", "token, lasts_s: it lasts as long again from now on", LOGIN,
    (_TOKEN, count("lasts_s", 1, LASTS_MOST_S)), sdk="renew_token", cli="token renew",
    path=Path("POST", "/api/tokens/{token}/renew", {}, "It lasts as long again from now on", "lasts_s"),
)  # fmt: skip
REVOKE_TOKEN = Operation(
    "token_revoke", revoke, "change", "token: it is none from now on", LOGIN, (_TOKEN,), sdk="revoke_token",
    cli="token revoke", path=Path("DELETE", "/api/tokens/{token}", {}, "It is none from now on"),
)  # fmt: skip
