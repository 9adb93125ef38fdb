"""The journal of `migrate`: what a message is known by, and what a later run makes of what an earlier one wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.amqp_link import Delivered
from penstock.cli.migration_journal import Carried, Journal, as_published
from penstock.errors import InvalidArgument, Refused
from penstock.records.field_tables import FieldValue, Long
from penstock.records.properties import Properties, encode

DEEP: dict[str, FieldValue] = {"n": 7, "deep": {"b": [{"y": 1, "x": 2}], "a": None}}


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (None, {"x-delivery-count": Long(1)}),
        ({}, {"x-delivery-count": Long(1), "x-acquired-count": Long(3)}),
        (DEEP, {"deep": {"a": None, "b": [{"x": 2, "y": 1}]}, "n": Long(7), "x-delivery-count": Long(2)}),
    ],
)
def test_a_message_that_was_given_again_is_the_same(
    first: dict[str, FieldValue] | None, again: dict[str, FieldValue]
) -> None:
    """As RabbitMQ gives it from a quorum queue: with one more field, all fields by their names, whole numbers wider."""
    headers = [encode(Properties(content_type="text/plain", headers=one, priority=3)) for one in (first, again)]
    assert len({*map(as_published, headers)}) == 1


def test_other_headers_are_another_message() -> None:
    others = [None, {"n": 7}, {"n": 8}, {"n": "7"}, {"n": [7]}, {"n": {"n": 7}}, {"x-delivery": 7}]
    assert len({as_published(encode(Properties(headers=one))) for one in others}) == len(others)


def message(body: bytes) -> Delivered:
    return Delivered(1, False, "", "q", b"\0\0", body)


def sent(folder: Path, *runs: tuple[bytes, ...]) -> Carried:
    """What a run after these knows of the queue."""
    for bodies in runs:
        with Journal(folder / "state") as journal:
            journal.queue("old", "/", "q").begin([message(body) for body in bodies])
    with Journal(folder / "state") as journal:
        return journal.queue("old", "/", "q")


def test_one_command_at_a_time_has_it(tmp_path: Path) -> None:
    """Two gave different messages the same numbers, and the new server took the second ones for what it has."""
    with Journal(tmp_path / "state"), pytest.raises(Refused, match="a migration that is going on: wait"):
        Journal(tmp_path / "state")
    with Journal(tmp_path / "state") as after:
        after.queue("old", "/", "q").begin([message(b"x")])


def test_every_run_is_asked_for_not_the_last_alone(tmp_path: Path) -> None:
    """A server that was begun anew, or is another one than that of a rehearsal, has nothing of all of them."""
    with Journal(tmp_path / "state") as journal:
        carried = journal.queue("old", "/", "q")
        carried.begin([message(b"a"), message(b"b")])
        carried.forget([message(b"a")])
    carried = sent(tmp_path, (b"c",))
    with Journal(tmp_path / "state") as journal:
        carried = journal.queue("old", "/", "q")
        assert [*carried.publishers] == [1, 2]
        for run in carried.publishers:
            carried.keep(run, 0)
    with Journal(tmp_path / "state") as journal:
        carried = journal.queue("old", "/", "q")
        assert (carried.total, carried.there, carried.publishers) == (0, 0, {})
        assert not any(carried.knows(message(body)) for body in (b"a", b"b", b"c"))
        assert carried.begin([message(b"a")]) == 1
        assert (carried.total, carried.there) == (1, 1)


def test_what_was_refused_has_not_come_and_what_stands_behind_it_has(tmp_path: Path) -> None:
    with Journal(tmp_path / "state") as journal:
        carried = journal.queue("old", "/", "q")
        carried.begin([message(body) for body in (b"a", b"b", b"c")])
        carried.refuse([2])
    for told in (3, 1):  # with what the server says while it runs, and after a start
        with Journal(tmp_path / "state") as journal:
            carried = journal.queue("old", "/", "q")
            carried.keep(1, told)
            assert carried.total == 2
            assert [carried.knows(message(body)) for body in (b"a", b"b", b"c")] == [True, False, True]


def test_names_with_spaces_are_not_those_of_other_queues(tmp_path: Path) -> None:
    with Journal(tmp_path / "state") as journal:
        journal.queue("old", "a", "b c").begin([message(b"x")])
    with Journal(tmp_path / "state") as journal:
        assert journal.queue("old", "a b", "c").total == 0
        assert journal.queue("old", "a", "b c").total == 1


@pytest.mark.parametrize("data", [b"something else\n", b"no line", b"[]\n", b'{"journal": "x"}\n[1]\n', b"{}\n"])
def test_another_file_is_refused_and_stays(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "state").write_bytes(data)
    with pytest.raises(InvalidArgument, match="is no journal of a migration"):
        Journal(tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == data
