"""An archive of the classes that Spark loads: `python -m penstock.spark.class_archive` makes it, once on a machine.

Half of what a session costs until its first answer is the loading of classes.  Java maps an archive of them into memory
instead (class data sharing).  It takes it only with the class path that the archive was made with, in which no folder
has a file, so sessions that use it have one home of Spark's and one empty folder of settings, which lie beside it in
the user's cache folder.  An archive that is not there, or that Java does not take, changes nothing: classes are loaded
as ever.  That of another Java or PySpark has another place.

What is archived is what a small job loads: queries of streams with SQL, sums, windows and Python between them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.records.dataclass import dataclass

SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Of an archive that it does not take Java says a word for each reason, and goes on without."""

END_S = 600.0
"""How long Java may take to write it when it ends."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one Java and one PySpark."""

    folder: Path

    @classmethod
    def of(cls, java: str, environ: Mapping[str, str] = os.environ) -> ClassArchive:
        """java: the program, as it is found."""
        import pyspark

        program, spark = Path(java).resolve(), Path(pyspark.__file__).resolve().parent
        name = repr((str(program), program.stat().st_mtime_ns, str(spark), pyspark.__version__, sys.executable))
        cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(cache / "penstock" / f"spark-{sha256(name.encode()).hexdigest()[:16]}")

    @property
    def file(self) -> Path:
        return self.folder / "classes.jsa"

    @property
    def settings(self) -> Path:
        """The empty folder of settings."""
        return self.folder / "conf"

    def is_usable(self) -> bool:
        """Whether it is there, with all that Java asks for."""
        try:
            return self.file.is_file() and (self.folder / "home" / "jars").is_dir() and not any(self.settings.iterdir())
        except OSError:
            return False

    def options(self, logging: Path) -> str:
        """Of a Java that takes it.  logging: the file that says what is logged, which may not be on the class path."""
        return f"-XX:SharedArchiveFile={self.file} {SILENT} -Dlog4j2.configurationFile={logging}"


def made(java: str) -> ClassArchive:
    """Make the archive of this Java, or leave the one that is there.  OSError where there is no room for it."""
    from penstock.spark import sessions

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

        def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"n": 9}

        def partitions(self, *offsets: object) -> list[InputPartition]:
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

    def ran(frame: Any, mode: str) -> None:
        writer = frame.writeStream.outputMode(mode).foreachBatch(
            lambda batch, number: batch.mapInArrow(lambda rows: rows, batch.schema).collect()
        )
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
    from penstock.spark.sessions import find_java

    os.nice(10)
    sys.stdout.write(f"{made(find_java()).file}\n")


if __name__ == "__main__":
    main()
