"""Who may log in: the users of the settings, compared in constant time."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import SettingsError

if TYPE_CHECKING:
    from penstock.config.settings import User


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own; a name that is no address is not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Users:
    """Names, passwords, and from where they may be used.  Raises SettingsError for a password file it cannot read."""

    def __init__(self, users: Iterable[User]) -> None:
        self._passwords: dict[str, bytes] = {}
        self._loopback_only: set[str] = set()
        for user in users:
            self._passwords[user.name] = _password(user).encode()
            if user.loopback_only:
                self._loopback_only.add(user.name)

    def check(self, user: str, password: str, host: str) -> bool:
        """Whether this user may log in with this password from this host."""
        known = self._passwords.get(user)
        right = hmac.compare_digest(known if known is not None else b"\0absent", password.encode())
        return known is not None and right and (user not in self._loopback_only or is_loopback(host))


def _password(user: User) -> str:
    if user.password is not None:
        return user.password.get_secret_value()
    assert user.password_file is not None
    try:
        return Path(user.password_file).read_text().splitlines()[0]
    except (OSError, IndexError) as error:
        raise SettingsError(f"password_file of user {user.name!r}: {user.password_file} cannot be read") from error
