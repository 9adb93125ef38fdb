"""Queues that belong to an exchange: they come and go with it, and nobody binds, alters or consumes from them.

    amq.delayed.NAME   what an exchange of type `x-delayed-message` routes later
    amq.recent.NAME    the last messages of one of type `x-recent-history`: a queue that is bound gets them, too
    amq.seen.NAME      messages whose key an exchange of type `x-message-deduplication` knows

They are queues like any other: limits, expiry, restarts, counts and listings are those of all queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from penstock.core.state.durable import ExchangeState
from penstock.core.topology.topology import DELAYED, routing_type
from penstock.errors import PreconditionFailed
from penstock.records.queue_settings import QueueSettings

HISTORY_LENGTH = "x-recent-history-length"
HISTORY_USUAL, HISTORY_MOST = 20, 100_000
CACHE_SIZE, CACHE_TTL, CACHE_PERSISTENCE = "x-cache-size", "x-cache-ttl", "x-cache-persistence"
CACHE_MOST = 1_000_000
DEDUPLICATION_HEADER = "x-deduplication-header"
NO_STORE = "x-recent-history-no-store"


def _history(arguments: Mapping[str, object]) -> QueueSettings:
    value = arguments.get(HISTORY_LENGTH, HISTORY_USUAL)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= HISTORY_MOST:
        raise PreconditionFailed(
            f"Invalid argument {value!r}, '{HISTORY_LENGTH}' must be a positive integer, and {HISTORY_MOST} at most"
        )
    return QueueSettings(max_length=int(value))


def _seen(arguments: Mapping[str, object]) -> QueueSettings:
    size, ttl = _number(arguments, CACHE_SIZE), _number(arguments, CACHE_TTL)
    if size is None:
        raise PreconditionFailed(f"Missing or invalid argument, '{CACHE_SIZE}' must be an integer greater than 0")
    if size > CACHE_MOST:
        raise PreconditionFailed(f"Invalid argument, '{CACHE_SIZE}' is {size}, and {CACHE_MOST} at most")
    if arguments.get(CACHE_PERSISTENCE, "memory") not in ("memory", "disk"):
        raise PreconditionFailed(f"Invalid argument, '{CACHE_PERSISTENCE}' must be either 'disk' or 'memory'")
    return QueueSettings(
        max_length=size,
        message_ttl=None if ttl is None else ttl * 1000,
        expiration_model="queue",  # how long a key is known, whatever the message's own life is
        dedup_key=f"/@headers/{DEDUPLICATION_HEADER}",
        unique=True,
    )


def _number(arguments: Mapping[str, object], name: str) -> int | None:
    """A whole number above 0, also as text; None where it is not said."""
    value = arguments.get(name)
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 16:
        value = int(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**48):
        raise PreconditionFailed(f"Missing or invalid argument, '{name}' must be an integer greater than 0")
    return value


class OwnQueue(NamedTuple):
    """What an exchange of a type has a queue for."""

    type: str
    prefix: str  # of its name; the exchange's follows
    argument: str  # of such a queue: whose it is
    settings: Callable[[Mapping[str, object]], QueueSettings]  # by the exchange's arguments, or PreconditionFailed
    does: str  # what an exchange does that has one


def _waiting(arguments: Mapping[str, object]) -> QueueSettings:
    return QueueSettings()


WAITING = OwnQueue(DELAYED, "amq.delayed.", "x-delayed-exchange", _waiting, "delays")
RECENT = OwnQueue("x-recent-history", "amq.recent.", "x-recent-exchange", _history, "has a history")
SEEN = OwnQueue("x-message-deduplication", "amq.seen.", "x-seen-exchange", _seen, "keeps duplicates out")
OWN_QUEUES = (WAITING, RECENT, SEEN)


def own_queues(kind: str, arguments: Mapping[str, object]) -> list[OwnQueue]:
    """The queues of an exchange of this type with these arguments."""
    routes = routing_type(ExchangeState(kind, arguments=dict(arguments)))
    return [one for one in OWN_QUEUES if one.type in (kind, routes)]


def owner_of(name: str, arguments: Mapping[str, object]) -> tuple[OwnQueue, str] | None:
    """Which kind of own queue this is, and whose; None for one of a client."""
    for one in OWN_QUEUES:
        if name.startswith(one.prefix) and arguments.get(one.argument) == name.removeprefix(one.prefix):
            return one, name.removeprefix(one.prefix)
    return None


def own_names(exchange: str) -> Iterator[tuple[OwnQueue, str]]:
    """What the queues of an exchange would be called."""
    return ((one, one.prefix + exchange) for one in OWN_QUEUES)
