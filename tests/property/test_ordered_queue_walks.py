"""Random walks of the machine of `test_ordered_queue_model`, the steps that matter most as often as they should be."""

from __future__ import annotations

import random

import pytest

from penstock.core.effects import Verb
from penstock.records.chunks import as_chunk
from penstock.records.queue_settings import QueueSettings, Retry
from property.test_ordered_queue_model import OrderedMachine

WALKS, BULK = 6, 25
"""In each group, and for each step of effort where more than a sample is asked for."""


def some_settings(chance: random.Random) -> QueueSettings:
    pick = chance.choice
    once = chance.random() < 0.15
    return QueueSettings(
        semantics="at-most-once" if once else "at-least-once",
        lease_period=pick([0, 0, 5, 20]),
        leasing=pick(["sublet", "strict"]),
        max_backlog=pick([0, 0, 0, 1, 5]),
        max_per_subscription_backlog=pick([0, 0, 2, 7]),
        fairness_model=pick(["fast", "round-robin", "proportional"]),
        max_deliveries=pick([0, 0, 0, 2, 3]),
        max_cancels=pick([0, 0, 0, 2, 3]),
        retry=None if once else pick([None, Retry(3, 2.0, 30, 0.0, 0), Retry(10, 2.0, 30, 0.0, 2)]),
        expiration=pick([None, None, None, 8, 25]),
        message_ttl=pick([None, None, None, 12]),
        dead_letter_exchange=pick([None, "dlx"]),
        deliver=pick(["early", "durable"]),
    )


def walk(seed: int) -> None:
    chance = random.Random(seed)
    pick = chance.choice
    machine = OrderedMachine()
    settings = some_settings(chance)
    once = settings.semantics == "at-most-once"
    try:
        machine.start(
            settings=settings, steps=pick([10_000, 10_000, 3]), plain=False, tiny=chance.random() < 0.6,
            most=pick([10_000, 3]), kind=pick(["/a", "/b", "/a", "/b", "depth", "none"]), depth=pick([1, 2, 5]),
        )  # fmt: skip
        for _ in range(chance.randrange(5, 50)):
            step(machine, chance, once)
            machine.same_state()
            machine.ranks_last()
            machine.the_fold_says_the_same()
            machine.everything_ready_is_known_to_the_filters()
    finally:
        machine.teardown()


def step(machine: OrderedMachine, chance: random.Random, once: bool) -> None:
    pick = chance.choice
    way = chance.choices(
        ["arrive", "subscribe", "settle", "anybody", "time", "leave", "pull", "pause", "rare"],
        [25, 15, 25, 5, 10, 5, 4, 4, 7],
    )[0]
    if way == "arrive":
        few = [
            (
                chance.randrange(4),
                pick([0, 0, 0, 1]),
                pick([0, 0, 0, 0, 0, 0, -3, 4, 15]),
                pick([0] * 7 + [6, 18]),
                False,
            )
            for _ in range(chance.randrange(1, 7))
        ]
        machine.arrive(messages=few, repeat=pick([1, 1, 1, 1, 10]))
    elif way == "subscribe":
        machine.subscribe(
            backlog=pick([None, 0, 1, 3, 8, 50]), priority=pick([0, 0, 0, 1]), no_ack=chance.random() < 0.15,
            text=pick([None, None, "1", "2"]), passive=chance.random() < 0.15, group=pick([None, None, None, "a"]),
            client=pick("xy"),
        )  # fmt: skip
    elif way == "time":
        machine.advance_and_tick(span=pick([1, 5, 10, 40]))
    elif way == "anybody":
        living = sorted(machine.model.messages)
        if living and not once:
            chosen = sorted(chance.sample(living, chance.randrange(1, min(9, len(living)) + 1)))
            machine.both_settle([as_chunk(chosen)], pick([Verb.ACK, Verb.EXPIRE]), None, None, pick(["", "x"]), None)
    elif way == "rare":
        rare = pick(["purge", "change_expression", "change_depth", "restart"])
        if rare == "purge":
            machine.purge(really=True)
        elif rare == "change_expression":
            machine.change_expression(expression=pick([None, "/a", "/b"]), really=True)
        elif rare == "change_depth":
            machine.change_depth(depth=pick([0, 1, 3, 8]), really=True)
        else:
            machine.restart(unclean=chance.random() < 0.5, really=True, lost=chance.randrange(60))
    elif machine.workers:
        index = chance.randrange(6)
        if way == "leave":
            machine.unsubscribe(index=index, way=pick(["cancel", "close", "lose"]))
        elif way == "pull":
            machine.pull(index=index, count=pick([1, 2, 100]))
        elif way == "pause":
            machine.pause(index=index)
        else:
            worker, consumer = machine.choose(index)
            held = sorted(worker.held or worker.slots)
            if held:
                chosen = sorted(chance.sample(held, pick([len(held), 1, max(1, len(held) // 2)])))
                verbs = [Verb.ACK, Verb.ACK, Verb.CANCEL, Verb.RELEASE, Verb.UNSEEN, Verb.EXPIRE]
                verb = Verb.ACK if once else pick(verbs)
                machine.both_settle([as_chunk(chosen)], verb, worker, consumer, "", pick([None, None, None, 0, 7]))


@pytest.mark.parametrize("group", range(6))
def test_walks(group: int, effort: int) -> None:
    for number in range(WALKS if effort == 1 else BULK * effort):
        seed = group + 6 * number
        try:
            walk(seed)
        except BaseException:
            print(f"walk({seed})")
            raise
