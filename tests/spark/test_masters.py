"""A master that Spark cannot begin with is told in a sentence, by commands and by a session of one's own."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkRuntimeError

from forked import penstock
from penstock.errors import SettingsError
from penstock.spark import sessions


@pytest.mark.parametrize("master", ["bogus", "local[x]", "spark:/host", "Local[*]", "", "yarn-cluster"])
def test_what_is_no_master_is_told_before_java_begins(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "find_java", lambda: pytest.fail("Java was looked for"))
    for how in ({"master": master}, {"conf": {"spark.master": master}}):
        with pytest.raises(SettingsError, match=r"is no master of Spark: write local\[\*\]"):
            sessions.session(**how)  # type: ignore[arg-type]


def test_a_command_tells_it_without_a_trace(tmp_path: Any) -> None:
    (tmp_path / "log").mkdir()
    done = penstock("audit", "--data", str(tmp_path), "--spark", "--master", "bogus")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("penstock: 'bogus' is no master of Spark")


class Java:
    """An exception of Java, as Py4J hands it over."""

    _target_id, _gateway_client = "o1", None

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


CAUSES = {
    "org.apache.spark.SparkException: Invalid master URL: spark://host\n\tat org": "Invalid master URL: spark://host",
    "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis": "no such master answers",
}


@pytest.mark.parametrize("text", CAUSES)
def test_what_spark_says_is_the_reason(text: str) -> None:
    builder = Mock()
    builder.getOrCreate.side_effect = Py4JJavaError("An error occurred", Java(text))
    with pytest.raises(SettingsError, match="does not begin with the master 'spark://host': " + CAUSES[text]):
        sessions._begun(builder, "spark://host")  # pyright: ignore[reportPrivateUsage]


def test_a_java_that_ended_has_said_why() -> None:
    builder = Mock()
    builder.getOrCreate.side_effect = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    with pytest.raises(SettingsError, match="the master 'yarn': its Java has ended; what it said is above"):
        sessions._begun(builder, "yarn")  # pyright: ignore[reportPrivateUsage]
