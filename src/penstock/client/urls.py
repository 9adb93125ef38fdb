"""Addresses of a server: `penstock://user:password@host:8815/vhost`, `penstocks://` with TLS; and whom a client with
TLS trusts, and what it shows of itself.

What TLS needs beside that goes behind a question mark, so that it goes wherever an address does:

    penstocks://host/vhost?ca=ca.pem&cert=client.pem&key=client.key

Of a cluster of servers all are named, each with a port of its own or without: `penstock://a,b:8816,c/vhost`.

A token stands where a password does, and is a user's by itself.

Without a port both mean 8815: where that is a door without TLS, the one with TLS has another, which is named.

Without these files `PENSTOCK_TLS_CA`, `PENSTOCK_TLS_CERT` and `PENSTOCK_TLS_KEY` of the environment are looked at.
"""

from __future__ import annotations

import os
import re
import ssl
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

from penstock.errors import InvalidArgument, told_as
from penstock.records.dataclass import dataclass
from penstock.records.tokens import login_of
from penstock.units import ascii_host, format_address, shown_address
from penstock.wire.credentials import EncryptedKey, UnusableFile, believe, read_pem, show


class UnverifiedServer(UserWarning):
    """A connection whose other end may be anybody."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Names of files in PEM; None for the CAs that the system trusts, and for no certificate of one's own."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True  # the server's certificate and that it is for the host of the address

    def options(self, server: str) -> dict[str, Any]:
        """For pyarrow's client.  server: for the warning where it is not verified.  Raises InvalidArgument."""
        options: dict[str, Any] = {}
        if self.cert is not None and self.key is not None:
            chain, key = _pair(self.cert, self.key, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
            options |= {"cert_chain": chain, "private_key": key}
        known = None if self.ca is None else _authorities(self.ca, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        if not self.verify:
            text = f"the certificate of {server} is not verified: whoever is between can read and change everything"
            warnings.warn(text, UnverifiedServer, stacklevel=5)
            return options | {"disable_server_verification": True}
        system: Any = ssl.get_default_verify_paths()  # whose file may be None, other than its stub says
        if known is None and system.cafile is not None:
            known = _read("ca", system.cafile)
        return options if known is None else options | {"tls_root_certs": known}

    def context(self) -> ssl.SSLContext:
        """For a client of TLS that is Python's.  Raises InvalidArgument."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is None:
            made.load_default_certs()
        else:
            _authorities(self.ca, made)
        if self.cert is not None:
            _pair(self.cert, self.key or self.cert, made)  # both may be in one file
        if not self.verify:
            made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        return made


DEFAULT_PORT = 8815
_FORM = f"write penstock://user:password@host:{DEFAULT_PORT}/vhost"
WANTS_A_PORT = (
    f"the port of Flight is wanted, {DEFAULT_PORT} unless the server says otherwise, not that of AMQP or HTTP"
)
WANTS_A_CERTIFICATE = "it may want a certificate of its client's, in cert and key, or not accept this one"


def reason_of(text: str, host: str, *, tls: bool) -> str | None:
    """Why no connection came about, for a person, out of what gRPC says; None where that says it itself.

    tls: whether the client speaks it.
    """
    if "Socket closed" in text:
        why = WANTS_A_CERTIFICATE if tls else "if TLS is spoken there, the address is one of penstocks://"
        return f"the connection was closed at once: {why}; {WANTS_A_PORT}"
    if "http1.x" in text or "http/1.x" in text:
        return f"HTTP is spoken there; {WANTS_A_PORT}"
    if not tls:
        return None
    if "is not in peer certificate" in text:
        return f"its certificate is not for {host!r}"
    if (found := re.search(r"certificate verify failed: ([^:;]*)", text)) is not None:
        why = found[1].strip()
        unknown = "issuer" in why or "self" in why
        hint = ": is its CA the one in ca, and does the server show those between the two?" if unknown else ""
        return f"its certificate is not accepted ({why}){hint}"
    if "wrong version number" in text.lower():
        return "it does not speak TLS there: is the address one of penstock://?"
    return None


def _read(name: str, file: str) -> bytes:
    with told_as(InvalidArgument, f"{name}: {file} ", instead=UnusableFile):
        data = read_pem(file)
    what = "private key" if name == "key" else "certificate"
    if f"{what.upper()}-----".encode() not in data:
        raise InvalidArgument(f"{name}: {file} holds no {what} in PEM")
    return data


def _authorities(file: str, context: ssl.SSLContext) -> bytes:
    """The certificates of a file, by which a context judges now.  InvalidArgument as of `_pair`."""
    data = _read("ca", file)
    try:
        believe(context, data)
    except ssl.SSLError as error:
        raise InvalidArgument(f"ca: {file} holds a certificate that cannot be used: {error.reason or error}") from None
    return data


def _pair(cert: str, key: str, context: ssl.SSLContext) -> tuple[bytes, bytes]:
    """What these files hold, which a context shows now.

    InvalidArgument for what gRPC cannot use: it says of any such file that an address list is empty.
    """
    pems = _read("cert", cert), _read("key", key)
    try:
        show(context, *pems)
    except EncryptedKey:
        told = "write it without a password, readable by its client alone"
        raise InvalidArgument(f"key: {key} is encrypted: {told}") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgument(f"key: {key} is not the key of the certificate in {cert}") from None
        raise InvalidArgument(f"cert: {cert} and key: {key} cannot be used: {error.reason or error}") from None
    return pems


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
        return f"{'grpc+tls' if self.tls else 'grpc'}://{format_address(self.host, self.port)}"

    def __str__(self) -> str:
        """The address as a URL, without the password."""
        path = "" if self.vhost == "/" else quote(self.vhost, safe="")
        return f"penstock{'s' if self.tls else ''}://{self.user}@{format_address(self.host, self.port)}/{path}"


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
    parts, port = _parts(url)
    tls = parts.scheme == "penstocks"
    told: dict[str, str | None] = {"ca": ca, "cert": cert, "key": key}
    told["verify"] = None if verify is None else "on" if verify else "off"
    trust = _trust(_asked(parts.query), told, os.environ) if tls else _none(parts.query, told)
    named = unquote(parts.username) if parts.username else DEFAULT_USER
    secret = unquote(parts.password) if parts.password is not None else DEFAULT_USER if not parts.username else ""
    named, secret = named if user is None else user, secret if password is None else password
    named, secret = login_of(secret) or (named, secret)
    return Address(
        _host(url, cast("str", parts.hostname)),
        port,
        named,
        secret,
        unquote(parts.path[1:]) or "/",
        tls,
        trust,
    )


def parse_urls(url: str, user: str | None = None, password: str | None = None, **trust: Any) -> tuple[Address, ...]:
    """The same of a cluster: an address for each host that is named, with commas between.  Raises InvalidArgument."""
    given: object = url
    if not isinstance(given, str) or "," not in given:  # pyright: ignore[reportUnnecessaryIsInstance]
        return (parse_url(url, user, password, **trust),)
    before, hosts, behind = _by_hosts(url)
    return tuple(parse_url(f"{before}{host}{behind}", user, password, **trust) for host in hosts)


def _by_hosts(url: str) -> tuple[str, list[str], str]:
    """The hosts that an address names, each with its port, and what is written before and behind them."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    login, at, hosts = rest[:end].rpartition("@")
    return f"{scheme}{mark}{login}{at}", hosts.split(","), rest[end:]


def split_address(url: str) -> SplitResult:
    """The parts of an address, without a scheme one of penstock://; its netloc may name several hosts.

    Raises InvalidArgument for a host with colons and without its brackets.
    """
    url = url.strip() if "://" in url else f"penstock://{url.strip()}"
    if any(one in url for one in "\t\r\n"):  # urlsplit would leave them out
        raise InvalidArgument(f"{shown_address(url)!r} is no address: it has a tab or the end of a line in it")
    before, hosts, behind = _by_hosts(url)
    with suppress(ValueError):  # of one bracket alone, or no such host in both
        parts = urlsplit(f"{before}{hosts[0]}{behind}")  # of several, brackets behind a comma are an error to it
        if all(host.count(":") < 2 or host.startswith("[") for host in hosts):
            return parts._replace(netloc=",".join([parts.netloc, *hosts[1:]]))
    raise InvalidArgument(
        f"{shown_address(url)!r} is no address: write an IPv6 host in brackets, as in penstock://[::1]:{DEFAULT_PORT}"
    )


def _check_login(url: str) -> None:
    """InvalidArgument where a login has a character that ends it: what is behind it would be shown as a vhost."""
    rest = url.partition("://")[2] or url
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    path, _, query = rest[end:].partition("?")
    if "@" in path or "@" in query.partition("=")[0]:
        raise InvalidArgument(
            f"{shown_address(url)!r} has an @ behind its host: in a login /, ? and # are written %2F, %3F and %23, "
            "and in a vhost @ is %40"
        )


def _host(url: str, host: str) -> str:
    """As resolvers take it, as of `ascii_host`.  InvalidArgument for what is no host."""
    if name := ascii_host(host):
        return name
    raise InvalidArgument(f"{shown_address(url)!r} is no address: {host!r} is no host")


def _parts(url: str) -> tuple[SplitResult, int]:
    """An address that may be one, split, and its port."""
    given: object = url
    if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"{given!r} is no address: {_FORM}")
    _check_login(url)
    parts = split_address(url)
    if parts.scheme not in ("penstock", "penstocks"):
        raise InvalidArgument(f"{shown_address(url)!r} is no address: {_FORM}")
    if not parts.hostname:
        raise InvalidArgument(f"{shown_address(url)!r} names no host: {_FORM}")
    try:
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        raise InvalidArgument(f"{shown_address(url)!r} has a port that is no number below 65536") from None
    if parts.fragment:
        raise InvalidArgument(f"{shown_address(url)!r} has a fragment, which means nothing here")
    return parts, port


def with_trust(url: str, **told: str | None) -> str:
    """The same address with `ca`, `cert`, `key` and `verify` (on, off), as far as they are given, in its query."""
    given = {name: value for name, value in told.items() if value is not None}
    if not given:
        return url
    parts = split_address(url)
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
