"""A query that a test kills: what waits in `work`, rows of even and odd ids to topics of their own, until it is empty.

python sink_driver.py URL CHECKPOINT
"""

from __future__ import annotations

import sys
from typing import Any

from penstock.spark import session
from spark_java import conf

COLUMNS = "id bigint, region string, total double"


def start(spark: Any, url: str, checkpoint: str, *, stays: bool = False) -> Any:
    """The query, started; it ends when everything was taken, or stays for more."""
    source = spark.readStream.format("penstock").option("url", url)
    frame = source.options(queue="work", stream="killed", schema=COLUMNS, maxRowsPerTrigger=80).load()
    rows = frame.selectExpr("id", "if(id % 2 = 0, 'even', 'odd') AS topic").repartition(2)
    writer = rows.writeStream.queryName("parity").format("penstock").option("url", url).option("ordered", "id")
    writer = writer.option("checkpointLocation", checkpoint)
    return (writer.trigger(processingTime="0 seconds") if stays else writer.trigger(availableNow=True)).start()


if __name__ == "__main__":
    made = session("local[2]", memory="512m", conf=conf())
    start(made, sys.argv[1], sys.argv[2]).awaitTermination()
    made.stop()
