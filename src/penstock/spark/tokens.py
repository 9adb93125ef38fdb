"""A token for executors, which so never have a password, and lasts for as long as the driver does.

The driver's process has the password.  It asks the server for a token and renews it from a thread of its own; when the
process ends, however it does, the token ends soon after.
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any, Self

from penstock.client import connect
from penstock.errors import NotFound, PenstockError
from penstock.records.tokens import login_of
from penstock.spark.remote import Where
from penstock.units import span

logger = logging.getLogger("penstock.spark.tokens")

TASKS_LAST = "1h"
"""How long tasks can log in while the server is away, or the driver."""

SHARE = 3
"""It is renewed so often in the time that it lasts."""


class Token:
    """One of the user of an address.  `options` are those of reads and writes."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        lasts: str | float | timedelta = "15m",
        **scope: Any,
    ) -> None:
        """lasts, scope: as `issue_token` of the client takes them.  Raises what the server refuses."""
        self._client = connect(url, user=user, password=password)
        self._every = span(lasts, "lasts") / 1e6 / SHARE
        self._ended = threading.Event()
        try:
            made = self._client.issue_token(lasts, **{"label": "spark", **scope})
        except BaseException:
            self._client.close()
            raise
        self.id = str(made["id"])
        self.options = {"url": _without_login(url), "token": str(made["token"])}
        self.ended = False  # nobody can log in by it any more
        self._thread = threading.Thread(target=self._renew, name="penstock-token", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Token({self.id!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _renew(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self._client.renew_token(self.id)
            except NotFound as error:
                self.ended = True
                logger.error(
                    "executors cannot log in any more, for token %s was revoked or has ended: %s", self.id, error
                )
                return
            except PenstockError as error:  # the next try may be in time
                logger.warning("token %s was not renewed: %s", self.id, error)

    def close(self) -> None:
        """End it now."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        try:
            self._client.revoke_token(self.id)
        except PenstockError as error:
            logger.warning("token %s ends by itself: %s", self.id, error)
        self._client.close()


class TaskLogins:
    """Who tasks of pipelines log in as on a cluster: a token of the driver's user for each address."""

    def __init__(self) -> None:
        self._tokens = dict[Where, Token]()
        self._lock = threading.Lock()

    def __call__(self, where: Where) -> Where:
        """The same server for tasks.  Raises what the server refuses, Unavailable."""
        with self._lock:
            token = self._tokens.get(where)
            if token is None or token.ended:
                token = Token(where.url, user=where.user, password=where.password, lasts=TASKS_LAST, label="pipelines")
                self._tokens[where] = token
        user, password = login_of(token.options["token"]) or ("", "")
        return Where(token.options["url"], user, password, where.patience, where.by)

    def close(self) -> None:
        """All of them end."""
        with self._lock:
            for token in self._tokens.values():
                token.close()
            self._tokens.clear()


def _without_login(url: str) -> str:
    """An address that a token is not told beside the password of."""
    scheme, mark, rest = url.rpartition("://")
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    return f"{scheme}{mark}{rest[:end].rpartition('@')[2]}{rest[end:]}"


def token(url: str, **given: Any) -> Token:
    """A token of the user who is named, renewed until it is closed or this process ends.

    user, password    instead of those in the address
    lasts             how long the executors can log in when this process is gone, "15m" unless it is said
    read, write, configure    RE2 that whole names of queues and topics match: everything, everything, nothing
    tags              that it is to have
    """
    return Token(url, **given)
