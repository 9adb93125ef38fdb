"""Addresses of a server: `penstock://user:password@host:8815/vhost`, `penstocks://` with TLS."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass

DEFAULT_PORT = 8815
DEFAULT_USER = "guest"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and who asks."""

    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool

    @property
    def location(self) -> str:
        """For pyarrow.flight."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'grpc+tls' if self.tls else 'grpc'}://{host}:{self.port}"

    def __str__(self) -> str:
        """Without the password."""
        return f"penstock{'s' if self.tls else ''}://{self.user}@{self.host}:{self.port}{self.vhost}"


def parse_url(url: str, user: str | None = None, password: str | None = None) -> Address:
    """The parts of an address; `user` and `password` win over those in it.  Raises InvalidArgument."""
    given: object = url
    if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"{given!r} is no address: write penstock://user:password@host:{DEFAULT_PORT}/vhost")
    parts = urlsplit(url if "://" in url else f"penstock://{url}")
    if parts.scheme not in ("penstock", "penstocks"):
        raise InvalidArgument(f"{url!r} is no address: write penstock://user:password@host:{DEFAULT_PORT}/vhost")
    if not parts.hostname:
        raise InvalidArgument(f"{url!r} names no host")
    try:
        port = parts.port
    except ValueError:
        raise InvalidArgument(f"{url!r} has a port that is no number below 65536") from None
    if parts.query or parts.fragment:
        raise InvalidArgument(f"{url!r} has a query or fragment, which mean nothing here")
    named = unquote(parts.username) if parts.username else DEFAULT_USER
    secret = unquote(parts.password) if parts.password is not None else DEFAULT_USER if not parts.username else ""
    return Address(
        parts.hostname,
        DEFAULT_PORT if port is None else port,
        named if user is None else user,
        secret if password is None else password,
        unquote(parts.path[1:]) or "/",
        parts.scheme == "penstocks",
    )
