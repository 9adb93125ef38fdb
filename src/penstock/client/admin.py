"""The administrative half of the client: queues, policies, streams, counts.  All of it is server actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from penstock.client.durations import span
from penstock.client.link import Link
from penstock.client.people import PeopleCalls
from penstock.client.topology import TopologyCalls
from penstock.client.waiting import WaitingCalls
from penstock.errors import InvalidArgument
from penstock.units import format_duration

OF_A_VHOST = frozenset(
    {
        "declare", "alter", "delete", "purge", "declare_exchange", "delete_exchange", "declare_topic", "bind", "unbind",
        "exchanges", "bindings",
        "stats", "list", "details", "stream_open", "delete_topic", "topics", "topic", "sow_delete",
        "ack", "ack_filter", "policies", "policy_set", "policy_delete",
        "pause", "resume", "cancel", "reschedule", "explain", "story", "redrive", "move",
    }
)  # fmt: skip
"""Actions that work within the vhost of the connection."""


class Administration(WaitingCalls, TopologyCalls, PeopleCalls):
    """Calls that change or count what there is."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._vhost = link.address.vhost

    def action(self, name: str, *, with_vhost: bool = True, **fields: object) -> dict[str, Any]:
        """The answer of a server action by its name; fields that are None are left out."""
        if with_vhost and name in OF_A_VHOST:
            fields["vhost"] = self._vhost
        return self._link.act(name, fields)

    @property
    def vhost(self) -> str | None:
        """The vhost of this connection; None: the default one."""
        return self._vhost

    def declare(
        self, queue: str, *, durable: bool = True, auto_delete: bool = False, passive: bool = False, **settings: object
    ) -> dict[str, Any]:
        """Make a queue, or find it as asked; its counts.

        settings    by their names in the settings file, as `lease_period="30s"`; durations also as seconds or timedelta
        Errors: InvalidArgument for a setting; PreconditionFailed when the queue is there with other settings; NotFound
        when `passive` and it is not there.
        """
        return self.action(
            "declare",
            queue=queue,
            durable=durable,
            auto_delete=auto_delete,
            passive=passive or None,
            settings=_plain(settings),
        )

    def alter(self, queue: str, **settings: object) -> int:
        """Change settings of a queue; those that are not named stay.

        How many messages left it, because a `recovery_point` that is given here is later than they are.
        """
        return cast("int", self.action("alter", queue=queue, settings=_plain(settings)).get("left", 0))

    def delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Remove a queue; how many messages were ready in it."""
        return cast("int", self.action("delete", queue=queue, if_unused=if_unused, if_empty=if_empty)["messages"])

    def purge(self, queue: str) -> int:
        """Remove what is ready in a queue; how many messages that were."""
        return cast("int", self.action("purge", queue=queue)["messages"])

    def ack(self, queue: str, bookmarks: Sequence[str] | str, *, by: str = "", option: str | None = None) -> int:
        """Settle messages wherever they are, as the queue's `leasing` allows; how many it affected.

        bookmarks   a sequence, or text with commas between them
        by          the name of the consumer that holds them; only `leasing = "strict"` asks
        option      "cancel" or "expire" instead of an ack
        What is not in the queue and may still come is remembered.  Durable when this returns.
        Errors: InvalidArgument for a bookmark that was not given out, QueueFull when too much is remembered.
        """
        marks = bookmarks.split(",") if isinstance(bookmarks, str) else list(bookmarks)
        return cast("int", self.action("ack", queue=queue, bookmarks=marks, by=by, option=option)["affected"])

    def ack_filter(self, queue: str, filter: str, *, by: str = "", option: str | None = None) -> int:
        """Settle whatever matches of what is in the queue now, whoever holds it; how many it affected.

        by, option   as for `ack`
        A deep queue is gone through in steps, while publishes and deliveries go on.  Durable when this returns.
        """
        return cast("int", self.action("ack_filter", queue=queue, filter=filter, by=by, option=option)["affected"])

    def policies(self, *, operator: bool = False) -> list[dict[str, Any]]:
        """The policies of the vhost, or its operator policies, in RabbitMQ's words."""
        return self._listed("policies", operator=operator)

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, object],
        *,
        priority: int = 0,
        apply_to: str | None = None,
        operator: bool = False,
    ) -> bool:
        """This policy is there from now on; one of that name is replaced as a whole.  Whether it is new.

        pattern      RE2, found anywhere in a name
        definition   RabbitMQ's keys in milliseconds and bytes, and settings of queues in kebab case
        Errors: InvalidArgument with the reason, AccessRefused without the tag for it.
        """
        reply = self.action(
            "policy_set", policy=name, pattern=pattern, definition=dict(definition), priority=priority,
            apply_to=apply_to, operator=operator,
        )  # fmt: skip
        return bool(reply["new"])

    def delete_policy(self, name: str, *, operator: bool = False) -> None:
        """Remove a policy; what it did is undone.  NotFound when it is not there."""
        self.action("policy_delete", policy=name, operator=operator)

    def streams(self) -> list[dict[str, Any]]:
        """Every durable stream: what it reads, what it holds, and what it has not read yet.

        `lag_messages` is what it has not read, None while that is not counted yet; `lag` is the same for a queue and
        LSNs for a stream of the log.  `held_bytes` are of the log.
        """
        return self._listed("streams")

    def release_stream(self, name: str, *, drop: bool = False) -> int:
        """Let go of what a stream holds and refuse its reader; how many messages went back to their queue.

        drop    forget the stream too: a reader of that name begins anew
        Errors: NotFound when there is none.  Durable when this returns.
        """
        return cast("int", self.action("stream_release", stream=name, drop=drop)["released"])

    def health(self) -> dict[str, Any]:
        """Whether the server confirms, how far its log is durable, its origin."""
        return self.action("health", with_vhost=False)

    def overview(self) -> dict[str, Any]:
        """The server as a whole: `status`, `connections`, bytes of memory, log and disk, counts since it began."""
        return self.action("overview")

    def drain(self, *, undo: bool = False, look: bool = False) -> dict[str, Any]:
        """Let the server run empty before it is stopped: it takes no new messages and consumers, and grants nothing.

        undo    take work again
        look    change nothing, tell how far it is
        The answer: `draining`; `leased` messages in so many `queues`; `connections`; `empty`: no lease is left.  A
        restart ends it.  Errors: AccessRefused without the tag administrator.
        """
        return self.action("drain", undo=undo, look=look)

    def details(self, queue: str, limit: int = 1000) -> dict[str, Any]:
        """The first messages of a queue (at most a thousand) with who holds them, and its subscriptions."""
        return self.action("details", queue=queue, limit=limit)

    def queues(self) -> list[dict[str, Any]]:
        """Every queue with its counts."""
        return self._listed("list", "queues")

    def queue(self, name: str) -> dict[str, Any]:
        """The counts of one queue."""
        return self.action("stats", queue=name)

    stats = queue


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """Settings as JSON holds them: a timedelta becomes text with its unit."""
    out: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, timedelta):
            value = format_duration(span(value, name))
        elif isinstance(value, float) and not math.isfinite(value):
            raise InvalidArgument(f"{name} is {value}, which JSON cannot hold")
        elif isinstance(value, int) and abs(value) >= 1 << 63:
            raise InvalidArgument(f"{name} is {value}: no setting takes numbers beyond {(1 << 63) - 1}")
        elif isinstance(value, Mapping):
            value = _plain(cast("Mapping[str, object]", value))
        out[name] = value
    return out
