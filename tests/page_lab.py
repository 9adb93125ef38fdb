"""Pages of docs/ as tests read them: their sections, the code in them, and a server with a section's settings."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import forked
import penstock.spark
from live_server import LiveServer
from penstock.client.consumer import Consumer

DOCS = Path(__file__).resolve().parents[1] / "docs"


def page(name: str) -> str:
    """The text of docs/NAME."""
    return (DOCS / name).read_text(encoding="utf-8")


def sections(name: str) -> dict[str, str]:
    """The sections of a page by their headings, each with its heading; KeyError tells of one that is not there."""
    return {part.split("\n", 1)[0]: part for part in re.split(r"^## ", page(name), flags=re.MULTILINE)[1:]}


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code in a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(programs: Sequence[str], names: dict[str, Any], name: str = "spark.md") -> dict[str, Any]:
    """Run blocks of Python of docs/NAME one after another, with these names; the names afterwards.

    Their consumers end when nothing comes for a second or a few.  Here they believe that only when all that the server
    has granted has come, for on a busy machine that may take longer.
    """
    take = Consumer.take

    def patient(self: Consumer[Any], timeout: float | None = None) -> Any:
        while (message := take(self, timeout)) is None and not self._closed and self._over is None and self.catch_up():
            pass
        return message

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Consumer, "take", patient)
        for program in programs:
            exec(compile(program, f"docs/{name}", "exec"), names)
    return names


def command(line: str, url: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell; what is a command of ours is forked, with what it is given or where its output goes."""
    words = shlex.split(line, comments=True)
    given, into = "", ""
    if words.count("|") == 1 and words[0] != "penstock":
        bar = words.index("|")
        given, words = shell(shlex.join(words[:bar]), url).stdout, words[bar + 1 :]
    if words[-2:-1] == [">"]:
        into, words = words[-1], words[:-2]
    if words[0] != "penstock" or {"|", ">", "<"} & set(words):
        return shell(line, url)
    done = forked.penstock(*words[1:], given=given, env={"PENSTOCK_URL": url}, seconds=120)
    if into:
        Path(into).write_text(done.stdout)
    return done


def shell(line: str, url: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell as it stands."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PENSTOCK_URL": url, "PATH": path}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, env=environment)


@contextmanager
def served(text: str, spark: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A server with the settings in a section; `penstock.spark.session()` is the warm one.  The names: `url`."""
    settings = folder / "penstock.toml"
    settings.write_text("\n".join(blocks(text, "toml")))
    monkeypatch.setattr(penstock.spark, "session", lambda: spark)
    with LiveServer(folder, [str(settings)], flight=True) as server:
        yield {"url": f"penstock://guest:guest@{server.ready['flight']}"}
