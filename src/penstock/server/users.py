"""Who may log in, and what else they may do: the users of the settings, compared in constant time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import SettingsError
from penstock.server.entitlements import Entitlements, Rights

if TYPE_CHECKING:
    from penstock.config.entitlements import EntitlementSection
    from penstock.config.settings import User


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
        self, users: Iterable[User], entitlements: Iterable[EntitlementSection] = (), instance: str = ""
    ) -> None:
        """instance: the server's name, which an entitlement may ask for."""
        self._passwords: dict[str, bytes] = {}
        self._hashes: dict[str, tuple[str, bytes, bytes]] = {}  # by user: how it was made, salt, digest
        self._loopback_only: set[str] = set()
        self._tags: dict[str, tuple[str, ...]] = {}
        for user in users:
            if user.password_hash is not None:
                data = base64.b64decode(user.password_hash.get_secret_value())
                self._hashes[user.name] = user.hashing, data[:4], data[4:]
            else:
                self._passwords[user.name] = _password(user).encode()
            self._tags[user.name] = user.tags
            if user.loopback_only:
                self._loopback_only.add(user.name)
        self._entitlements = Entitlements(entitlements, self.tags, instance)

    def check(self, user: str, password: str, host: str) -> bool:
        """Whether this user may log in with this password from this host."""
        known, given = self._passwords.get(user), password.encode()
        if known is None and (hashed := self._hashes.get(user)) is not None:
            how, salt, known = hashed
            given = hashlib.new(how, salt + given, usedforsecurity=False).digest()
        right = hmac.compare_digest(known if known is not None else b"\0absent", given)
        return known is not None and right and (user not in self._loopback_only or is_loopback(host))

    def rights(self, user: str) -> Rights | None:
        """What a user may read and write; None where nothing is limited."""
        return self._entitlements.rights(user)

    def tags(self, user: str) -> tuple[str, ...]:
        """What else a user may do; nothing for one that is unknown."""
        return self._tags.get(user, ())


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
