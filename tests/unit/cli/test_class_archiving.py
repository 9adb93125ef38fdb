"""The archive of Spark's classes is made beside pipelines that have run for a while, at most once, and gives way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.supervisor import AFTER_S, AGAIN_S, MEMORY_BYTES, TRIES, ClassArchiving, is_wanted
from penstock.config.pipeline_section import Spark

CHOSEN = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_CLASSPATH")

ENDLESS = "import sys; sys.stdin.read()"
"""A maker that goes on until it is ended."""


class Maker:
    """Archiving whose maker is another program, on a clock of the test's."""

    def __init__(self, folder: Path, program: str, memory: int | None = MEMORY_BYTES) -> None:
        self.said, self.memory, self.folder = list[str](), memory, folder
        self.archiving = ClassArchiving(
            folder, self.said.append, command=(sys.executable, "-c", program), memory_left=lambda: self.memory
        )
        self.begun = time.monotonic()

    def at(self, seconds: float, *, wanted: bool = True) -> bool:
        """One look so long after the begin; whether the maker runs then."""
        self.archiving.look(self.begun + seconds, wanted=wanted)
        return self.process is not None

    @property
    def process(self) -> int | None:
        process = self.archiving._process  # pyright: ignore[reportPrivateUsage]
        return None if process is None else process.pid

    def ends(self, seconds: float) -> bool:
        """Whether it ends by itself, which is noticed so long after the begin."""
        until = time.monotonic() + 60
        while self.at(seconds) and time.monotonic() < until:
            time.sleep(0.01)  # a process takes its time to end
        return self.process is None


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    monkeypatch.chdir(tmp_path)
    made = Maker(tmp_path, ENDLESS)
    yield made
    made.archiving.stop()


def test_it_begins_when_drivers_have_run_for_a_while_and_ends_with_them(maker: Maker) -> None:
    assert not maker.at(AFTER_S - 1)
    assert maker.at(AFTER_S)
    pid = maker.process
    assert pid is not None
    maker.archiving.stop()
    assert not os.path.exists(f"/proc/{pid}")
    assert not maker.said


def test_drivers_that_have_ended_begin_anew(maker: Maker) -> None:
    assert not maker.at(AFTER_S - 1, wanted=False)
    assert not maker.at(2 * AFTER_S - 2)
    assert maker.at(2 * AFTER_S - 1)


def test_where_memory_is_short_it_is_put_off(maker: Maker) -> None:
    maker.memory = MEMORY_BYTES - 1
    assert not maker.at(AFTER_S)
    maker.memory = MEMORY_BYTES
    assert not maker.at(2 * AFTER_S - 1), "asked again as late as the first time"
    assert maker.at(2 * AFTER_S)


def test_a_system_that_does_not_tell_its_memory_is_believed(maker: Maker) -> None:
    maker.memory = None
    assert maker.at(AFTER_S)


def test_one_that_fails_is_told_of_once_and_tried_again_later_but_not_for_ever(tmp_path: Path) -> None:
    maker, now = Maker(tmp_path, "import sys; sys.exit('no room')"), AFTER_S
    for _ in range(TRIES):
        assert maker.at(now)
        assert maker.ends(now + 1)
        assert not maker.at(now + AGAIN_S), "an hour after its end"
        now += AGAIN_S + 1
    assert not maker.at(now + 9 * AGAIN_S)
    log = tmp_path / "class_archive.log"
    assert maker.said == [
        f"penstock: the archive of Spark's classes is not made, and starts are as they were: see {log}"
    ]
    assert log.read_text() == "no room\n"


def test_one_that_is_done_says_nothing_and_is_the_last(tmp_path: Path) -> None:
    maker = Maker(tmp_path, "")
    assert maker.at(AFTER_S)
    assert maker.ends(AFTER_S)
    assert not maker.said
    assert not maker.at(9 * AGAIN_S)


def test_a_folder_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "nowhere", "")
    assert not maker.at(AFTER_S)
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
