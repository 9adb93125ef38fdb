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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    (tmp_path / "penstock.toml").write_text(CONFIG)
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
