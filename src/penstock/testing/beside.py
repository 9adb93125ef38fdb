"""The topics of a subscription to a pattern that matches queues too: what no queue of that name takes, with no lease.

A name that is a queue's is the queue's alone, from its declare on; a queue of another name and the topic that it shows
are two things, and both deliver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.replaying.page import Page
from penstock.testing.following import Following, TopicSubscription
from penstock.testing.running import VHOST

if TYPE_CHECKING:
    from penstock.testing.instance import Instance
    from penstock.testing.message import Message
    from penstock.testing.subscription import Subscription


class TopicsBeside(TopicSubscription):
    """Its messages go to the subscription that it stands beside."""

    def __init__(self, broker: Following, instance: Instance, topic: str, owner: Subscription) -> None:
        """For the broker alone, which sets `follower`."""
        super().__init__(broker, instance, topic, owner.name)
        self._owner = owner

    def receive(self, page: Page) -> None:
        """Hand on what is no queue's."""
        rows = [row for row in range(len(page)) if not self._is_queues(page, row)]
        if rows:
            super().receive(page)
            kept = {page.lsns[row] for row in rows}
            for message in self._taken():
                if message.lsn in kept:
                    self._owner.put(message)

    def _is_queues(self, page: Page, row: int) -> bool:
        """Whether a queue of the topic's own name was there when the message came."""
        topic = page.topic_of(row)
        queue = None if topic.exchange else self._instance.core.find_queue(VHOST, topic.name)
        return queue is not None and queue.id < page.lsns[row]

    def _taken(self) -> list[Message]:
        taken = list(self._inbox)
        self._inbox.clear()
        return taken
