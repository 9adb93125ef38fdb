"""What the register says of a cluster: one small value, changed by compare-and-set on its version and in no other way.

Safety rests on this value and on followers' acks alone; leases and clocks decide only how soon somebody takes over.
Each change is a method that gives the value to swap in: whoever loses the swap has changed nothing.

Where each member has a copy of its own, which of two is to be believed is no matter of the higher number: the one that
knows of the other's term went on from it.  Of two that know nothing of each other one may be known to have confirmed
nothing, since it waits for the very member that leads in the other.  If not, both have, and only a person can say which
is to be given up.  That binds the others when who is told to lead begins its term: until then the order may come to
nothing, and who had followed it would have set aside what was confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import orjson

from penstock.errors import InvalidArgument, NotFound, PreconditionFailed, shown
from penstock.records.dataclass import dataclass
from penstock.replication.messages import ADDRESS_MOST
from penstock.replication.terms import (
    LANES,
    OVER_MOST,
    TERMS,
    Runs,
    Written,
    ascending,
    common,
    includes,
    next_term,
    runs,
    start_of,
    term_of,
    unrolled,
)
from penstock.wire.fields import LSN_MAX, NAME_LIMIT, Field, Fields, as_list, read_json

BYTES_MOST = 8192
"""Of the value in the register."""

TERM_LSNS = 1 << 33
"""LSNs of one term, until its leader has the ceiling raised."""

RAISE_WITHIN = 1 << 32
"""The leader has the ceiling raised when it comes so near."""

TENURES_MOST = 32
"""Terms of which the register tells; the log's own state knows all of them."""

MEMBERS_MOST = 16


class Tenure(NamedTuple):
    """One leader's time: the LSNs that it could give out, and the last that its successor found."""

    term: int
    start: int  # its first LSN
    last: int | None  # None: it leads now


@dataclass(frozen=True, slots=True)
class Member:
    """One server with a data folder of its own."""

    name: str
    address: str
    reads: int  # the newest format of the log that it can read
    starts: int = 0  # how often its folder was opened: a folder put back from an older copy has a lower number
    process: str = ""  # of the one that opened it last: of two with one folder, or a copy of it, one is refused
    number: int = 0  # its lane, where each member has a copy of the register

    def numbered(self, number: int) -> Member:
        """The same with this number."""
        return replace(self, number=number)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The value of the register."""

    cluster: str
    origin: int  # of the log, the same for all members
    format: int = 1  # the newest one that the leader writes
    term: int = 0
    leader: str | None = None  # a member's id
    beat: int = 0  # grows while the leader lives
    ceiling: int = 1  # no LSN from here on has been given out by anybody
    in_sync: frozenset[str] = frozenset()  # ids of those that hold everything that was ever confirmed
    committed: int = 0  # all of these have all up to this LSN, as of the last beat: whose folder ends before lost it
    members: Mapping[str, Member] = field(default_factory=dict[str, Member])
    terms: tuple[Tenure, ...] = ()  # the newest ones, oldest first
    to: str | None = None  # whom the leader hands over to
    base: int = 0  # where each member has a copy: LSN from which the terms of all lanes are counted
    numbers: int = 0  # the same: the highest number that was given to a member
    gone: tuple[str, ...] = ()  # the same: ids of members that were removed
    given_up: bool = False  # the same: who is told to lead may lack what was confirmed
    over: Runs = ()  # the same: terms that are over, and of which `terms` tells nothing, or nothing any more
    aside: Runs = ()  # the same: terms that will be, once who is told to lead has begun its term

    @property
    def leader_name(self) -> str:
        """Of who leads, for people."""
        return "nobody" if self.leader is None else self.members[self.leader].name

    @property
    def manual(self) -> bool:
        """Whether each member has a copy of its own, and a person says who leads."""
        return self.base > 0

    @property
    def address(self) -> str | None:
        """Where the leader takes followers; None: nobody leads."""
        return None if self.leader is None else self.members[self.leader].address

    def lacks(self, lsn: int) -> bool:
        """Whether this LSN is one that a leader gave out, and the log goes on without: no later leader had found it.

        False where the terms that are told of do not reach back so far.
        """
        if self.manual and not any(one.term == term_of(self.base, lsn) for one in self.terms):
            return bool(self.terms) and lsn >= self.terms[0].start
        after = [one for n, one in enumerate(self.terms) if n + 1 == len(self.terms) or self.terms[n + 1].start > lsn]
        if not self.terms or lsn < self.terms[0].start:
            return False
        return any(one.last is not None and lsn > one.last for one in after)

    @property
    def order(self) -> bool:
        """Of a copy: whether a person has told a member to lead, and it has not begun its term yet."""
        return self.manual and self.to is not None and self.in_sync == frozenset({self.to})

    def knows(self, term: int) -> bool:
        """Of a copy: whether it goes on from a term, or has set it aside."""
        return term in (0, self.term) or any(one.term == term for one in self.terms) or includes(self.over, term)

    # what a leader, or one who would be, asks for

    def led_by(self, candidate: str, last: int, above: int = 0) -> ClusterState:
        """The next term, led by an in-sync member whose log ends at `last`.

        above: a term that the candidate knows of besides

        The former leader is no longer in sync: what it wrote and nobody else has is not confirmed, and must be cut.
        Its LSNs end at the old ceiling, so none is ever used for two records, whatever was lost.
        """
        assert candidate in self.in_sync, "only who holds everything may lead"
        assert last >= self.committed, "it has lost what it acked"
        before = [one if one.last is not None else one._replace(last=last) for one in self.terms]
        term, start, ceiling = self.term + 1, self.ceiling, self.ceiling + TERM_LSNS
        if self.manual:
            known = max([above, self.term, *(last for _, last in (*self.over, *self.aside))])
            term = next_term(self.members[candidate].number, known)
            start, ceiling = start_of(self.base, term), start_of(self.base, term + 1)
        terms = (*before, Tenure(term, start, None))
        told, gone = terms[-TENURES_MOST:], terms[:-TENURES_MOST]
        ended = [*unrolled((*self.over, *self.aside)), *(one.term for one in gone)] if self.manual else ()
        return replace(
            self,
            term=term,
            leader=candidate,
            beat=self.beat + 1,
            ceiling=ceiling,
            in_sync=(self.in_sync - {self.leader}) | {candidate},
            terms=told,
            to=None,
            given_up=False,
            over=runs(ended),
            aside=(),
        )

    def beaten(self, committed: int = 0) -> ClusterState:
        """The same with the next beat, and with how far all that are in sync are known to be."""
        return replace(self, beat=self.beat + 1, committed=max(self.committed, committed))

    def raised(self, next_lsn: int) -> ClusterState:
        """The same with room for more LSNs, where the next one is near the ceiling."""
        if self.manual or self.ceiling - next_lsn > RAISE_WITHIN:
            return self
        return replace(self, ceiling=self.ceiling + TERM_LSNS)

    def counting(self, members: Iterable[str]) -> ClusterState:
        """The same with these members in sync."""
        wanted = frozenset(members)
        return self if wanted == self.in_sync else replace(self, in_sync=wanted)

    def handing_to(self, member: str | None) -> ClusterState:
        """The same with somebody named who may take over at once."""
        return replace(self, to=member)

    # what members and operators ask for

    def with_member(self, key: str, member: Member) -> ClusterState:
        """The same with a member added, or with what it says of itself now."""
        if key not in self.members and len(self.members) >= MEMBERS_MOST:
            raise InvalidArgument(f"the cluster has {len(self.members)} members; at most {MEMBERS_MOST} are allowed")
        if not self.manual:
            return replace(self, members={**self.members, key: member})
        if key in self.gone:
            raise InvalidArgument(f"{key} was removed from the cluster")
        there = self.members.get(key)
        number = self.numbers + 1 if there is None else there.number
        if number >= LANES:
            raise InvalidArgument(f"the cluster has had {self.numbers} members, and no more than that can ever be told")
        members = {**self.members, key: member.numbered(number)}
        return replace(self, members=members, numbers=max(number, self.numbers))

    def numbering(self, numbers: int) -> ClusterState:
        """The same, of a copy, with a number that somebody else is known to have given to a member."""
        return replace(self, numbers=max(self.numbers, min(numbers, LANES - 1)))

    def without_member(self, key: str) -> ClusterState:
        """The same without a member.  InvalidArgument for the leader: hand over first."""
        if key == self.leader:
            raise InvalidArgument(f"{key} leads; hand over to another member first")
        if self.manual and key in self.in_sync:
            raise PreconditionFailed(
                f"{self.members[key].name} is in sync, and does not know that it is to be none any more: a person may "
                "have it lead.  Stop its server in order, or promote the one that leads, which goes on without it then"
            )
        left = {one: member for one, member in self.members.items() if one != key}
        gone = (*self.gone, key) if self.manual else ()
        return replace(
            self, members=left, in_sync=self.in_sync - {key}, to=None if self.to == key else self.to, gone=gone
        )  # fmt: skip

    def key_of(self, member: str) -> str:
        """The id of a member, by its id or its name.  NotFound; InvalidArgument for a name that several have."""
        if member in self.members:
            return member
        found = [key for key, one in self.members.items() if one.name == member]
        if not found:
            known = ", ".join(f"{one.name} ({key})" for key, one in sorted(self.members.items()))
            raise NotFound(f"no member {member!r} in cluster {self.cluster}; there are {known}")
        if len(found) > 1:
            raise InvalidArgument(f"{len(found)} members are called {member!r}; name one by its id: {', '.join(found)}")
        return found[0]

    def promoted(self, key: str, lose: int | None = None) -> ClusterState:
        """The same with a member that is to lead now, whoever leads.

        One that is not in sync may lack what was confirmed: PreconditionFailed unless `lose` says up to where that is
        known to have been.  Nobody else is in sync then.
        """
        if key in self.in_sync:
            return self.handing_to(key)
        if lose != self.committed:
            there = ", ".join(sorted(self.members[one].name for one in self.in_sync))
            raise PreconditionFailed(
                f"{self.members[key].name} is not in sync: what it lacks of what was confirmed would be lost, and "
                f"records up to LSN {self.committed} are known to have been; in sync: {there}.  "
                f"To promote it all the same say --lose {self.committed}"
            )
        return replace(self, in_sync=frozenset({key}), leader=None, committed=0, to=key)

    def told_to_lead(
        self, key: str, *, lacks: bool = False, rival: ClusterState | None = None, lose: int | None = None
    ) -> ClusterState:
        """The same, of a member's own copy, with this member to lead alone until others are level with it.

        lacks: its disk has lost what it acked.  rival: another's value, which went on without this one, as this one
        did without that.  PreconditionFailed unless `lose` says up to where either is known to have confirmed what will
        be set aside.
        """
        name, why, upto = self.members[key].name, list[str](), 0
        if lacks or key not in self.in_sync:
            there = ", ".join(sorted(self.members[one].name for one in self.in_sync - {key})) or "nobody"
            why.append(f"{name} is not in sync: what it lacks of what was confirmed would be lost; in sync: {there}")
            upto = self.committed
        if rival is not None:
            why.append(
                f"{rival.leader_name} leads term {rival.term}, of which {name} has nothing: it would be set aside"
            )
            upto = max(upto, rival.committed)
        if why and lose != upto:
            raise PreconditionFailed(
                f"{'; '.join(why)}.  Records up to LSN {upto} are known to have been confirmed there.  "
                f"To promote {name} all the same say --lose {upto}"
            )
        aside = unrolled(self.aside)
        if rival is not None:
            aside |= {rival.term, *(one.term for one in rival.terms), *unrolled(rival.over)}
        if not why:
            return replace(self, in_sync=frozenset({key}), to=key)
        lost = runs(one for one in aside if not self.knows(one))
        return replace(self, in_sync=frozenset({key}), committed=0, to=key, given_up=True, aside=lost)

    def finalized(self) -> ClusterState:
        """The same with the newest format that all members can read.  There is no way back to older versions then."""
        return replace(self, format=max(self.format, min(one.reads for one in self.members.values())))

    # bytes

    def encode(self) -> bytes:
        """As it is kept.  InvalidArgument for one that is larger than a register takes."""
        more: dict[str, object] = {}
        if self.manual:
            more = {"base": self.base, "numbers": self.numbers, "gone": list(self.gone)}
            more |= {"given_up": True} if self.given_up else {}
            more["over"] = [list(one) for one in self.over]
            more |= {"aside": [list(one) for one in self.aside]} if self.aside else {}
        data = orjson.dumps(
            {
                "cluster": self.cluster, "origin": self.origin, "format": self.format, "term": self.term,
                "leader": self.leader, "beat": self.beat, "ceiling": self.ceiling, "in_sync": sorted(self.in_sync),
                "committed": self.committed,
                "members": {
                    key: {
                        "name": one.name, "address": one.address, "reads": one.reads, "starts": one.starts,
                        "process": one.process, **({"number": one.number} if one.number else {}),
                    }
                    for key, one in self.members.items()
                },
                "terms": [list(one) for one in self.terms], "to": self.to, **more,
            }
        )  # fmt: skip
        if len(data) > BYTES_MOST:
            raise InvalidArgument(f"the register's value has {len(data)} bytes; at most {BYTES_MOST} are kept")
        return data


def written(state: ClusterState, last: int) -> list[Written]:
    """Which terms wrote which LSNs of a member's log that ends at `last`.

    Its last record is of the newest term whose LSNs reach it, so before that the log is what this term's leader found.
    What that one found may end before what an earlier leader had found and nobody else got: the lowest end counts.
    """
    found, end = list[Written](), last
    terms = [one for one in state.terms if one.start <= last]
    for one in reversed(terms):
        if one is not terms[-1]:
            end = min(end, last if one.last is None else one.last)
        if end >= one.start:
            found.append(Written(one.term, one.start, end))
    return found[::-1]


@lru_cache(16)  # it is looked at, and told, far oftener than it changes
def decode(data: bytes) -> ClusterState:
    """What a register holds.  InvalidArgument says what is wrong with it: nobody serves by half a value."""
    what = "the register's value"
    if len(data) > BYTES_MOST:
        raise InvalidArgument(f"{what} has {len(data)} bytes; at most {BYTES_MOST} are read")
    fields = Fields(what, read_json(data, what))
    members = {key: _member(f"{what}: member {shown(key)}", one) for key, one in fields.table("members").items()}
    terms = tuple(_tenure(f"{what}: terms", one) for one in _items(fields, "terms"))
    found = ClusterState(
        cluster=fields.name("cluster"),
        origin=fields.number("origin", 1),
        format=fields.number("format", 1),
        term=fields.number("term"),
        leader=fields.optional_text("leader"),
        beat=fields.number("beat"),
        ceiling=fields.number("ceiling", 1),
        in_sync=frozenset(fields.texts("in_sync", MEMBERS_MOST)),
        committed=fields.count("committed"),
        members=members,
        terms=terms,
        to=fields.optional_text("to"),
        base=fields.count("base", default=0),
        numbers=fields.count("numbers", default=0),
        gone=tuple(fields.texts("gone", LANES)),
        given_up=fields.flag("given_up"),
        over=_runs(what, fields, "over"),
        aside=_runs(what, fields, "aside"),
    )
    fields.finish()
    _check(what, found)
    return found


def _check(what: str, found: ClusterState) -> None:
    named = {*found.in_sync, *(one for one in (found.leader, found.to) if one is not None)}
    if len(found.members) > MEMBERS_MOST or not named <= found.members.keys():
        raise InvalidArgument(f"{what}: {shown(sorted(named - found.members.keys()))} are no members")
    if found.leader is not None and found.leader not in found.in_sync and not found.order:
        raise InvalidArgument(f"{what}: {shown(found.leader)} leads and is not in sync")
    if any(a.term >= b.term or a.start >= b.start for a, b in zip(found.terms, found.terms[1:], strict=False)):
        raise InvalidArgument(f"{what}: its terms do not ascend")
    newest = found.terms[-1] if found.terms else Tenure(0, 0, None)
    if newest.term != found.term or newest.start >= found.ceiling or (found.leader is not None and not found.terms):
        raise InvalidArgument(f"{what}: its last term is not {found.term}, or starts at its ceiling")
    if found.manual:
        lanes = sorted(one.number for one in found.members.values())
        most = min(found.numbers, LANES - 1)
        if found.numbers > most or len({*lanes}) < len(lanes) or not {*lanes} <= {*range(1, most + 1)}:
            raise InvalidArgument(f"{what}: its members have the numbers {lanes}, and {found.numbers} were given")
        for one in found.terms:
            if one.term >= TERMS or one.start != start_of(found.base, one.term):
                raise InvalidArgument(f"{what}: term {one.term} starts at LSN {one.start}, which is not in its lane")


def _runs(what: str, fields: Fields, name: str) -> Runs:
    where, found = f"{what}: {name}", list[tuple[int, int]]()
    for one in as_list(fields.one(Field(name, "value"))) or ():
        numbers = [_whole(where, some) for some in as_list(one) or ()]
        if len(numbers) != 2 or len(found) == OVER_MOST:
            raise InvalidArgument(f"{where} has {shown(one)}, not [first term, last term], or has too many")
        found.append((numbers[0], numbers[1]))
    if not ascending(tuple(found)):
        raise InvalidArgument(f"{where} has runs of terms that do not ascend")
    return tuple(found)


def _items(fields: Fields, name: str) -> list[object]:
    value: object = fields.one(Field(name, "value"))
    items = as_list(value)
    if items is None or len(items) > TENURES_MOST:
        raise fields.bad(name, value, f"a list of at most {TENURES_MOST} terms")
    return items


def _member(where: str, value: object) -> Member:
    fields = Fields.of(where, value)
    found = Member(
        fields.name("name", NAME_LIMIT), fields.name("address", ADDRESS_MOST), fields.number("reads", 1),
        fields.count("starts"), fields.text("process"), fields.count("number", default=0),
    )  # fmt: skip
    fields.finish()
    return found


def _tenure(where: str, value: object) -> Tenure:
    numbers = as_list(value) or []
    if len(numbers) != 3:
        raise InvalidArgument(f"{where} has {shown(value)}, not [term, first LSN, last LSN or null]")
    term, start, last = numbers
    return Tenure(_whole(where, term), _whole(where, start), None if last is None else _whole(where, last))


def _whole(where: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LSN_MAX:
        raise InvalidArgument(f"{where} has {shown(value)}, which is no whole number from 0 to {LSN_MAX}")
    return value


class Verdict(Enum):
    """Of another's value beside ours."""

    OLD = "old"  # ours goes on from it, or is the same
    NEW = "new"  # it goes on from ours, and ours confirmed nothing that it lacks
    RIVAL = "rival"  # both may have confirmed what the other lacks
    TWICE = "twice"  # two processes made the same term: one has an older copy of the folder of the other


def compared(ours: ClusterState, theirs: ClusterState) -> Verdict:
    """Which of two values is to be believed.  Both are of the same cluster."""
    if ours.term == theirs.term:
        if ours.leader is not None and theirs.leader is not None and _starts(ours) != _starts(theirs):
            return Verdict.TWICE
        return Verdict.NEW if theirs.beat > ours.beat else Verdict.OLD
    if ours.knows(theirs.term) or includes(ours.aside, theirs.term):
        return Verdict.OLD
    if theirs.knows(ours.term):
        return Verdict.NEW
    empty, ours_empty = _is_empty(theirs, ours), _is_empty(ours, theirs)
    if empty and ours_empty:
        return Verdict.NEW if theirs.term > ours.term else Verdict.OLD
    if empty or ours_empty:
        return Verdict.OLD if empty else Verdict.NEW
    return Verdict.OLD if theirs.leader in ours.gone else Verdict.RIVAL


def _is_empty(line: ClusterState, other: ClusterState) -> bool:
    """Whether a value that another knows nothing of is known to have confirmed nothing since they parted.

    Who is in sync is dropped with its own word, or by a person in a new term: so the leader of the other is waited for.
    It has acked nothing here, unless it gave up its own line and followed this one: then the value that has it in sync
    tells that something was confirmed, see `insync`.
    """
    since = next((one.start for one in line.terms if not other.knows(one.term)), line.ceiling)
    waited_for = other.leader in line.in_sync and other.leader != line.leader  # who leads both waits for nobody
    return waited_for and line.committed < since


def _starts(state: ClusterState) -> tuple[int, str] | None:
    """Of the process that made its term: each start makes another."""
    leader = None if state.leader is None else state.members[state.leader]
    return None if leader is None else (leader.starts, leader.process)


def end_of_line(state: ClusterState, log: Sequence[Written]) -> int | None:
    """The last LSN of a log that a value goes on from: what lies above was set aside.  None: it tells nothing of it.

    log: as its own LSNs tell.  Terms before those that the value tells of are left alone.
    """
    line = written(state, state.ceiling - 1)
    if shared := common(log, line):
        return shared
    known = {one.term for one in line}
    foreign = [one.first for one in log if one.term not in known and one.first >= state.terms[0].start]
    return min(foreign) - 1 if foreign else None
