"""Spark reads the log and its archive as one: what retention has taken out of the log, and what came since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from conformance.test_archive_live import CONFIG, command, publish, url
from live_server import LiveServer

ROWS = 1_500

MANY = 8_000
"""Rows of 300 bytes."""

PIECES = 6
"""Each more than a segment of 256 KiB holds."""


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveServer]:
    segment = getattr(request, "param", "64KiB")
    (tmp_path / "penstock.toml").write_text(CONFIG.replace('"64KiB"', f'"{segment}"'))
    with LiveServer(tmp_path / "one", [str(tmp_path / "penstock.toml")], flight=True) as made:
        yield made


def test_batch_and_stream_go_through_the_archive_into_the_log(spark: Any, server: LiveServer, tmp_path: Path) -> None:
    with penstock.connect(url(server)) as client:
        client.declare("copied")
        for start in range(0, ROWS, 100):
            publish(client, "work", start, 100)
        client.purge("work")
        assert command("log", "archive", "--url", url(server))["left"] == 0
        client.action("compact", with_vhost=False, dry_run=False)
        place = client.action("position", with_vhost=False, bookmark="EPOCH")
        assert place["first"] == 1
        assert place["whole_from"] > ROWS // 2  # the log alone has lost the beginning
        publish(client, "work", ROWS, 100)
        wanted = list(range(ROWS + 100))

        read = spark.read.format("penstock").options(url=url(server), topic="work", schema="id bigint", minPartitions=3)
        for direct in ("true", "false"):
            found = [row.id for row in read.option("direct", direct).load().orderBy("lsn").select("id").collect()]
            assert found == wanted, direct
        filtered = read.option("direct", "auto").option("filter", "/id < 40").load()
        assert sorted(row.id for row in filtered.select("id").collect()) == wanted[:40]

        stream = spark.readStream.format("penstock").options(url=url(server), topic="work", schema="id bigint")
        stream = stream.options(stream="past", startingBookmark="EPOCH", maxRowsPerTrigger=900).load()
        writer = stream.select("id").writeStream.format("penstock").options(url=url(server), queue="copied")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        assert sum(batch["numInputRows"] > 0 for batch in query.recentProgress) > 1
        copied = [json.loads(message.body)["id"] for message in client.peek("copied", count=2 * ROWS)]
        assert copied == wanted


@pytest.mark.parametrize("server", ["256KiB"], indirect=True)
def test_what_spark_writes_closes_segments_and_is_read_from_their_files(
    spark: Any, server: LiveServer, tmp_path: Path
) -> None:
    """Written by the sink, archived by the server when segments close, read by files and by Flight, and streamed."""
    wanted = spark.range(MANY).selectExpr("id", "repeat(sha2(cast(id AS string), 256), 4) AS more")
    with penstock.connect(url(server)) as client:
        client.declare("copied")
        for part in range(PIECES):  # what is committed together lies in one segment
            piece = wanted.where(f"id % {PIECES} = {part}").repartition(2)
            piece.write.format("penstock").options(url=url(server), queue="work").mode("append").save()
        client.purge("work")
        assert command("log", "archive", "--url", url(server))["left"] == 0
        segments = command("log", "ls", "--url", url(server))
        assert len([one for one in segments if one["archived"]]) >= PIECES, segments
        client.action("compact", with_vhost=False, dry_run=False)
        place = client.action("position", with_vhost=False, bookmark="EPOCH")
        assert place["first"] == 1
        assert place["whole_from"] > MANY * 3 // 4, "the log alone has lost most of it"

        columns = "id bigint, more string"
        read = spark.read.format("penstock").options(url=url(server), topic="work", schema=columns, minPartitions=4)
        for direct in ("true", "false"):
            found = read.option("direct", direct).load().select("id", "more")
            assert found.count() == MANY, direct
            assert found.exceptAll(wanted).count() == 0, direct

        stream = spark.readStream.format("penstock").options(url=url(server), topic="work", schema=columns)
        stream = stream.options(stream="past", startingBookmark="EPOCH", maxRowsPerTrigger=2_400).load()
        writer = stream.select("id").writeStream.format("penstock").options(url=url(server), queue="copied")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        assert sum(batch["numInputRows"] > 0 for batch in query.recentProgress) >= 4
        copies = spark.read.format("penstock").options(url=url(server), queue="copied", schema="id bigint").load()
        assert sorted(row.id for row in copies.select("id").collect()) == list(range(MANY))
