"""The queue on ranges against the one-message definition, any commands in any order, and the fold of its records."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import orjson
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from choices import examples
from penstock.core.commands.deliveries import Delivery
from penstock.core.effects import Deliver, DeliverEach, Dying, Effect, Fetch, Key, Purpose, Rate, Scan, Verb
from penstock.core.outbox import Outbox
from penstock.core.queue import delays, groups, timetable
from penstock.core.queue.dispatching import filtering, granting
from penstock.core.queue.dispatching.consumers import Consumer, Credit, Foreseen
from penstock.core.queue.order import main_order, run_heap, runs, sorted_rows
from penstock.core.queue.places import STATES
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling import leases, letters
from penstock.core.state.lsns import flat, spread
from penstock.records.chunks import Now, as_chunk, pack_pairs, unpack_pairs
from penstock.records.entries import Control, Publishes, Topic, singly
from penstock.records.kinds import HEAD, Kind
from penstock.records.queue_settings import QueueSettings, Retry
from property.bounds import STEPS, Change, small
from property.queue_model import Model, Worker, matches

TOPIC = Topic("/", "", "q")
TINY: list[tuple[Any, str, int]] = [
    (runs, "SMALL", 2),
    (main_order, "SMALL", 2),
    (main_order, "PIECE", 5),
    (main_order, "HOLES_MOST", 2),
    (main_order, "FEW", 1),
    (main_order, "STRETCH", 2),
    (groups, "CUT", 1),
    (timetable, "PIECE", 5),
    (timetable, "SAMPLE", 2),
    (delays, "NEAR", 1),
    (delays, "SAMPLE", 2),
    (timetable, "SMALL", 3),
    (timetable, "FEW", 2),
    (run_heap, "LOOSE_MOST", 2),
    (run_heap, "ALIKE", 1),
    (run_heap, "JOINED", 3),
    (sorted_rows, "BLOCK", 2),
    (sorted_rows, "MERGE_LEAST", 2),
    (leases, "GATHERED_MOST", 3),
    (leases, "DEAD_MOST", 1),
    (granting, "PIECES_MOST", 1),
    (granting, "EACH_LEAST", 2),
    (filtering, "WALK_FIRST", 2),
    (filtering, "WALK_MOST", 5),
    (filtering, "WALK_LEAST", 1),
    (filtering, "RECHECK", 3),
    (letters, "LETTER", 2),
]
"""Bounds so small that every way round them is gone."""


class BitFilter:
    """Matches bodies whose first byte has one of the bits."""

    def __init__(self, text: str) -> None:
        self.text = text

    def matches(self, bodies: Any, properties: Any, topics: Any, lsns: Any = None, times: Any = None) -> list[bool]:
        assert lsns is None or len(lsns) == len(bodies)
        return [matches(self.text, body) for body in bodies]


class Fold:
    """The durable state of one queue from its records, one message at a time."""

    def __init__(self) -> None:
        self.waiting: dict[int, dict[str, int]] = {}
        self.paused = 0

    def arrived(self, lsn: int, not_before: int) -> None:
        self.waiting[lsn] = {"deliveries": 0, "failures": 0, "cancels": 0, "place": 0, "not_before": not_before}
        self.waiting[lsn]["barrier"] = 0

    def feed(self, record: Control) -> None:
        _, values = unpack_pairs(record.body)
        if record.kind is Kind.PAUSE:
            self.paused = orjson.loads(record.header)["until"]
            return
        header: dict[str, Any] = orjson.loads(record.header) if record.header else {}
        for a, b in zip(values[::2], values[1::2], strict=True):
            assert a < b <= record.lsn
            for lsn in [lsn for lsn in self.waiting if a <= lsn < b]:
                state = self.waiting[lsn]
                if record.kind is Kind.GRANT:
                    state["deliveries"] = max(state["deliveries"], header["attempt"])
                elif record.kind is Kind.RETURN:
                    state["failures"] += header["failed"]
                    state["cancels"] += header["cancelled"]
                    state["not_before"] = header.get("not_before", 0)
                elif record.kind is Kind.RESCHEDULE:
                    state["not_before"], state["place"] = header["not_before"], 0
                elif record.kind is Kind.BARRIER:
                    state["barrier"] = 1
                elif record.kind is Kind.DUE:
                    state["not_before"] = 0
                    if header["place"]:
                        state["place"] = record.lsn if header["place"] == 1 else HEAD + record.lsn
                else:
                    del self.waiting[lsn]


spans = st.sampled_from([0, 0, 1, 2, 3])
queue_settings = st.builds(
    QueueSettings,
    semantics=st.sampled_from(["at-least-once", "at-least-once", "at-least-once", "at-most-once"]),
    lease_period=st.sampled_from([0, 0, 5, 20]),
    leasing=st.sampled_from(["sublet", "strict"]),
    max_backlog=st.sampled_from([0, 0, 0, 1, 5]),
    max_per_subscription_backlog=st.sampled_from([0, 0, 2, 7]),
    fairness_model=st.sampled_from(["fast", "round-robin", "proportional"]),
    max_deliveries=spans,
    max_cancels=spans,
    delivery_limit=st.sampled_from([-1, -1, 0, 1, 2]),
    retry=st.none() | st.builds(Retry, st.sampled_from([3, 10]), st.just(2.0), st.just(30), st.just(0.0), spans),
    expiration=st.none() | st.sampled_from([0, 8, 25]),
    expiration_model=st.sampled_from(["default", "queue", "latest", "earliest"]),
    message_ttl=st.none() | st.none() | st.sampled_from([0, 12]),
    dead_letter_exchange=st.sampled_from([None, "dlx"]),
    deliver=st.sampled_from(["early", "durable"]),
    barrier_without_subscribers=st.sampled_from(["hold", "drop"]),
)
message = st.tuples(
    st.integers(0, 3),  # body
    st.sampled_from([0, 0, 0, 1]),  # strangers' LSNs in front of it
    st.sampled_from([0, 0, 0, 0, -3, 0, 4, 15]),  # own expiry from now; 0: none
    st.sampled_from([0, 0, 0, 0, 0, 6, 18]),  # delay
    st.sampled_from([False, False, False, False, False, True]),  # a barrier, in queues that have them
)
rarely = st.sampled_from([False, False, False, True])
filters = st.sampled_from([None, None, "1", "2"])


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = 1_000
        self.sink: Outbox[Effect] = Outbox(100)
        self.bodies: dict[int, bytes] = {}
        self.workers: dict[str, tuple[Worker, Consumer]] = {}
        self.shared: dict[str, Credit] = {}
        self.fold = Fold()
        self.names = 0
        self.steps = 10_000
        self.changes: list[Any] = []
        self.bounds = list[Change]()
        self.sent: list[tuple[str, int, int, bool]] = []
        self.expired: list[tuple[int, str]] = []

    @initialize(
        settings=queue_settings, steps=st.sampled_from([10_000, 3]), plain=st.booleans(), tiny=st.booleans(),
        most=st.sampled_from([10_000, 3]), fenced=st.booleans(),
    )  # fmt: skip
    def start(self, settings: QueueSettings, steps: int, plain: bool, tiny: bool, most: int, fenced: bool) -> None:
        for module, name, value in [*(TINY if tiny else ()), (leases, "GRAIN_US", 1), *self.bounds]:
            change = patch.object(module, name, value)
            change.start()
            self.changes.append(change)
        self.most = most
        if plain:
            settings = QueueSettings(fairness_model=settings.fairness_model, lease_period=settings.lease_period)
        if fenced:
            settings = replace(settings, barrier_expression="/barrier = 1")
        self.fenced = fenced
        self.steps = steps
        self.queue = Queue(1, "/", "q", settings)
        self.queue.dispatch_most = steps
        self.queue.ensure_targets().most = most
        self.model = Model(settings)

    def teardown(self) -> None:
        for change in reversed(self.changes):  # some change one name twice
            change.stop()

    @property
    def now(self) -> Now:
        return Now(self.clock, self.clock)

    # -- running both

    def before(self) -> None:
        """What fell due happens before the command.  (Commands see to that, but take one step.)"""
        self.model.tick(self.clock)
        if (self.steps < 100 or self.bounds) and self.queue.is_due(self.now):
            self.in_steps()

    @property
    def stepping(self) -> bool:
        """Whether what is given back, or falls due, is bounded."""
        return any(one in self.bounds for one in small(STEPS))

    def in_steps(self) -> None:
        """All that is due, in however many steps; nobody is given any of it before it is all back."""
        queue = self.queue
        if self.stepping:
            queue.draining = True
            while queue.is_due(self.now):
                queue.tick(self.now, self.sink)
            queue.drain(self.now, False, self.sink)
        while queue.is_due(self.now):
            queue.tick(self.now, self.sink)

    def after(self) -> None:
        queue, sink, model = self.queue, self.sink, self.model
        while sink.effects or queue.is_due(self.now):
            if not sink.effects:
                queue.tick(self.now, sink)
            for effect in sink.take_effects():
                if isinstance(effect, Deliver):
                    self.delivered(effect)
                elif isinstance(effect, DeliverEach):
                    for one in effect.singly():
                        self.delivered(one)
                elif isinstance(effect, Fetch):
                    self.fetch(effect)
                elif isinstance(effect, Scan):
                    self.scan(effect)
                elif isinstance(effect, Rate):
                    self.rate(effect)
                elif isinstance(effect, Key):
                    self.key(effect)
                elif isinstance(effect, Dying):  # for views; the record that is written later says it to everybody
                    assert effect.queue == self.queue.id
                else:
                    self.other(effect)
        self.written()
        for tag in self.workers:
            assert [s for s in self.sent if s[0] == tag] == [s for s in model.sent if s[0] == tag]
        assert sorted(self.sent) == sorted(model.sent)
        living = set(model.messages) | {lsn for w in model.workers for lsn in w.slots}
        assert {e for e in self.expired if e[0] not in living} >= set(model.expired)
        assert {lsn for lsn, _ in self.expired} - living >= {lsn for lsn, _ in model.expired}
        self.sent.clear()
        self.expired.clear()
        model.sent.clear()
        model.expired.clear()

    def written(self) -> None:
        """The fold reads what was decided so far."""
        for entry in singly(self.sink.take_journal()):
            assert isinstance(entry, Control)
            self.fold.feed(entry)
            if entry.kind in (Kind.EXPIRE, Kind.DROP):
                reason = orjson.loads(entry.header)["reason"]
                _, pairs = unpack_pairs(entry.body)
                for a, b in zip(pairs[::2], pairs[1::2], strict=True):
                    self.expired += [(lsn, reason) for lsn in range(a, b) if lsn in self.bodies]

    def delivered(self, effect: Delivery) -> None:
        settings = self.queue.settings
        if settings.semantics == "at-most-once":
            assert effect.after >= effect.chunk[-1]
        elif settings.deliver == "durable":
            assert effect.after >= effect.chunk[-1] if effect.barrier else effect.after == effect.chunk[-1]
        else:
            assert effect.after == 0
        self.sent += [(effect.consumer.tag, lsn, effect.attempt, effect.redelivered) for lsn in effect.chunk]

    def fetch(self, effect: Fetch) -> None:
        letter = self.queue.letter(effect.token)
        assert letter is not None
        assert list(letter.chunk) == list(effect.chunk)
        self.sink.record(Kind.EXPIRE, "q", {"reason": letter.reason}, pack_pairs(1, letter.pairs))
        self.queue.buried(effect.token, self.sink)
        self.model.buried(self.clock, effect.chunk)

    def other(self, effect: Effect) -> None:
        """An answer to something that this machine asks for nowhere: `test_settling_model` hears it."""
        raise NotImplementedError

    def rate(self, effect: Rate) -> None:
        """A question of a queue with priorities: `test_ordered_queue_model` answers it."""
        raise NotImplementedError

    def key(self, effect: Key) -> None:
        """A question of a queue with shares: `shares_machine` answers it."""
        raise NotImplementedError

    def look_at_barrier(self, effect: Scan) -> None:
        (lsn,) = effect.chunk
        found = [[lsn] if matches(one.text, self.bodies[lsn]) else [] for one in effect.filters]
        self.queue.scanned(self.now, effect.token, found, lsn, self.sink)
        if lsn in self.model.messages:
            self.model.messages[lsn].known.update(one.text for one in effect.filters)
        self.model.dispatch(self.clock)

    def scan(self, effect: Scan) -> None:
        if effect.token.purpose is Purpose.BARRIER:
            self.look_at_barrier(effect)
            return
        look = self.queue.targets.asked[effect.token.serial]
        seen = effect.chunk[: 1 + self.clock % len(effect.chunk)]  # an answer may be for a part
        found = [[lsn for lsn in seen if matches(one.text, self.bodies[lsn])] for one in effect.filters]
        if look.piece is None or look.source is None:
            there = [lsn for lsn in seen if self.queue.main.has(lsn)]  # what left meanwhile counts nothing
        else:
            living = set(look.source.living(look.piece))
            there = [lsn for lsn in seen if lsn in living]
        self.queue.scanned(self.now, effect.token, found, seen[-1], self.sink)
        for one, targets in zip(effect.filters, look.lists, strict=True):
            if self.queue.targets.lists.get(one.text) is not targets:
                continue  # nobody had it any more; who has the same filter now looks anew
            for lsn in there:  # a full list stops before what it has no room for
                if lsn in self.model.messages and (look.recheck or lsn <= targets.walked):
                    self.model.messages[lsn].known.add(one.text)
        self.model.dispatch(self.clock)

    # -- commands

    @rule(messages=st.lists(message, min_size=1, max_size=6), repeat=st.sampled_from([1, 1, 1, 30]))
    def arrive(self, messages: list[tuple[int, int, int, int, bool]], repeat: int) -> None:
        self.before()
        if self.queue.is_due(self.now):
            self.queue.tick(self.now, self.sink)
        messages = messages * repeat
        if len(messages) > 1 and self.queue.last_values is not None and self.queue.targets.asked:
            for one in messages:  # what replaces that at which a filter looks may go by itself, or with who replaces it
                self.arrive([one], 1)
            return
        lsns = list[int]()
        for _, strangers, *_ in messages:
            self.sink.next_lsn += strangers
            lsns.append(self.sink.next_lsn)
            self.sink.next_lsn += 1
        bodies = [bytes([body]) for body, *_ in messages]
        own = [self.clock + expiry if expiry else 0 for _, _, expiry, _, _ in messages]
        later = [self.clock + delay if delay else 0 for _, _, _, delay, _ in messages]
        barriers = [lsn for lsn, (*_, barrier) in zip(lsns, messages, strict=True) if barrier and self.fenced]
        looked_at = dict[int, set[str]]()
        foreseen = dict[int, set[str]]()  # in line behind others
        look, look_ahead = filtering.Targets.arrive, Foreseen.look

        def looked(targets: filtering.Targets, *what: Any) -> None:
            look(targets, *what)
            # a full list does not look at what arrives, but walks there later
            for lsn in what[0]:
                looked_at[lsn] = {text for text, one in targets.lists.items() if one.walked >= lsn}

        def looked_ahead(ahead: Foreseen, targets: filtering.Targets, chunk: Any, *what: Any) -> None:
            before = len(ahead)
            look_ahead(ahead, targets, chunk, *what)
            if len(ahead) > before:
                foreseen.update((lsn, set(targets.lists)) for lsn in chunk)

        with patch.object(filtering.Targets, "arrive", looked), patch.object(Foreseen, "look", looked_ahead):
            self.queue.arrive(
                self.now, as_chunk(lsns), self.sink,
                batch=Publishes(TOPIC, b"", [b"", *bodies]), rows=range(1, len(lsns) + 1),
                expires_at=own if any(own) else None, not_before=later if any(later) else None,
                barriers=barriers or None,
            )  # fmt: skip
        for lsn, body, deadline, not_before in zip(lsns, bodies, own, later, strict=True):
            known = looked_at.get(lsn, set()) | foreseen.get(lsn, set())
            self.bodies[lsn] = body
            self.fold.arrived(lsn, not_before)
            self.fold.waiting[lsn]["barrier"] = int(lsn in barriers)
            self.model.arrive(self.clock, lsn, body, deadline, not_before, known, lsn in barriers)
        self.model.overdue(self.clock)
        self.model.dispatch(self.clock)
        self.after()

    @rule(
        backlog=st.sampled_from([None, None, 0, 1, 3, 8, 50]),
        priority=st.sampled_from([0, 0, 0, 1]),
        no_ack=st.sampled_from([False, False, False, True]),
        text=filters,
        passive=st.sampled_from([False, False, False, True]),
        group=st.sampled_from([None, None, None, "a"]),
        client=st.sampled_from(["x", "y"]),
    )
    def subscribe(
        self, backlog: int | None, priority: int, no_ack: bool, text: str | None, passive: bool, group: str | None,
        client: str,
    ) -> None:  # fmt: skip
        if len(self.workers) >= 6 or (self.steps < 100 and text is not None):
            return
        self.before()
        self.names += 1
        tag = f"c{self.names}"
        credit = None
        if group is not None:
            credit = self.shared.setdefault(group, Credit(4))
            self.model.credit[group] = credit.limit
        worker = Worker(tag, 0, backlog, priority, no_ack, text, passive, group, client)
        self.model.workers.append(worker)
        consumer = self.queue.subscribe(
            self.now, self.sink, tag=tag, holder=self, client=client, no_ack=no_ack,
            filter=BitFilter(text) if text else None, max_backlog=backlog, shared=credit,
            priority=priority, passive=passive,
        )  # fmt: skip
        worker.serial = consumer.serial
        worker.mixed = lambda: consumer.mixed
        self.workers[tag] = (worker, consumer)
        self.model.dispatch(self.clock)
        self.after()

    def choose(self, index: int) -> tuple[Worker, Consumer]:
        return self.workers[sorted(self.workers)[index % len(self.workers)]]

    @precondition(lambda self: self.workers)
    @rule(index=st.integers(0, 5), way=st.sampled_from(["cancel", "close", "lose"]))
    def unsubscribe(self, index: int, way: str) -> None:
        worker, consumer = self.choose(index)
        self.before()
        self.model.unsubscribe(self.clock, worker, way != "cancel", way == "lose")
        others = {w.filter for w, _ in self.workers.values() if not w.closed}
        if worker.filter is not None and worker.filter not in others:
            for held in self.model.messages.values():
                if not held.barrier:  # what was answered of one stays answered
                    held.known.discard(worker.filter)
        self.queue.draining = self.stepping
        self.queue.unsubscribe(self.now, [consumer], self.sink, requeue=way != "cancel", lost=way == "lose")
        if self.bounds:
            self.in_steps()
        self.after()
        if way != "cancel":
            del self.workers[worker.tag]
            self.model.workers.remove(worker)

    @precondition(lambda self: self.workers)
    @rule(really=rarely, way=st.sampled_from(["close", "lose"]))
    def all_go(self, really: bool, way: str) -> None:
        """So that what several held lies in the queue side by side."""
        if really:
            for worker, consumer in self.workers.values():
                worker.paused = True
                self.queue.choke(consumer)
            while self.workers:
                self.unsubscribe(0, way)

    @precondition(lambda self: self.workers)
    @rule(index=st.integers(0, 5))
    def pause(self, index: int) -> None:
        worker, consumer = self.choose(index)
        if worker.paused:
            self.before()
            worker.paused = False
            self.queue.unchoke(self.now, consumer, self.sink)
            self.model.dispatch(self.clock)
            self.after()
        else:
            worker.paused = True
            self.queue.choke(consumer)

    @precondition(lambda self: self.workers)
    @rule(index=st.integers(0, 5), count=st.sampled_from([1, 2, 100]))
    def pull(self, index: int, count: int) -> None:
        worker, consumer = self.choose(index)
        if not worker.passive or worker.closed:
            return
        self.before()
        expected = self.model.pull(self.clock, worker, count)
        assert self.queue.pull(self.now, consumer, count, self.sink) == expected
        self.after()

    @precondition(lambda self: self.workers)
    @rule(
        index=st.integers(0, 5),
        verb=st.sampled_from([Verb.ACK, Verb.ACK, Verb.ACK, Verb.CANCEL, Verb.RELEASE, Verb.UNSEEN, Verb.EXPIRE]),
        way=st.sampled_from(["all", "first", "one", "many", "range"]),
        data=st.data(),
        delay=st.sampled_from([None, None, None, 0, 7]),
    )
    def settle(self, index: int, verb: Verb, way: str, data: st.DataObject, delay: int | None) -> None:
        worker, consumer = self.choose(index)
        held = sorted(worker.held or worker.slots)
        if way == "range" or not held:
            a = data.draw(st.integers(90, self.sink.next_lsn))
            chunks = [range(a, a + data.draw(st.integers(1, 40)))]
        elif way == "all":
            chunks = [as_chunk(held)]
        elif way == "first":
            chunks = [as_chunk(held[: data.draw(st.integers(1, len(held)))])]
        elif way == "one":
            chunks = [as_chunk([data.draw(st.sampled_from(held))])]
        else:
            chosen = sorted(data.draw(st.sets(st.sampled_from(held), min_size=1)))
            chunks = [as_chunk(chosen[: len(chosen) // 2]), as_chunk(chosen[len(chosen) // 2 :])]
        self.both_settle(chunks, verb, worker, consumer, "", delay)

    @precondition(lambda self: self.workers and self.fenced)
    @rule(passes=st.integers(1, 3))
    def everybody_acks(self, passes: int) -> None:
        """So that barriers go."""
        for tag in sorted(self.workers) * passes:
            worker, consumer = self.workers[tag]
            self.before()
            if held := sorted(worker.held or worker.slots):
                self.both_settle([as_chunk(held)], Verb.ACK, worker, consumer, "", None)
            else:  # no command sees to what fell due
                self.queue.tick(self.now, self.sink)
                self.after()

    @rule(
        verb=st.sampled_from([Verb.ACK, Verb.CANCEL, Verb.RELEASE, Verb.UNSEEN, Verb.EXPIRE]),
        client=st.sampled_from(["", "x"]),
        data=st.data(),
        many=st.booleans(),
    )
    def settle_as_anybody(self, verb: Verb, client: str, data: st.DataObject, many: bool) -> None:
        living = sorted(self.model.messages)
        if many and living:
            chunks = [as_chunk(sorted(data.draw(st.sets(st.sampled_from(living), min_size=1, max_size=9))))]
        else:
            a = data.draw(st.integers(90, self.sink.next_lsn))
            chunks = [range(a, a + data.draw(st.integers(1, 20)))]
        self.both_settle(chunks, verb, None, None, client, None)

    def both_settle(
        self, chunks: Any, verb: Verb, worker: Worker | None, consumer: Consumer | None, client: str, delay: int | None
    ) -> None:
        self.before()
        lsns = sorted({lsn for chunk in chunks for lsn in chunk})
        expected = self.model.settle(self.clock, lsns, verb.value, worker, client, delay)
        got = self.queue.settle(self.now, chunks, verb, self.sink, by=consumer, client=client, delay=delay)
        assert got == expected
        self.after()

    @rule(span=st.sampled_from([1, 2, 5, 10, 40]))
    def advance(self, span: int) -> None:
        self.clock += span

    @rule(span=st.sampled_from([1, 5, 10, 40]))
    def advance_and_tick(self, span: int) -> None:
        self.clock += span
        self.before()
        self.queue.tick(self.now, self.sink)
        self.after()

    @rule()
    def tick_when_asked(self) -> None:
        wall, mono = self.queue.next_deadline()
        times = [time for time in (wall, mono) if time]
        if times:
            self.clock = max(self.clock, min(times))
            self.before()
            self.queue.tick(self.now, self.sink)
            self.after()

    @rule(span=st.sampled_from([0, 1, 5, 30, 1 << 40]), really=rarely)
    def halt(self, span: int, really: bool) -> None:
        """Pause the queue for a while, or let it go on."""
        if really:
            self.before()
            until = self.clock + span if span else 0
            self.queue.pause(self.now, until, self.sink)
            self.model.halt(self.clock, until)
            self.after()

    @rule(data=st.data(), span=st.sampled_from([None, None, -3, 0, 4, 4, 15]))
    def move(self, data: st.DataObject, span: int | None) -> None:
        """Withdraw messages wherever they wait, or let them wait until another time."""
        living = sorted(self.model.messages)
        if living:
            self.both_move(data.draw(st.sets(st.sampled_from(living), min_size=1, max_size=7)), span)

    def both_move(self, lsns: Any, span: int | None) -> None:
        self.before()
        while self.queue.is_due(self.now):
            self.queue.tick(self.now, self.sink)
        chunk = as_chunk(sorted(lsns))
        if span is None:
            got = self.queue.withdraw(self.now, chunk, self.sink)
            assert got == self.model.withdraw(self.clock, lsns)
        else:
            self.queue.draining = self.stepping  # what is due at once comes in steps
            got = self.queue.reschedule(self.now, chunk, self.clock + span, self.sink)
            assert got == self.model.reschedule(self.clock, lsns, self.clock + span)
            if self.bounds:
                self.in_steps()
        self.after()

    @rule(really=rarely)
    def purge(self, really: bool) -> None:
        if really:
            self.before()
            expected = self.model.purge()
            assert self.queue.purge(self.now, self.sink) == expected
            self.after()

    @rule(
        per_subscription=st.sampled_from([0, 1, 4]),
        whole=st.sampled_from([0, 3]),
        lease=st.sampled_from([0, 4, 30]),
        fenced=st.sampled_from([True, True, False]),
        really=rarely,
    )
    def alter(self, per_subscription: int, whole: int, lease: int, fenced: bool, really: bool) -> None:
        if not really:
            return
        self.before()
        settings = replace(
            self.queue.settings, max_per_subscription_backlog=per_subscription, max_backlog=whole, lease_period=lease
        )
        if self.fenced and not fenced:
            settings = replace(settings, barrier_expression=None)
            self.fenced = False
            self.model.dissolve()
            for state in self.fold.waiting.values():
                state["barrier"] = 0
        self.model.settings = settings
        self.queue.alter(self.now, settings, self.sink)
        self.model.dispatch(self.clock)
        self.after()

    @rule(unclean=st.booleans(), really=rarely)
    def restart(self, unclean: bool, really: bool) -> None:
        if not really:
            return
        waiting, columns = self.queue.snapshot()
        queue = Queue(1, "/", "q", self.queue.settings)
        queue.dispatch_most = self.steps
        queue.ensure_targets().most = self.most
        queue.stay_paused(self.queue.paused_until)
        queue.load(waiting, columns)
        self.queue = queue
        self.workers.clear()
        self.shared.clear()
        if unclean:
            queue.redelivered_below = self.model.redelivered_below = self.sink.next_lsn
        else:
            queue.redelivered_below = self.model.redelivered_below
        self.model.restart(self.clock)
        if queue.is_due(self.now):
            queue.tick(self.now, self.sink)
        self.after()

    # -- comparison

    @invariant()
    def same_state(self) -> None:
        if not hasattr(self, "queue"):
            return
        queue, model = self.queue, self.model
        queue.check()
        assert queue.paused_until == model.paused_until == self.fold.paused
        keys = [(lsn, lsn) for chunk in queue.main.chunks() for lsn in chunk]
        keys += [(run.where if run.place else lsn, lsn) for run in queue.returned.runs() for lsn in run.chunk]
        assert [lsn for _, lsn in sorted(keys)] == [m.lsn for m in model.ready()]
        assert queue.held == len(model.waiting()) - len(model.ready())
        for worker, consumer in self.workers.values():
            held = sorted(lsn for run in consumer.leases.held() for lsn in run.chunk)
            assert held == sorted(worker.held + worker.slots)
        self.same_places()
        for name, credit in self.shared.items():
            mine = [w for w, _ in self.workers.values() if w.group == name]
            assert credit.used == sum(len(w.held) + len(w.slots) for w in mine)

    def same_places(self) -> None:
        """Whoever looks over all places sees each message once, in the state in which it is."""
        queue, model = self.queue, self.model
        ready = {m.lsn for m in model.ready()}
        there = {m.lsn: "held" if m.state in ("ready", "found") else m.state for m in model.messages.values()}
        there.update(dict.fromkeys(ready, "ready"))
        there.update(dict.fromkeys(model.dying, "dying"))
        shown = [(lsn, state) for state, run, _ in queue.standing() for lsn in run.chunk]
        assert sorted(shown) == sorted(there.items())
        counts = (
            queue.ready,
            queue.held,
            queue.inactive,
            queue.delayed,
            queue.leased,
            queue.dying,
            queue.foreign_count,
        )
        states = list(there.values())
        assert counts == tuple(states.count(state) for state in STATES)

    @invariant()
    def the_fold_says_the_same(self) -> None:
        if not hasattr(self, "queue"):
            return
        waiting, columns = self.queue.snapshot()
        lsns = flat(waiting)
        assert lsns.tolist() == sorted(self.fold.waiting) == sorted(self.model.messages)
        for name in ("deliveries", "failures", "cancels", "not_before", "place", "barrier"):
            values = spread(lsns, columns.get(name, array("q")))
            assert values.tolist() == [self.fold.waiting[lsn][name] for lsn in lsns.tolist()], name
        values = spread(lsns, columns.get("expires_at", array("q")))
        assert values.tolist() == [self.model.messages[lsn].deadline for lsn in lsns.tolist()]
        for name in ("deliveries", "failures", "cancels"):
            assert [self.fold.waiting[lsn][name] for lsn in lsns.tolist()] == [
                getattr(self.model.messages[lsn], name) for lsn in lsns.tolist()
            ], name

    @invariant()
    def everything_ready_is_known_to_the_filters(self) -> None:
        if not hasattr(self, "queue") or self.most < 100:
            return
        for text in self.queue.targets.lists:
            assert all(text in m.known for m in self.model.ready())


QueueMachine.TestCase.settings = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestQueue = QueueMachine.TestCase
