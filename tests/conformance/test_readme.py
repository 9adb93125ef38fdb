"""The README's code runs as it stands, but for the addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from forked import ran
from page_lab import command
from penstock import connect
from penstock.records.kinds import Kind
from penstock.testing.process import ServerProcess

pytestmark = pytest.mark.conformance

README = Path(__file__).resolve().parents[2] / "README.md"
TEXT = README.read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SHELL = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as one:
        yield one


def of_here(code: str, server: ServerProcess) -> str:
    """The code with this server's addresses."""
    return code.replace("amqp://guest:guest@localhost", server.amqp_url).replace(
        "penstock://localhost", server.flight_url
    )


def test_there_is_code_to_run() -> None:
    assert len(BLOCKS) >= 2


def test_every_block_runs(server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    of_spark = [block for block in BLOCKS if "penstock.spark" in block]
    assert len(of_spark) == 1, "`spark/test_page.py` runs it"
    for number, block in enumerate(BLOCKS):
        if block in of_spark:
            continue
        program.write_text(of_here(block, server))
        done = ran(str(program), env={"PENSTOCK_URL": server.flight_url}, seconds=600)
        assert done.returncode == 0, f"block {number}:\n{done.stderr}"
        assert done.stdout.strip(), f"block {number} prints what it received"
    with connect(server.flight_url) as client:
        kinds = {
            kind for batch in client.log_batches(1) for kind in cast("list[int]", batch.column("kind").to_pylist())
        }
    assert Kind.PUBLISH in kinds
    assert Kind.PUBLISH_TRANSIENT not in kinds  # it says that the message is on disk


def test_the_first_message_and_what_is_asked_of_it(server: ServerProcess) -> None:
    first, asked, _make = SHELL
    install, serve, *commands = first.splitlines()
    assert install.startswith("pip install ")
    assert serve.startswith("penstock serve &")
    assert len(commands) == 3
    said: list[str] = []
    for line in [*commands, *asked.splitlines()]:
        if "explain" in line:
            with connect(server.flight_url) as client:  # as the programs between have done
                client.declare("to-ship")
        done = command(line.replace("./data", str(server.data)), server.flight_url)
        assert done.returncode == 0, f"{line}:\n{done.stderr}"
        said.append(done.stdout)
    declared, published, consumed, explained, story, audited = said
    assert "first" in declared
    assert "1 message published to first" in published
    assert published.endswith("all on disk: LSN 4\n")
    assert "message show 4 " in asked
    assert consumed == '{"id": 1, "total": 9.5}\n'
    assert "it has no consumer" in explained
    assert all(word in story for word in ("published", "leased", "settled"))
    assert "every guarantee held" in audited
