"""The doors: where each listens (`[listen]`), its certificate (`[tls]`), and what is allowed before a login.

Whether the files of a certificate are there and fit each other is `server.tls`'; that a door with TLS has one is
`config.conflicts`'.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, model_validator

from penstock.config.sections import MIB, Duration, Name, Section, Size


class Address(NamedTuple):
    """Where a listener binds.  Port 0 picks a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: object) -> object:
    """An address from `host:port`, `[ipv6]:port`; None from `off`."""
    if not isinstance(value, str):
        return value
    if value == "off":
        return None
    host, colon, port = value.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{value!r} is not an address: write host:port, as in 127.0.0.1:5672, or off")
    if ":" in bare and bare == host:
        raise ValueError(f"{value!r} is not an address: write an IPv6 host in brackets, as in [::1]:5672")
    return Address(bare, int(port))


Listen: TypeAlias = Annotated[Address | None, BeforeValidator(_address)]


class Listeners(Section):
    """`[listen]`"""

    amqp: Listen = Field(
        default=Address("127.0.0.1", 5672), description="AMQP 0-9-1; `off` for none, port 0 for a free one."
    )
    http: Listen = Field(default=Address("127.0.0.1", 15672), description="Management, metrics and health; or `off`.")
    flight: Listen = Field(default=Address("127.0.0.1", 8815), description="Arrow Flight; or `off`.")
    amqps: Listen = Field(default=None, description="AMQP over TLS, as `127.0.0.1:5671`; needs `[tls]`.")
    https: Listen = Field(default=None, description="HTTP over TLS, as `127.0.0.1:15671`.")
    flight_tls: Listen = Field(default=None, description="Arrow Flight over TLS (`penstocks://`), as `127.0.0.1:8816`.")

    def doors(self) -> dict[str, Address]:
        """Those that are on, by name."""
        return {name: one for name in type(self).model_fields if (one := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _apart(self) -> Listeners:
        taken: dict[Address, str] = {}
        for name, address in self.doors().items():
            if address.port == 0:
                continue
            if address in taken:
                raise ValueError(f"{taken[address]} and {name} cannot both listen on {address}")
            taken[address] = name
        return self


DOORS = ("amqps", "https", "flight_tls")
"""Keys of `[listen]` that need it."""


class TlsSection(Section):
    """`[tls]`"""

    certificate: Name | None = Field(
        default=None, description="File of the server's certificate, PEM, with those between it and its CA behind it."
    )
    key: Name | None = Field(default=None, description="File of its private key, PEM, without a password.")
    ca: Name | None = Field(default=None, description="File of the CA certificates that clients' own are checked by.")
    verify: Literal["none", "peer"] = Field(
        default="none", description='Whether clients are asked for a certificate: "peer" does, and checks what it gets.'
    )
    fail_if_no_peer_cert: StrictBool = Field(
        default=False, description='Whether a client without a certificate is sent away; with verify = "peer".'
    )
    cert_login_from: Literal["common_name"] | None = Field(
        default=None,
        description="What of a client's certificate is its user over AMQP (SASL EXTERNAL).  Unset: not offered.",
    )
    min_version: Literal["1.2", "1.3"] = Field(default="1.2", description="The oldest TLS that is spoken.")

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            there, absent = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise ValueError(f"{there} is there and {absent} is missing: one goes with the other")
        if self.verify == "peer" and self.ca is None:
            raise ValueError('verify = "peer" needs ca: the file of the CA certificates to check clients by')
        for name, given in (
            ("fail_if_no_peer_cert", self.fail_if_no_peer_cert),
            ("cert_login_from", self.cert_login_from is not None),
        ):
            if given and self.verify != "peer":
                raise ValueError(f'{name} needs verify = "peer": otherwise no client is asked for a certificate')
        return self


class BeforeLogin(Section):
    """`[before_login]`"""

    time: Duration = Field(
        default=10_000_000,
        ge=100_000,
        le=3600_000_000,
        description="From the connection to the login, TLS's handshake included; over HTTP for each request's headers.",
    )
    bytes: Size = Field(
        default=64 * 1024,
        ge=4096,
        le=MIB,
        description="What a client may send before its login: a handshake, or the headers of a request.",
    )
    flight_bytes: Size = Field(
        default=4 * MIB,
        ge=64 * 1024,
        le=64 * MIB,
        description="What may come on a Flight connection before its first call is let in; 32 times that on all.",
    )
    sockets: StrictInt = Field(
        default=512, ge=8, le=65_536, description="Connections of a door that have not logged in; further ones wait."
    )
    per_address: StrictInt = Field(
        default=64, ge=4, le=65_536, description="The same from one address, before those who are silent have to go."
    )
    wrong_logins: StrictInt = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="Wrong passwords for a user from one address, ten times as many for all users; then one a second.",
    )
