"""TLS at the doors: the certificate, who looks after it, what a client has shown.

Every mistake is a SettingsError of one sentence that names the key, the file and the reason.  Reads files: not for the
loop once the server runs.

`Keeper` holds the identity of a server. Every `LOOK_S` a thread looks whether a file is another than the one that was
loaded. A new one that can be used holds for the next handshake; one that cannot is told of once, at the second look
that finds it so (certificate and key are two files, and may be written one after the other), and the old one goes on.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast
from warnings import catch_warnings

from cryptography import x509
from cryptography.x509.oid import NameOID

from penstock.errors import SettingsError
from penstock.records.dataclass import dataclass
from penstock.server.base.faults import reports

if TYPE_CHECKING:
    import asyncio

    from penstock.config.sections import TlsSection


Part = TypeVar("Part")

NEAR = timedelta(days=30)
"""A certificate that ends sooner is told of."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The first certificate of a file."""

    subject: str  # as RFC 4514 writes names
    issuer: str
    names: tuple[str, ...]  # host names and addresses it is for
    begins: datetime
    ends: datetime

    def left(self, now: datetime) -> timedelta:
        """How long it is still good; negative when it has ended."""
        return self.ends - now

    def days_left(self, now: datetime) -> float:
        """The same in days, to a tenth."""
        return round(self.left(now) / timedelta(days=1), 1)

    def complaint(self, now: datetime) -> str | None:
        """A sentence where it is not good now, or not for much longer."""
        if now < self.begins:
            return f"is not good before {_day(self.begins)}: clients refuse it"
        if now >= self.ends:
            return f"ended on {_day(self.ends)}: clients refuse it"
        if self.left(now) < NEAR:
            return f"ends on {_day(self.ends)}, in {self.days_left(now):g} days"
        return None


UNREADABLE = (ValueError, TypeError, x509.InvalidVersion, x509.UnsupportedGeneralNameType, x509.DuplicateExtension)
"""What the parts of a certificate raise that OpenSSL has taken and that say what no standard knows."""

UNKNOWN = "(cannot be read)"
"""In the place of a name that says such a thing."""


def read(pem: bytes) -> Certificate:
    """The first certificate of a PEM text.  Raises ValueError where there is none."""
    return _told(x509.load_pem_x509_certificate, pem)


def read_der(der: bytes) -> Certificate:
    """A certificate as a client has shown it.  Raises ValueError."""
    return _told(x509.load_der_x509_certificate, der)


def _told(load: Callable[[bytes], x509.Certificate], data: bytes) -> Certificate:
    """What cannot be read of it is missing alone: a client's CA signs what it likes."""
    with catch_warnings(action="ignore", category=UserWarning):  # of names that are longer than a standard has them
        try:
            found = load(data)
            begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
        except x509.InvalidVersion as error:
            raise ValueError(str(error)) from error
        return Certificate(
            _read_of(lambda: found.subject.rfc4514_string(), UNKNOWN),
            _read_of(lambda: found.issuer.rfc4514_string(), UNKNOWN),
            _read_of(lambda: _hosts(found), ()),
            begins,
            ends,
        )


def _hosts(found: x509.Certificate) -> tuple[str, ...]:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))


def _read_of(part: Callable[[], Part], otherwise: Part) -> Part:
    try:
        return part()
    except UNREADABLE:
        return otherwise


def common_name(der: bytes) -> str | None:
    """The common name of a client's certificate; None where it has none, several, or one that cannot be read."""
    with catch_warnings(action="ignore", category=UserWarning):
        try:
            found = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except UNREADABLE:
            return None
    return str(found[0].value) if len(found) == 1 else None


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True, slots=True)
class Peer:
    """The client's side of a handshake that is over."""

    version: str  # TLSv1.3
    cipher: str
    der: bytes | None  # its certificate, checked; None where it showed none

    def user(self) -> str | None:
        """The user that its certificate names: the common name."""
        if self.der is None:
            return None
        return common_name(self.der)

    def plain(self) -> dict[str, object]:
        """For lists of connections, under RabbitMQ's names."""
        found: dict[str, object] = {"ssl_protocol": self.version.lower(), "ssl_cipher": self.cipher}
        if self.der is not None:
            try:
                shown = read_der(self.der)
            except ValueError:
                return {**found, "peer_cert_subject": UNKNOWN}
            found["peer_cert_subject"], found["peer_cert_issuer"] = shown.subject, shown.issuer
            found["peer_cert_validity"] = f"{shown.begins:%Y-%m-%dT%H:%M:%SZ} - {shown.ends:%Y-%m-%dT%H:%M:%SZ}"
        return found


def peer_of(transport: asyncio.BaseTransport) -> Peer | None:
    """Of a transport whose handshake is over; None without TLS."""
    tls = cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
    if tls is None:
        return None
    cipher = tls.cipher()
    return Peer(tls.version() or "", cipher[0] if cipher else "", tls.getpeercert(binary_form=True))


LARGEST = 1 << 20
"""Bytes of a file that may hold certificates."""

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

Stamp = tuple[tuple[int, int, int], ...]
"""Of each file: its inode, size and time of change in ns; another one when any was written or replaced."""


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """What a server shows, and what it checks clients by.  `context` is for AMQP and HTTP, the texts are for gRPC."""

    certificate: Certificate
    context: ssl.SSLContext
    chain_pem: bytes
    key_pem: bytes
    ca_pem: bytes | None
    insists: bool  # on a certificate of the client
    stamp: Stamp


def load(section: TlsSection) -> Identity:
    """The identity that the files hold now.  Raises SettingsError."""
    if section.certificate is None or section.key is None:
        raise SettingsError("tls.certificate: is missing")
    stamp = stamp_of(section)
    chain, key = _read("certificate", section.certificate), _read("key", section.key)
    ca = None if section.ca is None else _read("ca", section.ca)
    if b"PRIVATE KEY-----" not in key:
        _wrong("key", section.key, "holds no private key in PEM")
    try:
        certificate = read(chain)
    except ValueError:
        _wrong("certificate", section.certificate, "holds no certificate in PEM")
    context = _context(section, section.certificate, section.key)
    insists = section.verify == "peer" and section.fail_if_no_peer_cert
    return Identity(certificate, context, chain, key, ca, insists, stamp)


def _context(section: TlsSection, certificate: str, key: str) -> ssl.SSLContext:
    """What handshakes are made with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[section.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _EncryptedKey:
        _wrong("key", key, "is encrypted: write it without a password, readable by the server alone")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            _wrong("key", key, f"is not the key of the certificate in {certificate}")
        _wrong("certificate", certificate, f"cannot be used with the key in {key}: {_reason(error)}")
    if section.ca is not None:
        try:
            context.load_verify_locations(section.ca)
        except ssl.SSLError as error:
            _wrong("ca", section.ca, f"holds no CA certificates in PEM ({_reason(error)})")
    if section.verify == "peer":
        context.verify_mode = ssl.CERT_REQUIRED if section.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    return context


def stamp_of(section: TlsSection) -> Stamp:
    """What tells that a file was changed; a file that is not there has zeros."""
    found = list[tuple[int, int, int]]()
    for name in (section.certificate, section.key, section.ca):
        try:
            told = os.stat(name) if name is not None else None
        except OSError:
            told = None
        found.append((0, 0, 0) if told is None else (told.st_ino, told.st_size, told.st_mtime_ns))
    return tuple(found)


class _EncryptedKey(Exception):
    """OpenSSL asked for a password; without this it would ask at the terminal."""


def _no_password() -> str:
    raise _EncryptedKey


def _read(key: str, name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        _wrong(key, name, f"cannot be read: {error.strerror or error}")
    if len(data) > LARGEST:
        _wrong(key, name, f"has more than {LARGEST} bytes, and so is no file of certificates")
    return data


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def _wrong(key: str, name: str, why: str) -> NoReturn:
    raise SettingsError(f"tls.{key}: {name} {why}")


logger = logging.getLogger("penstock.server.tls")

LOOK_S = 10.0
NAGGING_S = 86_400.0
"""A certificate that ends soon is told of once a day."""


class Keeper:
    """Of one server.  `identity` is for any thread."""

    def __init__(self, section: TlsSection) -> None:
        """Raises SettingsError for files that cannot be used."""
        self.identity: Identity = load(section)
        self.renewed: list[Callable[[Identity], object]] = []  # called on the loop with each that is taken up
        self.renewals = 0
        self._section = section
        self._bad: Stamp | None = None  # files that could not be used
        self._told: Stamp | None = None  # the same, when it was said
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self._pool: Executor
        self._nagged = 0.0
        self._looking = False
        self._owed: list[Callable[[Identity], object]] = []  # who is still to be told of the one in use
        self._http2: Identity | None = None

    def for_http2(self) -> Identity:
        """The same for clients of HTTP/2, who want that word in the handshake.  SettingsError, the first time alone."""
        before = self._http2
        if before is None or before.stamp != self.identity.stamp:
            try:
                fresh = load(self._section)
            except SettingsError:
                if before is None:
                    raise
                return before
            fresh.context.set_alpn_protocols(["h2"])
            self._http2 = fresh
            return fresh
        return before

    def current(self) -> Identity:
        """What the next client is shown."""
        return self.identity

    def complaint(self) -> str | None:
        """A sentence where the certificate is not good, or not for much longer."""
        why = self.identity.certificate.complaint(datetime.now(UTC))
        return None if why is None else f"the certificate {self._section.certificate} {why}"

    def facts(self) -> dict[str, object]:
        """For people: the certificate in use."""
        one = self.identity.certificate
        return {
            "certificate": self._section.certificate,
            "subject": one.subject,
            "issuer": one.issuer,
            "names": list(one.names),
            "ends": one.ends.isoformat(),
            "days_left": one.days_left(datetime.now(UTC)),
            "renewals": self.renewals,
        }

    def seconds_left(self) -> float:
        """Of the certificate in use."""
        return self.identity.certificate.left(datetime.now(UTC)).total_seconds()

    # -- the loop's thread

    def start(self, loop: asyncio.AbstractEventLoop, pool: Executor) -> None:
        """Look from now on, in threads of this pool; a second time does no harm."""
        self.stop()
        self._loop, self._pool = loop, pool
        self._nagged = loop.time()
        self._timer = loop.call_later(LOOK_S, self._beat)

    def stop(self) -> None:
        """Look at the files no more; the thread ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._beat)
        try:
            self._hand_over()
            self.look()
            if self._loop.time() - self._nagged > NAGGING_S:
                self._nagged = self._loop.time()
                if (why := self.complaint()) is not None:
                    logger.warning("tls: %s", why)
        except Exception as error:  # noqa: BLE001 - the border: the next beat comes all the same
            reports.tell(error, "upkeep")

    def look(self) -> None:
        """Look now; what is found is taken up soon."""
        if self._timer is None or self._looking:
            return
        self._looking = True
        self._pool.submit(self._look).add_done_callback(_raised)

    def _took_up(self, fresh: Identity | None) -> None:
        self._looking = False
        if fresh is None or self._timer is None:
            return
        self.identity = fresh
        self.renewals += 1
        self._owed = list(self.renewed)
        self._hand_over()
        try:
            self._tell_of(fresh)
        except Exception as error:  # noqa: BLE001 - the border: it is taken up all the same
            reports.tell(error, "upkeep")

    def _tell_of(self, fresh: Identity) -> None:
        logger.warning("tls: %s is taken up: %s", self._section.certificate, _in_words(fresh))
        if (why := self.complaint()) is not None:
            logger.warning("tls: %s", why)

    def _hand_over(self) -> None:
        """Tell each door what it shows from now on; one that fails is told again at the next beat."""
        owed, self._owed = self._owed, []
        for take in owed:
            try:
                take(self.identity)
            except Exception as error:  # noqa: BLE001 - the border of each
                reports.tell(error, "upkeep")
                self._owed.append(take)

    # -- a thread of the pool

    def _look(self) -> None:
        fresh: Identity | None = None
        try:
            fresh = self._changed()
        finally:
            self._loop.call_soon_threadsafe(self._took_up, fresh)

    def _changed(self) -> Identity | None:
        stamp = stamp_of(self._section)
        if stamp == self.identity.stamp:
            self._bad = None
            return None
        if stamp == self._told:
            return None
        try:
            return load(self._section)
        except SettingsError as error:
            if stamp == self._bad:
                self._told = stamp
                logger.warning("%s; the certificate that was loaded before goes on", error)
            self._bad = stamp
            return None


def _raised(look: Future[None]) -> None:
    if not look.cancelled() and (error := look.exception()) is not None:
        reports.tell(error, "upkeep")  # the next look comes all the same


def _in_words(identity: Identity) -> str:
    one = identity.certificate
    return f"{one.subject}, until {one.ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
