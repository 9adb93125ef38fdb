"""Queues with priorities or a target depth against their one-message definition: the machine of `test_queue_model`."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from choices import examples
from penstock.core.effects import Purpose, Rate, Scan, Sink
from penstock.core.queue import barrier
from penstock.core.queue.order import pool, ranking, ranks, sorted_rows, standing
from penstock.core.queue.order import priority as priority_order
from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.ranks import LOWEST, rank_of
from penstock.core.queue.order.returned import PriorityReturned
from penstock.core.queue.order.runs import ALL
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import flat, runs_of, spread
from penstock.records.chunks import Chunk, Now
from penstock.records.queue_settings import LEVELS, QueueSettings
from property import test_queue_model
from property.queue_model import Message, Model, Worker, matches
from property.test_queue_model import QueueMachine, queue_settings, rarely

TINY: list[tuple[Any, str, int]] = [
    (ranks, "PIECE", 5),
    (ranks, "FORGET_BLOCKS", 1),
    (pool, "STEP", 4),
    (sorted_rows, "BLOCK", 4),
    (sorted_rows, "MERGE_LEAST", 3),
    (sorted_rows, "SPREAD_MOST", 5),
    (barrier, "GONE_MOST", 1),
    (priority_order, "LEVELS_MOST", 3),
    (priority_order, "SINGLY", 2),
    (standing, "SINGLY", 2),
    (ranking, "STEP", 3),
    (ranks, "DEAD_MOST", 1),
]

VALUES: list[object] = [5, 5, 3, 0, 3.7, None, -1, "x", "7", 2**63, 2**63 - 1, 2**64, 1e300]


def value_of(lsn: int, expression: str) -> object:
    """What an expression makes of a message: few values with /a, many with /b."""
    number = lsn * 2_654_435_761 % 1009
    return VALUES[number % len(VALUES)] if expression == "/a" else number


@cache
def expected_rank(lsn: int, expression: str | None) -> int:
    if expression is not None and expression.startswith(LEVELS):
        return LOWEST - 1 - lsn * 2_654_435_761 % 1009 % 4
    return 0 if expression is None else rank_of(value_of(lsn, expression))


@cache
def expected_key(lsn: int) -> str | None:
    """The group key of a message: one of four, or none."""
    number = lsn * 2_654_435_761 % 1013 % 5
    return f"k{number}" if number else None


@cache
def expected_tenant(lsn: int) -> str | None:
    """The tenant of a message: one of three, or none."""
    number = lsn * 2_654_435_761 % 1019 % 7
    return None if number == 6 else f"t{min(number, 2)}"


def expected_keys(settings: QueueSettings, chunk: Chunk) -> list[tuple[str | None, ...]]:
    """What the expressions of a queue's shares give of each message."""
    group, fair = settings.group_key is not None, settings.fairness_key is not None
    return [(expected_key(lsn),) * group + (expected_tenant(lsn),) * fair for lsn in chunk]


class RankedQueue(Queue):
    __slots__ = ("renewed", "strange")

    def __init__(self, *what: Any, **rest: Any) -> None:
        self.renewed: Callable[[], object] = lambda: None
        self.strange = set[int]()  # their keys were not known when they came, nor told since
        super().__init__(*what, **rest)

    def renew_targets(self) -> None:
        super().renew_targets()
        self.renewed()

    def arrive(self, now: Now, chunk: Chunk, sink: Sink, **rest: Any) -> None:
        expression = self.settings.rank_text
        if expression is not None:
            rest["ranks"] = [expected_rank(lsn, expression) for lsn in chunk]
        # a message whose time is over at once is offered once, unless its key has to be worked out first
        at_once = 0 in (self.settings.expiration, self.settings.message_ttl) or now.wall in (rest["expires_at"] or ())
        told = at_once or self.last_values is not None  # or it may be replaced before
        if self.shares is not None and (
            chunk[0] % 7 or told or self.shares.tenants is not None or self.ranks is not None
        ):
            rest["keys"] = expected_keys(self.settings, chunk)
        if self.shares is not None and (rest.get("keys") is None or self.shares.staging):
            self.strange.update(chunk)  # it waits, or waits behind such
        else:
            self.strange.difference_update(chunk)
        if self.last_values is not None:
            rest["last_keys"] = [rest["batch"].bodies[row][0] for row in rest["rows"]]
        super().arrive(now, chunk, sink, **rest)


class OrderedModel(Model):
    halted: Callable[[], bool] = staticmethod(lambda: False)
    looked: Callable[[str, Message], bool] = staticmethod(lambda text, m: True)
    held_back = False
    _told: tuple[QueueSettings, str | None] | None = None

    @property
    def rank_text(self) -> str | None:
        """Of its settings; worked out once for each of them, and asked for each message and each look."""
        if self._told is None or self._told[0] is not self.settings:
            self._told = self.settings, self.settings.rank_text
        return self._told[1]

    def rank(self, m: Message) -> int:
        return expected_rank(m.lsn, self.rank_text)

    def waiting(self) -> list[Message]:
        return sorted((m for m in self.messages.values() if m.state == "ready"), key=self.order)

    def order(self, m: Message) -> tuple[int, tuple[float, int]]:
        """Where it stands; what entered a ring at its head has its own place in its level."""
        ranked = self.rank_text is not None
        return self.rank(m), ((m.lsn - 0.25, 0) if ranked and m.place[0] < 0 else m.place)

    def fresh(self, m: Message) -> bool:
        """Whether filters look at it where it stands in the order, and need not look at it alone."""
        return not m.deliveries and m.place[0] == m.lsn

    def wants(self, w: Worker, m: Message) -> bool:
        if self.rank_text is None or w.filter is None:
            return super().wants(w, m)
        return (self.fresh(m) or w.filter in m.known) and self.looked(w.filter, m) and matches(w.filter, m.body)

    def looked_at(self, text: str, m: Message) -> bool:
        ranked = self.settings.rank_text is not None
        return (ranked and self.fresh(m)) or super().looked_at(text, m)

    def knows(self, text: str, m: Message) -> bool:
        ranked = self.settings.rank_text is not None
        return self.looked(text, m) if ranked and self.fresh(m) else super().knows(text, m)

    # -- target depth

    def inactive(self) -> list[Message]:
        return sorted((m for m in self.messages.values() if m.state == "inactive"), key=lambda m: m.place)

    def active(self) -> int:
        return sum(
            m.state in ("ready", "leased") or (m.state == "delayed" and not m.scheduled) for m in self.messages.values()
        )

    def dispatch(self, now: int) -> None:
        self.attend(now)
        if self.held_back or self.halted():
            return
        while self.dispatch_one(now) or self.activate():
            pass

    def activate(self) -> bool:
        depth = self.settings.target_queue_depth
        waiting = self.inactive()
        if waiting and (not depth or self.active() < depth):
            waiting[0].state = "ready"
            return True
        return False

    def arrive(self, now: int, lsn: int, *rest: Any) -> None:
        depth = self.settings.target_queue_depth
        self.held_back = bool(self.inactive() or (depth and self.active() >= depth))
        super().arrive(now, lsn, *rest)
        if self.held_back:
            self.held_back = False
            m = self.messages.get(lsn)
            if m is not None and m.state == "ready":
                m.state, m.known = "inactive", set()
            self.dispatch(now)

    def pull(self, now: int, w: Worker, count: int) -> int:
        given = super().pull(now, w, count)
        self.dispatch(now)
        return given

    def purge(self) -> int:
        waiting = self.inactive()
        for m in waiting:
            del self.messages[m.lsn]
        return len(waiting) + super().purge()

    def restart(self, now: int) -> None:
        for m in self.messages.values():
            if m.state in ("leased", "inactive"):
                m.state = "ready"
        depth = self.settings.target_queue_depth
        if depth:
            never = [m for m in self.waiting() if not m.deliveries and m.place[0] == m.lsn]
            for m in never[max(depth - self.active() + len(never), 0) :]:
                m.state = "inactive"
        super().restart(now)

    def reorder(self, expression: str | None) -> None:
        self.settings = replace(self.settings, priority_expression=expression)
        for m in self.messages.values():
            m.known = set()


class OrderedMachine(QueueMachine):
    model: OrderedModel

    @initialize(
        settings=queue_settings, steps=st.sampled_from([10_000, 3]), plain=st.booleans(), tiny=st.booleans(),
        most=st.sampled_from([10_000, 3]), kind=st.sampled_from(["/a", "/b", "levels", "depth", "none"]),
        depth=st.sampled_from([1, 2, 5]),
    )  # fmt: skip
    def start(
        self, settings: QueueSettings, steps: int, plain: bool, tiny: bool, most: int, kind: str, depth: int
    ) -> None:
        for module, name, value in TINY if tiny else ():
            change = patch.object(module, name, value)
            change.start()
            self.changes.append(change)
        with patch.object(test_queue_model, "Queue", RankedQueue):
            super().start(settings, steps, plain, tiny, 10_000 if kind != "depth" else most, False)
        self.kind = kind
        settings = self.queue.settings
        if kind == "depth":
            settings = replace(settings, target_queue_depth=depth)
        elif kind == "levels":
            settings = replace(settings, max_priority=3)
        elif kind != "none":
            settings = replace(settings, priority_expression=kind)
        self.queue = RankedQueue(1, "/", "q", settings)
        self.queue.dispatch_most = self.steps
        self.queue.ensure_targets().most = self.most
        self.model = OrderedModel(settings)
        self.connect()

    def connect(self) -> None:
        queue, model = self.queue, self.model

        def looked(text: str, m: Message) -> bool:
            """Whether the list of the filter has looked at all that was never delivered and stands before it."""
            targets = queue.targets.lists.get(text)
            if targets is None:
                return False
            place = (model.rank(m), m.place)
            seen = targets.walked >> 64, (float(targets.walked & priority_order.LOW), 1 << 60)
            places = [
                (model.rank(one), one.place)
                for one in model.messages.values()
                if one.state == "ready" and model.fresh(one)
            ]
            return place <= seen or not (model.fresh(m) or any(seen < one < place for one in places))

        def forget() -> None:
            """The target lists are new: they have looked at nothing."""
            for m in model.messages.values():
                if not m.barrier:  # what was answered of one stays answered
                    m.known = set()

        assert isinstance(queue, RankedQueue)
        queue.renewed = forget
        model.halted = lambda: self.queue.ranking is not None  # also while a start is under way
        model.looked = looked

    def rate(self, effect: Rate) -> None:
        assert effect.token.purpose is Purpose.RANK
        seen = effect.chunk[: 1 + self.clock % len(effect.chunk)]
        ranking = self.queue.ranking
        self.queue.rated(
            self.now, effect.token, seen, [expected_rank(lsn, effect.value.text) for lsn in seen], self.sink
        )
        if ranking is not None and self.queue.ranking is None:  # who has no filter is served before any list has looked
            looked, self.model.looked = self.model.looked, lambda text, m: False
            self.model.dispatch(self.clock)
            self.model.looked = looked
        self.model.dispatch(self.clock)

    def scan(self, effect: Scan) -> None:
        look = self.queue.targets.asked.get(effect.token.serial)
        if look is not None and self.queue.ranks is None:
            super().scan(effect)
            return
        seen = effect.chunk[: 1 + self.clock % len(effect.chunk)]
        found = [[lsn for lsn in seen if matches(one.text, self.bodies[lsn])] for one in effect.filters]
        self.queue.scanned(self.now, effect.token, found, seen[-1], self.sink)
        for one in effect.filters:
            if look is not None and look.recheck and self.queue.targets.lists.get(one.text) in look.lists:
                for lsn in seen:
                    if lsn in self.model.messages:
                        self.model.messages[lsn].known.add(one.text)
        self.model.dispatch(self.clock)

    @rule(expression=st.sampled_from([None, "/a", "/b"]), really=rarely)
    def change_expression(self, expression: str | None, really: bool) -> None:
        if not really or self.kind in ("depth", "levels") or expression == self.queue.settings.priority_expression:
            return
        self.before()
        self.model.reorder(expression)
        self.queue.alter(self.now, replace(self.queue.settings, priority_expression=expression), self.sink)
        self.model.dispatch(self.clock)
        self.after()

    @rule(depth=st.sampled_from([0, 1, 3, 8]), really=rarely)
    def change_depth(self, depth: int, really: bool) -> None:
        if not really or self.kind != "depth":
            return
        self.before()
        self.model.settings = replace(self.queue.settings, target_queue_depth=depth)
        self.queue.alter(self.now, self.model.settings, self.sink)
        self.model.dispatch(self.clock)
        self.after()

    @rule(unclean=st.booleans(), really=rarely, lost=st.integers(0, 60))
    def restart(self, unclean: bool, really: bool, lost: int) -> None:
        """The state knows no rank of what came late."""
        if not really:
            return
        snapshot = self.queue.snapshot

        def shortened() -> tuple[list[Chunk], dict[str, array[int]]]:
            waiting, columns = snapshot()
            if "rank" in columns:
                lsns = flat(waiting)
                told = spread(lsns, columns["rank"])
                told[lsns > self.sink.next_lsn - lost] = 0
                columns["rank"] = runs_of(lsns, told)
            return waiting, columns

        shorter = patch.object(RankedQueue, "snapshot", property(lambda _: shortened))
        with patch.object(test_queue_model, "Queue", RankedQueue), shorter:
            queue, self.after = self.queue, lambda: None  # type: ignore[method-assign]
            super().restart(unclean, really)
            del self.after
        assert self.queue is not queue
        self.connect()
        self.queue.tick(self.now, self.sink)
        self.after()

    @invariant()
    def same_state(self) -> None:
        if not hasattr(self, "queue"):
            return
        queue, model = self.queue, self.model
        queue.check()
        main, returned = queue.main, queue.returned
        if isinstance(main, PriorityOrder):
            keys = [(main.place(lsn), lsn) for chunk in main.chunks() for lsn in chunk]
            keys += [returned.key(run.part(range(lsn, lsn + 1), False)) for run in returned.runs() for lsn in run.chunk]
            assert [key for run in returned.runs() for key in returned.present(run.chunk)] == [
                returned.key(run.part(range(lsn, lsn + 1), False)) for run in returned.runs() for lsn in run.chunk
            ]
            for lsn in (lsn for chunk in main.chunks() for lsn in chunk):
                assert main.has(lsn)
                assert main.stands((main.place(lsn), lsn))
            if queue.shares is not None and (tenants := queue.shares.tenants) is not None:
                keys += [(main.place(lsn), lsn) for chunk in tenants.chunks() for lsn in chunk]
                back = PriorityReturned(main.ranks)
                keys += [
                    (back.key(run.part(range(lsn, lsn + 1), False))) for run in tenants.runs() for lsn in run.chunk
                ]
        else:
            keys = [(lsn, lsn) for chunk in main.chunks() for lsn in chunk]
            keys += [(run.where if run.place else lsn, lsn) for run in returned.runs() for lsn in run.chunk]
            if queue.shares is not None and (tenants := queue.shares.tenants) is not None:
                keys += [(lsn, lsn) for chunk in tenants.chunks() for lsn in chunk]
                keys += [(run.where if run.place else lsn, lsn) for run in tenants.runs() for lsn in run.chunk]
        assert [lsn for _, lsn in sorted(keys)] == [m.lsn for m in model.offered()]
        assert sorted(lsn for chunk in queue.tail.chunks() for lsn in chunk) == [m.lsn for m in model.inactive()]
        for worker, consumer in self.workers.values():
            held = sorted(lsn for run in consumer.leases.held() for lsn in run.chunk)
            assert held == sorted(worker.held + worker.slots)
        self.same_places()

    @invariant()
    def ranks_last(self) -> None:
        if not hasattr(self, "queue"):
            return
        waiting, columns = self.queue.snapshot()
        lsns = flat(waiting)
        told = spread(lsns, columns.get("rank", array("q"))).tolist()
        assert told == [expected_rank(lsn, self.queue.settings.rank_text) for lsn in lsns.tolist()]

    @invariant()
    def everything_ready_is_known_to_the_filters(self) -> None:
        if not hasattr(self, "queue") or self.most < 100:
            return
        for text, targets in self.queue.targets.lists.items():
            if self.queue.ranks is not None:
                assert targets.walked == ALL
            ranked = self.queue.ranks is not None
            assert all(text in m.known or (ranked and self.model.fresh(m)) for m in self.model.offered())


OrderedMachine.TestCase.settings = settings(
    max_examples=examples(100, 5),
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestOrderedQueue = OrderedMachine.TestCase
