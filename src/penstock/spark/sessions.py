"""Spark sessions: their Java, one that is set up well for one machine, and how a session learns of the format.

What a session needs on disk (links that make Python workers start faster, a quiet logging configuration, sockets,
scratch files) lies in one folder that goes when the process ends.

A session on one machine shares its few cores with Java's second compiler, which takes up what has run a few thousand
times, as if it were to run for days.  It is told to wait for twenty times as many (`LATER`).

On one machine Java and its Python processes talk over Unix sockets.  Over TCP a task waits 40 ms before its first row:
Java writes what the task is in two pieces, and keeps the second until it hears, as late as TCP may say so, that the
first has come.

Half of what a session costs until its first answer is the loading of classes.  Java maps an archive of them into memory
instead (class data sharing).  It takes it only with the class path that the archive was made with, in which no folder
has a file, so sessions that use it have one home of Spark's and one empty folder of settings, which lie beside it in
the user's cache folder.  An archive that is not there, or that Java does not take, changes nothing: classes are loaded
as ever.  That of another Java or PySpark has another place.

Where the package is not installed on executors, `install` sends it.  Spark copies files that a session adds into a
folder on each machine, which tasks have on their path.  So the package travels as two files: a zip of it, and a module
of its name that finds its submodules in the zip.  Not all Python processes beside the driver look there, those of
streams do not; they are told where the files were made.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from penstock.errors import SettingsError
from penstock.records.dataclass import dataclass
from penstock.spark.fork_server import SparkPython, forked_from, is_chosen
from penstock.units import wrong_master

SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Of an archive that it does not take Java says a word for each reason, and goes on without."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one Java and one PySpark, as their files are: Java takes none of other jars."""

    folder: Path

    @classmethod
    def of(cls, java: str, environ: Mapping[str, str] = os.environ) -> ClassArchive:
        """java: the program, as it is found."""
        import pyspark

        program, spark = Path(java).resolve(), Path(pyspark.__file__).resolve().parent
        files = [(jar.name, jar.stat()) for jar in sorted((spark / "jars").glob("*.jar"))]
        jars = [(name, one.st_size, one.st_mtime_ns) for name, one in files]
        name = repr((str(program), program.stat().st_mtime_ns, str(spark), pyspark.__version__, sys.executable, jars))
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

    def note_use(self) -> None:
        """Those that were used last are kept."""
        with suppress(OSError):  # it may be somebody else's
            os.utime(self.file)

    def options(self, logging: Path) -> str:
        """Of a Java that takes it.  logging: the file that says what is logged, which may not be on the class path."""
        return f"{self.taking} {SILENT} -Dlog4j2.configurationFile={logging}"

    @property
    def taking(self) -> str:
        """The option that has Java take it."""
        return f"-XX:SharedArchiveFile={self.file}"


CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""As safe on a local disk as Spark's default, and 70 ms a batch faster: the default starts a process for each file."""

QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n
"""


LATER = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=12000 "
    "-XX:Tier4CompileThreshold=300000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Options of Java: what is called for each row of a batch comes to so many within a second, and to little else does.

On two cores nine small pipelines have their first results after 13.6 s and 23 s of CPU instead of 15.5 and 28, and a
warm session reads 12.8 million rows a second of Parquet instead of 10.7, 6.2 of typed JSON instead of 4.9."""

SOCKETS, SOCKETS_FOLDER = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"

FOLDER_MOST = 60
"""Bytes of the path of a folder with sockets, whose own paths may have 107."""


def local_sockets(scratch: Path) -> dict[str, str]:
    """Settings of a session on this machine whose Python processes talk over Unix sockets; none where they cannot.

    Who may connect may have code run, so their folder is the user's alone.
    """
    folder = scratch / "sockets"
    if not hasattr(socket, "AF_UNIX") or len(os.fsencode(folder)) > FOLDER_MOST:
        return {}
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    return {SOCKETS: "true", SOCKETS_FOLDER: str(folder), "spark.python.daemon.module": "penstock.spark.executor"}


def defaults(master: str, memory: str) -> dict[str, str]:
    """Settings of a session; the caller's own win."""
    conf = {
        "spark.master": master,
        "spark.app.name": "penstock",
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # else INT96: who reads it in ns has other years
        "spark.sql.shuffle.partitions": str(max(2, min(8, os.cpu_count() or 2))),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
    }
    if master.startswith("local"):
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        conf["spark.driver.defaultJavaOptions"] = LATER
    return conf


def session(
    master: str = "local[*]",
    *,
    memory: str = "2g",
    folder: str | Path | None = None,
    conf: dict[str, str] | None = None,
) -> Any:
    """A Spark session with `format("penstock")`.

    `folder` keeps scratch files (default: a temporary one that goes with the process); `conf` overrides any setting.
    Errors: SettingsError without Java 17, and where Spark does not begin; ImportError without pyspark.
    """
    if why := wrong_master((conf or {}).get("spark.master", master)):
        raise SettingsError(why)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(
            "penstock.spark needs pyspark: pip install 'penstock[spark]', and Java 17 beside it"
        ) from error
    java = find_java()
    scratch = _scratch(folder)
    places = {"spark.local.dir": str(scratch / "scratch")}
    if folder is not None:  # else where Spark itself puts it, for who makes tables
        places["spark.sql.warehouse.dir"] = str(scratch / "warehouse")
    wanted = defaults(master, memory) | places | (conf or {})
    sockets = local_sockets(scratch) if wanted["spark.master"].startswith("local") else {}
    wanted = sockets | wanted
    if archive := _archive(java, wanted):
        archive.note_use()
        wanted[JAVA_OPTIONS] = f"{archive.options(_logging(scratch))} {wanted.get(JAVA_OPTIONS, '')}".rstrip()
        os.environ |= {"SPARK_HOME": str(archive.folder / "home"), "SPARK_CONF_DIR": str(archive.settings)}
    prepare(scratch, wanted["spark.master"])
    builder: Any = SparkSession.builder
    for name, value in wanted.items():
        builder = builder.config(name, value)
    may_fork = sockets and sys.platform == "linux" and not is_chosen(wanted)
    with forked_from(SparkPython.of(Path(sockets[SOCKETS_FOLDER]), wanted) if may_fork else None):
        if archive:
            return _begun_with(archive, builder, wanted)
        return _begun(builder, wanted["spark.master"])


def _begun_with(archive: ClassArchive, builder: Any, wanted: Mapping[str, str]) -> Any:
    """A session that takes the archive.  One that Java dies of goes, and the session begins without it.

    Java maps a file that is shorter than it says, and is ended by the system when it reads on.
    """
    from pyspark import SparkContext

    gateways: Any = SparkContext
    try:
        return _begun(builder, wanted["spark.master"])
    except SettingsError:
        if gateways._gateway is not None:  # Java runs
            raise
    aside = archive.file.with_suffix(".aside")
    with suppress(OSError):  # another session has done so
        archive.file.rename(aside)
    others = wanted[JAVA_OPTIONS].replace(archive.taking, "").strip()
    try:
        begun = _begun(builder.config(JAVA_OPTIONS, others), wanted["spark.master"])
    except SettingsError:
        with suppress(OSError):  # it was not to blame
            aside.rename(archive.file)
        raise
    aside.unlink(missing_ok=True)
    return begun


def _begun(builder: Any, master: str) -> Any:
    """The session.  SettingsError with Spark's own sentence where it does not begin."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise SettingsError(f"Spark does not begin with the master {master!r}: {_cause(error)}") from None


def _cause(error: Exception) -> str:
    """What Spark says of itself that is any use: its Java has printed the rest."""
    text = str(getattr(error, "java_exception", ""))
    if "stopped SparkContext" in text:
        return "no such master answers, or it has sent the session away"
    first = text.partition("\n")[0].rpartition("Exception: ")[2]
    return first or "its Java has ended; what it said is above"


JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def takes_archive(conf: Mapping[str, str]) -> bool:
    """Whether a session of these settings is one on this machine whose home and settings nobody has chosen."""
    chosen = {"SPARK_HOME", "SPARK_CONF_DIR", "SPARK_CLASSPATH"}.intersection(os.environ)
    return not chosen and conf["spark.master"].startswith("local") and "spark.driver.extraClassPath" not in conf


def _archive(java: str, wanted: Mapping[str, str]) -> ClassArchive | None:
    """The archive of classes for a session of these settings."""
    if not takes_archive(wanted):
        return None
    archive = ClassArchive.of(java)
    return archive if archive.is_usable() else None


def _scratch(folder: str | Path | None) -> Path:
    if folder is not None:
        path = Path(folder).absolute()
        path.mkdir(parents=True, exist_ok=True)
        return path
    path = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def prepare(scratch: Path, master: str) -> None:
    """Environment of the Java process that is about to start; what the user has set stays."""
    environ = os.environ
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if "SPARK_HOME" not in environ:
            environ["SPARK_HOME"] = str(linked_home(scratch))
    if "SPARK_CONF_DIR" not in environ:
        folder = scratch / "conf"
        _logging(scratch)
        environ["SPARK_CONF_DIR"] = str(folder)
    # Python workers find our packages where this process found them.
    source = str(Path(__file__).resolve().parents[__name__.count(".")])
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if source not in paths:
        environ["PYTHONPATH"] = os.pathsep.join([source, *paths])


def _logging(scratch: Path) -> Path:
    """The file that says that nothing but errors is logged."""
    file = scratch / "conf" / "log4j2.properties"
    file.parent.mkdir(exist_ok=True)
    file.write_text(QUIET)
    return file


def linked_home(scratch: Path) -> Path:
    """A SPARK_HOME of links without `python/lib`: workers then import pyspark from where it is installed, compiled.

    From the zip in there each new worker would compile it anew, which costs a second each.  Only for workers on this
    machine, which run this same Python.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    if not (installed / "jars").is_dir():  # a thin client, or a Spark that was installed otherwise
        return installed
    home = scratch / "home"
    home.mkdir(exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        link = home / name
        if not link.is_symlink() and (installed / name).exists():
            link.symlink_to(installed / name)
    return home


def register(spark: Any) -> None:
    """Tell a session of the format, and the calling thread of the session.

    Needed where Spark does not find the format by itself, and in each thread but the one that made the session: for a
    write, and the start of a stream, Spark (4.3) looks for formats in Python in the session that is active in the
    thread, and says `DATA_SOURCE_NOT_FOUND` where none is.
    """
    from penstock.spark.source import PenstockSource

    spark.dataSource.register(PenstockSource)
    if hasattr(spark, "_jsparkSession"):  # Spark Connect knows no threads
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def apart(spark: Any) -> Any:
    """A session of the same Spark, for one streaming query, in which the format is its own.

    Spark notes what it gives to the Python process of a stream in a map that all streams of the format share, as the
    format is found by its name, and each writes there when it begins, in a thread of its own.  When two do so at once
    the map breaks, and no query of the session runs ever again ("Illegal size 5 of collection, expected 7").  A format
    that was registered has a map of its own.
    """
    session = spark.newSession()
    register(session)
    return session


NEEDED = 17

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java() -> str:
    """The program `java` that Spark will take: of JAVA_HOME, else on the path.

    Raises SettingsError with what to install where there is none, or one too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    advice = f"install Java {NEEDED} or newer (on Debian: apt-get install openjdk-17-jre-headless)"
    if java is None:
        where = f"JAVA_HOME is {home} and has no bin/java" if home else "there is no java on the path"
        raise SettingsError(f"Spark needs Java, and {where}: {advice}")
    try:
        version = java_version(java)
    except OSError as error:
        raise SettingsError(
            f"Spark needs Java, and {java} does not run: {advice}; it says: {error.strerror or error}"
        ) from None
    if version < NEEDED:
        raise SettingsError(
            f"Spark needs Java {NEEDED}, and {java} is Java {version}: {advice}, or set JAVA_HOME to one"
        )
    return java


def java_version(java: str) -> int:
    """The feature version that a `java` says it is.  Raises OSError with its words when it does not run."""
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"nothing for {error.timeout:.0f} seconds") from None
    said = asked.stderr + asked.stdout
    match = _VERSION.search(said)
    if match is None:
        lines = [line for line in said.splitlines() if line.strip()]
        raise OSError(" ".join(lines[:3])[:300] or f"nothing, and ends with {asked.returncode}")
    first, second = int(match[1]), match[2]
    return int(second) if first == 1 and second else first


NAME = "penstock"

FINDER = f"""
import os as _os

__path__ = [_os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "{NAME}.zip", "{NAME}")]
"""


def install(spark: Any) -> None:
    """Tell a session of the format and send the package to its executors.

    They still need pyarrow, orjson and our other dependencies.  Not for Spark Connect, whose server must have it.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors that start later fetch it then
    for path in pack(folder):
        spark.sparkContext.addFile(str(path))
    environment = spark.sparkContext.environment  # of Python processes of functions made from now on
    paths = filter(None, [str(folder), environment.get("PYTHONPATH")])
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    register(spark)


def pack(folder: Path) -> tuple[Path, Path]:
    """The two files, made in the folder of the package as it is installed here."""
    source = Path(__file__).resolve().parents[1]
    packed, module = folder / f"{NAME}.zip", folder / f"{NAME}.py"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(source.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                out.write(file, f"{NAME}/{file.relative_to(source)}")
    text = (source / "__init__.py").read_text()
    head, mark, rest = text.partition("from __future__ import annotations\n")
    module.write_text(f"{head}{mark}{FINDER}{rest}" if mark else f"{FINDER}{text}")
    return packed, module
