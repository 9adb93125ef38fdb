"""A job that spark-submit starts, with Penstock neither on the executors nor beside the driver: URL CA CHECKPOINT.

The address is one of TLS, and has the password, which the driver alone sees.  One line of JSON says what it found.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

HERE = Path(__file__).resolve()
ENDS_S = 30
PATIENCE_S = 300.0


def placed(batches):
    import pyarrow as pa

    for batch in batches:
        yield pa.record_batch({"node": pa.array([os.environ["PENSTOCK_NODE"]] * batch.num_rows)})


def refusal(frame) -> str:
    """What the tasks of a frame fail with."""
    try:
        frame.count()
    except PySparkException as error:
        return next(line for line in str(error).splitlines() if "penstock.errors." in line)
    raise SystemExit("the frame was read")


def main(url: str, ca: str, checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()  # master and settings are spark-submit's
    try:
        import penstock
    except ImportError:
        sys.path.insert(0, str(HERE.parents[2] / "src"))  # here, in the driver's own process, and nowhere else
    else:
        raise SystemExit("penstock is installed, and this job should show that it need not be")
    import penstock.spark
    from penstock.client import connect

    penstock.spark.install(spark)
    login = f"{url}?ca={ca}"
    with connect(login) as client:
        client.declare("copied-by-token")
        token = penstock.spark.token(login, read="sent", write="copied-by-token", lasts=ENDS_S)
        assert "guest" not in str(token.options)
        options = {**token.options, "url": token.options["url"].partition("?")[0], "ca": ca}
        frame = spark.read.format("penstock").options(**options, topic="sent", minPartitions=16).load()
        nodes = {row.node for row in frame.mapInArrow(placed, "node string").distinct().collect()}
        stream = spark.readStream.format("penstock").options(**options, topic="sent", stream="copy", minPartitions=4)
        writer = stream.load().select("body").writeStream.format("penstock").options(**options, queue="copied-by-token")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        found = {"read": frame.count(), "nodes": sorted(nodes)}
        untrusted = spark.read.format("penstock").options(**token.options, topic="sent", patience="1s")
        found["untrusted"] = refusal(untrusted.option("url", options["url"]).load())
        other = spark.read.format("penstock").options(**options, topic="other", patience="1s").load()
        found["other"] = refusal(other)
        token._ended.set()  # as when the driver is gone: nobody renews it any more
        until = time.monotonic() + PATIENCE_S
        while client.tokens() and time.monotonic() < until:
            time.sleep(0.5)
        found["ended"] = refusal(frame)  # planned while it lasted: the tasks are refused
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
