"""Makes the archive of Spark's classes, once on a machine: `python -m penstock.spark.class_archive`.

What is archived is what a small job loads: queries of streams with SQL, sums, windows and Python between them.

`penstock up` runs it with `--beside` (`cli.supervisor`): its own work goes first, the kernel that has no memory
left ends this process before any other, and whoever started it is gone when the standard input ends.

One process makes it at a time.  A cache folder has the archives that were used last (`ARCHIVES_MOST`), as each update
of Java or PySpark makes another one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from penstock.spark import sessions
from penstock.spark.sessions import SILENT, ClassArchive

END_S = 600.0
"""How long Java may take to write it when it ends."""


ROOM_BYTES = 2**30
"""What has to be free where it is put: an archive takes 180 MB, and what Spark writes meanwhile some more."""

ARCHIVES_MOST = 3

WORK, WORK_S = "penstock-classes-", 86_400.0
"""Of the folder that a run has for its files, and how old one is whose run was killed."""


def made(java: str) -> ClassArchive:
    """Make the archive of this Java, or leave the one that is there.

    OSError where another process makes it, or there is no room for it.
    """
    archive = ClassArchive.of(java)
    archive.folder.mkdir(parents=True, exist_ok=True)
    with (archive.folder / "making.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BlockingIOError(f"another process makes {archive.file}") from None
        forget_old(archive)
        if not archive.is_usable():
            make(archive)
    return archive


def forget_old(present: ClassArchive) -> None:
    """Remove the archives of one cache folder that were not used for longest, and what broken runs have left."""
    for path in present.folder.glob("classes-*.part"):
        path.unlink(missing_ok=True)
    for path in Path(gettempdir()).glob(f"{WORK}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > WORK_S:
                shutil.rmtree(path, ignore_errors=True)
    others = [one for one in map(ClassArchive, present.folder.parent.glob("spark-*")) if one != present]
    for old in sorted(others, key=_used, reverse=True)[ARCHIVES_MOST - 1 :]:
        shutil.rmtree(old.folder, ignore_errors=True)


def _used(archive: ClassArchive) -> float:
    """When a session has taken it, or it was made; 0 where it never came to be."""
    with suppress(OSError):
        return archive.file.stat().st_mtime
    return 0.0


def make(archive: ClassArchive) -> None:
    """Run a small job whose Java writes what it has loaded as it ends.  OSError where there is no room for that."""
    if (free := shutil.disk_usage(archive.folder).free) < ROOM_BYTES:
        raise OSError(f"{archive.folder} has {free >> 20} MiB free, and {ROOM_BYTES >> 20} MiB are needed")
    archive.settings.mkdir(exist_ok=True)
    part = archive.folder / f"classes-{os.getpid()}.part"
    with TemporaryDirectory(prefix=WORK) as folder:
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
    with part.open("rb") as file:  # Java does not end well with one that a power cut has cut short
        os.fsync(file.fileno())
    part.rename(archive.file)


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


def step_back() -> None:
    """Leave cores and memory to others, and end with the process that waits for this one."""
    os.nice(9)  # beside the ten of `main`
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # of Linux; Java has it from here

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.killpg(0, signal.SIGKILL)  # a Java that is asked to end writes its archive first

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: Sequence[str] = sys.argv[1:]) -> int:
    """Make it, and say where it is."""
    os.nice(10)
    if "--beside" in arguments:
        step_back()
    try:
        archive = made(sessions.find_java())
    except OSError as error:
        sys.stderr.write(f"penstock: the archive of Spark's classes is not made: {error}\n")
        return 1
    sys.stdout.write(f"{archive.file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
