"""Permissions of users made at run time: three regular expressions for each vhost, asked at every door.

Such a user may do in a vhost what its permission says, and nothing in a vhost for which there is none.  Users of the
settings file are limited by entitlements alone.  Source of the table: RabbitMQ, access control.

    operation                         configure     write         read
    declare or delete X               X
    declare with a dead-letter DLX    the queue     DLX           the queue
    bind, unbind D to S                             D             S
    publish to S                                    S
    get, consume, purge Q                                         Q

A topic permission narrows this for one exchange of type `topic` by routing key: what is published is asked by `write`,
what is bound or read by `read`; `{username}` and `{vhost}` stand for those of the user.

The default exchange is written `amq.default`.  A view also reads the exchange whose topics it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.core.topology.topology import routing_type
from penstock.errors import InvalidArgument
from penstock.records.regular_expressions import PatternError, compile_pattern, to_bytes
from penstock.server.entitlements import Need, Rights, refused

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.expr import Filter
    from penstock.records.queue_settings import QueueSettings
    from penstock.server.accounts import Permission, TopicPermission
    from penstock.server.entitlements import Right

ALL = ".*"

KINDS = ("configure", "write", "read")


def check_pattern(kind: str, text: str) -> None:
    """InvalidArgument for what is no regular expression."""
    try:
        compile_pattern(text)
    except PatternError as error:
        raise InvalidArgument(f"{kind} is no regular expression that RE2 reads: {error.why}") from None


class Permitted(Rights):
    """The rights of one user."""

    def __init__(
        self,
        user: str,
        permissions: Iterable[Permission],
        topics: Iterable[TopicPermission] = (),
        tags: Sequence[str] = (),
    ) -> None:
        super().__init__(user, (), tags)
        self._permissions = {one.vhost: one for one in permissions}
        self._topics = {(one.vhost, one.exchange): one for one in topics}
        self._answers = dict[tuple[str, str, str], bool]()

    def _allows(self, vhost: str, kind: str, name: str) -> bool:
        name = name or "amq.default"
        key = vhost, kind, name
        known = self._answers.get(key)
        if known is None:
            permission = self._permissions.get(vhost)
            text = "" if permission is None else str(getattr(permission, kind))
            known = text == ALL or (text not in {"", "^$"} and compile_pattern(text).search(to_bytes(name)) is not None)
            if len(self._answers) >= 10_000:
                self._answers.clear()
            self._answers[key] = known
        return known

    def _allows_key(self, vhost: str, kind: str, exchange: str, key: str) -> bool:
        """Whether a routing key is within the topic permission; where there is none, it is."""
        narrower = self._topics.get((vhost, exchange))
        if narrower is None:
            return True
        text = str(getattr(narrower, kind))
        for name, value in (("{username}", self.user), ("{vhost}", vhost)):
            text = text.replace(name, re.escape(value))
        return text == ALL or (text not in {"", "^$"} and compile_pattern(text).search(to_bytes(key)) is not None)

    def _ask_key(self, core: Core, vhost: str, kind: str, exchange: str, key: str) -> None:
        """AccessRefused unless the key of an exchange of type topic may be used so."""
        if (vhost, exchange) not in self._topics or self._allows_key(vhost, kind, exchange, key):
            return
        found = core.topology.exchange(vhost, exchange)
        if found is not None and routing_type(found) == "topic":
            raise refused(kind, f"topic '{key}' of exchange '{exchange}' in vhost '{vhost}'", self.user)

    def enters(self, vhost: str) -> bool:
        """Whether the user may open the vhost."""
        return vhost in self._permissions

    # -- what a permission says, in the words of entitlements

    def reads_topic(self, vhost: str, exchange: str, name: str) -> Right:
        """By its exchange, and its key."""
        return self._allows(vhost, "read", exchange) and self._allows_key(vhost, "read", exchange, name)

    def writes_topic(self, vhost: str, exchange: str, name: str) -> Right:
        """By its exchange, and its key."""
        return self._allows(vhost, "write", exchange) and self._allows_key(vhost, "write", exchange, name)

    def reads_queue(self, vhost: str, name: str) -> Right:
        """By its name."""
        return self._allows(vhost, "read", name)

    def writes_queue(self, vhost: str, name: str) -> Right:
        """Through the default exchange."""
        return self._allows(vhost, "write", "")

    def sees_queue(self, vhost: str, name: str) -> bool:
        """Every queue of a vhost that the user may open."""
        return self.monitors or self.enters(vhost)

    def topic_rights(self, vhost: str, exchange: str) -> tuple[tuple[str | None, bool | str], ...]:
        """All topics of an exchange, or none: a topic permission that is about some of them is asked topic by topic."""
        narrower = self._topics.get((vhost, exchange))
        every = narrower is None or narrower.read == ALL
        return ((None, every and self._allows(vhost, "read", exchange)),)

    # -- what a door asks

    def publish(self, core: Core, vhost: str, exchange: str, key: str) -> Filter | None:
        """Everything, where the exchange may be written to; through a queue also that of the topic it shows."""
        queue = core.find_queue(vhost, key) if not exchange else None
        shows = queue is not None and queue.settings.underlying_topic not in {None, key}
        for one in dict.fromkeys((exchange, queue.settings.exchange if queue is not None and shows else exchange)):
            if not self._allows(vhost, "write", one):
                raise refused("write", f"exchange '{one or 'amq.default'}' in vhost '{vhost}'", self.user)
        self._ask_key(core, vhost, "write", exchange, key)
        return None

    def binds(self, core: Core, vhost: str, source: str, key: str) -> None:
        """Beside the permissions on both ends: AccessRefused unless this key of the source may be read."""
        self._ask_key(core, vhost, "read", source, key)

    def configure(self, what: str, vhost: str = "/", needs: Iterable[Need] = ()) -> None:
        """AccessRefused unless each thing may be used as it is needed; without any, all of the vhost, or by tag."""
        wanted = tuple(needs)
        if not wanted and not self.administrator:
            permission = self._permissions.get(vhost)
            if permission is None or any(getattr(permission, kind) != ALL for kind in KINDS):
                raise refused("configure", f"all of vhost '{vhost}', which {what} needs,", self.user)
        for kind, thing, name in wanted:
            if not self._allows(vhost, kind, name):
                raise refused(kind, f"{thing} '{name or 'amq.default'}' in vhost '{vhost}'", self.user)

    def find(self, vhost: str, thing: str, name: str) -> None:
        """By any of the three: a passive declare is not for finding out what there is."""
        if not any(self._allows(vhost, kind, name) for kind in KINDS):
            raise refused("use", f"{thing} '{name}' in vhost '{vhost}'", self.user)

    def declare(self, vhost: str, name: str, settings: QueueSettings, present: Queue | None) -> None:
        """A queue that is there needs any of the three; a new one `configure`, and what it reads and writes."""
        where = f"queue '{name}'"
        if present is not None and any(self._allows(vhost, kind, name) for kind in KINDS):
            return
        needs: list[Need] = [("configure", "queue", name)]
        if settings.underlying_topic not in {None, name}:
            needs.append(("read", "exchange", settings.exchange))
            topic = settings.underlying_topic or ""
            if not self._allows_key(vhost, "read", settings.exchange, topic):
                what = f"topic '{topic}' of exchange '{settings.exchange}' in vhost '{vhost}'"
                raise refused("read", what, self.user)
        if settings.expiry_address:
            needs += [("read", "queue", name), ("write", "exchange", "")]
        if settings.dead_letter_exchange is not None:
            needs += [("read", "queue", name), ("write", "exchange", settings.dead_letter_exchange)]
        self.configure(f"declaring {where}", vhost, needs)


P = TypeVar("P", "Permission", "TopicPermission")


def by_user(permissions: Mapping[Any, P], user: str) -> list[P]:
    """Those of one user."""
    return [one for one in permissions.values() if one.user == user]
