"""Actions that run beside the core: on publish, delivery, acknowledgement and schedule, and what an expiry leaves over.

    what happened -> events (LSNs, not bodies) -> durable -> rows, a few at a time -> conditions -> steps in order

Events are looked at in their order, one message after the other, in slices between which everybody else has a turn.
What they publish is an ordinary message.  What a record of the log sets off and a crash interrupts is taken up again:
`ledger` says what is done, `resuming` looks for the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.acted import HOPS_MOST, OWN, Led, run_lead, too_many
from penstock.core.action_rules import Happening, Rule, copied, pattern
from penstock.core.effects import Act, Gone, Question
from penstock.core.publishing.evaluating import answers_of
from penstock.errors import Refused
from penstock.expr import Filter, TopicPattern
from penstock.expr.bodies import heavy
from penstock.expr.context import LOOP_BODY
from penstock.records.chunks import LSN_LIMIT, Chunk, as_chunk
from penstock.records.entries import Control, Entry, Group, Publishes, Rows, Topic
from penstock.records.event_actions import OnPublish
from penstock.records.kinds import Kind
from penstock.records.remembered import Remembered
from penstock.server.actions.resuming import Resuming
from penstock.server.actions.steps import HEADER, Counts, Portion, Steps
from penstock.server.actions.triggers import (
    EMPTY,
    Chosen,
    Event,
    Ledger,
    RemovalWatch,
    Run,
    Timing,
    chosen_rows,
    joins,
    publisher_of,
)

if TYPE_CHECKING:
    from penstock.core.commands.deliveries import Delivery
    from penstock.core.queue.queue import Queue
    from penstock.server.asking.judging import Judges
    from penstock.server.base.runtime import Runtime

TOPICS_MOST = 1 << 16
"""Topics of which it is remembered what they set off."""

SLICE = 128
"""Actions that begin in one turn."""

PENDING_MOST = 1_000_000
"""Messages that may wait for their actions; more are counted as failures and set off nothing."""


class Acts:
    """The actions of an engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, judges: Judges) -> None:
        self.runtime = runtime
        self.judges = judges
        rules = runtime.core.rules
        self._rules = rules
        self.counts = Counts(runtime.clock)
        self.ledger = Ledger(runtime)
        self.removals = RemovalWatch(runtime.core, rules, self.removed)
        self.resuming = Resuming(runtime, self.ledger, self.removals, self.rules_of, self.resumed)
        self.steps = Steps(runtime, judges, self.counts, self.ledger)
        self.timing = Timing(runtime, self.due)
        self.publishes = bool(rules.publish)  # whether the journal has to be looked at
        self.delivers = bool(rules.deliver)
        # by topic, and whether another site published there
        self._topics = Remembered[tuple[Topic, bool], Chosen](TOPICS_MOST)
        self._version = -1
        self._events: deque[Event] = deque()  # whose messages are not fetched yet, in order of what happened
        self._runs: deque[Run] = deque()  # ready to go on, in order
        self.waiting = 0  # messages in `_events`
        self._busy = False  # rows are on their way, or a step waits for an answer
        self._reading: Chunk = range(0)
        self._portion = Portion()
        self._scheduled = self._hooked = self._crowded = False
        runtime.readers.append(self._floor)
        runtime.on_checkpoint.append(self.ledger.note)

    # -- what happened

    def look(self, journal: Sequence[Entry]) -> None:
        """What a turn decided: messages that were published."""
        for entry in journal:
            if isinstance(entry, Publishes):
                self._published(entry, "")
            elif isinstance(entry, Group):
                said = [one for one in entry.entries if isinstance(one, Control)]
                client = next(map(publisher_of, said), "")
                carried = any(one.kind is Kind.CARRIED for one in said)
                for part in entry.entries:
                    if isinstance(part, Publishes):
                        self._published(part, client, carried=carried)

    def _published(self, batch: Publishes, client: str, *, carried: bool = False) -> None:
        """carried: they were published at another site."""
        if self._version != self.runtime.core.topology_version:
            self._topics.clear()
            self._version = self.runtime.core.topology_version
        first, topics, hops = batch.first, batch.topics, self.runtime.core.hops
        known = hops.any(first, first + len(batch))
        if isinstance(topics, Topic) and not known:
            if rules := self.rules_of(topics, carried):
                self._add(Event(rules, range(first, first + len(batch)), first + len(batch) - 1, "", client, cause=OWN))
            return
        rows: dict[tuple[Chosen, int], list[int]] = {}
        for row in range(len(batch)):
            if rules := self.rules_of(batch.topic_of(row), carried):
                before = hops.of(first + row) if known else 0
                rows.setdefault((rules, before), []).append(first + row)
        for (rules, before), lsns in rows.items():
            self._add(Event(rules, as_chunk(lsns), lsns[-1], "", client, before, cause=OWN))

    def rules_of(self, topic: Topic, carried: bool = False) -> Chosen:
        """What messages of a topic set off; carried: those that were published at another site."""
        found = self._topics.get((topic, carried))
        if found is None:
            other = "local" if carried else "replicated"
            rules = tuple(
                (rule, chosen, None, "")
                for on, named, chosen, rule in self._rules.publish
                if on.source != other and self._shows(on, named, topic)
            )
            found = self._topics.keep((topic, carried), rules)
        return found

    def _shows(self, on: OnPublish, named: TopicPattern, topic: Topic) -> bool:
        """Whether a trigger means a topic.  A queue's name stands for the topics that the queue shows."""
        if on.vhost != topic.vhost:
            return False
        if named.literal and not on.exchange:
            queue = self.runtime.core.find_queue(on.vhost, on.topic)
            if queue is not None and queue.settings.underlying_topic is not None:
                below = pattern(queue.settings.underlying_topic)
                return queue.settings.exchange == topic.exchange and below.matches(topic.name)
        return on.exchange == topic.exchange and named.matches(topic.name)

    def delivered(self, effect: Delivery) -> None:
        """A queue's messages are on their way to a consumer."""
        queue = effect.queue
        rules = tuple(
            (rule, None, named, on.exchange) for on, named, rule in self._rules.deliver if on.vhost == queue.vhost
        )
        if rules:
            client = effect.consumer.client or effect.consumer.tag
            after = max(effect.after, effect.chunk[-1])
            self._add(Event(rules, effect.chunk, after, queue.name, client, self.runtime.core.hops.of(effect.chunk[0])))

    def gone(self, effect: Gone[Queue]) -> None:
        """A queue's messages are acknowledged."""
        queue = effect.queue
        rules = tuple((rule, None, None, "") for rule in self._rules.delete.get((queue.vhost, queue.name), ()))
        for chunk in effect.chunks:
            hops = self.runtime.core.hops.of(chunk[0])
            self._add(Event(rules, chunk, effect.after, queue.name, "", hops, cause=effect.after))

    def removed(self, rules: Chosen, lsns: Sequence[int], after: int, name: str, reason: str, *, oof: bool) -> None:
        """Records of a topic are gone: those at these LSNs, ascending."""
        event = Event(rules, as_chunk(lsns), after, name, hops=self.runtime.core.hops.of(lsns[0]))
        event.reason, event.oof, event.cause = reason, oof, after
        self._add(event)

    def go_on(self, effect: Act, cause: int | None = None) -> None:
        """What an expiry leaves to do, or that it failed.  cause: as of an event; None: the record of the removal."""
        if effect.failed:
            self.failed(effect.rule, effect.failed, reason="rounds" if effect.hops >= HOPS_MOST else "publish")
            return
        run = Run(effect.rule, effect.step, effect.happening, effect.hops, effect.after)
        run.cause, run.chunk = effect.after if cause is None else cause, as_chunk([effect.happening.lsn])
        condition = effect.rule.condition
        self.ledger.open(run.place)
        if effect.judged or condition is None:
            self._runs.append(run)
            self._wake()
            return
        happening = effect.happening
        batch = Publishes(Topic("", "", happening.topic), happening.properties, [happening.data])
        self.judges.evaluate(batch, [Question(condition, [0])], partial(self._weighed, run, batch, condition))

    def _weighed(self, run: Run, batch: Publishes, condition: Filter) -> None:
        """The condition of an action was evaluated off the loop."""
        if answers_of(batch, condition)[0]:
            self._runs.append(run)
            self._wake()
        else:
            self.ledger.close(run.place)

    def due(self, rule: Rule) -> None:
        happening = Happening(self.runtime.now().wall, self.runtime.core.instance)
        if rule.wants([happening])[0]:
            self._runs.append(Run(rule, 0, happening, 0, 0))
            self._wake()

    def linked(self, event: str, link: str, variables: Mapping[str, str], why: str) -> None:
        """Something happened to a link that leads to another site."""
        for on, named, rule in self._rules.link:
            if on.event == event and named.matches(link):
                happening = Happening(self.runtime.now().wall, self.runtime.core.instance, why=why)
                happening.added.update({name: text.encode() for name, text in variables.items()})
                if rule.wants([happening])[0]:
                    self._runs.append(Run(rule, 0, happening, 0, 0))
                    self._wake()

    def _add(self, event: Event) -> None:
        count = len(event.chunk)
        if self.waiting + count > PENDING_MOST:
            for rule, *_ in event.rules:
                why = f"{self.waiting} messages wait for their actions; for {count} more it is not run"
                self.failed(rule, why, count, reason="waiting")
            return
        last = self._events[-1] if self._events else None
        self.waiting += count
        if last is not None and joins(last, event):
            last.chunk = range(last.chunk[0], event.chunk[-1] + 1)
            last.after = event.after
        else:
            self._events.append(event)
            self.ledger.open(event.place)
        self._wake()

    def resumed(self, events: Sequence[Event]) -> None:
        """What an earlier process left, each open; it comes before all that happened since."""
        self._events.extendleft(reversed(events))
        self.waiting += sum(len(event.chunk) for event in events)
        self._wake()

    # -- running

    def _wake(self) -> None:
        """Go on when the oldest that waits is durable.  Nothing is hurried for it."""
        if self._busy or self._scheduled or self.resuming.running or self.runtime.broken is not None:
            return
        after = self.waits_for()
        if after is None:
            return
        if after <= self.runtime.log.durable:
            self._scheduled = True
            self.runtime.call_soon(self._go)
        elif not self._hooked:
            self._hooked = True
            self.runtime.on_commit.append(self._committed)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        return not (self._runs or self._events or self._busy or self.resuming.running)

    def waits_for(self) -> int | None:
        """The LSN that has to be durable for the oldest that waits; None: nothing waits."""
        if self._runs:
            return self._runs[0].after
        return self._events[0].after if self._events else None

    def _committed(self) -> None:
        self._hooked = False
        self._wake()

    def _go(self) -> None:
        """A slice of the work."""
        self._scheduled = False
        runtime = self.runtime
        if self._busy or runtime.broken is not None:
            return
        if not runtime.has_room():
            if not self._crowded:
                self._crowded = True
                runtime.on_room.append(self._has_room)
            return
        left = SLICE
        while left and self._runs and self._runs[0].after <= runtime.log.durable and not self._busy:
            left -= 1
            self._busy = True
            self.steps.run(self._runs.popleft(), self._done)
        if not self._runs and not self._busy and left:
            self._fetch()
        self.ledger.tell()
        runtime.arm()
        self._wake()

    def _has_room(self) -> None:
        self._crowded = False
        self._wake()

    def _done(self, run: Run) -> None:
        if run.failed and self.steps.programs.stopped:
            return  # the stop has ended it: the next start does it again, and nothing comes before that
        self._busy = False
        lost = min(run.lost, run.count) if run.failed else 0
        if run.failed:
            self.failed(run.rule, run.failed, lost, reason=run.trouble)
        self.counts.of(run.rule.name).runs += run.count - lost
        self.ledger.done(run)
        if not run.inline:
            self.ledger.tell()
            self.runtime.arm()
            self._wake()

    def _fetch(self) -> None:
        """The next few messages that something happened to."""
        if not self._events or self._events[0].after > self.runtime.log.durable:
            return
        event = self._events[0]
        chunk = event.chunk[: self._portion.rows]
        event.chunk = event.chunk[len(chunk) :]
        self.waiting -= len(chunk)
        place = chunk[0] if event.cause == OWN else event.cause
        if not len(event.chunk) or event.cause == OWN:
            self.ledger.close(place)  # what is left of the event has a later one, if it has any
        self.ledger.open(place)
        if len(event.chunk) and event.cause == OWN:
            self.ledger.open(event.chunk[0])
        if not len(event.chunk):
            self._events.popleft()
        self._busy = True
        self._reading = chunk
        self.runtime.read_rows(chunk, partial(self._fetched, event))

    def _fetched(self, event: Event, rows: Rows) -> None:
        """Their rows; what their filters cannot judge here is judged off the loop first."""
        self._portion.read(sum(map(len, rows.bodies)), len(rows))
        filters = {one for rule, chosen, _, _ in event.rules for one in (rule.condition, chosen) if one is not None}
        sizes = list(map(len, rows.bodies))
        large = any(heavy(one.message_type, sizes) for one in filters)
        batch = Publishes(rows.topics, rows.properties, rows.bodies)
        then = partial(self._judged, event, rows, batch)
        if large:
            self.judges.evaluate(batch, [Question(one, list(range(len(rows)))) for one in filters], then)
        else:
            then()

    def _judged(self, event: Event, rows: Rows, batch: Publishes) -> None:
        self._busy = False
        place = self._reading[0] if event.cause == OWN else event.cause
        self._reading = range(0)
        happenings = self._happenings(event, rows)
        asked = [(entry[0], chosen_rows(entry, event, rows, batch)) for entry in event.rules]
        if event.hops < HOPS_MOST and not event.step and max(map(len, rows.bodies), default=0) <= LOOP_BODY:
            asked = [(rule, wants) for rule, wants in asked if not self._together(rule, wants, happenings, event)]
        for i, happening in enumerate(happenings):
            for rule, wants in asked:
                if not wants[i]:
                    continue
                if event.hops >= HOPS_MOST:
                    self.failed(rule, too_many(event.hops), reason="rounds")
                    continue
                run = Run(rule, 0, copied(happening), event.hops, 0)
                run.chunk, run.cause, run.begins = as_chunk([happening.lsn]), event.cause, event.step
                self.ledger.open(run.place)
                self._runs.append(run)
        self.ledger.close(place)
        self.runtime.arm()
        self._wake()

    def _happenings(self, event: Event, rows: Rows) -> list[Happening]:
        """What happened to each message, as conditions and steps see it."""
        core = self.runtime.core
        now = self.runtime.now().wall
        return [
            Happening(
                now,
                core.instance,
                event.queue or rows.topics[i].name,
                rows.bodies[i],
                rows.properties[i],
                event.reason,
                bookmark=f"{core.origin}|{lsn}|",
                client=event.client,
                stamp=rows.times[i],
                previous=rows.bodies[i] if event.oof else b"",
                lsn=lsn,
                why=event.why,
            )
            for i, lsn in enumerate(rows.lsns)
        ]

    def _together(self, rule: Rule, wants: Sequence[bool], happenings: Sequence[Happening], event: Event) -> bool:
        """Where an action does nothing but publish one message, those of several happenings are one batch.

        Whether that was so.
        """
        if not rule.publishes_once:
            return False
        some = [happening for happening, wanted in zip(happenings, wants, strict=True) if wanted]
        hops, led = event.hops, Led()
        for happening in some:
            run_lead(rule, copied(happening), hops, self._find, led)
        for act in led.acts:
            self.go_on(act, event.cause)
        if led.bodies:
            size = led.size + len(HEADER) * len(led.bodies)
            topics = led.topics if len(set(led.topics)) > 1 else led.topics[0]
            run = Run(rule, len(rule.steps) - 1, EMPTY, hops, 0, batch=Publishes(topics, HEADER, led.bodies, size=size))
            run.count = run.lost = len(led.bodies)
            run.chunk, run.cause = as_chunk(led.causes), event.cause
            self.ledger.open(run.place)
            self._runs.append(run)
        return True

    def _find(self, vhost: str, exchange: str, key: str) -> Topic | None:
        try:
            return self.runtime.core.topic(vhost, exchange, key)
        except Refused:
            return None

    # -- telling

    def failed(self, rule: Rule, why: str, count: int = 1, reason: str = "publish") -> None:
        """An action that did not come to its end."""
        self.counts.failed(rule.name, why, count, reason)

    def _floor(self) -> int | None:
        """What the log has to keep for messages that wait for their actions."""
        low = min((event.chunk[0] for event in self._events), default=LSN_LIMIT)
        if len(self._reading):
            low = min(low, self._reading[0])
        if self.resuming.running:
            low = min(low, self.runtime.core.acted.floor + 1)
        return low if low < LSN_LIMIT else None
