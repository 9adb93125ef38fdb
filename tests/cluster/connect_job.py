"""A job through Spark Connect: URL CHECKPOINT.  One line of JSON says what it found."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(url: str, checkpoint: str) -> None:
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
    orders = spark.read.format("penstock").options(url=url, topic="connected", schema="id bigint").load()
    found = sorted(row.id for row in orders.select("id").collect())
    stream = spark.readStream.format("penstock").options(url=url, queue="connected", stream="connect")
    writer = stream.option("schema", "id bigint").load().select("id").writeStream.format("penstock").option("url", url)
    writer = writer.option("queue", "connect-out").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.range(2).selectExpr("id + 100 AS id").write.format("penstock").options(url=url, queue="connect-out").mode(
        "append"
    ).save()
    print(json.dumps({"kind": type(spark).__module__, "read": found}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
