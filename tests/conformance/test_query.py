"""SQL over queues, topics and views: what a look says, nothing a user may not read, no file of the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner

import penstock
from bulk_lab import alive
from choices import spread
from http_lab import NO_TLS
from penstock.cli.main import command as built
from penstock.errors import (
    AccessRefused,
    InvalidArgument,
    NotFound,
    PenstockError,
    PreconditionFailed,
    ResourceExhausted,
    Unavailable,
)
from penstock.server.sql.children import Child
from penstock.testing import Broker
from waiting import eventually

pytestmark = pytest.mark.conformance

ARROW = "application/vnd.apache.arrow.stream"

CONFIG: dict[str, Any] = {
    "user": [
        {"name": "guest", "password": "guest", "tags": ["administrator"]},
        {"name": "ann", "password": "ann", "tags": ["management"]},
    ],
    "queue": [{"name": "to-ship", "underlying_topic": "orders"}, {"name": "jobs"}, {"name": "secret"}],
    "topic": [{"name": "customers", "key": ["/id"]}],
    "view": [
        {"name": "by-region", "source": "to-ship", "select": "/region, COUNT(/id) AS /n", "group_by": ["/region"]}
    ],
    "entitlement": [
        {"tag": "administrator", "read": True, "write": True},
        {"user": "ann", "queue": "^to-ship$", "read": "/region = 'n'"},
        {"user": "ann", "topic": "^customers$", "read": True},
    ],
    "sql": {"timeout": "2m"},
}
ORDERS = [{"id": i, "region": "nesw"[i % 4], "total": i * 1.5, "time": "noon", "place": {"x": i}} for i in range(40)]


STARTED = set[int]()


@pytest.fixture(autouse=True, scope="module")
def started() -> Iterator[None]:
    """The processes of statements are noted."""
    begin = Child.__init__

    def noted(self: Child) -> None:
        begin(self)
        STARTED.add(self.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "__init__", noted)
        yield


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as broker:
        for order in ORDERS:
            broker.publish("orders", json.dumps(order).encode())
        for number, name in enumerate(["Ann", "Bob", "Cid"]):
            broker.publish("customers", json.dumps({"id": number, "name": name}).encode())
        subscription = broker.subscribe("to-ship", max_backlog=10)
        for message in subscription.take()[:4]:
            message.ack()
        broker.publish("secret", b'{"id": 1}')
        yield broker


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(broker.flight_url) as client:
        yield client


def rows(client: penstock.Client, sql: str) -> list[dict[str, Any]]:
    return client.query(sql).to_arrow().to_pylist()


def test_a_broker_in_memory_shares_no_folder_with_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's broker had left one of a fixed name in /tmp, and no statement could be run beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "sql.tmp").touch()  # what nobody can make a folder in
    with Broker() as broker, penstock.connect(broker.flight_url) as client:
        assert rows(client, "SELECT 1 AS one") == [{"one": 1}]
        eventually(lambda: [one.name for one in tmp_path.iterdir()] == ["sql.tmp"], "its own has gone")


def test_a_queue_is_what_waits_and_a_topic_is_what_was(client: penstock.Client) -> None:
    states = rows(client, 'SELECT state, count(*) AS n FROM "to-ship" GROUP BY state ORDER BY state')
    assert states == [{"state": "leased", "n": 10}, {"state": "ready", "n": 26}]
    found = rows(client, 'SELECT region, count(*) AS n, sum(total) AS t FROM "to-ship" GROUP BY 1 ORDER BY 1')
    waiting = ORDERS[4:]
    assert found == [
        {
            "region": one,
            "n": sum(order["region"] == one for order in waiting),
            "t": sum(order["total"] for order in waiting if order["region"] == one),
        }
        for one in "ensw"
    ]
    assert rows(client, "SELECT count(*) AS n FROM topic.orders") == [{"n": 40}]
    assert [row["id"] for row in rows(client, "SELECT id FROM orders ORDER BY lsn")] == list(range(40))
    looked = {message.lsn: json.loads(message.body)["id"] for message in client.peek("to-ship", 100)}
    asked = rows(client, "SELECT lsn, id FROM queue.\"to-ship\" WHERE state = 'ready'")
    assert {row["lsn"]: row["id"] for row in asked} == looked


def test_every_kind_of_table(client: penstock.Client) -> None:
    assert rows(client, "SELECT name FROM customers WHERE id = 1") == [{"name": "Bob"}]
    assert rows(client, "SELECT name FROM sow.customers ORDER BY id DESC LIMIT 1") == [{"name": "Cid"}]
    counts = {row["region"]: row["n"] for row in rows(client, 'SELECT region, n FROM "by-region"')}
    ready = rows(client, "SELECT region, count(*) AS n FROM \"to-ship\" WHERE state = 'ready' GROUP BY 1")
    assert counts == {row["region"]: row["n"] for row in ready}
    joined = "SELECT o.id, c.name FROM orders o JOIN customers c USING (id) ORDER BY 1"
    assert rows(client, joined) == [{"id": n, "name": name} for n, name in enumerate(["Ann", "Bob", "Cid"])]
    twice = 'SELECT count(*) AS n FROM "to-ship" a JOIN "to-ship" b USING (id)'
    assert rows(client, twice) == [{"n": 36}]
    again = "WITH o AS (SELECT lsn FROM orders) SELECT count(*) AS n FROM o a JOIN o b USING (lsn)"
    assert rows(client, again) == [{"n": 40}]
    turns = """WITH RECURSIVE r(n, c) AS (SELECT 1, 0 UNION ALL SELECT n + 1, (SELECT count(lsn) FROM orders) FROM r
        WHERE n < 3) SELECT sum(c) AS s FROM r"""
    assert rows(client, turns) == [{"s": 80}]
    listed = {(row["kind"], row["name"]) for row in rows(client, "SHOW TABLES")}
    assert {("queue", "to-ship"), ("view", "by-region"), ("sow", "customers")} <= listed


def test_columns_and_fields_of_one_name(client: penstock.Client) -> None:
    [row] = rows(client, "SELECT time, json->>'time' AS said, place.x, text FROM orders WHERE id = 7")
    assert (row["said"], row["x"]) == ("noon", 7)
    assert json.loads(row["text"]) == ORDERS[7]
    assert row["time"].year >= 2000  # the message's own
    assert client.query("SELECT * FROM orders").columns == ["lsn", "topic", "time", "id", "region", "total", "place"]


def test_types_take_every_value_there_is(broker: Broker, client: penstock.Client) -> None:
    client.declare("mixed")
    for body in (b'{"n": 1}', b'{"n": -2.5}', b"no json", b"\xff\xfe", b'{"m": 18446744073709551615}', b"[1]"):
        broker.publish("mixed", body)
    assert [row["n"] for row in rows(client, "SELECT n FROM mixed ORDER BY lsn")] == [1, -2.5, None, None, None, None]
    assert rows(client, "SELECT max(m)::VARCHAR AS m FROM mixed") == [{"m": "18446744073709551615"}]
    bodies = [row["body"] for row in rows(client, "SELECT body FROM mixed ORDER BY lsn")]
    assert bodies[2:4] == [b"no json", b"\xff\xfe"]
    for number in (3, -4):
        broker.publish("jobs", json.dumps({"whole": number}).encode())
    assert client.query("SELECT whole FROM jobs").to_arrow().schema.field("whole").type == pa.int64()
    client.purge("jobs")
    assert rows(client, "SELECT kind, sum(size) AS s FROM jobs GROUP BY 1") == []  # what no message has yet


@pytest.mark.parametrize(
    ("sql", "error", "says"),
    [
        ("SELECT * FROM ordrs", NotFound, "no queue, view or topic 'ordrs'"),
        ('SELECT * FROM "to-shp"', NotFound, "did you mean 'to-ship'"),
        ("SELECT * FROM sow.orders", NotFound, "no sow 'orders'"),
        ("SELECT * FROM nowhere.orders", InvalidArgument, "before the dot stands one of queue, topic, sow, view"),
        ("SELECT nix FROM orders", InvalidArgument, '"nix" not found'),
        ("SELEC 1", InvalidArgument, "cannot be read"),
        ("", InvalidArgument, "statement is"),
        ("SELECT 1; SELECT 2", InvalidArgument, "2 statements"),
        ("DELETE FROM orders", InvalidArgument, "only SELECT"),
        ("COPY orders TO '/tmp/penstock-leak'", InvalidArgument, "only SELECT"),
        ("ATTACH '/tmp/penstock-leak'", InvalidArgument, "only SELECT"),
        ("SELECT * FROM queue('q')", InvalidArgument, "no function of this name makes a table"),
        ("SELECT * FROM read_csv('/etc/passwd')", InvalidArgument, "disabled by configuration"),
        ("SELECT * FROM '/etc/passwd'", PenstockError, "/etc/passwd"),
        ("SELECT * FROM glob('/*')", InvalidArgument, "disabled by configuration"),
        ("SELECT getenv('HOME')", InvalidArgument, "getenv"),
        ("SELECT current_setting('temp_directory')", InvalidArgument, "disabled by configuration"),
    ],
)
def test_what_is_refused(client: penstock.Client, sql: str, error: type[PenstockError], says: str) -> None:
    with pytest.raises(error, match=says.replace("(", r"\(")):
        rows(client, sql)
    assert rows(client, "SELECT 1 AS one") == [{"one": 1}]


def test_a_user_sees_what_he_may_read(broker: Broker) -> None:
    url = f"penstock://ann:ann@{urlsplit(broker.flight_url).netloc.rpartition('@')[2]}"
    with penstock.connect(url) as ann:
        assert {row["region"] for row in rows(ann, 'SELECT region FROM "to-ship"')} == {"n"}
        assert rows(ann, "SELECT count(*) AS n FROM customers") == [{"n": 3}]
        for sql in ("SELECT * FROM secret", "SELECT * FROM topic.orders", 'SELECT * FROM "by-region"'):
            with pytest.raises(AccessRefused):
                rows(ann, sql)
        assert {row["name"] for row in rows(ann, "SHOW TABLES")} == {"to-ship", "customers"}


def test_a_result_is_read_once(client: penstock.Client) -> None:
    result = client.query('SELECT count(*) AS n FROM "to-ship"')
    assert result.scalar() == 36
    with pytest.raises(PreconditionFailed, match="have been read"):
        result.to_arrow()
    frame = client.query("SELECT id, name FROM customers ORDER BY id").to_pandas()
    assert list(frame["name"]) == ["Ann", "Bob", "Cid"]


async def test_without_blocking(broker: Broker) -> None:
    async with penstock.aio.connect(broker.flight_url) as client:
        assert (await client.query('SELECT count(*) AS n FROM "to-ship"')).scalar() == 36
        with pytest.raises(NotFound):
            await client.query("SELECT * FROM nothing")


def test_who_leaves_ends_the_statement(broker: Broker) -> None:
    """A statement without an end runs for nobody but who waits for it, and others go on beside it."""
    endless = "SELECT count(*) FROM range(100000000000) a, topic.orders"
    command = [sys.executable, "-m", "penstock", "query", endless, "--url", broker.flight_url]
    with penstock.connect(broker.flight_url) as other:
        held = [other.query("SELECT * FROM range(1000000)")]
        while len(held) < 5 and len(running()) > len(held):  # no process waits for statements: what follows starts one
            held.append(other.query("SELECT * FROM range(1000000)"))
        before = running()
        for leaves in (kill_a_command, leave_http):
            leaves(broker, command, endless, lambda: bool(running() - before))
            eventually(lambda: not running() - before)
        assert [one.to_arrow().num_rows for one in held] == [1_000_000] * len(held)


def kill_a_command(broker: Broker, command: list[str], endless: str, runs: Callable[[], bool]) -> None:
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as asking:
        eventually(runs)
        asking.kill()


def leave_http(broker: Broker, command: list[str], endless: str, runs: Callable[[], bool]) -> None:
    with pytest.raises(httpx.TimeoutException):
        httpx.post(
            f"{broker.http_url}/api/query", verify=NO_TLS, json={"sql": endless}, auth=("guest", "guest"), timeout=2
        )


def running() -> set[int]:
    """Processes of statements that this process has started."""
    return {pid for pid in STARTED if alive(pid)}


def test_a_statement_has_its_time() -> None:
    config = {**CONFIG, "sql": {"timeout": "1500ms"}}
    with Broker(config) as broker, penstock.connect(broker.flight_url) as client:
        broker.publish("orders", b'{"id": 1}')
        with pytest.raises(ResourceExhausted, match=r"longer than 1.5 s, which is sql\.timeout"):  # again is no help
            rows(client, "SELECT count(*) FROM range(100000000000) a, topic.orders")


def test_a_result_over_http_that_nobody_reads_ends_in_its_time() -> None:
    """It is cut off, so that what came of it is not taken for the whole, and its place is free."""
    config = {**CONFIG, "sql": {"timeout": "1500ms", "at_once": 1}}
    ask = {"json": {"sql": "SELECT * FROM range(1000000000)"}, "headers": {"accept": ARROW}}
    with Broker(config) as broker, penstock.connect(broker.flight_url) as client:
        auth = ("guest", "guest")

        def next_one() -> bool:
            with suppress(Unavailable, ResourceExhausted):  # on a busy machine it, too, may need longer than it has
                return rows(client, "SELECT 1 AS n") == [{"n": 1}]
            return False

        def begins() -> bool:
            """On a busy machine its time may be over before that."""
            answers.append(stack.enter_context(httpx.stream("POST", url, verify=NO_TLS, auth=auth, timeout=60, **ask)))
            return answers[-1].status_code == 200 or b"sql.timeout" not in answers[-1].read()

        url = f"{broker.http_url}/api/query"
        answers = list[httpx.Response]()
        with ExitStack() as stack:
            eventually(begins)
            assert answers[-1].status_code == 200
            eventually(next_one)
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in answers[-1].iter_raw():
                    pass


def test_a_statement_has_its_memory() -> None:
    config = {**CONFIG, "sql": {"memory": "32MiB", "spill": "0B"}}
    more = pytest.raises(InvalidArgument, match=r"more than sql\.memory and sql\.spill allow")
    with Broker(config) as broker, penstock.connect(broker.flight_url) as client, more:
        rows(client, "SELECT len(list(random())) FROM range(20000000)")


def test_what_wants_too_much_ends_alone(broker: Broker, client: penstock.Client) -> None:
    """It is told which limit it met, on each door; a statement beside it and those after it are answered."""
    bomb = "SELECT len(repeat('x', 2000000000))"
    with penstock.connect(broker.flight_url) as other:
        beside = other.query("SELECT * FROM range(1000000)")
        with pytest.raises(ResourceExhausted, match=r"more than sql\.memory and sql\.spill allow"):
            rows(client, bomb)
        answer = httpx.post(
            f"{broker.http_url}/api/query", verify=NO_TLS, json={"sql": bomb}, auth=("guest", "guest"), timeout=20
        )
        assert (answer.status_code, "sql.memory" in answer.json()["reason"]) == (400, True)
        assert beside.to_arrow().num_rows == 1_000_000
    assert rows(client, "SELECT count(*) AS n FROM topic.orders") == [{"n": 40}]


@pytest.mark.parametrize("how", spread([signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL], 2))
def test_a_statement_whose_process_dies_is_told_so(client: penstock.Client, how: signal.Signals) -> None:
    before = {pid: seconds_of(pid) for pid in running()}
    told: list[BaseException] = []

    def ask() -> None:
        try:
            rows(client, "SELECT count(*) FROM range(100000000000) a, topic.orders")
        except PenstockError as error:
            told.append(error)

    def counting() -> list[int]:
        return [pid for pid in running() if seconds_of(pid) > before.get(pid, 0) + 0.25]

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: bool(counting()))
    os.kill(counting()[0], how)
    asking.join(60)
    [error] = told
    assert isinstance(error, ResourceExhausted)
    assert "did not come to its end" in str(error)
    assert rows(client, "SELECT count(*) AS n FROM topic.orders") == [{"n": 40}]


def seconds_of(pid: int) -> float:
    """CPU that a process has taken; none where it has ended meanwhile."""
    try:
        fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_over_http(broker: Broker) -> None:
    url, who = f"{broker.http_url}/api/query", ("guest", "guest")
    sql = 'SELECT region, count(*) AS n FROM "to-ship" GROUP BY 1 ORDER BY 1'
    answer = httpx.post(url, verify=NO_TLS, json={"sql": sql}, auth=who, timeout=20)
    assert answer.json() == {
        "columns": [{"name": "region", "type": "string"}, {"name": "n", "type": "int64"}],
        "rows": [["e", 9], ["n", 9], ["s", 9], ["w", 9]],
        "row_count": 4,
    }
    accept = {"accept": "application/vnd.apache.arrow.stream"}
    stream = httpx.post(url, verify=NO_TLS, json={"sql": sql}, auth=who, headers=accept, timeout=20)
    assert pa.ipc.open_stream(stream.content).read_all().column("n").to_pylist() == [9, 9, 9, 9]
    wide = httpx.post(
        url, verify=NO_TLS, json={"sql": "SELECT repeat('x', 1000000) FROM range(100)"}, auth=who, timeout=60
    )
    assert (wide.status_code, "more than 67108864 bytes: add a LIMIT" in wide.json()["reason"]) == (400, True)
    types = httpx.post(url, verify=NO_TLS, json={"sql": "SELECT * FROM test_all_types()"}, auth=who, timeout=20)
    assert (types.status_code, "column 'hugeint' has a value" in types.json()["reason"]) == (400, True)
    many = httpx.post(url, verify=NO_TLS, json={"sql": "SELECT * FROM range(200000)"}, auth=who, timeout=20)
    assert "add a LIMIT" in many.json()["reason"]
    assert httpx.post(url, verify=NO_TLS, json={"sql": "SELECT 1", "x": 1}, auth=who, timeout=20).status_code == 400
    refused = httpx.post(url, verify=NO_TLS, json={"sql": "SELECT * FROM secret"}, auth=("ann", "ann"), timeout=20)
    assert refused.status_code == 401, refused.text


def test_the_command(broker: Broker, tmp_path: Path) -> None:
    def run(*arguments: str, text: str | None = None) -> Any:
        return CliRunner().invoke(built(None), ["query", *arguments, "--url", broker.flight_url], input=text)

    sql = "SELECT id, name FROM customers ORDER BY id"
    shown = run(sql)
    assert shown.exit_code == 0, shown.output
    assert "Cid" in shown.output
    assert "3 rows" in shown.output
    assert json.loads(run(sql, "--json").stdout) == [
        {"id": 0, "name": "Ann"}, {"id": 1, "name": "Bob"}, {"id": 2, "name": "Cid"}
    ]  # fmt: skip
    assert json.loads(run("-", "--json", text="SELECT 1 AS one").stdout) == [{"one": 1}]
    assert run("SELECT id, place FROM orders", "-o", str(tmp_path / "a.csv")).exit_code == 0
    assert pyarrow.csv.read_csv(tmp_path / "a.csv").num_rows == 40
    assert run("SELECT * FROM orders WHERE id > 1000", "-o", str(tmp_path / "a.parquet")).exit_code == 0
    assert pyarrow.parquet.read_table(tmp_path / "a.parquet").column_names[:3] == ["lsn", "topic", "time"]
    assert isinstance(run("SELECT 1", "-o", str(tmp_path / "a.xlsx")).exception, InvalidArgument)
    for place in (tmp_path / "none" / "b.csv", tmp_path / "a.csv" / "b.parquet"):
        refused = run("SELECT 1 AS one", "-o", str(place)).exception
        assert isinstance(refused, InvalidArgument), refused
        assert f"{place} cannot be written: " in str(refused)
    (tmp_path / "c.csv").mkdir()
    assert isinstance(run("SELECT 1 AS one", "-o", str(tmp_path / "c.csv")).exception, InvalidArgument)
    (tmp_path / "c.csv").rmdir()
    assert sorted(os.listdir(tmp_path)) == ["a.csv", "a.parquet"]
