"""Keys of living messages are known as long as they live, whatever is forgotten with those that are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.queue import dedup
from penstock.core.queue.dedup import MANY, YOUNG, Dedup, Keys, Window
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


def test_many_keys_are_looked_for_as_each_of_them_is() -> None:
    table, last = Keys(), 2 * (3 * YOUNG - 1)
    table.put((2 * n, n + 1) for n in range(3 * YOUNG))
    odd = range(1, last + 100, 2)
    for known in (0, 2, YOUNG, last - 2, last):
        assert table.has_any([*odd[:MANY], known, *odd[-MANY:]])
        assert table.has_any([known])
    assert not table.has_any(odd)
    assert not table.has_any([-1] * MANY + [last + 2])


def test_a_window_keeps_its_newest_keys_and_few_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is: what it may hold is memory that publishers ask for."""
    for name, count in (("KEYS_MOST", 2000), ("BLOCK", 512), ("YOUNG", 256)):
        monkeypatch.setattr(dedup, name, count)
    window, ever = Window(), 1 << 40
    for start in range(1, 20_000, 100):
        window.take(range(start, start + 100), start, ever)
        assert len(window) <= 2000 + 512 + 256 + 100
    assert all(window.has(key, 20_000, ever) for key in range(18_001, 20_001))
    assert not any(window.has(key, 20_000, ever) for key in range(1, 15_000))
