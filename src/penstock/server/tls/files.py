"""The files of `[tls]`: read, checked against each other, and made into what the doors take.

Every mistake is a SettingsError of one sentence that names the key, the file and the reason.  Reads files: not for the
loop once the server runs.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import SettingsError
from penstock.records.dataclass import dataclass
from penstock.server.tls.certificates import Certificate, read

if TYPE_CHECKING:
    from penstock.config.doors import TlsSection

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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[section.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        certificate = read(chain)
    except ValueError:
        _wrong("certificate", section.certificate, "holds no certificate in PEM")
    try:
        context.load_cert_chain(section.certificate, section.key, password=_no_password)
    except _EncryptedKey:
        _wrong("key", section.key, "is encrypted: write it without a password, readable by the server alone")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            _wrong("key", section.key, f"is not the key of the certificate in {section.certificate}")
        _wrong("certificate", section.certificate, f"cannot be used with the key in {section.key}: {_reason(error)}")
    if ca is not None and section.ca is not None:
        try:
            context.load_verify_locations(section.ca)
        except ssl.SSLError as error:
            _wrong("ca", section.ca, f"holds no CA certificates in PEM ({_reason(error)})")
    if section.verify == "peer":
        context.verify_mode = ssl.CERT_REQUIRED if section.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    insists = section.verify == "peer" and section.fail_if_no_peer_cert
    return Identity(certificate, context, chain, key, ca, insists, stamp)


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
