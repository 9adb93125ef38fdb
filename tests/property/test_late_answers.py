"""Filters that take their time over what waits, beside consumers that hang, against the definition; found by seed.

Elsewhere whatever a queue asks is answered before the next command.  Here answers come late, in any order, or are no
longer waited for: who gets what meanwhile is what these walks are about.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from choices import EFFORT, seeds
from penstock.core.effects import Purpose, Scan
from penstock.records.queue_settings import QueueSettings
from property.queue_walk import STEPS, Walk
from property.whole_machine import WholeMachine

WALKS, BULK = 12, 300
"""In a usual run, and for each step of effort where more than a sample is asked for."""


class LateMachine(WholeMachine):
    """A filter's look at what waits is answered when chance says so."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Scan] = []
        self.chance = Random(0)

    def start(self, settings: QueueSettings, _: int, *rest: Any) -> None:  # type: ignore[override]
        super().start(settings, 10_000, *rest)  # filters and a dispatch in steps are each a matter of its own

    def connect(self) -> None:
        """When consumers are enough is not asked here: lists that are full, or stand behind others, look later."""
        super().connect()
        queue = self.queue
        self.model.looking = lambda: queue.waits_for_filters

    def scan(self, effect: Scan) -> None:
        if effect.token.purpose is Purpose.WALK:
            self.late.append(effect)
        else:
            super().scan(effect)

    def answer(self) -> None:
        """One of the answers comes."""
        effect = self.late.pop(self.chance.randrange(len(self.late)))
        if effect.token.serial in self.queue.targets.asked:
            super().scan(effect)
            super().after()

    def after(self) -> None:
        super().after()
        while self.late and self.chance.random() < 0.6:
            self.answer()

    def pause(self, index: int) -> None:
        """Whoever waited for it comes at once, which in a queue is with the answer."""
        self.before()
        self.queue.tick(self.now, self.sink)
        self.after()
        super().pause(index)
        self.queue.serve(self.now, self.sink)
        self.model.dispatch(self.clock)
        self.after()

    def change_expression(self, expression: str | None, really: bool) -> None:
        """There are no priorities."""

    def restart(self, *what: Any, **rest: Any) -> None:
        self.late.clear()
        super().restart(*what, **rest)

    def everything_ready_is_known_to_the_filters(self) -> None:
        self.before()
        self.queue.tick(self.now, self.sink)
        self.after()
        while self.late:
            self.answer()
        assert not self.queue.waits_for_filters
        super().everything_ready_is_known_to_the_filters()


class LateWalk(Walk):
    """A walk with short leases, without what makes the answer matter less.

    What the lists of a queue with priorities look at as it comes is nobody else's business, and what is replaced before
    it was looked at lets the next go with the next event.
    """

    KINDS = ("none", "none", "fenced", "fenced", "depth")

    MACHINE = LateMachine

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        assert isinstance(self.machine, LateMachine)
        self.machine.chance = Random(seed)
        self.moving = None
        self.commands = [
            self.arrive, self.arrive, self.settle, self.settle_as_anybody, self.advance, self.advance, self.advance,
            self.subscribe, self.subscribe, self.unsubscribe, self.replace, self.extend, self.pause, self.seldom,
        ]  # fmt: skip

    def subscribe(self) -> None:
        """Most have a filter."""
        dice = self.dice
        self.machine.subscribe(
            dice.choice((None, 1, 2, 3)), dice.choice((0, 0, 1)), False, dice.choice((None, "1", "2", "3")), False,
            dice.choice((None, None, None, "a")), dice.choice(("x", "y")),
        )  # fmt: skip

    def settings(self, settings: QueueSettings) -> QueueSettings:
        return replace(
            settings, semantics="at-least-once", lease_period=5, last_value_key=None, expiration=None, message_ttl=None,
            max_deliveries=0, max_cancels=0, delivery_limit=-1, retry=None, consumer_timeout=0,
        )  # fmt: skip


def test_queue_and_definition_agree_whenever_filters_answer() -> None:
    for seed in seeds(WALKS if EFFORT == 1 else BULK * EFFORT):
        try:
            assert LateWalk(seed).run() == STEPS
        except Exception as error:
            error.add_note(f"walk {seed}")
            raise


@pytest.mark.parametrize("seed", [20460, 40042])
def test_walks_that_once_failed(seed: int) -> None:
    """Somebody of lower priority was given what a list knew to be its next, for all that others took before it.

    20460: what had come back, in the same dispatch.
    40042: what had never gone out.
    """
    assert LateWalk(seed).run() == STEPS
