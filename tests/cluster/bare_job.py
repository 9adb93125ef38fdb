"""A job on a cluster that knows nothing of Penstock: MASTER URL CHECKPOINT.  One line of JSON says what it found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from spark_cluster import CONF  # noqa: E402


def placed(batches):
    import pyarrow as pa

    for batch in batches:
        yield pa.record_batch({"node": pa.array([os.environ["PENSTOCK_NODE"]] * batch.num_rows)})


def main(master: str, url: str, checkpoint: str) -> None:
    builder = SparkSession.builder.master(master)
    for name, value in {"spark.ui.enabled": "false", "spark.log.level": "ERROR", **CONF}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        import penstock
    except ImportError:
        sys.path.insert(0, str(HERE.parents[2] / "src"))  # here, in the driver's own process, and nowhere else
    else:
        raise SystemExit("penstock is installed, and this job should show that it need not be")
    import penstock.spark
    from penstock.client import connect

    penstock.spark.install(spark)
    with connect(url) as client:
        client.declare("copied")
    # Parts of a batch read are of like width in LSNs, and what other tests have published lies in most of them.
    read = spark.read.format("penstock").options(url=url, topic="packed", minPartitions=64).load()
    nodes = {row.node for row in read.mapInArrow(placed, "node string").distinct().collect()}
    stream = spark.readStream.format("penstock").options(url=url, topic="packed", stream="copy", minPartitions=4)
    writer = stream.load().select("body").writeStream.format("penstock").options(url=url, queue="copied")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    streamed = sum(batch["numInputRows"] for batch in query.recentProgress)
    print(json.dumps({"read": read.count(), "streamed": streamed, "nodes": sorted(nodes)}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
