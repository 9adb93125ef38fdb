"""Routing: which queues see a topic.

A message reaches a queue by the bindings of its exchange (and of the exchanges bound to that), or because the queue is
a view whose `underlying_topic` matches the key.  Either way a queue takes it once.  What a topic leads to is computed
once and kept as a `Plan` on the interned `Topic` until the topology changes.  Refuses to know headers beyond the
headers exchange's rule, and what a queue does with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeAlias, cast

from penstock.core.effects import Reply
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import ExchangeState
from penstock.core.topology.exchange_types import Index, index_of
from penstock.core.topology.searching import End, Headers
from penstock.core.topology.topology import DEFAULT, Topology
from penstock.errors import NotFound, Sees, slips
from penstock.expr import Filter, FilterSet, TopicPattern, compile_filter
from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON, MESSAGE_TYPE, MessageType

REPLY_TO = "amq.rabbitmq.reply-to"
"""What a client names that wants replies without a queue, as a queue to consume from and as `reply_to`."""

REPLY_PREFIX = f"{REPLY_TO}."
"""What addresses for replies begin with; the rest is a secret of whoever waits there and of those it has asked."""

Taker: TypeAlias = "Callable[[Reply], None]"


class Names:
    """Queues by vhost and name."""

    __slots__ = ("_by_vhost",)

    def __init__(self) -> None:
        self._by_vhost: dict[str, dict[str, Queue]] = {}

    def find(self, vhost: str, name: str) -> Queue | None:
        """The queue of that name."""
        queues = self._by_vhost.get(vhost)
        return None if queues is None else queues.get(name)

    def missing(self, vhost: str, name: str) -> NotFound:
        """The refusal for a queue that is not there."""
        error = NotFound(f"no queue '{name}' in vhost '{vhost}'")
        error.near = partial(self._near, vhost, name)
        return error

    def _near(self, vhost: str, name: str, sees: Sees) -> str | None:
        """The name of a queue that is one slip away, if there is one; as quick among a million as among ten."""
        queues = self._by_vhost.get(vhost, {})
        there = ((one, queues.get(one)) for one in slips(name))
        found = (one for one, queue in there if queue is not None and queue.exclusive_to is None)
        return next((one for one in found if sees.sees_queue(vhost, one)), None)

    def count(self, vhost: str) -> int:
        """How many there are in a vhost."""
        return len(self._by_vhost.get(vhost, ()))

    def add(self, queue: Queue) -> None:
        """It is found from now on, in the place of another of its name."""
        self._by_vhost.setdefault(queue.vhost, {})[queue.name] = queue

    def remove(self, queue: Queue) -> None:
        """Its name leads to nothing now."""
        queues = self._by_vhost.get(queue.vhost)
        if queues is not None:
            queues.pop(queue.name, None)
            if not queues:
                del self._by_vhost[queue.vhost]


CLOSED = "\0"
"""Before the name of a gate's queue, among those of queues that must not take a message: the gate is closed to it."""


class Gate(NamedTuple):
    """An exchange that keeps duplicates out, on the way of a message."""

    name: str  # of the queue that has the keys
    behind: frozenset[str]  # queues that have no other way
    first: bool  # the message was published to it


@dataclass(slots=True)
class Plan:
    """Where the messages of one topic go, as of one version of the topology."""

    version: int
    queues: tuple[Queue, ...]  # in order of their ids
    filters: tuple[Filter | None, ...]  # beside `queues`: the content filter of each; then the barrier expressions
    keep: bool  # a declared topic keeps what no queue takes
    by_headers: bool  # more than the key is asked on the way: `queues` holds for messages without headers only
    by_chance: bool  # chance is, too: of each message anew
    filtered: bool
    fenced: tuple[int, ...] = ()  # places in `queues` of those with a barrier expression, as these follow in `filters`
    replies: tuple[str, ...] = ()  # addresses for replies: who waits there, if anybody, is asked message by message
    own: frozenset[Queue] = frozenset()  # of `queues` those of exchanges: what only they take reaches nobody
    gates: tuple[Gate, ...] = ()  # exchanges on the way that keep duplicates out
    plain: bool = False  # somebody wants its messages whatever they are, and no option of the queues is about newcomers
    route: int = -1  # interned id of `queues`; -1 until the first message is stored
    _together: FilterSet | None = None

    @property
    def together(self) -> FilterSet:
        """The filters that there are, as a set: slots are their places among those."""
        if self._together is None:
            self._together = FilterSet([one for one in self.filters if one is not None])
        return self._together

    @property
    def by_key_alone(self) -> bool:
        """Whether its key says who takes a message, and nobody but queues of clients does."""
        return not (self.by_headers or self.by_chance or self.filtered or self.replies or self.own)

    def without(self, names: frozenset[str]) -> Plan:
        """The same plan without the queues of these names, and without what lies behind the gates that are closed."""
        shut = [gate for gate in self.gates if CLOSED + gate.name in names]
        names = names.union(*(gate.behind for gate in shut))
        kept = [i for i, queue in enumerate(self.queues) if queue.name not in names]
        fenced = [(kept.index(i), place) for place, i in enumerate(self.fenced, len(self.queues)) if i in kept]
        filters = tuple(self.filters[i] for i in (*kept, *(place for _, place in fenced)))
        queues = tuple(self.queues[i] for i in kept)
        return Plan(
            self.version, queues, filters, self.keep and not any(gate.first for gate in shut), self.by_headers,
            self.by_chance, any(one is not None for one in filters), tuple(i for i, _ in fenced), self.replies,
            own=self.own,
        )  # fmt: skip


class Views:
    """Queues that see the keys of one (vhost, exchange) by their `underlying_topic`."""

    __slots__ = ("literal", "patterns")

    def __init__(self) -> None:
        self.literal: dict[str, tuple[Queue, ...]] = {}
        self.patterns: dict[Queue, TopicPattern] = {}

    def find(self, key: str) -> Iterator[Queue]:
        """Queues whose `underlying_topic` matches the key."""
        yield from self.literal.get(key, ())
        for queue, pattern in self.patterns.items():
            if pattern.matches(key):
                yield queue


MARKS = (
    "rating",  # with priorities
    "keying",  # what is kept out or replaced is so by an expression
    "deduping",
    "limited",  # with a limit, an initial owner, or where newcomers replace others
    "rejecting",  # refuse newcomers for which there is no room
    "dropping_newest",  # of the rejecting those that tell nobody
    "blocking",  # of the rejecting those that hold their publishers up
    "persisting",  # everything in them outlives the server
    "leveling",  # have two levels once a high priority comes
)
"""What a publish asks of the queues that it reaches: in each router a set of the ids of those of which it holds."""


def marks_of(queue: Queue) -> tuple[object, ...]:
    """Which of `MARKS` hold of a queue."""
    settings, mode = queue.settings, queue.overflow
    of_type, deduplicates, replaces = settings.type, queue.deduplicates, queue.replaces
    ranks = settings.max_priority or settings.priority_expression
    orders = ranks or settings.target_queue_depth or settings.barrier_expression or settings.group_key
    return (
        ranks,
        replaces or (deduplicates and settings.dedup_key is not None),
        deduplicates,
        queue.limited or settings.initial_owner is not None,
        mode.rejects,
        mode.drops_newest,
        mode.blocks,
        of_type.persists,
        of_type.levels and not (orders or settings.fairness_key),
    )


class _Reached:
    """What a message reaches before content filters."""

    __slots__ = ("by_chance", "by_headers", "own", "queues")

    def __init__(self) -> None:
        self.queues: dict[Queue, None] = {}
        self.own: dict[Queue, str] = {}  # the queues of exchanges on the way that remember it, and whose each is
        self.by_headers = self.by_chance = False  # whether headers had a say in it, and chance


class Router:
    """Finds the queues of a topic."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.queues = Names()
        self.replies: dict[tuple[str, str], Taker] = {}  # who waits at an address of a vhost
        self._views: dict[tuple[str, str], Views] = {}
        self._indexes: dict[tuple[str, str], Index] = {}
        self._patterns: dict[str, TopicPattern | None] = {}  # of declared topics, by name; None: it is none
        self._filters: dict[int, Filter] = {}
        self._barriers: dict[int, Filter] = {}
        self.rating, self.keying, self.deduping = set[int](), set[int](), set[int]()
        self.limited, self.rejecting, self.dropping_newest = set[int](), set[int](), set[int]()
        self.blocking, self.persisting, self.leveling = set[int](), set[int](), set[int]()
        self._marks: Sequence[set[int]] = [getattr(self, name) for name in MARKS]
        self.remembering = frozenset[str]()  # names of queues in which exchanges have the keys that came
        self.checked = topology.checked  # is empty where no schema is looked at
        self.typed = topology.typed  # is empty where all bodies are JSON

    @property
    def version(self) -> int:
        """Plans made under another version are stale."""
        return self.topology.version

    @property
    def delaying(self) -> frozenset[tuple[str, str]]:
        """Exchanges at which messages may wait, by (vhost, name)."""
        return self.topology.delaying

    def add(self, queue: Queue) -> None:
        """A queue was declared, or its settings have changed (call `remove` first)."""
        settings = queue.settings
        self.queues.add(queue)
        name = settings.underlying_topic
        if name:
            views = self._views.setdefault((queue.vhost, settings.exchange), Views())
            pattern = TopicPattern(name)
            if pattern.literal:
                views.literal[name] = (*views.literal.get(name, ()), queue)
            else:
                views.patterns[queue] = pattern
        for ids, holds in zip(self._marks, marks_of(queue), strict=True):
            if holds:
                ids.add(queue.id)
        if queue.deduplicates and queue.exchange is not None:
            self.remembering |= {queue.name}
        if settings.message_type != JSON:
            self.typed.add(queue.id)
        if settings.filter and (text := settings.reading("filter")) is not None:
            self._filters[queue.id] = compile_filter(text)
        if settings.barrier_expression and (text := settings.reading("barrier_expression")) is not None:
            self._barriers[queue.id] = compile_filter(text)

    def remove(self, queue: Queue) -> None:
        """A queue is gone, or its settings are about to change."""
        settings = queue.settings
        self.queues.remove(queue)
        self._filters.pop(queue.id, None)
        self._barriers.pop(queue.id, None)
        for ids in self._marks:
            ids.discard(queue.id)
        self.typed.discard(queue.id)
        name = settings.underlying_topic
        if not name:
            return
        key = (queue.vhost, settings.exchange)
        views = self._views[key]
        views.patterns.pop(queue, None)
        if (same := views.literal.get(name)) is not None:
            rest = tuple([other for other in same if other is not queue])
            if rest:
                views.literal[name] = rest
            else:
                del views.literal[name]
        if not views.patterns and not views.literal:
            del self._views[key]

    def target_of(self, vhost: str, exchange: str, key: str) -> tuple[str, str]:
        """The exchange and key that a publish really goes to.

        The name of a queue whose underlying topic is another one stands for its `default_publish_target`.
        """
        if exchange == DEFAULT:
            queue = self.queues.find(vhost, key)
            if queue is not None and queue.settings.underlying_topic:
                settings = queue.settings
                return settings.exchange, settings.default_publish_target or settings.underlying_topic or key
        return exchange, key

    def _follow(
        self, vhost: str, exchange: str, keys: Sequence[str], headers: Headers, reached: _Reached,
        but: str | None = None,
    ) -> dict[Queue, None]:  # fmt: skip
        """The queues that an exchange, those bound to it and alternates lead to by some keys; all else is added.

        An alternate is asked where one of them has no way for any of the keys; a way that leads nowhere is one, as in
        RabbitMQ.  Each exchange is visited once, `but` never.
        """
        found: dict[Queue, None] = {}
        visited = {exchange, but}
        todo = [(exchange, True)]  # and whether messages are as if they had been published there
        while todo:
            name, published = todo.pop()
            if (here := self.topology.exchange(vhost, name)) is None or (index := self._index(vhost, name)) is None:
                continue
            self._enter(vhost, name, index, headers, reached)
            ends = [end for key in keys for end in index.ends(key, headers)]
            shown = [queue for key in keys for queue in self._shown(vhost, name, key)] if published else []
            found.update(dict.fromkeys(shown))
            onward = self._part(vhost, ends, found)
            if not ends and not shown and (alternate := self._alternate(vhost, name, here)) is not None:
                onward.append((alternate, published))
            todo += [step for step in onward if step[0] not in visited]
            visited.update(name for name, _ in onward)
        return found

    def _enter(self, vhost: str, name: str, index: Index, headers: Headers, reached: _Reached) -> None:
        """A message comes to an exchange."""
        reached.by_headers |= index.by_headers
        reached.by_chance |= index.by_chance
        if index.own is not None and index.remembers(headers):
            remembering = self.queues.find(vhost, index.own.prefix + name)
            if remembering is not None:
                reached.own[remembering] = name

    def _part(self, vhost: str, ends: Iterable[End], found: dict[Queue, None]) -> list[tuple[str, bool]]:
        """Queues to what was found, and the exchanges, each once."""
        onward: dict[tuple[str, bool], None] = {}
        for kind, name in ends:
            if kind == "exchange":
                onward[name, False] = None
            elif (queue := self.queues.find(vhost, name)) is not None:
                found[queue] = None
        return list(onward)

    def _shown(self, vhost: str, exchange: str, key: str) -> Iterator[Queue]:
        """The queues that see a topic without a binding: most see their own name, and need no entry for that."""
        named = self.queues.find(vhost, key)
        if (
            named is not None and not named.settings.underlying_topic and named.settings.exchange == exchange
            and (named.exchange is None or named.onward is not None)
        ):  # fmt: skip
            yield named
        if (views := self._views.get((vhost, exchange))) is not None:
            yield from views.find(key)

    def passes_few(self, vhost: str, exchange: str, most: int) -> bool:
        """Whether no more bindings than these can have a say in where a message goes, whatever its key and header."""
        found, todo, visited = 0, [exchange], set[str]()
        while todo:
            name = todo.pop()
            if name in visited or (here := self.topology.exchange(vhost, name)) is None:
                continue
            visited.add(name)
            for binding in self.topology.bindings_from(vhost, name):
                found += 1
                if found > most:
                    return False
                if binding.destination_type == "exchange":
                    todo.append(binding.destination)
            if (alternate := self._alternate(vhost, name, here)) is not None:
                todo.append(alternate)
        return True

    def _alternate(self, vhost: str, name: str, exchange: ExchangeState) -> str | None:
        """Where that goes for which an exchange has no way."""
        alternate = exchange.arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            return alternate
        rule = self.topology.policies.exchanges.get((vhost, name))
        return None if rule is None else rule.alternate

    def _index(self, vhost: str, name: str) -> Index | None:
        if self.topology.touched:
            self._keep_up()
        index = self._indexes.get((vhost, name))
        if index is None:
            exchange = self.topology.exchange(vhost, name)
            if exchange is None:
                return None
            index = index_of(exchange, self.topology.bindings_from(vhost, name))
            self._indexes[vhost, name] = index
        return index

    def _keep_up(self) -> None:
        """Bindings have come or gone since somebody looked."""
        for place, changes in self.topology.touched.items():
            if changes is None:
                self._indexes.pop(place, None)
            elif (index := self._indexes.get(place)) is not None:
                for binding, there in changes:
                    (index.add if there else index.remove)(binding)
        self.topology.touched.clear()

    def plan(self, vhost: str, exchange: str, keys: Iterable[str], headers: Headers | None) -> Plan:
        """The plan of a topic; with several keys (CC, BCC), of their union.  By queue id: a route has one form."""
        told: Headers = {} if headers is None else headers
        keys = tuple(keys)
        replies: tuple[str, ...] = ()
        if exchange == DEFAULT:
            replies = tuple([key for key in keys if key.startswith(REPLY_PREFIX)])
        public = [key for key in keys if key not in replies]  # no view and no topic sees what is for one client alone
        reached = _Reached()
        if public:
            reached.queues = self._follow(vhost, exchange, public, told, reached)
        keep = any(self._is_kept(vhost, exchange, key) for key in public)
        own = frozenset(reached.own)
        gates = self._gates(vhost, exchange, keys, told, reached) if own else ()
        queues = tuple(sorted(own.union(reached.queues), key=attrgetter("id")))
        fenced = tuple([i for i, queue in enumerate(queues) if queue.id in self._barriers]) if self._barriers else ()
        filters = *[self._filters.get(queue.id) for queue in queues], *[self._barriers[queues[i].id] for i in fenced]
        plan = Plan(
            self.topology.version, queues, filters, keep, reached.by_headers, reached.by_chance,
            any(one is not None for one in filters), fenced, replies, own, gates,
        )  # fmt: skip
        plan.plain = (vhost, exchange) not in self.topology.delaying and self._is_plain(plan)
        return plan

    def _is_plain(self, plan: Plan) -> bool:
        """Whether somebody wants a message, and none of the queues has a mark: what they ask is asked once a plan."""
        if not plan.by_key_alone or self.checked or self.typed or not (plan.queues or plan.keep):
            return False
        marked = [ids for ids in self._marks if ids]
        return not (marked and any(queue.id in ids for queue in plan.queues for ids in marked))

    def _gates(
        self, vhost: str, exchange: str, keys: Sequence[str], headers: Headers, reached: _Reached
    ) -> tuple[Gate, ...]:
        """Of the exchanges that remember a message those that keep duplicates out, and what only they lead to."""
        out = list[Gate]()
        for queue, name in reached.own.items():
            if not queue.deduplicates:
                continue
            others, found = _Reached(), dict[Queue, None]()
            if name != exchange:
                found = self._follow(vhost, exchange, keys, headers, others, name)
            behind = {one.name for one in (*reached.queues, *reached.own) if one not in found and one not in others.own}
            out.append(Gate(queue.name, frozenset(behind), name == exchange))
        return tuple(out)

    def message_type(self, vhost: str, exchange: str, key: str) -> MessageType:
        """What the bodies of a topic are: as it was declared, else what the queues say that show it by its name."""
        if (settings := self.declared(vhost, exchange, key)) is not None:
            return cast("MessageType", settings.get(MESSAGE_TYPE, JSON))
        return next((queue.settings.message_type for queue in self.shows(vhost, exchange, key)), JSON)

    def declared(self, vhost: str, exchange: str, key: str) -> Mapping[str, object] | None:
        """The settings of a declared topic: its own, or those of the pattern that it matches."""
        topics = self.topology.topics
        settings = topics.get((vhost, exchange, key))
        if settings is None and (name := next(self._patterns_of(vhost, exchange, key), None)) is not None:
            settings = topics[vhost, exchange, name]
        return settings

    def shows(self, vhost: str, exchange: str, key: str) -> Iterator[Queue]:
        """The queues that are views of one topic by its very name."""
        named = self.queues.find(vhost, key)
        if named is not None and not named.settings.underlying_topic and named.settings.exchange == exchange:
            yield named
        if (views := self._views.get((vhost, exchange))) is not None:
            yield from views.literal.get(key, ())

    def _is_kept(self, vhost: str, exchange: str, key: str) -> bool:
        """Whether a declared topic keeps what no queue takes."""
        return (vhost, exchange, key) in self.topology.topics or any(
            True for _ in self._patterns_of(vhost, exchange, key)
        )

    def _patterns_of(self, vhost: str, exchange: str, key: str) -> Iterator[str]:
        """The declared topics whose name is a pattern that matches the key."""
        for name in self.topology.kept_by_pattern.get((vhost, exchange), ()):
            if name not in self._patterns:
                try:
                    self._patterns[name] = TopicPattern(name)
                except ValueError:  # it keeps what has its very name, as ever
                    self._patterns[name] = None
            pattern = self._patterns[name]
            if pattern is not None and pattern.matches(key):
                yield name

    def filters_of(self, queue: Queue) -> tuple[Filter, ...]:
        """The content filter of a queue, then its barrier expression; without those that it has not."""
        some = self._filters.get(queue.id), self._barriers.get(queue.id)
        return tuple(one for one in some if one is not None)

    @property
    def filtering(self) -> bool:
        """Whether any queue has a content filter, or tells barriers by one."""
        return bool(self._filters or self._barriers)
