"""What a cluster needs, without one: the package in two files, folders that all must see, the page's settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config.load import load_text
from penstock.errors import SettingsError
from penstock.spark.pipelines.folders import refuse_unshared
from penstock.spark.sessions import pack

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cluster.md").read_text()


def test_the_package_in_two_files_is_whole(tmp_path: Path) -> None:
    pack(tmp_path)
    others = Path(np.__file__).parents[1]  # nothing of ours: files that put it on the path are not read
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(others)!r}]
import penstock, penstock.spark.source, penstock.spark.reading.batch, penstock.spark.sink
from penstock.expr import compile_filter
compile_filter("/id > 10")
assert penstock.connect and penstock.__version__
print(penstock.spark.source.__file__)
"""
    ended = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd="/", check=False)
    assert ended.stdout.strip() == f"{tmp_path}/penstock.zip/penstock/spark/source.py", ended.stderr


class Context:
    """Of a session on a cluster with one executor, which runs here."""

    defaultParallelism = 1  # noqa: N815 - Spark's name

    def __init__(self, master: str) -> None:
        self.master = master
        self.asked = 0
        self.sparkContext = self  # the session's, too

    def parallelize(self, numbers: range, parts: int) -> Context:
        self.asked += 1
        assert len(numbers) == parts
        return self

    def mapPartitions(self, look: Any) -> Context:  # noqa: N802 - Spark's name
        self.look = look
        return self

    def collect(self) -> list[Any]:
        return list(self.look([0]))


def test_an_executor_that_does_not_see_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_unshared(Context("local[2]"), [tmp_path / "not-made"], "sums")
    assert list(tmp_path.iterdir()) == []
    refuse_unshared(Context("spark://m:7077"), [tmp_path / "a", tmp_path / "a"], "sums")
    assert list((tmp_path / "a").iterdir()) == []
    none = Context("spark://m:7077")
    refuse_unshared(none, [], "sums")
    assert none.asked == 0
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    with pytest.raises(SettingsError, match=rf"pipeline sums: the executor on \S+ does not see {tmp_path}/a of"):
        refuse_unshared(Context("spark://m:7077"), [tmp_path / "a"], "sums")


def test_the_settings_of_the_page() -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    settings = load_text(text)
    assert settings.spark.master == "spark://spark-master:7077"
    assert settings.spark.conf["spark.cores.max"] == "8"
