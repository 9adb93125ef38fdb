"""The command line: what commands print, and how they end."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock import __version__
from penstock.cli import checkup, logfiles, messagefiles, messages, output, queues, serving
from penstock.cli.main import command as built
from penstock.cli.main import main
from penstock.config.settings import Settings
from penstock.errors import InvalidArgument, LogBroken
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.writer import LogSettings
from penstock.records.entries import Control, Publishes, Topic
from penstock.records.kinds import Kind
from penstock.spark.sessions import ClassArchive

Run = Callable[..., tuple[int, str, str]]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inner: dict[str, Any] = getattr(group, "commands", {})
    if not inner:
        yield " ".join(path), group
    for name, command in inner.items():
        yield from commands(command, (*path, name))


ALL = dict(commands(built(None)))


def test_a_command_is_built_without_the_others() -> None:
    for name, whole in built(None).commands.items():
        part = built(name)
        assert set(part.commands) == {name}
        assert dict(commands(part.commands[name])).keys() == dict(commands(whole)).keys()
        for path, one in commands(part.commands[name], (name,)):
            assert [param.opts for param in one.params] == [param.opts for param in ALL[path].params]
    assert built("nonsense").commands.keys() == built(None).commands.keys()


def test_the_tree_of_commands() -> None:
    assert set(ALL) == {
        *(
            "serve",
            "up",
            "check",
            "convert",
            "publish",
            "consume",
            "expr",
            "audit",
            "doctor",
            "query",
            "worker",
            "version",
            "drain",
            "top",
            "tls make",
        ),
        *("backup", "restore", "sow", "replay", "topic list", "topic show", "topic schema"),
        "topic message-type",
        *("queue list", "queue show", "queue declare", "queue alter", "queue purge", "queue delete"),
        *("policy list", "policy set", "policy delete"),
        *("operator-policy list", "operator-policy set", "operator-policy delete"),
        *(
            "queue peek",
            "queue ack",
            "queue pause",
            "queue resume",
            "queue explain",
            "queue redrive",
            "queue recover",
            "queue move",
        ),
        *("stream list", "stream show", "stream release"),
        *("pipeline list", "pipeline check", "pipeline run", "pipeline status"),
        *("pipeline lineage", "pipeline graph", "pipeline backfill", "pipeline reset"),
        *("message show", "message cancel", "message reschedule"),
        *("connection list", "connection close", "exchange list", "exchange declare", "exchange delete"),
        *("binding list", "binding declare", "binding delete", "vhost list", "vhost add", "vhost delete"),
        "vhost trace",
        *("vhost list-limits", "vhost set-limit", "vhost clear-limit", "user list", "user add", "user delete"),
        *("user change-password", "user clear-password", "user set-tags", "user list-permissions"),
        *("user set-permissions", "user clear-permissions", "user list-limits", "user set-limit", "user clear-limit"),
        *("cluster init", "cluster status", "cluster promote", "cluster lost", "cluster switchover", "cluster remove"),
        *("cluster finalize", "cluster drill", "link status", "link pause", "link resume", "link proxy"),
        *("token list", "token issue", "token renew", "token revoke"),
        "migrate",
        *("bench publish", "bench consume", "bench both", "bench ping", "bench deep", "bench spark"),
        *("log ls", "log show", "log verify", "log archive", "log compact", "log export"),
    }


LINES = {"consume", "queue peek", "sow", "replay", "log show", "expr"}
"""Commands whose JSON is an object on a line for each message or record."""


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_has_an_example_and_json(name: str, run: Run) -> None:
    status, out, _ = run(*name.split(), "--help")
    assert status == 0
    assert re.search(rf"Example: (.* \| )?penstock {name}\b", out)
    if name not in {"serve", "up"}:
        assert "--json" in out
        said = re.sub(r"[\s│]+", " ", out)
        assert ("a line for each" in said, "one document" in said) == (name in LINES, name not in LINES)


TAKES = re.compile(r"(delete|purge|remove|revoke|close|release|reset|redrive|move|alter|clear-p\w+)$")
"""Commands whose word says that something goes, or may go."""


@pytest.mark.parametrize("name", sorted(name for name in ALL if TAKES.search(name)))
def test_every_command_that_takes_something_away_asks_unless_told_not_to(name: str, run: Run) -> None:
    assert "--yes" in run(*name.split(), "--help")[1]


def test_version(run: Run) -> None:
    assert run("version") == (0, f"penstock {__version__}\n", "")
    assert run("--version") == (0, f"penstock {__version__}\n", "")
    assert json.loads(run("version", "--json")[1])["penstock"] == __version__


@pytest.mark.parametrize(
    ("expression", "bodies", "printed"),
    [
        ("/total > 5", ['{"total": 9}', '{"total": 1}', "{}"], "TRUE\nFALSE\nNULL\n"),
        ("/a + 1", ['{"a": 2}'], "3\n"),
        ("/name", ['{"name": "Zürich"}'], "Zürich\n"),
        ("-/m * 2", ['{"m": 2}'], "-4\n"),
        ("'x' * 1", [], "NAN\n"),
    ],
)
def test_expr_prints_values(run: Run, expression: str, bodies: list[str], printed: str) -> None:
    arguments = [part for body in bodies for part in ("--message", body)]
    assert run("expr", expression, *arguments)[:2] == (0, printed)


def test_expr_points_at_the_mistake(run: Run) -> None:
    status, out, err = run("expr", "/a >")
    assert (status, out) == (2, "")
    assert "\n  /a >\n      ^\n" in err
    assert "PS200" in err
    assert json.loads(run("expr", "/a >", "--json")[2])["error"]["code"] == "PS200"
    assert run("expr", "/a", "--backend", "abacus")[0] == 2
    assert run("expr", "/a", "--bakend", "arrow")[0] == 2
    assert run("expr", "--json", "-5 % 3", "-m", "-7")[1] == '{"expression":"-5 % 3","value":-2}\n'
    assert run("expr", "'x' / 1", "--json")[1] == '{"expression":"\'x\' / 1","value":"NaN"}\n'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("queue", "peek"), "Missing argument 'NAME'"),
        (("queue", "peek", "q", "--count", "x"), "'--count'"),
        (("queue", "peek", "q", "--cuont", "3"), "--count"),
        (("queue", "lst"), "Did you mean 'list'?"),
        (("no-such",), "No such command 'no-such'"),
    ],
)
def test_wrong_usage_is_told_to_a_program_as_every_error_is(words: tuple[str, ...], said: str, run: Run) -> None:
    status, out, err = run(*words, "--json")
    assert (status, out) == (2, "")
    assert said.lower() in json.loads(err)["error"]["message"].lower()
    assert run(*words)[2].startswith("Usage: penstock ")


def test_expr_reads_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a":1}\n\n{"a":2}\n')))
    assert run("expr", "/a", "-m", "-", "--json")[1].splitlines() == [
        '{"expression":"/a","value":1}',
        '{"expression":"/a","value":2}',
    ]


def test_check_tells_what_is_wrong(run: Run, tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text('[[queue]]\nname = "q"\nfilter = "/a > 1"\n')
    assert run("check", str(good)) == (0, f"{good}: good (1 queue)\n", "")
    assert json.loads(run("check", str(good), "--json")[1])["declares"]["queue"] == 1
    bad = tmp_path / "bad.toml"
    bad.write_text('[[queue]]\nname = "q"\nfilter = "/a >"\n')
    status, _, err = run("check", str(bad))
    assert status == 2
    assert '[[queue]] "q" filter' in err
    assert run("check", str(tmp_path / "absent.toml"))[0] == 2


SECRET = 'secret = "a long text, the same for all"'


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ('priority_expression = "/a +"', '"q" priority_expression: the expression ends'),
        ('priority_expression = "UNIX_TIMESTAMP()"', '"q" priority_expression: UNIX_TIMESTAMP cannot be used'),
        ('barrier_expression = "/a AND"', '"q" barrier_expression: the expression ends'),
        ('group_key = "/a +"', '"q" group_key: the expression ends'),
        (
            '[[policy]]\nname = "p"\npattern = "q"\ndefinition = { group-key = "/a +" }',
            '[[policy]] "p" definition.group-key: the expression ends',
        ),
        (
            '[[pipeline]]\nname = "p"\nfrom = { topic = "t", start = "soon" }\nsql = "s"\nto = [{ topic = "o" }]',
            "\"p\" from.start: 'soon' is no bookmark",
        ),
        (
            (
                '[[pipeline]]\nname = "p"\nfrom = { topic = "t" }\nbackfill = { from = "soon" }\nsql = "s"\n'
                'to = [{ topic = "o" }]'
            ),
            "\"p\" backfill.from: 'soon' is no bookmark",
        ),
        (
            '[cluster]\nregistry = "ftp://x"\nsecret = "a long text, the same for all"',
            "[cluster] registry: 'ftp://x' is no register: give file:///folder, etcd://",
        ),
        (
            f'[cluster]\nregistry = "etcd://etcd-1:2379,etcd-2/x"\n{SECRET}',
            "[cluster] registry: 'etcd://etcd-1:2379,etcd-2/x' has 'etcd-2', which is not host:port, as etcd-1:2379",
        ),
        (
            f'[cluster]\nregistry = "etcd://etcd..1:2379/x"\n{SECRET}',
            "[cluster] registry: 'etcd://etcd..1:2379/x' has 'etcd..1:2379', which is not host:port, as etcd-1:2379",
        ),
        (
            f'[cluster]\nregistry = "file:///x"\nadvertise = "a..b:8817"\n{SECRET}',
            "[cluster]: advertise is 'a..b:8817', not host:port at which the others reach this server",
        ),
        (
            f'[cluster]\nregistry = "etcd://etcd-1:99999/x"\n{SECRET}',
            "[cluster] registry: 'etcd://etcd-1:99999/x' has 'etcd-1:99999', which is not host:port, as etcd-1:2379",
        ),
        (  # the others would have called themselves
            f'[cluster]\nregistry = "file:///x"\nlisten = "0.0.0.0:8817"\n{SECRET}',
            "[cluster]: listen = 0.0.0.0:8817 without advertise: it says host:port at which the others reach that",
        ),
        (
            f'[cluster]\nregistry = "file:///x"\nadvertise = "0.0.0.0:8817"\n{SECRET}',
            "[cluster]: advertise is '0.0.0.0:8817', not host:port at which the others reach this server",
        ),
        (
            f'[cluster]\nregistry = "file:///x"\nadvertise = "node-1"\n{SECRET}',
            "[cluster]: advertise is 'node-1', not host:port at which the others reach this server",
        ),
        (
            f'[listen]\namqp = "0.0.0.0:8817"\n[cluster]\nregistry = "file:///x"\n{SECRET}',
            "[cluster] listen: 127.0.0.1:8817 cannot be taken: listen.amqp is 0.0.0.0:8817",
        ),
        ('underlying_topic = "^a"', "default_publish_target: is missing, which the pattern '^a' of topics needs"),
    ],
)
def test_check_finds_what_the_server_would_refuse(run: Run, tmp_path: Path, queue: str, said: str) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(f'[[queue]]\nname = "q"\n{queue}\n')
    status, _, err = run("check", str(bad))
    assert status == 2
    assert said in err
    assert f"{bad}:" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[binding]]\nsource = "nope"\ndestination = "q"\n', "6: [[binding]] \"nope -> q\": no exchange 'nope'"),
        ('[[binding]]\nsource = "amq.direct"\ndestination = "p"\n', "6: [[binding]] \"amq.direct -> p\": no queue 'p'"),
        ('[[topic]]\nname = "t"\nexchange = "nope"\n', "6: [[topic]] \"t\": no exchange 'nope'"),
    ],
)
def test_check_and_serve_refuse_alike_what_names_nothing(run: Run, tmp_path: Path, text: str, said: str) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(f'[[queue]]\nname = "q"\n\n\n{text}')
    status, _, err = run("check", str(bad))
    assert status == 2
    assert f"{bad}:{said}" in err
    one = ("--amqp", "off", "--http", "127.0.0.1:0", "--flight", "off", "--data", str(tmp_path / "data"))
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", str(bad), *one], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, f"{bad}:{said}" in done.stderr) == (2, True), done.stderr


def test_a_file_without_lines_is_named_where_it_names_nothing(run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "definitions.json"
    binding = {"source": "nope", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "k"}
    bad.write_text(json.dumps({"bindings": [binding]}))
    status, _, err = run("check", str(bad))
    assert (status, f"{bad}: [[binding]] \"nope -> q\": no exchange 'nope' in vhost '/'" in err) == (2, True), err


@pytest.mark.parametrize("command", ["serve", "check"])
def test_all_mistakes_are_told_at_once(run: Run, tmp_path: Path, command: str) -> None:
    """Those of filters beside those of values and of keys; what is left out for its own mistakes hides no other."""
    bad = tmp_path / "bad.toml"
    bad.write_text(
        '[server]\nsync = "never"\n'
        '[[queue]]\nname = "q"\nmax_lenght = 3\nfilter = "/a >"\n'
        '[[view]]\nname = "u"\nselect = "/a"\n'
        '[[view]]\nname = "v"\nsource = "q"\nselect = "/a +"\nkeyy = 1\n'
        '[[action]]\nname = "late"\non = { queue = "q" }\nif = "/b >"\niff = 1\n'
        'do = { echo_message = { message = "" } }\n'
        '[[entitlement]]\nread = "/c >"\nwrite = 3\n[tls]\ncertificate = "none.pem"\nkey = "none.key"\n'
    )
    status, _, err = run(command, str(bad))
    told = [line.partition(f"{bad}:")[2] for line in err.splitlines() if f"{bad}:" in line]
    assert status == 2
    assert sorted(int(line.partition(":")[0]) for line in told) == [2, 5, 6, 7, 10, 14, 15, 19, 22, 23, 25], err
    assert '[[view]] "v": the expression ends' in err


@pytest.mark.parametrize(
    "command", ["up FILE", "pipeline check FILE", "pipeline run FILE", "pipeline reset p FILE --yes"]
)
def test_who_reads_settings_with_pipelines_is_told_of_filters_too(run: Run, tmp_path: Path, command: str) -> None:
    """With the mistakes of values; certificates are the server's alone, who may be elsewhere."""
    bad = tmp_path / "bad.toml"
    bad.write_text(
        '[server]\nsync = "never"\n[[queue]]\nname = "q"\nfilter = "/a >"\n[[entitlement]]\nread = "/c >"\n'
        '[tls]\ncertificate = "none.pem"\nkey = "none.key"\n'
    )
    status, _, err = run(*command.replace("FILE", str(bad)).split())
    told = [line.partition(f"{bad}:")[2] for line in err.splitlines() if f"{bad}:" in line]
    assert status == 2
    assert sorted(int(line.partition(":")[0]) for line in told) == [2, 5, 7, *[9] * command.startswith("up")], err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\ndoors = -1", "2: [server] doors: must be 'auto' or greater than or equal to 0, not -1"),
        (
            '[server]\ndoors = "aut"',
            "2: [server] doors: must be 'auto' or a valid integer, not 'aut'; did you mean 'auto'?",
        ),
        ('[[policy]]\nname = "p"\npattern = "("\ndefinition = {}', "1: [[policy]] \"p\": pattern '(': "),
        (
            '[[queue]]\nname = "q"\nretry = { attemps = 3 }',
            "3: [[queue]] \"q\" retry.attemps: unknown key; did you mean 'attempts'?\n",
        ),
        (
            '[[queue]]\nname = "q"\nretry = { zzz = 3 }',
            '3: [[queue]] "q" retry.zzz: unknown key; it has initial, factor, max, jitter, attempts\n',
        ),
    ],
)
def test_one_mistake_is_one_sentence(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.delenv("PENSTOCK_SERVER__DOORS", raising=False)
    bad = tmp_path / "bad.toml"
    bad.write_text(text)
    status, _, err = run("check", str(bad))
    assert status == 2
    assert f"penstock: {bad}:{said}" in err
    assert err.count(str(bad)) == 1


def test_check_counts_every_section(run: Run, tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text(
        '[[queue]]\nname = "q"\n[[view]]\nname = "v"\nsource = "q"\nselect = "/a"\n'
        '[[conflated_topic]]\nname = "c"\nsource = "v"\n[[entitlement]]\nread = true\n'
    )
    assert "(1 queue, 1 view, 1 conflated topic, 1 entitlement)" in run("check", str(good))[1]


def test_a_place_for_the_ready_file_is_looked_for_first(run: Run, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, said in (("nowhere/ready", "nowhere is no folder"), ("there", "there cannot be written")):
        status, _, err = run("serve", "--data", str(tmp_path / "data"), "--ready-file", str(tmp_path / name))
        assert (status, said in err) == (2, True)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", ["serve", "check"])
def test_an_unreadable_filter_of_an_action_is_named_with_its_place(run: Run, tmp_path: Path, command: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[[topic]]\nname = "t"\n\n[[action]]\nname = "late"\n'
        'on = { topic = "t", event = "publish", filter = "/a >" }\ndo = { publish = { topic = "t", data = "x" } }\n'
    )
    options = ["--data", str(tmp_path / "data"), "--amqp", "off", "--http", "off", "--flight", "off"]
    status, _, err = run(command, str(file), *(options if command == "serve" else []))
    assert status == 2
    assert f'{file}:4: [[action]] "late": the expression ends' in err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("arguments", [["serve", "--bogus"], ["nothing"], ["queue", "peek"], ["serve", "--sync", "x"]])
def test_wrong_usage_ends_with_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments)[0] == 2


def test_doctor_looks_at_this_machine(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "p.toml"
    config.write_text(
        '[listen]\namqp = "127.0.0.1:0"\nhttp = "off"\nflight = "off"\n[log]\nretention = { age = "7d" }\n'
    )
    status, out, _ = run("doctor", str(config), "--data", str(tmp_path / "not" / "yet"), "--json")
    told = json.loads(out)
    assert status == 0
    assert {"Python", "disk sync", "free disk", "amqp door", "open files", "Java"} <= {
        finding["name"] for finding in told["findings"]
    }
    assert told["settings"]["log.retention.age"] == {"value": "1w", "from": f"{config}:6"}
    assert told["settings"]["server.data"]["from"] == "option --data"
    assert not (tmp_path / "not").exists()
    assert run("doctor", str(config))[0] == 0


def test_doctor_tells_how_java_starts_with_less_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert checkup.java(needed=False)[:2] == ("Java", "poor")
    name, verdict, found, advice = checkup.java(needed=True)
    assert (name, verdict) == ("Java", "bad")
    assert found == f"Spark needs Java, and JAVA_HOME is {tmp_path} and has no bin/java"
    assert advice.startswith("install Java 17 or newer")
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.9\"' >&2\n")
    program.chmod(0o755)
    assert checkup.java(needed=False) == checkup.Finding("Java", "good", f"17, {program}")
    assert checkup.java(needed=True, here=False).advice == ""
    assert "python -m penstock.spark.class_archive" in checkup.java(needed=True).advice
    archive = ClassArchive.of(str(program))
    archive.settings.mkdir(parents=True)
    (archive.folder / "home" / "jars").mkdir(parents=True)
    archive.file.touch()
    assert checkup.java(needed=True) == checkup.Finding("Java", "good", f"17, {program}")


def test_doctor_finds_a_taken_port() -> None:
    import socket

    from penstock.config.sections import Address

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = checkup.port("amqp", Address("127.0.0.1", taken.getsockname()[1]))
    assert finding.verdict == "bad"
    assert "set listen.amqp" in finding.advice


def test_doctor_knows_what_a_process_of_the_server_listens_to() -> None:
    """As Flight's door, which is a process of its own."""
    listen = "import socket, sys; s = socket.create_server(('127.0.0.1', 0))"
    listen += "; print(s.getsockname()[1], flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", listen, "penstock.server.flight.front"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        number = int(child.stdout.readline())
        assert checkup.listens(os.getpid(), number)
        assert not checkup.listens(os.getppid(), number)
        child.kill()


@pytest.mark.parametrize(
    ("wanted", "cores", "verdict", "found"),
    [
        ("auto", 2, "good", "none: the server's own takes the clients (server.doors = auto, 2 cores)"),
        ("auto", 16, "good", "4, each may allocate 384 MiB (server.doors = auto, 16 cores)"),
        (1, 2, "good", "1, each may allocate 384 MiB (server.doors = 1, 2 cores)"),
        (4, 4, "poor", "4, each may allocate 384 MiB (server.doors = 4, 4 cores)"),
    ],
)
def test_doctor_tells_which_processes_take_amqps_clients(
    monkeypatch: pytest.MonkeyPatch, wanted: object, cores: int, verdict: str, found: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    settings = Settings.model_validate({"server": {"doors": wanted, "memory": "128MiB"}})
    finding = checkup.amqp_processes(settings)
    assert (finding.verdict, finding.found) == (verdict, found)
    none = wanted == "auto" and cores == 2
    assert checkup.amqp_processes(settings, os.getpid()).verdict == ("good" if none else "poor"), "none of them runs"


@pytest.mark.parametrize(
    ("wanted", "found"), [(0, "none: the server's own takes"), ("auto", "it may allocate 1.5 GiB")]
)
def test_doctor_tells_which_process_takes_https_clients(wanted: object, found: str) -> None:
    settings = Settings.model_validate({"server": {"doors": wanted}})
    finding = checkup.http_process(settings)
    assert (finding.verdict, finding.found.startswith(found)) == ("good", True)
    assert checkup.http_process(settings, os.getpid()).verdict == ("good" if wanted == 0 else "poor"), "it does not run"


def test_doctor_tells_what_flights_process_may_allocate() -> None:
    finding = checkup.flight_process(Settings.model_validate({"server": {"memory": "64MiB"}}))
    assert finding == checkup.Finding(
        "Flight process", "good",
        "it may allocate 3.62 GiB, 128 MiB of it for what clients compress and 2 GiB for stacks of threads",
    )  # fmt: skip


def test_doctor_takes_the_server_of_the_folder_for_no_mistake(tmp_path: Path) -> None:
    import os
    import socket

    from penstock.config.sections import Address

    assert checkup.serving_process(tmp_path) is None
    disk = OsDisk(tmp_path)
    disk.lock()
    try:
        assert checkup.serving_process(tmp_path) == os.getpid()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = Address("127.0.0.1", taken.getsockname()[1])
            assert checkup.port("amqp", address, os.getpid()).verdict == "good"
            assert checkup.port("amqp", address, os.getppid()).verdict == "bad"
    finally:
        disk.unlock()
    assert checkup.serving_process(tmp_path) is None


HOLDS = """
import sys
from penstock.log.disk import OsDisk

OsDisk(sys.argv[1]).lock()
print(flush=True)
sys.stdin.read()
"""


def test_doctor_takes_the_process_of_a_member_that_follows_for_a_part_of_its_server(tmp_path: Path) -> None:
    """It holds the lock of the folder; what listens there is the server's, which has started it."""
    import os
    import subprocess

    command = [sys.executable, "-c", HOLDS, str(tmp_path), "penstock.server.cluster.process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as member:
        assert member.stdout is not None
        member.stdout.readline()
        assert checkup.lock_holder(tmp_path) == member.pid
        assert checkup.serving_process(tmp_path) == os.getpid()
        member.kill()


class StillClock:
    def wall(self) -> int:
        return 1_700_000_000_000_000

    def mono(self) -> int:
        return 1


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a boot record and three messages."""
    log = Log.open(OsDisk(tmp_path), StillClock(), LogSettings(segment=1 << 20))
    time = StillClock().wall()
    boot = Control(Kind.BOOT, "", b"{}", lsn=1, time=time)
    topic = Topic("/", "", "orders")
    log.append([boot, Publishes(topic, b"\0\0", [b"one", b"two", b"\xff"], first=2, time=time)])
    log.flush()
    log.close()
    return tmp_path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (0.5, "0.5"),
        ({}, ""),
        ({"p50": 0.1, "p99": 0.2}, "p50 0.1, p99 0.2"),
        (["/id", "/n"], "/id, /n"),
        ("ü日本", "ü日本"),
        ("a\x1b[31m\n\0", r"a\x1b[31m\n\x00"),
    ],
)
def test_cells_are_text_for_a_person_and_nothing_for_his_terminal(value: object, text: str) -> None:
    assert output.shown(value) == text


def test_log_commands_read_the_folder(run: Run, data: Path) -> None:
    [segment] = json.loads(run("log", "ls", "--data", str(data), "--json")[1])
    assert (segment["first"], segment["rows"]) == (1, 4)
    assert run("log", "ls", "--data", str(data))[0] == 0
    rows = [
        json.loads(line) for line in run("log", "show", "--data", str(data), "--from", "2", "--json")[1].splitlines()
    ]
    assert [(row["lsn"], row["kind"], row["name"]) for row in rows] == [(lsn, "publish", "orders") for lsn in (2, 3, 4)]
    assert [row.get("body", row.get("body_base64")) for row in rows] == ["one", "two", "/w=="]
    assert "orders" in run("log", "show", "--data", str(data), "--to", "2")[1]
    assert "2023-11-14 22:13:20.000 " in run("log", "show", "--data", str(data), "--to", "2")[1]
    status, _, err = run("log", "show", "--data", str(data), "--from", "3", "--to", "2")
    assert (status, "--from 3 is above --to 2" in err) == (2, True)
    assert run("log", "verify", "--data", str(data))[1].endswith("every checksum is right\n")


def test_log_verify_finds_damage(run: Run, data: Path) -> None:
    [file] = (data / "log").glob("*.arrows")
    content = bytearray(file.read_bytes())
    content[content.index(b"onetwo")] ^= 1
    file.write_bytes(content)
    status, out, err = run("log", "verify", "--data", str(data), "--json")
    assert status == 4
    assert json.loads(out)["good"] is False
    assert json.loads(err)["error"]["code"] == "PS503"


def test_compact_says_when_there_is_nothing_to_do(run: Run, data: Path) -> None:
    assert run("log", "compact", "--data", str(data), "--dry-run")[1].startswith("nothing to do")
    assert run("log", "show", "--data", str(data), "--to", "-5")[0] == 2


def test_a_backup_of_a_folder_takes_the_archive_that_is_named(
    run: Run, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As members of a cluster have one, and whoever has it on another disk: it was left out of such a backup."""
    place = tmp_path_factory.mktemp("elsewhere")
    archive, with_it, without = (str(place / name) for name in ("archive", "with", "without"))
    log = Log.open(OsDisk(data), StillClock(), LogSettings(segment=1 << 16))
    for lsn in (10, 11, 12):  # more than a segment
        log.append(
            [Publishes(Topic("/", "", "orders"), b"\0\0", [bytes(1 << 16)], first=lsn, time=StillClock().wall())]
        )
        log.flush()
    log.close()
    assert run("log", "archive", "--data", str(data), "--archive", archive)[0] == 0
    (data / "archive.json").write_text("{}")
    left_out = "archive in another folder"
    for target, named in ((without, ()), (with_it, ("--archive", archive))):
        status, _, err = run("backup", target, "--data", str(data), *named)
        assert (status, left_out in err) == (0, not named), err
        assert Path(target, "archive/manifest.json").exists() == bool(named)
    status, _, err = run("backup", str(place / "running"), "--archive", archive)
    assert (status, "--archive goes with --data" in err) == (2, True)


def test_restore_names_the_folder_that_is_no_backup(run: Run, data: Path, tmp_path: Path) -> None:
    status, _, err = run("restore", str(data), str(tmp_path / "new"))
    assert status == 2
    assert f"penstock: {data} holds no complete backup" in err


def test_log_commands_want_a_data_folder(run: Run, tmp_path: Path) -> None:
    status, _, err = run("log", "verify", "--data", str(tmp_path / "none"))
    assert status == 2
    assert "is no data folder" in err
    assert not (tmp_path / "none").exists()


def test_input_files_become_tables(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\r\n\n{"a": 2}')
    [table] = messagefiles.tables(tmp_path / "a.jsonl", "jsonl")
    assert table.column("body").to_pylist() == [b'{"a": 1}', b'{"a": 2}']
    rows = pa.table({"a": list(range(25_000))})
    parquet.write_table(rows, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrows"), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    (tmp_path / "a.csv").write_text("a\n" + "\n".join(map(str, range(25_000))))
    for name in ("a.parquet", "a.arrows", "a.arrow", "a.csv"):
        kind = messagefiles.READ[Path(name).suffix]
        sizes = [table.num_rows for table in messagefiles.tables(tmp_path / name, kind)]
        assert sizes == [10_000, 10_000, 5_000], name
    with pytest.raises(InvalidArgument, match="is no parquet"):
        list(messagefiles.tables(tmp_path / "a.csv", "parquet"))
    with pytest.raises(InvalidArgument, match="No such file"):
        list(messagefiles.tables(tmp_path / "absent.csv", "csv"))


class Delivered:
    """A message that remembers what became of it."""

    topic, lsn, bookmark, attempt, reason = "t", 1, "0|1|", 1, None

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.end = ""

    def ack(self) -> None:
        self.end = "ack"

    def release(self) -> None:
        self.end = "release"

    def retry(self, *, error: str | None = None) -> None:
        self.end = f"retry: {error}"


def test_consume_runs_a_command_for_each_message() -> None:
    given = [Delivered(b"good"), Delivered(b"bad"), Delivered(b"good"), Delivered(b"beyond")]
    script = "import sys; sys.exit(sys.stdin.read() == 'bad')"
    command = shlex.join([sys.executable, "-c", script])
    assert messages.take(given, 3, messages.read_command(command), as_json=False) == (2, 1)
    assert [message.end.partition(":")[0] for message in given] == ["ack", "retry", "ack", ""]
    assert "ended with status 1" in given[1].end


def test_consume_tells_when_what_it_took_could_not_be_settled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is known at the end of the consumer, which is the command's, and not that of whoever collects garbage."""

    class Broken(nullcontext[Any]):
        def __enter__(self) -> Any:
            return iter([Delivered(b"one")])

        def __exit__(self, *_: object) -> None:
            raise LogBroken("the log is broken")

    client = SimpleNamespace(consume=lambda *_, **__: Broken())
    monkeypatch.setattr(messages, "connect", lambda _: nullcontext(client))
    with pytest.raises(SystemExit) as ended:
        main(["consume", "q", "--count", "1"])
    assert ended.value.code == 5
    assert "the log is broken" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM, errno.ENOSPC, errno.EACCES])
def test_a_file_that_the_system_keeps_from_a_command_is_named(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number), "data/lock")

    monkeypatch.setattr(serving, "read_settings", read)
    with pytest.raises(SystemExit) as ended:
        main(["serve"])
    assert ended.value.code == 2
    assert f"penstock: 'data/lock': {os.strerror(number)}" in capsys.readouterr().err


def test_consume_prints_what_there_is_byte_for_byte_then_acknowledges(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    given = [Delivered(b"one"), Delivered(b"\xff\x00")]
    assert messages.take(given, 0, None, as_json=False) == (2, 0)
    assert capsysbinary.readouterr().out == b"one\n\xff\x00\n"
    assert {message.end for message in given} == {"ack"}


def test_json_has_a_body_that_is_no_text_in_base64(capsys: pytest.CaptureFixture[str]) -> None:
    assert messages.take([Delivered(b"\xff\x00"), Delivered("ü".encode())], 0, None, as_json=True) == (2, 0)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert "body" not in first
    assert b64decode(first["body_base64"]) == b"\xff\x00"
    assert second["body"] == "ü"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("lease_period=30s", ("lease_period", "30s")),
        ("max-backlog=5", ("max_backlog", 5)),
        ("retry={ initial = '1s' }", ("retry", {"initial": "1s"})),
        ("filter=/a = 1", ("filter", "/a = 1")),
    ],
)
def test_settings_on_the_command_line(text: str, read: tuple[str, object]) -> None:
    assert queues.read_setting(text) == read
    with pytest.raises(InvalidArgument, match="write KEY=VALUE"):
        queues.read_setting("lease")
    with pytest.raises(InvalidArgument, match="write lease_period=30s if seconds are meant"):
        queues.read_setting("lease-period=30")


@pytest.mark.parametrize(
    ("age", "size", "said"), [("5", None, "--age: duration '5'"), (None, "5x", "--size: size '5x'")]
)
def test_a_limit_of_compaction_that_cannot_be_read_is_named(
    tmp_path: Path, age: str | None, size: str | None, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        logfiles.compacted(str(tmp_path), age, size, compress=False, dry_run=True)


def arguments(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each command that takes arguments, and its line of usage."""
    for name, one in getattr(command, "commands", {}).items():
        yield from arguments(one, (*words, name))
    if any(one.param_type_name == "argument" for one in command.params):
        yield " ".join(words), command.get_usage(command.make_context(words[-1], [], resilient_parsing=True))


def test_arguments_stand_in_capitals_in_every_usage_as_in_the_documents() -> None:
    found = dict(arguments(built(None)))
    small = {words: usage for words, usage in found.items() if re.search(r"[\[{][a-z]+[\]}]|\[\[", usage)}
    assert len(found) > 60
    assert not small
