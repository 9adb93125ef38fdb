"""Whom a client with TLS trusts, and what it shows of itself: files, read when it connects."""

from __future__ import annotations

import re
import ssl
import warnings
from pathlib import Path
from typing import Any

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass


class UnverifiedServer(UserWarning):
    """A connection whose other end may be anybody."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Names of files in PEM; None for the CAs that the system trusts, and for no certificate of one's own."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True  # the server's certificate and that it is for the host of the address

    def options(self, server: str) -> dict[str, Any]:
        """For pyarrow's client.  server: for the warning where it is not verified.  Raises InvalidArgument."""
        options: dict[str, Any] = {}
        if self.cert is not None and self.key is not None:
            options |= {"cert_chain": _read("cert", self.cert), "private_key": _read("key", self.key)}
        if not self.verify:
            text = f"the certificate of {server} is not verified: whoever is between can read and change everything"
            warnings.warn(text, UnverifiedServer, stacklevel=5)
            return options | {"disable_server_verification": True}
        system: Any = ssl.get_default_verify_paths()  # whose file may be None, other than its stub says
        roots: str | None = self.ca or system.cafile
        return options if roots is None else options | {"tls_root_certs": _read("ca", roots)}


def reason_of(text: str, host: str, *, tls: bool) -> str | None:
    """Why no connection came about, for a person, out of what gRPC says; None where that is not about TLS.

    tls: whether the client speaks it.
    """
    if not tls:
        closed = "the connection was closed at once: if TLS is spoken there, the address is one of penstocks://"
        return closed if "Socket closed" in text else None
    if "is not in peer certificate" in text:
        return f"its certificate is not for {host!r}"
    if (found := re.search(r"certificate verify failed: ([^:;]*)", text)) is not None:
        return f"its certificate is not accepted ({found[1].strip()}): is its CA the one in ca?"
    if "wrong version number" in text.lower():
        return "it does not speak TLS there: is the address one of penstock://?"
    return None


def _read(name: str, file: str) -> bytes:
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{name}: {file} cannot be read: {error.strerror or error}") from error
    if b"-----BEGIN" not in data:
        raise InvalidArgument(f"{name}: {file} holds nothing in PEM")
    return data
