"""Random walks of the queue model's machine: many more steps than hypothesis makes, found again by their seed.

A walk is one queue with settings of its own and some dozens of commands, each compared with the model; what hypothesis
does better, making a failure small, is left to it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from penstock.core.effects import Verb
from penstock.core.queue import expiry
from penstock.records.chunks import as_chunk
from penstock.records.queue_settings import QueueSettings, Retry
from property.bounds import BOUNDS, Bound, Change, drawn
from property.bounds import STEPS as STEPS_OF_TIME
from property.whole_machine import WholeMachine

STEPS = 60
"""Commands of one walk."""

COMPARED = 4
"""After so many commands the whole state is compared; what each command sends and expires is compared at once."""

FILTERS = (None, None, "1", "2")
VERBS = (
    (Verb.ACK, Verb.ACK, Verb.ACK, Verb.CANCEL, Verb.RELEASE, Verb.EXPIRE),
    (Verb.ACK, Verb.ACK, Verb.RELEASE, Verb.CANCEL, Verb.RELEASE, Verb.EXPIRE),
    (Verb.ACK, Verb.ACK, Verb.ACK, Verb.RELEASE, Verb.CANCEL, Verb.RELEASE, Verb.EXPIRE),
)
"""A walk has one of these mixes, by its seed."""


def any_settings(dice: Random) -> QueueSettings:
    """Of one queue."""
    few = (0, 0, 1, 2, 3)
    retry = None
    if dice.random() < 0.4:
        retry = Retry(dice.choice((3, 10)), 2.0, 30, 0.0, dice.choice(few))
    return QueueSettings(
        semantics=dice.choice(("at-least-once", "at-least-once", "at-least-once", "at-most-once")),
        lease_period=dice.choice((0, 0, 5, 20)),
        leasing=dice.choice(("sublet", "strict")),
        max_backlog=dice.choice((0, 0, 0, 1, 5)),
        max_per_subscription_backlog=dice.choice((0, 0, 2, 7)),
        fairness_model=dice.choice(("fast", "round-robin", "proportional")),
        max_deliveries=dice.choice(few),
        max_cancels=dice.choice(few),
        delivery_limit=dice.choice((-1, -1, 0, 1, 2)),
        retry=retry,
        expiration=dice.choice((None, None, 0, 8, 25)),
        expiration_model=dice.choice(("default", "queue", "latest", "earliest")),
        message_ttl=dice.choice((None, None, None, 0, 12)),
        dead_letter_exchange=dice.choice((None, "dlx")),
        deliver=dice.choice(("early", "durable")),
        barrier_without_subscribers=dice.choice(("hold", "drop")),
    )


def attended(settings: QueueSettings, dice: Random) -> QueueSettings:
    """Every other queue cares who consumes, and for how long they hold something.  The dice are others, so that walks
    of earlier seeds stay what they were.
    """
    if dice.random() < 0.5:
        return settings
    settings = replace(
        settings, consumer_timeout=dice.choice((0, 0, 7, 30)), purge_on_no_consumers=dice.random() < 0.15
    )
    match dice.randrange(3):
        case 0:
            return replace(settings, single_active_consumer=True)
        case 1:
            wait = dice.choice((None, 6))
            return replace(settings, consumers_before_dispatch=dice.choice((2, 3)), delay_before_dispatch=wait)
        case _:
            return settings


class Walk:
    """One walk; `run` raises AssertionError where queue and model part."""

    KINDS = ("none", "none", "fenced", "fenced", "/a", "/b", "depth")
    """Of queues: without an order of their own, with barriers, with few or many priorities, with a target depth.  Some
    of those with priorities have levels instead.
    """

    MACHINE: type[WholeMachine] = WholeMachine
    IN_STEPS: Sequence[Bound] = STEPS_OF_TIME
    """What else is bounded in some of them."""
    SINGLY = False
    """Whether newcomers may be decided one by one."""

    def __init__(self, seed: int, mix: int | None = None) -> None:
        self.dice = dice = Random(seed)
        self.verbs = VERBS[seed % len(VERBS) if mix is None else mix]
        self.releases = 0
        self.machine = self.MACHINE()
        self.kind = dice.choice(self.KINDS)
        settings = any_settings(dice)
        if mix is None:
            more = Random(-1 - seed)
            settings = attended(settings, more)
            if self.kind in ("/a", "/b") and more.random() < 0.3:
                self.kind = "levels"
            if self.kind not in ("fenced", "depth") and more.random() < 0.3:
                settings = replace(settings, last_value_key="/@body")
        steps, plain, tiny = dice.choice((10_000, 10_000, 3)), dice.random() < 0.3, dice.random() < 0.5
        most = dice.choice((10_000, 10_000, 3))
        self.machine.bounds = self.bounds(Random(f"bounds {seed}"), settings) if mix is None else []
        if settings.last_value_key is not None:
            most = 10_000  # what a full list has not looked at may be replaced before it does
        self.machine.start(
            self.settings(settings), steps, plain, tiny, most, self.kind, dice.choice((1, 2, 5)),
            dice.choice((3, 10_000)),
        )  # fmt: skip
        self.commands: list[Callable[[], object]] = [
            self.arrive, self.arrive, self.arrive, self.settle, self.settle, self.settle, self.settle,
            self.settle_as_anybody, self.settle_as_anybody, self.subscribe, self.subscribe, self.unsubscribe,
            self.advance, self.advance, self.pull, self.pause, self.replace, self.replace, self.extend, self.sweep,
            self.sweep, self.seldom, self.machine.tick_when_asked, self.find, self.defer, self.disk,
        ]  # fmt: skip
        self.counts: Counter[str] = Counter()
        self.moving = Random(-1 - seed) if mix is None else None  # dice of its own: older walks stay what they were
        self.leasing = Random(f"leases {seed}") if mix is None else None

    def settings(self, settings: QueueSettings) -> QueueSettings:
        """Of its queue, out of any settings."""
        return settings

    def bounds(self, dice: Random, settings: QueueSettings) -> list[Change]:
        """Those of this walk: of every other one some.

        Where newcomers expire at once, and are decided one by one, all of them expire in one step: a newcomer is
        offered to nobody while older ones are at it.  Where a depth is kept, nothing that time brings is done in
        steps: it is filled up between two of them, and what the second one brings comes on top.
        """
        out = drawn(dice, BOUNDS) + drawn(dice, self.IN_STEPS) if dice.random() < 0.5 else []
        at_once = self.SINGLY and 0 in (settings.expiration, settings.message_ttl)
        steps = [(module, name) for modules, name, _ in self.IN_STEPS for module in modules]
        whole = steps if self.kind == "depth" else []
        return [one for one in out if one[:2] not in whole and not (at_once and one[0] is expiry)]

    def run(self) -> int:
        """All its commands; how many they were."""
        machine = self.machine
        if self.leasing is not None and self.leasing.random() < 0.4:
            self.lease(self.leasing)
        try:
            for step in range(1, STEPS + 1):
                command = self.dice.choice(self.commands)
                self.counts[command.__name__] += 1
                command()
                if self.moving is not None and self.moving.random() < 0.12:
                    self.move(self.moving)
                if self.leasing is not None and self.leasing.random() < 0.02:
                    self.lease(self.leasing)
                if step % COMPARED == 0:
                    machine.same_state()
                    machine.the_fold_says_the_same()
                    machine.ranks_last()
                    machine.same_deferred()
                    machine.same_bytes()
                    machine.everything_ready_is_known_to_the_filters()
        finally:
            machine.teardown()
        return STEPS

    # -- commands

    def arrive(self) -> None:
        dice = self.dice
        messages = [
            (
                dice.randrange(4), dice.choice((0, 0, 0, 1)), dice.choice((0, 0, 0, 0, -3, 0, 4, 15)),
                dice.choice((0, 0, 0, 0, 0, 6, 18)), dice.random() < 0.15,
            )
            for _ in range(dice.randint(1, 5))
        ]  # fmt: skip
        if len(self.machine.model.messages) < 60:
            self.machine.arrive(messages, dice.choice((1, 1, 1, 1, 6)))

    def subscribe(self) -> None:
        dice, machine = self.dice, self.machine
        text = dice.choice(FILTERS)
        if dice.random() < 0.3:
            machine.subscribe_as_one(
                dice.choice((None, 0, 3)), dice.choice((0, 0, 1)), dice.random() < 0.2, text, dice.choice((1, 2, 5))
            )
            return
        machine.subscribe(
            dice.choice((None, None, 0, 1, 3, 8, 50)), dice.choice((0, 0, 0, 1)), dice.random() < 0.2, text,
            dice.random() < 0.2, dice.choice((None, None, None, "a")), dice.choice(("x", "y")),
        )  # fmt: skip

    def unsubscribe(self) -> None:
        if self.machine.workers:
            self.machine.unsubscribe(self.dice.randrange(6), self.dice.choice(("cancel", "close", "lose")))

    def settle(self) -> None:
        dice, machine = self.dice, self.machine
        if not machine.workers:
            return
        worker, consumer = machine.choose(dice.randrange(6))
        held = sorted(worker.held or worker.slots)
        if not held or dice.random() < 0.2:
            chunks: list[Any] = [self._range()]
        else:
            chosen = sorted(dice.sample(held, dice.randint(1, len(held))))
            cut = dice.randrange(len(chosen) + 1)
            chunks = [as_chunk(part) for part in (chosen[:cut], chosen[cut:]) if part]
        machine.both_settle(chunks, self._verb(), worker, consumer, "", dice.choice((None, None, None, 0, 7)))

    def settle_as_anybody(self) -> None:
        dice, machine = self.dice, self.machine
        living = sorted(machine.model.messages)
        chunk = self._range()
        if living and dice.random() < 0.6:
            chunk = as_chunk(sorted(dice.sample(living, min(len(living), dice.randint(1, 9)))))
        machine.both_settle([chunk], self._verb(), None, None, dice.choice(("", "x")), None)

    def _verb(self) -> Verb:
        """One of its mix; every other release says that nobody saw the message."""
        verb = self.dice.choice(self.verbs)
        self.releases += verb is Verb.RELEASE
        return Verb.UNSEEN if verb is Verb.RELEASE and self.releases % 2 else verb

    def _range(self) -> Any:
        first = self.dice.randint(90, self.machine.sink.next_lsn)
        return range(first, first + self.dice.randint(1, 30))

    def replace(self) -> None:
        if self.machine.workers:
            self.machine.replace(
                self.dice.randrange(6), self.dice.choice(FILTERS), self.dice.choice((None, 0, 1, 4, 50))
            )

    def extend(self) -> None:
        dice = self.dice
        if self.machine.workers:
            self.machine.extend(dice.randrange(6), dice.randrange(5), dice.randint(1, 3), dice.choice((1, 10, 40)))

    def sweep(self) -> None:
        dice = self.dice
        verb = dice.choice((Verb.ACK, Verb.CANCEL, Verb.EXPIRE))
        self.machine.settle_matching(dice.choice("123"), verb, dice.choice(("", "x")))

    def advance(self) -> None:
        command = self.machine.advance if self.dice.random() < 0.5 else self.machine.advance_and_tick
        command(self.dice.choice((1, 2, 5, 10, 40)))

    def pull(self) -> None:
        if self.machine.workers:
            self.machine.pull(self.dice.randrange(6), self.dice.choice((1, 2, 100)))

    def pause(self) -> None:
        if self.machine.workers:
            self.machine.pause(self.dice.randrange(6))

    def find(self) -> None:
        dice, machine = self.dice, self.machine
        if machine.queue.last_values is not None:
            return  # its recovery point is now
        if machine.passing is None:
            if dice.random() < 0.5:
                machine.begin_pass([dice.randrange(5) for _ in range(dice.randint(1, 3))])
            return
        bodies = [dice.randrange(4) for _ in range(3)]
        machine.find(bodies, dice.choice((0, 0, 0, 4, 15)), dice.choice((0, 0, 6)), dice.random() < 0.3)

    def defer(self) -> None:
        dice = self.dice
        if self.machine.queue.settings.purge_on_no_consumers:
            return  # what a pass brings is settled or purged, whichever comes first
        verb = dice.choice((Verb.ACK, Verb.ACK, Verb.EXPIRE))
        self.machine.defer(dice.randint(1, 3), verb, dice.choice(("", "x")), dice.choice((5, 40, 1000)))

    def disk(self) -> None:
        """All is durable now; or the power goes, and what came since it was is lost."""
        if self.dice.random() < 0.7:
            self.machine.remember()
        else:
            self.counts["crash"] += 1
            self.machine.crash(self.dice.choice((0, 0, 5, 60)))

    def move(self, dice: Random) -> None:
        """Somebody halts the queue, withdraws messages, or moves them to another time."""
        machine = self.machine
        if dice.random() < 0.3:
            self.counts["halt"] += 1
            machine.halt(dice.choice((0, 0, 0, 1, 5, 30, 1 << 40)), really=True)
            return
        living = sorted(machine.model.messages)
        if living:
            self.counts["moved"] += 1
            chosen = dice.sample(living, min(len(living), dice.choice((1, 1, 2, 7))))
            machine.both_move(set(chosen), dice.choice((None, -3, 0, 4, 4, 15)))

    def lease(self, dice: Random) -> None:
        """Another limit of what is leased at once."""
        self.counts["lease"] += 1
        most = dice.choice((0, 1, 3, 7)), self.machine.queue.settings.max_leased[1]
        self.machine.change(max_leased=most)

    def seldom(self) -> None:
        dice, machine = self.dice, self.machine
        match dice.randrange(10):
            case 0:
                machine.purge(really=True)
            case 1:
                limits = dice.choice((0, 1, 4)), dice.choice((0, 3)), dice.choice((0, 4, 30))
                machine.alter(*limits, dice.random() < 0.7, really=True)
            case 2:
                machine.restart(dice.random() < 0.5, True, dice.choice((0, 0, 5, 60)))
            case 3:
                if machine.workers:
                    machine.all_go(True, dice.choice(("close", "lose")))
            case 4:
                if self.kind not in ("depth", "fenced", "levels"):
                    machine.change_expression(dice.choice((None, "/a", "/b")), really=True)
            case 5:
                machine.change_depth(dice.choice((0, 1, 3, 8)), really=True)
            case _:
                self.settle()


def main() -> None:
    """Walk for ever, from `PENSTOCK_SEED` on; the first difference ends it with its seed."""
    first = int(os.environ.get("PENSTOCK_SEED", "1000000"))
    for seed in count(first):
        try:
            Walk(seed).run()
        except Exception:
            print(f"walk {seed} failed: PENSTOCK_SEED={seed}", flush=True)
            raise
        if seed % 1000 == 999:
            print(f"{(seed + 1 - first) * STEPS:,} commands, up to walk {seed}", flush=True)


if __name__ == "__main__":
    main()
