"""Files of certificates and keys, as every side of TLS reads them: servers, links between sites, clients.

Each is read once, and what was read is what OpenSSL is given, so that what was judged is what is shown, whatever is
there by then.  Refuses to know who names a file, under which name, and what is said of one that cannot be used.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Generator
from contextlib import contextmanager

LARGEST = 1 << 20
"""Bytes of a file that may hold certificates."""

_NOT_ASCII = re.compile(rb"[\x80-\xff]")


class UnusableFile(Exception):
    """Why a file is none of certificates: a sentence that its name begins."""


class EncryptedKey(Exception):
    """OpenSSL asked for a password; without this it would ask at the terminal."""


def read_pem(file: str) -> bytes:
    """What a file holds, at most `LARGEST` bytes.  Raises UnusableFile, also for what is no regular file.

    ASCII, as blocks of PEM are: what stands between them may be in any encoding, and is nobody's.
    """
    try:
        with open(file, "rb", opener=_at_once) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise UnusableFile("is no regular file")
            data = opened.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # a name with a zero byte is none
        raise UnusableFile(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > LARGEST:
        raise UnusableFile(f"has more than {LARGEST} bytes, and so is no file of certificates")
    return _NOT_ASCII.sub(b"?", data)  # which no block has: one with such a byte cannot be read with it either


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
