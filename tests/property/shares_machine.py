"""Queues that hold messages back by their keys: the definition, one message at a time, and walks of both."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from penstock.core.effects import Key, Purpose
from penstock.records.settings import QueueSettings
from property.queue_model import Message
from property.queue_walk import FILTERS, Walk
from property.test_ordered_queue_model import RankedQueue, expected_key
from property.whole_machine import WholeMachine, WholeModel


class SharesModel(WholeModel):
    """Of a key the oldest message is offered, unless one of that key is leased or in back-off."""

    @property
    def waits(self) -> bool:
        return (self.passing and self.settings.group_key is not None) or super().waits

    def offered(self) -> list[Message]:
        out = super().offered()
        if self.settings.group_key is None:
            return out
        taken = {
            expected_key(m.lsn)
            for m in self.messages.values()
            if m.state == "leased" or (m.state == "delayed" and not m.scheduled)
        }
        free = set[int]()
        for m in sorted((m for m in self.messages.values() if m.state == "ready"), key=lambda m: m.place):
            key = expected_key(m.lsn)
            if key is None or key not in taken:
                free.add(m.lsn)
                taken.add(key)
        return [m for m in out if m.lsn in free]


class SharesMachine(WholeMachine):
    """A queue with a group key."""

    model: SharesModel

    def start(self, settings: QueueSettings, *rest: Any) -> None:  # type: ignore[override]
        if settings.semantics == "at-most-once":
            settings = replace(settings, semantics="at-least-once")
        super().start(settings, *rest)
        settings = replace(self.queue.settings, group_key="/group", semantics="at-least-once")
        self.queue = RankedQueue(1, "/", "q", settings)
        self.queue.dispatch_most = self.steps
        self.queue.sieved().most = self.most
        self.model = SharesModel(settings)
        self.connect()
        self.remember()

    def key(self, effect: Key) -> None:
        assert effect.token.purpose is Purpose.KEY
        seen = effect.chunk[: 1 + self.clock % len(effect.chunk)]
        self.queue.keyed(self.now, effect.token, seen, [(expected_key(lsn),) for lsn in seen], self.sink)
        self.model.dispatch(self.clock)

    def change_expression(self, expression: str | None, really: bool) -> None:
        """It has no priorities."""

    def change_group_key(self, key: str | None) -> None:
        """The expression comes or goes."""
        if self.passing is not None or key == self.queue.settings.group_key:
            return
        self.before()
        settings = replace(self.queue.settings, group_key=key)
        self.model.settings = settings
        self.queue.alter(self.now, settings, self.sink)
        self.model.dispatch(self.clock)
        self.after()


class SharesWalk(Walk):
    """One walk of a queue with a group key."""

    KINDS = ("none",)
    MACHINE = SharesMachine
    machine: SharesMachine

    def __init__(self, seed: int, mix: int | None = None) -> None:
        super().__init__(seed, mix)
        self.commands.append(self.regroup)

    def subscribe(self) -> None:
        dice, machine = self.dice, self.machine
        text = dice.choice(FILTERS)
        if dice.random() < 0.3:
            machine.subscribe_as_one(
                dice.choice((None, 0, 3)), dice.choice((0, 0, 1)), False, text, dice.choice((1, 2, 5))
            )
            return
        passive = dice.random() < 0.2
        machine.subscribe(
            dice.choice((None, None, 0, 1, 3, 8, 50)), dice.choice((0, 0, 0, 1)), passive and dice.random() < 0.3,
            text, passive, dice.choice((None, None, None, "a")), dice.choice(("x", "y")),
        )  # fmt: skip

    def regroup(self) -> None:
        if self.dice.random() < 0.1:
            self.machine.change_group_key(self.dice.choice((None, "/group", "/group")))


def walk(seed: int) -> int:
    """One walk; its commands."""
    return SharesWalk(seed).run()


__all__ = ["Random", "SharesWalk", "walk"]
