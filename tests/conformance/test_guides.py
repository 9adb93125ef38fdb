"""The code of the guides runs as it stands, but for the addresses, and prints what the pages say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from page_lab import blocks, page, run
from penstock.testing.process import ServerProcess

PRINTS = {
    "queues.md": [
        "{'id': 1, 'region': 'north', 'total': 9.5} 1 {}",
        "{'id': 2, 'region': 'south', 'total': 20.0} 1 {'source': 'web'}",
        "{'id': 2, 'region': 'south', 'total': 20.0}",
        "1 {",
        "{'id': 1, 'region': 'north', 'total': 9.5}",
    ],
    "limits.md": ["three", "[1, 2, 4]"],
    "retries.md": ["1", "0", "{'id': 1} no such address", "{", "1"],
    "groups.md": ["duplicate", "a b", "1"],
    "rabbitmq.md": ["order.new b'{\"id\": 1}'"],
}
"""What each guide prints, line by line: the line itself, or a part of it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("guides")) as one:
        yield one


@pytest.mark.parametrize("name", PRINTS)
def test_a_guide_does_what_it_says(name: str, server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    addresses = {"amqp://guest:guest@localhost": server.amqp_url, "penstock://localhost": server.flight_url}
    programs = blocks(page(name), "python")
    for written, real in addresses.items():
        programs = [program.replace(written, real) for program in programs]
    run(programs, {}, name)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(PRINTS[name]), lines
    for line, part in zip(lines, PRINTS[name], strict=True):
        assert part in line


def test_the_guide_to_tests_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, real_clients, with_pytest, expressions = blocks(page("testing.md"), "python")
    run([first, real_clients, expressions], {}, "testing.md")
    assert capsys.readouterr().out.splitlines() == ["b'{\"id\": 1}' 1 False", "2 True", "1", "1", "[True, None]"]
    jobs = tmp_path / "test_jobs.py"
    jobs.write_text(with_pytest)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, jobs],
        capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr
