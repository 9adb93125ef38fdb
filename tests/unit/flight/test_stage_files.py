"""What a stage's file says of itself is believed where it is of its kind: the sums may be right all the same."""

from __future__ import annotations

from dataclasses import asdict, replace

import pyarrow as pa
import pytest

from penstock.log.simdisk import SimDisk
from penstock.server.flight.stage_files import FOLDER, StageInfo, StageWriter, info_of, path_of

SOUND = StageInfo("q", 1, 2, 3, None, "", "/", user="ann", time=5)


@pytest.mark.parametrize("wrong", [{}, {"user": ["ann"]}, {"batch": "1"}, {"topic": 7}, {"delta": 0}, {"time": None}])
def test_a_stage_that_says_what_none_says_is_none(wrong: dict[str, object]) -> None:
    disk = SimDisk()
    disk.mkdir(FOLDER)
    writer = StageWriter(disk, path_of("part"), pa.schema({"body": pa.binary()}), replace(SOUND, **wrong))  # type: ignore[arg-type]
    writer.add(pa.record_batch({"body": pa.array([b"x"])}))
    writer.finish(path_of("whole"))
    found = info_of(disk, path_of("whole"))
    if wrong:
        assert found is None
    else:
        assert found is not None
        assert {**asdict(found), "rows": 0, "bytes": 0, "crc": 0} == asdict(SOUND)
