"""Spark reads the log and its archive as one: what retention has taken out of the log, and what came since.

Written by the sink, archived by the server when segments close, read by files and by Flight, and streamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from conformance.test_archive_live import CONFIG, command, url
from live_server import LiveServer

MANY = 3_000
"""Rows of 300 bytes."""

PIECES = 3
"""Each more than a segment of 256 KiB holds."""

SINCE = 100
"""Rows that lie in the log alone."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    (tmp_path / "penstock.toml").write_text(CONFIG.replace('"64KiB"', '"256KiB"'))
    with LiveServer(tmp_path / "one", [str(tmp_path / "penstock.toml")], flight=True) as made:
        yield made


def test_batch_and_stream_go_through_the_archive_into_the_log(spark: Any, server: LiveServer, tmp_path: Path) -> None:
    wanted = spark.range(MANY + SINCE).selectExpr("id", "repeat(sha2(cast(id AS string), 256), 4) AS more")
    rows = sorted(map(tuple, wanted.collect()))
    with penstock.connect(url(server)) as client:
        client.declare("copied")

        def write(rows: str) -> None:
            piece = wanted.where(rows).repartition(2)
            piece.write.format("penstock").options(url=url(server), queue="work").mode("append").save()

        for part in range(PIECES):  # what is committed together lies in one segment
            write(f"id < {MANY} AND id % {PIECES} = {part}")
        client.purge("work")
        assert command("log", "archive", "--url", url(server))["left"] == 0
        segments = command("log", "ls", "--url", url(server))
        assert len([one for one in segments if one["archived"]]) >= PIECES, segments
        client.action("compact", with_vhost=False, dry_run=False)
        place = client.action("position", with_vhost=False, bookmark="EPOCH")
        assert place["first"] == 1
        assert place["whole_from"] > MANY * 2 // 3, "the log alone has lost most of it"
        write(f"id >= {MANY}")

        columns = "id bigint, more string"
        read = spark.read.format("penstock").options(url=url(server), topic="work", schema=columns, minPartitions=4)
        for direct in ("true", "false"):
            found = read.option("direct", direct).load().select("id", "more")
            assert sorted(map(tuple, found.collect())) == rows, direct
        filtered = read.option("direct", "auto").option("filter", "/id < 40").load()
        assert sorted(row.id for row in filtered.select("id").collect()) == list(range(40))

        stream = spark.readStream.format("penstock").options(url=url(server), topic="work", schema=columns)
        stream = stream.options(stream="past", startingBookmark="EPOCH", maxRowsPerTrigger=MANY * 3 // 10).load()
        writer = stream.select("id").writeStream.format("penstock").options(url=url(server), queue="copied")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        assert sum(batch["numInputRows"] > 0 for batch in query.recentProgress) >= 4
        copies = spark.read.format("penstock").options(url=url(server), queue="copied", schema="id bigint").load()
        assert sorted(row.id for row in copies.select("id").collect()) == list(range(MANY + SINCE))
