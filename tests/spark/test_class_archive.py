"""The archive of Spark's classes: who takes it, and that one which Java does not take changes nothing."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from penstock.errors import SettingsError
from penstock.spark import class_archive, sessions
from penstock.spark.sessions import ClassArchive

LOCAL = {"spark.master": "local[2]"}


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program that stands for Java; nobody has chosen anything."""
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\n")
    return str(program)


@pytest.fixture
def archive(java: str) -> ClassArchive:
    """One that is there."""
    made = ClassArchive.of(java)
    made.settings.mkdir(parents=True)
    sessions.linked_home(made.folder)
    made.file.write_bytes(b"no archive")
    return made


def test_it_is_of_one_java_in_the_user_s_cache(java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ClassArchive.of(java)
    assert made == ClassArchive.of(java)
    assert made.folder.parent == tmp_path / "cache" / "penstock"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ClassArchive.of(java).folder == tmp_path / ".cache" / "penstock" / made.folder.name
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    jar = tmp_path / "pyspark" / "jars" / "spark-core.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    with_jars = ClassArchive.of(java)
    os.utime(jar, (1, 1))  # the same PySpark was installed again: Java takes no archive of other files
    names = {made.folder.name, with_jars.folder.name, ClassArchive.of(java).folder.name}
    Path(java).unlink()
    Path(java).symlink_to("/bin/sh")  # another Java is at its place
    assert len({*names, ClassArchive.of(java).folder.name}) == 4


def test_a_session_on_this_machine_takes_the_one_that_is_there(java: str, archive: ClassArchive) -> None:
    assert sessions._archive(java, LOCAL) == archive  # pyright: ignore[reportPrivateUsage]
    (archive.settings / "spark-defaults.conf").touch()  # Java would not take it
    assert sessions._archive(java, LOCAL) is None  # pyright: ignore[reportPrivateUsage]
    (archive.settings / "spark-defaults.conf").unlink()
    archive.file.unlink()
    assert sessions._archive(java, LOCAL) is None  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_CONF_DIR", "SPARK_CLASSPATH"])
def test_what_somebody_has_chosen_stays(
    name: str, java: str, archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive.is_usable()
    monkeypatch.setenv(name, "/somewhere")
    assert sessions._archive(java, LOCAL) is None  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("conf", [{"spark.master": "spark://one:7077"}, {**LOCAL, "spark.driver.extraClassPath": "x"}])
def test_another_class_path_has_none(conf: dict[str, str], java: str, archive: ClassArchive) -> None:
    assert archive.is_usable()
    assert sessions._archive(java, conf) is None  # pyright: ignore[reportPrivateUsage]


def test_java_goes_on_without_one_that_it_does_not_take(archive: ClassArchive, tmp_path: Path) -> None:
    options = archive.options(tmp_path / "log4j2.properties").split()
    ran = subprocess.run([sessions.find_java(), *options, "-version"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert 'version "' in ran.stderr


@pytest.mark.parametrize("is_to_blame", [True, False])
def test_one_that_java_dies_of_goes(
    is_to_blame: bool, archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    builder = Mock()
    builder.config.return_value = builder
    builder.getOrCreate.side_effect = [died, "a session" if is_to_blame else died]
    monkeypatch.setattr(SparkContext, "_gateway", None)
    wanted = {**LOCAL, sessions.JAVA_OPTIONS: f"{archive.options(tmp_path / 'logging')} -Dmine=1"}
    if is_to_blame:
        assert sessions._begun_with(archive, builder, wanted) == "a session"  # pyright: ignore[reportPrivateUsage]
    else:
        with pytest.raises(SettingsError, match="its Java has ended"):
            sessions._begun_with(archive, builder, wanted)  # pyright: ignore[reportPrivateUsage]
    [(name, options)] = [call.args for call in builder.config.call_args_list]
    assert name == sessions.JAVA_OPTIONS
    assert options == f"{sessions.SILENT} -Dlog4j2.configurationFile={tmp_path / 'logging'} -Dmine=1"
    assert [path.name for path in archive.folder.glob("classes.*")] == ([] if is_to_blame else ["classes.jsa"])


def test_it_notes_when_it_was_used_and_those_used_last_are_kept(
    java: str, archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [ClassArchive(archive.folder.with_name(f"spark-{number}")) for number in range(4)]
    for number, one in enumerate(others):
        one.folder.mkdir()
        one.file.write_bytes(b"another Java's")
        os.utime(one.file, (number, number))
    others[0].note_use()
    ClassArchive(archive.folder / "nowhere").note_use()
    (archive.folder / "classes-1.part").write_bytes(b"of a run that was killed")
    monkeypatch.setattr(class_archive, "gettempdir", lambda: str(tmp_path))
    killed, present = (tmp_path / f"{class_archive.WORK}{name}" for name in ("killed", "present"))
    killed.mkdir()
    present.mkdir()
    os.utime(killed, (0, 0))
    assert class_archive.made(java) == archive, "it is there: nothing is made"
    assert [one.folder.exists() for one in others] == [True, False, False, True]
    assert archive.is_usable()
    assert not list(archive.folder.glob("*.part"))
    assert (killed.exists(), present.exists()) == (False, True)


def test_one_process_makes_it(java: str, archive: ClassArchive) -> None:
    archive.file.unlink()
    with (archive.folder / "making.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another process makes"):
            class_archive.made(java)


def test_where_there_is_no_room_it_is_said(java: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "ROOM_BYTES", 1 << 60)
    with pytest.raises(OSError, match="MiB free, and 1099511627776 MiB are needed"):
        class_archive.made(java)
