"""What a user may read and write: the entitlements of the settings, the first that fits deciding.

Without any configured everything is allowed, and nothing here is asked.  With one configured, what none allows is
refused.  Reading a queue includes acknowledging; writing to one is publishing through it to its target.  A right may be
a filter: then it holds for the messages that the filter is TRUE of, and whoever reads gets those alone.

Rights are looked up when somebody subscribes, asks or publishes to a topic for the first time; settings do not change
while the server runs.  Who may declare and delete comes later: until then it takes the administrator's tag, but for a
queue that shows nothing but its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.sow.select import SelectList, parse_select
from penstock.core.topology.topology import EVENTS, TRACE
from penstock.errors import AccessRefused, ExpressionError, InvalidArgument, SettingsError, told_as
from penstock.expr import Filter, TopicPattern, compile_filter, parse
from penstock.expr.context import Context, Group
from penstock.expr.filter import bound
from penstock.expr.tree import Field, walk_tree
from penstock.records.dataclass import dataclass
from penstock.records.message_types import typed, untyped
from penstock.records.queue_settings import QueueSettings
from penstock.records.remembered import Remembered
from penstock.records.rights import ADMINISTRATOR, MONITORING

if TYPE_CHECKING:
    from penstock.config.vhost_sections import EntitlementSection
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue

Need: TypeAlias = "tuple[str, str, str]"
"""What a change needs of a thing: `configure`, `write` or `read`; `queue` or `exchange`; its name."""

Right: TypeAlias = "bool | Filter"
"""All, nothing, or what a filter lets through."""

REMEMBERED = 10_000
"""Answers that are kept for one user, and users whose answers are kept."""

PLAIN = QueueSettings()
"""Settings of a queue that shows its own name alone and sends nothing elsewhere, in the keys that matter."""

_ELSEWHERE = ("underlying_topic", "exchange", "default_publish_target", "dead_letter_exchange", "expiry_address")


@dataclass(frozen=True, slots=True)
class Entitlement:
    """One entry, compiled."""

    user: TopicPattern | None
    tag: str | None
    topic: TopicPattern | None
    queue: TopicPattern | None
    vhost: str
    exchange: str
    read: Right
    write: Right
    asking: tuple[tuple[str, str], ...] = ()  # key and text of rights that ask who the user is
    select: SelectList | None = None  # which fields of bodies are read

    def bound(self, asks: Context) -> Entitlement:
        """The entry for one user."""
        given = {key: compile_filter(bound(text, asks)) for key, text in self.asking}
        return replace(self, read=given.get("read", self.read), write=given.get("write", self.write)) if given else self

    def of(self, user: str, tags: Sequence[str]) -> bool:
        """Whether it is about this user."""
        return (self.user is None or self.user.matches(user)) and (self.tag is None or self.tag in tags)

    def on_topic(self, vhost: str, exchange: str, name: str) -> bool:
        """Whether it is about this topic."""
        if self.vhost != vhost or self.queue is not None:
            return False
        return self.topic is None or (self.exchange == exchange and self.topic.matches(name))

    def on_queue(self, vhost: str, name: str) -> bool:
        """Whether it is about this queue."""
        if self.vhost != vhost or self.topic is not None:
            return False
        return self.queue is None or self.queue.matches(name)


class Entitlements:
    """All entries, in their order.  Raises SettingsError for an expression that cannot be read."""

    def __init__(
        self,
        sections: Iterable[EntitlementSection],
        tags: Callable[[str], Sequence[str]],
        instance: str = "",
        enters: Callable[[str, str], bool] = lambda user, vhost: True,
    ) -> None:
        """instance: the server's name.  enters: whether a user may open a vhost; entries about others are not his."""
        self._instance = instance
        self._enters = enters
        self._entries = list[Entitlement]()
        for number, section in enumerate(sections, 1):
            with told_as(SettingsError, f"[[entitlement]] number {number} ", instead=SettingsError):
                self._entries.append(compiled(section))
        self._tags = tags
        self._rights = Remembered[str, Rights](REMEMBERED)

    def forget(self) -> None:
        """Rights that were looked up are asked for anew: users of run time have changed."""
        self._rights = Remembered[str, Rights](REMEMBERED)

    def rights(self, user: str) -> Rights | None:
        """Of one user; None where nothing is limited.  Any thread."""
        if not self._entries:
            return None
        rights = self._rights  # whoever forgets puts another one there
        found = rights.get(user)
        if found is None:
            tags = self._tags(user)
            asks = Context(user=user, instance_name=self._instance)
            mine = [
                entry.bound(asks) for entry in self._entries if entry.of(user, tags) and self._enters(user, entry.vhost)
            ]
            found = rights.keep(user, Rights(user, mine, tags))
        return found


def compiled(section: EntitlementSection) -> Entitlement:
    """One entry of the settings, its patterns and filters compiled.  SettingsError names key and mistake."""
    asking = list[tuple[str, str]]()

    def right(key: str, value: bool | str) -> Right:
        if isinstance(value, bool):
            return value
        try:
            text = bound(value, Context(user="user", instance_name="instance"))
            if text != value:
                asking.append((key, value))
            return compile_filter(text)
        except ExpressionError as error:
            raise SettingsError(f"{key}: {error.pointed()}") from error

    def named(text: str | None) -> TopicPattern | None:
        return None if text is None else TopicPattern(text)

    read, write = right("read", section.read), right("write", section.write)
    return Entitlement(
        named(section.user), section.tag, named(section.topic), named(section.queue), section.vhost, section.exchange,
        read, write, tuple(asking), _fields(section.select),
    )  # fmt: skip


class Rights:
    """What one user may do.  Refusals are AccessRefused, and name user and object."""

    def __init__(self, user: str, entries: Sequence[Entitlement], tags: Sequence[str]) -> None:
        self.user = user
        self.administrator = ADMINISTRATOR.holds(tags)
        self.monitors = MONITORING.holds(tags)  # is shown everything that is there, whatever he may read
        self.entries = entries
        self._known = Remembered[tuple[str, ...], Right](REMEMBERED)
        self._fields = Remembered[tuple[str, str, str], SelectList | None](REMEMBERED)

    # -- what an entry says

    def _remembered(self, key: tuple[str, ...], look: Callable[[], Right]) -> Right:
        found = self._known.get(key)
        return self._known.keep(key, look()) if found is None else found

    def _of_topic(self, kind: str, *named: str) -> Right:
        """What the first entry about it says."""
        every = (getattr(one, kind) for one in self.entries if one.on_topic(*named))
        return self._remembered((kind, "topic", *named), lambda: next(every, False))

    def _of_queue(self, kind: str, *named: str) -> Right:
        every = (getattr(one, kind) for one in self.entries if one.on_queue(*named))
        return self._remembered((kind, "queue", *named), lambda: next(every, False))

    def reads_topic(self, vhost: str, exchange: str, name: str) -> Right:
        """What of a topic the user may read."""
        return not self.reserved(vhost, "read", exchange) and self._of_topic("read", vhost, exchange, name)

    def writes_topic(self, vhost: str, exchange: str, name: str) -> Right:
        """What the user may publish to a topic."""
        return self._of_topic("write", vhost, exchange, name)

    def reads_queue(self, vhost: str, name: str) -> Right:
        """What of a queue the user may read and acknowledge."""
        return self._of_queue("read", vhost, name)

    def writes_queue(self, vhost: str, name: str) -> Right:
        """What the user may publish through a queue."""
        return self._of_queue("write", vhost, name)

    def sees_queue(self, vhost: str, name: str) -> bool:
        """Whether the user is shown a queue's name and figures."""
        return (
            self.monitors or self.reads_queue(vhost, name) is not False or self.writes_queue(vhost, name) is not False
        )

    def sees_topic(self, vhost: str, exchange: str, name: str) -> bool:
        """The same of a topic."""
        return self.monitors or self.reads_topic(vhost, exchange, name) is not False

    def reserved(self, vhost: str, kind: str, exchange: str) -> bool:
        """Whether to read or write an exchange is not this user's, whatever else says.

        Events tell of all vhosts, and of people.  What the server alone has to say nobody else says.
        """
        own = (vhost, exchange) == ("/", EVENTS) if kind == "read" else kind == "write" and exchange in {EVENTS, TRACE}
        return own and not self.administrator

    def topic_rights(self, vhost: str, exchange: str) -> tuple[tuple[str | None, bool | str], ...]:
        """What the user may read of the topics of an exchange: which, and all, nothing or an expression; in order.

        Nothing of those whose fields are not all read: who chooses several topics gets them whole.
        """
        return tuple(
            (None if one.topic is None else one.topic.text, _read_whole(one))
            for one in self.entries
            if one.vhost == vhost and one.queue is None and (one.topic is None or one.exchange == exchange)
            if not self.reserved(vhost, "read", exchange)
        )

    # -- what a door asks

    def see_queue(self, vhost: str, name: str) -> None:
        """AccessRefused unless the user is shown the queue."""
        if not self.sees_queue(vhost, name):
            raise refused("see", f"queue '{name}' in vhost '{vhost}'", self.user)

    def see_topic(self, vhost: str, exchange: str, name: str) -> None:
        """AccessRefused unless the user is shown the topic."""
        if not self.sees_topic(vhost, exchange, name):
            raise self.unread(vhost, exchange, name, "see")

    def unread(self, vhost: str, exchange: str, name: str, verb: str = "read") -> AccessRefused:
        """The error for a topic that the user may not read, as he named it, whether it is there or not."""
        return refused(verb, told(vhost, exchange, name), self.user)

    def find(self, vhost: str, thing: str, name: str) -> None:
        """AccessRefused unless the user may ask whether a queue or an exchange is there, to use it."""
        if thing == "queue":
            self.see_queue(vhost, name)

    def read_queue(self, vhost: str, name: str) -> Filter | None:
        """What of it the user may read; None: all.  Raises AccessRefused."""
        return self._granted(self.reads_queue(vhost, name), "read", f"queue '{name}' in vhost '{vhost}'")

    def take(self, vhost: str, name: str) -> None:
        """AccessRefused unless the user may consume a part of a queue; of a pattern of queues he gets what he may."""
        if TopicPattern(name).literal:
            self.read_queue(vhost, name)

    def read_topic(self, vhost: str, exchange: str, name: str, *, whole: bool = True) -> Filter | None:
        """The same of a topic.  whole: all fields are meant; else `fields` says which may be sent."""
        if (right := self.reads_topic(vhost, exchange, name)) is False:
            raise self.unread(vhost, exchange, name)
        found = None if right is True else right
        if whole and self.fields(vhost, exchange, name) is not None:
            raise AccessRefused(
                f"this needs the right to read all fields of {told(vhost, exchange, name)}; "
                f"user '{self.user}' may read a part of them"
            )
        return found

    def fields(self, vhost: str, exchange: str, name: str) -> SelectList | None:
        """Which fields of a topic's bodies the user may read; None: all."""
        key = vhost, exchange, name
        if key not in self._fields:
            self._fields.keep(key, next((one.select for one in self.entries if one.on_topic(*key)), None))
        return self._fields[key]

    def read_all_of_queue(self, vhost: str, name: str, what: str) -> None:
        """AccessRefused unless the user may read the whole queue.  `what` needs that."""
        if self.read_queue(vhost, name) is not None:
            raise AccessRefused(
                f"{what} needs the right to read all of queue '{name}' in vhost '{vhost}'; "
                f"user '{self.user}' may read a part of it"
            )

    def publish(self, core: Core, vhost: str, exchange: str, key: str) -> Filter | None:
        """What the user may publish under a key; None: all.  On the loop.  Raises AccessRefused.

        The name of a queue that shows another topic stands for the queue.  Where a queue shows its own name the
        first entry about the topic or the queue decides.  Whether there is a queue a refusal does not tell.
        """
        queue = core.find_queue(vhost, key) if not exchange else None
        kind = core.message_type(vhost, exchange, key) if queue is None else queue.settings.message_type
        right = self._may_publish(queue, vhost, exchange, key)
        return None if right is None else right.reading(kind)

    def _may_publish(self, queue: Queue | None, vhost: str, exchange: str, key: str) -> Filter | None:
        if queue is None:
            right = self.writes_topic(vhost, exchange, key)
        elif queue.settings.underlying_topic not in {None, key}:
            right = self.writes_queue(vhost, key)
        else:
            either = (one.write for one in self.entries if one.on_queue(vhost, key) or one.on_topic(vhost, "", key))
            right = self._remembered(("write either", vhost, "", key), lambda: next(either, False))
        return self._granted(right, "write", told(vhost, exchange, key))

    def configure(self, what: str, vhost: str = "/", needs: Iterable[Need] = ()) -> None:
        """AccessRefused unless the user may change the topology.

        vhost, needs: where, and what the change needs there, which permissions ask for; entitlements ask for the tag.
        """
        if not self.administrator:
            tag = ADMINISTRATOR.name
            raise AccessRefused(f"{what}: where entitlements are configured, for users with the tag '{tag}'")

    def writes(self, what: str) -> None:
        """AccessRefused for who was not made for writing anything: what is his user's is not his to go on with."""

    def binds(self, core: Core, vhost: str, source: str, key: str) -> None:
        """AccessRefused unless the user may bind to an exchange, or unbind, with this key; beside `configure`."""

    def declare(self, vhost: str, name: str, settings: QueueSettings, present: Queue | None) -> None:
        """AccessRefused unless the user may declare this queue, or find that it is there."""
        if self.administrator:
            return
        if present is not None and self.sees_queue(vhost, name):
            return
        if any(getattr(settings, key) != getattr(PLAIN, key) for key in _ELSEWHERE):
            self.configure(f"declaring queue '{name}', which shows or feeds other topics")
        if self.reads_queue(vhost, name) is False:
            raise refused("declare", f"queue '{name}' in vhost '{vhost}'", self.user)

    def alter(self, vhost: str, name: str, settings: QueueSettings, before: QueueSettings) -> None:
        """AccessRefused where a queue would show or feed what the user could not declare a queue for."""
        if not self.administrator and any(getattr(settings, key) != getattr(before, key) for key in _ELSEWHERE):
            self.declare(vhost, name, settings, None)

    def _granted(self, right: Right, verb: str, what: str) -> Filter | None:
        if right is False:
            raise refused(verb, what, self.user)
        return None if right is True else right


def _fields(text: str | None) -> SelectList | None:
    with told_as(SettingsError, instead=InvalidArgument):
        return parse_select(() if text is None else [text])


def _read_whole(entry: Entitlement) -> bool | str:
    if entry.select is not None:
        return False
    return entry.read if isinstance(entry.read, bool) else entry.read.text


def asks_shown(user: str, fields: SelectList | None, texts: Iterable[str | None]) -> None:
    """AccessRefused for an expression that asks for a field that its user may not read: what it chose would tell it."""
    if fields is None:
        return
    for node in chain.from_iterable(walk_tree(parse(text)) for text in texts if text):
        if isinstance(node, Field) and node.source == "body":
            path = [step for step in node.steps if isinstance(step, str)]
            if not fields.shows(path):
                raise AccessRefused(f"user '{user}' may not read the field /{'/'.join(path)}, nor ask for it")


def exchange_needs(name: str, alternate: object) -> list[Need]:
    """What declaring an exchange needs; alternate: its argument `alternate-exchange`."""
    needs: list[Need] = [("configure", "exchange", name)]
    if isinstance(alternate, str):
        needs += [("read", "exchange", name), ("write", "exchange", alternate)]
    return needs


def told(vhost: str, exchange: str, name: str) -> str:
    """A topic, for a person."""
    return f"topic '{f'{exchange}/' if exchange else ''}{name}' in vhost '{vhost}'"


def refused(verb: str, what: str, user: str) -> AccessRefused:
    """The error for a user who may not `verb` a thing, which is named as he named it."""
    return AccessRefused(f"access to {what} refused for user '{user}': no right to {verb}")


def narrowed(text: str | None, right: Filter | None, known: frozenset[Group] = frozenset()) -> Filter | None:
    """The filter of somebody who asks, and that of his right: both must hold.  ExpressionError for the text alone.

    A right reads what it is asked about, so whoever asks about other bodies than JSON has both read these (`reading`).
    """
    own = None if text is None else compile_filter(text, known)
    if right is None or own is None:
        return own if right is None else right
    return compile_filter(both(own.text, right.text), known)


def narrowed_text(text: str | None, right: Filter | None, known: frozenset[Group] = frozenset()) -> str | None:
    """What `narrowed` gives, as the text that a command carries."""
    chosen = narrowed(text, right, known)
    return None if chosen is None else chosen.text


def both(own: str, right: str) -> str:
    """One expression of two that can be read by themselves; bodies are read as the first says."""
    kind, text = untyped(own)
    _, other = untyped(typed(right, kind))
    return typed(f"({text.lstrip()}) AND ({other.lstrip()})", kind)
