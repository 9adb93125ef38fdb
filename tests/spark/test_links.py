"""A linked topic at another site than the one where it was published: Spark reads it there as anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sites.house import Sites, publish
from waiting import eventually


def test_spark_reads_a_linked_topic_of_any_site(spark: Any, tmp_path: Path) -> None:
    with Sites(tmp_path) as sites:
        sites.linked()
        publish(sites["a"], b"one", b"two")
        publish(sites["b"], b"three")
        for site in sites:
            eventually(lambda site=site: site.waiting() == 3)  # type: ignore[misc]
            topic = spark.read.format("penstock").option("url", site.url).option("topic", "work")
            found = list[bytes]()

            def whole(topic: Any = topic, found: list[bytes] = found) -> bool:
                """A read shows what is on the site's disk by then, which is later than that it waits."""
                found[:] = sorted(bytes(row.body) for row in topic.load().collect())
                return len(found) == 3

            eventually(whole, lambda found=found: f"{found}")  # type: ignore[misc]
            assert found == [b"one", b"three", b"two"]
            states = spark.read.format("penstock").option("url", site.url).option("queue", "work")
            told = {row.state for row in states.option("states", "ready,foreign").load().select("state").collect()}
            assert told == {"ready", "foreign"}
