"""Reading around damage: a batch that was changed costs its own rows and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import LogDamaged
from penstock.expr import compile_filter
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.server.asking.scanning import look_at_log
from sim.logkit import SMALL, FakeClock, commit, messages

TINY = replace(SMALL, cache=1)
SOUND = [*range(1, 21), *range(26, 51)]


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
    rows = hurt.read(range(1, 51), around=True)
    assert rows.lsns == SOUND
    assert rows.bodies == [b"message %02d" % lsn for lsn in rows.lsns]
    for column in (rows.topics, rows.properties, rows.times, rows.expires_at, rows.priority):
        assert len(column) == 45


@pytest.mark.parametrize("first", [1, 18, 21])
def test_a_limit_ends_the_answer_before_or_behind_the_damage(hurt: Log, first: int) -> None:
    sound = [lsn for lsn in SOUND if lsn >= first]
    rows = hurt.read(range(first, 51), most=100, around=True)
    assert 0 < len(rows) < len(sound)
    assert rows.lsns == sound[: len(rows)]


def test_damage_that_nobody_asked_for_fails_no_read(hurt: Log) -> None:
    assert hurt.read(range(11, 21), 1 << 20).lsns == [*range(11, 21)]


def test_a_batch_is_told_once_and_counted_while_its_file_is_there(hurt: Log, caplog: pytest.LogCaptureFixture) -> None:
    assert hurt.read([21, 23, 25], around=True).lsns == []
    assert [len(batch) for batch in hurt.batches(16, 31, around=True)] == [5, 5]
    assert caplog.text.count("log/00000000000000000001.arrows: batch 4 at byte") == 1
    assert "is not what was written; what is stored there is not delivered" in caplog.text
    assert hurt.damage.batches == 1
    assert hurt.damage.sentences(10)[0].endswith("from LSN 21 on, is not what was written")
    hurt.damage.forget("log/00000000000000000001.arrows")
    assert not hurt.damage.batches


def test_a_filter_looks_past_it(hurt: Log) -> None:
    seen = look_at_log(hurt, range(1, 51), [compile_filter("/x IS NULL")], lambda: 0)
    assert seen.found == [SOUND]
    assert seen.upto == 50
    scattered = look_at_log(hurt, range(21, 26), [compile_filter("/x IS NULL")], lambda: 0)
    assert (scattered.found, scattered.upto) == ([[]], 25)
