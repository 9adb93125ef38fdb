"""Dispatch among consumers with filters: only the lists that have a match and somebody to take it are looked at.

It grants what `dispatch` would grant message by message: the oldest ready message that somebody with room wants, to one
of those that want it.  Lists stand in a heap by their oldest match.

A consumer that let a lease end is silent (`Precedence`): it takes what nobody else wants (`roster`).  What a filter has
not looked at yet may be wanted, so who is silent waits there for as long as a list that has somebody else with room has
still to look: without that it would get again, each time, what its own lease gave back.  Lists look at what stands
first, and one that is full has given its matches to who has room; so that wait ends with the next answer.

Within a dispatch nothing comes and nobody gets room, so what was found is true until it is reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.dealing import share_out
from penstock.core.queue.dispatching.granting import grant_all, grant_each, one_each
from penstock.core.queue.dispatching.takers import Takers, ratio
from penstock.core.queue.order.runs import END, Key, Run
from penstock.core.queue.whole import DISPATCH
from penstock.records.chunks import Now
from penstock.records.queue_settings import FairnessModel

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Consumer, TargetList
    from penstock.core.queue.dispatching.filtering import Targets
    from penstock.core.queue.order.main_order import Main


FIRST: Key = (-END[0], 0)
"""Before every place."""


def to_look(lists: Iterable[TargetList], main: Main) -> tuple[Key, TargetList | None]:
    """Where the first message stands at which one of these has still to look, and which; `END` without one."""
    first, found = END, None
    for targets in lists:
        place = targets.stop(main, first)
        if place is not None:
            first, found = place, targets
    return first, found


class Precedence:
    """As far as one dispatch has to know it."""

    __slots__ = ("_first", "_list", "_main", "_targets")

    def __init__(self, targets: Targets, main: Main) -> None:
        self._targets = targets
        self._main = main
        self._first = FIRST  # nobody is waited for before this
        self._list: TargetList | None = None  # which has to look there

    def ends(self, key: Key) -> Key:
        """Up to which place who is silent may be given something, as far as that matters at this one."""
        if key >= self._first and not self._waits(key):
            others = [one for one in self._targets.to_look if one.takers.speaks]
            self._first, self._list = to_look(others, self._main)
        return self._first

    def _waits(self, key: Key) -> bool:
        """Whether the list that has been found has still to look here."""
        one = self._list
        return one is not None and one.takers.speaks and one.stop(self._main, (key[0], key[1] + 1)) is not None


class _Group:
    """A list with the consumers that take from it, or (without a list) those that take anything."""

    __slots__ = ("list", "takers")

    def __init__(self, list: TargetList | None, takers: Takers[Consumer]) -> None:
        self.list = list
        self.takers = takers


Heap: TypeAlias = "list[tuple[Key, int, _Group]]"
"""By where the oldest message stands that they want, as far as is known; the number keeps groups from being compared.

Within a dispatch its first only moves back.  So of a list that may not give its first yet, or has nobody to take it,
nothing more is to be seen before the next one, unless somebody takes later what it has still to look at.
"""


def dispatch_matched(queue: Contents, now: Now, sink: Sink, budget: int, *, singly: bool) -> None:
    """Grant what can be granted, `budget` messages at most; then `DISPATCH` says that there is more.

    singly: what one consumer takes may leave another less room, so each message is given alone.
    """
    model = queue.settings.fairness_model
    targets = queue.targets
    if queue.room <= 0:
        return
    if queue.sharing:
        _wake_sharing(queue)
    shares: dict[Consumer, list[Run]] = {}
    resting: list[TargetList] = []  # they stay among the awake, at whose end those appear that have to be entered
    heap: Heap = []
    entered = _enter_awake(heap, queue, 0, resting)
    _enter_plain(heap, queue, resting)
    held = 0
    others = Precedence(targets, queue.main) if queue.roster.silent else None
    while heap and queue.ready:
        key, wanting = _first_wanted(heap, queue, resting)
        consumer, taking = _next(wanting, model, queue.roster.turn)
        if consumer is None or taking is None:
            resting += [one.list for one in wanting if one.list is not None]
            continue
        if others is not None and consumer.silent and others.ends(key) <= key:
            continue  # their lists stay awake: somebody else's looks first
        if not budget:
            queue.agenda |= DISPATCH
            break
        most = min(budget, queue.room - held)
        limit = _limit(heap, taking, key, others)
        given = counted = 0
        if len(wanting) == 1 and not singly:
            given, counted = _give_several(queue, now, sink, taking, key, limit, most, shares)
        if not given:
            shares.setdefault(consumer, []).append(queue.take_one(key))
            given, counted = 1, _count(consumer, taking.takers, 1)
            queue.roster.turn = consumer.serial
        budget -= given
        held += counted
        if queue.room - held <= 0:
            break
        for one in wanting:
            _enter(heap, one, queue, resting)
        if len(targets.awake) + len(targets.halted) > entered:  # some may know their next now
            entered = _enter_awake(heap, queue, entered, resting)
    _end(queue, now, sink, shares, resting)


def _wake_sharing(queue: Contents) -> None:
    """Credit that others have, too, may have come free by what they settled, here or in another queue."""
    for consumer in queue.roster.all:
        if consumer.shared is not None and consumer.targets is not None:
            consumer.targets.wake(consumer)


def _end(queue: Contents, now: Now, sink: Sink, shares: dict[Consumer, list[Run]], resting: list[TargetList]) -> None:
    """Grant what was counted as held; lists that give nothing sleep."""
    for one in resting:
        queue.targets.rest(one, queue.main)
    if shares:
        for consumer, share in shares.items():
            _hold(consumer, -sum([len(run.chunk) for run in share]))
        grant_all(queue, now, sink, [(consumer, shares[consumer]) for consumer in sorted(shares, key=_rank)])


def _first_wanted(heap: Heap, queue: Contents, resting: list[TargetList]) -> tuple[Key, list[_Group]]:
    """Where the oldest stands that somebody wants, and all groups that may have it; they are out of the heap."""
    key = heap[0][0]
    wanting: list[_Group] = []
    while heap and heap[0][0] == key:
        group = heappop(heap)[2]
        stop = None if group.list is None else group.list.stop(queue.main, key)
        if group.list is None or stop is None:
            wanting.append(group)
        else:
            resting.append(group.list)
    return key, wanting


def _enter_awake(heap: Heap, queue: Contents, entered: int, resting: list[TargetList]) -> int:
    """Enter the lists that are awake, without the first so many; how many they are now."""
    awake = queue.targets.awake
    if queue.targets.halted:
        queue.targets.wake_halted(queue.main)
    for targets in list(islice(awake, entered, None)):
        _enter(heap, _Group(targets, targets.takers), queue, resting)
    return len(awake)


def _enter_plain(heap: Heap, queue: Contents, resting: list[TargetList]) -> None:
    """Enter those that take anything."""
    plain = queue.roster.plain
    if plain:
        takers: Takers[Consumer] = Takers()
        for consumer in plain:
            takers.add(consumer)
        _enter(heap, _Group(None, takers), queue, resting)


def _enter(heap: Heap, group: _Group, queue: Contents, resting: list[TargetList]) -> None:
    """Put a group into the heap, if it wants something and has somebody to take it; else its list rests."""
    targets = group.list
    key = None
    if targets is not None:
        key = targets.first(queue.main) if group.takers else None
    elif group.takers.able:  # to ask for the first lets tenants take their places
        key = queue.head()
    if key is not None:
        heappush(heap, (key, id(group), group))
    elif targets is not None:
        resting.append(targets)


def _next(wanting: list[_Group], model: FairnessModel, turn: int) -> tuple[Consumer | None, _Group | None]:
    """Who gets a message that all these groups want."""
    best: tuple[tuple[int, float, int], Consumer, _Group] | None = None
    for group in wanting:
        consumer = group.takers.next(model, turn)
        if consumer is None:
            continue
        second = 0.0
        if model == "proportional":
            second = ratio(consumer)
        elif model == "round-robin":
            second = float(consumer.serial <= turn)
        rank = (-consumer.level, second, consumer.serial)
        if best is None or rank < best[0]:
            best = rank, consumer, group
    return (None, None) if best is None else (best[1], best[2])


def _limit(heap: Heap, taking: _Group, key: Key, others: Precedence | None) -> Key:
    """Up to where nobody else wants what this group may have, as far as that is known."""
    limit = heap[0][0] if heap else END
    if others is not None and taking.takers.has_silent:
        limit = min(limit, others.ends(key))
    return limit


def _hold(consumer: Consumer, count: int) -> int:
    """Count what a consumer is given at once, for the next pick (`grant` counts for good); what uses up backlog."""
    if consumer.no_ack:
        return 0
    consumer.leases.count += count
    if consumer.shared is not None:
        consumer.shared.used += count
    return count


def _count(consumer: Consumer, takers: Takers[Consumer], count: int) -> int:
    """The same, in the order of those who take."""
    held = _hold(consumer, count)
    if held:
        takers.served(consumer)
    return held


def _give_several(
    queue: Contents,
    now: Now,
    sink: Sink,
    group: _Group,
    key: Key,
    limit: Key,
    most: int,
    shares: dict[Consumer, list[Run]],
) -> tuple[int, int]:
    """Give a group what it alone wants, up to a place; returns as `_give` does, nothing where that goes one by one."""
    if group.list is not None:
        return _give(queue, now, sink, group.list, group.takers, key, limit, most, shares)
    if most > 1 and not queue.targets.halted:
        return _give_plain(queue, group.takers, limit, most, shares)
    return 0, 0


def _give(
    queue: Contents,
    now: Now,
    sink: Sink,
    targets: TargetList,
    takers: Takers[Consumer],
    key: Key,
    limit: Key,
    most: int,
    shares: dict[Consumer, list[Run]],
) -> tuple[int, int]:
    """Give matches of one list to its consumers, up to where another list wants something.

    Returns how many, and how many of them use up backlog and are granted later.  Somebody has room for the first.
    """
    model = queue.settings.fairness_model
    lsns, first = _matches(queue, targets, key, limit, takers.room(most))
    turn = queue.roster.turn
    if len(targets.consumers) == 1 and (only := takers.next(model, turn)) is not None:
        owners = [only] * min(len(lsns), only.room)
        _count(only, takers, len(owners))
    else:
        owners = takers.deal(model, turn, len(lsns))
    queue.roster.turn = owners[-1].serial
    given = len(owners)
    if given == 1 and not (targets.found and key == (targets.found[0], targets.found[0])):
        shares.setdefault(owners[0], []).append(queue.take_one(key))
        return 1, int(not owners[0].no_ack)
    if queue.weight >= 0:
        queue.weight -= sum([queue.sizes.total(range(lsn, lsn + 1)) for lsn in lsns[:given]])
    runs = queue.main.take(given) if first and given > 1 else []
    targets.gave(lsns[:given])
    if runs and len(targets.consumers) == 1:
        shares.setdefault(owners[0], []).extend(runs)
        return given, 0 if owners[0].no_ack else given
    if len(runs) == 1 and shares.keys().isdisjoint(owners) and one_each(queue, owners, runs[0].chunk):
        grant_each(queue, now, sink, owners, runs[0].chunk)
        return given, 0
    for consumer, lsn in zip(owners, lsns, strict=False):
        one = Run(range(lsn, lsn + 1), True) if runs else queue.main.punch(lsn)
        shares.setdefault(consumer, []).append(one)
    return given, sum([not consumer.no_ack for consumer in owners])


def _give_plain(
    queue: Contents, takers: Takers[Consumer], limit: Key, most: int, shares: dict[Consumer, list[Run]]
) -> tuple[int, int]:
    """Give the oldest of the main order to those that take anything, up to where a list wants something.

    Returns as `_give` does; nothing where the next is one that came back.
    """
    if queue.shares is not None:
        return 0, 0
    if queue.returned.count:
        limit = min(limit, queue.returned.head())
    free = takers.free()
    runs = queue.main.take(min(most, sum([one.room for one in free])), limit[0])
    count = sum([len(run.chunk) for run in runs])
    if not count:
        return 0, 0
    if queue.weight >= 0:
        queue.weight -= queue.weight_of(runs)
    each, last = share_out(queue.settings.fairness_model, free, queue.roster.turn, runs, count)
    queue.roster.turn = last.serial
    held = 0
    for consumer, share in zip(free, each, strict=True):
        if share:
            shares.setdefault(consumer, []).extend(share)
            held += _count(consumer, takers, sum([len(run.chunk) for run in share]))
    return count, held


def _matches(queue: Contents, targets: TargetList, key: Key, limit: Key, most: int) -> tuple[list[int], bool]:
    """The next matches of a list, oldest first, that stand before `limit`: several of the main order, or the one.

    The flag: they are the oldest of the main order, all of one segment.
    """
    main, found = queue.main, targets.found
    if most == 1 or not found or key != (found[0], found[0]):
        return [key[1]], False
    back = targets.back.head() if targets.back else None
    if back is not None and back < limit:
        limit = back
    end = (targets.stop(main, limit) or limit)[0]
    if len(found) == 1 or found[1] >= end:
        return [key[1]], False
    lsns = list(islice(found, most)) if found[-1] < end else list(takewhile(end.__gt__, islice(found, most)))
    if main.begins_with(lsns):
        return lsns, True
    return [lsn for lsn in lsns if main.has(lsn)], False


def _rank(consumer: Consumer) -> tuple[int, int]:
    return -consumer.level, consumer.serial
