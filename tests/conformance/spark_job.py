"""A job for any PySpark that is supported: URL CHECKPOINTS.  One line of JSON says what it saw."""

from __future__ import annotations

import json
import sys
from typing import Any

import pyspark

from penstock.client import connect
from penstock.spark import session
from spark_java import conf

ROWS = 500


def main(url: str, folder: str) -> None:
    """Batch read, a queue worked off into the sink, a topic followed in two runs."""
    spark = session("local[2]", memory="512m", conf=conf())

    def stream(**options: object) -> Any:
        return spark.readStream.format("penstock").options(url=url, schema="id bigint", **options).load().select("id")

    def write(frame: Any, name: str, **options: object) -> int:
        writer = frame.writeStream.format("penstock").options(url=url, **options)
        query = writer.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(batch["numInputRows"] for batch in query.recentProgress)

    read = spark.read.format("penstock").options(url=url, topic="jobs", schema="id bigint").load()
    told: dict[str, object] = {"version": pyspark.__version__, "sum": read.selectExpr("sum(id)").first()[0]}
    told["queue"] = write(stream(queue="jobs", stream="worker", maxRowsPerTrigger=200), "a", queue="done")
    told["log"] = write(stream(topic="jobs", stream="reader", maxRowsPerTrigger=200), "b", queue="copied")
    with connect(url) as client:
        client.publish("jobs", {"id": ROWS})
    told["again"] = write(stream(topic="jobs", stream="reader"), "b", queue="copied")
    spark.range(3).write.format("penstock").options(url=url, queue="written").mode("append").save()
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
