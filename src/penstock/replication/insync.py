"""Whose disks a confirm waits for, kept by the leader.

    committed = the lowest of: synced here, and acked by every follower that counts

A member counts when it may be elected: when the register has it in sync, or could have it.  So it counts before the
swap that adds it, and it counts until the swap that drops it is known to have happened.  A swap whose answer was lost
may still land: what a later read shows proves nothing, and only a later swap of the leader's own that is known to have
succeeded ends the doubt.

Where each member has its own copy of the register (`waits`) one that does not answer may not know that it was dropped,
and a person may have it lead.  So it is waited for, and dropped when it has said itself that it is no candidate.
Nobody is added there before all who count have the first record of the term: a value with somebody in sync who came
later tells that something was confirmed, and who compares it with another may rely on that.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

CALL_LEAST, CALL_MOST = 200_000, 10_000_000
"""Microseconds that a call of the register may take in any case, and at most: others that may answer are asked then."""


class Times(NamedTuple):
    """Of a cluster, in microseconds."""

    lease: int = 5_000_000  # silence after which a follower takes over
    ack_timeout: int = 3_000_000  # then a follower is dropped
    stall: int = 10_000_000  # a commit, or the loop, stood so long: the leader stops
    level: int = 2_000_000  # who was dropped comes back when it has kept up so long, and twice as long the next time
    level_most: int = 60_000_000  # who stayed so long begins anew with that

    @property
    def renew(self) -> int:
        """Between beats of a leader."""
        return self.lease // 5

    @property
    def call(self) -> int:
        """A call of the register is given up after so long: what it says then comes too late for a leader's next beat.

        One that began with a beat ends before the leader has to, and some time is left to ask again.
        """
        return min(max(self.lease * 2 // 5, CALL_LEAST), CALL_MOST)

    @property
    def last(self) -> int:
        """A leader that could not renew stops so long after its last beat: before anybody else takes over."""
        return self.lease * 2 // 3


class InSync:
    """One leader's, of one term."""

    def __init__(
        self,
        me: str,
        members: Iterable[str],
        *,
        min_in_sync: int,
        times: Times,
        now: int,
        local: bool = False,
        waits: bool = False,
        first: int = 0,
    ) -> None:
        """members: whom the register had in sync when the term was won.

        local: a confirm waits for our own disk alone; who leads next may lack what was confirmed of late.
        waits: for who is silent, for as long as it takes.  first: LSN of the term's first record
        """
        self.me = me
        self.agreed = frozenset(members)  # what the register is known to have said last
        self.min_in_sync = min_in_sync
        self.committed = 0
        self._times, self._local, self._waits = times, local, waits
        self._first = first if waits else 0
        self._declined = set[str]()  # who has said that it is no candidate
        self._next: str | None = None  # who is to take over: nothing is written any more that would wait for it
        self._fewest = self.agreed  # of whom we know that they are in sync, whatever a lost swap did
        self._counted = dict.fromkeys(self.agreed - {me}, 0)  # member -> LSN that it acked in this term
        self._heard = dict.fromkeys(self._counted, now)  # member -> when it last acked all that was there then
        self._came = dict(self._heard)  # member -> since when it counts
        self._adding = dict[str, tuple[int, int]]()  # member -> LSN and files that it must have before it is swapped in
        self._level = dict[str, tuple[int | None, int]]()  # member -> since when it keeps up; how long it has to
        self._synced = 0
        self._kept = dict[str, int]()  # member -> the number up to which it has the files beside the log

    @property
    def counted(self) -> frozenset[str]:
        """Every other member that could be elected, or is about to be one of those."""
        return frozenset(self._counted)

    @property
    def held(self) -> int:
        """The LSN up to which every member has all that could be elected."""
        return min([self._synced, *self._counted.values()])

    @property
    def certain(self) -> int:
        """How many are known to be in sync, whatever becomes of a swap that is under way."""
        return len(self._fewest)

    @property
    def enough(self) -> bool:
        """Whether anything may be confirmed."""
        return self._local or self.certain >= self.min_in_sync

    # what happens

    def synced(self, lsn: int) -> None:
        """Our own disk has everything up to here."""
        self._synced = max(self._synced, lsn)
        self._commit()

    def acked(self, member: str, lsn: int, appended: int, now: int, *, level: bool, newest: int = 0) -> None:
        """A follower's disk has everything up to here.

        appended: our last LSN.  level: it lacks so little of that that confirms may wait for it.  newest: the number of
        the last file beside the log, which it may lack until it is swapped in
        """
        if member in self._counted:
            if lsn > self._counted[member] or lsn >= appended:
                self._heard[member] = now
            self._counted[member] = max(self._counted[member], lsn)
            self._commit()
            return
        since, long = self._level.get(member, (None, 0))
        since = None if not level else now if since is None else since
        self._level[member] = (since, long)
        if since is not None and (now - since >= long or not self.enough):  # else confirms would wait for that alone
            self._counted[member], self._heard[member], self._adding[member] = lsn, now, (appended, newest)
            self._came[member] = now

    def keeps(self, member: str, number: int) -> None:
        """A follower has the files beside the log up to this number."""
        self._kept[member] = number

    def kept_by_all(self, newest: int) -> int:
        """The number up to which every member has the files beside the log that could be elected; 0: too few could."""
        if self._local:
            return newest
        return min([newest, *(self._kept.get(one, 0) for one in self._counted)]) if self.enough else 0

    def gone(self, member: str) -> None:
        """A follower's connection ended, or its disk failed: it is dropped as soon as the register agrees."""
        if member in self._counted:
            self._heard[member] = -self._times.ack_timeout - 1
        elif member in self._level:
            self._level[member] = (None, self._level[member][1])

    def declines(self, member: str) -> None:
        """A follower says that it lacks what it acked, or is about to: it is no candidate, and knows it."""
        if member in self._counted:
            self._declined.add(member)
        self.gone(member)

    def hands_over(self, to: str) -> None:
        """The log is closed and this follower has all of it: however silent it is, it stays who may lead next."""
        self._next = to

    def relief(self, with_room: AbstractSet[str]) -> frozenset[str]:
        """Who could lead in the place of this leader, whose disk is full, and confirm without it; by a person, nobody.

        with_room: members whose disks have room
        """
        able = self.agreed & with_room
        enough = not self._waits and (self._local or len(able) >= self.min_in_sync)
        return able if enough else frozenset()

    def waited_for(self, now: int) -> frozenset[str]:
        """Who counts and has been silent for so long that it would be dropped if nobody had to say so."""
        return frozenset(one for one, heard in self._heard.items() if now - heard > self._times.ack_timeout)

    def trial(self, member: str, now: int) -> int:
        """Microseconds for which a follower has to keep up yet before it is had back; 0: for no time."""
        if member in self._counted or not self.enough:
            return 0
        since, long = self._level.get(member, (None, 0))
        return long if since is None else max(0, since + long - now)

    # the register

    def wanted(self, now: int) -> frozenset[str]:
        """Whom the register should have in sync."""
        silent = self.waited_for(now)
        if self._waits:
            silent = frozenset(one for one in silent if one in self._declined or one not in self.agreed)
        if self._next not in self._declined:
            silent -= {self._next}
        level = {one for one in self._adding if one not in silent and self._has_all(one)}
        if self.held < self._first:
            level = set[str]()
        return (self.agreed - silent) | level | {self.me}

    def _has_all(self, member: str) -> bool:
        """Whether one that is being added has what there was when it began to count."""
        lsn, number = self._adding[member]
        return self._counted[member] >= lsn and self._kept.get(member, 0) >= number

    def asked(self, members: frozenset[str]) -> None:
        """A swap to these members is on its way: whom it drops may be out, whom it adds may be in."""
        self._fewest &= members

    def settled(self, members: frozenset[str], now: int) -> None:
        """A swap of ours is known to have succeeded, and the register has these members in sync."""
        for one in self._counted.keys() - members:
            added = one in self._adding and one not in self.agreed
            if added and self._heard[one] + self._times.ack_timeout >= now:
                continue  # it is still on its way in
            self._forget(one, now)
        self.agreed = self._fewest = members
        for one in members & self._adding.keys():
            del self._adding[one]
        self._commit()

    def read(self, members: frozenset[str], now: int) -> None:
        """The register was looked at while an answer is missing: whom it has in sync counts; nobody ceases to."""
        for one in members - self._counted.keys() - {self.me}:
            self._counted[one], self._heard[one], self._came[one] = 0, now, now
        self.agreed = members
        self._fewest &= members

    def _forget(self, member: str, now: int) -> None:
        stayed = now - self._came.pop(member)
        del self._counted[member], self._heard[member]
        self._declined.discard(member)
        self._adding.pop(member, None)
        _, long = self._level.get(member, (None, 0))
        twice = 2 * long if stayed < self._times.level_most else 0
        self._level[member] = (None, min(max(twice, self._times.level), self._times.level_most))

    def _commit(self) -> None:
        if self.enough:
            self.committed = max(self.committed, self._synced if self._local else self.held)
