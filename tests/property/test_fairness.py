"""Dealing many messages at once equals picking consumers one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.dispatching.dealing import Hands, pick
from penstock.records.queue_settings import FairnessModel


@dataclass
class Held:
    count: int


@dataclass
class Taker:
    serial: int
    room: int
    weight: int
    shared: None = None
    leases: Held = field(default_factory=lambda: Held(0))


weights = st.sampled_from([1, 2, 3, 7, 10, 1_000_000])
taker = st.builds(Taker, st.just(0), st.integers(1, 90), weights, st.none(), st.builds(Held, st.integers(0, 12)))
takers = st.lists(taker, min_size=2, max_size=7)


@given(
    takers=takers,
    model=st.sampled_from(["fast", "round-robin", "proportional"]),
    turn=st.integers(0, 8),
    share=st.floats(0.01, 1),
)
def test_deal_equals_pick(takers: list[Taker], model: FairnessModel, turn: int, share: float) -> None:
    for serial, taker in enumerate(takers, 1):
        taker.serial = serial
    total = sum(taker.room for taker in takers)
    count = max(1, int(total * share))
    first = next((i for i, taker in enumerate(takers) if taker.serial > turn), 0)
    held = [taker.leases.count for taker in takers]
    hands = Hands(model, [t.room for t in takers], held, [t.weight for t in takers], first)
    who = hands.deal(count).tolist()
    assert hands.deal_few(count) == who
    expected = list[int]()
    for _ in range(count):
        free = [taker for taker in takers if taker.room]
        chosen = pick(model, cast(Any, free), turn)
        turn = chosen.serial
        cast(Taker, chosen).room -= 1
        chosen.leases.count += 1
        expected.append(chosen.serial - 1)
    assert who == expected
