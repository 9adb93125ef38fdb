"""Makes the archive of Spark's classes, once on a machine: `python -m penstock.spark.class_archive`.

What is archived is what a small job loads: queries of streams with SQL, sums, windows and Python between them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.spark import sessions
from penstock.spark.sessions import SILENT, ClassArchive

END_S = 600.0
"""How long Java may take to write it when it ends."""


def made(java: str) -> ClassArchive:
    """Make the archive of this Java, or leave the one that is there.  OSError where there is no room for it."""
    archive = ClassArchive.of(java)
    if archive.is_usable():
        return archive
    archive.settings.mkdir(parents=True, exist_ok=True)
    part = archive.folder / f"classes-{os.getpid()}.part"
    with TemporaryDirectory() as folder:
        logging = Path(folder) / "log4j2.properties"
        logging.write_text(sessions.QUIET)
        home = sessions.linked_home(archive.folder)
        os.environ.update({"SPARK_HOME": str(home), "SPARK_CONF_DIR": str(archive.settings)})
        options = f"-XX:ArchiveClassesAtExit={part} {SILENT} -Dlog4j2.configurationFile={logging}"
        conf = {"spark.driver.extraJavaOptions": options, "spark.sql.shuffle.partitions": "1"}
        spark = sessions.session("local[2]", memory="512m", folder=folder, conf=conf)
        try:
            work(spark, Path(folder))
        finally:
            gateway = spark.sparkContext._gateway
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(END_S)
    part.rename(archive.file)
    return archive


def work(spark: Any, folder: Path) -> None:
    """What loads the classes that pipelines take."""
    from pyspark.sql import functions
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

    class Reader(DataSourceReader, DataSourceStreamReader):  # type: ignore[misc]  # pyspark is untyped here
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"n": 0}

        def latestOffset(self) -> dict[str, int]:  # noqa: N802  # pyright: ignore[reportIncompatibleMethodOverride]
            return {"n": 9}

        def partitions(self, *offsets: object) -> list[InputPartition]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
            return iter([(n, f"2026-11-20 08:0{n}:00") for n in range(9)])

    class Numbers(DataSource):  # type: ignore[misc]  # pyspark is untyped here
        @classmethod
        def name(cls) -> str:
            return "penstock_numbers"

        def schema(self) -> str:
            return "id bigint, said string"

        def reader(self, schema: object) -> Reader:
            return Reader()

        def streamReader(self, schema: object) -> Reader:  # noqa: N802 - Spark's name
            return Reader()

    def passed(rows: Any) -> Any:
        return rows

    def taken(batch: Any, number: int) -> None:
        batch.mapInArrow(passed, batch.schema).collect()

    def ran(frame: Any, mode: str) -> None:
        writer = frame.writeStream.outputMode(mode).foreachBatch(taken)
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{mode}"))
        writer.trigger(availableNow=True).start().awaitTermination()

    spark.dataSource.register(Numbers)
    spark.read.format("penstock_numbers").load().groupBy("said").count().collect()
    stream = spark.readStream.format("penstock_numbers").load().withColumn("at", functions.expr("to_timestamp(said)"))
    stream = stream.observe("rows", functions.count(functions.lit(1)).alias("n"))
    stream.withWatermark("at", "10 minutes").createOrReplaceTempView("input")
    chosen = "SELECT id, round(id * 1.19, 2) AS gross, lower(said) AS said, CASE WHEN id > 5 THEN 'a' ELSE 'b' END AS r"
    ran(spark.sql(f"{chosen} FROM input WHERE id >= 0"), "append")
    ran(
        spark.sql("SELECT id % 2 AS k, count(*), sum(id), avg(id) FROM input GROUP BY id % 2"),
        "complete",
    )
    ran(spark.sql("SELECT window.start AS t, count(*) AS n FROM input GROUP BY window(at, '1 hour')"), "update")


def main() -> None:
    """Make it, and say where it is."""
    os.nice(10)
    sys.stdout.write(f"{made(sessions.find_java()).file}\n")


if __name__ == "__main__":
    main()
