"""What a member is to its cluster, and when that changes: from values of the register, acks, beats and the clock.

    joining ----> following ----> campaigning ----> taking over ----> leading ----> ended
        ^------------'   ^-------------'                  '-----------------------------^

Who leads is decided by the register's swap alone.  The clock, which also counts while the machine is suspended, decides
when somebody tries, and when a leader that hears nothing stops.  A leader never becomes a follower within one process:
it ends, and what starts anew believes its disk and the register only.

Where each member has a copy of the register (`mine`) nobody tries because of silence.  Who is named in `to` does, and
who led in the newest term that it knows of, once it was started again; each after it has asked the others, for one of
them may know of a newer one.

One swap is under way at a time.  Its outcome may be unknown: the register is read then, and what it shows is ours when
it names us for a term that we asked for in this life.  It may land later still, as long as nothing else is swapped in.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple, TypeAlias

from penstock.replication.insync import InSync, Times
from penstock.replication.register import ClusterState, Member
from penstock.replication.terms import LEFT_LEAST


class Role(Enum):
    """What a member is."""

    JOINING = "joining"  # it copies and counts for nothing
    FOLLOWING = "following"  # it is in sync: it copies, acks, and may be elected
    CAMPAIGNING = "campaigning"  # its swap is under way
    TAKING_OVER = "taking over"  # it has won, and opens its log with the doors closed
    LEADING = "leading"
    ENDED = "ended"  # it does nothing any more


class Read(NamedTuple):
    """Look at the register."""


class Swap(NamedTuple):
    """Replace the value that had this version."""

    version: int
    value: ClusterState


class TakeOver(NamedTuple):
    """Open the log for a term that is ours, give out its LSNs from `start` on, and write its boot record."""

    term: int
    start: int


class End(NamedTuple):
    """Stop at once; nothing that was decided and not sent may leave."""

    why: str


Step: TypeAlias = Read | Swap | TakeOver | End

Outcome: TypeAlias = int | Literal["changed", "unknown"]
"""Of a swap: the new version; it was refused since the value has changed; nobody knows."""


class Election:
    """One member's, from its start to its end."""

    def __init__(
        self,
        me: str,
        *,
        last_lsn: int,
        highest_term: int,
        min_in_sync: int,
        times: Times,
        now: int,
        intact: bool = True,
        local: bool = False,
        mine: Member | None = None,
    ) -> None:
        """What a member knows of itself at its start.

        last_lsn, highest_term: what its log and its folder say, also of terms that it has only heard of
        intact: its disk has all that it ever acked.  Otherwise it is no candidate before it was level with a leader
        local: as of `InSync`
        mine: what the register is to tell of this member once it leads, where each has a copy of it
        """
        self.me = me
        self.role = Role.JOINING
        self.times = times
        self.state: ClusterState | None = None
        self.in_sync: InSync | None = None  # of a leader
        self.why = ""  # it ended, or cannot serve
        self.intact = intact  # whether our log has all that we ever acked, as far as anybody knows
        self._local, self._mine = local, mine
        self._asked_others = mine is None  # or they could not be reached
        self._last_lsn = last_lsn
        self._highest = highest_term
        self._above = highest_term  # of all terms that it has ever heard of
        self._min = min_in_sync
        self._version = 0
        self._steps: list[Step] = [Read()]
        self._tried = set[int]()  # terms that this process has asked for
        self._under_way: ClusterState | None = None  # the value of a swap that was asked for and not answered
        self._again = (
            False  # the last swap is not known to have succeeded: the next one is due once the register was read
        )
        self._reading = now  # since when a value is waited for, after that
        self._beat = 0  # the highest that was seen of the present leader
        self._alive = now  # when the leader was last heard of; of a leader: when its last known swap was asked for
        self._asked = now
        self._progress = now  # when commits and the loop last moved
        self._hearing: dict[str, int] = {}  # of a leader: member -> when its stream last said something
        self._next_lsn = self._start = 0  # of a leader: what it gives out next, and first
        self._to: str | None = None  # of a leader: who is to take over at once

    # what happens

    def steps(self, now: int) -> list[Step]:
        """What is to be done now; each is told of once."""
        self._look(now)
        out, self._steps = self._steps, []
        return out

    def read(self, version: int, state: ClusterState, now: int) -> None:
        """The register holds this."""
        if self.role is Role.ENDED:
            return
        self._above = max(self._above, state.term)
        older = version < self._version or state.term < self._highest or state.ceiling <= self._last_lsn
        if older and self._mine is None:
            self._end(
                f"the register says term {state.term} with LSNs below {state.ceiling}, and this member knows of term "
                f"{self._highest} and has LSN {self._last_lsn}: it was put back to an older state"
            )
            return
        leads = self.role in (Role.TAKING_OVER, Role.LEADING)
        if leads and (state.term != self._highest or state.leader != self.me):
            self._end(f"{state.leader} leads term {state.term}")
        elif leads and state.order:
            self._end("a person has told it to lead alone: its next term begins")
        elif self._under_way is None:  # else its answer says more
            self._version, self.state = version, state
            if leads:
                self._leads().read(state.in_sync, now)
                self._renew(state, now, self._again)
            elif state.leader == self.me and state.term in self._tried:
                self._won(state, now)
            else:
                self._follow(state, now)

    def swapped(self, outcome: Outcome, now: int) -> None:
        """What became of the swap that was asked for last."""
        asked, self._under_way = self._under_way, None
        if self.role is Role.ENDED or asked is None:
            return
        if outcome == "unknown" and self._mine is not None:
            self._end("its own copy of the register cannot be written: the disk has failed")
            return
        if isinstance(outcome, str):
            self._again = True
            self._look_up(now)
            return
        self._version, self.state, self._again = outcome, asked, False
        if self.role is Role.CAMPAIGNING:
            self._won(asked, now)
        else:
            self._alive = self._asked
            self._leads().settled(asked.in_sync, now)

    def heard(self, term: int, beat: int, now: int) -> None:
        """A leader's stream said something."""
        if self.role in (Role.JOINING, Role.FOLLOWING) and (term >= self._highest or self._mine is not None):
            self._highest = term
            self._beat = max(beat, self._beat)
            self._alive = now

    def asked_others(self, above: int) -> None:
        """Whoever can be reached has told its copy of the register.  above: the highest term that was heard of."""
        self._asked_others, self._above = True, max(self._above, above)

    def log_ends(self, last_lsn: int) -> None:
        """Our log ends here now: more of it was copied, or it was cut."""
        self._last_lsn = last_lsn

    def incomplete(self) -> None:
        """Our log is about to lose what we acked."""
        self.intact = False
        if self.role is Role.FOLLOWING:
            self.role = Role.JOINING

    def level(self) -> None:
        """Our log has all that its leader had when it last said so: so it has all that we ever acked."""
        self.intact = True

    def booted(self, next_lsn: int, now: int) -> None:
        """The boot record of our term is committed."""
        if self.role is Role.TAKING_OVER:
            self.role = Role.LEADING
            self.progress(next_lsn, now)

    def progress(self, next_lsn: int, now: int) -> None:
        """Of a leader: the loop turned, and commits moved or there were none to wait for."""
        self._next_lsn, self._progress = next_lsn, now

    def hears(self, member: str, now: int) -> None:
        """Of a leader: a follower's stream said something, so that follower hears us too."""
        self._hearing[member] = now

    def broken(self, why: str) -> None:
        """The log of a leader takes no more."""
        if self.role in (Role.TAKING_OVER, Role.LEADING):
            self._end(why)

    def hand_over(self, to: str, now: int) -> None:
        """Of a leader whose doors are closed and whose last record `to` has acked: let it take over at once."""
        if self.role is Role.LEADING:
            self._to = to
            self._leads().hands_over(to)
            self._look(now)

    def until(self, now: int) -> int:
        """How long a leader may go on without another word, of the register or of its followers."""
        if self.in_sync is None:
            return now
        if self._silent:
            return now + self._last
        heard = min((self._hearing.get(one, -self.times.lease) for one in self.in_sync.counted), default=now)
        return max(self._alive, heard) + self._last

    @property
    def _silent(self) -> bool:
        """Of a leader: nothing can have left it, for its first record is not committed.

        So it has time: a slow register would have one after the other end while it opens its log.
        """
        return self._leads().committed < self._start

    @property
    def _last(self) -> int:
        """A leader ends so long after it was last known to lead; one whom nobody replaces has time."""
        return self.times.last if self._mine is None else max(self.times.last, self.times.stall)

    # roles

    def _follow(self, state: ClusterState, now: int) -> None:
        if state.leader is not None and (state.term > self._highest or state.beat > self._beat):
            self._highest, self._beat, self._alive = state.term, state.beat, now
        if self._mine is not None:
            self._highest = state.term
        counts, told = self.me in state.in_sync, state.given_up if state.manual else state.leader is None
        if counts and self._last_lsn < state.committed:
            self.intact = False  # this disk has lost it, or is an older one
        elif state.to == self.me and state.in_sync == frozenset({self.me}) and told:
            self.intact = True  # a person says that it leads with what it has
        self.role = Role.FOLLOWING if counts and self.intact else Role.JOINING

    def _won(self, state: ClusterState, now: int) -> None:
        self.role, self._highest = Role.TAKING_OVER, state.term
        self._alive = self._asked = self._progress = now
        self._next_lsn = self._start = state.terms[-1].start
        self.in_sync = InSync(
            self.me, state.in_sync, min_in_sync=self._min, times=self.times, now=now, local=self._local,
            waits=self._mine is not None, first=self._next_lsn,
        )  # fmt: skip
        self._steps.append(TakeOver(state.term, self._next_lsn))

    def _leads(self) -> InSync:
        assert self.in_sync is not None
        return self.in_sync

    def _look(self, now: int) -> None:
        state = self.state
        if state is None or self._steps or (self._under_way is not None and self.in_sync is None):
            return
        whole = self._last_lsn >= state.committed
        if self.role is Role.FOLLOWING and whole and self._is_next(state, now):
            self.role, self._alive = Role.CAMPAIGNING, now
            asked = state.led_by(self.me, self._last_lsn, self._above)
            if self._mine is not None:
                asked = asked.with_member(self.me, self._mine)
            self._tried.add(asked.term)
            self._swap(asked)
        elif self.in_sync is not None and self.role is not Role.ENDED:
            self._look_as_leader(state, now)

    def _is_next(self, state: ClusterState, now: int) -> bool:
        """Whether a follower that has everything is to lead."""
        if state.to == self.me:
            return self._asked_others
        if self._mine is None:
            return now - self._alive >= self.times.lease
        return self._asked_others and state.to is None and state.leader == self.me  # it was started again

    def _look_as_leader(self, state: ClusterState, now: int) -> None:
        if now - self._progress >= self.times.stall:
            self._end("commits, or the loop, have stood still for too long")
        elif self._mine is not None and state.ceiling - self._next_lsn < LEFT_LEAST:
            self._end(f"the LSNs of term {state.term} are used up: the next term has more")
        elif now - self._alive >= self._last and not self._silent and not self._heard_by_all(now):
            self._end("its lead could not be renewed in time")
        elif self._again and self._under_way is None:
            if now - self._reading >= self.times.renew:
                self._look_up(now)
        elif self._under_way is None:
            self._renew(state, now, now - self._asked >= self.times.renew)

    def _look_up(self, now: int) -> None:
        self._reading = now
        self._steps.append(Read())

    def _renew(self, state: ClusterState, now: int, due: bool) -> None:
        """Ask for a leader's next swap, when there is one to make."""
        wanted = state.raised(self._next_lsn).counting(self._leads().wanted(now))
        if self._to in wanted.in_sync:  # nobody else could lead, and all would wait for a lease
            wanted = wanted.handing_to(self._to)
        if wanted != state or due:
            self._leads().asked(wanted.in_sync)
            self._asked = now
            self._swap(wanted.beaten(self._leads().held))

    def _heard_by_all(self, now: int) -> bool:
        """Whether every other member that could be elected is connected and beats: who hears us does not campaign."""
        return all(now - self._hearing.get(one, -self.times.lease) < self._last for one in self._leads().counted)

    def _swap(self, value: ClusterState) -> None:
        self._under_way = value
        self._steps.append(Swap(self._version, value))

    def _end(self, why: str) -> None:
        self.role, self.why = Role.ENDED, why
        self._steps = [End(why)]
