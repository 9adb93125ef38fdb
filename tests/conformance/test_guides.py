"""The code of the guides runs as it stands, but for the addresses, and prints what the pages say."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from forked import ran
from page_lab import DOCS, blocks, command, page, run
from penstock import connect
from penstock.cli.main import main
from penstock.testing.process import ServerProcess

PRINTS = {
    "queues.md": [
        "{'id': 1, 'region': 'north', 'total': 9.5} 1 {}",
        "{'id': 2, 'region': 'south', 'total': 20.0} 1 {'source': 'web'}",
        "{'id': 2, 'region': 'south', 'total': 20.0}",
        "1 {",
        "{'id': 1, 'region': 'north', 'total': 9.5}",
    ],
    "client.md": ["stored", "no queue and no declared topic takes 'odrers'", "3 2", "1 30.5"],
    "settling.md": ["Reading(sensor='a', celsius=20.5)", "2 1", "parcel 1", "0 1"],
    "delivery.md": ["analytics [1, 3]", "risk [1, 2]", "0"],
    "retries.md": ["1", "0", "{'id': 1} no such address", "{", "1"],
    "limits.md": ["three", "[1, 2, 4]"],
    "groups.md": ["duplicate", "a b", "1"],
    "expressions.md": [],
    "message-types.md": ["a-1"],
    "query.md": ["region", "west", "NaN", "2"],
    "replay.md": [
        *("'region': 'north'", "'region': 'south'", "'region': 'west'"),
        *("bill 1", "bill 2", "bill 3", "bill 4", "bill 1"),
    ],
    "rabbitmq.md": ["order.new b'{\"id\": 1}'", "b'hello'", " b'{}'"],
    "flight.md": [
        "2",
        "True",
        "[b'one', b'two']",
        "['subscribed']",
        "[(b'one', 1), (b'two', 1)]",
        "{'answer': 1, 'affected': 2, 'stale': 0}",
    ],
}
"""What each guide prints, line by line: the line itself, or a part of it.

One server has them all, one after another, as who reads the index from its top does: what a page leaves behind is
there for the next.
"""

COMMANDS = {
    "query.md": 4, "limits.md": 5, "expressions.md": 3, "message-types.md": 2, "rabbitmq.md": 4, "amps.md": 3,
    "security.md": 1, "cli.md": 13, "backup.md": 5,
}  # fmt: skip
"""Pages whose commands are run as they stand behind the programs of all, and how many these are at least."""
ENDS = {"connection close": 2}
"""How commands end that do not end with 0: one asks, and nobody is there to answer."""
OTHERS = {
    "penstock serve": "there is one",
    "penstock migrate": "test_migrate.py",
    "--backend spark": "tests/spark",
    "--members": "the folders of a cluster",
    "backup /backup/2026-11-20 --data": "for a folder that no server uses",
}
"""Commands that are not run here, and why, or where."""
ELSEWHERE = {
    "README.md": "conformance/test_readme.py",
    "archive.md": "conformance/test_archive_live.py",
    "cluster-of-servers.md": "cluster_of_servers/test_manual.py",
    "cluster.md": "cluster/test_declarative.py",
    "faststream.md": "conformance/test_faststream_broker.py",
    "http.md": "conformance/test_pages.py",
    "links.md": "conformance/test_pages.py",
    "otel.md": "conformance/test_otel.py",
    "pipelines.md": "spark/test_pipelines_page.py",
    "sow.md": "unit/testing/test_pages.py",
    "spark.md": "spark/test_page.py",
    "testing.md": "conformance/test_guides.py",
    "tls.md": "unit/cli/test_certificates.py",
    "views.md": "conformance/test_pages.py",
    "workers.md": "unit/worker/test_page.py",
}
"""Where what other pages show is run."""
NOWHERE = {"massive-queues.md"}
"""What is run nowhere: it builds an image and starts it."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "server") as one:
        yield one


def test_each_page_with_code_is_run() -> None:
    shown = {"python": set[str](), "sh": set[str](), "console": set[str]()}
    for path in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        for language, pages in shown.items():
            if blocks(path.read_text(encoding="utf-8"), language):
                pages.add(path.name)
    assert shown["python"] - set(PRINTS) <= set(ELSEWHERE)
    assert (shown["sh"] | shown["console"]) - set(COMMANDS) - NOWHERE <= set(ELSEWHERE)
    for name, test in ELSEWHERE.items():
        assert name in (DOCS.parent / "tests" / test).read_text(encoding="utf-8"), test


def test_the_guides_do_what_they_say_one_after_another(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {
        "amqp://guest:guest@localhost": server.amqp_url,
        "penstock://localhost": server.flight_url,
        "grpc://localhost:8815": f"grpc://{server.flight_url.rpartition('@')[2]}",
    }
    for name, parts in PRINTS.items():
        run([replaced(program, places) for program in blocks(page(name), "python")], {}, name)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(parts), (name, lines)
        for line, part in zip(lines, parts, strict=True):
            assert part in line, name
    with connect(server.flight_url) as client:
        lsn = client.details("to-ship")["messages"][0]["lsn"]
        client.cancel(client.publish("orders", {"id": 9, "region": "west", "total": 1.5}).lsn, queue="to-ship")
    taken = command(f"penstock queue recover to-ship --data {server.data} --json", server.flight_url)
    removal = json.loads(taken.stdout)[-1]["lsn"]
    (tmp_path / "amps.xml").write_text(AMPS)
    places = {
        "./data": str(server.data), "/backup/2026-11-20": f"{tmp_path}/backup", " 1042": f" {lsn}",
        " 2077": f" {removal}", "/var/lib/penstock": f"{tmp_path}/restored", "| jq .body": "",
        "http://old:15672": server.http_url, "http://127.0.0.1:15672": server.http_url,
    }  # fmt: skip
    for name, least in COMMANDS.items():
        text = page(name).replace("\\\n", " ")
        shown = [line for block in blocks(text, "sh") + blocks(text, "console") for line in block.splitlines()]
        lines = [line.removeprefix("$ ") for line in shown]
        lines = [line for line in lines if not any(part in line for part in OTHERS)]
        assert len(lines) >= least, name
        for line in lines:
            done = here(replaced(line, places), server.flight_url)
            ends = next((status for part, status in ENDS.items() if part in line), 0)
            assert done.returncode == ends, f"{name}: {line}\n{done.stdout}{done.stderr}"
            if line.endswith("# TRUE"):
                assert done.stdout == "TRUE\n", line


def here(line: str, url: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell; what is a command of ours and nothing more runs in this process, for half of the price."""
    words = shlex.split(line, comments=True)
    if words[0] != "penstock" or {"|", ">", "<"} & {*words}:
        return command(line, url)
    given, out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(3))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "stdin", given)
        patch.setenv("PENSTOCK_URL", url)
        with pytest.raises(SystemExit) as ended:
            main(words[1:])
    status = ended.value.code if isinstance(ended.value.code, int) else int(ended.value.code is not None)
    stdout, stderr = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, status, stdout, stderr)


AMPS = """<AMPSConfig><Name>shop</Name><SOW>
<Queue><Name>jobs</Name><MessageType>json</MessageType><LeasePeriod>30s</LeasePeriod></Queue>
</SOW></AMPSConfig>"""


def replaced(text: str, places: dict[str, str]) -> str:
    """With what is here in place of what is written there."""
    for written, here in places.items():
        text = text.replace(written, here)
    return text


def test_the_guide_to_tests_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, real_clients, with_pytest, expressions = blocks(page("testing.md"), "python")
    run([first, real_clients, expressions], {}, "testing.md")
    assert capsys.readouterr().out.splitlines() == ["b'{\"id\": 1}' 1 False", "2 True", "1", "1", "[True, None]"]
    jobs = tmp_path / "test_jobs.py"
    jobs.write_text(with_pytest)
    monkeypatch.chdir(tmp_path)
    program = str(Path(pytest.__file__).with_name("__main__.py"))
    done = ran(program, "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(jobs), seconds=120)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
