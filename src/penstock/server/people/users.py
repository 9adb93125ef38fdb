"""Who may log in, and what they may do: users of the settings and of run time, and permissions of the latter.

Names and passwords are compared in constant time.  A name that the settings file has is that user's.  A user made at
run time may do what its permissions say, or, where entitlements are configured, what these say in the vhosts for which
it has a permission.  Permissions and topic permissions of the settings are for users of the settings.

Such a user may do in a vhost what its permission says, and nothing in a vhost for which there is none.  Users of the
settings file are limited by entitlements alone.  Source of the table: RabbitMQ, access control.

    operation                         configure     write         read
    declare or delete X               X
    declare with a dead-letter DLX    the queue     DLX           the queue
    bind, unbind D to S                             D             S
    publish to S                                    S
    get, consume, purge Q                                         Q

A topic permission narrows this for one exchange of type `topic` by routing key: what is published is asked by `write`,
what is bound or read by `read`; `{username}` and `{vhost}` stand for those of the user.

The default exchange is written `amq.default`.  A view also reads the exchange whose topics it shows.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.core.topology.topology import routing_type
from penstock.errors import AccessRefused, InvalidArgument, SettingsError, shown, told_as
from penstock.expr import Filter, TopicPattern
from penstock.records.password_hashes import IN_SETTINGS
from penstock.records.regular_expressions import PatternError, compile_pattern, to_bytes
from penstock.records.remembered import Remembered
from penstock.records.rights import DRIVER, TAGS
from penstock.records.tokens import PREFIX
from penstock.server.people.access import Who
from penstock.server.people.accounts import Account, Accounts, Kept, Permission, Token, TopicPermission
from penstock.server.people.entitlements import Entitlements, Need, Right, Rights, refused
from penstock.server.people.tokens import ALL, Scoped, is_of, tags_within
from penstock.wire.credentials import UnusableFile, read_password

if TYPE_CHECKING:
    from penstock.config.links import LinkSection
    from penstock.config.settings import User
    from penstock.config.vhost_sections import EntitlementSection, PermissionSection, TopicPermissionSection
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.records.queue_settings import QueueSettings


KINDS = ("configure", "write", "read")

REMEMBERED_MOST = 10_000


def check_pattern(kind: str, text: str) -> None:
    """InvalidArgument for what is no regular expression."""
    try:
        compile_pattern(text)
    except PatternError as error:
        raise InvalidArgument(f"{kind} {shown(text)} is no regular expression that RE2 reads: {error.why}") from None


def _matches(pattern: str, name: str) -> bool:
    return pattern == ALL or (pattern not in {"", "^$"} and compile_pattern(pattern).search(to_bytes(name)) is not None)


class Permitted(Rights):
    """The rights of one user."""

    def __init__(
        self,
        user: str,
        permissions: Iterable[Permission],
        topics: Iterable[TopicPermission] = (),
        tags: Sequence[str] = (),
    ) -> None:
        super().__init__(user, (), tags)
        self.permissions, self.topics = tuple(permissions), tuple(topics)
        self._permissions = {one.vhost: one for one in self.permissions}
        self._topics = {(one.vhost, one.exchange): one for one in self.topics}
        self._answers = Remembered[tuple[str, str, str], bool](10_000)

    def _allows(self, vhost: str, kind: str, name: str) -> bool:
        name = name or "amq.default"
        key = vhost, kind, name
        known = self._answers.get(key)
        if known is None:
            permission = self._permissions.get(vhost)
            text = "" if permission is None else str(getattr(permission, kind))
            known = _matches(text, name) and not self.reserved(vhost, kind, name)
            self._answers.keep(key, known)
        return known

    def _allows_key(self, vhost: str, kind: str, exchange: str, key: str) -> bool:
        """Whether a routing key is within the topic permission; where there is none, it is."""
        narrower = self._topics.get((vhost, exchange))
        if narrower is None:
            return True
        text = str(getattr(narrower, kind))
        for name, value in (("{username}", self.user), ("{vhost}", vhost)):
            text = text.replace(name, re.escape(value))
        return _matches(text, key)

    def _ask_key(self, core: Core, vhost: str, kind: str, exchange: str, key: str) -> None:
        """AccessRefused unless the key of an exchange of type topic may be used so."""
        if (vhost, exchange) not in self._topics or self._allows_key(vhost, kind, exchange, key):
            return
        found = core.topology.exchange(vhost, exchange)
        if found is not None and routing_type(found) == "topic":
            raise refused(kind, f"topic '{key}' of exchange '{exchange}' in vhost '{vhost}'", self.user)

    def enters(self, vhost: str) -> bool:
        """Whether the user may open the vhost."""
        return vhost in self._permissions

    # -- what a permission says, in the words of entitlements

    def reads_topic(self, vhost: str, exchange: str, name: str) -> Right:
        """By its exchange, and its key."""
        return self._allows(vhost, "read", exchange) and self._allows_key(vhost, "read", exchange, name)

    def writes_topic(self, vhost: str, exchange: str, name: str) -> Right:
        """By its exchange, and its key."""
        return self._allows(vhost, "write", exchange) and self._allows_key(vhost, "write", exchange, name)

    def reads_queue(self, vhost: str, name: str) -> Right:
        """What may be read of a queue, by its own name."""
        return self._allows(vhost, "read", name)

    def writes_queue(self, vhost: str, name: str) -> Right:
        """What may be written to a queue, through the default exchange."""
        return self._allows(vhost, "write", "")

    def sees_queue(self, vhost: str, name: str) -> bool:
        """Every queue of a vhost that the user may open."""
        return self.monitors or self.enters(vhost)

    def topic_rights(self, vhost: str, exchange: str) -> tuple[tuple[str | None, bool | str], ...]:
        """All topics of an exchange, or none: a topic permission that is about some of them is asked topic by topic."""
        return ((None, self._reads_all_keys(vhost, exchange) and self._allows(vhost, "read", exchange)),)

    # -- what a door asks

    def publish(self, core: Core, vhost: str, exchange: str, key: str) -> Filter | None:
        """Everything, where the exchange may be written to; through a queue also that of the topic it shows."""
        for one, name in dict.fromkeys(((exchange, key), core.target_of(vhost, exchange, key))):
            if not self._allows(vhost, "write", one):
                raise refused("write", f"exchange '{one or 'amq.default'}' in vhost '{vhost}'", self.user)
            self._ask_key(core, vhost, "write", one, name)
        return None

    def unread(self, vhost: str, exchange: str, name: str, verb: str = "read") -> AccessRefused:
        """The error says what a permission asks, where it is the exchange: the topic's own name is not asked for."""
        error = super().unread(vhost, exchange, name, verb)
        if self._allows(vhost, "read", exchange) or self.reserved(vhost, "read", exchange):
            return error
        why = "a topic is read by its exchange, and the permission's read does not match"
        return AccessRefused(f"{error}: {why} '{exchange or 'amq.default'}'")

    def binds(self, core: Core, vhost: str, source: str, key: str) -> None:
        """Beside the permissions on both ends: AccessRefused unless this key of the source may be read."""
        self._ask_key(core, vhost, "read", source, key)

    def configure(self, what: str, vhost: str = "/", needs: Iterable[Need] = ()) -> None:
        """AccessRefused unless each thing may be used as it is needed; without any, all of the vhost, or by tag."""
        wanted = tuple(needs)
        if not wanted and not self.administrator:
            permission = self._permissions.get(vhost)
            if permission is None or any(getattr(permission, kind) != ALL for kind in KINDS):
                raise refused("configure", f"all of vhost '{vhost}', which {what} needs,", self.user)
        for kind, thing, name in wanted:
            if not self._allows(vhost, kind, name):
                raise refused(kind, f"{thing} '{name or 'amq.default'}' in vhost '{vhost}'", self.user)

    def find(self, vhost: str, thing: str, name: str) -> None:
        """By any of the three: a passive declare is not for finding out what there is."""
        if not any(self._allows(vhost, kind, name) for kind in KINDS):
            raise refused("use", f"{thing} '{name}' in vhost '{vhost}'", self.user)

    def declare(self, vhost: str, name: str, settings: QueueSettings, present: Queue | None) -> None:
        """A queue that is there needs any of the three; a new one `configure`, and what it reads and writes."""
        where = f"queue '{name}'"
        if present is not None and any(self._allows(vhost, kind, name) for kind in KINDS):
            return
        needs: list[Need] = [("configure", "queue", name)]
        topic = settings.underlying_topic or name
        if settings.exchange or topic != name:  # else it sees its own name in the default exchange, as every queue does
            needs.append(("read", "exchange", settings.exchange))
            if not self._reads_shown(vhost, settings.exchange, topic):
                what = f"topic '{topic}' of exchange '{settings.exchange}' in vhost '{vhost}'"
                raise refused("read", what, self.user)
        if settings.expiry_address:
            needs += [("read", "queue", name), ("write", "exchange", "")]
        if settings.dead_letter_exchange is not None:
            needs += [("read", "queue", name), ("write", "exchange", settings.dead_letter_exchange)]
        self.configure(f"declaring {where}", vhost, needs)

    def _reads_shown(self, vhost: str, exchange: str, topic: str) -> bool:
        """Whether a topic permission lets a queue show this; a pattern of topics where it lets all of them through."""
        if TopicPattern(topic).literal:
            return self._allows_key(vhost, "read", exchange, topic)
        return self._reads_all_keys(vhost, exchange)

    def _reads_all_keys(self, vhost: str, exchange: str) -> bool:
        narrower = self._topics.get((vhost, exchange))
        return narrower is None or narrower.read == ALL


P = TypeVar("P", "Permission", "TopicPermission")


def by_user(permissions: Mapping[Any, P], user: str) -> list[P]:
    return [one for one in permissions.values() if one.user == user]


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own; a name that is no address is not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Users:
    """Names, passwords, from where they may be used, and what for.

    Raises SettingsError for a password file it cannot read, and for an entitlement that cannot be.
    """

    def __init__(
        self,
        users: Iterable[User],
        entitlements: Iterable[EntitlementSection] = (),
        instance: str = "",
        accounts: Accounts | None = None,
        permissions: Iterable[PermissionSection] = (),
        narrower: Iterable[TopicPermissionSection] = (),
        loopback_users: Collection[str] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        """instance: the server's name, which an entitlement may ask for.  accounts: users of run time.

        loopback_users: names that log in from this machine alone, wherever they are defined, unless the user says.
        """
        self.accounts = accounts if accounts is not None else Accounts()
        self.wall = wall  # seconds since the epoch, by which tokens end
        self._permitted = dict[str, Permitted]()
        self._who = dict[str, Who]()
        self.accounts.changed.append(self._forget)
        self._passwords: dict[str, bytes] = {}
        self._kept: dict[str, Kept] = {}
        self._loopback_only = set(loopback_users)
        self._tags: dict[str, tuple[str, ...]] = {}  # the first is whom pipelines act as
        for user in users:
            if user.password_hash is not None:
                self._kept[user.name] = Kept(user.password_hash.get_secret_value(), IN_SETTINGS[user.hashing])
            else:
                self._passwords[user.name] = password_of(user).encode()
            self._tags[user.name] = user.tags
            if user.loopback_only:
                self._loopback_only.add(user.name)
            elif user.loopback_only is not None:
                self._loopback_only.discard(user.name)
        self._entitlements = Entitlements(entitlements, self.tags, instance, self.enters)
        self._fixed_permissions = {
            (one.user, one.vhost): Permission(one.user, one.vhost, one.configure, one.write, one.read)
            for one in permissions
        }
        self._fixed_narrower = {
            (one.user, one.vhost, one.exchange): TopicPermission(one.user, one.vhost, one.exchange, one.write, one.read)
            for one in narrower
        }

    def fixed_permissions(self, vhosts: Iterable[str]) -> list[Permission]:
        """Of users of the settings: what these say, or all of every vhost where they have no word of permissions."""
        names = self.fixed()
        if self._fixed_permissions:
            return [one for one in self._fixed_permissions.values() if one.user in names]
        return [Permission(name, vhost, ALL, ALL, ALL) for name in names for vhost in vhosts]

    def fixed_narrower(self) -> dict[tuple[str, str, str], TopicPermission]:
        """Topic permissions of users of the settings, by user, vhost and exchange."""
        names = self.fixed()
        return {key: one for key, one in self._fixed_narrower.items() if one.user in names}

    def kept(self, user: str) -> Kept | None:
        """The hash of a user's password; None where there is none: for an unknown user, or with a plain password."""
        account = self._account(user)
        if account is not None:
            return account.password
        return None if user in self.accounts.removed else self._kept.get(user)

    def has_plain(self, user: str, password: str) -> bool:
        """Whether the settings file has this password for this user, in constant time."""
        known = self._passwords.get(user)
        right = hmac.compare_digest(known if known is not None else b"\0absent", password.encode())
        return right and known is not None and self._account(user) is None and user not in self.accounts.removed

    def admits(self, user: str, host: str) -> bool:
        """Whether somebody whose certificate says that it is this user may log in from this host."""
        return self.known(user) and self.may_come_from(user, host)

    def may_come_from(self, user: str, host: str) -> bool:
        """Whether a user of this name may log in from this host."""
        if user.startswith(PREFIX) and self.is_token(user):
            token = self.accounts.tokens.get(user.removeprefix(PREFIX))
            user = user if token is None else token.user
        return user not in self._loopback_only or is_loopback(host)

    def who(self, user: str) -> Who:
        """Somebody who has logged in, as rights are judged.  Any thread."""
        if user.startswith(PREFIX) and self.is_token(user):
            return self._by_token(user)
        remembered = self._who  # whoever forgets puts another one there
        found = remembered.get(user)
        if found is None:
            found = self._look_up(user)
            if found.there:
                remembered[user] = found
        return found

    # -- tokens

    def is_token(self, user: str) -> bool:
        """Whether a login's name is that of a token, which may be none any more."""
        return user.startswith(PREFIX) and not self.known(user)

    def token(self, user: str) -> Token | None:
        """The one that a login names, while it lasts."""
        found = self.accounts.tokens.get(user.removeprefix(PREFIX))
        if found is None or found.ends <= self.wall() or not self.known(found.user):
            return None
        return found if found.vhost in self.accounts.vhosts and self.enters(found.user, found.vhost) else None

    def has_token(self, user: str, secret: str) -> bool:
        """Whether a token's login is right."""
        token = self.token(user)
        return is_of(token, secret, self.fixed_password("" if token is None else token.user))

    def fixed_password(self, user: str) -> bytes:
        """What the settings have of a user's password, so that tokens end with it; of others nothing."""
        if self._account(user) is not None:
            return b""
        kept = self._kept.get(user)
        return self._passwords.get(user, b"") if kept is None else kept.text.encode()

    def _by_token(self, user: str) -> Who:
        token = self.token(user)
        if token is None:
            return Who(user, (), Permitted(user, ()), lambda vhost: False, False, user)
        found = self._who.get(user)
        if found is None:
            tags = tags_within(token.tags, self.tags(token.user))
            rights = Scoped(token, self._without_tags(token.user, tags), tags)
            found = Who(token.user, tags, rights, lambda vhost: vhost == token.vhost, True, token.id)
            if len(self._who) < REMEMBERED_MOST:
                self._who[user] = found
        return found

    def _without_tags(self, user: str, tags: tuple[str, ...]) -> Rights | None:
        """The user's rights as with these tags alone."""
        rights = self.rights(user)
        if isinstance(rights, Permitted):
            return Permitted(user, rights.permissions, rights.topics, tags)
        return None if rights is None else Rights(user, rights.entries, tags)

    def _look_up(self, user: str) -> Who:
        tags = tuple(tag for tag in self.tags(user) if tag in TAGS)
        if self._account(user) is None and user == next(iter(self._tags), None):
            tags = (*tags, DRIVER)
        era = self.accounts.ended_users[user]
        return Who(user, tags, self.rights(user), partial(self.enters, user), self.known(user), era=era)

    def rights(self, user: str) -> Rights | None:
        """What a user may read and write; None where nothing is limited.  Who is gone may do nothing."""
        if self.is_token(user):
            return self._by_token(user).rights
        rights = self._entitlements.rights(user)
        account = self._account(user)
        if rights is not None or (account is None and not self._fixed_permissions and self.known(user)):
            return rights
        permitted = self._permitted  # whoever forgets puts another one there
        found = permitted.get(user)
        if found is None:
            mine = by_user(self._fixed_permissions if account is None else self.accounts.permissions, user)
            narrower = by_user(self._fixed_narrower if account is None else self.accounts.topic_permissions, user)
            found = permitted[user] = Permitted(user, mine, narrower, self.tags(user))
        return found

    def _account(self, user: str) -> Account | None:
        """A user of run time; a name of the settings file is that user's."""
        return None if user in self.accounts.fixed_users else self.accounts.users.get(user)

    def enters(self, user: str, vhost: str) -> bool:
        """Whether a user may open a vhost."""
        if self.is_token(user):
            return self._by_token(user).enters(vhost)
        if self._account(user) is None:
            limited = bool(self._fixed_permissions) or not self.known(user)
            return not limited or (user, vhost) in self._fixed_permissions
        return (user, vhost) in self.accounts.permissions

    def known(self, user: str) -> bool:
        """Whether there is such a user."""
        return self._account(user) is not None or (user in self._tags and user not in self.accounts.removed)

    def fixed(self) -> list[str]:
        """Users of the settings, or the one that is there by default."""
        return [name for name in self._tags if self._account(name) is None and name not in self.accounts.removed]

    def _forget(self) -> None:
        self._permitted, self._who = {}, {}
        self._entitlements.forget()

    def tags(self, user: str) -> tuple[str, ...]:
        """What else a user may do; nothing for one that is unknown."""
        if self.is_token(user):
            return self._by_token(user).tags
        account = self._account(user)
        if account is not None:
            return account.tags
        return () if user in self.accounts.removed else self._tags.get(user, ())


def password_of(section: User | LinkSection) -> str:
    """What the settings say, or the file that they name; empty: neither.  SettingsError, which begins with the key."""
    if section.password_file is None:
        return section.password.get_secret_value() if section.password is not None else ""
    with told_as(SettingsError, f"password_file: {section.password_file} ", instead=UnusableFile):
        return read_password(section.password_file)
