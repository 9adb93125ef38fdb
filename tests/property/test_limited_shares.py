"""Limits and rings of queues with a group key or tenants against the definition, one message at a time."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from choices import examples, seeds
from penstock.records.queue_settings import QueueSettings
from property import shares_machine, test_ordered_queue_model, test_queue_model, whole_machine
from property.bounds import Change
from property.limits_walk import LimitedModel, LimitedQueue
from property.shares_machine import SharesMachine, SharesModel, SharesWalk


class LimitedSharesModel(SharesModel, LimitedModel):
    """Who gives way is the oldest of all that are ready, whoever stands for its key and whose turn it is.

    Nothing does while somebody has room and keys are not told: who would have been taken at once is not known.
    """

    def trim(self) -> None:
        free = [w for w in self.here() if not w.paused and self.may_take(w) and self.room(w) > 0]
        if not (self.untold() and free and self.queue_room() > 0 and not self.paused_until):
            super().trim()

    def arrive(self, now: int, lsn: int, *rest: Any) -> None:
        super().arrive(now, lsn, *rest)
        self.arriving = True  # where one gave way the next of its key goes, before another comes
        self.dispatch(now)
        self.arriving = False
        self.prune()  # a tenant that has nothing left is in no turn

    def told(self, now: int) -> None:
        self.arriving = True  # they are offered first
        super().told(now)
        self.arriving = False
        self.dispatch(now)


class LimitedSharesMachine(SharesMachine):
    """A queue with shares and limits."""

    def start(self, settings: QueueSettings, *rest: Any) -> None:  # type: ignore[override]
        changes = [
            (whole_machine, "RankedQueue", LimitedQueue), (test_ordered_queue_model, "RankedQueue", LimitedQueue),
            (test_queue_model, "Queue", LimitedQueue), (shares_machine, "RankedQueue", LimitedQueue),
            (shares_machine, "SharesModel", LimitedSharesModel),
        ]  # fmt: skip
        for module, name, value in changes:
            change = patch.object(module, name, value)
            change.start()
            self.changes.append(change)
        super().start(settings, *rest)

    def same_bytes(self) -> None:
        """Its queue is weighed by the numbers of messages: `check` recounts it."""


class LimitedSharesWalk(SharesWalk):
    """One walk."""

    FAIR = 0.5
    MACHINE = LimitedSharesMachine
    IN_STEPS = ()  # what comes back is offered before anything gives way

    def bounds(self, dice: Random, settings: QueueSettings) -> list[Change]:
        """As everywhere but for how many are offered before keys are worked out: what gives way makes room there for
        the next command alone, and in a ring what came due late changes places only behind all that is asked about.
        """
        return [one for one in super().bounds(dice, settings) if one[1] != "WINDOW"]

    def settings(self, settings: QueueSettings) -> QueueSettings:
        dice = Random(self.dice.random())
        limits: dict[str, Any] = {"overflow": "drop-head"}
        which = dice.randrange(4)
        if which == 0:
            limits["ring_size"] = dice.choice((0, 1, 2, 5))
        if which in (1, 3):
            limits["max_length"] = dice.choice((0, 1, 2, 5))
        if which in (2, 3):
            limits["max_length_bytes"] = dice.choice((0, 3, 6, 12))
        return replace(super().settings(settings), **limits)


class RankedRingWalk(LimitedSharesWalk):
    """One walk of a ring with keys and priorities, or levels."""

    KINDS = ("/a", "/a", "/b")

    def settings(self, settings: QueueSettings) -> QueueSettings:
        ring = Random(self.dice.random()).choice((1, 2, 5, 5))
        return replace(super().settings(settings), max_length=None, max_length_bytes=None, ring_size=ring)


class LastValueSharesModel(SharesModel):
    """A newer message replaces the waiting one of its last-value key, whoever stands for its group."""

    def arrive(self, now: int, lsn: int, *rest: Any) -> None:
        super().arrive(now, lsn, *rest)
        if self.settings.group_key is not None or self.settings.fairness_key is not None:
            self.overdue(now)  # each is over before the next comes
            self.prune()


class LastValueSharesMachine(SharesMachine):
    """A queue with shares and last values."""

    def start(self, settings: QueueSettings, *rest: Any) -> None:  # type: ignore[override]
        change = patch.object(shares_machine, "SharesModel", LastValueSharesModel)
        change.start()
        self.changes.append(change)
        super().start(settings, *rest)


class LastValueSharesWalk(SharesWalk):
    """One walk."""

    FAIR = 0.4
    MACHINE = LastValueSharesMachine

    def settings(self, settings: QueueSettings) -> QueueSettings:
        return replace(settings, last_value_key="/@body")


@pytest.mark.parametrize("part", range(2))
def test_last_values_of_shares_and_definition_agree_on_every_command(part: int) -> None:
    for seed in seeds(examples(24), part, 2):
        try:
            LastValueSharesWalk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"walk {seed}: {error}") from error


@pytest.mark.parametrize("part", range(2))
def test_limits_of_shares_and_definition_agree_on_every_command(part: int) -> None:
    for seed in seeds(examples(36), part, 2):
        try:
            LimitedSharesWalk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"walk {seed}: {error}") from error


def test_rings_of_shares_and_ranks_agree_with_the_definition_on_every_command(effort: int) -> None:
    for seed in (4399, 4476, 6295, *seeds(4 * effort)):
        try:
            RankedRingWalk(seed).run()
        except AssertionError as error:
            raise AssertionError(f"walk {seed}: {error}") from error


@pytest.mark.parametrize("seed", [696, 725, 759, 1210, 1406, 2173, 2973])
def test_walks_that_parted_once(seed: int) -> None:
    """One gave way and let another of its key go; keys that are told late change turns, and who is offered first."""
    LimitedSharesWalk(seed).run()
