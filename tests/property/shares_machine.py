"""Queues that hold messages back by their keys: the definition, one message at a time, and walks of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from penstock.core.effects import Key, Purpose
from penstock.core.queue import shares
from penstock.core.queue.dispatching.dispatch import room_now
from penstock.core.queue.places import places
from penstock.records.queue_settings import QueueSettings
from property.queue_model import Message, Worker, first_served
from property.queue_walk import FILTERS, Walk
from property.test_ordered_queue_model import RankedQueue, expected_key, expected_keys, expected_tenant
from property.whole_machine import WholeMachine, WholeModel


class SharesModel(WholeModel):
    """Of a key the oldest message is offered, unless one of that key is leased or in back-off; tenants take turns."""

    def __init__(self, settings: QueueSettings) -> None:
        super().__init__(settings)
        self.turns = list[str | None]()
        self.deficit: dict[str | None, float] = {}
        self.ahead = set[int]()  # offered at once when they came: filters look at them where they stand
        self.let_go = set[int]()  # they waited for others of their key when that was taken from the queue

    @property
    def waits(self) -> bool:
        return (self.passing and self.shared) or super().waits

    aside: Callable[[], set[int]] = staticmethod(lambda: set[int]())
    """Of the queue those that are ready and not in the main order."""

    staged: Callable[[], set[int]] = staticmethod(lambda: set[int]())
    """Of the queue those whose keys are not told, or behind some of those: nobody may have them."""

    def untold(self) -> bool:
        """Whether something ready waits for its keys."""
        staged = self.staged()
        return any(m.lsn in staged for m in self.ready())

    def told(self, now: int) -> None:
        """Keys of some are known now."""
        self.dispatch(now)

    @property
    def shared(self) -> bool:
        """Whether messages are held back by their keys."""
        return self.settings.group_key is not None or self.settings.fairness_key is not None

    def begin_anew(self) -> None:
        """All keys are worked out anew: whose turn it is begins anew, and filters look at each message alone."""
        self.turns, self.deficit = [], {}
        self.ahead.clear()
        self.let_go.clear()

    def arrive(self, now: int, lsn: int, *rest: Any) -> None:
        if lsn not in self.aside():
            self.ahead.add(lsn)
        super().arrive(now, lsn, *rest)
        if self.shared:
            self.overdue(now)  # what expires at once keeps none of its key waiting

    def fresh(self, m: Message) -> bool:
        return super().fresh(m) and (m.lsn in self.ahead if self.shared else m.lsn not in self.let_go)

    def pass_ends(self, now: int) -> None:
        if self.waits:
            self.begin_anew()
        super().pass_ends(now)

    def stand(self, m: Message) -> tuple[Any, ...]:
        """Where a message stands among those that are offered."""
        return self.rank(m), m.place

    def offered(self) -> list[Message]:
        staged = self.staged()
        out = [m for m in super().offered() if m.lsn not in staged]
        if self.settings.group_key is None:
            return out
        taken = {
            expected_key(m.lsn)
            for m in self.messages.values()
            if m.state == "leased" or (m.state == "delayed" and not m.scheduled)
        }
        free = set[int]()
        for m in sorted((m for m in self.messages.values() if m.state == "ready"), key=lambda m: m.place):
            key = expected_key(m.lsn)
            if key is None or key not in taken:
                free.add(m.lsn)
                taken.add(key)
        return [m for m in out if m.lsn in free]

    # -- tenants

    def open(self) -> dict[str | None, list[Message]]:
        """What each tenant may be given, in order; of those who may be given something."""
        most = self.settings.max_leased[1]
        out: dict[str | None, list[Message]] = {}
        for m in self.offered():
            tenant = expected_tenant(m.lsn)
            leased = sum(o.state == "leased" and expected_tenant(o.lsn) == tenant for o in self.messages.values())
            if not most or leased < most:
                out.setdefault(tenant, []).append(m)
        return out

    def prune(self) -> None:
        """Who has nothing to deliver is not in the ring."""
        may = self.open()
        self.turns = [tenant for tenant in self.turns if tenant in may]
        self.deficit = {tenant: left for tenant, left in self.deficit.items() if tenant in may}

    def turn_of(self) -> Message | None:
        """The message that goes next."""
        may = self.open()
        new = [tenant for tenant in may if tenant not in self.turns]
        self.turns += sorted(new, key=lambda tenant: self.stand(may[tenant][0]))
        if not self.turns:
            return None
        weights = dict(self.settings.weights)
        while True:
            tenant = self.turns[0]
            left = self.deficit.get(tenant, 0.0)
            if left < 1:
                left += weights.get(tenant or "", 1.0)
            self.deficit[tenant] = left
            if left >= 1:
                return may[tenant][0]
            self.turns.append(self.turns.pop(0))

    def give(self, now: int, w: Worker, m: Message) -> None:
        super().give(now, w, m)
        if self.settings.fairness_key is not None:
            tenant = self.turns[0]
            self.deficit[tenant] -= 1
            self.prune()
            if self.turns and self.turns[0] == tenant and self.deficit.get(tenant, 1.0) < 1:
                self.turns.append(self.turns.pop(0))

    def dispatch_one(self, now: int) -> bool:
        if self.settings.fairness_key is not None:
            self.prune()
        if self.settings.rank_text is not None and self.untold():
            return False  # one of those may go before all others
        if self.settings.fairness_key is None:
            return super().dispatch_one(now)
        free = [w for w in self.here() if not w.paused and self.may_take(w) and self.room(w) > 0]
        if self.paused_until or self.queue_room() <= 0 or not free:
            return False
        m = self.turn_of()
        if m is None:
            return False
        self.give(now, self.pick(first_served(free)), m)
        return True

    def pull(self, now: int, w: Worker, count: int) -> int:
        if self.settings.fairness_key is None:
            return super().pull(now, w, count)
        given = 0
        self.prune()
        while not (self.waits or self.paused_until) and given < count and self.room(w) > 0 and self.queue_room() > 0:
            m = self.turn_of()
            if m is None:
                break
            self.give(now, w, m)
            given += 1
        self.dispatch(now)
        return given

    def restart(self, now: int) -> None:
        self.begin_anew()
        super().restart(now)


class SharesMachine(WholeMachine):
    """A queue with a group key."""

    model: SharesModel
    more: Mapping[str, Any] = {"group_key": "/group"}

    def start(self, settings: QueueSettings, *rest: Any) -> None:  # type: ignore[override]
        if "group_key" in self.more:  # which refuses to be delivered at most once
            settings = replace(settings, semantics="at-least-once")
        super().start(settings, *rest)
        settings = replace(self.queue.settings, **self.more)
        if self.kind != "none":
            settings = replace(settings, last_value_key=None)
        self.queue = RankedQueue(1, "/", "q", settings)
        self.queue.dispatch_most = self.steps
        self.queue.ensure_targets().most = self.most
        self.model = SharesModel(settings)
        self.connect()
        self.remember()

    def connect(self) -> None:
        super().connect()
        queue = self.queue
        if not isinstance(self.model, SharesModel):
            return  # it is about to be made
        assert isinstance(queue, RankedQueue)

        def staged() -> set[int]:
            if queue.shares is None:
                return set()
            staging = queue.shares.staging
            runs = (run.chunk for run in staging.runs())
            return queue.strange.union(*staging.chunks(), *runs)

        def aside() -> set[int]:
            beside = (place for place in places(queue, "ready") if place.part != "main")
            return {lsn for place in beside for chunk in place.chunks() for lsn in chunk}

        self.model.staged, self.model.aside = staged, aside

    def idle(self) -> bool:
        """Whether more could go than is offered, or somebody has room and takes none of that."""
        queue = self.queue
        return queue.offered < shares.WINDOW or (room_now(queue, self.now) > 0 and not queue.targets.asked)

    def same_state(self) -> None:
        super().same_state()
        if self.queue.shares is not None and self.queue.older is None:
            assert not self.model.untold() or not self.idle(), "keys were not asked for"

    def before(self) -> None:
        """As everywhere; keys of what falls due are told before the command, but after whatever else is due."""
        shares = self.queue.shares
        mixed = [(worker, worker.mixed) for worker, _ in self.workers.values()]
        if shares is not None:
            assert isinstance(self.queue, RankedQueue)
            for worker, of in mixed:
                worker.mixed = partial(bool, of())  # as it was before the queue takes back what ends now
            delayed = [m.lsn for m in self.model.messages.values() if m.state == "delayed"]
            self.queue.strange.update(lsn for lsn in delayed if not shares.keys.knows(lsn))
            if any(self.model.messages[lsn].due <= self.clock for lsn in self.queue.strange.intersection(delayed)):
                self.tick()  # which shows who waits behind those that are due: nothing overtakes them there
        super().before()
        for worker, of in mixed:
            worker.mixed = of
        if shares is not None and not all(map(shares.keys.knows, self.model.messages)):
            self.tick()
            self.after()

    def key(self, effect: Key) -> None:
        assert effect.token.purpose is Purpose.KEY
        while self.steps < 100 and self.queue.is_due(self.now):
            self.queue.tick(self.now, self.sink)  # whose turn it is, is found out among all that are told by then
        seen = effect.chunk[: 1 + self.clock % len(effect.chunk)]
        self.queue.keyed(self.now, effect.token, seen, expected_keys(self.queue.settings, seen), self.sink)
        assert isinstance(self.queue, RankedQueue)
        self.queue.strange.difference_update(seen)
        self.model.told(self.clock)

    def change_expression(self, expression: str | None, really: bool) -> None:
        other = expression != self.queue.settings.priority_expression
        if really and other and self.passing is None and self.kind not in ("depth", "levels"):
            self.model.begin_anew()
        super().change_expression(expression, really)

    def change_group_key(self, key: str | None) -> None:
        """The expression comes or goes."""
        was = self.queue.settings
        if self.passing is not None or key == was.group_key or was.semantics == "at-most-once":
            return
        self.before()
        settings = replace(self.queue.settings, group_key=key)
        self.model.settings = settings
        self.model.begin_anew()
        waited = self.model.aside()
        self.queue.alter(self.now, settings, self.sink)
        self.model.let_go = waited.difference(*self.queue.main.chunks())
        self.model.dispatch(self.clock)
        self.after()


WEIGHTS = (), (("t0", 2.0),), (("t1", 0.4), ("t2", 3.0))


class SharesWalk(Walk):
    """One walk of a queue with a group key."""

    KINDS = ("none",)
    MACHINE = SharesMachine
    SINGLY = True
    FAIR = 0.5
    """How many of the walks have tenants."""
    machine: SharesMachine

    def __init__(self, seed: int, mix: int | None = None) -> None:
        dice = Random(seed)
        self.fair = dice.random() < self.FAIR
        more: dict[str, Any] = {}
        if not self.fair or dice.random() < 0.4:
            more["group_key"] = "/group"
        if self.fair:
            more["fairness_key"] = "/tenant"
            more["weights"] = dice.choice(WEIGHTS)
            more["max_leased"] = dice.choice(((0, 0), (0, 0), (3, 0), (0, 1), (0, 2), (4, 2)))
        elif dice.random() < 0.2:
            more["max_leased"] = (3, 0)
        SharesMachine.more = more
        super().__init__(seed, mix)
        self.commands.append(self.regroup)

    def settings(self, settings: QueueSettings) -> QueueSettings:
        """Without last values, which `refuse_impossible` lets nobody set beside these: they count on all that came."""
        return replace(settings, last_value_key=None)

    def subscribe(self) -> None:
        dice, machine = self.dice, self.machine
        text = None if self.fair else dice.choice(FILTERS)
        if dice.random() < 0.3:
            machine.subscribe_as_one(
                dice.choice((None, 0, 3)), dice.choice((0, 0, 1)), False, text, dice.choice((1, 2, 5))
            )
            return
        passive = dice.random() < 0.2
        settings = machine.queue.settings
        may = (passive or settings.group_key is None) and not settings.max_leased[1]  # else it is refused
        no_ack = may and dice.random() < 0.2
        machine.subscribe(
            dice.choice((None, None, 0, 1, 3, 8, 50)), dice.choice((0, 0, 0, 1)), no_ack,
            text, passive, dice.choice((None, None, None, "a")), dice.choice(("x", "y")),
        )  # fmt: skip

    def lease(self, dice: Random) -> None:
        """Or other weights of tenants, or another limit of what one may have out."""
        settings = self.machine.queue.settings
        match dice.randrange(3) if self.fair else 0:
            case 0:
                super().lease(dice)
            case 1:
                self.machine.change(weights=dice.choice(WEIGHTS))
            case _:
                self.machine.change(max_leased=(settings.max_leased[0], dice.choice((0, 0, 1, 2))))

    def regroup(self) -> None:
        if self.dice.random() < 0.1:
            self.machine.change_group_key(self.dice.choice((None, "/group", "/group")))

    def replace(self) -> None:
        dice, machine = self.dice, self.machine
        if machine.workers:
            text = None if self.fair else dice.choice(FILTERS)
            machine.replace(dice.randrange(6), text, dice.choice((None, 0, 1, 4, 50)))


class RankedSharesWalk(SharesWalk):
    """One walk of a queue with keys and priorities: the order within a tenant, and among the first of each group."""

    KINDS = ("/a", "/a", "/b")
