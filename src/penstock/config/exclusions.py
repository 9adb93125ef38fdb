"""Which settings of a queue exclude or need each other: a table, and the one function that reads it.

A row blames a setting, says when, and why in a sentence, in which names in braces are spelled as the reader spells
them.  The first row that holds is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from penstock.config.queue_values import BadValue
from penstock.errors import shown
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import NAMES, QueueSettings, parse_recovery_point

ONE_ORDER = ("priority_expression", "max_priority", "barrier_expression", "target_queue_depth")
"""Each says in its own way what may be delivered next, so a queue has one of them at most."""

LIMITS = ("max_length", "max_length_bytes", "ring_size")
"""Limits of what is ready."""

WHOLE = {
    "barrier_expression": "a barrier waits for all before it, and what waits for its key would be delivered behind it",
    "target_queue_depth": "the oldest messages are active whatever their keys, and may all be of one that is in use",
}
"""Two that keep messages which are neither ready nor delivered; why keys do not go with them."""

_UNSET = QueueSettings()


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings that cannot all hold: what is given, that an unset queue has not, decides, and then a question.

    Each row names what has to be given, so that settings which nobody set are not asked about.
    """

    key: str  # the setting to blame; behind a dot a field of it
    why: str
    broken: Callable[[QueueSettings], object] | None = None
    given: frozenset[str] = frozenset()  # all of these are
    absent: frozenset[str] = frozenset()  # and none of these


def needs(key: str, *others: str, why: str = "") -> Rule:
    """Where a setting is given, one of the others is too."""
    told = " or ".join(f"{{{other}}}" for other in others)
    return Rule(key, f"it needs {told} beside it{why}", given=frozenset({key}), absent=frozenset(others))


def apart(key: str, other: str, why: str, among: Callable[[QueueSettings], object] | None = None) -> Rule:
    """Two that are not given together.  among: in which queues."""
    return Rule(key, f"it cannot be set beside {{{other}}}{why}", among, given=frozenset({key, other}))


def _tenants(key: str, place: int) -> Rule:
    """A number for each key, where nothing says what the key is."""
    return Rule(
        f"{key}.key",
        "it needs {fairness_key}, which says what the key is",
        lambda settings: getattr(settings, key)[place],
        given=frozenset({key}),
        absent=frozenset({"fairness_key"}),
    )


def _not_once(key: str, why: str) -> Rule:
    """Where messages are not delivered at most once."""
    return Rule(key, why, given=_ONCE | {key})


def _of_groups(key: str) -> Rule:
    """Where a queue is not shared by several instances."""
    return Rule(
        key,
        "it belongs to group-local queues alone",
        lambda settings: settings.kind != "group-local",
        given=frozenset({key}),
    )


_ONCE = frozenset({"semantics"})
"""Given where they are not at-least-once, which is at-most-once."""


def _keys() -> Iterator[Rule]:
    """Where keys of messages say who may have which."""
    yield _not_once("group_key", "an at-most-once message is gone once it is sent, so its key would never be in use")
    for key in ("group_key", "fairness_key"):
        yield from (apart(key, other, f": {why}") for other, why in WHOLE.items())
        for other, why in (
            ("last_value_key", "each says in its own way which message stands for others"),
            ("recovery_point", "older messages have no key yet when they take their places"),
        ):
            yield apart(key, other, f" in a queue with priorities: {why}", lambda one: one.rank_text is not None)
    yield needs("weights", "fairness_key", why=", which says whose weight it is")
    yield Rule(
        "max_leased.key",
        "an at-most-once message is never leased",
        lambda one: one.max_leased[1],
        given=_ONCE | {"max_leased"},
    )
    yield from (_tenants("max_leased", 1), _tenants("rate_limit", 2))


def _rules() -> Iterator[Rule]:
    yield Rule(
        "dead_letter_routing_key",
        "routing_key_but_no_dlx_defined: it needs {dead_letter_exchange} beside it",
        given=frozenset({"dead_letter_routing_key"}),
        absent=frozenset({"dead_letter_exchange"}),
    )
    yield Rule(
        "fairness_model",
        "{value} needs at-least-once; with at-most-once use 'round-robin'",
        lambda one: one.fairness_model != "round-robin",
        given=_ONCE,
    )
    yield Rule(
        "deliver",
        "'early' needs at-least-once; at-most-once removes durably before it sends",
        lambda one: one.deliver != "durable",
        given=_ONCE,
    )
    yield _not_once("retry", "an at-most-once message is delivered once, so there is nothing to retry")
    yield needs("priority_ageing", "max_priority")
    yield needs("delay_before_dispatch", "consumers_before_dispatch")
    yield apart("single_active_consumer", "consumers_before_dispatch", ": one consumer gets all, whoever else comes")
    yield Rule(
        "consumers_before_dispatch",
        "so many never come with {max_consumers} below it",
        lambda one: -1 < one.max_consumers < one.consumers_before_dispatch,
        given=frozenset({"max_consumers", "consumers_before_dispatch"}),
    )
    yield from _keys()
    yield _not_once("non_destructive", "an at-most-once message is gone once it is sent")
    yield from (
        apart("non_destructive", key, ": nobody holds a message, and each reads in order of arrival")
        for key in (*ONE_ORDER, "group_key", "fairness_key", "lease_period", "consumer_timeout", "retry")
    )
    yield from (
        apart("non_destructive", key, ": nobody takes a message from it") for key in ("max_leased", "rate_limit")
    )
    yield from (apart("last_value_key", key, ", which counts on what came staying") for key in WHOLE)
    yield apart("last_value_key", "recovery_point", ": older messages have no key")
    yield needs("dedup_key", "dedup_window", "unique", why=", which say for how long a key counts")
    yield Rule(
        "unique",
        "it needs {dedup_key} beside it, which says what a message's key is",
        given=frozenset({"unique"}),
        absent=frozenset({"dedup_key", "dedup_window"}),
    )
    yield apart("dedup_window", "recovery_point", ": older messages have no key")
    yield apart("unique", "recovery_point", ": older messages have no key")
    yield Rule(
        "kind",
        "a group-local queue needs {initial_owner} beside it",
        lambda one: one.kind == "group-local",
        given=frozenset({"kind"}),
        absent=frozenset({"initial_owner"}),
    )
    yield _of_groups("initial_owner")
    yield _of_groups("group_local_queue_domain")
    yield from (
        apart(key, other, ": a queue has one of them at most")
        for place, key in enumerate(ONE_ORDER)
        for other in ONE_ORDER[place + 1 :]
    )
    yield from (
        apart(limit, held, ", which keeps messages that are neither ready nor delivered: no limit would count them")
        for limit in LIMITS
        for held in WHOLE
    )
    yield Rule(
        "retry.max",
        "it is shorter than the initial delay",
        lambda one: one.retry is not None and one.retry.max < one.retry.initial,
        given=frozenset({"retry"}),
    )


RULES = tuple(_rules())


@lru_cache(1024)
def _broken(settings: QueueSettings) -> Rule | None:
    """The first rule that these break; thousands of queues have the same ones."""
    given = {name for name in NAMES if getattr(settings, name) != getattr(_UNSET, name)}
    for rule in RULES:
        if rule.given <= given and rule.absent.isdisjoint(given) and (rule.broken is None or rule.broken(settings)):
            return rule
    return None


class _Spelled(dict[str, str]):
    """Names of settings as the reader spells them, and the value that is to blame."""

    def __init__(self, spell: Callable[[str], str], value: object) -> None:
        super().__init__(value=shown(value))
        self._spell = spell

    def __missing__(self, key: str) -> str:
        return self._spell(key)


def refuse_impossible(settings: QueueSettings, spell: Callable[[str], str] = str) -> None:
    """Raise BadValue where two settings cannot both hold."""
    if (rule := _broken(settings)) is not None:
        name, dot, rest = rule.key.partition(".")
        told = rule.why.format_map(_Spelled(spell, getattr(settings, name)))
        raise BadValue(f"{spell(name)}{dot}{rest}", told)
    try:
        parse_recovery_point(settings.recovery_point)
    except ValueError as error:
        raise BadValue(spell("recovery_point"), str(error)) from None
