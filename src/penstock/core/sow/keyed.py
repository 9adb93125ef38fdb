"""Changing the records of SOW topics: publishing, and what a `sow_delete` removes.

Publishing stands before `Publisher.publish` as soon as some topic has a key: the key of each row, its deadline, its
delta merged, and the record beside the rows.  Rows of other topics pass as they are; a row without a key is refused;
the rest is stored as always, and a SOW_PUT in the same group says which key each row is of.  A delta needs the present
record's body: the shell sees that `bodies` has it before it publishes (`lacking`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.publishing.body_checks import BodyChecks
from penstock.core.publishing.published import Published, Refusal, TraitsMemo
from penstock.core.sow.holding import Cut, Sow, parse_number
from penstock.core.sow.index import NEVER, Ints, Numbers, Put, pack_drop, pack_one, pack_put
from penstock.core.sow.rows import KeyedRows, Work, is_delta
from penstock.errors import InvalidArgument, PenstockError
from penstock.records.chunks import Now
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import Kind
from penstock.records.message_bodies import listed
from penstock.records.properties import EMPTY
from penstock.records.schema import GROUP_BYTES_MAX

EXPIRED_AT_ONCE = 8192
"""Records that expire in one step; then others have their turn."""

Store = Callable[[Publishes, int], Published]
"""Stores a batch without its first so many rows."""


class Keyed(KeyedRows):
    """The SOW topics of a living instance."""

    def __init__(self, outbox: Outbox[Effect], traits: TraitsMemo, checks: BodyChecks | None) -> None:
        """checks: of bodies; what a delta makes of its record is held to them."""
        super().__init__(traits, checks)
        self._outbox = outbox
        self.lasting = set[int]()  # ids of topics that a fault has stopped: nothing expires there any more

    # -- publishing

    def publish(self, batch: Publishes, skip: int, trusted: bool, store: Store) -> Published:
        """Store a batch; rows of SOW topics become the present records of their keys."""
        if isinstance(batch.topics, Topic) and isinstance(batch.properties, bytes) and not skip:
            published = self._uniform(batch, batch.topics, batch.properties, trusted, store)
            if published is not None:
                return published
        topics = self._topics(batch)
        if not topics:
            return store(batch, skip)
        if batch.size > GROUP_BYTES_MAX:  # its rows and their keys are one group
            why = InvalidArgument(f"a batch has {batch.size} bytes, a group of the log at most {GROUP_BYTES_MAX}")
            return _refused(self._outbox.last_lsn, [(row, why) for row in range(skip, len(batch.bodies))], skip)
        work = Work(self, batch, topics, skip, trusted)
        if not work.refused:
            return self._stored(batch, range(len(batch.bodies)), skip, work, store)
        left = {row for row, _ in work.refused}
        rows = [row for row in range(skip, len(batch.bodies)) if row not in left]
        if not rows:
            return _refused(self._outbox.last_lsn, work.refused, skip)
        told = self._stored(batch, rows, 0, work, store).among(rows)
        refused = sorted([*work.refused, *told.refused], key=itemgetter(0))
        return replace(told, refused=refused, repeats=[*range(skip), *told.repeats])

    def _stored(self, batch: Publishes, rows: Sequence[int], skip: int, work: Work, store: Store) -> Published:
        """Store these rows, without the first so many of them, and what keys they have, in one group."""
        outbox = self._outbox
        work.stamp(outbox.time)
        stored = batch if len(rows) == len(batch.bodies) else batch.select(rows)
        with outbox.group():
            published = store(stored, skip)
            if published.stored:
                lsns = dict(zip(published.stored_rows(len(rows)), published.positions, strict=True))
                self._put(work, {rows[row]: lsn for row, lsn in lsns.items()})
        return replace(published, last=outbox.last_lsn) if published.stored else published

    def _uniform(
        self, batch: Publishes, topic: Topic, properties: bytes, trusted: bool, store: Store
    ) -> Published | None:
        """One topic, one header, and a key in each body: nothing else is done row by row.  None: it is not so."""
        sow = self.sows.by_name.get((topic.vhost, topic.exchange, topic.name))
        if sow is None:
            return store(batch, 0)
        traits = self.traits[properties]
        if sow.rule.given or traits.refusal is not None or is_delta(batch, traits) or batch.size > GROUP_BYTES_MAX:
            return None
        numbers = self._numbers(sow, batch)
        if numbers is None:
            return None
        outbox = self._outbox
        column = batch.expires_at = _deadlines(batch, sow, None if trusted else traits.ttl, outbox.time)
        outbox.begin()
        try:
            published = store(batch, 0)
            first, count = published.first, published.stored
            assert count in (0, len(numbers)), "rows of a declared topic are kept"
            if count == 1:
                self._note_one(sow, numbers[0], first, 0 if column is None else column[0])
            elif count:
                self._note(sow, numbers, np.array(published.positions, dtype=np.int64), column)
        except PenstockError:
            outbox.end()
            raise
        outbox.end()
        return replace(published, last=outbox.last_lsn) if count else published

    def _numbers(self, sow: Sow, batch: Publishes) -> list[int] | None:
        if batch.keyed is not None and batch.keyed[0] == sow.id:
            return batch.keyed[1]
        bodies = listed(batch.bodies)
        if max(map(len, bodies), default=0) > sow.rule.body_most:
            return None  # their keys were worked out before, one by one
        return sow.rule.of_bodies(bodies, batch.properties)

    def _note_one(self, sow: Sow, number: int, lsn: int, due: int) -> None:
        self._outbox.record(Kind.SOW_PUT, sow.name, None, pack_one(sow.id, number, lsn, due))
        self.sows.put_one(sow, number, lsn, due)

    def _note(self, sow: Sow, numbers: Sequence[int], lsns: Ints, deadlines: Sequence[int] | None) -> None:
        """Rows that were stored are the present records of these keys."""
        due = None if deadlines is None or not any(deadlines) else np.array(deadlines, dtype=np.int64)
        put = Put(sow.id, np.array(numbers, dtype=np.uint64), lsns, due)
        self._outbox.record(Kind.SOW_PUT, sow.name, None, pack_put(put))
        self.sows.put(put)

    def _put(self, work: Work, lsns: Mapping[int, int]) -> None:
        expires = work.batch.expires_at
        for sow in work.sows():
            rows = [row for row in work.rows[sow] if row in lsns]
            if not rows:
                continue
            if work.merged:
                bodies = work.batch.bodies
                for row in rows:
                    if row in work.merged:
                        self.bodies.keep(lsns[row], bodies[row])
            due = None if expires is None else [expires[row] for row in rows]
            places = np.array([lsns[row] for row in rows], dtype=np.int64)
            self._note(sow, [work.numbers[row] for row in rows], places, due)

    # -- removal

    def drop(self, sow: Sow, numbers: Sequence[int], reason: str, by: str = "") -> int:
        """These keys have no record any more; how many had one."""
        there = [(number, lsn) for number in dict.fromkeys(numbers) if (lsn := sow.index.drop(number))]
        if not there:
            return 0
        sow.deleted += len(there)
        self._dropped(sow, [number for number, _ in there], [lsn for _, lsn in there], reason, by)
        return len(there)

    def cut(self, sow: Sow, cut: Cut, reason: str) -> int:
        """Very many keys have no record any more; how many had one."""
        count = 0
        for numbers, lsns in cut.take(sow.index):
            count += len(numbers)
            watched = sow.acting or bool(sow.watchers)
            self._dropped(sow, numbers, lsns.tolist() if watched else (), reason, "")
        sow.deleted += count
        return count

    def due(self) -> int | None:
        """When the next record expires, or somewhat before; None: none does."""
        due = min((sow.index.due for sow in self.sows if sow.id not in self.lasting), default=NEVER)
        return None if due >= NEVER else due

    def overdue(self, now: Now) -> list[Sow]:
        """Topics of which some records may expire now."""
        return [sow for sow in self.sows if sow.index.due <= now.wall and sow.id not in self.lasting]

    def expire(self, now: Now, sow: Sow) -> None:
        """Records whose time has come go; if there are very many, some of them."""
        numbers, lsns = sow.index.overdue(now.wall, EXPIRED_AT_ONCE)
        lsn = self._log_drop(sow, numbers, lsns, "expired", "") if numbers else 0
        sow.index.expire(numbers, now.wall)
        if numbers:
            sow.expired += len(numbers)
            _tell_drop(sow, lsn, numbers, lsns, "expired")

    def _dropped(self, sow: Sow, numbers: Sequence[int] | Numbers, lsns: Sequence[int], reason: str, by: str) -> None:
        """lsns: of the records that they had; none where nobody asks."""
        _tell_drop(sow, self._log_drop(sow, numbers, lsns, reason, by), numbers, lsns, reason)

    def _log_drop(self, sow: Sow, numbers: Sequence[int] | Numbers, lsns: Sequence[int], reason: str, by: str) -> int:
        header: dict[str, object] = {"reason": reason, **({"by": by} if by else {})}
        if sow.acting:
            header["lsns"] = sorted(lsns)
        return self._outbox.record(Kind.SOW_DROP, sow.name, header, pack_drop(sow.id, numbers))


def _tell_drop(sow: Sow, lsn: int, numbers: Sequence[int] | Numbers, lsns: Sequence[int], reason: str) -> None:
    if sow.watchers:
        keys = numbers.tolist() if isinstance(numbers, np.ndarray) else numbers
        for watcher in sow.watchers:
            watcher.dropped(lsn, keys, lsns, reason)


def _deadlines(batch: Publishes, sow: Sow, ttl: int | None, time: int) -> list[int] | None:
    """When rows of a topic that have one header expire, where some do.  ttl: what the header asks for."""
    life = sow.expiration and time + sow.expiration
    if batch.expires_at is not None:
        return [end or life for end in batch.expires_at] if life else batch.expires_at
    if ttl is not None:
        life = time + ttl
    return [life] * len(batch.bodies) if life else None


def _refused(last: int, refused: list[tuple[int, Refusal]], skip: int) -> Published:
    return Published(0, last, refused=refused, repeats=range(skip))


KEYS_MOST = 100_000
"""Keys of one command."""

STEP = 8192
"""Records that are removed in one step; then others have their turn."""


@dataclass(frozen=True, slots=True)
class Removal:
    filter: str | None = None
    keys: tuple[str, ...] | None = None
    data: bytes | None = None  # a message whose key it is

    def __post_init__(self) -> None:
        if (self.filter is not None) + (self.keys is not None) + (self.data is not None) != 1:
            raise InvalidArgument("sow_delete takes a filter, keys, or the data of a message, and one of them")
        if self.keys is not None and len(self.keys) > KEYS_MOST:
            raise InvalidArgument(f"sow_delete names {len(self.keys)} keys, {KEYS_MOST} are allowed")


def numbers_of(sow: Sow, removal: Removal) -> list[int]:
    """The keys that are named or given with data.  Raises InvalidArgument for what is no key of this topic."""
    if removal.data is not None:
        if sow.rule.given:
            raise InvalidArgument(f"topic '{sow.name}' has its keys from its publishers: name the keys, not data")
        return [_number(sow, sow.rule.of_body(removal.data, EMPTY))]  # without a header
    return [number_of_key(sow, key) for key in removal.keys or ()]


def number_of_key(sow: Sow, key: str) -> int:
    """The number of a key as people see it.  Raises InvalidArgument."""
    if sow.rule.given:
        return _number(sow, sow.rule.of_text(key))
    number = parse_number(key)
    if number is None:
        raise InvalidArgument(f"{key[:60]!r} is no key of topic '{sow.name}': its keys are unsigned 64-bit decimals")
    return number


def _number(sow: Sow, found: int | str) -> int:
    if isinstance(found, str):
        raise InvalidArgument(f"topic '{sow.name}': {found}")
    return found


def steps(numbers: Sequence[int], lsns: Sequence[int]) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Keys and their records in portions."""
    return [(numbers[at : at + STEP], lsns[at : at + STEP]) for at in range(0, len(numbers), STEP)]
