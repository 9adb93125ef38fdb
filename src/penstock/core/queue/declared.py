"""What a queue was declared with besides its name and its settings; queues declared alike share one object."""

from __future__ import annotations

from penstock.core.sizes.sizes import Sizes
from penstock.records.dataclass import dataclass
from penstock.records.event_actions import OnDelete, OnExpire


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """Nothing of it changes while the queue lives."""

    vhost: str
    durable: bool
    exclusive_to: object | None
    auto_delete: bool
    arguments: dict[str, object]
    actions: tuple[OnExpire | OnDelete, ...]  # what actions want to know of its messages
    sizes: Sizes  # bytes of all messages of the core
    onward: str | None = None  # whose it is: an exchange at which messages wait until they are due
