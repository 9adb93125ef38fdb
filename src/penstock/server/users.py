"""Who may log in, and what else they may do: users of the settings and of run time, compared in constant time.

A name that the settings file has is that user's.  A user made at run time may do what its permissions say, or, where
entitlements are configured, what these say in the vhosts for which it has a permission.  Permissions and topic
permissions of the settings are for users of the settings.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import SettingsError
from penstock.records.password_hashes import IN_SETTINGS
from penstock.records.rights import DRIVER, TAGS
from penstock.server.access import Who
from penstock.server.accounts import Account, Accounts, Permission, TopicPermission
from penstock.server.entitlements import Entitlements, Rights
from penstock.server.passwords import Kept
from penstock.server.permissions import Permitted, by_user

if TYPE_CHECKING:
    from penstock.config.settings import User
    from penstock.config.vhost_sections import EntitlementSection, PermissionSection, TopicPermissionSection


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
    ) -> None:
        """instance: the server's name, which an entitlement may ask for.  accounts: users of run time.

        loopback_users: names that log in from this machine alone, wherever they are defined, unless the user says.
        """
        self.accounts = accounts if accounts is not None else Accounts()
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
                self._passwords[user.name] = _password(user).encode()
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

    def check(self, user: str, password: str, host: str) -> bool:
        """Whether this user may log in with this password from this host; with a slow hash after 30 ms."""
        if not self.may_come_from(user, host):
            return False
        kept = self.kept(user)
        return self.has_plain(user, password) if kept is None else kept.matches(password)

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
        return user not in self._loopback_only or is_loopback(host)

    def who(self, user: str) -> Who:
        """Somebody who has logged in, as rights are judged.  Any thread."""
        remembered = self._who  # whoever forgets puts another one there
        found = remembered.get(user)
        if found is None:
            found = self._look_up(user)
            if found.there:
                remembered[user] = found
        return found

    def _look_up(self, user: str) -> Who:
        tags = tuple(tag for tag in self.tags(user) if tag in TAGS)
        if self._account(user) is None and user == next(iter(self._tags), None):
            tags = (*tags, DRIVER)
        return Who(user, tags, self.rights(user), partial(self.enters, user), self.known(user))

    def rights(self, user: str) -> Rights | None:
        """What a user may read and write; None where nothing is limited.  Who is gone may do nothing."""
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
        account = self._account(user)
        if account is not None:
            return account.tags
        return () if user in self.accounts.removed else self._tags.get(user, ())


def _password(user: User) -> str:
    if user.password_file is None:
        return user.password.get_secret_value() if user.password is not None else ""
    where = f"password_file of user {user.name!r}: {user.password_file}"
    try:
        lines = Path(user.password_file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where} cannot be read: {error}") from error
    if not lines or not lines[0]:
        raise SettingsError(f"{where} has no password in its first line")
    return lines[0]
