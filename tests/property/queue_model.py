"""The definition of a queue, one message at a time, with nothing clever in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.records.queue_settings import QueueSettings

UNLIMITED = 1 << 40


@dataclass
class Message:
    lsn: int
    body: bytes
    place: tuple[float, int]
    deadline: int = 0
    state: str = "ready"  # ready, leased, delayed
    deliveries: int = 0
    failures: int = 0
    cancels: int = 0
    unseen: int = 0  # deliveries that nobody saw
    due: int = 0
    scheduled: bool = False
    lease_end: int = 0
    granted: int = 0
    known: set[str] = field(default_factory=set[str])  # filters that have looked at it
    barrier: bool = False


@dataclass
class Worker:
    """A consumer."""

    tag: str
    serial: int
    backlog: int | None
    priority: int
    no_ack: bool
    filter: str | None
    passive: bool
    group: str | None  # shared credit
    client: str = ""
    paused: bool = False
    closed: bool = False
    silent: bool = False  # it let a lease end, and has said nothing since
    held: list[int] = field(default_factory=list[int])  # in order of grant
    slots: list[int] = field(default_factory=list[int])
    mixed: Callable[[], bool] = field(default=lambda: False)  # it holds what another filter let in


def matches(text: str, body: bytes) -> bool:
    return bool(body[0] & int(text))


def first_served(workers: list[Worker]) -> list[Worker]:
    """Those of them that come before all others: who let a lease end comes last, whatever its priority."""
    top = max((not w.silent, w.priority) for w in workers)
    return [w for w in workers if (not w.silent, w.priority) == top]


class Model:
    looking: Callable[[], bool] = staticmethod(lambda: False)
    """Whether a filter has not answered yet for anything of what waited before it, or any for what came back."""

    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.messages: dict[int, Message] = {}
        self.workers: list[Worker] = []
        self.credit: dict[str, int] = {}
        self.turn = 0
        self.sent: list[tuple[str, int, int, bool]] = []  # (tag, lsn, attempt, redelivered)
        self.expired: list[tuple[int, str]] = []
        self.dying = set[int]()  # expired, their dead letters not written yet
        self.redelivered_below = 0
        self.newest = 0
        self.began = False  # enough consumers came
        self.opens: int | None = None  # or it begins then
        self.last_of: dict[int, int] = {}  # of each key the LSN that came last
        self.loaded = False  # by a start
        self.back = list[Message]()  # ready again since somebody looked
        self.paused_until = 0  # 0: not paused
        self.came_due = 0

    # -- helpers

    def used(self, w: Worker) -> int:
        return len(w.held) + len(w.slots)

    def room(self, w: Worker) -> int:
        limit = UNLIMITED if w.backlog is None else w.backlog
        if self.settings.max_per_subscription_backlog:
            limit = min(limit, self.settings.max_per_subscription_backlog)
        if w.no_ack and w.backlog != 0:
            limit = UNLIMITED
        room = limit - self.used(w)
        if w.group is not None and not w.no_ack:
            room = min(room, self.credit[w.group] - sum(self.used(o) for o in self.workers if o.group == w.group))
        return room

    def weight(self, w: Worker) -> int:
        limit = UNLIMITED if w.backlog is None else w.backlog
        if self.settings.max_per_subscription_backlog:
            limit = min(limit, self.settings.max_per_subscription_backlog)
        return 1_000_000 if w.no_ack or limit == UNLIMITED else limit

    def queue_room(self) -> int:
        room = UNLIMITED
        if self.settings.max_backlog:
            room = self.settings.max_backlog - sum(self.used(w) for w in self.workers)
        if self.settings.max_leased[0]:
            room = min(room, self.settings.max_leased[0] - sum(len(w.held) for w in self.workers))
        return room

    def ready(self) -> list[Message]:
        fence = self.fence()
        end = fence.place[0] if fence is not None else float("inf")
        return [m for m in self.waiting() if m.lsn < end and not m.barrier]

    def offered(self) -> list[Message]:
        """Those of them that consumers may have."""
        return self.ready()

    def waiting(self) -> list[Message]:
        """Ready, or held back by a barrier."""
        return sorted((m for m in self.messages.values() if m.state == "ready"), key=lambda m: m.place)

    def fence(self) -> Message | None:
        """The barrier that goes next."""
        return next((m for m in self.waiting() if m.barrier), None)

    def dissolve(self) -> None:
        """There are no barriers any more."""
        for m in self.messages.values():
            if m.barrier:
                m.barrier, m.known = False, set()

    def release(self) -> bool:
        """Let the next barrier go if all before it is done."""
        fence = self.fence()
        if self.paused_until or fence is None or any(lsn < fence.place[0] for w in self.workers for lsn in w.slots):
            return False
        before = [m.lsn for m in self.messages.values() if not m.barrier]
        if any(lsn < fence.place[0] for lsn in (*before, *self.dying)):
            return False
        open_ones = [w for w in self.here() if self.may_take(w)]
        if not open_ones and self.settings.barrier_without_subscribers == "hold":
            return False
        if any(w.filter is not None and w.filter not in fence.known for w in open_ones):
            return False
        del self.messages[fence.lsn]
        for w in open_ones:
            if self.wants(w, fence):
                self.sent.append((w.tag, fence.lsn, 1, fence.lsn < self.redelivered_below))
        return True

    def wants(self, w: Worker, m: Message) -> bool:
        return w.filter is None or (w.filter in m.known and matches(w.filter, m.body))

    def looked_at(self, text: str, m: Message) -> bool:
        """Whether what stands behind it need not wait for the filter to look at it."""
        return text in m.known

    def knows(self, text: str, m: Message) -> bool:
        """Whether the filter knows whether it wants it."""
        return text in m.known

    def next_for(self, free: list[Worker]) -> tuple[Message, list[Worker]] | None:
        """The first message that some of these want, and who does.

        Who has a filter gets nothing that stands behind what it has not looked at.  Who is silent gets nothing from
        where somebody's filter has still to look on who is not: others come first.
        """
        unseen = set[str]()
        others = {w.filter for w in free if w.filter is not None and not w.silent}
        for message in self.offered():
            if not all(self.knows(text, message) for text in others):
                free, others = [w for w in free if not w.silent], set[str]()
            wanting = [w for w in free if w.filter not in unseen and self.wants(w, message)]
            if wanting:
                return message, wanting
            texts = {w.filter for w in free if w.filter is not None}
            unseen.update(text for text in texts if not self.looked_at(text, message))
        return None

    # -- the rules

    def here(self) -> list[Worker]:
        """Open consumers that are pushed to, in order of arrival."""
        return sorted((w for w in self.workers if not (w.closed or w.passive)), key=lambda w: w.serial)

    def may_take(self, w: Worker) -> bool:
        if self.settings.consumers_before_dispatch and not self.began:
            return False
        return not self.settings.single_active_consumer or w is self.here()[0]

    # -- last values

    def key(self, m: Message) -> int:
        return m.body[0] if self.settings.last_value_key is not None else 0

    def standing(self, key: int) -> list[Message]:
        """Living messages of a key that are not scheduled, in order of arrival."""
        some = (m for m in self.messages.values() if self.key(m) == key and not m.scheduled)
        return sorted(some, key=lambda m: m.place)

    def enter(self, m: Message) -> None:
        """It is the newest of its key."""
        if not self.key(m) or self.loaded:
            return
        old = self.messages.get(self.last_of.get(self.key(m), -1))
        if old is None and (others := [o for o in self.standing(self.key(m)) if o is not m]):
            old = others[-1]
        self.last_of[self.key(m)] = m.lsn
        back = {o.lsn for o in self.back}  # what came back in this moment waits as well
        for o in [o for o in self.standing(self.key(m)) if o is not m]:
            if o.state != "leased" and (o is old or o.lsn in back):
                del self.messages[o.lsn]

    def look_at_returned(self) -> None:
        """What came back goes if a newer one of its key lives."""
        if self.loaded:
            self.loaded = False
            if self.settings.last_value_key is not None:
                for key in (1, 2, 3):
                    some = self.standing(key)
                    self.last_of.update({key: some[-1].lsn} if some else {})
                    self.back += some
        back, self.back = self.back, []
        replaced = list[Message]()
        for m in back:
            key = self.key(m)
            if not key or self.messages.get(m.lsn) is not m:
                continue
            if self.last_of.get(key) not in self.messages:
                self.last_of[key] = self.standing(key)[-1].lsn
            if self.last_of[key] != m.lsn:
                replaced.append(m)
        for m in replaced:
            if m.state != "leased":
                self.messages.pop(m.lsn, None)

    def attend(self, now: int) -> None:
        """Who came and who went."""
        self.look_at_returned()
        s, count = self.settings, len(self.here())
        if not count:
            self.began, self.opens = False, None
            if s.purge_on_no_consumers:
                self.purge()
        elif s.consumers_before_dispatch and not self.began:
            if self.opens is None and s.delay_before_dispatch is not None:
                self.opens = now + s.delay_before_dispatch
            enough = count >= s.consumers_before_dispatch and not self.looking()
            self.began = enough or (self.opens is not None and self.opens <= now)

    def dispatch(self, now: int) -> None:
        self.attend(now)
        while self.dispatch_one(now) or self.release():
            pass

    def dispatch_one(self, now: int) -> bool:
        if self.paused_until or self.queue_room() <= 0:
            return False
        free = [w for w in self.here() if not w.paused and self.may_take(w) and self.room(w) > 0]
        found = self.next_for(free)
        if found is None:
            return False
        message, wanting = found
        self.give(now, self.pick(first_served(wanting)), message)
        return True

    def pick(self, ws: list[Worker]) -> Worker:
        ws = sorted(ws, key=lambda w: w.serial)
        if self.settings.fairness_model == "fast":
            return ws[0]
        if self.settings.fairness_model == "round-robin":
            return next((w for w in ws if w.serial > self.turn), ws[0])
        best = ws[0]
        for w in ws[1:]:
            if self.used(w) * self.weight(best) < self.used(best) * self.weight(w):
                best = w
        return best

    def give(self, now: int, w: Worker, m: Message) -> None:
        if not w.passive:
            self.turn = w.serial
        redelivered = m.deliveries > m.unseen or m.lsn < self.redelivered_below
        m.deliveries += 1
        self.sent.append((w.tag, m.lsn, m.deliveries - m.unseen, redelivered))
        if self.settings.semantics == "at-most-once" or w.no_ack:
            del self.messages[m.lsn]
            if not w.no_ack:
                w.slots.append(m.lsn)
            return
        m.state = "leased"
        m.granted = now
        m.lease_end = now + self.settings.lease_period if self.settings.lease_period else 0
        w.held.append(m.lsn)

    def arrive(
        self, now: int, lsn: int, body: bytes, own: int, not_before: int, filters: set[str], barrier: bool = False
    ) -> None:
        s = self.settings
        deadline = 0
        queue = now + s.expiration if s.expiration is not None else 0
        if s.expiration_model == "default":
            deadline = own or queue
        elif s.expiration_model == "queue":
            deadline = queue
        elif s.expiration_model == "latest":
            deadline = max(own, queue) if queue else 0
        else:
            deadline = min(own, queue) if own and queue else own or queue
        if s.message_ttl is not None:
            deadline = min(deadline, now + s.message_ttl) if deadline else now + s.message_ttl
        m = Message(lsn, body, (lsn, lsn), deadline, known=set(filters), barrier=barrier)
        self.newest = lsn
        if not_before > now:
            m.state, m.due, m.scheduled = "delayed", not_before, True
            self.messages[lsn] = m
        elif deadline and deadline < now:
            self.expire(lsn, "time_limit")
        else:
            self.messages[lsn] = m
            self.dispatch(now)
            self.enter(m)

    def overdue(self, now: int) -> None:
        for m in list(self.messages.values()):
            if m.state != "leased" and 0 < m.deadline <= now:
                self.drop(m, "time_limit")

    def drop(self, m: Message, reason: str) -> None:
        del self.messages[m.lsn]
        self.expire(m.lsn, reason)

    def expire(self, lsn: int, reason: str) -> None:
        self.expired.append((lsn, reason))
        if self.settings.dead_letter_exchange is not None:
            self.dying.add(lsn)

    def buried(self, now: int, lsns: Iterable[int]) -> None:
        """Their dead letters are written."""
        self.dying.difference_update(lsns)
        self.dispatch(now)

    def give_back(
        self,
        now: int,
        m: Message,
        *,
        failed: bool,
        cancelled: bool = False,
        delay: int | None = None,
        unseen: bool = False,
        by: Worker | None = None,
    ) -> None:
        """by: who held it, whose filter let it in."""
        s = self.settings
        m.failures += failed
        m.cancels += cancelled
        m.unseen += unseen
        m.known = set()
        m.lease_end = 0
        reasons = self.limits(m)
        if 0 < m.deadline <= now:
            reasons.insert(0, "time_limit")
        if reasons:
            self.drop(m, ",".join(reasons))
            return
        wait = delay
        if wait is None:
            wait = 0
            if failed and s.retry is not None:
                wait = min(round(s.retry.initial * s.retry.factor ** (m.failures - 1)), s.retry.max)
        m.state = "ready"
        self.back.append(m)
        if wait:
            m.state, m.due, m.scheduled = "delayed", now + wait, False
        elif by is not None and by.filter is not None and not by.mixed() and not self.behind_a_barrier(m):
            m.known = {by.filter for w in self.workers if w.filter == by.filter and not w.closed}

    def behind_a_barrier(self, m: Message) -> bool:
        fence = self.fence()
        return fence is not None and m.lsn > fence.place[0]

    def limits(self, m: Message) -> list[str]:
        s = self.settings
        reasons = list[str]()
        if s.max_cancels and m.cancels >= s.max_cancels:
            reasons.append("max_cancels")
        if (
            (s.max_deliveries and m.deliveries - m.unseen >= s.max_deliveries)
            or (s.retry is not None and s.retry.attempts and m.failures >= s.retry.attempts)
            or (s.delivery_limit >= 0 and m.failures >= s.delivery_limit + 1)
        ):
            reasons.append("max_deliveries")
        return reasons

    def tick(self, now: int) -> None:
        if 0 < self.paused_until <= now:
            self.paused_until = 0
        for w in self.workers:
            for lsn in list(w.held):
                timeout = self.settings.consumer_timeout
                overdue = timeout and self.messages[lsn].granted + timeout <= now
                if overdue or 0 < self.messages[lsn].lease_end <= now:
                    self.let_end(now, w, lsn)
        due = [m for m in self.messages.values() if m.state == "delayed" and m.due <= now]
        for m in sorted(due, key=lambda m: (m.due, m.lsn)):
            if m.scheduled and 0 < m.deadline < m.due:
                self.drop(m, "time_limit")  # it was never there
                continue
            m.state = "ready"
            m.known = set()
            if not m.scheduled:
                self.back.append(m)
            if m.scheduled:
                self.came_due += 1
                m.place = (self.newest + 0.5, self.came_due)
                m.scheduled = False
                if m.deliveries:
                    self.back.append(m)
                else:
                    self.enter(m)
        self.overdue(now)
        self.dispatch(now)

    def let_end(self, now: int, w: Worker, lsn: int) -> None:
        """A delivery has ended by time: its worker comes behind all others until it says something."""
        w.held.remove(lsn)
        w.silent = w.silent or not (w.passive or w.closed)
        self.give_back(now, self.messages[lsn], failed=True, by=w)

    def settle(self, now: int, lsns: list[int], verb: str, by: Worker | None, client: str, delay: int | None) -> int:
        affected = 0
        if by is not None and not by.closed:
            by.silent = False
        for lsn in sorted(lsns):
            if by is not None and lsn in by.slots:
                by.slots.remove(lsn)
                affected += 1
                continue
            once = self.settings.semantics == "at-most-once"
            slot = next((w for w in self.workers if client and w.client == client and lsn in w.slots), None)
            if by is None and once and slot is not None:
                slot.slots.remove(lsn)
                affected += 1
                continue
            m = self.messages.get(lsn)
            if m is None:
                continue
            holder = next((w for w in self.workers if lsn in w.held), None)
            if holder is not by or holder is None:
                if by is not None and verb in ("cancel", "release", "unseen"):
                    continue
                if holder is None and verb in ("cancel", "release", "unseen"):
                    continue
                if holder is None and once and verb != "ack":
                    continue
                named = by is None and bool(client) and holder is not None and holder.client == client
                if holder is not None and self.settings.leasing == "strict" and not named:
                    continue
            affected += 1
            if holder is not None:
                holder.held.remove(lsn)
            if verb == "ack":
                del self.messages[lsn]
            elif verb == "expire":
                self.drop(m, "forced_expire")
            else:
                self.give_back(
                    now, m, failed=verb == "cancel", cancelled=verb == "cancel", unseen=verb == "unseen", delay=delay,
                    by=holder,
                )  # fmt: skip
        self.dispatch(now)
        return affected

    def unsubscribe(self, now: int, w: Worker, requeue: bool, lost: bool) -> None:
        w.closed = True
        if requeue:
            held, w.held, slots, w.slots = w.held, [], w.slots, []
            oldest = held[0] if held and not slots else None
            for lsn in held:
                self.give_back(now, self.messages[lsn], failed=lost and lsn == oldest, by=w)
        self.dispatch(now)

    def pull(self, now: int, w: Worker, count: int) -> int:
        given = 0
        while not self.paused_until and given < count and self.room(w) > 0 and self.queue_room() > 0:
            found = self.next_for([w])
            if found is None:
                break
            self.give(now, w, found[0])
            given += 1
        self.dispatch(now)
        return given

    def halt(self, now: int, until: int) -> None:
        self.paused_until = until
        self.dispatch(now)

    def still(self, lsns: Iterable[int]) -> list[Message]:
        """Those of them that wait: nobody holds them."""
        found = (self.messages.get(lsn) for lsn in sorted(lsns))
        return [m for m in found if m is not None and m.state != "leased"]

    def withdraw(self, now: int, lsns: Iterable[int]) -> int:
        gone = self.still(lsns)
        for m in gone:
            del self.messages[m.lsn]
        self.dispatch(now)
        return len(gone)

    def reschedule(self, now: int, lsns: Iterable[int], when: int) -> int:
        moved = self.still(lsns)
        for m in moved:
            m.state, m.due, m.scheduled, m.known = "delayed", when, not m.deliveries, set()
            if m.scheduled and self.last_of.get(self.key(m)) == m.lsn:
                del self.last_of[self.key(m)]
            m.place = (m.lsn, m.lsn)
        self.tick(now)
        self.dispatch(now)
        return len(moved)

    def purge(self) -> int:
        waiting = self.waiting()
        for m in waiting:
            del self.messages[m.lsn]
        return len(waiting)

    def restart(self, now: int) -> None:
        self.workers.clear()
        self.turn = 0
        for m in list(self.messages.values()):
            m.known = set()
            if m.state == "leased":
                m.state = "ready"
            if m.state == "ready" and (reasons := self.limits(m)):
                self.drop(m, ",".join(reasons))
        self.back.clear()
        self.loaded = True
        self.last_of.clear()
        self.tick(now)
