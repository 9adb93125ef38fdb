"""Keys of living messages are known as long as they live, whatever is forgotten with those that are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.core.queue.dedup import YOUNG, Dedup
from penstock.core.queue.order.runs import NEVER
from penstock.records.queue_settings import QueueSettings

UNIQUE = QueueSettings(dedup_key="/k", unique=True)


def queue(floor: int) -> Any:
    """One whose messages from `floor` on live; it has many, so nothing is looked through."""
    return SimpleNamespace(settings=UNIQUE, total=1 << 40, floor=lambda: floor, lives=lambda lsn: lsn >= floor)


def key(lsn: int) -> int:
    return lsn + (1 << 40)


def test_the_oldest_message_may_be_the_last_of_a_block() -> None:
    last = 8 * YOUNG
    keys, house = Dedup(UNIQUE), queue(last)
    keys.take(house, [(lsn, key(lsn)) for lsn in range(1, last + 1)], 0)
    keys.take(house, [(lsn, key(lsn)) for lsn in range(last + 1, last + YOUNG + 1)], 0)
    assert keys.has(house, key(last))
    assert keys.count == last + YOUNG
    keys.take(queue(last + 1), [(lsn, key(lsn)) for lsn in range(last + YOUNG + 1, last + 2 * YOUNG + 1)], 0)
    assert not keys.has(house, key(last)), "it is gone, and its block with it"


def test_newcomers_of_an_empty_queue_are_known() -> None:
    keys = Dedup(UNIQUE)
    keys.take(queue(NEVER), [(lsn, key(lsn)) for lsn in range(1, YOUNG + 1)], 0)
    assert keys.has(queue(1), key(1))
    assert keys.has(queue(1), key(YOUNG))
