"""The queues by their names: a table for each vhost, so that a queue costs one entry and no key of its own.

Beside them the addresses for replies: names of the default exchange behind which no queue stands, but whoever waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.queue.view import Queue

if TYPE_CHECKING:
    from penstock.core.effects import Reply

REPLY_TO = "amq.rabbitmq.reply-to"
"""What a client names that wants replies without a queue, as a queue to consume from and as `reply_to`."""

REPLY_PREFIX = f"{REPLY_TO}."
"""What addresses for replies begin with; the rest is a secret of whoever waits there and of those it has asked."""

Taker: TypeAlias = "Callable[[Reply], None]"


class Names:
    """Queues by vhost and name."""

    __slots__ = ("_by_vhost",)

    def __init__(self) -> None:
        self._by_vhost: dict[str, dict[str, Queue]] = {}

    def find(self, vhost: str, name: str) -> Queue | None:
        """The queue of that name."""
        queues = self._by_vhost.get(vhost)
        return None if queues is None else queues.get(name)

    def add(self, queue: Queue) -> None:
        """It is found from now on, in the place of another of its name."""
        self._by_vhost.setdefault(queue.vhost, {})[queue.name] = queue

    def remove(self, queue: Queue) -> None:
        """Its name leads to nothing now."""
        queues = self._by_vhost.get(queue.vhost)
        if queues is not None:
            queues.pop(queue.name, None)
            if not queues:
                del self._by_vhost[queue.vhost]
