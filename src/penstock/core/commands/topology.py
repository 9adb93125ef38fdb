"""Commands about exchanges, bindings, declared topics and policies, and what policies make of each queue.

What may be refused is `core.topology.declaring`'s to say; this is the door to it, with the instant and who asks.

Each change of a policy, operator policy or address setting writes one group: its own record, and a QUEUE_ALTER of every
queue for which it changes what is in force.  Queues whose names it does not match are asked no further.  Of more queues
than one step looks at, the others follow a portion at a time, each in a group; a queue that somebody publishes to or
consumes from comes first, and a start goes on where a crash stopped.  What a definition may hold was checked where it
was read (`config.queue_arguments`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Unpack, cast

from penstock.core.commands.common_parts import CoreParts
from penstock.core.commands.containing import Due, part_of
from penstock.core.commands.deliveries import DeliveryCommands
from penstock.core.commands.queues import fixed
from penstock.core.publishing.body_checks import Failures
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.roster import Terms
from penstock.core.queue.queue import Queue
from penstock.core.sow.holding import Sow, Sows
from penstock.core.sow.rows import Answer, Bodies, Job
from penstock.core.topology.declaring import NO_TABLE
from penstock.core.topology.register import check_expressions
from penstock.core.topology.routing import Taker
from penstock.core.topology.ruling import ADDRESS, POLICY, combined, dump_exchanges
from penstock.core.topology.topology import Topology
from penstock.errors import InvalidArgument, NotFound, Sees
from penstock.expr.bodies import body_type
from penstock.expr.json_schema import compile_check
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from penstock.records.message_types import JSON, MESSAGE_TYPE, MessageType
from penstock.records.queue_settings import NAMES, AddressSetting, ExchangeRule, Policy, QueueSettings, ruling_of
from penstock.records.sow_settings import JSON_SCHEMA, SCHEMA, with_versions, wrong


def _nothing_is_shown(vhost: str, name: str) -> bool:
    return False


class SowCommands(CoreParts):
    """Topics that keep the present record of each key: asked, prepared for, deleted from."""

    @property
    def sows(self) -> Sows:
        """All SOW topics; to be read."""
        return self._keyed.sows

    def sow(self, vhost: str, exchange: str, name: str, shown: Callable[[str, str], object] = _nothing_is_shown) -> Sow:
        """One SOW topic.  NotFound, or InvalidArgument for a topic without a key.  shown: as `missing_topic` has it."""
        found = self._keyed.sows.by_name.get((vhost, exchange, name))
        if found is not None:
            return found
        if (vhost, exchange, name) in self._topology.topics:
            raise InvalidArgument(f"topic '{name}' in vhost '{vhost}' has no key, so it has no records")
        raise self.missing_topic(vhost, exchange, name, f"no SOW topic '{name}' in vhost '{vhost}'", shown)

    def missing_topic(
        self, vhost: str, exchange: str, name: str, why: str, shown: Callable[[str, str], object] = _nothing_is_shown
    ) -> NotFound:
        """The refusal for what is not there to be read, neither a topic nor a queue.

        shown: what else has a name (vhost, name), as a view has.
        """
        error, queues = NotFound(why), self.missing_queue(vhost, name).near

        def near(sees: Sees) -> str | None:
            found = self._topology.near_topic(vhost, exchange, name, shown, sees)
            return queues(sees) if found is None and not exchange and queues is not None else found

        error.near = near
        return error

    def lacking(self, batch: Publishes) -> list[int]:
        """LSNs of the messages whose bodies must be at hand (`bodies_from`) before this batch is published."""
        return self._keyed.lacking(batch) if self._publisher.keyed is not None else []

    def heavy(self, batch: Publishes, *, merging: bool) -> list[Job]:
        """What has to be worked out off the loop (`worked_out`) before this batch is published.

        First keys of large bodies; merging, when nothing is `lacking`, their deltas.
        """
        return self._keyed.heavy(batch, merging=merging) if self._publisher.keyed is not None else []

    def ahead(self, batch: Publishes) -> Publishes:
        """The batch as filters see it: with its large deltas merged, once nothing of it is `heavy`."""
        return self._keyed.ahead(batch) if self._publisher.keyed is not None else batch

    def worked_out(self, job: Job, answer: Answer) -> None:
        """The answer to one of these."""
        self._keyed.worked.put(job.body, job.mark, answer)

    def bodies_from(self, bodies: Bodies) -> None:
        """Where the bodies of present records are, as far as they are at hand."""
        self._keyed.bodies = bodies

    def sow_delete(
        self, now: Now, sow: Sow, numbers: Sequence[int], *, lsns: Sequence[int] | None = None, by: str = ""
    ) -> int:
        """Remove the records of these keys; how many there were.

        lsns: of the records that are meant: a key that has got another record meanwhile keeps it.
        """
        now = self._at(now)
        if self._keyed.sows.by_id.get(sow.id) is not sow:
            return 0
        if lsns is not None:
            get = sow.index.get
            numbers = [number for number, lsn in zip(numbers, lsns, strict=True) if get(number) == lsn]
        return self._keyed.drop(sow, numbers, "deleted", by)

    def _sow_declared(
        self, lsn: int, name: tuple[str, str, str], settings: Mapping[str, object], *, kept: bool
    ) -> None:
        sow = self._keyed.sows.declared(lsn, name, settings, kept=kept)
        self._paging.wanted |= sow is not None and sow.file_backed
        self._publisher.keyed = self._keyed if self._keyed.sows else None

    def _sow_deleted(self, name: tuple[str, str, str]) -> None:
        self._keyed.sows.deleted(name)
        self._publisher.keyed = self._keyed if self._keyed.sows else None


def check_topic(name: tuple[str, str, str], settings: Mapping[str, object]) -> None:
    """InvalidArgument for settings of a topic that cannot hold together."""
    why = wrong(settings)
    if why is not None:
        raise InvalidArgument(f"topic '{name[2]}' in vhost '{name[0]}': {why}")


class TopologyCommands(SowCommands):
    """The topology as it is, and topics declared; exchanges and bindings are `Admin`'s own."""

    @property
    def topology_version(self) -> int:
        """Changes whenever a `Topic` got from `topic` may be stale."""
        return self._topology.version

    @property
    def topology(self) -> Topology:
        """Exchanges, bindings and declared topics as they are now; to be read."""
        return self._topology

    def keeps(self, vhost: str, exchange: str, key: str) -> bool:
        """Whether messages of this topic are stored: a queue takes them, or may, or a declared topic keeps them."""
        plan = self._router.plan(vhost, exchange, (key,), None)
        return bool(plan.queues) or plan.keep or plan.by_headers

    def target_of(self, vhost: str, exchange: str, key: str) -> tuple[str, str]:
        """The exchange and key that a publish really goes to: a queue's name may stand for what the queue shows."""
        return self._router.target_of(vhost, exchange, key)

    def message_type(self, vhost: str, exchange: str, key: str) -> MessageType:
        """What the bodies of a topic are."""
        return self._router.message_type(vhost, exchange, key)

    def open_replies(self, vhost: str, name: str, take: Taker) -> None:
        """Have messages that come to this address (`REPLY_PREFIX` and a secret) given away instead of stored."""
        self._router.replies[vhost, name] = take

    def close_replies(self, vhost: str, name: str) -> None:
        """Nobody waits there any more."""
        self._router.replies.pop((vhost, name), None)

    def takes_replies(self, vhost: str, name: str) -> bool:
        """Whether somebody waits at this address."""
        return (vhost, name) in self._router.replies

    def declare_topic(
        self, now: Now, vhost: str, exchange: str, key: str, settings: Mapping[str, object] | None = None
    ) -> None:
        """Declare a topic: it keeps what no queue takes.

        settings: `key` or `key_from` make it a SOW topic (`records.sow_settings`); None: those it has, if it is there.
        InvalidArgument for what cannot be.
        """
        present = self._topology.topics.get((vhost, exchange, key))
        settings = with_versions(settings, present) if settings is not None else present or NO_TABLE
        self._declared(now, vhost, exchange, key, settings)

    def all_check_failures(self) -> Mapping[tuple[str, str, str], Failures]:
        """The same of every topic that had any."""
        return self._publisher.checks.failures

    def check_failures(self, topic: tuple[str, str, str]) -> Failures:
        """Of bodies that did not fit the JSON Schema of a topic, since the start."""
        return self._publisher.checks.failures.get(topic) or Failures()

    def register_schema(
        self, now: Now, vhost: str, exchange: str, key: str, schema: str, *, unless: bool = False
    ) -> Mapping[str, object]:
        """Another schema for a topic, whose other settings stay; it is declared if it is not.  Its settings then.

        unless: a topic that has a schema keeps it.
        """
        present = self._topology.topics.get((vhost, exchange, key), NO_TABLE)
        if unless and present.get(SCHEMA) is not None:
            return present
        settings = with_versions({**present, SCHEMA: schema}, present, registered=True)
        self._declared(now, vhost, exchange, key, settings)
        return settings

    def _declared(self, now: Now, vhost: str, exchange: str, key: str, settings: Mapping[str, object]) -> None:
        check_topic((vhost, exchange, key), settings)
        if (text := settings.get(JSON_SCHEMA)) is not None:
            compile_check(cast("str", text))  # PreconditionFailed without its library
        body_type(cast("MessageType", settings.get(MESSAGE_TYPE, JSON)))  # PreconditionFailed without its library
        lsn = self._out.next_lsn
        kept = self._admin.declare_topic(self._at(now), vhost, exchange, key, settings)
        if self._out.next_lsn > lsn:
            self._sow_declared(lsn, (vhost, exchange, key), settings, kept=kept)

    def delete_topic(self, now: Now, vhost: str, exchange: str, key: str) -> None:
        """A topic keeps nothing more."""
        self._admin.delete_topic(self._at(now), vhost, exchange, key)
        self._sow_deleted((vhost, exchange, key))


KINDS = {False: "policy", True: "operator policy"}

AT_ONCE = 128
"""Queues whose ruling one step works out: a change of one takes 25 to 50 us, so a step some 5 ms."""

LOOKS = 2048
"""Queues that one step looks at, whether a change may be about them: 1.5 us each, so a step some 3 ms."""


class PolicyCommands(DeliveryCommands):
    """Policies of both kinds, address settings, and what is in force."""

    # -- looking

    def forget_vhost(self, now: Now, vhost: str) -> bool:
        """What has come in a vhost that is gone, and all else is, too, is not that of one which has its name later.

        Nor are its publishers.  In steps, of which this is one; whether there was something.
        """
        self._at(now)
        self.ended_vhosts[vhost] += 1
        for topics in (self._topics, self._older_topics):
            for name in [name for name in topics if name[0] == vhost]:
                del topics[name]
        with self._out.group():
            return self._interning.retire(vhost) + self._publisher.publishers.forget(vhost) > 0

    def policies(self, vhost: str | None = None, *, operator: bool = False) -> list[Policy]:
        """All of one kind, of one vhost or of all, by vhost and name."""
        every = sorted(self._topology.policies.all.items())  # by kind, vhost and name
        return [one for _, one in every if one.operator == operator and vhost in {None, one.vhost}]

    def policy(self, vhost: str, name: str, *, operator: bool = False) -> Policy:
        """One of them.  Raises NotFound."""
        found = self._topology.policies.all.get((operator, vhost, name))
        if found is None:
            raise NotFound(f"no {KINDS[operator]} '{name}' in vhost '{vhost}'")
        return found

    def effective_policy_definition(self, queue: Queue) -> dict[str, object]:
        """What the policy and the operator policy of a queue say together, in their own words; {} without."""
        if queue.ruling is None:
            return {}
        every = self._topology.policies.all
        policy = every.get((False, queue.vhost, queue.ruling.policy or ""))
        operator = every.get((True, queue.vhost, queue.ruling.operator_policy or ""))
        return combined(policy, operator)

    def sources(self, queue: Queue) -> dict[str, str]:
        """Where each setting in force came from: "argument", the type, a policy, an address setting, or "default"."""
        ruling = ruling_of(queue.settings, queue.ruling)
        out = dict.fromkeys(NAMES, "default") | dict.fromkeys(ruling.own.type.rests, f"type {ruling.own.queue_type}")
        return out | dict.fromkeys(ruling.given, "argument") | dict(ruling.sources)

    def policy_facts(self, queue: Queue) -> dict[str, object]:
        """What a person or a tool reads of a queue's policies."""
        ruling = queue.ruling
        return {
            "policy": None if ruling is None else ruling.policy,
            "operator_policy": None if ruling is None else ruling.operator_policy,
            "effective_policy_definition": self.effective_policy_definition(queue),
            "policy_unapplied": {} if ruling is None else dict(ruling.unapplied),
        }

    # -- changing

    def set_policy(self, now: Now, policy: Policy) -> bool:
        """This policy is there from now on, whatever was there under its name; whether it is new.

        Errors: ExpressionError or PreconditionFailed for an expression that no queue could take.
        """
        said = cast("dict[str, Any]", dict(policy.settings))
        check_expressions(f"{KINDS[policy.operator]} '{policy.name}' in vhost '{policy.vhost}'", QueueSettings(**said))
        policies = self._topology.policies
        present = policies.all.get(policy.key)
        if present != policy:
            self._change(now, [policy], (), ())
        return present is None

    def delete_policy(self, now: Now, vhost: str, name: str, *, operator: bool = False) -> None:
        """What it did is undone.  Raises NotFound."""
        self._change(now, (), [self.policy(vhost, name, operator=operator)], ())

    def rule_by_file(self, now: Now, policies: Iterable[Policy], addresses: Iterable[AddressSetting]) -> None:
        """What the settings file says, as one change; what it said before and says no longer is undone.

        Policies that were set while the server ran stay, unless the file has one of the same name.
        """
        present = self._topology.policies
        said = {one.key: one for one in policies}
        closest = {one.key: one for one in addresses}
        self._change(
            now,
            [
                *(one for key, one in said.items() if present.all.get(key) != one),
                *(one for key, one in closest.items() if present.addresses.get(key) != one),
            ],
            [one for key, one in present.all.items() if one.origin == "file" and key not in said],
            [one for key, one in present.addresses.items() if key not in closest],
        )

    def _ruled_anew(self, said: Iterable[Policy]) -> Mapping[tuple[str, str], ExchangeRule | None]:
        """Exchanges for which another rule is in force, by what policies say or said of them."""
        vhosts = {one.vhost for one in said if one.alternate_exchange is not None}
        exchanges = self._admin.rules_of_exchanges(sorted(vhosts)) if vhosts else {}
        if exchanges:
            self._topology.policies.rule_exchanges(exchanges)
            self._topology.version += 1
        return exchanges

    def _change(
        self,
        now: Now,
        put: Iterable[Policy | AddressSetting],
        drop: Iterable[Policy],
        forget: Iterable[AddressSetting],
    ) -> None:
        now = self._at(now)
        records, said = self._taken_up(put, drop, forget)
        if not records:
            return
        if exchanges := self._ruled_anew(said):
            records[-1][2]["exchanges"] = dump_exchanges(exchanges)
        every = self._admin.by_id
        numbers = iter(every)
        first = self._concerned(numbers)
        more = len(first) == AT_ONCE or next(numbers, None) is not None
        self._out.begin()
        for kind, name, header in records:
            if more and kind is Kind.POLICY_DELETE:
                header["more"] = True  # queues that it ruled follow in other groups
            self._out.record(kind, name, header)
        self._rule_each(now, first)
        self._out.end()
        if more:  # or just so many
            self._unruled.update(dict.fromkeys(every))

    def _taken_up(
        self, put: Iterable[Policy | AddressSetting], drop: Iterable[Policy], forget: Iterable[AddressSetting]
    ) -> tuple[list[tuple[Kind, str, dict[str, object]]], list[Policy]]:
        """Have a change stand among the policies of now; the records that say so, and what was or is said in it."""
        policies, changes = self._topology.policies, self._changes
        if not self._unruled:
            changes.clear()
        records = list[tuple[Kind, str, dict[str, object]]]()
        said = list[Policy]()  # what was said of exchanges, or is now
        for old in drop:
            changes.note(old)
            policies.delete(old.key)
            records.append((Kind.POLICY_DELETE, old.name, {"vhost": old.vhost, "operator": old.operator}))
            said.append(old)
        for gone in forget:
            changes.note(gone)
            policies.delete_address(gone.key)
            records.append((Kind.ADDRESS_SETTING, gone.pattern, {"vhost": gone.vhost, "literal": gone.literal}))
        for one in put:
            changes.note(one)
            if isinstance(one, Policy):
                if (former := policies.all.get(one.key)) is not None:
                    changes.note(former)
                    said.append(former)
                said.append(one)
                policies.put(one)
                records.append((Kind.POLICY, one.name, POLICY.dump(one)))
            else:
                policies.put_address(one)
                records.append((Kind.ADDRESS_SETTING, one.pattern, ADDRESS.dump(one)))
        return records, said

    # -- in portions

    def _next_unruled(self) -> Iterator[int]:
        while self._unruled:
            yield self._unruled.popitem()[0]

    def _concerned(self, numbers: Iterable[int]) -> list[int]:
        """Of so many queues as one step looks at those that changes are about, as many as it works out."""
        every, concern, found = self._admin.by_id, self._changes.concern, list[int]()
        for number in islice(numbers, LOOKS):
            queue = every.get(number)
            if queue is not None and concern(queue.declared.vhost, queue.name, queue.settings, queue.ruling):
                found.append(number)
                if len(found) == AT_ONCE:
                    break
        return found

    def _attend(self, now: Now, queue: Queue, **terms: Unpack[Terms]) -> Consumer:
        """As before; the queue has its policies first."""
        if queue.id in self._unruled:
            self._rule_some(self._at(now), [queue.id])
        return super()._attend(now, queue, **terms)

    def _go_on_ruling(self, now: Now) -> None:
        """A crash may have come between the portions of a change."""
        nothing = self._topology.policies.empty
        numbers = [one.id for one in self._admin.by_id.values() if one.ruling is not None or not nothing]
        self._unruled = dict.fromkeys(numbers[AT_ONCE:])
        self._changes.note_all()
        for due in self._rulings(self._at(now), numbers[:AT_ONCE]):
            self._do(due)

    def _rule_takers(self, now: Now, batch: Publishes) -> None:
        """The queues that may take some of a batch are ruled by the policies of now."""
        numbers = sorted(queue.id for queue in self._publisher.queues_of(batch) if queue.id in self._unruled)
        if numbers:
            self._rule_some(now, numbers)

    def rulings_due(self, now: Now) -> Iterator[Due]:
        """Queues for which policies of now may say something else: so many as one step looks at."""
        return self._rulings(now, self._concerned(self._next_unruled())) if self._unruled else iter(())

    def _rulings(self, now: Now, numbers: Iterable[int]) -> Iterator[Due]:
        for number in numbers:
            if (queue := self._admin.by_id.get(number)) is not None:
                yield Due(part_of(queue), partial(self._rule_some, now, (number,)), (queue,))

    def _rule_some(self, now: Now, numbers: Iterable[int]) -> None:
        self._out.begin()
        self._rule_each(now, numbers)
        self._out.end()

    def _rule_each(self, now: Now, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._unruled.pop(number, None)
            queue = self._admin.by_id.get(number)
            if queue is not None and not queue.stopped:
                self._rule_by_policies(now, queue)

    def _rule_by_policies(self, now: Now, queue: Queue) -> None:
        present = ruling_of(queue.settings, queue.ruling)
        settings, ruling = self._admin.ruled(queue.vhost, queue.name, queue.arguments, present.own, present.given)
        if settings == queue.settings and ruling == queue.ruling:
            return
        if held := fixed(queue, settings):
            settings, ruling = self._without(held, queue, settings, ruling)
            if settings == queue.settings and ruling == queue.ruling:
                return
        self._rule(now, queue, settings, ruling)
