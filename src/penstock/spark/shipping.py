"""Our code on its way to executors where it is not installed.

Spark copies files that a session adds into a folder on each machine, which tasks have on their path.  So the package
travels as two files: a zip of it, and a module of its name that finds its submodules in the zip.  Not all Python
processes beside the driver look there, those of streams do not; they are told where the files were made.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from penstock.spark.local import register

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
