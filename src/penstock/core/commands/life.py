"""The life of the state: restored at a start, begun with a boot record, taken for checkpoints and bases.

And what the log had before a queue was there, or before its recovery point was moved.  A RECOVER record says that a
pass over the log begins; the shell walks, and each step comes back as `Recovered`: a RECOVERED record names the
messages that the queue takes of it.  So a start in the middle goes on where the last step was durable, and folding runs
no filter.  Passes of several queues walk together (`server.asking.recovering`).

A queue is offered each message once.  What was published after its declare it was offered then, unless the route says
that others alone took it; what an earlier pass has been over is not taken again, whatever became of it.  A point that
is moved forward takes out what the queue has from before it, waiting or leased: a DROP record says so, and the rows
stay in the log.
"""

# the parameters of functions in rows are known by the rows' type
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Self

import numpy as np

from penstock.core.acted import OWN
from penstock.core.commands.containing import Containing
from penstock.core.effects import Came, Found, Pass, Purpose, Recover, Recovered, Token, names_of
from penstock.core.links.carried import Numbers
from penstock.core.links.lasting import LinkState
from penstock.core.queue.dispatching.attendance import note_use
from penstock.core.queue.expiry import deadlines
from penstock.core.queue.order.runs import packed
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling.deferred import Deferred
from penstock.core.state import pending
from penstock.core.state.capture import Captured, Marked, Snapshot
from penstock.core.state.durable import DECLARED, DEFAULTS, DurableState, Reign, copies
from penstock.core.state.lsns import Ints, flat, runs_of, spread
from penstock.core.state.pending import Spans, begin, go_on, joined
from penstock.core.state.queue_state import living_pairs
from penstock.errors import InvalidArgument, PreconditionFailed, Unavailable, told_as
from penstock.records.chunks import LSN_LIMIT, Chunk, Now, pack_pairs, pairs_of
from penstock.records.compute import distinct_numbers
from penstock.records.entries import Group
from penstock.records.event_actions import Action
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings, parse_recovery_point
from penstock.records.schema import LOG_VERSION

NOWHERE: Mapping[int, int] = MappingProxyType({})
"""Nobody has asked the log for times."""


class RecoveryCommands(Containing):
    """Passes over the log for queues that take what was published before."""

    def passes(self) -> list[Pass]:
        """The passes under way, by queue."""
        out = list[Pass]()
        for number, (reviewed, passing) in self._passes.items():
            queue = self._admin.by_id[number]
            if passing is not None and not queue.stopped and not queue.awaited:
                others = self._interning.without(number) if passing.until > number + 1 else frozenset[int]()
                out.append(
                    Pass(
                        number, queue.vhost, queue.name, queue.settings, passing.at, passing.until, passing.time,
                        reviewed, number, others, self._interning.beside, self.booted,
                    )
                )  # fmt: skip
        return out

    def looked_back(self, queue: Queue) -> bool:
        """Whether a queue may have messages that are older than itself, whatever its recovery point is now."""
        return queue.id in self._passes or queue.floor() < queue.id

    def reviewed(self, queue: Queue) -> Spans:
        """What passes have been over for a queue, each message of which it was offered; one from a time that begins at
        0 has found nothing yet.
        """
        spans, passing = self._passes.get(queue.id, ((), None))
        if passing is not None:
            spans = joined(spans, passing.start, passing.at)
        timed = parse_recovery_point(queue.settings.recovery_point).kind == "time"
        return tuple(span for span in spans if span[0] or not timed)

    def passing_floor(self) -> int:
        """The lowest LSN that a pass may still ask for."""
        return min((one.at for _, one in self._passes.values() if one is not None), default=LSN_LIMIT)

    def _pass_answered(self, now: Now, queue: Queue, step: Recovered) -> None:
        """A step of a pass is done; it does not count where its queue has changed meanwhile."""
        one, found = step.of, step.found
        reviewed, passing = self._passes.get(one.queue, ((), None))
        if passing is None or queue.settings is not one.settings or passing.at != one.at:
            return
        queue.catch_up(now, self._out)
        upto = min(step.upto, passing.until)
        self._out.begin()  # with the acks that came before what is found
        first = self._take(now, queue, found, upto)
        self._out.end()
        reviewed, passing = self._passes[queue.id] = go_on(reviewed, passing, upto, first)
        if passing is None:
            queue.put_in_order(self._out.last_lsn)
        queue.go_on(now, self._out)
        self._touch(queue)

    def _take(self, now: Now, queue: Queue, found: Found, upto: int | None) -> int:
        """Write what the queue takes, and let it in, but for what has expired meanwhile; the first of it, 0 for none.

        upto: how far its pass has come; None: it is no pass.
        """
        ends = deadlines(queue.settings, found.times, found.expires_at)
        alive = (ends == 0) | (ends > now.wall)
        lsns, ends, sizes = found.lsns[alive], ends[alive], found.sizes[alive]
        later = np.where(found.not_before > now.wall, found.not_before, 0)[alive]
        living = set(lsns.tolist())
        barriers = [lsn for lsn in found.barriers if lsn in living]
        if len(lsns) and found.transient:
            self._publisher.transient.add_older(lsns[np.isin(lsns, found.transient)])
        columns = {"expires_at": ends, "not_before": later, "barrier": np.isin(lsns, barriers).astype(np.int64)}
        columns |= {name: marks.among(lsns).astype(np.int64) for name, marks in self._marks()}
        ways = self._know_again(found.ways)
        self._recovered = self._write_recovered(queue, lsns, sizes, columns, upto, ways)
        queue.expect_older()
        if len(lsns):
            queue.arrived += len(lsns)
            queue.take_older(lsns, ends if ends.any() else None, later if later.any() else None, barriers)
            if upto is not None:
                self._belong(now, queue, lsns, found.ways)
            if queue.id in self._deferred.by_queue:
                self._deferred.appeared(now, queue, self.origin, packed(lsns), packed(lsns), self._out)
        return int(lsns[0]) if len(lsns) else 0

    def _know_again(self, ways: Iterable[Came]) -> list[list[int]]:
        """Know again where messages of other sites stand here; what of that was forgotten, for a record."""
        told = list[list[int]]()
        for one in ways:
            numbers = self.carried.get(one.peer)
            if numbers is None:
                numbers = self.carried[one.peer] = Numbers((), self.links.get(one.peer, LinkState()).floor)
            if numbers.recall(one.there, one.here, one.size):
                told.append([one.peer, one.here, one.there, one.size])
        return told

    def _belong(self, now: Now, queue: Queue, lsns: Ints, ways: Sequence[Came]) -> None:
        """Messages that a pass has found are another site's, if a queue that several have found them."""

    def _write_recovered(
        self, queue: Queue, lsns: Ints, sizes: Ints, columns: dict[str, Ints], upto: int | None, ways: list[list[int]]
    ) -> int:
        """The record of what a queue takes of a pass that has come so far, or without one; its LSN."""
        header: dict[str, object] = {} if upto is None else {"upto": upto}
        told = {name: runs.tolist() for name, values in columns.items() if len(runs := runs_of(lsns, values))}
        if told:
            header["columns"] = told
        if ways:
            header["carried"] = ways
        if len(lsns):
            header["sizes"] = runs_of(lsns, sizes).tolist()
            self.sizes.add_older(lsns, sizes)
        pairs = pairs_of(packed(lsns), False) if len(lsns) else []
        return self._out.record(Kind.RECOVERED, queue.name, header, pack_pairs(queue.id, pairs))

    # -- for declaring and altering

    def _check_point(self, name: str, settings: QueueSettings) -> None:
        """InvalidArgument for what is no recovery point, PreconditionFailed for one that this log does not know."""
        with told_as(InvalidArgument, f"recovery_point of queue '{name}': "):
            point = parse_recovery_point(settings.recovery_point)
        if point.kind == "lsn" and point.origin != self.origin:
            raise PreconditionFailed(
                f"recovery_point of queue '{name}': the bookmark {settings.recovery_point} is of the log "
                f"{point.origin}, and this is the log {self.origin}"
            )

    def _leave_behind(self, now: Now, queue: Queue, settings: QueueSettings, places: Mapping[int, int]) -> int:
        """Remove what the queue has from before the recovery point of these settings; how many messages."""
        point = parse_recovery_point(settings.recovery_point)
        start = {"epoch": 0, "now": LSN_LIMIT, "creation": queue.id, "lsn": point.lsn, "time": LSN_LIMIT}[point.kind]
        if point.kind == "time" and point.time <= now.wall and queue.floor() <= self._out.last_lsn:
            start = places[point.time] if point.time in places else self.lsn_at(point.time)
        return queue.leave_behind(now, min(start, self._out.next_lsn), self._out)

    def _begin_pass(self, queue: Queue, places: Mapping[int, int] = NOWHERE) -> None:
        """Write that a pass begins, or that none is wanted any more, by the queue's recovery point.

        places: what `lsn_at` says of times, where somebody has asked the log already.
        """
        point = parse_recovery_point(queue.settings.recovery_point)
        reviewed, passing = self._passes.get(queue.id, ((), None))
        start = {"epoch": 0, "now": LSN_LIMIT, "creation": queue.id, "lsn": point.lsn}.get(point.kind)
        if start is None:
            start = places.get(point.time, 0)
        if passing is None and start >= self._out.last_lsn:  # all of it was offered, or is to come
            return
        header: dict[str, object] = {"point": queue.settings.recovery_point, "from": start}
        if point.time:
            header["time"] = point.time
        lsn = self._out.record(Kind.RECOVER, queue.name, header, pack_pairs(queue.id, ()))
        self._passes[queue.id] = begin(reviewed, passing, header, lsn)
        self._go_on_passing(queue)

    def _go_on_passing(self, queue: Queue) -> None:
        """After a start, or as it begins: have the log walked."""
        if self._passes[queue.id][1] is not None:
            queue.expect_older()
            self._out.effect(Recover(Token(queue.id, 0, Purpose.PASS)))
        else:
            queue.put_in_order(self._out.last_lsn)


_GONE = object()
"""Who holds an exclusive queue whose connection ended with an earlier process."""

CAPTURE_MOST = 8192
"""What one step of `capture` does at most, in chunks about; then others have their turn."""

_NO_LSNS: Ints = np.zeros(0, dtype=np.int64)


class Part(NamedTuple):
    """Fields of the durable state that a part of the core keeps in another form, with how it loads and gives them."""

    fields: tuple[str, ...]
    load: Callable[[Life, DurableState], None]
    save: Callable[[Life, DurableState], None]


class Life(RecoveryCommands):
    """Restoring, booting, and taking the durable state for checkpoints and bases."""

    @classmethod
    def restore(
        cls,
        state: DurableState,
        *,
        origin: int,
        actions: Sequence[Action] = (),
        instance: str = "penstock-1",
        refuse: Callable[[QueueSettings], str | None] | None = None,
        now: Now,
    ) -> Self:
        """A core with this durable state and no session.  `boot` comes next."""
        core = cls(origin, state.last_lsn + 1, actions, instance, refuse)
        core.sizes.become(state.sizes)
        now = core._out.at(now)
        core.keep(state.copy(OF_PARTS))
        for part in cls.PARTS:
            part.load(core, state)
        core._restore_queues(state)
        core._keyed.sows.load(state.sows, state.topics)
        core._paging.wanted = any(queue.settings.file_backed_metadata for queue in state.queues.values()) or any(
            sow.file_backed for sow in core._keyed.sows
        )
        core._publisher.keyed = core._keyed if core._keyed.sows else None
        for number, queue in core._admin.by_id.items():
            for name, chunks in core.streams.held(number).items():
                core._holdings.restore(now, queue, name, chunks)
        return core

    def _restore_queues(self, state: DurableState) -> None:
        marked: dict[str, list[Ints]] = {name: [] for name, _ in self._marks()}
        for number, one in sorted(state.queues.items()):
            queue = self._admin.make(one, _GONE if one.exclusive else None)
            queue.redelivered_below = state.unclean
            queue.stay_paused(one.paused)
            if {"owner", "claim"} & one.columns.keys():
                queue.ensure_foreign(self.peers)
            queue.load(one.waiting, one.columns)
            queue.remember(one.taken)
            self._timers.touched.add(queue)
            assert queue.id == number
            if one.reviewed or one.passing is not None:
                self._passes[number] = one.reviewed, one.passing
            for name in marked.keys() & one.columns.keys():
                lsns = flat(one.waiting)
                marked[name].append(lsns[spread(lsns, one.columns[name]) > 0])
        for name, marks in self._marks():
            marks.reset(distinct_numbers(np.concatenate([_NO_LSNS, *marked[name]])))

    def boot(self, now: Now, *, clean: bool, next_lsn: int, leads: Reign | None = None) -> None:
        """Begin a run: the BOOT record, what ends with a process, then whatever fell due meanwhile.

        next_lsn: after a clean stop the next one; after an unclean one the recovered end + 2**32; of a leader in a
        cluster the first of its term.
        """
        if next_lsn < self._out.next_lsn:
            raise InvalidArgument(f"LSN {next_lsn} was given before; the next is {self._out.next_lsn}")
        new = not self._out.last_lsn  # nothing was ever logged
        self._out.next_lsn = next_lsn
        now = self._at(now)
        told: dict[str, object] = {"clean": clean, "instance": self.instance, "version": LOG_VERSION}
        if new:
            told["defaults"] = self.kept.defaults = DEFAULTS
        if leads is not None:
            told |= {"term": leads.term, "member": leads.member, "before": leads.before}
        lsn = self._out.record(Kind.BOOT, "", told)
        if leads is not None:
            self.kept.terms += (leads._replace(first=lsn),)
        self.booted = lsn
        self.streams.keeping.begin(now)
        if not clean:
            self.kept.unclean = lsn
        for queue in list(self._admin.by_id.values()):
            if queue.exclusive_to is not None or not queue.durable:
                self._forget(now, queue)
                self.departed.ended(queue.id, lsn)
                self._topology.queue_gone(queue.vhost, queue.name)
                continue
            self._forget_transient(queue)
            if not clean:
                queue.redelivered_below = lsn
        self._publisher.transient.reset(_NO_LSNS)
        self._topology.boot()
        for queue in self._admin.by_id.values():
            if queue.id in self._passes:
                self._go_on_passing(queue)
            note_use(queue, now)
            self._tick(now, queue)
            self._timers.touched.add(queue)

    def _forget_transient(self, queue: Queue) -> None:
        """Leave out of a queue the messages that no restart keeps."""
        transient = self._publisher.transient
        contained = queue.capture() if transient else None
        if contained is not None:
            lsns = flat(contained.waiting())
            gone = packed(lsns[transient.among(lsns)])
            if len(gone):
                self._holdings.forget(queue, gone)
                queue.forget(gone)

    def durable_state(self) -> DurableState:
        """What a fold of everything journalled so far gives."""
        snapshot = self.snapshot()
        for _ in self.capture(snapshot):
            pass
        state = snapshot.state()
        state.sizes = state.sizes.only(living_pairs(state.queues.values()))
        self.captured(snapshot)
        return state

    def snapshot(self) -> Snapshot:
        """Begin to take the durable state: everything but the queues, as copies.  `capture` goes on.

        Errors of both: Unavailable while a fault has stopped something, also one that came between two steps.
        """
        self._check_believed()
        state = self.kept.copy(OF_PARTS)
        state.last_lsn = self._out.last_lsn
        for part in self.PARTS:
            part.save(self, state)
        state.sizes = self.sizes.copy()
        return Snapshot(state, self._keyed.sows.capture())

    def capture(self, snapshot: Snapshot) -> Iterator[None]:
        """Capture the queues that there are now, at the cut; other commands may come between two steps.

        What the log says up to the last LSN at the end must be durable before the snapshot is of use.
        """
        return self._captures(snapshot, list(self._admin.by_id.values()))

    def _captures(self, snapshot: Snapshot, queues: list[Queue]) -> Iterator[None]:
        effort = 0
        for queue in queues:
            if effort >= CAPTURE_MOST:
                effort = 0
                yield
            living = self._admin.by_id.get(queue.id) is queue
            since = self._out.last_lsn if self._out.last_lsn > snapshot.cut else 0
            reviewed, passing = self._passes.get(queue.id, ((), None))
            contained = queue.capture() if living else None
            window = None if queue.window is None else queue.window.copy()
            snapshot.captured.append(
                Captured(
                    queue.id, queue.name, queue.declared, queue.settings, since, reviewed, passing, queue.ruling,
                    queue.paused_until, contained, window,
                )
            )  # fmt: skip
            effort += 8 if contained is None else 32 + len(contained.main) + len(contained.runs)
        self._check_believed()
        snapshot.marks = [Marked(name, some.pairs[:]) for name, some in self._marks()]

    def _check_believed(self) -> None:
        if stopped := self.stopped:
            raise Unavailable(f"nothing is taken of memory while an internal error has stopped {names_of(stopped)}")

    def captured(self, snapshot: Snapshot) -> None:
        """The snapshot is written: forget what nothing in it needed, unless a pass has brought something back since."""
        if self._recovered > snapshot.cut:
            return
        for mark, (_, some) in zip(snapshot.marks, self._marks(), strict=True):
            some.retain(mark.used, snapshot.cut)
        if snapshot.sizes is not None:
            self.sizes.replace_upto(snapshot.cut, snapshot.sizes)

    def acts(
        self,
        now: Now,
        floor: int,
        name: str = "",
        lsns: Chunk = range(0),
        cause: int = OWN,
        since: Mapping[str, int] | None = None,
    ) -> None:
        """Log what actions have done: everything up to the floor, and one action's work for these messages of a record.

        since: from which LSN on each action there is watches.
        """
        self._at(now)
        header: dict[str, object] = {"floor": max(floor, self.acted.floor)}
        if cause != OWN:
            header["cause"] = cause
        if since is not None:
            header["since"] = dict(sorted(since.items()))
        pairs = pairs_of(lsns, False)
        self._out.record(Kind.ACTED, name, header, struct.pack(f"<{len(pairs)}q", *pairs))
        self.acted.fold(name, header, pairs)

    def look_for_floor(self, most: int) -> bool:
        """Ask up to `most` changed queues for their oldest message; whether some are left for `floor` to ask."""
        self._timers.next()  # names those that were touched
        if self._floors.look(most):
            return True
        self.sizes.forget(self._floors.lowest())
        return False

    def floor(self) -> int:
        """No message below this LSN is in a queue, and no stream may ask for one again."""
        self.look_for_floor(len(self._admin.by_id))
        if self._parts_stopped:
            return 0
        return min(self._floors.lowest(), self._keyed.sows.oldest(), self.promised())

    def promised(self) -> int:
        """No stream may ask for what is below this LSN."""
        held = (stream.holds_from for stream in self.streams.states.values())
        return min([self._out.next_lsn, *(low for low in held if low is not None)])

    def write_base(self, now: Now, parts: int, build: Callable[[int, int], Group]) -> int:
        """Write a base of so many records, built from its first LSN and time; returns its last LSN."""
        self._at(now)
        first = self._out.next_lsn
        self._out.next_lsn = first + parts
        self._out.journal.append(build(first, self._out.time))
        return first + parts - 1

    # -- the parts that have more of a field than its value: an index, a bound, what is due

    def _load_streams(self, state: DurableState) -> None:
        self.streams.states = copies(state.streams)

    def _save_streams(self, state: DurableState) -> None:
        state.streams = copies(self.streams.states)

    def _load_deferred(self, state: DurableState) -> None:
        self._deferred = Deferred(state.deferred)

    def _save_deferred(self, state: DurableState) -> None:
        state.deferred = pending.copies(self._deferred.by_queue)

    def _load_publishers(self, state: DurableState) -> None:
        self.publishers.update(state.publishers)

    def _save_publishers(self, state: DurableState) -> None:
        state.publishers = self._publisher.publishers.settled()

    def _load_peers(self, state: DurableState) -> None:
        self.peers.load(state.peers)

    def _save_peers(self, state: DurableState) -> None:
        state.peers = dict(self.peers.sites)

    PARTS: ClassVar[tuple[Part, ...]] = (
        Part(DECLARED, lambda core, state: core._topology.load(state), lambda core, state: core._topology.save(state)),
        Part(
            ("vias", "routes", "next_route", "beside"),
            lambda core, state: core._interning.load(state), lambda core, state: core._interning.save(state),
        ),
        Part(
            ("sinks", "sink_marks", "decided"),
            lambda core, state: core._sinks.load(state), lambda core, state: core._sinks.save(state),
        ),
        Part(("streams",), _load_streams, _save_streams),
        Part(("deferred",), _load_deferred, _save_deferred),
        Part(("publishers",), _load_publishers, _save_publishers),
        Part(("peers",), _load_peers, _save_peers),
    )  # fmt: skip


OF_PARTS = frozenset(name for part in Life.PARTS for name in part.fields)
"""Every other field that has a row the core keeps as it is, in `CoreParts.kept`."""
