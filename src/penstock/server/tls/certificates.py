"""What a certificate says of itself: whose it is, until when, for which names.

Knows no files and no sockets.  `cryptography` is loaded here and in `making` alone, and only where TLS is used.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.x509.oid import NameOID

from penstock.records.dataclass import dataclass

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
