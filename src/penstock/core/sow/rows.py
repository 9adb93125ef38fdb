"""One batch for SOW topics, before it is stored: the key of each row, its deadline, its delta merged.

It changes the batch (bodies of deltas, deadlines) and remembers which row is of which key; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.publishing.traits import DELTA, Refusal, Traits
from penstock.core.sow.holding import Sow
from penstock.core.sow.merge import merge
from penstock.core.sow.worked import LARGE
from penstock.errors import InvalidArgument
from penstock.records.bodies import listed, size_of
from penstock.records.entries import Publishes, Topic

if TYPE_CHECKING:
    from penstock.core.sow.keyed import Keyed

SOW_KEY = "x-sow-key"
"""The header with the key of a message, where its publisher gives it."""


class Work:
    """One batch: what its rows of SOW topics become."""

    def __init__(self, keyed: Keyed, batch: Publishes, topics: Mapping[Topic, Sow], skip: int, trusted: bool) -> None:
        self.batch = batch
        self.numbers: dict[int, int] = {}  # by row
        self.rows: dict[Sow, list[int]] = {}
        self.refused: list[tuple[int, Refusal]] = []
        self.merged = set[int]()  # rows
        self._keyed = keyed
        self._trusted = trusted
        bodies = listed(batch.bodies)
        latest: dict[tuple[int, int], bytes] = {}  # bodies of this batch by topic and key, while there are deltas
        merging = False
        for row, sow, traits in keyed.rows_of(batch, topics, skip):
            body = bodies[row]
            number = keyed.number(sow, body, traits)
            if isinstance(number, str):
                if not trusted:  # a dead letter without the key is a message and no record: nobody hears of a refusal
                    self.refused.append((row, keyless(sow, number)))
                continue
            if not trusted and is_delta(batch, traits):
                if not merging:
                    merging = True
                    bodies = batch.bodies = list(bodies)
                    latest.update({(one.id, self.numbers[at]): bodies[at] for one, rows in self.rows.items()
                                   for at in rows})  # fmt: skip
                try:
                    body = bodies[row] = self._merged(sow, number, body, latest.get((sow.id, number)))
                except InvalidArgument as refusal:
                    self.refused.append((row, InvalidArgument(f"topic {sow.name!r}: {refusal}")))
                    continue
                self.merged.add(row)
            if merging:
                latest[sow.id, number] = body
            if len(bodies[row]) > LARGE:
                keyed.worked.forget(bodies[row], sow.id)
            self.numbers[row] = number
            self.rows.setdefault(sow, []).append(row)
        if merging:  # what was judged were the deltas
            batch.judged = _judged(batch.ahead, listed(batch.bodies))
            batch.routed = batch.ahead = None
            batch.size = _size(batch)

    def _merged(self, sow: Sow, number: int, delta: bytes, latest: bytes | None) -> bytes:
        if latest is None:
            lsn = sow.index.get(number)
            if not lsn:
                return merge(b"{}", delta)
            worked = self._keyed.worked
            known = worked.get(delta, -lsn)
            if known is not None:
                worked.forget(delta, -lsn)
            if isinstance(known, bytes):
                return known
            if isinstance(known, InvalidArgument):
                raise known
            latest = self._keyed.bodies.get(lsn)
            if latest is None:
                raise InvalidArgument(f"a delta cannot be merged: the record at LSN {lsn} is not at hand")
        return merge(latest, delta)

    def sows(self) -> list[Sow]:
        """The topics, by id."""
        return sorted(self.rows, key=_id)

    def stamp(self, time: int) -> None:
        """Rows without an expiration of their own get their topic's, before they are logged."""
        batch, keyed = self.batch, self._keyed
        properties = batch.properties
        column = batch.expires_at
        if column is None:
            size = len(batch.bodies)
            if self._trusted:
                column = [0] * size
            elif isinstance(properties, bytes):
                ttl = keyed.ttl_of(properties)
                column = [0 if ttl is None else time + ttl] * size
            else:
                column = [0 if (ttl := keyed.ttl_of(data)) is None else time + ttl for data in properties]
        else:
            column = list(column)
        for sow, rows in self.rows.items():
            if sow.expiration:
                for row in rows:
                    column[row] = column[row] or time + sow.expiration
        if any(column):
            batch.expires_at = column


def _id(sow: Sow) -> int:
    return sow.id


def _judged(ahead: Publishes | None, bodies: list[bytes]) -> dict[str, dict[int, int]] | None:
    """What filters said of rows as they are now, merged."""
    if ahead is None or ahead.judged is None:
        return None
    seen = listed(ahead.bodies)
    return {
        text: {row: answer for row, answer in answers.items() if seen[row] is bodies[row]}
        for text, answers in ahead.judged.items()
    }


def _size(batch: Publishes) -> int:
    properties = batch.properties
    headers = len(properties) * len(batch.bodies) if isinstance(properties, bytes) else sum(map(len, properties))
    return size_of(batch.bodies) + headers


def number_of_row(sow: Sow, body: bytes, traits: Traits) -> int | str:
    """The number of a row's key; a sentence if it has none."""
    if not sow.rule.given:
        return sow.rule.of_body(body)
    key = None if traits.headers is None else traits.headers.get(SOW_KEY)
    if not isinstance(key, str):
        return f"its publisher gives the key of each message, as text in the header '{SOW_KEY}'; there is none"
    return sow.rule.of_text(key)


def is_delta(batch: Publishes, traits: Traits) -> bool:
    if batch.delta is not None:
        return batch.delta
    return traits.headers is not None and traits.headers.get(DELTA) is True


def keyless(sow: Sow, why: str) -> InvalidArgument:
    return InvalidArgument(f"topic {sow.name!r}: {why}")
