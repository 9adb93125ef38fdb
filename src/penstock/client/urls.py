"""Addresses of a server: `penstock://user:password@host:8815/vhost`, `penstocks://` with TLS.

What TLS needs beside that goes behind a question mark, so that it goes wherever an address does:

    penstocks://host/vhost?ca=ca.pem&cert=client.pem&key=client.key

Without a port both mean 8815: where that is a door without TLS, the one with TLS has another, which is named.

Without these files `PENSTOCK_TLS_CA`, `PENSTOCK_TLS_CERT` and `PENSTOCK_TLS_KEY` of the environment are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from penstock.client.trust import Trust
from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass

DEFAULT_PORT = 8815
DEFAULT_USER = "guest"
FILES = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and who asks."""

    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool
    trust: Trust = Trust()

    @property
    def location(self) -> str:
        """For pyarrow.flight."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'grpc+tls' if self.tls else 'grpc'}://{host}:{self.port}"

    def __str__(self) -> str:
        """Without the password."""
        return f"penstock{'s' if self.tls else ''}://{self.user}@{self.host}:{self.port}{self.vhost}"


def parse_url(
    url: str,
    user: str | None = None,
    password: str | None = None,
    *,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    verify: bool | None = None,
) -> Address:
    """The parts of an address; what is given beside it wins over what is in it.  Raises InvalidArgument."""
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
    if parts.fragment:
        raise InvalidArgument(f"{url!r} has a fragment, which means nothing here")
    tls = parts.scheme == "penstocks"
    told: dict[str, str | None] = {"ca": ca, "cert": cert, "key": key}
    told["verify"] = None if verify is None else "on" if verify else "off"
    trust = _trust(_asked(parts.query), told, os.environ) if tls else _none(parts.query, told)
    named = unquote(parts.username) if parts.username else DEFAULT_USER
    secret = unquote(parts.password) if parts.password is not None else DEFAULT_USER if not parts.username else ""
    return Address(
        parts.hostname,
        DEFAULT_PORT if port is None else port,
        named if user is None else user,
        secret if password is None else password,
        unquote(parts.path[1:]) or "/",
        tls,
        trust,
    )


def with_trust(url: str, **told: str | None) -> str:
    """The same address with `ca`, `cert`, `key` and `verify` (on, off), as far as they are given, in its query."""
    given = {name: value for name, value in told.items() if value is not None}
    if not given:
        return url
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), **given}
    return urlunsplit(parts._replace(query="&".join(f"{name}={quote(value)}" for name, value in query.items())))


def _asked(query: str) -> dict[str, str]:
    asked = dict(parse_qsl(query, keep_blank_values=True))
    for name in asked:
        if name not in ("ca", "cert", "key", "verify"):
            raise InvalidArgument(f"{name!r} in the address means nothing: known are ca, cert, key and verify")
    return asked


def _none(query: str, told: Mapping[str, str | None]) -> Trust:
    """Of an address without TLS."""
    names = [*_asked(query), *(name for name, value in told.items() if value is not None)]
    if names:
        raise InvalidArgument(f"{names[0]} is for TLS: write the address with penstocks://")
    return Trust()


def _trust(asked: Mapping[str, str], told: Mapping[str, str | None], environ: Mapping[str, str]) -> Trust:
    found = {
        name: told[name] or asked.get(name) or environ.get(f"PENSTOCK_TLS_{name.upper()}") or None for name in FILES
    }
    verify = told["verify"] or asked.get("verify") or "on"
    if verify not in ("on", "off"):
        raise InvalidArgument(f"verify is {verify[:60]!r}, not on or off")
    if (found["cert"] is None) != (found["key"] is None):
        there, absent = ("cert", "key") if found["key"] is None else ("key", "cert")
        raise InvalidArgument(f"{there} is given and {absent} is not: a client's certificate and its key go together")
    return Trust(found["ca"], found["cert"], found["key"], verify == "on")
