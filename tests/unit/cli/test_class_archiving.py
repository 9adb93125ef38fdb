"""The archive of Spark's classes is made beside pipelines that have run for a while, at most once, and gives way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.class_archiving import AFTER_S, MEMORY_BYTES, ClassArchiving, is_wanted
from penstock.config.pipeline_section import Spark

CHOSEN = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_CLASSPATH")

NOTES = "import os, sys; open('ran', 'a').write('x'); sys.stdin.read()"
"""A maker that notes each run and goes on until it is ended."""


class Maker:
    """Archiving whose maker is another program, on a clock of the test's."""

    def __init__(self, folder: Path, program: str, memory: int | None = MEMORY_BYTES) -> None:
        self.said, self.memory, self.folder = list[str](), memory, folder
        self.begun = time.monotonic()
        self.archiving = ClassArchiving(
            folder, self.said.append, command=(sys.executable, "-c", program), memory_left=lambda: self.memory
        )

    def at(self, seconds: float, *, wanted: bool = True) -> bool:
        """One look so long after the begin; whether the maker runs then."""
        self.archiving.look(self.begun + seconds, wanted=wanted)
        return self.process is not None

    @property
    def process(self) -> int | None:
        process = self.archiving._process  # pyright: ignore[reportPrivateUsage]
        return None if process is None else process.pid

    def ended(self) -> bool:
        """Whether it ends by itself."""
        until = time.monotonic() + 60
        while self.at(AFTER_S * 4) and time.monotonic() < until:
            time.sleep(0.01)  # a process takes its time to end
        return self.process is None


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    monkeypatch.chdir(tmp_path)
    made = Maker(tmp_path, NOTES)
    yield made
    made.archiving.stop()


def test_it_begins_when_drivers_have_run_for_a_while_and_ends_with_them(maker: Maker) -> None:
    assert not maker.at(AFTER_S - 1)
    assert maker.at(AFTER_S + 1)
    pid = maker.process
    assert pid is not None
    maker.archiving.stop()
    assert not os.path.exists(f"/proc/{pid}")
    assert not maker.at(AFTER_S * 3), "once"
    assert not maker.said


def test_drivers_that_have_ended_begin_anew(maker: Maker) -> None:
    assert not maker.at(AFTER_S - 1, wanted=False)
    assert not maker.at(AFTER_S + 1)
    assert maker.at(2 * AFTER_S)


def test_where_memory_is_short_it_is_put_off(maker: Maker) -> None:
    maker.memory = MEMORY_BYTES - 1
    assert not maker.at(AFTER_S + 1)
    maker.memory = MEMORY_BYTES
    assert not maker.at(AFTER_S + 2), "asked again as late as the first time"
    assert maker.at(2 * AFTER_S + 2)


def test_a_system_that_does_not_tell_its_memory_is_believed(maker: Maker) -> None:
    maker.memory = None
    assert maker.at(AFTER_S + 1)


def test_one_that_fails_is_told_of_and_not_tried_again(tmp_path: Path) -> None:
    maker = Maker(tmp_path, "import sys; sys.exit('no room')")
    assert maker.at(AFTER_S + 1)
    assert maker.ended()
    log = tmp_path / "class_archive.log"
    assert maker.said == [f"penstock: the archive of Spark's classes is not made, and starts are as they were: {log}"]
    assert log.read_text() == "no room\n"
    assert not maker.at(AFTER_S * 9)


def test_one_that_is_done_says_nothing(tmp_path: Path) -> None:
    maker = Maker(tmp_path, "")
    assert maker.at(AFTER_S + 1)
    assert maker.ended()
    assert not maker.said


def test_a_folder_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "nowhere", "")
    assert not maker.at(AFTER_S + 1)
    assert "No such file or directory" in maker.said[0]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, True),
        ({"class_archive": False}, False),
        ({"master": "spark://one:7077"}, False),
        ({"conf": {"spark.driver.extraClassPath": "x.jar"}}, False),
    ],
)
def test_who_would_take_one(given: dict[str, object], wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOSEN:
        monkeypatch.delenv(name, raising=False)
    assert is_wanted(Spark.model_validate(given)) is wanted


@pytest.mark.parametrize("name", CHOSEN)
def test_a_home_that_somebody_has_chosen_takes_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/somewhere")
    assert not is_wanted(Spark())
