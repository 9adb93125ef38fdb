"""Audit and redrive as Spark jobs say and do what the commands say and do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.logfiles import archive_of, audit
from penstock.core.audit_histories import Report
from penstock.errors import InvalidArgument
from penstock.log.archive import archive_disk
from penstock.log.archive.file_writer import Form
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.rewrite_plan import Aims
from penstock.log.writer import LogSettings
from penstock.records.kinds import NO_ROUTE, Kind
from penstock.server.base.clock import SystemClock
from penstock.server.upkeep.offline import Limits, archive, compact
from penstock.spark import audits
from penstock.spark.audits import redrive
from spark_lab import Lab
from unit.cli.forging import Forger, Still, forged


def said(report: Report) -> tuple[dict[str, int], list[tuple[str, str, list[int]]]]:
    return report.counts, sorted((one.guarantee, one.text, one.lsns) for one in report.findings)


def test_an_audit_of_what_is_not_there_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(InvalidArgument, match=f"^{nowhere} is no data folder: it has no folder 'log'$"):
        audits.audit(None, nowhere)
    assert not nowhere.exists()
    (tmp_path / "log").mkdir()
    with pytest.raises(InvalidArgument, match=f"^{nowhere} is no archive: it has no manifest.json$"):
        audits.audit(None, tmp_path, archive=nowhere)


@pytest.mark.parametrize("seed", [3])
def test_an_audit_by_spark_is_the_local_one(seed: int, spark: Any, tmp_path: Path) -> None:
    local, _, planted = forged(tmp_path, seed)
    assert bool(local.findings) == planted
    assert said(audits.audit(spark, tmp_path, parts=3)) == said(local)


def test_an_audit_goes_back_to_the_beginning_with_the_archive(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Forger(tmp_path)
    made.grant(10, 20)
    made.about(Kind.SETTLE, 10, 20)
    for _ in range(40):
        made.messages(200, NO_ROUTE)
    log = Log.open(OsDisk(tmp_path), Still(), LogSettings(segment=1 << 16, ahead=0, reserve=0, origin=7))
    assert list(log.replay()) == []
    for entry in made.entries:
        log.append([entry])
        log.flush()
    log.close()
    before = audit(tmp_path)
    done = archive(OsDisk(tmp_path), archive_disk(str(tmp_path / "archive")), SystemClock(), Form(), lambda a, b: None)
    assert done["left"] == 0
    found = archive_of(str(tmp_path))
    assert found is not None
    limits = Limits(bytes=1, archive=found.manifest)
    assert compact(OsDisk(tmp_path), SystemClock(), limits, Aims(), lambda task, made: None)
    assert len(list((tmp_path / "log").glob("*.arrows"))) < before.counts["segments"]

    local = audit(tmp_path)
    assert local.counts["records publish"] == before.counts["records publish"]
    assert "audited from LSN" not in local.counts
    monkeypatch.setattr(audits, "SLICE", 20_000)
    assert len(audits.planned(str(tmp_path), None, 2).slices) > 2
    assert said(audits.audit(spark, tmp_path, parts=2)) == said(local)


def test_dead_letters_are_redriven_as_the_command_does_it(lab: Lab) -> None:
    for name in ("one", "two"):
        lab.declare(f"dead-{name}", f"dead-b-{name}")
        lab.declare(f"a-{name}", dead_letter_exchange="", dead_letter_routing_key=f"dead-{name}")
        lab.publish(f"a-{name}", range(300))
        consumer = lab.client.consume(f"a-{name}", backlog=300)
        for taken, message in enumerate(consumer, 1):
            message.reject()
            if taken == 300:
                break
        consumer.close()
    wanted = "/region = 'EU' AND /id > 20"
    local = lab.client.redrive("dead-one", filter=wanted, count=90)
    told: list[int] = []
    done = redrive(lab.spark, lab.house.url, "dead-two", filter=wanted, count=90, progress=told.append)
    assert done["moved"] == local["moved"] == 90
    assert done["matched"] == 90
    assert done["targets"] == {"a-two": 90}
    assert told[-1] == 90
    peeked = [[json.loads(m.body)["id"] for m in lab.client.peek(f"a-{n}", count=500)] for n in ("one", "two")]
    assert peeked[0] == peeked[1]
    assert lab.ids("dead-one") == lab.ids("dead-two")
    assert redrive(lab.spark, lab.house.url, "dead-two", dry_run=True)["matched"] == 210
    rest = redrive(lab.spark, lab.house.url, "dead-two")
    assert rest["moved"] == 210
    assert redrive(lab.spark, lab.house.url, "dead-two")["moved"] == 0
    assert lab.ids("a-two") == list(range(300))
    text = (Path(__file__).resolve().parents[2] / "docs" / "archive.md").read_text()
    page = dict[str, Any]()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, page)
    lab.declare("graveyard")
    assert page["jobs"](lab.spark, lab.house.url, str(lab.house.folder)) == 0
