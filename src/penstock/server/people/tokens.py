"""What a token may do: what its user may at that moment, of it what the token was made for, and never more.

A token belongs to one user and one vhost.  It names tags of the user's that it keeps, by default none, and three
regular expressions that whole names of queues, exchanges and topics have to match.  Both the user's rights and these
are asked about everything, each time, so what is taken from the user is taken from his tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import string
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, PreconditionFailed
from penstock.expr import Filter, TopicPattern
from penstock.records.regular_expressions import compile_pattern, to_bytes
from penstock.records.rights import ADMINISTRATOR, TAGS
from penstock.server.people.accounts import Accounts, Token
from penstock.server.people.entitlements import Need, Right, Rights

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.core.sow.select import SelectList
    from penstock.records.queue_settings import QueueSettings

ALL = ".*"
ID_LETTERS, ID_SIZE = string.ascii_letters + string.digits, 12
SECRET_BYTES = 32

OF_USER, OF_ALL = 100, 1_000
"""Tokens that there may be at a time."""

LASTS_MOST_S = 7 * 24 * 3600


def new_secret() -> tuple[str, str]:
    """A new id, and a random secret."""
    return "".join(secrets.choice(ID_LETTERS) for _ in range(ID_SIZE)), secrets.token_urlsafe(SECRET_BYTES)


def digest(secret: str) -> str:
    """What is kept of a secret.  It is random, so one round is as good as many."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def bound_to(secret: str, password: bytes) -> str:
    """Ties a token to its user's password of the settings: without the secret it tells nothing of it."""
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), password, hashlib.sha256).hex()


def is_of(token: Token | None, secret: str, password: bytes) -> bool:
    """Whether this is a token's secret, in a time that tells nothing; with None it takes as long, and is not."""
    kept, bound = ("0" * 64, "0" * 64) if token is None else (token.secret, token.bound)
    right = hmac.compare_digest(kept, digest(secret))
    return hmac.compare_digest(bound, bound_to(secret, password)) and right and token is not None


def tags_within(tags: Iterable[str], of_user: Collection[str]) -> tuple[str, ...]:
    """Those that somebody with these tags may hand on: his own, and of an administrator all that mean something."""
    whole = TAGS if ADMINISTRATOR.holds(of_user) else of_user
    return tuple(tag for tag in tags if tag in whole and tag in TAGS)


def make_room(accounts: Accounts, user: str, now: float) -> None:
    """Forget ended tokens.  PreconditionFailed where there are too many for one more."""
    accounts.tokens = {one.id: one for one in accounts.tokens.values() if one.ends > now}
    mine = sum(one.user == user for one in accounts.tokens.values())
    for there, most, whose in ((mine, OF_USER, f" of user '{user}'"), (len(accounts.tokens), OF_ALL, "")):
        if there >= most:
            raise PreconditionFailed(f"there are {there} tokens{whose}, {most} are allowed: revoke some")


class Scoped(Rights):
    """The rights of a token.  `inner`: of its user, without tags that the token does not keep; None: not limited."""

    def __init__(self, token: Token, inner: Rights | None, tags: tuple[str, ...]) -> None:
        super().__init__(token.user, (), tags)
        self._token = token
        self._inner = inner
        self._patterns = {kind: getattr(token, kind) for kind in ("configure", "write", "read")}
        self._whole = set(self._patterns.values()) == {ALL}

    def _within(self, vhost: str, kind: str, name: str) -> bool:
        pattern = self._patterns[kind]
        if vhost != self._token.vhost or pattern in {"", "^$"}:
            return False
        return pattern == ALL or compile_pattern(f"^(?:{pattern})$").search(to_bytes(name)) is not None

    def _ask(self, vhost: str, kind: str, thing: str, name: str) -> None:
        if not self._within(vhost, kind, name) or (thing == "exchange" and self.reserved(vhost, kind, name)):
            raise AccessRefused(
                f"access to {thing} '{name}' in vhost '{vhost}' refused: token '{self._token.id}' of user "
                f"'{self.user}' is not made for {kind}"
            )

    # -- what is read and written

    def reads_topic(self, vhost: str, exchange: str, name: str) -> Right:
        """Of the user's what is within."""
        within = not self.reserved(vhost, "read", exchange) and self._within(vhost, "read", name)
        return within and (self._inner is None or self._inner.reads_topic(vhost, exchange, name))

    def writes_topic(self, vhost: str, exchange: str, name: str) -> Right:
        """Of the user's what is within."""
        return self._within(vhost, "write", name) and (
            self._inner is None or self._inner.writes_topic(vhost, exchange, name)
        )

    def reads_queue(self, vhost: str, name: str) -> Right:
        """Of the user's what is within."""
        return self._within(vhost, "read", name) and (self._inner is None or self._inner.reads_queue(vhost, name))

    def writes_queue(self, vhost: str, name: str) -> Right:
        """Of the user's what is within."""
        return self._within(vhost, "write", name) and (self._inner is None or self._inner.writes_queue(vhost, name))

    def sees_queue(self, vhost: str, name: str) -> bool:
        """Of the user's what it may read, write or configure."""
        if not self.monitors and not any(self._within(vhost, kind, name) for kind in self._patterns):
            return False
        return self._inner is None or self._inner.sees_queue(vhost, name)

    def sees_topic(self, vhost: str, exchange: str, name: str) -> bool:
        """Of the user's what it may read."""
        if not self.monitors and not self._within(vhost, "read", name):
            return False
        return self._inner is None or self._inner.sees_topic(vhost, exchange, name)

    def topic_rights(self, vhost: str, exchange: str) -> tuple[tuple[str | None, bool | str], ...]:
        """Several topics at once are for tokens that may read all there are."""
        if vhost != self._token.vhost or self._patterns["read"] != ALL or self.reserved(vhost, "read", exchange):
            return ((None, False),)
        return ((None, True),) if self._inner is None else self._inner.topic_rights(vhost, exchange)

    # -- what a door asks

    def read_queue(self, vhost: str, name: str) -> Filter | None:
        """As its user, of the names that it was made for."""
        self._ask(vhost, "read", "queue", name)
        return super().read_queue(vhost, name)

    def read_topic(self, vhost: str, exchange: str, name: str, *, whole: bool = True) -> Filter | None:
        """As its user, of the names that it was made for."""
        self._ask(vhost, "read", "topic", name)
        return super().read_topic(vhost, exchange, name, whole=whole)

    def unread(self, vhost: str, exchange: str, name: str, verb: str = "read") -> AccessRefused:
        """As its user is told."""
        if self._inner is None:
            return super().unread(vhost, exchange, name, verb)
        return self._inner.unread(vhost, exchange, name, verb)

    def find(self, vhost: str, thing: str, name: str) -> None:
        """By any of the three."""
        if not any(self._within(vhost, kind, name) for kind in self._patterns):
            self._ask(vhost, "read", thing, name)
        if self._inner is not None:
            self._inner.find(vhost, thing, name)

    def fields(self, vhost: str, exchange: str, name: str) -> SelectList | None:
        """Those of the user."""
        return None if self._inner is None else self._inner.fields(vhost, exchange, name)

    def publish(self, core: Core, vhost: str, exchange: str, key: str) -> Filter | None:
        """By the key, which is the name of a topic or a queue; through a queue also by that of the topic it goes to."""
        for name in dict.fromkeys((key, core.target_of(vhost, exchange, key)[1])):
            self._ask(vhost, "write", "topic", name)
        return None if self._inner is None else self._inner.publish(core, vhost, exchange, key)

    def configure(self, what: str, vhost: str = "/", needs: Iterable[Need] = ()) -> None:
        """Each thing that it needs; what names none takes a token for everything of the vhost."""
        wanted = tuple(needs)
        for kind, thing, name in wanted:
            self._ask(vhost, kind, thing, name or "amq.default")
        if not wanted and not (self._whole and vhost == self._token.vhost):
            raise AccessRefused(f"{what}: token '{self._token.id}' of '{self.user}' is not made for all of a vhost")
        if self._inner is not None:
            self._inner.configure(what, vhost, wanted)

    def writes(self, what: str) -> None:
        """A token that may write somewhere: which of its user's writes are its own nobody knows."""
        if self._patterns["write"] in {"", "^$"}:
            raise AccessRefused(f"{what}: token '{self._token.id}' of user '{self.user}' is not made for write")

    def binds(self, core: Core, vhost: str, source: str, key: str) -> None:
        """As the user; the ends are asked by `configure`."""
        if self._inner is not None:
            self._inner.binds(core, vhost, source, key)

    def declare(self, vhost: str, name: str, settings: QueueSettings, present: Queue | None) -> None:
        """By its name; one that is there needs any of the three, and one that shows a topic the right to read that."""
        if present is None or not any(self._within(vhost, kind, name) for kind in self._patterns):
            self._ask(vhost, "configure", "queue", name)
        if present is None:
            self._declare_new(vhost, name, settings)
        if self._inner is not None:
            self._inner.declare(vhost, name, settings, present)

    def _declare_new(self, vhost: str, name: str, settings: QueueSettings) -> None:
        if settings.underlying_topic is not None or settings.exchange:
            topic = settings.underlying_topic or name
            self._ask(vhost, "read", "topic", topic)
            if not TopicPattern(topic).literal and self._patterns["read"] != ALL:
                raise AccessRefused(
                    f"topics '{topic}': token '{self._token.id}' of '{self.user}' may not read all topics"
                )
            if self.reserved(vhost, "read", settings.exchange):
                self._ask(vhost, "read", "exchange", settings.exchange)
        if settings.dead_letter_exchange is not None:
            self._ask(vhost, "write", "exchange", settings.dead_letter_exchange or "amq.default")
        if settings.expiry_address:
            self._ask(vhost, "write", "topic", settings.expiry_address)
