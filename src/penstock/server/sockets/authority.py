"""Certificates for development and tests: an authority, and what it signs.

Elliptic keys (P-256): a handshake costs a third of one with RSA of 2048 bits. Keys are written readable by their owner
alone, and nothing that exists is overwritten.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.errors import InvalidArgument

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


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise InvalidArgument(f"{host!r} is neither a host name in ASCII nor an address") from error


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
