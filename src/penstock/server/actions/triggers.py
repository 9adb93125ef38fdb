"""Triggers: what sets actions off, and which of them are done with, so that a start after a crash does the rest.

Messages that something happened to, as LSNs; records of SOW topics that go; schedules.

    trigger (a record of the log) -> open -> its runs, each open -> done -> an ACTED record, at the latest with the next

The floor is below the oldest trigger that is open.  Triggers that are no records of their own, deliveries and
schedules, are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.core.acted import HOPS_MOST, OWN
from penstock.core.action_rules import Happening, Rule, Rules
from penstock.core.publishing.evaluating import answers_of
from penstock.expr import Filter, TopicPattern
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Control, Publishes, Rows
from penstock.records.event_actions import SAID, PublishStep
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from datetime import tzinfo

    from penstock.core.broker import Core
    from penstock.core.sow.holding import Sow
    from penstock.server.base.runtime import Runtime


NONE = -1
"""The cause of what no record tells of."""

STEP = 4096
"""LSNs that the floor moves, when every message that set something off has a record of its own, before it is told."""

NOTED = 256
"""LSNs that it has to have moved to be told with a checkpoint."""


EMPTY = Happening(0, "")
"""The happening of a run for several messages: what it publishes is made already, and its last step is left."""


@dataclass(slots=True, eq=False)
class Run:
    """One action under way for one message."""

    rule: Rule
    step: int
    happening: Happening
    hops: int  # actions before this one
    after: int  # LSN that has to be durable before it begins
    failed: str = ""
    inline: bool = False  # it ended in the call that began it
    batch: Publishes | None = None  # that is about to be published
    count: int = 1  # messages that it is for
    chunk: Chunk = range(0)  # these messages
    cause: int = NONE  # as of its event
    begins: int = 0  # before this step only values are worked out: the others were done
    written: bool = False  # a record says that it is done
    lost: int = 1  # of these, if it failed

    @property
    def place(self) -> int:
        """The LSN of its trigger; NONE without one."""
        return self.chunk[0] if self.cause == OWN else self.cause

    @property
    def trouble(self) -> str:
        """Where it failed, in the words that metrics have."""
        step = self.rule.steps[min(self.step, len(self.rule.steps) - 1)].step
        return "rounds" if isinstance(step, PublishStep) and self.hops >= HOPS_MOST else SAID[type(step)].word

    def together(self) -> Publishes:
        """What a run for several messages publishes."""
        assert self.batch is not None
        return self.batch


class Ledger:
    """Of one engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.names = frozenset(watching(runtime.core.rules))
        self.seen = 0  # the triggers up to here were told to the actions
        self._open: dict[int, int] = {}  # place -> how many
        self._places: list[int] = []  # a heap; those that are closed stay until they are at its top
        self._did: dict[tuple[str, int], list[int]] = {}  # action and cause -> messages that no record tells of yet

    def open(self, place: int) -> None:
        """Something is to be done for a trigger at this LSN; nothing for NONE."""
        if place == NONE:
            return
        count = self._open.get(place, 0)
        self._open[place] = count + 1
        if not count:
            heappush(self._places, place)

    def close(self, place: int) -> None:
        if place == NONE:
            return
        count = self._open[place] - 1
        if count:
            self._open[place] = count
        else:
            del self._open[place]

    @property
    def floor(self) -> int:
        """All triggers up to here are done with."""
        while self._places and self._places[0] not in self._open:
            heappop(self._places)
        return self._places[0] - 1 if self._places else self.seen

    def write(self, run: Run) -> None:
        """A record that a run is done; the caller puts it into one group with the last thing that it does."""
        if run.cause == NONE or not self.names:
            return
        core = self._runtime.core
        core.acts(self._runtime.now(), min(self.floor, core.acted.floor + STEP), run.rule.name, run.chunk, run.cause)
        run.written = True

    def done(self, run: Run) -> None:
        if run.cause != NONE and not run.written and self.names:
            self._did.setdefault((run.rule.name, run.cause), []).extend(run.chunk)
        self.close(run.place)

    def tell(self) -> None:
        """Write what was done since the last time."""
        did, self._did = self._did, {}
        core, floor = self._runtime.core, self.floor
        wrote = False
        for (name, cause), lsns in did.items():
            left = above(floor, cause, lsns)
            if left:
                wrote = True
                core.acts(self._runtime.now(), floor, name, as_chunk(left), cause)
        if self.names and not wrote and (did or floor - core.acted.floor >= STEP):
            core.acts(self._runtime.now(), floor)

    def note(self) -> None:
        """A checkpoint is about to be taken: a start after it need not look at what is before."""
        core, floor = self._runtime.core, self.floor
        if self.names and floor - core.acted.floor >= NOTED:
            core.acts(self._runtime.now(), floor)


def above(floor: int, cause: int, lsns: Sequence[int]) -> list[int]:
    """The messages that the floor does not cover, ascending."""
    if cause != OWN:
        return sorted(lsns) if cause > floor else []
    return sorted(lsn for lsn in lsns if lsn > floor)


def watching(rules: Rules) -> set[str]:
    """Names of the actions whose triggers are records of the log."""
    lists = [rule for _, _, _, rule in rules.publish], [rule for _, rule in rules.oof]
    by_name = [rule for some in rules.delete.values() for rule in some]
    expiring = [rule for some in rules.expire.values() for _, rule in some]
    return {rule.name for some in (*lists, by_name, expiring) for rule in some}


SLICE = 128
"""Messages of one event, about."""

Watching: TypeAlias = "tuple[Rule, Filter | None, TopicPattern | None, str]"
"""A rule with what a published message has to match, or the topic of a delivered one and its exchange."""

Chosen: TypeAlias = "tuple[Watching, ...]"


@dataclass(slots=True, eq=False)
class Event:
    """Messages that something happened to."""

    rules: Chosen
    chunk: Chunk
    after: int  # LSN that has to be durable
    queue: str = ""  # of a delivery or an acknowledgement
    client: str = ""
    hops: int = 0
    reason: str = ""
    why: str = ""  # in the words of who refused them
    oof: bool = False  # what the record was is what it was before
    cause: int = NONE  # LSN of the record that sets it off; OWN: each message is a trigger itself; NONE: no record is
    step: int = 0  # from which step on; before it only values are worked out
    judged: bool = False  # the condition is known to be TRUE

    @property
    def place(self) -> int:
        """The LSN of its first trigger; NONE without one."""
        return self.chunk[0] if self.cause == OWN else self.cause


def chosen_rows(entry: Watching, event: Event, rows: Rows, batch: Publishes) -> list[bool]:
    """Which of the rows set the rule off."""
    rule, chosen, named, exchange = entry
    wants = [True] * len(rows)
    for one in (rule.condition, chosen):
        if one is None or event.judged:
            continue
        known = answers_of(batch, one)
        passed = [bool(known[row]) for row in range(len(rows))] if known else one.matches(*rows.messages)
        wants = [a and b for a, b in zip(wants, passed, strict=True)]
    if named is not None and not (named.literal and named.text == event.queue):
        wants = [
            one and topic.exchange == exchange and named.matches(topic.name)
            for one, topic in zip(wants, rows.topics, strict=True)
        ]
    return wants


def joins(last: Event, event: Event) -> bool:
    """Whether two events are one: neighbours that set off the same."""
    return (
        last.rules == event.rules
        and (last.reason, last.why, last.oof) == (event.reason, event.why, event.oof)
        and last.queue == event.queue
        and last.cause == event.cause
        and (last.step, last.judged) == (event.step, event.judged)
        and last.client == event.client
        and last.hops == event.hops
        and isinstance(last.chunk, range)
        and isinstance(event.chunk, range)
        and last.chunk.stop == event.chunk.start
        and len(last.chunk) < SLICE  # so that the first of them are durable some time
    )


def publisher_of(control: Control) -> str:
    """The publisher's name, where a record has it."""
    if control.kind is not Kind.PUBLISHERS:
        return ""
    import orjson

    return next(iter(orjson.loads(control.header)), "")


REASONS = {"deleted": "delete", "expired": "expire"}
"""Why a record goes, as the log says it, and the event that it is."""


class Removed(Protocol):
    """Is told of records that are gone."""

    def __call__(self, rules: Chosen, lsns: Sequence[int], after: int, name: str, reason: str, *, oof: bool) -> None:
        """Those at these LSNs, ascending, by the record at `after`."""


class RemovalWatch:
    """Watches the topics that some action is about."""

    def __init__(self, core: Core, rules: Rules, removed: Removed) -> None:
        self._core = core
        self._removed = removed
        self._rules = rules
        self.names = {*rules.expire, *rules.delete, *((on.vhost, on.topic) for on, _ in rules.oof)}
        self._watched = dict[int, _Watcher]()
        self._version = -1

    def look(self) -> None:
        """Find topics that came since; called once a turn."""
        core = self._core
        if not self.names or self._version == core.topology_version:
            return
        self._version = core.topology_version
        for sow in core.sows:
            if sow.id not in self._watched and not sow.exchange and (sow.vhost, sow.name) in self.names:
                watcher = self._watched[sow.id] = _Watcher(self._removed, self._rules, sow)
                sow.watchers.append(watcher)
                sow.acting = True
        for number in [number for number in self._watched if number not in core.sows.by_id]:
            del self._watched[number]


class _Watcher:
    """Takes notes of one topic."""

    def __init__(self, removed: Removed, rules: Rules, sow: Sow) -> None:
        name = sow.vhost, sow.name
        self._removed = removed
        self._name = sow.name
        self._rules = {reason: removal_rules(rules, name, reason) for reason in REASONS}

    def dropped(self, lsn: int, numbers: Sequence[int], lsns: Sequence[int], reason: str) -> None:
        """The record at `lsn` says that these are gone."""
        rules, outside, why = self._rules.get(reason, ([], [], ""))
        for some, oof in ((rules, False), (outside, True)):
            if some:
                self._removed(plain(some), sorted(lsns), lsn, self._name, why, oof=oof)


def removal_rules(rules: Rules, name: tuple[str, str], reason: str) -> tuple[list[Rule], list[Rule], str]:
    """What a topic's records set off that go for a reason: as removals, as out of focus, and AMPS_REASON."""
    event = REASONS.get(reason)
    outside = [rule for on, rule in rules.oof if (on.vhost, on.topic) == name and on.kind in {"all", event} and event]
    if event == "expire":
        return rules.expiring(*name, ("time_limit",)), outside, "time_limit"
    return list(rules.delete.get(name, ())) if event else [], outside, ""


def plain(rules: Sequence[Rule]) -> tuple[tuple[Rule, None, None, str], ...]:
    return tuple((rule, None, None, "") for rule in rules)


class Timing:
    """The schedules of an engine.  Times are microseconds since the epoch."""

    def __init__(self, runtime: Runtime, due: Callable[[Rule], None]) -> None:
        """due: told of each action whose time has come."""
        self._runtime = runtime
        self._tell = due
        self.zone: tzinfo | None = None  # of times without Z; None: the machine's
        self._due: list[int] = []

    def next(self) -> int | None:
        """When to call `tick` next; None: never."""
        rules = self._runtime.core.rules.schedule
        if not rules:
            return None
        if not self._due:  # the first look starts the timers
            now = self._runtime.clock.wall()
            self._due = [schedule.after(now, self.zone) for _, schedule, _ in rules]
        return min(self._due)

    def tick(self) -> None:
        """Set off what is due.  What was missed meanwhile runs once."""
        upto = self.next()
        now = self._runtime.clock.wall()
        if upto is None or upto > now:
            return
        for place, (_, schedule, rule) in enumerate(self._runtime.core.rules.schedule):
            if self._due[place] <= now:
                then = schedule.after(self._due[place], self.zone)
                self._due[place] = then if then > now else schedule.after(now, self.zone)
                self._tell(rule)
