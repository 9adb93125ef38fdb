"""TLS at the doors: the certificate, who looks after it, what a client has shown.

`Keeper` holds the identity of a server. Every `LOOK_S` a thread looks whether a file is another than the one that was
loaded. A new one that can be used holds for the next handshake; one that cannot is told of once, at the second look
that finds it so (certificate and key are two files, and may be written one after the other), and the old one goes on.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from penstock.errors import SettingsError
from penstock.records.dataclass import dataclass
from penstock.server.base.faults import reports
from penstock.server.sockets.certificates import (
    NAGGING_S,
    UNKNOWN,
    Certificate,
    Files,
    Stamp,
    Watch,
    common_name,
    read_der,
    told_of,
)  # fmt: skip

if TYPE_CHECKING:
    import asyncio

    from penstock.config.sections import TlsSection


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


VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """What a server shows, and what it checks clients by.  `context` is for AMQP and HTTP, the texts are for gRPC."""

    certificate: Certificate
    context: ssl.SSLContext
    chain_pem: bytes
    key_pem: bytes
    ca_pem: bytes | None
    insists: bool  # on a certificate of the client
    files: Files
    stamp: Stamp


def load(section: TlsSection) -> Identity:
    """The identity that the files hold now.  Raises SettingsError."""
    if section.certificate is None or section.key is None:
        raise SettingsError("tls.certificate: is missing")
    files = Files("tls", section.certificate, section.key, section.ca)
    stamp = files.stamp()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[section.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    pems = files.fill(context)
    if section.verify == "peer":
        context.verify_mode = ssl.CERT_REQUIRED if section.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    insists = section.verify == "peer" and section.fail_if_no_peer_cert
    return Identity(pems.first, context, pems.chain, pems.key, pems.ca, insists, files, stamp)


logger = logging.getLogger("penstock.server.tls")

LOOK_S = 10.0


class Keeper(Watch):
    """Of one server.  `identity` is for any thread."""

    def __init__(self, section: TlsSection) -> None:
        """Raises SettingsError for files that cannot be used."""
        self.identity: Identity = load(section)
        self.renewed: list[Callable[[Identity], object]] = []  # called on the loop with each that is taken up
        self.renewals = 0
        self._section = section
        self._bad: Stamp | None = None  # files that could not be used
        self._told: Stamp | None = None  # the same, when it was said
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
        self._pool.submit(self._look).add_done_callback(told_of)

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
        stamp = self.identity.files.stamp()
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


def _in_words(identity: Identity) -> str:
    one = identity.certificate
    return f"{one.subject}, until {one.ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
