"""Settings of one queue, as the core sees them: durations in microseconds, sizes in bytes, nothing left as text.

Names are those of the settings file; `interface.md`'s kebab-case AMQP arguments and the TOML keys both become this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Semantics = Literal["at-least-once", "at-most-once"]
Leasing = Literal["sublet", "strict"]
FairnessModel = Literal["fast", "round-robin", "proportional"]
ExpirationModel = Literal["default", "queue", "latest", "earliest"]
Deliver = Literal["early", "durable"]


@dataclass(frozen=True, slots=True)
class Retry:
    """Back-off: attempt n waits `initial * factor ** (n - 1)`, at most `max`, plus or minus jitter."""

    initial: int = 1_000_000  # microseconds
    factor: float = 2.0
    max: int = 300_000_000  # microseconds
    jitter: float = 0.2  # 0..1, the share of the delay that chance may add or take
    attempts: int = 0  # deliveries in all that may fail; 0: no limit


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Every setting a queue may have.  The defaults cost nothing and promise what most people expect."""

    underlying_topic: str | None = None  # None: the queue's own name, literally
    exchange: str = ""  # whose keys `underlying_topic` matches
    default_publish_target: str | None = None
    filter: str | None = None
    semantics: Semantics = "at-least-once"
    lease_period: int = 0  # microseconds; 0: a lease never ends by time
    leasing: Leasing = "sublet"
    max_backlog: int = 0  # leased at once, whole queue; 0: no limit
    max_per_subscription_backlog: int = 0  # 0: no limit of the queue's own
    fairness_model: FairnessModel = "proportional"
    max_deliveries: int = 0  # 0: no limit
    max_cancels: int = 0
    delivery_limit: int = -1  # -1: no limit; n allows n + 1 deliveries
    retry: Retry | None = None
    expiration: int | None = None  # microseconds after the log's time; None: never
    expiration_model: ExpirationModel = "default"
    message_ttl: int | None = None  # microseconds; RabbitMQ's name for the same, the smaller wins
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    deliver: Deliver = "early"


@dataclass(frozen=True, slots=True)
class Action:
    """One `[[action]]`: publish a rendered template when a queue expires a message.

    `data` may use `{{AMPS_DATA}}`, `{{AMPS_REASON}}`, `{{AMPS_TOPIC}}`, `{{AMPS_DATA_LENGTH}}`, `{{AMPS_BOOKMARK}}`,
    `{{AMPS_DATETIME}}`, `{{AMPS_UNIX_TIMESTAMP}}`, `{{AMPS_INSTANCE_NAME}}`.
    """

    queue: str
    event: Literal["expire"]
    reasons: tuple[str, ...]  # empty: any
    topic: str
    data: str
    vhost: str = "/"
    exchange: str = ""
