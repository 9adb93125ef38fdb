"""Which settings of a queue exclude or need each other.  It reads no value and knows nothing of what a queue does."""

from __future__ import annotations

from collections.abc import Callable

from penstock.config.queue_values import BadValue
from penstock.records.recovery import parse_recovery_point
from penstock.records.settings import QueueSettings

ONE_ORDER = ("priority_expression", "max_priority", "barrier_expression", "target_queue_depth")
"""Each says in its own way what may be delivered next, so a queue has one of them at most."""


LIMITS = ("max_length", "max_length_bytes")
"""Limits of what is ready; `overflow` says what they mean."""


def refuse_impossible(settings: QueueSettings, spell: Callable[[str], str] = str) -> None:
    """Raise BadValue where two settings cannot both hold."""
    if settings.dead_letter_routing_key is not None and settings.dead_letter_exchange is None:
        raise BadValue(
            spell("dead_letter_routing_key"),
            f"routing_key_but_no_dlx_defined: it needs {spell('dead_letter_exchange')} beside it",
        )
    if settings.semantics == "at-most-once":
        if settings.fairness_model != "round-robin":
            raise BadValue(
                spell("fairness_model"),
                f"{settings.fairness_model!r} needs at-least-once; with at-most-once use 'round-robin'",
            )
        if settings.deliver != "durable":
            raise BadValue(
                spell("deliver"), "'early' needs at-least-once; at-most-once removes durably before it sends"
            )
        if settings.retry is not None:
            raise BadValue(spell("retry"), "an at-most-once message is delivered once, so there is nothing to retry")
    if settings.priority_ageing and not settings.max_priority:
        raise BadValue(spell("priority_ageing"), f"it needs {spell('max_priority')} beside it")
    if settings.delay_before_dispatch is not None and not settings.consumers_before_dispatch:
        raise BadValue(spell("delay_before_dispatch"), f"it needs {spell('consumers_before_dispatch')} beside it")
    if settings.single_active_consumer and settings.consumers_before_dispatch:
        raise BadValue(
            spell("single_active_consumer"),
            f"it cannot be set beside {spell('consumers_before_dispatch')}: one consumer gets all, whoever else comes",
        )
    if -1 < settings.max_consumers < settings.consumers_before_dispatch:
        raise BadValue(spell("consumers_before_dispatch"), f"so many never come with {spell('max_consumers')} below it")
    _refuse_shares(settings, spell)
    if settings.non_destructive:
        if settings.semantics == "at-most-once":
            raise BadValue(spell("non_destructive"), "an at-most-once message is gone once it is sent")
        for key in (*ONE_ORDER, "group_key", "fairness_key", "lease_period", "consumer_timeout", "retry"):
            if getattr(settings, key):
                raise BadValue(
                    spell("non_destructive"),
                    f"it cannot be set beside {spell(key)}: nobody holds a message, and each reads in order of arrival",
                )
        for key in ("max_leased", "rate_limit"):
            if getattr(settings, key) != getattr(QueueSettings(), key):
                raise BadValue(
                    spell("non_destructive"), f"it cannot be set beside {spell(key)}: nobody takes a message from it"
                )
    if settings.last_value_key is not None:
        for key in ("barrier_expression", "target_queue_depth"):
            if getattr(settings, key):
                raise BadValue(
                    spell("last_value_key"), f"it cannot be set beside {spell(key)}, which counts on what came staying"
                )
        if settings.recovery_point != "now":
            raise BadValue(
                spell("last_value_key"),
                f"it cannot be set beside {spell('recovery_point')}: older messages have no key",
            )
    _refuse_duplicates(settings, spell)
    grouped = settings.kind == "group-local"
    if grouped and settings.initial_owner is None:
        raise BadValue(spell("kind"), f"a group-local queue needs {spell('initial_owner')} beside it")
    for key in ("initial_owner", "group_local_queue_domain"):
        if not grouped and getattr(settings, key) is not None:
            raise BadValue(spell(key), "it belongs to group-local queues alone")
    orders = [key for key in ONE_ORDER if getattr(settings, key)]
    if len(orders) > 1:
        raise BadValue(spell(orders[0]), f"it cannot be set beside {spell(orders[1])}: a queue has one of them at most")
    limits = [key for key in LIMITS if getattr(settings, key) is not None]
    limits += ["ring_size"] if settings.ring_size >= 0 else []
    if limits and (held := [key for key in ("barrier_expression", "target_queue_depth") if getattr(settings, key)]):
        raise BadValue(
            spell(limits[0]),
            f"it cannot be set beside {spell(held[0])}, which keeps messages that are neither ready nor delivered: "
            "no limit would count them",
        )
    try:
        parse_recovery_point(settings.recovery_point)
    except ValueError as error:
        raise BadValue(spell("recovery_point"), str(error)) from None
    if settings.retry is not None and settings.retry.max < settings.retry.initial:
        raise BadValue(f"{spell('retry')}.max", "it is shorter than the initial delay")


def _refuse_duplicates(settings: QueueSettings, spell: Callable[[str], str]) -> None:
    """Where keys of messages say which of them stay out."""
    if settings.dedup_key is not None and not (settings.dedup_window or settings.unique):
        raise BadValue(
            spell("dedup_key"),
            f"it needs {spell('dedup_window')} or {spell('unique')} beside it, which say for how long a key counts",
        )
    if settings.unique and settings.dedup_key is None and not settings.dedup_window:
        raise BadValue(spell("unique"), f"it needs {spell('dedup_key')} beside it, which says what a message's key is")
    for key in ("dedup_window", "unique"):
        if getattr(settings, key) and settings.recovery_point != "now":
            raise BadValue(spell(key), f"it cannot be set beside {spell('recovery_point')}: older messages have no key")


_WHOLE = {
    "barrier_expression": "a barrier waits for all before it, and what waits for its key would be delivered behind it",
    "target_queue_depth": "the oldest messages are active whatever their keys, and may all be of one that is in use",
}
"""Why keys do not go with these."""


def _refuse_shares(settings: QueueSettings, spell: Callable[[str], str]) -> None:
    """Where keys of messages say who may have which."""
    if settings.group_key is not None and settings.semantics == "at-most-once":
        raise BadValue(
            spell("group_key"), "an at-most-once message is gone once it is sent, so its key would never be in use"
        )
    for own in ("group_key", "fairness_key"):
        if getattr(settings, own) is None:
            continue
        for key in ("barrier_expression", "target_queue_depth"):
            if getattr(settings, key):
                raise BadValue(
                    spell(own),
                    f"it cannot be set beside {spell(key)}: {_WHOLE[key]}",
                )
        if settings.rank_text is not None and settings.last_value_key is not None:
            raise BadValue(
                spell(own),
                f"it cannot be set beside {spell('last_value_key')} in a queue with priorities: each says in its own "
                "way which message stands for others",
            )
        if settings.rank_text is not None and settings.recovery_point != "now":
            raise BadValue(
                spell(own),
                f"it cannot be set beside {spell('recovery_point')} in a queue with priorities: older messages have no "
                "key yet when they take their places",
            )
    if settings.weights and settings.fairness_key is None:
        raise BadValue(spell("weights"), f"it needs {spell('fairness_key')} beside it, which says whose weight it is")
    if settings.max_leased[1] and settings.semantics == "at-most-once":
        raise BadValue(f"{spell('max_leased')}.key", "an at-most-once message is never leased")
    if settings.fairness_key is None:
        for key, of_key in (("max_leased", settings.max_leased[1]), ("rate_limit", settings.rate_limit[2])):
            if of_key:
                raise BadValue(f"{spell(key)}.key", f"it needs {spell('fairness_key')}, which says what the key is")
