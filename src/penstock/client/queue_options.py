"""The settings of a queue as type checkers and editors see them: `declare("q", lease_periode="30s")` is an error.

The names are those of the settings file, whose page is docs/settings.md; what a value may be beyond its type the server
says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from penstock.records.declared_types import TypeName
from penstock.records.message_types import MessageType
from penstock.records.queue_settings import (
    Deliver,
    ExpirationModel,
    FairnessModel,
    Leasing,
    Overflow,
    Semantics,
    Sharing,
    WithoutSubscribers,
)
from penstock.units import Duration


class RetryOptions(TypedDict, total=False):
    """Back-off of failed messages."""

    initial: Duration
    factor: float
    max: Duration
    jitter: float
    attempts: int


class KeyedCount(TypedDict, total=False):
    """A number for the whole queue, and one for each tenant."""

    queue: int
    key: int


class KeyedRate(TypedDict, total=False):
    """`100/s` for the whole queue, and for each tenant."""

    queue: str
    key: str


class QueueOptions(TypedDict, total=False):
    """Every setting that a queue may have; None is its default."""

    underlying_topic: str | None
    exchange: str | None
    default_publish_target: str | None
    filter: str | None
    semantics: Semantics | None
    lease_period: Duration | None
    leasing: Leasing | None
    max_backlog: int | None
    max_per_subscription_backlog: int | None
    fairness_model: FairnessModel | None
    max_deliveries: int | None
    max_cancels: int | None
    delivery_limit: int | None
    retry: RetryOptions | None
    expiration: Duration | None
    expiration_model: ExpirationModel | None
    message_ttl: Duration | None
    dead_letter_exchange: str | None
    dead_letter_routing_key: str | None
    expiry_address: str | None
    deliver: Deliver | None
    deferred_ack_expiration: Duration | None
    barrier_expression: str | None
    barrier_without_subscribers: WithoutSubscribers | None
    priority_expression: str | None
    max_priority: int | None
    priority_ageing: Duration | None
    target_queue_depth: int | None
    group_key: str | None
    fairness_key: str | None
    weights: Mapping[str, float] | None
    max_leased: int | KeyedCount | None
    rate_limit: str | KeyedRate | None
    dedup_key: str | None
    dedup_window: Duration | None
    unique: bool | None
    file_backed_metadata: bool | str | None
    recovery_point: str | None
    single_active_consumer: bool | None
    max_consumers: int | None
    consumers_before_dispatch: int | None
    delay_before_dispatch: Duration | None
    purge_on_no_consumers: bool | None
    non_destructive: bool | None
    last_value_key: str | None
    queue_expires: Duration | None
    consumer_timeout: Duration | None
    queue_type: TypeName | None
    message_type: MessageType | None
    kind: Sharing | None
    initial_owner: str | None
    group_local_queue_domain: str | None
    max_length: int | None
    max_length_bytes: str | int | None
    overflow: Overflow | None
    ring_size: int | None
    expires: Duration | None
