"""The table of record kinds and those who read it agree: a kind that somebody forgot is found here."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from penstock.core import view_feed
from penstock.core.audit_log import Audit
from penstock.core.links import telling
from penstock.core.state import fold
from penstock.operations.story import WORDS, Teller
from penstock.records.kinds import ENDED, MEANINGS, MOVES, READERS, SYNCED, Kind, Reader, read_by
from penstock.server.notices import TOLD

READ: dict[Reader, Collection[Kind]] = {
    "fold": fold.READS,
    "audit": Audit.READS,
    "story": Teller.TELLS.keys(),
    "views": view_feed.READS,
    "events": TOLD.keys(),
    "links": telling.READS,
}


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
