"""Every option of a queue with the values that matter, and sets of them in which every possible pair stands together.

What may stand together is not known here: the settings themselves are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from random import Random
from typing import TypeAlias

from penstock.config.queue_settings import QUEUE_KEYS, read_queue_settings
from penstock.config.queue_values import BadValue

Options: TypeAlias = Mapping[str, object]
"""Settings as the settings file has them."""

FULL = "full"
"""A queue that refuses every letter."""

RECIPES: Mapping[str, tuple[object, ...]] = {
    "underlying_topic": ("{topic}",),
    "exchange": ("shop",),
    "default_publish_target": ("{topic}",),
    "filter": ("/n >= 0",),
    "queue_type": ("quorum", "stream"),
    "semantics": ("at-most-once",),
    "lease_period": ("30m",),
    "leasing": ("strict",),
    "max_backlog": (3,),
    "max_per_subscription_backlog": (3,),
    "fairness_model": ("fast", "round-robin"),
    "max_deliveries": (2,),
    "max_cancels": (3,),
    "delivery_limit": (2,),
    "retry": ({"initial": "1h", "jitter": 0}, {"initial": "0s", "jitter": 0, "attempts": 3}),
    "expiration": ("2h",),
    "expiration_model": ("queue", "latest", "earliest"),
    "message_ttl": ("3h",),
    "dead_letter_exchange": ("",),
    "dead_letter_routing_key": (FULL,),
    "expiry_address": (FULL,),
    "deliver": ("durable",),
    "deferred_ack_expiration": ("1h",),
    "barrier_expression": ("/kind = 'barrier'",),
    "barrier_without_subscribers": ("drop",),
    "priority_expression": ("/n",),
    "max_priority": (5,),
    "priority_ageing": ("1h",),
    "target_queue_depth": (1000,),
    "group_key": ("/g",),
    "fairness_key": ("/t",),
    "weights": ({"x": 3},),
    "max_leased": (3, {"key": 1}),
    "rate_limit": ("5/h", {"key": "2/h"}),
    "dedup_key": ("/id",),
    "dedup_window": ("1h",),
    "unique": (True,),
    "file_backed_metadata": (True,),
    "recovery_point": ("epoch",),
    "single_active_consumer": (True,),
    "max_consumers": (3,),
    "consumers_before_dispatch": (1,),
    "delay_before_dispatch": ("1m",),
    "purge_on_no_consumers": (True,),
    "non_destructive": (True,),
    "last_value_key": ("/k",),
    "queue_expires": ("1d",),
    "consumer_timeout": ("1h",),
    "message_type": ("json",),
    "kind": ("group-local",),
    "initial_owner": ("penstock-1",),
    "group_local_queue_domain": ("here",),
    "max_length": (7,),
    "max_length_bytes": ("400B",),
    "overflow": QUEUE_KEYS["overflow"].choices[1:],
    "ring_size": (7,),
}
"""For each option of `QUEUE_KEYS` what it is set to, beside not at all."""

NEEDS: Mapping[str, Options] = {
    "exchange": {"underlying_topic": "{topic}"},
    "default_publish_target": {"underlying_topic": "{topic}"},
    "dead_letter_routing_key": {"dead_letter_exchange": ""},
    "priority_ageing": {"max_priority": 5},
    "weights": {"fairness_key": "/t"},
    "dedup_key": {"dedup_window": "1h"},
    "unique": {"dedup_key": "/id"},
    "delay_before_dispatch": {"consumers_before_dispatch": 1},
    "initial_owner": {"kind": "group-local"},
    "group_local_queue_domain": {"kind": "group-local", "initial_owner": "penstock-1"},
    "kind": {"initial_owner": "penstock-1"},
    "overflow": {"max_length": 7},
}
"""What else is set where an option has no effect, or is refused, without."""

One: TypeAlias = tuple[str, int]
"""An option, and which of its values."""


def of(*some: One) -> Options | None:
    """The settings with these values and what they need; None where two of them cannot stand together."""
    out: dict[str, object] = {}
    for name, which in some:
        value = RECIPES[name][which]
        for key, given in (*NEEDS.get(name, {}).items(), (name, value)):
            chosen = next((w for n, w in some if n == key), None)
            if chosen is not None:
                given = RECIPES[key][chosen]
            if isinstance(value, dict) and "key" in value:
                out.setdefault("fairness_key", "/t")
            out[key] = given
    if out.get("semantics") == "at-most-once":
        out.setdefault("fairness_model", "round-robin")
        out.setdefault("deliver", "durable")
    try:
        read_queue_settings(out, "file")
    except BadValue:
        return None
    return out


def every() -> list[One]:
    """Every value of every option."""
    return [(name, which) for name, values in RECIPES.items() for which in range(len(values))]


@cache
def pairs() -> Sequence[tuple[One, One]]:
    """All pairs of options that can stand together, by their values."""
    return [(a, b) for a, b in combinations(every(), 2) if a[0] != b[0] and of(a, b) is not None]


def covering(seed: int, most: int) -> list[Options]:
    """Few sets of about `most` options in which each possible pair stands somewhere; which ones chance decides."""
    random = Random(seed)
    left = set(pairs())
    left_of: dict[One, set[One]] = {}
    for a, b in left:
        left_of.setdefault(a, set()).add(b)
        left_of.setdefault(b, set()).add(a)
    out: list[Options] = []
    while left:
        some = list(random.choice(sorted(left)))
        others = [one for one in every() if one[0] not in {name for name, _ in some}]
        random.shuffle(others)
        others.sort(key=lambda one: -len(left_of.get(one, ())))
        for one in others:
            if len(some) >= most:
                break
            if one[0] in {name for name, _ in some} or not left_of.get(one, set()).intersection(some):
                continue
            if of(*some, one) is not None:
                some.append(one)
        for a, b in combinations(sorted(some, key=every().index), 2):
            if (a, b) in left:
                left.discard((a, b))
                left_of[a].discard(b)
                left_of[b].discard(a)
        found = of(*some)
        assert found is not None
        out.append(found)
    return out


def unknown() -> list[str]:
    """Options of a queue that nobody has thought of here, and names here that are none."""
    return sorted(set(QUEUE_KEYS) ^ set(RECIPES))
