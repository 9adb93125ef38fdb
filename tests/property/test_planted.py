"""Queues with one mistake, one for each place and each stage: walks that let one pass would prove nothing.

Each is found by fewer walks than `make test` has of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from penstock.core.queue import flow, places
from penstock.core.queue.order.runs import Run
from penstock.core.queue.order.scattered import Scattered
from penstock.core.queue.parts import QueueParts
from penstock.core.queue.places import Part, Place
from property.foreign_walk import ForeignWalk
from property.limits_walk import LimitedWalk
from property.queue_options import of
from property.queue_walk import Walk
from property.shares_machine import SharesWalk
from property.test_looking import wrong

ENOUGH = 50
"""Walks of one kind; `make test` has more of each."""

PARTS: tuple[Part, ...] = get_args(Part)
OF_SHARES: tuple[Part, ...] = ("tenants", "lines", "unkeyed")
OF_SITES: tuple[Part, ...] = ("theirs",)
STAGES: dict[str, type[Walk | ForeignWalk]] = {
    "limits": LimitedWalk, "ranks": Walk, "scheduled": Walk, "expiry": Walk, "ownership": ForeignWalk,
    "last value": Walk, "shares": SharesWalk, "barrier": Walk, "priority": Walk, "depth": Walk,
}  # fmt: skip
"""In their order, with who walks over queues that have them."""


SOONEST = {
    "unkeyed": 6, "barriers": 9, "found": 12, "retries": 13, "leases": 4,
    "ranks": 5, "ownership": 27, "last value": 3, "barrier": 9, "priority": 10,
}  # fmt: skip
"""The walk that found it, where it is none of the first: it is tried before the others."""


def found_by(walk: type[Walk | ForeignWalk], soonest: int = 0) -> int | None:
    """The seed of the first walk that notices."""
    for seed in (soonest, *range(ENOUGH)):
        try:
            walk(seed).run()
        except Exception:  # noqa: BLE001 - a queue with a mistake may fall over anything
            return seed
    return None


def forget(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at a queue does not see one of its places."""
    whole = places._places

    def blind(queue: QueueParts) -> Iterator[Place]:
        return (place for place in whole(queue) if place.part != part)

    monkeypatch.setattr(places, "_places", blind)


@pytest.mark.parametrize("part", [part for part in PARTS if part != "letters"])
def test_who_forgets_a_place_is_found(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(part, monkeypatch)
    walk = SharesWalk if part in OF_SHARES else ForeignWalk if part in OF_SITES else Walk
    assert found_by(walk, SOONEST.get(part, 0)) is not None


def test_who_changes_what_was_captured_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def itself(run: Run) -> Run:
        return run

    monkeypatch.setattr(Run, "copy", itself)
    assert found_by(Walk, 13) is not None


@pytest.mark.parametrize("reads", ["told", "pieces", "extract"])
def test_who_forgets_what_came_back_one_by_one_is_found(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(rows: Scattered, *args: Any) -> Any:
        return real(Scattered(), *args)

    real = getattr(Scattered, reads)
    monkeypatch.setattr(Scattered, reads, blind)
    assert found_by(Walk, 7) is not None


def test_who_forgets_dead_letters_that_cannot_leave_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In walks they leave at once."""
    options = of(("dead_letter_exchange", 0), ("dead_letter_routing_key", 0))
    assert options is not None
    assert not wrong([options])
    forget("letters", monkeypatch)
    with pytest.raises(AssertionError):  # a checkpoint counts what it keeps
        assert not wrong([options])


@pytest.mark.parametrize("which", range(len(STAGES)), ids=list(STAGES))
def test_who_leaves_out_a_stage_is_found(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(STAGES) == len(flow.STAGES)
    monkeypatch.setattr(flow, "STAGES", flow.STAGES[:which] + flow.STAGES[which + 1 :])
    stage, walk = list(STAGES.items())[which]
    assert found_by(walk, SOONEST.get(stage, 0)) is not None
