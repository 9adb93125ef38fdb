"""Who looks after the identity of a server: loads it, and takes up files that have changed while it runs.

Every `LOOK_S` a thread looks whether a file is another than the one that was loaded.  A new one that can be used holds
for the next handshake; one that cannot is told of once, at the second look that finds it so (certificate and key are
two files, and may be written one after the other), and the old one goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.errors import SettingsError
from penstock.server.tls.files import Identity, Stamp, load, stamp_of

if TYPE_CHECKING:
    import asyncio

    from penstock.config.doors import TlsSection

logger = logging.getLogger("penstock.server.tls")

LOOK_S = 10.0
NAGGING_S = 86_400.0
"""A certificate that ends soon is told of once a day."""


class Keeper:
    """Of one server.  `identity` is for any thread."""

    def __init__(self, section: TlsSection) -> None:
        """Raises SettingsError for files that cannot be used."""
        self.identity: Identity = load(section)
        self.renewed: list[Callable[[Identity], object]] = []  # called on the loop with each that is taken up
        self.renewals = 0
        self._section = section
        self._bad: Stamp | None = None  # files that could not be used
        self._told: Stamp | None = None  # the same, when it was said
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self._pool: Executor
        self._nagged = 0.0
        self._looking = False

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
        """Look from now on, in threads of this pool."""
        self._loop, self._pool = loop, pool
        self._nagged = loop.time()
        self._timer = loop.call_later(LOOK_S, self._beat)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._beat)
        self.look()
        if self._loop.time() - self._nagged > NAGGING_S:
            self._nagged = self._loop.time()
            if (why := self.complaint()) is not None:
                logger.warning("tls: %s", why)

    def look(self) -> None:
        """Look now; what is found is taken up soon."""
        if self._timer is None or self._looking:
            return
        self._looking = True
        self._pool.submit(self._look).add_done_callback(_raised)

    def _took_up(self, fresh: Identity | None) -> None:
        self._looking = False
        if fresh is None or self._timer is None:
            return
        self.identity = fresh
        self.renewals += 1
        logger.warning("tls: %s is taken up: %s", self._section.certificate, _told(fresh))
        if (why := self.complaint()) is not None:
            logger.warning("tls: %s", why)
        for take in self.renewed:
            take(fresh)

    # -- a thread of the pool

    def _look(self) -> None:
        fresh: Identity | None = None
        try:
            fresh = self._changed()
        finally:
            self._loop.call_soon_threadsafe(self._took_up, fresh)

    def _changed(self) -> Identity | None:
        stamp = stamp_of(self._section)
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


def _raised(look: Future[None]) -> None:
    look.result()  # what nobody expected is logged by the pool


def _told(identity: Identity) -> str:
    one = identity.certificate
    return f"{one.subject}, until {one.ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
