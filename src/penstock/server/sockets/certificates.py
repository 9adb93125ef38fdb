"""Certificates: what one says, the files that a side of TLS shows and checks by, wherever the settings name them, and
an authority for development and tests.

Every mistake in a file is a SettingsError of one sentence that names the key, the file and the reason.  Reads files:
not for the loop once the server runs.

`Ends` tells of those that a server shows elsewhere than at its doors: to members of its cluster and to other sites.
Each is read anew for every call, so nothing is to be taken up here; that one ends is to be known before it has.

Keys of the authority are elliptic (P-256), with which a handshake costs a third of one with RSA of 2048 bits.  They are
written readable by their owner alone, and nothing that exists is overwritten.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar
from warnings import catch_warnings

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.errors import InvalidArgument, SettingsError, shown, told_as
from penstock.records.dataclass import dataclass
from penstock.server.base.faults import reports
from penstock.wire.credentials import EncryptedKey, UnusableFile, believe, read_pem, show

if TYPE_CHECKING:
    import asyncio

    from penstock.config.settings import Settings


logger = logging.getLogger("penstock.server.tls")

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

    def complaint(self, now: datetime, then: str = "clients refuse it") -> str | None:
        """A sentence where it is not good now, or not for much longer.  then: what comes of that."""
        if now < self.begins:
            return f"is not good before {_day(self.begins)}: {then}"
        if now >= self.ends:
            return f"ended on {_day(self.ends)}: {then}"
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
        with told_as(ValueError, instead=x509.InvalidVersion):
            found = load(data)
            begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
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


Stamp = tuple[tuple[int, int, int], ...]
"""Of each file: its inode, size and time of change in ns; another one when any was written or replaced."""


class Pems(NamedTuple):
    """What the files hold."""

    first: Certificate
    chain: bytes
    key: bytes
    ca: bytes | None


class Files(NamedTuple):
    """What one side of TLS shows, and what it checks the other by: PEM."""

    section: str  # of the settings that names them, as errors begin with
    certificate: str
    key: str
    ca: str | None

    def read(self) -> Pems:
        """What they hold now.  Raises SettingsError for what cannot be used."""
        chain, key = read_file(self.section, "certificate", self.certificate), read_file(self.section, "key", self.key)
        ca = None if self.ca is None else read_file(self.section, "ca", self.ca)
        if b"PRIVATE KEY-----" not in key:
            self._wrong("key", self.key, "holds no private key in PEM")
        try:
            return Pems(read(chain), chain, key, ca)
        except ValueError:
            self._wrong("certificate", self.certificate, "holds no certificate in PEM")

    def fill(self, context: ssl.SSLContext) -> Pems:
        """Have handshakes made with them.  Raises SettingsError."""
        pems = self.read()
        try:
            show(context, pems.chain, pems.key)
        except EncryptedKey:
            self._wrong("key", self.key, "is encrypted: write it without a password, readable by the server alone")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                self._wrong("key", self.key, f"is not the key of the certificate in {self.certificate}")
            self._wrong("certificate", self.certificate, f"cannot be used with the key in {self.key}: {_reason(error)}")
        if self.ca is not None and pems.ca is not None:
            trust(context, self.section, self.ca, pems.ca)
        return pems

    def look(self) -> Certificate:
        """The certificate, where all of it can be used.  Raises SettingsError."""
        return self.fill(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)).first

    def stamp(self) -> Stamp:
        """What tells that a file was changed; a file that is not there has zeros."""
        found = list[tuple[int, int, int]]()
        for name in (self.certificate, self.key, self.ca):
            try:
                told = os.stat(name) if name is not None else None
            except OSError:
                told = None
            found.append((0, 0, 0) if told is None else (told.st_ino, told.st_size, told.st_mtime_ns))
        return tuple(found)

    def _wrong(self, key: str, name: str, why: str) -> NoReturn:
        raise SettingsError(f"{self.section}.{key}: {name} {why}")


def read_file(section: str, key: str, name: str) -> bytes:
    """The PEM of a file that the settings name there.  Raises SettingsError, as of `read_pem`."""
    with told_as(SettingsError, f"{section}.{key}: {name} ", instead=UnusableFile):
        return read_pem(name)


def trust(context: ssl.SSLContext, section: str, ca: str, pem: bytes) -> None:
    """Have others judged by the certificates of the file `ca`, which holds this.  SettingsError for one of none."""
    try:
        believe(context, pem)
    except ssl.SSLError as error:
        raise SettingsError(f"{section}.ca: {ca} holds no CA certificates in PEM ({_reason(error)})") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


LINK, DOORS = "link", "doors"
"""The section of another site, and whose the certificate of `[tls]` is."""


def of_settings(settings: Settings) -> Iterator[tuple[str, Files]]:
    """Whose each certificate is that the settings name, and its files."""
    tls, cluster = settings.tls, settings.cluster
    if tls.certificate is not None and tls.key is not None:
        yield DOORS, Files("tls", tls.certificate, tls.key, tls.ca)
    if cluster is not None and cluster.tls is not None:
        yield "cluster", Files("cluster", *cluster.tls)
    for link in settings.link:
        if link.certificate is not None and link.key is not None:
            yield f"link {link.name}", Files(LINK, link.certificate, link.key, link.ca)


LOOK_S = 600.0
NAGGING_S = 86_400.0
"""A certificate that ends soon is told of once a day."""


class Watch:
    """Of files, by a timer of the loop."""

    _timer: asyncio.TimerHandle | None = None
    _loop: asyncio.AbstractEventLoop
    _pool: Executor

    def stop(self) -> None:
        """Look at the files no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Ends(Watch):
    """Of one server: when the certificates end that it shows to other servers.  For the loop's thread."""

    def __init__(self, settings: Settings) -> None:
        self._files = [(whose, files) for whose, files in of_settings(settings) if whose != DOORS]
        self._found = dict[str, Certificate]()
        self._nagged: float | None = None

    def seconds_left(self) -> dict[str, float]:
        """Of each that can be read, by whose it is: `cluster`, `link NAME`; negative when it has ended."""
        now = datetime.now(UTC)
        return {whose: one.left(now).total_seconds() for whose, one in self._found.items()}

    def start(self, loop: asyncio.AbstractEventLoop, pool: Executor) -> None:
        """Look now and from now on, in threads of this pool; where there are none this does nothing."""
        self._loop, self._pool = loop, pool
        if self._files:
            self._beat()

    def _beat(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._beat)
        self._pool.submit(self._look).add_done_callback(told_of)

    def _look(self) -> None:
        found, wrong = dict[str, Certificate](), list[str]()
        for whose, files in self._files:
            try:
                found[whose] = files.look()
            except SettingsError as error:
                wrong.append(str(error))
        self._loop.call_soon_threadsafe(self._know, found, wrong)

    def _know(self, found: dict[str, Certificate], wrong: list[str]) -> None:
        self._found, now = found, self._loop.time()
        if self._timer is None or (self._nagged is not None and now - self._nagged < NAGGING_S):
            return
        self._nagged = now
        for whose, files in self._files:
            if whose in found and (why := found[whose].complaint(datetime.now(UTC), "the others refuse it")):
                logger.warning("%s: the certificate %s %s", whose, files.certificate, why)
        for told in wrong:
            logger.warning("%s", told)


def told_of(look: Future[None]) -> None:
    """A mistake of a look is reported; the next one comes all the same."""
    if not look.cancelled() and (error := look.exception()) is not None:
        reports.tell(error, "upkeep")


EARLIER = timedelta(minutes=5)
"""A certificate begins so long ago: clocks differ."""


class Authority:
    """A CA that lives as long as this object, and its certificates longer."""

    def __init__(self, days: float) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("Penstock development CA")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        self._key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = _builder(self._name, self._name, self._key, timedelta(days=days))
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(usage, critical=True).add_extension(self._key_id, critical=False)
        self.pem = _pem(made.sign(self._key, hashes.SHA256()))

    def server(self, hosts: Sequence[str], days: float = 365) -> tuple[bytes, bytes]:
        """Certificate and key, PEM, of a server with these names and addresses.  Negative days: it has ended."""
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        return self._signed(hosts[0], days, names, ExtendedKeyUsageOID.SERVER_AUTH)

    def member(self, hosts: Sequence[str], days: float = 365) -> tuple[bytes, bytes]:
        """Certificate and key, PEM, of a member of a cluster of servers, which calls others and is called."""
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        return self._signed(hosts[0], days, names, ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)

    def client(self, name: str, days: float = 365) -> tuple[bytes, bytes]:
        """Certificate and key, PEM, of a client; the name is its common name."""
        return self._signed(name, days, None, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _signed(
        self, name: str, days: float, names: x509.SubjectAlternativeName | None, *uses: x509.ObjectIdentifier
    ) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(_named(name), self._name, key, timedelta(days=days))
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_id)
        made = made.add_extension(signer, critical=False)
        if names is not None:
            made = made.add_extension(names, critical=False)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return _pem(made.sign(self._key, hashes.SHA256())), text


def write_new(path: Path, data: bytes, *, secret: bool = False) -> None:
    """A file that was not there before.  Raises InvalidArgument."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from error
    with open(descriptor, "wb") as file:
        file.write(data)


def _named(name: str) -> x509.Name:
    if not 0 < len(name) <= 64:
        raise InvalidArgument(f"the name {name[:80]!r} has {len(name)} characters; a certificate's has 1 to 64")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


_PART = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS_NAME = re.compile(
    rf"(?=.{{1,253}}\Z)(?:\*\.(?=[^.]+\.))?(?:{_PART}\.)*(?![0-9]+\Z){_PART}", re.IGNORECASE | re.ASCII
)
"""Parts of 1 to 63 characters, the last not of digits alone; before two more a star may stand, which clients take for
one part.  Source: RFC 1123, 2.1; RFC 9525, 6.3."""


def _host(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        if "%" not in host:  # an interface is that of one machine, and no part of an address that others know
            return x509.IPAddress(ipaddress.ip_address(host))
    if _DNS_NAME.fullmatch(host) is None:
        wanted = "a host name in ASCII, as in a.example.org or *.example.org, nor an address, as in 192.0.2.1 or ::1"
        raise InvalidArgument(f"host {shown(host)} of a certificate is neither {wanted}")
    return x509.DNSName(host)


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begins = min(now - EARLIER, now + life - EARLIER)
    return x509.CertificateBuilder(
        issuer, name, key.public_key(), x509.random_serial_number(), begins, now + life
    )  # fmt: skip


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
