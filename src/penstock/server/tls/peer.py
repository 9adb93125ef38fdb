"""What a client of a TLS connection has shown, and how the two speak."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, cast

from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    import asyncio


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
