"""Where the archive of Spark's classes is, and who takes it.

Half of what a session costs until its first answer is the loading of classes.  Java maps an archive of them into memory
instead (class data sharing).  It takes it only with the class path that the archive was made with, in which no folder
has a file, so sessions that use it have one home of Spark's and one empty folder of settings, which lie beside it in
the user's cache folder.  An archive that is not there, or that Java does not take, changes nothing: classes are loaded
as ever.  That of another Java or PySpark has another place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from penstock.records.dataclass import dataclass

SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Of an archive that it does not take Java says a word for each reason, and goes on without."""


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
