"""Reading around damage: a batch that was changed costs its own rows and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import LogDamaged
from penstock.log import Log, SimDisk
from penstock.server.readable import read_around
from sim.logkit import SMALL, FakeClock, commit, messages

TINY = replace(SMALL, cache=1)


@pytest.fixture
def hurt() -> Log:
    """Ten batches of five messages, LSNs 1 to 50; a bit of the body of LSN 23 has flipped while it was closed."""
    disk = SimDisk()
    log = Log.open(disk, FakeClock(), TINY)
    for batch in range(10):
        commit(log, messages(1 + 5 * batch, *(b"message %02d" % (1 + 5 * batch + row) for row in range(5))))
    name = log.segments()[0].name
    place = disk.files()[name].index(b"message 23")
    disk.flip(name, 8 * place)
    return log


def test_what_is_sound_is_read(hurt: Log) -> None:
    with pytest.raises(LogDamaged):
        hurt.read(range(1, 51))
    rows = read_around(hurt, range(1, 51))
    assert rows.lsns == [*range(1, 21), *range(26, 51)]
    assert rows.bodies == [b"message %02d" % lsn for lsn in rows.lsns]
    for column in (rows.topics, rows.properties, rows.times, rows.expires_at, rows.priority):
        assert len(column) == 45


@pytest.mark.parametrize("first", [1, 18, 21])
def test_a_limit_ends_the_answer_before_or_behind_the_damage(hurt: Log, first: int) -> None:
    sound = [*range(first, 21), *range(26, 51)]
    rows = read_around(hurt, range(first, 51), most=100)
    assert 0 < len(rows) < len(sound)
    assert rows.lsns == sound[: len(rows)]


def test_nothing_but_damage_is_an_empty_answer(hurt: Log, caplog: pytest.LogCaptureFixture) -> None:
    assert read_around(hurt, [21, 23, 25]).lsns == []
    assert "log/00000000000000000001.arrows: batch 4 at byte" in caplog.text
    assert "is not what was written; what is stored there is not delivered" in caplog.text
