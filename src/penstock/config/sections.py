"""What every table of the settings file is made of, and the tables that say where a server is found and by whom.

`[listen]` has the doors, `[tls]` their certificate, `[before_login]` what is allowed before a login, `[cluster]` the
others with whom this server keeps one log.  Whether the files of a certificate are there and fit each other is
`server.sockets.tls`'; that a door with TLS has one is `config.mistakes`'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_network
from math import inf
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)

from penstock.errors import shown, told_as
from penstock.units import ascii_host, format_address, parse_duration, parse_size, parted_address, shown_address

MIB = 1 << 20

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=255)]


def _file(value: str) -> str:
    if "\0" in value:
        raise ValueError(f"{value!r} is no name of a file: it has a zero byte")
    return value


File: TypeAlias = Annotated[Name, AfterValidator(_file)]
"""The name of a file or of a folder."""


YEAR_US = 365 * 86_400_000_000
LONGEST_US = 100 * YEAR_US
"""What waits for longer, the system refuses: 2**63 nanoseconds are 292 years."""


def _duration(value: object) -> int:
    micros = parse_duration(_with_unit(value, "s"))
    if micros > LONGEST_US:
        raise ValueError(f"{shown(value)} is longer than {LONGEST_US // YEAR_US} years, the most there may be")
    return micros


def _size(value: object) -> int:
    return parse_size(_with_unit(value, "B"))


def _with_unit(value: object, unit: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < inf:
        raise ValueError(f"{value} needs a unit: write '{value}{unit}' if that is meant")
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text with a unit")
    return value


Duration: TypeAlias = Annotated[int, BeforeValidator(_duration), Field(json_schema_extra={"unit": "duration"})]
Size: TypeAlias = Annotated[int, BeforeValidator(_size), Field(json_schema_extra={"unit": "size"})]


class Section(BaseModel):
    """A table of the file: frozen, and without room for keys that nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


S = TypeVar("S", bound=Section)

Refusals: TypeAlias = Sequence[tuple[Callable[[S], object], str | Callable[[S], str]]]
"""What cannot be: in which sections, and why, with the section as `{one}`."""


def refuse(one: S, refusals: Refusals[S]) -> None:
    """ValueError with the first that holds."""
    for holds, why in refusals:
        if holds(one):
            raise ValueError(why.format(one=one) if isinstance(why, str) else why(one))


def one_of(section: Section, keys: Sequence[str], rule: str) -> None:
    """ValueError with the rule unless exactly one of these keys is given."""
    named = [key for key in keys if getattr(section, key) not in (None, False)]
    if len(named) != 1:
        raise ValueError(
            f"{rule}: " + (f"{' and '.join(named)} are given, and one may be" if named else "none is given")
        )


class Address(NamedTuple):
    """Where a listener binds.  Port 0 picks a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return format_address(self.host, self.port)


PORT_MOST = 65535


def _read_already(value: object) -> Address | None:
    """An address, or None, that is no text any more.  ValueError for anything else."""
    if value is None or isinstance(value, Address):
        return value
    raise ValueError(f'{shown(value)} is not an address: write host:port, as in "127.0.0.1:5672", or off')


def _address(value: object) -> object:
    """An address from `host:port`, `[ipv6]:port`; None from `off`."""
    if not isinstance(value, str):
        return _read_already(value)
    if value == "off":
        return None
    told, (host, _, port) = f"{shown_address(value)!r} is not an address", value.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{told}: write host:port, as in 127.0.0.1:5672, or off")
    if len(port) > 9 or int(port) > PORT_MOST:
        raise ValueError(f"{told}: port {port[:9]} is not in 0..{PORT_MOST}")
    if ":" in bare and bare == host:
        raise ValueError(f"{told}: write an IPv6 host in brackets, as in [::1]:5672")
    if not ascii_host(bare):
        raise ValueError(f"{told}: {bare!r} is no host")
    return Address(bare, int(port))


Listen: TypeAlias = Annotated[Address | None, BeforeValidator(_address), Field(json_schema_extra={"unit": "listener"})]


def _network(value: object) -> object:
    """An address or a network, as it was written."""
    if not isinstance(value, str):
        return value
    with told_as(ValueError, f"{value!r} is no address and no network, as 10.0.0.7 or 10.0.0.0/8 are: "):
        ip_network(value)
    return value


Network: TypeAlias = Annotated[str, BeforeValidator(_network)]


class Listeners(Section):
    """`[listen]`"""

    amqp: Listen = Address("127.0.0.1", 5672)
    """AMQP 0-9-1; `off` for none, port 0 for a free one."""
    http: Listen = Address("127.0.0.1", 15672)
    """Management, metrics and health; or `off`."""
    flight: Listen = Address("127.0.0.1", 8815)
    """Arrow Flight; or `off`."""
    amqps: Listen = None
    """AMQP over TLS, as `127.0.0.1:5671`; needs `[tls]`."""
    https: Listen = None
    """HTTP over TLS, as `127.0.0.1:15671`."""
    flight_tls: Listen = None
    """Arrow Flight over TLS (`penstocks://`), as `127.0.0.1:8816`."""

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


def refuse_half(certificate: str | None, key: str | None) -> None:
    """ValueError for one without the other."""
    if (certificate is None) != (key is None):
        there, absent = ("certificate", "key") if key is None else ("key", "certificate")
        raise ValueError(f"{there} is there and {absent} is missing: one goes with the other")


class TlsSection(Section):
    """`[tls]`"""

    certificate: File | None = None
    """File of the server's certificate, PEM, with those between it and its CA behind it."""
    key: File | None = None
    """File of its private key, PEM, without a password."""
    ca: File | None = None
    """File of the CA certificates that clients' own are checked by."""
    verify: Literal["none", "peer"] = "none"
    """Whether clients are asked for a certificate: "peer" does, and checks what it gets."""
    fail_if_no_peer_cert: StrictBool = False
    """Whether a client without a certificate is sent away; with verify = "peer"."""
    cert_login_from: Literal["common_name"] | None = None
    """What of a client's certificate is its user over AMQP (SASL EXTERNAL).  Unset: not offered."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest TLS that is spoken."""

    @model_validator(mode="after")
    def _together(self) -> Self:
        refuse_half(self.certificate, self.key)
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

    time: Duration = Field(default=10_000_000, ge=100_000, le=3600_000_000)
    """From the connection to the login, TLS's handshake included; over HTTP for each request's headers."""
    bytes: Size = Field(default=64 * 1024, ge=4096, le=MIB)
    """What a client may send before its login: a handshake, or the headers of a request."""
    flight_bytes: Size = Field(default=4 * MIB, ge=64 * 1024, le=64 * MIB)
    """What may come on a Flight connection before its first call is let in; 32 times that on all."""
    sockets: StrictInt = Field(default=512, ge=8, le=65_536)
    """Connections of a door that have not logged in; further ones wait."""
    per_address: StrictInt = Field(default=64, ge=4, le=65_536)
    """The same from one address, before those who are silent have to go."""
    wrong_logins: StrictInt = Field(default=10, ge=1, le=1_000_000)
    """Wrong passwords for a user from one address, ten times as many for all users; then one a second."""


LEAST_SECRET = 16

EVERYWHERE = frozenset({"0.0.0.0", "::"})
"""Hosts to listen on, at which nobody can be called."""


def _calls(address: str) -> bool:
    """Whether another machine may call this host:port."""
    host, port = parted_address(address)
    return bool(ascii_host(host)) and host not in EVERYWHERE and port.isdecimal() and 0 < int(port) <= PORT_MOST


class HoldSection(Section):
    """`hold` of `[cluster]`: whichever is met first; a follower that needs more copies everything anew."""

    bytes: Size = Field(default=20_480 * MIB, ge=0)
    """How much log is kept for a follower that is behind."""
    age: Duration = Field(default=3_600_000_000, ge=0)
    """How long a follower that is away is waited for before its part goes."""


class ClusterSection(Section):
    """`[cluster]`"""

    name: Name | None = None
    """What other sites know the whole cluster as, where a [[link]] leads from it or to it: the same for all members,
    whoever leads."""
    registry: Name
    """Where it is kept who leads: `etcd://host:port,host:port/prefix`, or `file:///folder` for members of one machine
    or one NFSv4 folder; `manual`: in each member's own data folder, and a person says who leads."""
    members: tuple[Name, ...] = Field(default=(), max_length=16)
    """With `registry = "manual"`: host:port at which the other members are reached, each one's `advertise`.  One that
    has an empty folder asks there who leads."""
    listen: Listen = Address("127.0.0.1", 8817)
    """Where other members copy this server's log while it leads."""
    advertise: Name | None = None
    """host:port at which the others reach that.  Default: `listen` as it is."""
    secret: SecretStr
    """The same for all members: who has it may copy the log.  At least 16 characters."""
    min_in_sync: StrictInt = Field(default=2, ge=1, le=16)
    """A confirm is on at least so many disks; 1: serve alone rather than wait."""
    confirm: Literal["in-sync", "local"] = "in-sync"
    """What a confirm waits for: every disk that could take over, or the leader's own alone, which loses what was not
    copied yet when another takes over."""
    certificate: File | None = None
    """TLS between members: file of this member's certificate, PEM, for its address."""
    key: File | None = None
    """File of its private key, PEM, without a password."""
    ca: File | None = None
    """File of the CA that the certificates of all members are of."""
    lease: Duration = Field(default=5_000_000, ge=500_000, le=300_000_000)
    """Silence of the leader after which another leads."""
    ack_timeout: Duration = Field(default=3_000_000, ge=200_000, le=300_000_000)
    """A follower that has not said for so long that its disk has all is not waited for any more."""
    stall: Duration = Field(default=10_000_000, ge=500_000, le=600_000_000)
    """A leader whose commits or whose loop stand so long, or whose disk is full for so long, gives up."""
    hold: HoldSection = Field(default_factory=HoldSection)
    """What retention leaves of the log for followers that have not copied it yet."""
    follower_reads: StrictBool = False
    """While this server follows, its Flight door is open for reads of the log, up to what is committed: Spark asks for
    them with `readFrom = followers`.  Takes some 80 MiB more."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.listen is None:
            raise ValueError("listen = off: members could not copy the log of this one while it leads")
        if len(self.secret.get_secret_value()) < LEAST_SECRET:
            raise ValueError(f"secret has fewer than {LEAST_SECRET} characters")
        self._check_members()
        if self.advertise is not None and not _calls(self.advertise):
            raise ValueError(f"advertise is {self.advertise!r}, not host:port at which the others reach this server")
        if self.advertise is None and not _calls(str(self.listen)):
            raise ValueError(
                f"listen = {self.listen} without advertise: it says host:port at which the others reach that"
            )
        given = [name for name in ("certificate", "key", "ca") if getattr(self, name) is not None]
        if 0 < len(given) < 3:
            there = " and ".join(given)
            raise ValueError(f"{there} without the rest: TLS between members takes certificate, key and ca")
        return self

    def _check_members(self) -> None:
        if self.members and self.registry != "manual":
            raise ValueError("members goes with registry = 'manual': another register tells who there is")
        for one in self.members:
            if not _calls(one):
                raise ValueError(f"members has {one!r}, which is not host:port")
            if one == (self.advertise or str(self.listen)):
                raise ValueError(f"members has this server's own address, {one!r}: it names the others")

    @property
    def tls(self) -> tuple[str, str, str] | None:
        """Files of certificate, key and CA; None: without TLS."""
        if self.certificate is None or self.key is None or self.ca is None:
            return None
        return self.certificate, self.key, self.ca
