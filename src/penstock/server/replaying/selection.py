"""Which topics a subscription means: one, all that a pattern matches, or those that a queue is a view of.

A selection is a plain value: two that are equal choose the same messages, and share the work.  It stays inside one
vhost.  What a queue sees is taken down when the selection is made; bindings that come later do not widen it.

What a subscriber may see of the topics it has chosen, and what it wants of them, is a `Sieve`: both must hold, and a
right may be a filter of its own for each topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.core.publishing.published import read_traits
from penstock.core.state.durable import Binding
from penstock.core.topology.exchange_types import Index, Told, index_of, passes_of
from penstock.core.topology.searching import End, HeaderRule, Headers, KeyTrie, end_of
from penstock.errors import InvalidArgument, NotFound, told_as
from penstock.expr import Filter, compile_filter
from penstock.expr.text_patterns import TopicPattern
from penstock.history.history import named, of_vias
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.records.entries import Messages, Topic
from penstock.records.message_types import JSON, MESSAGE_TYPE, MessageType, goes_on, typed
from penstock.records.message_types import named as shown_type
from penstock.records.remembered import Remembered
from penstock.server.asking.judging import Ask, look
from penstock.server.people.entitlements import Rights, asks_shown, narrowed

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.core.sow.select import SelectList
    from penstock.core.topology.topology import Topology
    from penstock.log.name_index import Wanted


KNOWN_MOST = 65_536
"""Topics whose answer is remembered."""


class Pattern(Protocol):
    """Says which keys are meant."""

    def matches(self, name: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class BindingKey:
    """The key of a binding of a topic exchange: `*` is one word, `#` none or more."""

    key: str
    _trie: KeyTrie = field(default_factory=KeyTrie, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._trie.add(self.key, ("queue", ""))

    def matches(self, name: str) -> bool:
        return next(self._trie.find(name), None) is not None


@dataclass(frozen=True, slots=True)
class Shared:
    """What one end gets of an exchange that gives each message to one of all, by a hash."""

    exchange: str
    end: End
    _index: Index = field(compare=False, repr=False)

    def matches(self, name: str) -> bool:
        return self.end in self._index.ends(name, {})


@dataclass(frozen=True, slots=True)
class SharedByHeader:
    """The same where a header stands for the key."""

    end: End
    index: Index

    def matches(self, headers: Headers) -> bool:
        return self.end in self.index.ends("", headers)


class HeadersRule(Protocol):
    """Says which messages are meant, by their headers."""

    def matches(self, headers: Headers, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class HeaderTest:
    """A binding of an exchange at which headers have a say."""

    binding: Binding
    rule: HeadersRule = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Term:
    """Keys of one exchange: one name if `literal` says so, and of those what every pattern matches.

    Where a headers exchange is on the way, a message's own headers have to pass every test as well.
    """

    exchange: str
    literal: str | None = None
    patterns: tuple[Pattern, ...] = ()
    tests: tuple[HeaderTest, ...] = ()

    def matches(self, name: str) -> bool:
        """Whether a key is meant."""
        return (self.literal is None or name == self.literal) and all(one.matches(name) for one in self.patterns)

    @property
    def alone(self) -> str | None:
        """The one name, if nothing else is asked."""
        return None if self.patterns or self.tests else self.literal


def _known_topics() -> Remembered[Topic, bool]:
    return Remembered(KNOWN_MOST)


def _known_names() -> Remembered[tuple[int, str], bool]:
    return Remembered(KNOWN_MOST)


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics of one vhost: those of any of the terms."""

    vhost: str
    terms: tuple[Term, ...]
    message_type: MessageType = field(default=JSON, compare=False)  # of what it means
    queue: str | None = field(default=None, compare=False)  # the queue that shows it, if that was named
    _known: Remembered[Topic, bool] = field(default_factory=_known_topics, compare=False, repr=False)
    _names: Remembered[tuple[int, str], bool] = field(default_factory=_known_names, compare=False, repr=False)

    @classmethod
    def topic(cls, vhost: str, exchange: str, name: str) -> Selection:
        return cls(vhost, (Term(exchange, name),))

    @classmethod
    def pattern(cls, vhost: str, exchange: str, text: str) -> Selection:
        """All topics of an exchange whose key a regular expression matches somewhere.  InvalidArgument."""
        return cls(vhost, (Term(exchange, None, (_compiled(text),)),))

    @classmethod
    def of_queue(cls, queue: Queue, topology: Topology) -> Selection:
        """What a queue is a view of: its underlying topic, and what its bindings let through."""
        settings = queue.settings
        name = settings.underlying_topic
        if name is None or not name:
            terms = [Term(settings.exchange, queue.name)]
        else:
            pattern = TopicPattern(name)
            terms = [Term(settings.exchange, name) if pattern.literal else Term(settings.exchange, None, (pattern,))]
        for term in _bound(topology, queue.vhost, "queue", queue.name, (), frozenset()):
            if term not in terms:
                terms.append(term)
        return cls(queue.vhost, tuple(terms), settings.message_type, queue.name)

    def wants(self, topic: Topic) -> bool:
        """Whether a message of this interned topic is meant."""
        known = self._known.get(topic)
        if known is None:
            mine = topic.vhost == self.vhost and any(
                term.exchange == topic.exchange and term.matches(topic.name) for term in self.terms
            )
            known = self._known.keep(topic, mine)
        return known

    @property
    def by_headers(self) -> bool:
        """Whether the topic of a message does not say it all."""
        return any(term.tests for term in self.terms)

    def lets(self, topic: Topic, headers: Headers) -> bool:
        """Whether a message of this topic with these headers is meant."""
        return topic.vhost == self.vhost and any(
            term.exchange == topic.exchange
            and term.matches(topic.name)
            and all(one.rule.matches(headers) for one in term.tests)
            for term in self.terms
        )

    @property
    def alone(self) -> tuple[str, str, str] | None:
        """Vhost, exchange and name, if it is one topic."""
        if len(self.terms) != 1 or (name := self.terms[0].alone) is None:
            return None
        return self.vhost, self.terms[0].exchange, name

    # -- for readers of the log

    def names(self) -> Wanted | None:
        """The names that there can be, for the indexes of segments; None: any."""
        if len(self.terms) == 1 and self.terms[0].alone is not None:
            return self.terms[0].alone
        if any(term.literal is None and not term.patterns for term in self.terms):
            return None
        return lambda name: any(term.matches(name) for term in self.terms)

    def mask(self, batch: pa.RecordBatch, known: Mapping[int, tuple[str, str]]) -> Any:
        """Which rows of a batch of the log are meant, as an Arrow array.  Any thread.

        known: what each `via` id stands for.
        """
        exchanges = {term.exchange for term in self.terms}
        vias = {via: one[1] for via, one in list(known.items()) if one[0] == self.vhost and one[1] in exchanges}
        if len(self.terms) == 1 and self.terms[0].alone is not None:
            right = compute.equal(batch.column("name"), pa.scalar(self.terms[0].alone))
            return compute.and_(right, of_vias(batch.column("via"), list(vias)))
        out: Any = None
        for via, exchange in vias.items():
            right = named(batch.column("name"), partial(self._named, via, exchange))
            right = compute.and_(right, of_vias(batch.column("via"), [via]))
            out = right if out is None else compute.or_(out, right)
        return pa.array([False] * batch.num_rows) if out is None else out

    def _named(self, via: int, exchange: str, name: str) -> bool:
        hit = self._names.get((via, name))
        if hit is None:
            hit = any(term.exchange == exchange and term.matches(name) for term in self.terms)
            self._names.keep((via, name), hit)
        return hit


def _compiled(text: str) -> TopicPattern:
    """A regular expression, also where it has no special character."""
    with told_as(InvalidArgument, f"pattern {text[:60]!r} is not a regular expression: "):
        return TopicPattern(text if TopicPattern(text).literal is False else f"(?:{text})")


def _bound(
    topology: Topology, vhost: str, kind: str, name: str, below: tuple[Term, ...], seen: frozenset[str]
) -> Iterator[Term]:
    """The keys that reach a queue or an exchange through bindings.  `below`: what holds on the way from there on."""
    for binding in topology.bindings_to(vhost, kind, name):
        source = binding.source
        exchange = topology.exchange(vhost, source)
        if not source or source in seen or exchange is None:
            continue
        literal: str | None = None
        patterns: tuple[Pattern, ...] = ()
        tests = tuple(test for term in below for test in term.tests)
        match passes_of(exchange):
            case "all":
                pass
            case "shared":
                index, end = index_of(exchange, topology.bindings_from(vhost, source)), end_of(binding)
                if index.by_headers:
                    tests = (HeaderTest(binding, SharedByHeader(end, index)), *tests)
                else:
                    patterns = (Shared(source, end, index),)
            case "words":
                patterns = (BindingKey(binding.key),)
            case "headers":
                tests = (HeaderTest(binding, HeaderRule(binding)), *tests)
            case "key":
                literal = binding.key
        term = Term(source, literal, (*patterns, *below), tests)
        yield term
        yield from _bound(topology, vhost, "exchange", source, (term,), seen | {source})


def rows_of(selection: Selection, topics: Topic | list[Topic]) -> list[int] | None:
    """The rows whose topic is meant; None: all."""
    if isinstance(topics, Topic):
        return None if selection.wants(topics) else []
    wants = selection.wants
    rows = [row for row, topic in enumerate(topics) if wants(topic)]
    return None if len(rows) == len(topics) else rows


def selection_of(core: Core, vhost: str, exchange: str, name: str | None, pattern: str | None = None) -> Selection:
    """What a subscriber means who names a topic, a queue (for what it is a view of), or a pattern of topics.

    Errors: NotFound for a topic whose messages nobody stores, InvalidArgument for a pattern that cannot be used.
    """
    if name is None:
        return Selection.pattern(vhost, exchange, pattern or "")
    if not exchange:
        try:
            queue = core.queue(vhost, name)
        except NotFound:
            pass
        else:
            return Selection.of_queue(queue, core.topology)
    if not core.keeps(vhost, exchange, name):
        where = f"{exchange}/{name}" if exchange else name
        why = f"no queue and no declared topic keeps the messages of topic {where!r} in vhost {vhost!r}"
        raise core.missing_topic(vhost, exchange, name, why)
    return replace(Selection.topic(vhost, exchange, name), message_type=core.message_type(vhost, exchange, name))


def selection_for(
    core: Core, rights: Rights | None, vhost: str, exchange: str, name: str | None, pattern: str | None = None
) -> Selection:
    """The same for somebody with these rights; AccessRefused, as what is there is not told to who may not read it.

    A queue that he is shown, or of whose topics he may read some, stands for these, which `sieve_of` judges; any other
    name is that of a topic.
    """
    if name is not None and rights is not None:
        queue = None if exchange else core.find_queue(vhost, name)
        stands = queue is not None and _reads_some(rights, Selection.of_queue(queue, core.topology))
        if not stands and (queue is None or not rights.sees_queue(vhost, name)):
            rights.read_topic(vhost, exchange, name, whole=False)
    return selection_of(core, vhost, exchange, name, pattern)


def _reads_some(rights: Rights, selection: Selection) -> bool:
    """Whether somebody may read some of the chosen topics, as far as that is known without their names."""
    for term in selection.terms:
        if term.alone is not None:
            found = [rights.reads_topic(selection.vhost, term.exchange, term.alone)]
        else:
            found = [right is not False for _, right in rights.topic_rights(selection.vhost, term.exchange)]
        if any(right is not False for right in found):
            return True
    return False


def read_on(core: Core, selection: Selection, sieve: Sieve) -> Sieve:
    """A sieve by what the bodies are at present, where that goes on from what they were when it was made."""
    if selection.alone is not None:
        sieve = sieve.reading(core.message_type(*selection.alone))
    queue = None if selection.queue is None else core.find_queue(selection.vhost, selection.queue)
    return sieve if queue is None else sieve.reading(queue.settings.message_type)


def refuse_mixed(core: Core, selection: Selection, text: str | None, rights: Rights | None) -> None:
    """As `refuse_several`, where a filter or a right asks for fields."""
    asked = text is not None
    for term in selection.terms if rights is not None and not asked else ():
        assert rights is not None
        asked |= any(isinstance(right, str) for _, right in rights.topic_rights(selection.vhost, term.exchange))
    if asked and selection.message_type == JSON:
        refuse_several(core, selection)


def select_of(core: Core, selection: Selection, wanted: SelectList | None) -> SelectList | None:
    """A select list as it reads what is chosen.  InvalidArgument where its bodies cannot be cut."""
    if wanted is None:
        return None
    if selection.message_type == JSON:
        refuse_several(core, selection)
    return wanted.reading(selection.message_type)


def refuse_several(core: Core, selection: Selection) -> None:
    """InvalidArgument where one of several chosen topics is known to have other bodies than JSON.

    Whoever asks something of the bodies of several topics reads JSON.
    """
    declared = ((key, settings.get(MESSAGE_TYPE, JSON)) for key, settings in core.topology.topics.items())
    shown = (
        ((one.vhost, one.settings.exchange, one.settings.underlying_topic or one.name), one.settings.message_type)
        for one in core.queues()
    )
    for (vhost, exchange, name), kind in chain(declared, shown):
        if kind != JSON and selection.wants(Topic(vhost, exchange, name)):
            raise InvalidArgument(
                f"topic {name!r} is among those that are chosen, and its bodies are {shown_type(str(kind))}: what asks "
                "for fields of several topics reads JSON; read it by itself"
            )


@dataclass(frozen=True, slots=True)
class Sieve:
    """A filter, and the rights of one user to topics.  Equal ones let the same messages through.

    `chosen`: what of the topics is meant, where their messages' headers say it.
    """

    filter: Filter | None = field(compare=False)
    rights: Rights | None
    text: str | None  # of the filter
    chosen: Selection | None = None
    message_type: MessageType = field(default=JSON, compare=False)

    def reading(self, kind: MessageType) -> Sieve:
        """The same for bodies of a type, where that one goes on from the one that it reads."""
        if kind == self.message_type or not goes_on(kind, self.message_type):
            return self
        own = None if self.filter is None else self.filter.reading(kind)
        return replace(self, filter=own, text=None if self.text is None else typed(self.text, kind), message_type=kind)

    @property
    def plain(self) -> bool:
        """Whether the filter is all there is."""
        return self.rights is None and self.chosen is None

    def passed(self, messages: Messages, ask: Ask | None = None, *, here: bool) -> list[int]:
        """The places of the messages that may be seen and are wanted, ascending.  here: on the loop, at once."""
        if self.plain:
            assert self.filter is not None
            return _matching(self.filter, messages, ask, here=here)
        out = list[int]()
        for chosen, rows in self._asked(messages).items():
            if chosen is None:
                out += rows
                continue
            out += [rows[hit] for hit in _matching(chosen, messages.some(rows), ask, here=here)]
        return sorted(out)

    def _asked(self, messages: Messages) -> dict[Filter | None, list[int]]:
        """What each filter is to be asked about; None: what may be seen and is wanted without a question."""
        places = dict[Filter | None, list[int]]()
        for row in range(len(messages.bodies)):
            topic = messages.topic_of(row)
            if self.chosen is not None:
                data = messages.properties_of(row)
                if not self.chosen.lets(topic, Told(read_traits(data).headers, data)):
                    continue
            right = True if self.rights is None else _right(self.rights, topic)
            if right is not False:
                chosen = self.filter if right is True else narrowed(self.text, right)
                chosen = None if chosen is None else chosen.reading(self.message_type)
                places.setdefault(chosen, []).append(row)
        return places


def _right(rights: Rights, topic: Topic) -> bool | Filter:
    """Whether messages of one of several topics may be read; a filter: those that match."""
    if rights.fields(topic.vhost, topic.exchange, topic.name) is not None:
        return False  # of several topics those that may be read whole
    return rights.reads_topic(topic.vhost, topic.exchange, topic.name)


def sieve_of(selection: Selection, text: str | None, rights: Rights | None) -> Sieve | None:
    """What lies between the chosen topics and the subscriber; None: nothing.  AccessRefused, ExpressionError.

    Whoever takes the messages cuts them to `fields_of`.
    """
    chosen, kind = selection if selection.by_headers else None, selection.message_type
    text = None if text is None else typed(text, kind)
    if rights is None:
        own = None if text is None else compile_filter(text)
        return None if own is None and chosen is None else Sieve(own, None, text, chosen, kind)
    term = selection.terms[0]
    if len(selection.terms) == 1 and term.alone is not None:
        asks_shown(rights.user, fields_of(selection, rights), [text])
        filter = narrowed(text, rights.read_topic(selection.vhost, term.exchange, term.alone, whole=False))
        filter = None if filter is None else filter.reading(kind)
        return None if filter is None else Sieve(filter, None, filter.text, None, kind)
    return Sieve(None if text is None else compile_filter(text), rights, text, chosen, kind)


def fields_of(selection: Selection, rights: Rights | None) -> SelectList | None:
    """Which fields of the chosen topics a subscriber may read; None: all, for of several he gets what is whole."""
    term = selection.terms[0]
    if rights is None or len(selection.terms) > 1 or term.alone is None:
        return None
    return rights.fields(selection.vhost, term.exchange, term.alone)


def _matching(filter: Filter, messages: Messages, ask: Ask | None, *, here: bool) -> list[int]:
    if here:
        return [place for place, yes in enumerate(filter.matches(*messages)) if yes]
    return look([filter], messages, ask)[0]
