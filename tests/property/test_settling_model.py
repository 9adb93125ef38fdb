"""Settling by filter, replacing, lengthening leases and whole subscriptions: more rules for `test_queue_model`."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from choices import examples
from penstock.core.effects import Purpose, Scan, Swept, Verb
from penstock.core.queue.dispatching.consumers import Credit
from penstock.core.queue.dispatching.joining import replace
from penstock.core.queue.settling import deferred
from penstock.core.queue.settling.deferred import Sweep
from penstock.core.queue.settling.settle import extend
from penstock.core.queue.whole import DISPATCH
from penstock.records.chunks import as_chunk
from penstock.records.queue_settings import QueueSettings
from property import test_queue_model
from property.queue_model import Model, Worker, matches
from property.test_queue_model import BitFilter, QueueMachine, filters, queue_settings

WHOLE = "whole"


class SettlingModel(Model):
    """Consumers of the group `WHOLE` are one subscription."""

    def load(self, w: Worker) -> int:
        if w.group == WHOLE and not w.no_ack:
            return sum(self.used(o) for o in self.workers if o.group == WHOLE)
        return self.used(w)

    def weight(self, w: Worker) -> int:
        return self.credit[WHOLE] if w.group == WHOLE and not w.no_ack else super().weight(w)

    def pick(self, ws: list[Worker]) -> Worker:
        if self.settings.fairness_model != "proportional":
            return super().pick(ws)
        best, *others = sorted(ws, key=lambda w: w.serial)
        for w in others:
            if self.load(w) * self.weight(best) < self.load(best) * self.weight(w):
                best = w
        return best


class SettlingMachine(QueueMachine):
    """Rules that settle by name, and change who consumes."""

    sweeping: tuple[Sweep, Verb, str] | None = None
    stretch = 10_000

    @initialize(
        settings=queue_settings, steps=st.sampled_from([10_000, 3]), plain=st.booleans(), tiny=st.booleans(),
        most=st.sampled_from([10_000, 3]), fenced=st.sampled_from([False, False, False, True]),
        stretch=st.sampled_from([3, 10_000]),
    )  # fmt: skip
    def start(  # type: ignore[override]
        self, settings: QueueSettings, steps: int, plain: bool, tiny: bool, most: int, fenced: bool,
        stretch: int | None = None,
    ) -> None:  # fmt: skip
        super().start(settings, steps, plain, tiny, most, fenced)
        self.model = SettlingModel(self.queue.settings)
        change = test_queue_model.patch.object(deferred, "STRETCH", self.stretch if stretch is None else stretch)
        change.start()
        self.changes.append(change)
        self.swept = self.found = 0

    # -- one subscription

    @rule(
        backlog=st.sampled_from([None, 0, 3]),
        priority=st.sampled_from([0, 0, 1]),
        no_ack=st.sampled_from([False, False, False, True]),
        text=filters,
        limit=st.sampled_from([1, 2, 5]),
    )
    def subscribe_as_one(self, backlog: int | None, priority: int, no_ack: bool, text: str | None, limit: int) -> None:
        if WHOLE not in self.shared:
            self.shared[WHOLE] = Credit(limit, whole=True)
        self.subscribe(backlog, priority, no_ack, text, False, WHOLE, "x")

    # -- other terms

    @precondition(lambda self: self.workers)
    @rule(index=st.integers(0, 5), text=filters, backlog=st.sampled_from([None, 0, 1, 4, 50]))
    def replace(self, index: int, text: str | None, backlog: int | None) -> None:
        worker, consumer = self.choose(index)
        if worker.closed or (self.steps < 100 and text is not None):
            return
        self.before()
        before, worker.filter, worker.backlog = worker.filter, text, backlog
        others = {w.filter for w, _ in self.workers.values() if not w.closed}
        if before is not None and before not in others:
            for held in self.model.messages.values():
                if not held.barrier:
                    held.known.discard(before)
        replace(
            self.queue, self.now, consumer, self.sink,
            filter=BitFilter(text) if text else None, max_backlog=backlog,
        )  # fmt: skip
        self.model.dispatch(self.clock)
        self.after()

    @precondition(lambda self: self.workers)
    @rule(index=st.integers(0, 5), first=st.integers(0, 9), step=st.integers(1, 3), span=st.sampled_from([1, 10, 40]))
    def extend(self, index: int, first: int, step: int, span: int) -> None:
        worker, consumer = self.choose(index)
        self.before()
        if self.queue.is_due(self.now):
            self.queue.tick(self.now, self.sink)
        self.after()
        chosen = sorted(worker.held)[first::step]
        if not chosen:
            return
        assert extend(self.queue, consumer, as_chunk(chosen), self.clock + span) == len(chosen)
        worker.silent = worker.silent and worker.closed
        for lsn in chosen:
            message = self.model.messages[lsn]
            if message.lease_end:
                message.lease_end = max(message.lease_end, self.clock + span)
        self.after()

    # -- by a filter

    @rule(
        text=st.sampled_from(["1", "2", "3"]),
        verb=st.sampled_from([Verb.ACK, Verb.ACK, Verb.CANCEL, Verb.EXPIRE]),
        client=st.sampled_from(["", "x"]),
    )
    def settle_matching(self, text: str, verb: Verb, client: str) -> None:
        self.before()
        if self.queue.is_due(self.now):
            self.queue.tick(self.now, self.sink)
        self.after()
        told = list[int]()
        asleep = {lsn for lsn, m in self.model.messages.items() if m.state == "inactive"}  # no filter reaches them
        here = set(self.model.messages) - asleep
        here.update(lsn for w in self.model.workers if client and w.client == client for lsn in w.slots)
        self.swept = 0
        self.seen = set[int]()
        one = Sweep(self.queue, 7, BitFilter(text), verb, client, told.append)
        self.sweeping = (one, verb, client)
        more = one.ask(self.sink)
        self.after()
        assert told == [self.swept]
        assert here <= self.seen or self.queue.last_values is not None  # what came back may have been replaced
        assert not asleep & self.seen
        assert not more or here
        self.sweeping = None

    def scan(self, effect: Scan) -> None:
        if effect.token.purpose is not Purpose.SWEEP:
            super().scan(effect)
            return
        assert self.sweeping is not None
        one, verb, client = self.sweeping
        [filter] = effect.filters
        seen = effect.chunk[: 1 + self.clock % len(effect.chunk)]
        self.seen.update(seen)
        found = [lsn for lsn in seen if matches(filter.text, self.bodies[lsn])]
        while self.queue.agenda & DISPATCH:  # the model has granted it all
            self.queue.tick(self.now, self.sink)
        expected = self.model.settle(self.clock, found, verb.value, None, client, None) if found else 0
        before = one.affected
        one.scanned(self.now, found, seen[-1], self.sink)
        assert one.affected - before == expected
        self.swept += expected

    def other(self, effect: Any) -> None:
        if isinstance(effect, Swept):
            effect.answer(effect.affected)


SettlingMachine.TestCase.settings = settings(
    max_examples=examples(30),
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestSettling = SettlingMachine.TestCase
