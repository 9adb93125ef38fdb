"""Files of certificates, keys and passwords, as all read them: servers, links between sites, pipelines, clients.

Each is read once, and what was read is what OpenSSL is given, so that what was judged is what is shown, whatever is
there by then.  Refuses to know who names a file, under which name, and what is said of one that cannot be used.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from codecs import BOM_UTF8
from collections.abc import Generator
from contextlib import contextmanager

LARGEST = 1 << 20
"""Bytes of a file that may hold any of them."""

_NOT_ASCII = re.compile(rb"[\x80-\xff]")


class UnusableFile(Exception):
    """Why a file holds nothing of the kind: a sentence that its name begins."""


class EncryptedKey(Exception):
    """OpenSSL asked for a password; without this it would ask at the terminal."""


def read_pem(file: str) -> bytes:
    """What a file of certificates holds.  Raises UnusableFile.

    ASCII, as blocks of PEM are: what stands between them may be in any encoding, and is nobody's.
    """
    return _NOT_ASCII.sub(b"?", _read(file, "certificates"))  # no block has such a byte, nor can be read with one


def read_password(file: str) -> str:
    """The first line of a file of UTF-8 text.  Raises UnusableFile, also where that is empty."""
    line = _read(file, "passwords").removeprefix(BOM_UTF8).partition(b"\n")[0].removesuffix(b"\r")
    try:
        password = line.decode()
    except UnicodeDecodeError as error:
        raise UnusableFile(f"is not UTF-8 text (byte {error.start} of its first line)") from error
    if not password:
        raise UnusableFile("has no password in its first line")
    return password


def _read(file: str, kind: str) -> bytes:
    """At most `LARGEST` bytes, of a regular file: others are read without an end, or wait for whoever writes them."""
    try:
        with open(file, "rb", opener=_at_once) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise UnusableFile("is no regular file")
            data = opened.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # a name with a zero byte is none
        raise UnusableFile(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > LARGEST:
        raise UnusableFile(f"has more than {LARGEST} bytes, and so is no file of {kind}")
    return data


def show(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Have handshakes made with a certificate and its key.  Raises EncryptedKey; SSLError for what is no pair."""
    with _in_memory(chain) as chain_file, _in_memory(key) as key_file:
        context.load_cert_chain(chain_file, key_file, password=_no_password)


def believe(context: ssl.SSLContext, authorities: bytes) -> None:
    """Have others judged by these certificates.  Raises SSLError where there is none, or one that cannot be used."""
    with _in_memory(authorities) as file:
        context.load_verify_locations(file)


def _no_password() -> str:
    raise EncryptedKey


def _at_once(name: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to is not waited for."""
    return os.open(name, flags | os.O_NONBLOCK)


@contextmanager
def _in_memory(data: bytes) -> Generator[str]:
    """The name of a file with these bytes: OpenSSL reads names alone.

    Only Linux has files in memory; elsewhere, where clients run too, it is one that its owner alone may read.
    """
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("pem"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        from tempfile import NamedTemporaryFile  # half as much to load as all of the client

        with NamedTemporaryFile() as kept:
            kept.write(data)
            kept.flush()
            yield kept.name
