"""Walks of queues with a rate: so many messages go in a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

from penstock.core.queue import limits
from penstock.records.queue_settings import QueueSettings
from property import shares_machine, whole_machine
from property.queue_model import Message, Worker
from property.queue_walk import Walk
from property.shares_machine import SharesMachine, SharesModel, SharesWalk
from property.whole_machine import WholeMachine, WholeModel


class Bucket:
    """Full at first: tokens come back evenly, and are never more than one period gives."""

    def __init__(self, count: int, period: int) -> None:
        self.count, self.period = count, period
        self.parts, self.at = count * period, 0  # a token is as many parts as the period has microseconds

    def tokens(self, now: int) -> int:
        while self.at < now and self.parts < self.count * self.period:
            self.at += 1
            self.parts = min(self.parts + self.count, self.count * self.period)
        self.at = now
        return self.parts // self.period


class PacedModel(WholeModel):
    """While there is no token nobody is given anything."""

    moment: Callable[[], int] = staticmethod(lambda: 0)
    bucket: Bucket | None = None

    def set_rate(self, rate: tuple[int, int, int, int]) -> None:
        """Another one begins with a full bucket."""
        if self.bucket is None or rate[:2] != (self.bucket.count, self.bucket.period):
            self.bucket = Bucket(*rate[:2]) if rate[0] else None

    def queue_room(self) -> int:
        room = super().queue_room()
        return room if self.bucket is None else min(room, self.bucket.tokens(self.moment()))

    def give(self, now: int, w: Worker, m: Message) -> None:
        if self.bucket is not None:
            self.bucket.tokens(now)
            self.bucket.parts -= self.bucket.period
        super().give(now, w, m)

    def restart(self, now: int) -> None:
        self.bucket = None
        self.set_rate(self.settings.rate_limit)
        super().restart(now)


class PacedMachine(WholeMachine):
    """A queue with a rate."""

    model: PacedModel  # type: ignore[assignment]

    def start(self, settings: QueueSettings, *rest: Any) -> None:  # type: ignore[override]
        for module, name, value in ((whole_machine, "WholeModel", PacedModel), (limits, "SOONEST_US", 1)):
            change = patch.object(module, name, value)
            change.start()
            self.changes.append(change)
        super().start(settings, *rest)

    def connect(self) -> None:
        super().connect()
        if isinstance(self.model, PacedModel):
            self.model.moment = lambda: self.clock
            if self.model.bucket is None:
                self.model.set_rate(self.queue.settings.rate_limit)

    def change_rate(self, rate: tuple[int, int, int, int]) -> None:
        """An administrator changes it."""
        if rate != self.queue.settings.rate_limit:
            self.before()
            self.model.set_rate(rate)
            self.change(rate_limit=rate)


class PacedSharesModel(PacedModel, SharesModel):
    """The same where tenants take turns."""


class PacedSharesMachine(PacedMachine, SharesMachine):
    """A queue with a rate and with keys."""

    model: PacedSharesModel  # type: ignore[assignment]

    def start(self, settings: QueueSettings, *rest: Any) -> None:  # type: ignore[override]
        change = patch.object(shares_machine, "SharesModel", PacedSharesModel)
        change.start()
        self.changes.append(change)
        super().start(settings, *rest)


class PacedWalk(Walk):
    """One walk."""

    MACHINE = PacedMachine
    machine: PacedMachine

    def __init__(self, seed: int, mix: int | None = None) -> None:
        self.pacing = Random(f"rate {seed}")
        super().__init__(seed, mix)

    def settings(self, settings: QueueSettings) -> QueueSettings:
        return replace(super().settings(settings), rate_limit=self.rate())

    def rate(self) -> tuple[int, int, int, int]:
        dice = self.pacing
        return dice.choice((1, 2, 5)), dice.choice((1, 3, 10, 50)), 0, 1

    def lease(self, dice: Random) -> None:
        """The rate changes as often as the limit of leases."""
        super().lease(dice)
        if self.pacing.random() < 0.5:
            self.machine.change_rate(self.pacing.choice((self.rate(), (0, 1, 0, 1))))


class PacedSharesWalk(PacedWalk, SharesWalk):
    """One walk of a queue with keys."""

    MACHINE = PacedSharesMachine
    SINGLY = SharesWalk.SINGLY
    machine: PacedSharesMachine
