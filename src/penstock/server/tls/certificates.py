"""Certificates of X.509: what is read of them, and what a client of a TLS connection has shown."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

from cryptography import x509
from cryptography.x509.oid import NameOID

from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    import asyncio


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


def read(pem: bytes) -> Certificate:
    """The first certificate of a PEM text.  Raises ValueError where there is none."""
    return _told(x509.load_pem_x509_certificate(pem))


def read_der(der: bytes) -> Certificate:
    """A certificate as a client has shown it.  Raises ValueError."""
    return _told(x509.load_der_x509_certificate(der))


def _told(found: x509.Certificate) -> Certificate:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
    except x509.ExtensionNotFound:
        hosts = ()
    return Certificate(
        found.subject.rfc4514_string(),
        found.issuer.rfc4514_string(),
        hosts,
        found.not_valid_before_utc,
        found.not_valid_after_utc,
    )


def common_name(der: bytes) -> str | None:
    """The common name of a client's certificate; None where it has none, or several."""
    found = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
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
        from penstock.server.tls.certificates import common_name

        return common_name(self.der)

    def plain(self) -> dict[str, object]:
        """For lists of connections, under RabbitMQ's names."""
        found: dict[str, object] = {"ssl_protocol": self.version.lower(), "ssl_cipher": self.cipher}
        if self.der is not None:
            from penstock.server.tls.certificates import read_der

            shown = read_der(self.der)
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
