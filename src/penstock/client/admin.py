"""The administrative half of the client: queues, policies, streams, counts.  All of it is server actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack, cast

from penstock.client.arguments import QueueOptions, arguments_checked
from penstock.client.forks import OfThisProcess
from penstock.client.link import Link
from penstock.client.showing import Facts, Listed
from penstock.client.urls import Address
from penstock.errors import InvalidArgument
from penstock.units import format_duration, span
from penstock.wire.flight.tickets import command

Arguments = Mapping[str, object]


SHOWN = ("queue", "ready", "leased", "delayed", "consumers", "acked")
"""What notebooks show of each queue in a list."""

OF_A_VHOST = frozenset(
    {
        "declare", "alter", "delete", "purge", "declare_exchange", "delete_exchange", "declare_topic", "bind", "unbind",
        "register_schema", "link_proxy", "token_issue",
        "exchanges", "bindings",
        "stats", "list", "details", "stream_open", "delete_topic", "topics", "topic", "sow_delete",
        "ack", "ack_filter", "policies", "policy_set", "policy_delete",
        "pause", "resume", "cancel", "reschedule", "explain", "story", "redrive", "move",
    }
)  # fmt: skip
"""Actions that work within the vhost of the connection."""


@arguments_checked
class Administration(OfThisProcess):
    """Calls that change or count what there is."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._vhost = link.address.vhost

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._link.address)!r})"

    def action(self, name: str, *, with_vhost: bool = True, **fields: object) -> dict[str, Any]:
        """The answer of a server action by its name; fields that are None are left out."""
        if with_vhost and name in OF_A_VHOST:
            fields["vhost"] = self._vhost
        return self._link.going_on(lambda: self._link.act(name, fields), again=False)

    def _ticket(self, operation: str, /, **fields: object) -> bytes:
        """A command that works within the vhost of the connection; fields that are None are left out."""
        return command(operation, vhost=self._vhost, **fields)

    def _listed(self, name: str, key: str = "", **fields: object) -> list[dict[str, Any]]:
        """What an action lists, under its own name unless `key` is another."""
        return cast("list[dict[str, Any]]", self.action(name, with_vhost=True, **fields)[key or name])

    @property
    def address(self) -> Address:
        """Where the server of this connection is."""
        return self._link.address

    @property
    def vhost(self) -> str | None:
        """The vhost of this connection; None: the default one."""
        return self._vhost

    def declare(
        self,
        queue: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        passive: bool = False,
        **settings: Unpack[QueueOptions],
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
            settings=_plain(cast("Arguments", settings)),
        )

    def alter(self, queue: str, **settings: Unpack[QueueOptions]) -> int:
        """Change settings of a queue; those that are not named stay.

        How many messages left it, because a `recovery_point` that is given here is later than they are.
        """
        told = self.action("alter", queue=queue, settings=_plain(cast("Arguments", settings)))
        return cast("int", told.get("left", 0))

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

    def links(self) -> list[dict[str, Any]]:
        """Links to other sites (`direction` is "out") and from them ("in"): state, how far they are, what went over."""
        return self._listed("links")

    def pause_link(self, link: str) -> dict[str, Any]:
        """Tell that site nothing more; the log is kept for it.  Errors: NotFound, AccessRefused."""
        return self.action("link_pause", link=link)

    def resume_link(self, link: str) -> dict[str, Any]:
        """Go on where that site says it is."""
        return self.action("link_resume", link=link)

    def proxy_transfer(self, queue: str, *, on: bool = True) -> dict[str, Any]:
        """Have this site act for owners of a queue's messages that are away, or no longer.

        If such a site is alive and only cut off, both may deliver a message.
        """
        return self.action("link_proxy", queue=queue, off=not on)

    def details(self, queue: str, limit: int = 1000) -> dict[str, Any]:
        """The first messages of a queue (at most a thousand) with who holds them, and its subscriptions."""
        return self.action("details", queue=queue, limit=limit)

    def queues(self) -> list[dict[str, Any]]:
        """Every queue with its counts."""
        return Listed(self._listed("list", "queues"), SHOWN)

    def queue(self, name: str) -> dict[str, Any]:
        """The counts of one queue."""
        return Facts(self.action("stats", queue=name))

    stats = queue

    # -- exchanges, bindings, connections

    def exchanges(self) -> list[dict[str, Any]]:
        """Every exchange of the vhost, those that are always there first; the default one has no name."""
        return self._listed("exchanges")

    def declare_exchange(
        self,
        exchange: str,
        type: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Make an exchange (direct, fanout, topic or headers), or find it as asked."""
        self.action(
            "declare_exchange",
            exchange=exchange,
            type=type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=dict(arguments or {}),
        )

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Remove an exchange and its bindings."""
        self.action("delete_exchange", exchange=exchange, if_unused=if_unused)

    def bindings(
        self, queue: str | None = None, *, source: str | None = None, destination: str | None = None
    ) -> list[dict[str, Any]]:
        """Every binding of the vhost, those of queues to the default exchange too; or some of them.

        queue          those that end at this queue
        source         those that begin at this exchange
        destination    those that end at this exchange
        """
        return self._listed("bindings", queue=queue, source=source, destination=destination)

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Arguments | None = None) -> None:
        """Let a queue take what an exchange routes by this key."""
        self.action("bind", queue=queue, exchange=exchange, key=key, arguments=dict(arguments or {}))

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: Arguments | None = None) -> None:
        """Have a queue take no more what an exchange routes by this key; what it has stays."""
        self.action("unbind", queue=queue, exchange=exchange, key=key, arguments=dict(arguments or {}))

    def bind_exchange(self, destination: str, source: str, key: str = "", arguments: Arguments | None = None) -> None:
        """Let an exchange take what another one, the source, routes by this key."""
        self.action("bind", destination=destination, exchange=source, key=key, arguments=dict(arguments or {}))

    def unbind_exchange(self, destination: str, source: str, key: str = "", arguments: Arguments | None = None) -> None:
        """Remove a binding between exchanges."""
        self.action("unbind", destination=destination, exchange=source, key=key, arguments=dict(arguments or {}))

    def connections(self, user: str | None = None) -> list[dict[str, Any]]:
        """Open AMQP connections of all vhosts, oldest first, in RabbitMQ's words; without a tag for more one's own.

        Flight has none: each of its calls stands by itself.
        """
        return self._listed("connections", user=user)

    def close_connection(
        self, name: str | None = None, *, user: str | None = None, reason: str | None = None
    ) -> list[str]:
        """Close a connection by its name, or all of a user; the names of those closed.  What they hold goes back.

        reason    is told to the client, with code 320
        Errors: NotFound, AccessRefused for connections of others without the tag administrator.
        """
        told = self.action("connection_close", connection=name, user=user, reason=reason)
        return cast("list[str]", told["closed"])

    # -- people and vhosts: users and vhosts of the settings file are listed too, and changed there alone

    def users(self) -> list[dict[str, Any]]:
        """Every user: `name`, `tags`, `limits`."""
        return self._listed("users")

    def add_user(
        self,
        user: str,
        password: str | None = None,
        *,
        password_hash: str | None = None,
        hashing_algorithm: str | None = None,
        tags: Sequence[str] = (),
    ) -> Sequence[str]:
        """Make a user, who may open no vhost until there is a permission; a sentence for each tag that gives no right.

        password_hash    instead, as RabbitMQ's definitions have it; with neither nobody can log in as this user
        Errors: PreconditionFailed when it is there already.
        """
        told = self.action(
            "user_set", user=user, password=password, password_hash=password_hash,
            hashing_algorithm=hashing_algorithm, tags=list(tags), new=True,
        )  # fmt: skip
        return cast("list[str]", told.get("warnings", []))

    def change_password(
        self,
        user: str,
        password: str | None = None,
        *,
        password_hash: str | None = None,
        hashing_algorithm: str | None = None,
    ) -> None:
        """Another password; an empty one is none at all: then nobody can log in as this user.  NotFound."""
        self.action(
            "user_set", user=user, password=password, password_hash=password_hash,
            hashing_algorithm=hashing_algorithm, new=False,
        )  # fmt: skip

    def set_user_tags(self, user: str, *tags: str) -> Sequence[str]:
        """These tags and no others: administrator, monitoring, policymaker, management.  NotFound.

        Returns a sentence for each that gives no right.
        """
        told = self.action("user_set", user=user, tags=list(tags), new=False)
        return cast("list[str]", told.get("warnings", []))

    def delete_user(self, user: str) -> None:
        """Remove a user with permissions and limits; connections close.  NotFound."""
        self.action("user_delete", user=user)

    def permissions(self, user: str | None = None, *, vhost: str | None = None) -> list[dict[str, Any]]:
        """What users may do: `user vhost configure write read`; of one user, or in one vhost."""
        return self._listed("permissions", user=user, vhost=vhost)

    def set_permissions(self, user: str, configure: str, write: str, read: str, *, vhost: str | None = None) -> None:
        """What a user may do in a vhost (that of the connection by default): three RE2, found anywhere in a name."""
        where = vhost or self.vhost
        self.action("permission_set", user=user, vhost=where, configure=configure, write=write, read=read)

    def clear_permissions(self, user: str, *, vhost: str | None = None) -> None:
        """The user may not open the vhost any more.  NotFound when there is no permission."""
        self.action("permission_delete", user=user, vhost=vhost or self.vhost)

    def tokens(self) -> list[dict[str, Any]]:
        """One's own, or everybody's for administrators: `id user label vhost configure write read tags ends`."""
        return self._listed("tokens")

    def issue_token(
        self,
        lasts: str | float | timedelta = 3600,
        *,
        label: str = "",
        read: str = ".*",
        write: str = ".*",
        configure: str = "",
        tags: Sequence[str] = (),
    ) -> dict[str, Any]:
        """A login of one's own for the vhost of the connection that ends; `token` in the answer is told this once.

        lasts   seconds, or as in "15m"; 7 days at most
        read, write, configure   RE2 that whole names of queues, exchanges and topics match; an empty one matches none
        tags    of one's own that it has, too
        It may never do more than its user may.  It makes no tokens, and does not make itself last longer.
        """
        return self.action(
            "token_issue", lasts_s=_whole_seconds(lasts), label=label, read=read, write=write,
            configure=configure, tags=list(tags),
        )  # fmt: skip

    def renew_token(self, token: str, lasts: str | float | timedelta | None = None) -> dict[str, Any]:
        """A token of one's own lasts as long again from now on.  token: its `id`.  NotFound when it has ended."""
        return self.action("token_renew", token=token, lasts_s=None if lasts is None else _whole_seconds(lasts))

    def revoke_token(self, token: str) -> None:
        """A token is none from now on; administrators revoke anybody's.  NotFound."""
        self.action("token_revoke", token=token)

    def vhosts(self) -> list[dict[str, Any]]:
        """Those that the user may open, or all for one who sees everything."""
        return self._listed("vhosts")

    def add_vhost(
        self, vhost: str, *, description: str | None = None, tags: Sequence[str] | None = None,
        default_queue_type: str | None = None,
    ) -> None:  # fmt: skip
        """Make a vhost.  PreconditionFailed when it is there already.

        default_queue_type: `classic`, `quorum` or `stream`: of durable queues whose declares over AMQP name no type.
        """
        self.action(
            "vhost_set", vhost=vhost, description=description, tags=None if tags is None else list(tags), new=True,
            default_queue_type=default_queue_type,
        )  # fmt: skip

    def trace_vhost(self, vhost: str, on: bool = True) -> None:
        """Tell what is published and delivered in a vhost to its exchange `amq.rabbitmq.trace`, or no longer."""
        self.action("vhost_set", vhost=vhost, new=False, tracing=on)

    def delete_vhost(self, vhost: str) -> None:
        """Remove a vhost with its queues, exchanges, topics, policies and permissions; its connections close."""
        self.action("vhost_delete", vhost=vhost)

    def limits(self) -> list[dict[str, Any]]:
        """Users and vhosts that have limits: `user` or `vhost`, and `value`, limits by name."""
        return self._listed("limits")

    def set_user_limit(self, user: str, limit: str, value: int | None) -> None:
        """`max-connections` or `max-channels`; None: no such limit."""
        self.action("limit_set", user=user, limit=limit, value=value)

    def set_vhost_limit(self, vhost: str, limit: str, value: int | None) -> None:
        """`max-connections` or `max-queues`; None: no such limit."""
        self.action("limit_set", vhost=vhost, limit=limit, value=value)


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


def _whole_seconds(lasts: str | float | timedelta) -> int:
    """Rounded up: what is to last lasts."""
    return -(-span(lasts, "lasts") // 1_000_000)


def add_moved(total: dict[str, Any], told: Mapping[str, Any]) -> None:
    """What one portion came to, on top of those before it."""
    for name in ("moved", "matched"):
        total[name] += told[name]
    for name in ("targets", "strays"):
        for key, number in cast("dict[str, int]", told[name]).items():
            total[name][key] = total[name].get(key, 0) + number
