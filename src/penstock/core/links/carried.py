"""What a link carries: which topics, where a message of them may still go, and what is here already.

A message is known everywhere by the origin of the log that it was published to and its LSN there.  With it travels its
path: the origins that it has passed, the first one included.

Twins are here already, too: a message that was sent to two sites is recognised by its publisher and sequence.  A
publisher that hears nothing of its messages sends them again, to another site: then two logs have one message, each as
its own.  That of the lower origin is to be worked: who owns the other one lets it go, and says that it was a twin.
Where one of them is gone for another reason it was worked, and who owns the other one lets that go.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.core.queue.order.runs import packed
from penstock.core.state.lsns import Ints, flat
from penstock.expr import FilterSet, TopicPattern, compile_filter
from penstock.records.chunks import LSN_LIMIT, Chunk, pairs_of
from penstock.records.compute import distinct_numbers

KEPT = 16_384
"""Sequences of a publisher that are remembered at each site, behind its highest there."""

_LOOKS_AT, _CUTS = 512, 256

BEEN_MOST = 8_192
"""Stretches of an origin's messages that have been here and are forgotten; of more, the oldest count as one stretch
with all between them.
"""

FORGOTTEN = 0
"""Stands for the LSN here of what has been here, where nobody asks any more: no message has it."""


class Carries(NamedTuple):
    """Topics that a link carries: of one exchange those that the pattern names, as `underlying_topic` does.

    filter    an expression that a message has to match; None: all
    """

    pattern: str
    exchange: str = ""
    vhost: str = "/"
    filter: str | None = None


class Carried:
    """What one link carries, as its settings say."""

    def __init__(self, topics: Sequence[Carries], pass_through: Collection[str] = ()) -> None:
        """pass_through: groups whose messages go on.

        Errors: ExpressionError for a filter, ValueError for a pattern.
        """
        self.pass_through = pass_through
        self._topics = [
            (one, TopicPattern(one.pattern), None if one.filter is None else FilterSet([compile_filter(one.filter)]))
            for one in topics
        ]

    def judges(self, vhost: str, exchange: str, key: str) -> list[FilterSet | None]:
        """By which filters messages of a topic go on; None among them: all do; empty: none does."""
        return [
            judge for one, pattern, judge in self._topics
            if one.vhost == vhost and one.exchange == exchange and pattern.matches(key)
        ]  # fmt: skip

    def touches(self, vhost: str, exchange: str, shown: str) -> bool:
        """Whether it may carry some of the topics that a queue shows: one, or those of a pattern."""
        queue = TopicPattern(shown)
        return any(
            one.vhost == vhost and one.exchange == exchange and may_meet(pattern, queue)
            for one, pattern, _ in self._topics
        )

    def carries_all(self, vhost: str, exchange: str, shown: str) -> bool:
        """Whether it carries every message of the topics that a queue shows; a pattern may be taken for wide enough."""
        open_ = [
            pattern for one, pattern, judge in self._topics
            if one.vhost == vhost and one.exchange == exchange and judge is None
        ]  # fmt: skip
        queue = TopicPattern(shown)
        heads = [(shown, True)] if queue.literal else _heads(shown)
        if all(whole for _, whole in heads):
            return all(any(pattern.matches(topic) for pattern in open_) for topic, _ in heads)
        return any(not pattern.literal and may_meet(pattern, queue) for pattern in open_)


def may_meet(one: TopicPattern, other: TopicPattern) -> bool:
    """Whether some topic matches both.  Of two patterns it is taken to, unless their beginnings tell them apart."""
    if one.literal or other.literal:
        return other.matches(one.text) if one.literal else one.matches(other.text)
    for head, whole in _heads(one.text):
        for head_, whole_ in _heads(other.text):
            if whole and whole_:
                meet = head == head_ and other.matches(head)
            elif whole or whole_:
                meet = other.matches(head) if whole else one.matches(head_)
            else:
                meet = head.startswith(head_) or head_.startswith(head)
            if meet:
                return True
    return False


@lru_cache(maxsize=4096)  # each link asks of each queue whenever it looks whether queues have changed
def _heads(pattern: str) -> tuple[tuple[str, bool], ...]:
    """How a topic begins that a pattern matches, for each of its alternatives; and whether that is all of it."""
    tokens = re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|.", pattern, re.DOTALL)
    depth, alternatives = 0, [list[str]()]
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append(token)
    return tuple(map(_head, alternatives))


def _head(tokens: list[str]) -> tuple[str, bool]:
    """The same of one alternative, as characters, escaped ones and classes."""
    if tokens[:1] != ["^"]:
        return "", False
    begins = list[str]()
    for at, token in enumerate(tokens[1:], 1):
        if token in ("*", "?", "{"):
            return "".join(begins[:-1]), False
        if token == "$":
            return "".join(begins), at == len(tokens) - 1
        if token in (".", "+", "^", "(", ")") or token.startswith("[") or re.match(r"\\\w", token):
            break
        begins.append(token[-1])
    return "".join(begins), False


class Numbered(NamedTuple):
    """Messages that stand here from `lsn` on, published at a site (`core.links.sharing`), with adjacent sequences."""

    publisher: str
    peer: int
    sequence: int
    lsn: int
    size: int


class Twin(NamedTuple):
    """Two messages of this log that are one: LSNs here, and the sites to which they were published."""

    one: int
    peer: int
    other: int
    other_peer: int


class Sequences:
    """Where messages of publishers stand, by their sequences."""

    __slots__ = ("_runs",)

    def __init__(self, told: Iterable[Numbered] = ()) -> None:
        self._runs = dict[str, dict[int, list[tuple[int, int, int]]]]()  # by publisher and site: sequence, LSN, count
        for one in told:
            self._runs.setdefault(one.publisher, {}).setdefault(one.peer, []).append((one.sequence, one.lsn, one.size))

    def __iter__(self) -> Iterator[Numbered]:
        for publisher, sites in sorted(self._runs.items()):
            for peer, runs in sorted(sites.items()):
                yield from (Numbered(publisher, peer, *run) for run in runs)

    def __bool__(self) -> bool:
        return any(runs for sites in self._runs.values() for runs in sites.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequences) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Sequences:
        """The same, of which one may go on without the other."""
        out = Sequences()
        out._runs = {name: {peer: list(runs) for peer, runs in sites.items()} for name, sites in self._runs.items()}
        return out

    def add(self, new: Numbered) -> list[Twin]:
        """Messages are stored; those of them that another site had, too."""
        sites = self._runs.setdefault(new.publisher, {})
        out = list[Twin]()
        for peer, runs in sites.items():
            if peer != new.peer:
                out += _shared(new, peer, runs)
        runs = sites.setdefault(new.peer, [])
        last = runs[-1] if runs else (0, 0, 0)
        if last[2] and last[0] + last[2] == new.sequence and last[1] + last[2] == new.lsn:
            runs[-1] = (last[0], last[1], last[2] + new.size)
        else:
            insort(runs, (new.sequence, new.lsn, new.size))
        if len(runs) >= _LOOKS_AT and runs[_CUTS - 1][0] + KEPT < runs[-1][0]:
            del runs[:_CUTS]
        return out

    def twins(self) -> list[Twin]:
        """All pairs of runs that two sites have of one publisher's numbers."""
        out = list[Twin]()
        for publisher, sites in self._runs.items():
            for peer, runs in sites.items():
                for other, others in sites.items():
                    if peer < other and others:
                        out += [
                            twin for run in runs for twin in _shared(Numbered(publisher, peer, *run), other, others)
                        ]
        return out

    def forget(self, lsns: Collection[int]) -> None:
        """These went because they were twins: they say nothing of others any more."""
        gone = sorted(lsns)
        for sites in self._runs.values():
            for peer, runs in sites.items():
                if any(_some(gone, run) for run in runs):
                    sites[peer] = [part for run in runs for part in _without(run, _some(gone, run))]

    def gone(self, publishers: Iterable[str]) -> None:
        """Nothing comes of them any more."""
        for publisher in publishers:
            self._runs.pop(publisher, None)


def _shared(new: Numbered, peer: int, runs: list[tuple[int, int, int]]) -> Iterator[Twin]:
    stop = new.sequence + new.size
    at = max(bisect_right(runs, (new.sequence, LSN_LIMIT, 0)) - 1, 0)
    for sequence, lsn, count in runs[at : bisect_left(runs, (stop, 0, 0))]:
        for number in range(max(sequence, new.sequence), min(sequence + count, stop)):
            yield Twin(new.lsn + number - new.sequence, new.peer, lsn + number - sequence, peer)


def _some(lsns: list[int], run: tuple[int, int, int]) -> list[int]:
    """Those of ascending LSNs that are in a run."""
    return lsns[bisect_left(lsns, run[1]) : bisect_left(lsns, run[1] + run[2])]


def _without(run: tuple[int, int, int], lsns: list[int]) -> Iterator[tuple[int, int, int]]:
    sequence, lsn, count = run
    ends = [one - lsn for one in lsns]
    for low, high in zip([0, *(end + 1 for end in ends)], [*ends, count], strict=True):
        if low < high:
            yield sequence + low, lsn + low, high - low


def may_go_on(path: Sequence[int], group: str | None, to: int, pass_through: Collection[str]) -> bool:
    """Whether a message goes to the site of this origin: never where it has been.

    group            of the site that it came from; None: it was published here
    pass_through     groups whose messages the link carries on
    """
    return to not in path and (group is None or group in pass_through)


NEVER_SENT = (0, FORGOTTEN, 1)
"""Says that something is forgotten where nothing is: no log has an LSN of 0."""


class Numbers:
    """The messages of another origin: their LSNs there and here.  No message is stored twice.

    What has been here is known though it is forgotten where it stood, each stretch by itself: what lies between two may
    still come by the link of another site, which carries other topics, and has to be stored then.
    """

    __slots__ = ("_back", "floor", "runs")

    def __init__(self, runs: Sequence[tuple[int, int, int]] = (), floor: int = 0) -> None:
        """runs: as `runs` told them.  floor: behind what was forgotten; nobody asks for what has a lower LSN there."""
        self.floor = floor
        self.runs = list(runs)  # (LSN there, LSN here or `FORGOTTEN`, count), ascending and disjoint by the first
        self._back = sorted((here, there, count) for there, here, count in runs if here)  # LSNs here only grow
        if floor > 1 and len(self._back) == len(self.runs):  # an older version forgot what has been here
            self.runs += [(low, FORGOTTEN, high - low) for low, high in self._missing(1, floor)]
            self.runs.sort()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbers) and (self.runs, self.floor) == (other.runs, other.floor)

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Numbers:
        """The same, of which one may go on without the other."""
        return Numbers(self.runs, self.floor)

    def unknown(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Those of [first, stop) that are not here, and may be asked for when they come, as spans."""
        return self._missing(max(first, self.floor), stop)

    def _missing(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Those of [first, stop) that are not here, and have not been, as spans."""
        out = list[tuple[int, int]]()
        for there, _, count in self._touching(first, stop):
            if first < there:
                out.append((first, there))
            first = max(first, there + count)
        if first < stop:
            out.append((first, stop))
        return out

    def add(self, there: int, here: int, count: int) -> None:
        """So many messages, adjacent there and here, are stored; none of them was."""
        runs = self.runs
        at = bisect_left(runs, (there, 0, 0))
        last = runs[at - 1] if at else (0, 0, 0)
        if last[1] and last[0] + last[2] == there and last[1] + last[2] == here:
            runs[at - 1] = (last[0], last[1], last[2] + count)
            self._back[-1] = (last[1], last[0], last[2] + count)
        else:
            runs.insert(at, (there, here, count))
            self._back.append((here, there, count))

    def recall(self, there: int, here: int, count: int) -> bool:
        """So many stand here, as the log says, some of which may be forgotten; whether some were."""
        last, before = there, len(self._back)
        for first, stop in [*self.standing(there, there + count), (there + count, there + count)]:
            if last < first:
                self.runs = [part for run in self.runs for part in _apart(run, last, first)]
                insort(self.runs, (last, here + last - there, first - last))
                insort(self._back, (here + last - there, last, first - last))
            last = stop
        if self.floor > 1 and len(self._back) == len(self.runs):
            self.runs.insert(0, NEVER_SENT)  # else what lies between them passed for forgotten by an older version
        return len(self._back) > before

    def here(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Where those of [first, stop) there that have come stand here, as spans in the order of the other side."""
        out = list[tuple[int, int]]()
        for there, here, count in self._touching(first, stop):
            low, high = max(first, there), min(stop, there + count)
            if here:
                out.append((here + low - there, here + high - there))
        return out

    def located(self, first: int, stop: int) -> list[tuple[int, int, int]]:
        """Those of [first, stop) there that have come: LSNs [a, b) there, and what `a` is here."""
        return [
            (max(first, there), min(stop, there + count), here + max(first, there) - there)
            for there, here, count in self._touching(first, stop) if here
        ]  # fmt: skip

    def standing(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Those of [first, stop) there of which it is known where they stand here, as spans of LSNs there."""
        return [(low, high) for low, high, _ in self.located(first, stop)]

    def there(self, first: int, stop: int) -> list[tuple[int, int, int]]:
        """Those of [first, stop) here that came from this origin: LSNs [a, b) there, and what `a` is here."""
        out = list[tuple[int, int, int]]()
        at = max(bisect_right(self._back, (first, LSN_LIMIT, 0)) - 1, 0)
        for here, there, count in self._back[at : bisect_left(self._back, (stop, 0, 0))]:
            low, high = max(first, here), min(stop, here + count)
            if low < high:
                out.append((there + low - here, there + high - here, low))
        return out

    @property
    def held(self) -> int:
        """Stretches of which it is known where they stand here."""
        return len(self._back)

    def stands(self) -> list[int]:
        """Where the first of each of these stands here, ascending."""
        return [here for here, _, _ in self._back]

    def forget_below(self, here: int, beyond: int = 0, but: Sequence[tuple[int, int]] = ()) -> bool:
        """Where messages with a lower LSN here stand there nobody asks again; whether there were any.

        beyond: nor of those with a lower one than that, but for these spans, which ascend.
        """
        low, high = (bisect_right(self._back, bound, key=lambda run: run[0] + run[2]) for bound in (here, beyond))
        stays, at = list[tuple[int, int, int]](), low
        gone = self._back[:low]
        for first, stop in (*but, (LSN_LIMIT, LSN_LIMIT)) if high > low else ():
            until = min(max(bisect_right(self._back, first, key=lambda run: run[0] + run[2]), at), high)
            gone += self._back[at:until]
            at = min(max(bisect_left(self._back, (stop, 0, 0)), until), high)
            stays += self._back[until:at]
        if not gone:
            return False
        self.floor = max(self.floor, *(there + count for _, there, count in gone))
        self._back[: max(low, high)] = stays
        over = {at for at, _, _ in gone}
        kept, been = list[tuple[int, int, int]](), 0
        for there, at, count in self.runs:
            if at and at not in over:
                kept.append((there, at, count))
            elif kept and not kept[-1][1] and kept[-1][0] + kept[-1][2] == there:
                kept[-1] = (kept[-1][0], FORGOTTEN, kept[-1][2] + count)
            else:
                kept.append((there, FORGOTTEN, count))
                been += 1
        self.runs = _fewer(kept, been - BEEN_MOST)
        return True

    @property
    def end(self) -> int:
        """What has a lower LSN there has been here, as far as it comes in order."""
        return max([self.floor, *(there + count for there, _, count in self.runs[-1:])])

    def _touching(self, first: int, stop: int) -> Sequence[tuple[int, int, int]]:
        low = bisect_right(self.runs, (first, LSN_LIMIT, 0))
        if low and self.runs[low - 1][0] + self.runs[low - 1][2] > first:
            low -= 1
        return self.runs[low : bisect_left(self.runs, (stop, 0, 0))]

    def unknown_rows(self, lsns: Ints) -> list[range]:
        """Which of the ascending messages of the other site are not here, as rows."""
        out, cuts = list[range](), [0, len(lsns)]
        if lsns[-1] - lsns[0] >= len(lsns):  # they do not follow one another
            cuts = [0, *(np.flatnonzero(np.diff(lsns) != 1) + 1).tolist(), len(lsns)]
        for low, high in pairwise(cuts):
            first = int(lsns[low])
            out += [range(low + a - first, low + b - first) for a, b in self._missing(first, first + high - low)]
        return out


def _apart(run: tuple[int, int, int], first: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """A run without [first, stop) there, if it is forgotten."""
    there, here, count = run
    if here or there >= stop or there + count <= first:
        yield run
        return
    for low, high in ((there, min(first, there + count)), (max(stop, there), there + count)):
        if low < high:
            yield low, FORGOTTEN, high - low


def _fewer(runs: list[tuple[int, int, int]], by: int) -> list[tuple[int, int, int]]:
    """The same with so many forgotten ones less: the first that have nothing between them are one."""
    out = list[tuple[int, int, int]]()
    for there, here, count in runs:
        if by > 0 and out and not here and not out[-1][1]:
            out[-1] = (out[-1][0], FORGOTTEN, there + count - out[-1][0])
            by -= 1
        else:
            out.append((there, here, count))
    return out


def time_changes(lsns: Sequence[int], times: Ints) -> list[int]:
    """From which LSN on which time is told, one after the other."""
    changes = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist()]
    return [value for at in changes for value in (lsns[at], int(times[at]))]


def adjacent(here: Sequence[int], there: Ints) -> list[tuple[int, int, int]]:
    """LSN here, LSN there, and how many, of messages that follow one another on both sides."""
    if not len(there):
        return []
    if isinstance(here, range) and there[-1] - there[0] == len(there) - 1:  # ascending, each once
        return [(here[0], int(there[0]), len(there))]
    mine = np.asarray(here, dtype=np.int64)
    cuts = np.flatnonzero((np.diff(mine) != 1) | (np.diff(there) != 1)) + 1
    bounds = [0, *cuts.tolist(), len(there)]
    return [(int(mine[low]), int(there[low]), high - low) for low, high in pairwise(bounds)]


def translated(marks: Mapping[int, Chunk], brought: Mapping[int, Numbers], here: int) -> Mapping[int, Chunk]:
    """Messages by their origins: those that links have brought as this one calls them, which has the origin `here`.

    What has not come keeps its name.
    """
    if brought.keys().isdisjoint(marks):
        return marks
    out, ours = dict[int, Chunk](), list[Chunk]()
    for origin, chunk in marks.items():
        numbers = brought.get(origin)
        if numbers is None:
            out[origin] = chunk
            continue
        pairs = pairs_of(chunk, False)
        spans = list(zip(pairs[::2], pairs[1::2], strict=True))
        ours += [range(*one) for span in spans for one in numbers.here(*span)]
        if left := [range(*one) for span in spans for one in numbers.unknown(*span)]:
            out[origin] = packed(flat(left))
    if ours:
        out[here] = packed(distinct_numbers(flat([*ours, out.get(here, range(0))])))
    return out
