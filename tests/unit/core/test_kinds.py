"""The table of record kinds and those who read it agree: a kind that somebody forgot is found here."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import pytest

from penstock.core import view_feed
from penstock.core.audit_log import Audit
from penstock.core.links import telling
from penstock.core.state import fold
from penstock.errors import PreconditionFailed
from penstock.operations.story import WORDS, Teller
from penstock.records.kinds import ENDED, FORMAT, MEANINGS, MOVES, READERS, SYNCED, Kind, Meaning, Reader
from penstock.server.notices import TOLD
from unit.core.world import World

READ: dict[Reader, Collection[Kind]] = {
    "fold": fold.READS,
    "audit": Audit().reads,
    "story": Teller.TELLS.keys(),
    "views": view_feed.READS,
    "events": TOLD.keys(),
    "links": telling.READS,
}


def read_by(reader: Reader) -> set[Kind]:
    return {kind for kind, meaning in MEANINGS.items() if reader in meaning.readers}


def test_every_kind_has_a_row() -> None:
    assert set(MEANINGS) == set(Kind)
    assert set(READ) == set(READERS)


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_knows_the_kinds_whose_rows_name_it_and_no_others(reader: Reader) -> None:
    assert set(READ[reader]) == read_by(reader)


def test_whoever_looks_at_messages_reads_every_kind_that_moves_them() -> None:
    for reader in ("fold", "audit", "story", "views"):
        assert read_by(reader) >= MOVES, reader


def test_other_sites_are_told_of_every_end() -> None:
    assert read_by("links") >= ENDED


def test_what_happened_to_a_message_has_a_word() -> None:
    assert set(WORDS) >= MOVES
    assert len(set(WORDS.values())) == len(WORDS)


def test_what_is_said_of_more_than_messages_lasts_whatever_the_setting_sync_says() -> None:
    """An answer to who administers it is durable; what becomes of messages is as durable as their confirms."""
    assert {kind for kind in read_by("events") if MEANINGS[kind].to is None} <= SYNCED


FIRST_FORMAT = frozenset(
    {*range(1, 19), *range(20, 29), *range(30, 38), 40, 41, 45, 46, 50, 51, *range(60, 67), 68, *range(70, 75), 78}
    | set(range(80, 87))
)
"""Numbers of the kinds that every version reads.  It never grows."""


def test_a_kind_that_older_versions_do_not_know_is_of_a_later_format() -> None:
    """A member of a cluster that was not upgraded yet must not meet it."""
    assert {kind for kind in Kind if kind not in FIRST_FORMAT} == {kind for kind in Kind if MEANINGS[kind].since > 1}
    assert max(meaning.since for meaning in MEANINGS.values()) <= FORMAT


def test_a_newer_kind_waits_for_the_format_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused to who asks, in a sentence; who did not ask is stopped before it is in the journal."""
    monkeypatch.setitem(
        cast("dict[Kind, Meaning]", MEANINGS), Kind.PAUSE, MEANINGS[Kind.PAUSE]._replace(since=FORMAT + 1)
    )
    world = World()
    world.core.write_as(FORMAT + 1)
    world.core.write_as(FORMAT)
    outbox = world.core._out
    outbox.check_format(Kind.RETURN, Kind.DUE)
    with pytest.raises(PreconditionFailed, match=f"PAUSE record is of format {FORMAT + 1}.*cluster finalize"):
        outbox.check_format(Kind.RETURN, Kind.PAUSE)
    before = outbox.next_lsn
    with pytest.raises(AssertionError, match="PAUSE is newer"):
        outbox.record(Kind.PAUSE, "q")
    assert outbox.next_lsn == before
    world.core.write_as(FORMAT + 1)
    outbox.check_format(Kind.PAUSE)
    assert outbox.record(Kind.PAUSE, "q") == before
