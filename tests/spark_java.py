"""Java for Spark sessions of tests: quick to start, not meant to run for long.

Half of what a session costs until its first answer is the loading of classes.  `python -m spark_java` runs some queries
and leaves an archive of the classes that they took, which Java maps into memory the next time (class data sharing); it
takes it only with the same class path, so sessions of tests have one home and one folder of settings.  Without the
archive, or with one that does not fit, Java starts as ever.  `lightened` takes from a session of many small queries
what they would pay again and again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from choices import EFFORT
from flight_house import FlightHouse
from penstock import connect
from penstock.client import Client
from penstock.spark.sessions import QUIET, linked_home, session

FOLDER = Path(sys.prefix).resolve() / "spark-of-tests"
ARCHIVE = FOLDER / "classes.jsa"
LOGGING = FOLDER / "log4j2.properties"

LIGHT = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-XX:ReservedCodeCacheSize=256m -XX:-MethodFlushing "
    f"-Djdk.lang.Process.launchMechanism=VFORK -Dlog4j2.configurationFile={LOGGING}"
)
"""Options of a Java that starts with a quarter less work, and has room for all its code: in the usual 48 MiB
a thread looks for code to drop again and again, for 6 CPU seconds of a session with all tests."""


def home() -> Mapping[str, str]:
    """Where Spark and its settings are, for the environment.  The archive asks for an empty folder of settings."""
    made = FOLDER / "conf"
    made.mkdir(parents=True, exist_ok=True)
    for link in (FOLDER / "home").glob("*"):
        if not link.exists():  # of a PySpark that has gone
            link.unlink(missing_ok=True)
    return {"SPARK_HOME": str(linked_home(FOLDER)), "SPARK_CONF_DIR": str(made)}


def conf(java: str = "") -> dict[str, str]:
    """Settings of a session that starts quickly and has little to do.  java: other options than the archive's."""
    FOLDER.mkdir(exist_ok=True)
    LOGGING.write_text(QUIET)
    archive = f"-XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else ""
    return {
        "spark.driver.extraJavaOptions": f"{LIGHT} {java or archive}",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.ui.explainMode": "simple",  # how a query is told to a page that is off
    }


LOCAL = "org.apache.hadoop.fs.LocalOfTests"
FILES = """
package org.apache.hadoop.fs;

import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalOfTests extends LocalFileSystem {
    public LocalOfTests() {
        super(new Raw());
    }

    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws java.io.IOException {
            String nine = "" + permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
                + permission.getOtherAction().SYMBOL;
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(nine));
        }
    }
}
"""
"""Hadoop's files of this machine.  Without its native library Hadoop starts `chmod` for each file and folder: 2,500
processes of a session with all tests."""


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""A plan that is interpreted has the same rows as one that is compiled; for a few rows compiling takes longest."""


def lightened(spark: Any) -> Any:
    """The session, whose files get their permissions without processes, and which looks for a name of Java's once.

    py4j asks Java for each part of a name whenever it is said, and Java looks for a class of that name in 300 jars.
    What the session itself runs is interpreted, but in a hunt; pipelines have sessions of their own, and their own say.
    """
    from py4j.java_gateway import JavaPackage, JVMView

    for kind in (JVMView, JavaPackage):
        kind.__getattr__ = _kept(kind.__getattr__)
    java = spark.sparkContext._jvm
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.cook(FILES)
    handles, named = java.java.lang.invoke.MethodHandles, java.java.lang.Class.forName
    place = handles.privateLookupIn(named("org.apache.hadoop.fs.FileSystem"), handles.lookup())
    made = compiler.getBytecodes()
    for name in (f"{LOCAL}$Raw", LOCAL):
        place.defineClass(made[name])
    java.org.apache.hadoop.fs.FileSystem.closeAll()
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.file.impl", LOCAL)
    if EFFORT == 1:
        for name, value in INTERPRETED.items():
            spark.conf.set(name, value)
    return spark


def _kept(look: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def found(self: Any, name: str) -> Any:
        one = look(self, name)
        self.__dict__[name] = one
        return one

    return found


def light_java() -> dict[str, str]:
    """For the environment of a program that makes its own session, which then starts as quickly as those of tests.

    The Java that puts Spark's command together reads the options as well: it is not to say a word about the archive.
    """
    options = conf()["spark.driver.extraJavaOptions"]
    return {**home(), "JDK_JAVA_OPTIONS": f"{options} -Xlog:disable"}


def work(spark: Any, folder: Path) -> None:
    """What loads the classes that tests take: a batch read, a stream and a write."""
    with FlightHouse(folder / "server") as house, connect(house.url) as client:
        for queue in ("one", "two"):
            client.declare(queue)
        client.publish_table("one", pa.table({"body": [b'{"id": 1, "region": "EU"}'] * 9}))
        given = {"url": house.url, "queue": "one", "schema": "id BIGINT, region STRING"}
        read = spark.read.format("penstock").options(**given).load()
        assert read.groupBy("region").count().collect()[0][1] == 9
        stream = spark.readStream.format("penstock").options(**given, stream="s").load()
        writer = stream.dropDuplicates(["region"]).select("id").writeStream.format("penstock")
        writer = writer.options(url=house.url, topic="two", checkpointLocation=str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        assert client.queue("two")["ready"] == 1
        pipelines(spark, house, client, folder)


def pipelines(spark: Any, house: FlightHouse, client: Client, folder: Path) -> None:
    """What tests of pipelines take: rules, tables, sums, and their files read again.  A Java that runs one pipeline has
    an eighth less to do then.
    """
    from pipeline_lab import define, run  # drivers of tests load this module too
    from spark_lab import Lab

    lab = Lab(spark, house, client)
    read = {"from": {"queue": "some", "columns": "id BIGINT, region STRING, total DOUBLE"}}
    rules = [
        {"that": "id <> 3", "otherwise": "dead-letter", "topic": "odd"},
        {"that": "id <> 5", "otherwise": "drop", "fail_above": "50 %"},
    ]
    tables = [folder / "table", folder / "sums"]
    lab.declare("some")
    to = [{"table": str(tables[0]), "partition_by": ["region"]}, {"topic": "out"}]
    sums = "SELECT region, count(*) AS n FROM input GROUP BY region"
    for wanted in (
        define(name="a", **read, sql="SELECT id, region FROM input", to=to, expect=rules),
        define(name="b", **read, sql=sums, to=[{"table": str(tables[1])}]),
    ):
        lab.publish("some", range(20))
        run(lab, wanted, folder / "pipelines")
    for table in tables:
        assert lab.spark.read.parquet(f"file://{table}").select("region").distinct().count() == 2


def main() -> None:
    """Make the archive."""
    os.environ.update(home())
    part = ARCHIVE.with_suffix(".part")
    with TemporaryDirectory() as folder:
        spark = session("local[2]", memory="1g", conf=conf(f"-XX:ArchiveClassesAtExit={part} -Xlog:cds=off"))
        gateway = spark.sparkContext._gateway
        work(spark, Path(folder))
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(300)
    part.rename(ARCHIVE)


if __name__ == "__main__":
    main()
